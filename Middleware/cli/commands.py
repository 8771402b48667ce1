"""Sub-commands, which a launcher runs instead of serving when the first word of the command line that is neither a flag
nor the value of one is a word such as ``check``.

``python server.py check`` runs the command ``check`` with all other words. A folder with the name of a command can
still be given as the older positional ConfigDirectory if it is written as a path: ``./check``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from Middleware.utilities.text_utils import nearest

# The names are short, so that one wrong letter is a large part of them.
COMMAND_CUTOFF = 0.6


@dataclass(frozen=True)
class Command:
    """A sub-command: its line in the help, and its function, which takes the words after its own and returns the exit
    status."""

    summary: str
    run: Callable[[Sequence[str]], int]


# Each function imports its command itself, because a start without a command does not need it.


def _init(words: Sequence[str]) -> int:
    from Middleware.addons.init.command import main

    return main(words)


def _check(words: Sequence[str]) -> int:
    from Middleware.addons.check.command import main
    from Middleware.addons.workflow_tests.reading import check_test_files

    return main(words, check_test_files)


def _test(words: Sequence[str]) -> int:
    from Middleware.addons.workflow_tests.command import main

    return main(words)


def _try(words: Sequence[str]) -> int:
    from Middleware.addons.talk.command import try_main

    return try_main(words)


def _chat(words: Sequence[str]) -> int:
    from Middleware.addons.talk.command import chat_main

    return chat_main(words)


def _keys(words: Sequence[str]) -> int:
    from Middleware.cli.keys import main

    return main(words)


def _console(words: Sequence[str]) -> int:
    from Middleware.addons.console.console_link import main

    return main(words)


def _memory(words: Sequence[str]) -> int:
    from Middleware.addons.discussions.command import run
    from Middleware.cli.console import program_name

    return run(words, program_name("memory"))


def _rekey(words: Sequence[str]) -> int:
    from Middleware.addons.discussions.rekey.command import run
    from Middleware.cli.console import program_name

    return run(words, program_name("rekey"))


def _state(words: Sequence[str]) -> int:
    from Middleware.cli.console import StartError, program_name, say
    from Middleware.cli.preparation import require_database_packages

    try:
        require_database_packages("state")
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    from Middleware.addons.postgres.state_command import main

    return main(words, program_name("state"))


def _help(words: Sequence[str]) -> int:
    """Print the help of the launcher, or that of the command that is named."""
    from Middleware.cli.arguments import build_parser
    from Middleware.cli.console import program_name, say

    if not words or words[0].startswith("-"):
        build_parser(program_name(), command_list()).print_help()
        return 0
    if words[0] not in COMMANDS:
        say(f"ERROR: There is no command '{words[0]}'. {_hint(words[0])}", error_stream=True)
        return 2
    return COMMANDS[words[0]].run(["--help"]) if words[0] != "help" else _help([])


COMMANDS: dict[str, Command] = {
    "init": Command("connect an LLM server, and write a user for it", _init),
    "check": Command("find mistakes in the configuration", _check),
    "test": Command("run the tests of workflows against a scripted LLM", _test),
    "try": Command("send one request to a model and print the answer; --trace shows what happens", _try),
    "chat": Command("talk to a model in this terminal", _chat),
    "keys": Command("create the keys that clients need, and list them", _keys),
    "console": Command("print a link to the run console of the running server", _console),
    "memory": Command("list, show, search, check, export and delete stored conversations", _memory),
    "rekey": Command("move stored conversations to another API key, or decrypt them", _rekey),
    "state": Command("move stored conversations into a database that several servers share, and back", _state),
    "help": Command("print this help; 'help COMMAND' prints the help of a command", _help),
}


def command_list() -> str:
    """Return all commands with a line each, for the help."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())


def find_command(argv: Sequence[str] | None = None) -> Callable[[], int] | None:
    """Return the sub-command on a command line, ready to run; None if a server is to start.

    ``argv`` is without the program's name; None for the command line of this process.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    place = _first_plain(words) if COMMANDS.keys() & words else None
    if place is None or words[place] not in COMMANDS:
        return None
    command, flags, rest = words[place], words[:place], words[place + 1 :]
    # The help of a command needs no configuration.
    return lambda: COMMANDS[command].run(rest if command == "help" else [*flags, *rest])


def _first_plain(words: Sequence[str]) -> int | None:
    """Return the position of the first word that is neither a flag of the launchers nor the value of one."""
    if not words[0].startswith("-"):
        return 0
    # Imported here because most command lines with a command begin with it.
    from Middleware.cli.arguments import build_parser, first_positional

    return first_positional(build_parser(), words)


def no_such_command(word: str | None) -> str:
    """Return why ``word``, given as the older positional ConfigDirectory, is probably a misspelt command, or ""."""
    # A path, or an existing folder, is certainly not a misspelt command.
    if not word or not word.isidentifier() or os.path.isdir(word):
        return ""
    hint = "Behind '--' there are no commands." if word in COMMANDS else _hint(word)
    return f"There is no command '{word}', and no configuration folder of that name. {hint}"


def _hint(word: str) -> str:
    near = nearest(word, COMMANDS, COMMAND_CUTOFF)
    return f"Did you mean '{near}'?" if near else f"The commands: {', '.join(COMMANDS)}."
