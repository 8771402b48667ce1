"""The strings in JSON data."""

from __future__ import annotations

import pytest

from Middleware.utilities.config.json_source import child
from Middleware.utilities.json_data import freeze, strings_in

DATA = {"b": ["one", {"my key": "two"}, ["three"], 4, None], "a": "five", "empty": {}}


@pytest.mark.parametrize("data", [DATA, freeze(DATA)], ids=["plain", "frozen"])
def test_all_strings_come_in_their_order_with_their_paths(data: object) -> None:
    found = {child("nodes[0]", *keys): text for keys, text in strings_in(data)}
    assert list(found.items()) == [
        ("nodes[0].b[0]", "one"),
        ('nodes[0].b[1]["my key"]', "two"),
        ("nodes[0].b[2][0]", "three"),
        ("nodes[0].a", "five"),
    ]
    assert child("", "b", 0) == "b[0]" and child("", "my key") == '["my key"]' and child("a") == "a"


def test_a_string_is_data_too() -> None:
    assert list(strings_in("one")) == [((), "one")] and list(strings_in(None)) == []


def test_deep_nesting() -> None:
    deep: object = "bottom"
    for _ in range(5000):
        deep = [deep]
    assert [text for _, text in strings_in(deep)] == ["bottom"]
