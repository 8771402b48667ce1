"""Words that stand first on the command line of a launcher."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from Middleware.cli import commands
from Middleware.cli.commands import Command, find_command
from Middleware.cli.startup import run
from Tests.integration.launcher import PROJECT, run_launcher
from Tests.tables import table


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["stub"], []),
        (["stub", "--json", "x"], ["--json", "x"]),
        ([], None),
        (["--User", "stub"], None),
        (["./stub"], None),
        (["Stub"], None),
        # Flags before the command, and values of flags that are called like it.
        (["--User", "me", "stub", "x"], ["--User", "me", "x"]),
        (["--user=me", "stub"], ["--user=me"]),
        (["--User", "stub", "stub"], ["--User", "stub"]),
        (["--User", "stub", "--port", "5001"], None),
        (["--port", "5001", "-v", "--allow-public", "stub"], ["--port", "5001", "-v", "--allow-public"]),
        (["--config-directory", "stub", "--User=stub"], None),
        (["folder", "stub"], None),
        (["folder", "--User", "stub"], None),
        # --listen takes the word as its address, unless another flag or address follows it.
        (["--listen", "stub"], None),
        (["--listen", "::", "stub"], ["--listen", "::"]),
        (["--listen", "--metrics", "stub"], ["--listen", "--metrics"]),
        (["--listen=", "stub"], ["--listen="]),
        # The launcher itself answers these.
        (["--version", "stub"], None),
        (["--prot", "5001", "stub"], None),
        (["--", "stub"], None),
    ],
)
def test_the_first_word_that_is_no_flag_counts(
    words: list[str], given: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setitem(commands.COMMANDS, "stub", Command("", lambda rest: seen.append(list(rest)) or 7))
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

    monkeypatch.setitem(commands.COMMANDS, "stub", Command("", interrupted))
    assert run(lambda launch: None, ["stub"]) == 130


@pytest.mark.parametrize(("word", "hint"), [("chek", "Did you mean 'check'?"), ("serve", "The commands: ")])
def test_a_command_that_does_not_exist(word: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first word that is no command names the folder of the configuration."""
    monkeypatch.chdir(tmp_path)
    told = commands.no_such_command(word)
    assert told.startswith(f"There is no command '{word}', and no configuration folder of that name. {hint}")
    (tmp_path / word).mkdir()
    assert commands.no_such_command(word) == ""


def test_the_help_of_a_command_needs_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    command = find_command(["--User", "nobody", "help", "check"])
    assert command is not None
    with contextlib.suppress(SystemExit):
        command()
    assert "[NAME|FILE|FOLDER ...]" in capsys.readouterr().out


@pytest.mark.parametrize("folder", [None, "", "./chek", "C:\\configs", "my configs"])
def test_what_cannot_be_a_command(folder: str | None) -> None:
    assert commands.no_such_command(folder) == ""


@pytest.mark.parametrize(
    ("words", "present", "absent"),
    [
        ([], ["COMMAND ...", "  rekey   "], ["[--ConfigDirectory"]),
        (["check"], ["[NAME|FILE|FOLDER ...]"], ["older short form"]),
    ],
)
def test_the_usage_names_the_words_that_a_command_line_takes(
    words: list[str], present: list[str], absent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        commands.COMMANDS["help"].run(words)
    told = capsys.readouterr().out
    assert all(text in told for text in present) and not any(text in told for text in absent)


@pytest.mark.slow
def test_a_launcher_says_so() -> None:
    ended = run_launcher("server.py", "chek")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "ERROR: There is no command 'chek', and no configuration folder of that name. Did you mean 'check'?\n"
    )


@pytest.mark.slow
def test_help_lists_every_command() -> None:
    told = [run_launcher("server.py", *words) for words in (["help"], ["--help"], ["help", "keys"], ["help", "chek"])]
    assert [ended.returncode for ended in told] == [0, 0, 0, 2]
    for name, command in commands.all_commands().items():
        assert all(f"  {name} " in ended.stdout and command.summary in ended.stdout for ended in told[:2])
    assert "keys add" in told[2].stdout
    assert told[3].stderr == "ERROR: There is no command 'chek'. Did you mean 'check'?\n"


