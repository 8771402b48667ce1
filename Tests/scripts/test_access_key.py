"""Keys and the lines that let them in."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from Middleware.api.edge.access_keys import AccessKeys, Grant
from Middleware.cli import keys as access_key

SCRIPT = Path(__file__).parents[2] / "Scripts" / "access_key.py"
SHOWN = re.compile(r"^  (wilmer-[\w-]{43})$", re.MULTILINE)
LINE = re.compile(r"sha256:[0-9a-f]{64}")


def accepted(path: Path, key: str) -> Grant | None:
    return AccessKeys(str(path), lambda: ["ann", "bob"]).grant(f"Bearer {key}")


def run(*words: str) -> str:
    """What the tool prints, run as a person does."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *words], capture_output=True, encoding="utf-8", check=True, stdin=subprocess.DEVNULL
    )
    assert done.stderr == ""
    return done.stdout


def test_a_fresh_key_and_its_line(tmp_path: Path) -> None:
    printed = run()
    (key,) = SHOWN.findall(printed)
    file = tmp_path / "keys"
    (line,) = re.findall(r"^  (sha256:.*)$", printed, re.MULTILINE)
    file.write_text(line, "utf-8")
    assert accepted(file, key) == Grant() and key not in line
    assert SHOWN.findall(run()) != [key]


def test_a_list_is_made_and_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    keys = []
    for words in ([], ["--user", "ann"]):
        assert access_key.script(["--add", str(file), *words]) == 0
        keys += SHOWN.findall(capsys.readouterr().out)
    assert [accepted(file, key) for key in keys] == [Grant(), Grant(frozenset({"ann"}))]
    text = file.read_text("utf-8")
    assert not any(key in text for key in keys) and len(text.splitlines()) == 2
    assert all(key[:11] in text for key in keys)
    if os.name != "nt":
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data",
    ["# ü\r\n".encode("utf-16"), b"\xfe\xff" + "# ü".encode("utf-16-be"), "# ü".encode("cp1252"), b"a-key\n\xff"],
)
def test_a_list_that_is_not_utf8_stays_as_it_is(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows PowerShell writes UTF-16 with a mark; a line of UTF-8 in it would be unreadable."""
    file = tmp_path / "keys.txt"
    file.write_bytes(data)
    assert access_key.script(["--add", str(file)]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"ERROR: {file}: the file is not UTF-8 text. Save it as UTF-8.\n")
    assert file.read_bytes() == data


@pytest.mark.parametrize("before", ["# mine", "# mine\n", "a-key-of-some-length", "\r\n", "\ufeff# ü\r\n"])
def test_what_stands_in_a_list_stays(tmp_path: Path, before: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    file.write_bytes(before.encode())
    file.chmod(0o640)
    assert access_key.script(["--add", str(file)]) == 0
    (key,) = SHOWN.findall(capsys.readouterr().out)
    text = file.read_bytes()
    assert text.startswith(before.encode()) and text.endswith(b"\n") and accepted(file, key) == Grant()
    if before.startswith("a-key"):
        assert accepted(file, before) == Grant()
    if os.name != "nt":
        assert file.stat().st_mode & 0o777 == 0o640


def test_the_line_of_a_key_that_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.txt"
    for words in (["--hash"], ["--hash", "--add", str(file), "--user", "bob"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO(" my-own-long-secret \nmore\n"))
        assert access_key.script(words) == 0
        printed = capsys.readouterr()
        assert "secret" not in printed.out + printed.err
        if "--add" not in words:
            assert LINE.match(printed.out)
    assert accepted(file, "my-own-long-secret") == Grant(frozenset({"bob"}))


def test_a_key_that_one_has_is_asked_for_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(access_key.getpass, "getpass", lambda prompt: "short")
    assert access_key.script(["--hash"]) == 0
    printed = capsys.readouterr()
    assert LINE.match(printed.out) and "may be guessed" in printed.err


@pytest.mark.parametrize(("text", "problem"), [(b" \n", "No key"), (b"my-\xff-key\n", "UTF-8")])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_no_key_is_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: bytes, problem: str, errors: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8", errors))
    assert access_key.script(["--hash"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and problem in printed.err


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("my own key", "blanks"),
        ("my\tkey", "blanks"),
        ("schl\xfcssel", "ASCII"),
        ("a\x07b", "ASCII"),
        ("a\xa0b", "blanks"),
    ],
    ids=["space", "tab", "umlaut", "bell", "no-break space"],
)
def test_a_key_that_not_every_client_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{key}\n"))
    with pytest.raises(SystemExit) as stop:
        access_key.script(["--hash", "--add", str(tmp_path / "keys")])
    printed = capsys.readouterr()
    assert stop.value.code == 2 and problem in printed.err and key not in printed.err
    assert printed.out == "" and not (tmp_path / "keys").exists()


def test_a_list_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "none" / "keys.txt"):
        assert access_key.script(["--add", str(path)]) == 1
        printed = capsys.readouterr()
        assert str(path) in printed.err and "wilmer-" not in printed.out  # a key that opens nothing is not shown


@pytest.mark.parametrize("words", [["--add", ""], ["--user", " "], ["--user", "a\nb"], ["--user", "ann #2"], ["file"]])
def test_wrong_arguments(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        access_key.script(words)
    assert stop.value.code == 2


@pytest.mark.parametrize("words", [["--console", "own"], ["--console", "all", "--user", "ann"]])
def test_a_key_for_the_console(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    assert access_key.script(["--add", str(file), *words]) == 0
    grant = accepted(file, SHOWN.findall(capsys.readouterr().out)[0])
    assert grant is not None and grant.console == words[1]
    assert grant.console_users == grant.users == (frozenset({"ann"}) if "ann" in words else None)


def test_the_command_writes_and_lists_the_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    assert access_key.main(["add", "--console", "own", "--accepted-keys-file", str(file)]) == 0
    assert access_key.main(["list", "--accepted-keys-file", str(file)]) == 0
    assert "line 1: every user, console own, wilmer-" in capsys.readouterr().out


def test_the_words_of_the_server_have_no_effect_on_a_key(tmp_path: Path) -> None:
    """As a command may stand in front of the server's own command line."""
    file = tmp_path / "keys.txt"
    assert access_key.main(["add", "--console", "edit", "--accepted-keys-file", str(file)]) == 0
    assert "console" not in file.read_text("utf-8")
