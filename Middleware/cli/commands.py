"""Sub-commands, which a launcher runs instead of serving when the first word of the command line that is neither a flag
nor the value of one is a word such as ``check``.

``python server.py check`` runs the command ``check`` with all other words. A folder with the name of a command can
still be given as the older positional ConfigDirectory if it is written as a path: ``./check``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from Middleware.cli.addon import Command, addons
from Middleware.utilities.text_utils import nearest

# The names are short, so that one wrong letter is a large part of them.
COMMAND_CUTOFF = 0.6


def _keys(words: Sequence[str]) -> int:
    from Middleware.cli.keys import main

    return main(words)


def _help(words: Sequence[str]) -> int:
    """Print the help of the launcher, or that of the command that is named."""
    from Middleware.cli.arguments import build_parser
    from Middleware.cli.program import program_name, say

    if not words or words[0].startswith("-"):
        build_parser(program_name(), command_list()).print_help()
        return 0
    if words[0] not in all_commands():
        say(f"ERROR: There is no command '{words[0]}'. {_hint(words[0])}", error_stream=True)
        return 2
    return all_commands()[words[0]].run(["--help"]) if words[0] != "help" else _help([])


COMMANDS: dict[str, Command] = {
    "keys": Command("create the keys that clients need, and list them", _keys),
    "help": Command("print this help; 'help COMMAND' prints the help of a command", _help),
}
"""The commands of the core."""


def all_commands() -> dict[str, Command]:
    """Return the commands of the add-ons and of the core by their names."""
    return {name: command for one in addons() for name, command in one.commands().items()} | COMMANDS


def command_list() -> str:
    """Return all commands with a line each, for the help."""
    known = all_commands()
    width = max(map(len, known))
    return "\n".join(f"  {name:{width}}  {command.summary}" for name, command in known.items())


def find_command(argv: Sequence[str] | None = None) -> Callable[[], int] | None:
    """Return the sub-command on a command line, ready to run; None if a server is to start.

    ``argv`` is without the program's name; None for the command line of this process.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    known = all_commands()
    place = _first_plain(words) if known.keys() & words else None
    if place is None or words[place] not in known:
        return None
    command, flags, rest = words[place], words[:place], words[place + 1 :]
    # The help of a command needs no configuration.
    return lambda: known[command].run(rest if command == "help" else [*flags, *rest])


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
    hint = "Behind '--' there are no commands." if word in all_commands() else _hint(word)
    return f"There is no command '{word}', and no configuration folder of that name. {hint}"


def _hint(word: str) -> str:
    known = all_commands()
    near = nearest(word, known, COMMAND_CUTOFF)
    return f"Did you mean '{near}'?" if near else f"The commands: {', '.join(known)}."
