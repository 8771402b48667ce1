"""The source line below a finding or error: where its caret is, what is cut and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.utilities.config.excerpts import MAX_COLUMNS, Excerpts
from Middleware.utilities.sensitive_logging_utils import MASK

LONG = '  "prompt": "' + "a" * 300 + '", "x": 1'


def lines(tmp_path: Path, text: str | bytes, line: int | None, column: int | None) -> list[str]:
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "a" / "b.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return Excerpts(str(tmp_path)).lines("a/b.json", line, column, "error", lambda text, name: text)


@pytest.mark.parametrize(
    ("text", "line", "column", "shown", "mark"),
    [
        ('{\n  "port": 1\n}', 2, 3, '  2 |   "port": 1', "    |   ^^^^^^"),
        ('{\n  "port": maybe\r\n}', 2, 11, '  2 |   "port": maybe', "    |           ^^^^^"),
        ('{\n\t"port": 1}', 2, 2, '  2 |     "port": 1}', "    |     ^^^^^^"),
        ('{"a": "\u4f60\u597d", "b": 1}', 1, 13, '  1 | {"a": "\u4f60\u597d", "b": 1}', "    |               ^^^"),
        ('{"a": "e\u0301", "b": 1}', 1, 13, '  1 | {"a": "e\u0301", "b": 1}', "    |            ^^^"),
        ('{"a": "\x1b[2J"}', 1, 2, '  1 | {"a": "?[2J"}', "    |  ^^^"),
        ('{"a": 1,}', 1, 8, '  1 | {"a": 1,}', "    |        ^"),
        ('{"a": "open,', 1, 7, '  1 | {"a": "open,', "    |       ^^^^^^"),
        ('{"a": 1', 1, 8, '  1 | {"a": 1', "    |        ^"),
        ('\ufeff{"a": 1', 1, 2, '  1 | {"a": 1', "    |  ^^^"),
        ("[\n" * 99 + "5", 100, 1, "  100 | 5", "      | ^"),
        (
            '{"a": "k\xfcrz", "b": 1}'.encode("latin-1"),
            1,
            15,
            '  1 | {"a": "k\xfcrz", "b": 1}',
            "    |               ^^^",
        ),
    ],
    ids=[
        "key",
        "word",
        "tab",
        "wide",
        "combining",
        "escape",
        "comma",
        "open-string",
        "end",
        "bom",
        "wide-number",
        "latin-1",
    ],
)
def test_caret(tmp_path: Path, text: str | bytes, line: int, column: int, shown: str, mark: str) -> None:
    assert lines(tmp_path, text, line, column) == [shown, mark]


@pytest.mark.parametrize(("line", "column"), [(None, None), (9, 1), (2, 1)])
def test_no_such_line(tmp_path: Path, line: int | None, column: int | None) -> None:
    assert lines(tmp_path, "{\n\n}", line, column) == []
    assert Excerpts(str(tmp_path)).lines("no/file.json", line, column, "error", lambda text, name: text) == []


def test_a_line_without_a_column_has_no_caret(tmp_path: Path) -> None:
    assert lines(tmp_path, "{\n}", 1, None) == ["  1 | {"]


@pytest.mark.parametrize("column", [3, 150, LONG.index('"x"') + 1])
def test_a_long_line_is_cut_around_the_position(tmp_path: Path, column: int) -> None:
    shown, mark = lines(tmp_path, LONG, 1, column)
    assert len(shown) <= MAX_COLUMNS + len("  1 | ......")
    assert len(mark) <= len(shown)
    assert shown[mark.index("^") :].startswith(LONG[column - 1 : column + 1])


@pytest.mark.parametrize(
    ("text", "line", "column", "mark"),
    [
        ('{"apiKey": "hunter2", "port": x}', 1, 23, "^^^^^^"),
        ('{"apiKey": "hunter2}', 1, 12, "^"),
        ("{'api_key': 'hunter2'}", 1, 2, "^"),
        ('{"apiKey": hunter2}', 1, 12, "^"),
        ('{"endpoint": "http://tom:hunter2@x:1/v1?key=hunter2"}', 1, 2, "^" * 10),
        ('{"env": {"ANYTHING": "hunter2"}, "port": 1}', 1, 2, "^^^^^"),
        ('{"headers": {\n"X-Mine": "hunter2"}}', 2, 1, "^" * 8),
        ('{"nodes": [{"args": [\n"-u",\n"me:hunter2" "x"]}]}', 3, 14, "^^^"),
        ('{"nodes": [{"args": ["-u", "me:hunter2"], "x": 1}]}', 1, 43, "^^^"),
        # With a mark too many, one less, or another one.
        ('{"env": ,"-u hunter2", "x": 1}', 1, 2, "^^^^^"),
        ('{"env": "hunter2", "x": 1}', 1, 2, "^^^^^"),
        ('{"env": {"A": "-u hunter2"\n : }}', 1, 2, "^^^^^"),
        ('{"env": [{ "--token",\n"-u hunter2"]}', 2, 1, "^"),
        ('{"url": [\n"http://me:hunter2@x"\n : ]}', 2, 2, "^"),
        ('{"x": {a=1&token=hunter2", "y": 1}', 1, 2, "^^^"),
        ('{"x": {"A": ,Authorization: hunter2"}}', 1, 2, "^^^"),
        # The line is inside out: what was a text stands between two of them.
        ('{x": "curl -uhunter2 http://h", "y": 1}', 1, 2, "^"),
        ('{"nodes": [{\ny": "curl -H X-Api-Key:hunter2 http://h"}]}', 2, 1, "^"),
        ('{"x": 1\n, "y: "http://tom:hunter2@h/v1"}', 2, 3, "^"),
        ('{"x": {postgres://u:hunter2@h/db"}', 1, 2, "^^^"),
    ],
)
def test_secrets_are_not_shown(tmp_path: Path, text: str, line: int, column: int, mark: str) -> None:
    shown, caret = lines(tmp_path, text, line, column)
    assert "hunter2" not in shown
    assert MASK in shown
    assert mark in caret
    if text.split("\n")[line - 1][column - 1] == '"' and MASK not in shown[caret.index("^") :][: len(MASK) + 2]:
        key = text.split("\n")[line - 1][column - 1 :].split('"')[1]
        assert shown[caret.index("^") :].startswith(f'"{key}"'.replace("hunter2", ""))


@pytest.mark.parametrize(
    "text",
    [
        '{"endpoint": "http://h/v1?token=4711471"}',
        '{"endpoint": "http://4711471@h/v1"}',
        '{"description": "curl -u 4711471 http://h"}',
        '{"description": "curl -d password=4711471 http://h"}',
        '{"description": "X-Api-Key: 4711471"}',
        '{"x": "--pass=4711471"}',
        '{"endpoint": "http://h/v1?sig=4711471" "port": 1}',
    ],
)
def test_secrets_of_digits_inside_texts_are_not_shown(tmp_path: Path, text: str) -> None:
    shown = lines(tmp_path, text, 1, 2)[0]
    assert "4711471" not in shown and MASK in shown


@pytest.mark.parametrize(
    "text",
    [
        '{"args": ["{agent1Output}", 5, true]}',
        '{"maxNewTokensPropertyName": "max"}',
        '{"password": 4711471, "x": {"token": -1.5}}',
        # With a mistake, too.
        '{"encryptUsingApiKey": true "password": 4711471}',
        '{"token": null, "secret": false,, "x": 1}',
        '{"temperature": "0.5", "endpoint": "http://127.0.0.1:5001/v1"}',
    ],
)
def test_what_is_no_secret_is_shown(tmp_path: Path, text: str) -> None:
    assert lines(tmp_path, text, 1, 2)[0] == f"  1 | {text}"