@pytest.mark.slow
def test_scripts_and_commands_are_the_same(tmp_path: Path) -> None:
    """The documented scripts are the older form of the commands, and options may be typed in any case."""
    (tmp_path / "Configs" / "Users").mkdir(parents=True)
    (tmp_path / "Configs" / "Users" / "ann.json").write_text("{}", encoding="utf-8")
    directory = ("--PublicDirectory", str(tmp_path))
    script = str(PROJECT / "Scripts" / "memory_tool.py")
    for words in (
        ["server.py", "memory", "list", "--user", "ann"],
        ["server.py", "memory", "--User", "ann", "list"],
        [script, "list", "--USER", "ann"],
    ):
        ended = run_launcher(*words, *directory)
        assert (ended.returncode, ended.stdout) == (0, "No discussions are stored.\n"), ended.stderr
    added = run_launcher("server.py", "keys", "add", "--user", "ann", *directory)
    assert added.returncode == 0 and "wilmer-" in added.stdout
    listed = run_launcher("server.py", "keys", "list", *directory)
    assert listed.stdout.startswith("line 1: user ann, wilmer-")


@pytest.mark.slow
def test_a_key_needs_a_user_who_exists(tmp_path: Path) -> None:
    (tmp_path / "Configs" / "Users").mkdir(parents=True)
    (tmp_path / "Configs" / "Users" / "alice.json").write_text("{}", encoding="utf-8")
    ended = run_launcher("server.py", "keys", "add", "--user", "alic", "--PublicDirectory", str(tmp_path))
    assert ended.returncode == 1 and ended.stdout == "" and "Did you mean 'alice'?" in ended.stderr
    assert not (tmp_path / "accepted-keys.txt").exists()


@pytest.mark.slow
@table(
    ("words", "told"),
    [
        (
            "--User ann chekc",
            "There is no command 'chekc', and no configuration folder of that name. Did you mean 'check'?",
        ),
        ("chekc ann", "There is no command 'chekc', and no configuration folder of that name. Did you mean 'check'?"),
        ("-- check", "of that name. Behind '--' there are no commands."),
        ("--ConfigDirectory tset", "ERROR: There is no configuration folder "),
        ("--listen check --port 0", "To run the command, put it first: {program} check --listen"),
        ("--User ann state status", "--User has no place here: this command is about the conversations of all users"),
    ],
)
def test_what_is_no_command(words: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "Configs" / "Users").mkdir(parents=True)
    (tmp_path / "Configs" / "Users" / "ann.json").write_text("{}", encoding="utf-8")
    (tmp_path / "Configs" / "Users" / "_current-user.json").write_text('{"currentUser": "ann"}', encoding="utf-8")
    ended = run_launcher("server.py", "--PublicDirectory", tmp_path, *words.split())
    assert ended.returncode in (1, 2) and told.split("{program}", maxsplit=1)[0] in ended.stderr, ended.stderr
    assert told.rpartition("{program}")[2] in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.slow
@table(
    "command",
    [
        "check",
        "test",
        "keys list",
        "memory list",
        "try x y",
        "console",
        "init --yes",
        "state status",
        "rekey --api-key x",
        "chat x",
    ],
)
@pytest.mark.parametrize("place", ["before", "behind"])
def test_every_command_takes_the_flags_of_a_launcher(command: str, place: str, tmp_path: Path) -> None:
    """What they refuse, if anything, is not a flag."""
    (tmp_path / "Configs" / "Users").mkdir(parents=True)
    (tmp_path / "Configs" / "Users" / "ann.json").write_text("{}", encoding="utf-8")
    user = [] if command.startswith("state") else ["--user=ann"]
    flags = ("--PublicDirectory", tmp_path, "--port", "5001", "-v", *user, "--log-level", "info")
    words = command.split()
    ended = run_launcher("server.py", *((*flags, *words) if place == "before" else (*words, *flags)))
    assert ended.stderr.count("option") == 0 and "unrecognized" not in ended.stderr, ended.stderr
    assert "Listening on" not in ended.stdout
