"""The list of schemas in a settings file is replaced, and nothing else in the file changes."""

from __future__ import annotations

import json

import pytest

from Scripts.generate.vscode_settings import with_schemas

OURS = [{"fileMatch": ["/Users/*.json"], "url": "./Schemas/user.schema.json"}]
THEIRS = '{"fileMatch": ["x.json"], "url": "https://example.org/x.json"}'


def is_own(url: str) -> bool:
    return url.endswith("/Schemas/user.schema.json")


def merged(text: str) -> str:
    return with_schemas(text, OURS, is_own)


@pytest.mark.parametrize(
    "text",
    ["", " \n", "\ufeff\r\n", "{}", "{\n}\n"],
    ids=["no file", "blank", "byte order mark", "empty", "empty lines"],
)
def test_a_file_without_settings_gets_the_list(text: str) -> None:
    assert json.loads(merged(text)) == {"json.schemas": OURS}


@pytest.mark.parametrize(
    "text",
    [
        '{\n    "editor.tabSize": 4\n}\n',
        '{ // my settings\n  "a": "}", /* "json.schemas": [] */\n  "b": {"json.schemas": [1]},\n}\n',
        '{"[json]": {"editor.formatOnSave": true}, "c": "http://x//y"}',
    ],
    ids=["plain", "comments", "one line"],
)
def test_other_settings_stay_to_the_byte(text: str) -> None:
    result, rest = merged(text), text.partition("{")[2]
    added = with_schemas("", OURS, is_own).removesuffix("\n}\n")
    assert result.endswith(rest)
    assert result.removesuffix(rest).strip() == f"{added},"


@pytest.mark.parametrize(
    "text",
    [
        '{"json.schemas": []}',
        '{\n\t"x": [1, {"y": "]"}],\n\t"json.schemas": [\n\t\t' + THEIRS + " // mine\n\t\t,\n\t]\n}",
        '{"json.schemas": [/* old */ {"url": "/elsewhere/Schemas/user.schema.json"}, ' + THEIRS + '], "z": null}',
    ],
    ids=["empty list", "tabs and comments", "old entry"],
)
def test_entries_of_others_are_kept_and_old_ones_replaced(text: str) -> None:
    result = merged(text)
    assert (THEIRS in result) == (THEIRS in text)
    assert "elsewhere" not in result and result.count("./Schemas/user.schema.json") == 1
    assert ("// mine\n" in result) == ("// mine" in text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"a": 1}',
        '{\r\n  "a": 1\r\n}\r\n',
        '{"json.schemas": [' + THEIRS + ', // c\n], "b": [],}',
        '{"json.schemas": [' + THEIRS + " // c\n]}",
    ],
    ids=["none", "empty", "short", "crlf", "comments", "comment at end"],
)
def test_a_second_time_changes_nothing(text: str) -> None:
    once = merged(text)
    assert merged(once) == once and "./Schemas/user.schema.json" in once


def test_line_ends_stay() -> None:
    text = merged('{\r\n  "a": 1\r\n}\r\n')
    assert text.count("\n") == text.count("\r\n") > 8
    text = merged('{\r\n  "json.schemas": [\r\n    ' + THEIRS + "\r\n  ]\r\n}\r\n")
    assert text.count("\n") == text.count("\r\n") > 8


def test_entries_that_no_longer_exist_are_removed() -> None:
    assert json.loads(with_schemas(merged('{"a": 1}'), [], is_own)) == {"json.schemas": [], "a": 1}


@pytest.mark.parametrize(
    "text",
    ["[]", "true", '{"a": ', '{"a" 1}', '{"json.schemas": {}}', '{"json.schemas": [1, }'],
    ids=["list", "word", "cut off", "no colon", "schemas no list", "bracket"],
)
def test_what_is_no_settings_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        merged(text)
