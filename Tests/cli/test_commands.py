"""Words that stand first on the command line of a launcher."""
from __future__ import annotations

import pytest

from Middleware.cli import commands
from Middleware.cli.commands import find_command
from Middleware.cli.startup import run


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
