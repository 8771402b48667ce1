"""The strings in JSON data, and the bytes that are stored of it."""

from __future__ import annotations

import json

import pytest

from Middleware.utilities.config.json_source import child
from Middleware.utilities.json_data import (
    MOST_VALUES,
    freeze,
    from_stored_json,
    has_too_many_values,
    strings_in,
    to_stored_json,
)
from Tests.tables import table

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


@pytest.mark.parametrize("value", [{"ü": ["😀", 1.5, None]}, "\ud83d alone", []])
def test_stored_json_is_read_again(value: object) -> None:
    assert from_stored_json(to_stored_json(value)) == value


def test_stored_json_is_compact() -> None:
    assert to_stored_json({"ü": [1, "a"]}) == '{"ü":[1,"a"]}'.encode()


MANY = MOST_VALUES + 1000
CODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


@table(
    ("text", "too_many"),
    [
        (b"[" + b"[]," * MANY + b"0]", True),
        (b'{"content": [' + b"{}, " * MANY + b"0]}", True),
        (b"[" + b'{"a":1},' * MOST_VALUES + b"0]", True),
        (b"[" + b'"",' * MANY + b"0]", True),
        (b"[" + b'"\\\\",' * MANY + b"0]", True),
        (b"[[0],[" + b"[\n]\n,\n" * MANY + b"0]]", True),
        (b"[" * 2 * MANY, True),
        (json.dumps({"a": [[]] * MANY}).encode("utf-16-le"), True),
        # U+2200 has the byte of a quotation mark.
        *((json.dumps({"\u2200": [[]] * MANY}, ensure_ascii=False).encode(coding), True) for coding in CODINGS),
        *((json.dumps("\u5b5b" * MANY, ensure_ascii=False).encode(coding), False) for coding in CODINGS),
        # Exactly as many, and one more.
        (b"[" + b'"a b",' * (MOST_VALUES - 1) + b"0]", False),
        (b"[" + b'"a b",' * MOST_VALUES + b"0]", True),
        # Code and JSON in a text, however it ends.
        (b'{"content": "' + b'[{\\"a\\": {}}, \\n' * MANY + b'"}', False),
        (b'{"content": "' + b"[" * 2 * MANY, False),
        (b'{"content": "' + b'\\"' * MANY + b"\\", False),
        (b'{"content": "' + b"\\\\" * MANY + b'"}', False),
        # Vectors and tokens: numbers take little more than their text.
        (b'{"input": [[' + b"1234, " * MANY + b"5]]}", False),
        (b"\xff" * 2 * MANY, False),
        (b"", False),
    ],
)
def test_too_many_values(text: bytes, too_many: bool) -> None:
    assert has_too_many_values(text) is too_many
