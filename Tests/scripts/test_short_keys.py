"""New keys that can be guessed are refused where they encrypt data; those that are in use keep working."""

from __future__ import annotations

import io
import itertools
import logging
import sys
from pathlib import Path

import pytest

from Middleware.addons.check.directory_check import check_short_keys
from Middleware.cli import keys
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.discussion_keys import _reported_users, discussion_keys
from Tests.scripts.rekey_lab import OLD, USER, RekeyLab, cipher_of
from Tests.scripts.test_rekey_encrypted_files import Tool

LENGTHS = (0, 1, 15, 16)
MARK = "~"  # in each of the keys, so that no message can have one by chance
GIVEN = {length: (MARK * length) for length in LENGTHS}
REASON = "can try keys until one fits"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RekeyLab:
    return RekeyLab(tmp_path, monkeypatch)


@pytest.fixture
def tool(lab: RekeyLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tool:
    return Tool(lab, capsys, monkeypatch)


def chosen_by_keys(
    lab: RekeyLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str, *words: str
) -> tuple[int, str]:
    """The status and the errors of the command ``keys`` with a key on standard input."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{key}\n"))
    try:
        status = keys.main([*words, "--ConfigDirectory", str(lab.config.root)])
    except SystemExit as end:
        status = int(end.code or 0)
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "whose", "encrypts", "allowed"),
    list(itertools.product(("add", "new"), ((), ("--User", USER)), (True, False), (True, False))),
)
def test_the_command_keys(
    lab: RekeyLab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    action: str,
    whose: tuple[str, ...],
    encrypts: bool,
    allowed: bool,
) -> None:
    lab.config.user(encryptUsingApiKey=encrypts)
    file = tmp_path / "keys.txt"
    for length, key in GIVEN.items():
        file.unlink(missing_ok=True)
        flags = [*whose, "--accepted-keys-file", str(file), *(["--allow-short-key"] if allowed else [])]
        status, said = chosen_by_keys(lab, monkeypatch, capsys, key, action, "--hash", *flags)
        refused = encrypts and not allowed and 0 < length < 16
        assert status == (1 if not length else 2 if refused else 0), (length, said)
        assert (REASON in said) is (refused and "--allow-short-key" in said), said
        assert ("may be guessed" in said) is (0 < length < 16 and not refused)
        assert file.exists() is (action == "add" and status == 0)


@pytest.mark.parametrize("other", [{"encryptUsingApiKey": True}, {"encryptUsingApiKey": "true"}, {}])
def test_a_key_for_every_user(
    lab: RekeyLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: dict[str, object]
) -> None:
    """One encrypting user among them is enough; a key for another user does not concern that one."""
    lab.config.user()
    lab.config.write("Users/bob", other)
    (lab.config.root / "Users" / "broken.json").write_text("{", encoding="utf-8")
    status, said = chosen_by_keys(lab, monkeypatch, capsys, GIVEN[15], "new", "--hash")
    assert status == (2 if other else 0) and ("'bob'" in said) is bool(other)
    assert chosen_by_keys(lab, monkeypatch, capsys, GIVEN[15], "new", "--hash", "--User", USER)[0] == 0


def test_a_key_that_is_made_is_long(
    lab: RekeyLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen_by_keys(lab, monkeypatch, capsys, "", "new", "--User", USER)[0] == 0
    assert len(keys.new_key()) > 40


@pytest.mark.parametrize(
    ("way", "encrypts", "sure", "allowed"),
    list(itertools.product(("argument", "environment", "typed"), (True, False), (True, False), (True, False))),
)
def test_the_command_rekey(
    lab: RekeyLab,
    tool: Tool,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    encrypts: bool,
    sure: bool,
    allowed: bool,
) -> None:
    lab.config.user(encryptUsingApiKey=encrypts)
    lab.fill("d1", cipher_of(OLD))
    before, present = lab.everything(), OLD
    for length, key in GIVEN.items():
        if way == "typed" and not length:
            continue  # That decrypts, as the question says.
        words = [*(["--yes"] if sure else []), *(["--allow-short-key"] if allowed else [])]
        if way == "argument":
            words += ["--api-key", present, "--new-api-key", key]
        elif way == "environment":
            monkeypatch.setenv("WILMER_API_KEY", present)
            monkeypatch.setenv("WILMER_NEW_API_KEY", key)
        else:
            answers = iter([present, key, key])
            monkeypatch.setattr("getpass.getpass", lambda prompt, answers=answers: next(answers))
        status = tool(*words, terminal=way == "typed")
        short = 0 < length < 16
        refused = encrypts and short and not allowed
        assert status == (2 if not length or refused else 0), (length, tool.out, tool.err)
        assert (REASON in tool.err and "Nothing was changed" in tool.err) is refused
        assert ("WARNING: a key of less than 16" in tool.err) is (short and not refused)
        if status:
            assert lab.everything() == before
        else:
            before, present = lab.everything(), key


@pytest.mark.parametrize("key", ["x", GIVEN[15]])
def test_a_short_key_stays_usable(
    lab: RekeyLab, tool: Tool, key: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It decrypts, is given to itself, and serves requests, with one line in the log."""
    process().one(_reported_users).clear()
    lab.fill("d1", cipher_of(OLD))
    assert tool("--api-key", OLD, "--new-api-key", key, "--allow-short-key") == 0
    assert tool("--api-key", key, "--new-api-key", key, "--yes") == 0 and "guess" not in tool.err
    with request_scope(RequestContext(user=USER)), caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert discussion_keys(key).encryption_key is not None
        assert discussion_keys(GIVEN[16]).encryption_key is not None
    [line] = [record.getMessage() for record in caplog.records if "less than 16 characters" in record.getMessage()]
    assert "rekey --User tester" in line and GIVEN[15] not in line
    caplog.clear()
    lab.config.user(encryptUsingApiKey=False)
    with request_scope(RequestContext(user=USER)), caplog.at_level(logging.WARNING):
        discussion_keys("y")
    assert not caplog.records
    lab.config.user(encryptUsingApiKey=True)
    assert tool("--api-key", key) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("line", "encrypts", "found"),
    [
        ("short-key", True, True),
        (f"short-key user={USER}", True, True),
        ("short-key user=bob", True, False),
        ("short-key", False, False),
        ("a-key-of-16-char", True, False),
        ("sha256:" + "0" * 64, True, False),
        ("# none", True, False),
        (None, True, False),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_check_advises_to_change_it(
    lab: RekeyLab, tmp_path: Path, line: str | None, encrypts: bool, found: bool, named: bool
) -> None:
    lab.config.user(encryptUsingApiKey=encrypts)
    lab.config.write("Users/bob", {})
    instance.PUBLIC_DIRECTORY = str(tmp_path)
    file = tmp_path / ("list.txt" if named else "accepted-keys.txt")
    if line is not None:
        file.write_text(f"# keys\n{line}\n", encoding="utf-8")
    findings = list(check_short_keys(str(file) if named else None, (USER, "bob")))
    assert bool(findings) is found
    for finding in findings:
        assert (finding.severity, finding.line) == ("warning", 2) and "rekey" in finding.message
        assert "short-key" not in finding.message
