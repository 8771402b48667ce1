"""Finding keys that stand twice in one object."""
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.config.duplicates import duplicate_keys


def found(text: str) -> list[tuple[str, int, int, int]]:
    return [(key.json_path, key.line, key.column, key.first_line) for key in duplicate_keys(text, json.loads(text))]


@pytest.mark.parametrize(("text", "expected"), [
    ('{"a": 1, "a": 2}', [("a", 1, 10, 1)]),
    ('{"a": 1,\n "b": 2,\n  "a": 3}', [("a", 3, 3, 1)]),
    ('{"a": 1, "a": 2, "a": 3}', [("a", 1, 10, 1), ("a", 1, 18, 1)]),
    ('{"nodes": [{"b": 1}, {"title": "x",\n"title": "y"}]}', [("nodes[1].title", 2, 1, 1)]),
    ('[{"x": 1, "x": 2}]', [("[0].x", 1, 11, 1)]),
    ('{"o": {"p": {"q": 0, "q": 1}}, "z": [[], {"q": 0}]}', [("o.p.q", 1, 22, 1)]),
    ('{"o": {"k": 1, "k": 2}, "o": {"k": 3}}', [("o.k", 1, 16, 1), ("o", 1, 25, 1)]),
    ('{"two words": 1, "two words": 2}', [('["two words"]', 1, 18, 1)]),
    ('{"a\\u0062": 1, "ab": 2}', [("ab", 1, 16, 1)]),
    ('{"": 1, "": 2}', [('[""]', 1, 9, 1)]),
])
def test_repeated_keys(text: str, expected: list[tuple[str, int, int, int]]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize("text", [
    '{"a": {"a": {"a": 1}}}', '[{"a": 1}, {"a": 1}]', '{"a": "a", "b": "a: \\"a\\": "}', '{"a": ["a", "a"], "A": 1}',
    '{"x": "{\\"a\\": 1, \\"a\\": 2}"}', '"a"', "[]", "{}", "1", '{"a": "\\\\", "b": ":"}', '{"a"\n:1, "b" : 2}',
])
def test_nothing_is_found_where_no_key_is_repeated(text: str) -> None:
    assert found(text) == []


class Pairs(list):  # type: ignore[type-arg]
    """An object as it is written, with repeated keys."""


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    keys = st.sampled_from(["a", "b", '"', "\\", "\u00e9", ":"])
    return st.lists(inner, max_size=3) | st.lists(st.tuples(keys, inner), max_size=4).map(Pairs)


values = st.recursive(st.none() | st.integers() | st.text('a":\\{[,', max_size=4), containers, max_leaves=8)


def written(value: object) -> str:
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",\n".join(map(written, value)) + "]"
    return json.dumps(value)


def repeated(value: object) -> int:
    if isinstance(value, Pairs):
        return len(value) - len({key for key, _ in value}) + sum(repeated(item) for _, item in value)
    return sum(map(repeated, value)) if isinstance(value, list) else 0


@given(values)
def test_each_repeated_key_is_found_once_where_it_stands(value: object) -> None:
    text = written(value)
    lines = text.split("\n")
    keys = duplicate_keys(text, json.loads(text))
    assert len(keys) == len({(key.line, key.column) for key in keys}) == repeated(value)
    assert all(lines[key.line - 1][key.column - 1] == '"' and key.first_line <= key.line for key in keys)
