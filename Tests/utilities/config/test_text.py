"""Bytes of configuration files to text: encodings, and the place of what is wrong."""
from __future__ import annotations

import logging

import pytest

from Middleware.exceptions import ConfigSyntaxError
from Middleware.utilities.config.text import decode, decode_text, parse_json, parse_text


@pytest.mark.parametrize(("data", "place"), [
    (b'{"a": "\xe9"}', (1, 8)), (b'{\n  "a": 1,\n  "b\xfc": 2}', (3, 5)), (b"\xff\xfe{\x00", (1, 1))])
def test_the_first_byte_that_is_not_utf_8(data: bytes, place: tuple[int, int],
                                          caplog: pytest.LogCaptureFixture) -> None:
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
    assert parse_text('{"a": [1]}', "a.json") == {"a": [1]}
