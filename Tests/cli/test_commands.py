"""Words that stand first on the command line of a launcher."""
from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.cli import commands
from Middleware.cli.commands import find_command
from Middleware.cli.startup import run
from Tests.integration.launcher import run_launcher


@pytest.mark.parametrize(("words", "given"), [
    (["stub"], []), (["stub", "--json", "x"], ["--json", "x"]), ([], None), (["--User", "stub"], None),
    (["./stub"], None), (["Stub"], None)])
def test_the_first_word_alone_counts(words: list[str], given: list[str] | None,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setitem(commands.COMMANDS, "stub", lambda rest: seen.append(list(rest)) or 7)
    command = find_command(words)
    assert (command is None) == (given is None)
    if command is not None:
        assert command() == 7
        assert seen == [given]


def test_the_words_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["server.py", "check"])
    assert find_command() is not None
    monkeypatch.setattr("sys.argv", ["server.py"])
    assert find_command() is None


def test_an_interrupted_command_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(commands.COMMANDS, "stub", interrupted)
    assert run(lambda launch: None, ["stub"]) == 130


@pytest.mark.parametrize(("word", "hint"), [("chek", "Did you mean 'check'?"), ("serve", "The commands: ")])
def test_a_command_that_does_not_exist(word: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first word that is no command names the folder of the configuration."""
    monkeypatch.chdir(tmp_path)
    told = commands.no_such_command(word)
    assert told.startswith(f"There is no command '{word}', and no configuration folder of that name. {hint}")
    (tmp_path / word).mkdir()
    assert commands.no_such_command(word) == ""


@pytest.mark.parametrize("folder", [None, "", "./chek", "C:\\configs", "my configs"])
def test_what_cannot_be_a_command(folder: str | None) -> None:
    assert commands.no_such_command(folder) == ""


@pytest.mark.slow
def test_a_launcher_says_so() -> None:
    ended = run_launcher("server.py", "chek")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == ("ERROR: There is no command 'chek', and no configuration folder of that name. "
                            "Did you mean 'check'?\n")
