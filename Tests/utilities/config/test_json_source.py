"""JSON files: encodings, repeated keys, and what stands where."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import ConfigSyntaxError
from Middleware.utilities.config.json_source import DuplicateKey, JsonSource, child, decode, decode_text, parse_json


@pytest.mark.parametrize(
    ("data", "place"),
    [(b'{"a": "\xe9"}', (1, 8)), (b'{\n  "a": 1,\n  "b\xfc": 2}', (3, 5)), (b"\xff\xfe{\x00", (1, 1))],
)
def test_the_first_byte_that_is_not_utf_8(
    data: bytes, place: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert decode(data)[1] == place
    assert caplog.records == []
    decode_text(data, "a.json")
    assert f"a.json is not UTF-8 (line {place[0]}, column {place[1]})" in caplog.text


@pytest.mark.parametrize("data", ["{}", "é", ""])
def test_utf_8_with_and_without_mark(data: str) -> None:
    assert decode(data.encode()) == decode(data.encode("utf-8-sig")) == (data, None)


@pytest.mark.parametrize("data", [b"", b" \n\t", b"\xef\xbb\xbf"])
def test_an_empty_file_has_a_place(data: bytes) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_json(data, "a.json")
    assert str(caught.value) == "a.json, line 1, column 1: not valid JSON: the file is empty"
    assert (caught.value.lineno, caught.value.colno) == (1, 1)


def test_what_was_decoded_is_parsed() -> None:
    assert JsonSource('{"a": [1]}', "a.json").parse() == {"a": [1]}


# -- repeated keys ---------------------------------------------------------------------------------------------------


def repeated_keys(text: str) -> tuple[DuplicateKey, ...]:
    source = JsonSource(text)
    source.parse()
    return source.duplicates()


def found(text: str) -> list[tuple[str, int, int, int]]:
    return [(key.json_path, key.line, key.column, key.first_line) for key in repeated_keys(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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
    ],
)
def test_repeated_keys(text: str, expected: list[tuple[str, int, int, int]]) -> None:
    assert found(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"a": {"a": 1}}}',
        '[{"a": 1}, {"a": 1}]',
        '{"a": "a", "b": "a: \\"a\\": "}',
        '{"a": ["a", "a"], "A": 1}',
        '{"x": "{\\"a\\": 1, \\"a\\": 2}"}',
        '"a"',
        "[]",
        "{}",
        "1",
        '{"a": "\\\\", "b": ":"}',
        '{"a"\n:1, "b" : 2}',
    ],
)
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
    keys = repeated_keys(text)
    assert len(keys) == len({(key.line, key.column) for key in keys}) == repeated(value)
    assert all(lines[key.line - 1][key.column - 1] == '"' and key.first_line <= key.line for key in keys)


# -- positions -------------------------------------------------------------------------------------------------------

TEXT = """{
  "p": "a\\"b]",
  "nodes": [
    {"type": "x"},
    {
      "two words": [1,
        "a", {"k": 5}],
      "content": {}
    }
  ]
}"""


def line_of(source: JsonSource, path: str) -> int | None:
    position = source.position(path)
    return position.line if position is not None else None


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("p", 2),
        ("nodes", 3),
        ("nodes[0]", 4),
        ("nodes[0].type", 4),
        ("nodes[1]", 5),
        ('nodes[1]["two words"]', 6),
        ('nodes[1]["two words"][0]', 6),
        ('nodes[1]["two words"][1]', 7),
        ('nodes[1]["two words"][2].k', 7),
        ("nodes[1].content", 8),
        ("nodes[1].absent", 5),
        ("elsewhere", 1),
        ("", 1),
    ],
)
def test_lines(path: str, line: int) -> None:
    source = JsonSource(TEXT)
    assert line_of(source, path) == line
    assert not source.is_list


def test_lines_of_a_list_file() -> None:
    source = JsonSource('[\n{"a": 1},\n{"a": 2}]')
    assert (source.is_list, line_of(source, "nodes[1].a"), line_of(source, "nodes[0]")) == (True, 3, 2)


@given(st.text(alphabet='{}[],:"\\a1 \n'))
def test_lines_of_anything(text: str) -> None:
    line = line_of(JsonSource(text), "nodes[0].a")
    assert line is None or 1 <= line <= text.count("\n") + 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=60), JSON), st.sampled_from([None, 1]))
def test_lines_of_json(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    source = JsonSource(text)
    for key, entry in value.items():
        start = json.dumps(key) + ": " + json.dumps(entry, indent=indent).split("\n")[0]
        line = line_of(source, child("", key))
        assert line is not None
        assert start.strip() in text.split("\n")[line - 1]


@pytest.mark.parametrize(
    ("text", "place"),
    [("[1]", (1, 1)), ("\n  [\n]", (2, 3)), ('"text"', (1, 1)), ("5", (1, 1)), ("\n 5", (2, 2)), ("  {}", (1, 3))],
)
def test_where_a_file_begins(text: str, place: tuple[int, int]) -> None:
    assert JsonSource(text).position("") == JsonSource(text).position("nowhere") == place


def test_an_empty_file_has_no_place() -> None:
    assert JsonSource(" \n").position("") is None
