"""The reader of ``compose.yaml`` refuses what it does not understand."""

from __future__ import annotations

import pytest

from Tests.integration.compose_file import parse


def test_reads_mappings_lists_and_quoted_texts() -> None:
    text = 'a:\n  # no key\n  b: []\n  c:\n    - x:/y\n    - "z: 1"\n  d:\nlast: true\n'
    assert parse(text) == {"a": {"b": [], "c": ["x:/y", "z: 1"], "d": None}, "last": "true"}


@pytest.mark.parametrize(
    "text",
    [
        "a: *b\n",
        "a: {b: 1}\n",
        "a: x # y\n",
        "a: 'b'\n",
        "a: 1\na: 2\n",
        "- a\n",
        "a:\n  - b: 1\n",
        "a: |\n  text\n",
        " a: 1\n",
        "a\n",
        "a:\n    b: 1\n  c: 1\n",
    ],
)
def test_refuses_the_rest(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
