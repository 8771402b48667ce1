"""What a person is told about JSON that does not parse."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import ConfigSyntaxError
from Middleware.utilities.config.json_mistakes import explain
from Middleware.utilities.config.json_source import JsonSource, parse_json
from Tests.tables import table

COMMENT = 'JSON has no comments; write the remark as a string under a key such as "_comment"'
BACKSLASH = r"write a backslash in a string twice (C:\\Models), or use a forward slash (C:/Models)"
UNCLOSED_TEXT = r"a string has no closing quotation mark on its line (write a line break in a string as \n)"
INNER_QUOTE = r"write a quotation mark inside a string as \""
QUOTES = 'strings and keys need straight double quotation marks ("), not '


@table(
    ("text", "line", "column", "message"),
    [
        ('{"a": 1,}', 1, 8, "there is a comma before the closing '}'"),
        ('{"a": 1,\n\n}', 1, 8, "there is a comma before the closing '}'"),
        ("[1, 2, ]", 1, 6, "there is a comma before the closing ']'"),
        ('{"a": 1,, "b": 2}', 1, 9, "there is a comma without an entry before it"),
        ('{, "a": 1}', 1, 2, "there is a comma without an entry before it"),
        ("{'a': 1}", 1, 2, QUOTES + "'"),
        ('{"a": “x”}', 1, 7, QUOTES + "“"),
        ('{"a": 1 "b": 2}', 1, 9, "a comma is missing before this"),
        ('{"a": "x"\n "b": 2}', 2, 2, "a comma is missing before this, at the end of line 1"),
        ("[1 2]", 1, 4, "a comma is missing before this"),
        ('{"a": 1; "b": 2}', 1, 8, "a comma is expected here, not ';'"),
        ('{"a": 1, // x\n"b": 2}', 1, 10, COMMENT),
        ('{"a": 1 # x\n}', 1, 9, COMMENT),
        ("/* x */ {}", 1, 1, COMMENT),
        ('{"a": [1, 2', 1, 12, "the file ends too early: the '[' of line 1 is not closed"),
        ('{"a": 1\n', 2, 1, "the file ends too early: the '{' of line 1 is not closed"),
        ('{"nodes": [\n{"a": 1 ]}', 2, 9, "']' is not allowed here: the '{' of line 2 is not closed by '}'"),
        ('[1, "a": 2]', 1, 8, "':' is not allowed here: the '[' of line 1 is not closed by ']'"),
        ('{"a": 1}}', 1, 9, "there is one '}' too many"),
        (
            '{"a": 1} {"b": 2}',
            1,
            10,
            "the JSON is complete before this; is there a closing bracket too many, or a second object?",
        ),
        ('{"a": "say "hi" now"}', 1, 12, INNER_QUOTE),
        ('{"a": "don"t"}', 1, 11, INNER_QUOTE),
        ('{"a": "x\n}', 1, 9, UNCLOSED_TEXT),
        ('{"a": 1, "b', 1, 10, UNCLOSED_TEXT),
        ('{"a": "x\ty"}', 1, 9, r"a string contains a tab; write \t"),
        ('{"a": "x\x01y"}', 1, 9, r"a string contains a control character (U+0001); write \u0001"),
        ('{"a": "C:\\Models"}', 1, 10, BACKSLASH),
        ('{"a": "C:\\users"}', 1, 11, BACKSLASH),
        ('{"a": True}', 1, 7, "'True' is written true in JSON"),
        ('{"a": None}', 1, 7, "'None' is written null in JSON"),
        ('{"a": NaN}', 1, 7, "NaN is not a JSON value"),
        ('{"a": NaNs}', 1, 1, "NaN is not a JSON value"),
        ('{"a": ["NaN",\n-Infinity]}', 2, 1, "-Infinity is not a JSON value"),
        ("{a: 1}", 1, 2, "the key 'a' needs double quotation marks"),
        ('{"a": hello}', 1, 7, "the string 'hello' needs double quotation marks"),
        ('{"a": 01}', 1, 7, "this is not a number: 01"),
        ('{"a": .5}', 1, 7, "this is not a number: .5"),
        ('{"a": 1.}', 1, 7, "this is not a number: 1."),
        ('{"a": +1}', 1, 7, "this is not a number: +1"),
        ('{"a" = 1}', 1, 6, "write ':' between a key and its value, not '='"),
        ('{"a"}', 1, 5, "':' and a value are expected after a key; check its quotation marks"),
        ('{"a": }', 1, 7, "the key has no value"),
        ('{"a": , "b": 1}', 1, 7, "the key has no value"),
        ('{"a":: 1}', 1, 6, "a value is expected here"),
        ("<<<<<<< HEAD\n{}", 1, 1, "this is a marker of a merge conflict"),
    ],
)
def test_what_is_said(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ConfigSyntaxError) as caught:
        parse_json(text.encode("utf-8"), "x.json")
    assert (caught.value.msg, caught.value.lineno, caught.value.colno) == (message, line, column)
    assert str(caught.value) == f"x.json, line {line}, column {column}: not valid JSON: {message}"


def test_utf_16() -> None:
    with pytest.raises(ConfigSyntaxError, match="the file is UTF-16; save it as UTF-8"):
        parse_json('{"a": 1}'.encode("utf-16"), "x.json")


@given(st.text(alphabet="{}[],:\"\\'/#ant1.-+ \n\t\x00Ntrue"))
def test_anything_has_a_place(text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        mistake = explain(error.msg, text, error.pos, JsonSource(text).open_bracket)
        assert mistake.message
        assert 0 <= mistake.position <= len(text)
