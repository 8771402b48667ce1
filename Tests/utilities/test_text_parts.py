"""Parts of texts: pieces between delimiters, fields of JSON objects, texts between tags, lines."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.text_utils import (
    first_pieces,
    json_field,
    last_pieces,
    lines_without,
    tagged_text,
    whole_number,
)
from Tests.tables import table


@table(
    ("text", "field", "result"),
    [
        ('{"a": true}', "a", "True"),
        ('{"a": false}', "a", "False"),
        ('{"a": null}', "a", ""),
        ('{"a": 1}', "a", "1"),
        ('{"a": 1.5}', "a", "1.5"),
        ('{"a": 1.0}', "a", "1.0"),
        ('{"a": "x y"}', "a", "x y"),
        ('{"a": ""}', "a", ""),
        ('{"a": {"b": 2}}', "a", '{"b": 2}'),
        ('{"a":[1,"é"]}', "a", '[1, "\\u00e9"]'),
        ('{"a": {"b": 2}}', "a.b", ""),
        ('{"a.b": 3}', "a.b", "3"),
        ('[{"a": 1}]', "a", ""),
        ('"a"', "a", ""),
        ("{", "a", ""),
        ("", "a", ""),
        ('{"a": 1}', "b", ""),
        ('{"a": 1}', "A", ""),
        ('{"": 1}', "", ""),
        ('  {"a": 1}\n', "a", "1"),
        ('{"a": "é"}', "a", "é"),
        ('{"a": 1, "a": 2}', "a", "2"),
        ('```json\n{"a": 1}\n```', "a", "1"),
        ('```JSON\n{"a": 1}\n```', "a", "1"),
        ('```\n{"a": 1}\n```', "a", "1"),
        ('\n```json {"a": 1}``` \n', "a", "1"),
        ('```json\n{"a": "``` x"}\n```', "a", "``` x"),
        ('text\n```json\n{"a": 1}\n```', "a", ""),
        ('```json\n{"a": 1}\n```\ntext', "a", ""),
        ('```yaml\n{"a": 1}\n```', "a", ""),
        ('```json\n{"a": 1}', "a", ""),
        ("```", "a", ""),
        ("``````", "a", ""),
    ],
)
def test_json_field(text: str, field: str, result: str) -> None:
    assert json_field(text, field) == result


def test_a_fence_that_a_model_never_closed_takes_no_time() -> None:
    started = time.process_time()
    assert json_field("```json" + "\n" * 60_000 + "x", "a") == ""
    assert time.process_time() - started < 2  # 20 s where every line break is tried as the end of the gap


def test_absurd_json_is_no_json() -> None:
    assert json_field("[" * 200_000, "a") == ""
    assert json_field('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "a") == ""
    assert json_field('{"a": ' + "9" * 10_000 + "}", "a") == ""


@pytest.mark.parametrize(
    ("text", "tag", "result"),
    [
        ("<a>1</a><a>2</a>", "a", "1"),
        ("<A>x</A>", "a", ""),
        ('<a id="1">x</a>', "a", ""),
        ("<a>  </a>", "a", ""),
        ("<a>\n x\ny \n</a>", "a", "x\ny"),
        ("<a>x", "a", ""),
        ("x</a>", "a", ""),
        ("</a><a>x</a>", "a", "x"),
        ("<a><a>x</a></a>", "a", "<a>x"),
        ("<a.b>x</a.b>", "a.b", "x"),
        ("<axb>x</axb>", "a.b", ""),
        ("<>x</>", "", ""),
        ("<a></a><a>2</a>", "a", ""),
        ("", "a", ""),
    ],
)
def test_tagged_text(text: str, tag: str, result: str) -> None:
    assert tagged_text(text, tag) == result


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (1, "a", ""),
        (2, "a,b", ","),
        (3, "a,b,", "b,,"),
        (4, "a,b,,", "a,b,,"),
        (9, "a,b,,", "a,b,,"),
        (0, "", ""),
        (-1, "", ""),
    ],
)
def test_pieces(count: int, first: str, last: str) -> None:
    assert (first_pieces("a,b,,", ",", count), last_pieces("a,b,,", ",", count)) == (first, last)


@given(st.text(alphabet="a-", max_size=20), st.sampled_from(["-", "--", "a-a"]), st.integers(1, 8))
def test_pieces_are_those_of_split(text: str, delimiter: str, count: int) -> None:
    pieces = text.split(delimiter)
    assert first_pieces(text, delimiter, count) == delimiter.join(pieces[:count])
    assert last_pieces(text, delimiter, count) == delimiter.join(pieces[-count:])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\nx\nb\n", "a\nb\n"),
        ("a\r\nx\r\nb\r\n", "a\r\nb\r\n"),
        ("a\rx\rb", "a\rb"),
        ("a\nx", "a\n"),
        ("x", ""),
        ("a\u2028x\nb", "b"),
        ("a\x0cb\n", "a\x0cb\n"),
        ("", ""),
    ],
)
def test_lines_without(text: str, kept: str) -> None:
    assert lines_without(text, lambda line: "x" in line) == (kept, int(kept != text))


def test_a_line_does_not_include_its_end() -> None:
    assert lines_without("a\nb\n", lambda line: "\n" in line) == ("a\nb\n", 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        (" 5\n", 5),
        ("-3", -3),
        ("007", 7),
        ("5.0", None),
        ("", None),
        ("1_0", None),
        ("٣", None),
        ("x", None),
        ("9" * 5000, None),
    ],
)
def test_whole_number(text: str, number: int | None) -> None:
    assert whole_number(text) == number
