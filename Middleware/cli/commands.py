"""Sub-commands, which a launcher runs instead of serving when the command line begins with a word such as ``check``.

``python server.py check`` runs ``COMMANDS["check"]`` with the words after it. A folder with the name of a command can
still be given as the older positional ConfigDirectory if it is written as a path: ``./check``.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from Middleware.utilities.text_utils import nearest

# The names are short, so that one wrong letter is a large part of them.
COMMAND_CUTOFF = 0.6

# Takes the words after its own and returns the exit status.
Command = Callable[[Sequence[str]], int]


def _check(words: Sequence[str]) -> int:
    # Imported here because a start without a command does not need them.
    from Middleware.cli.check.command import main
    from Middleware.cli.workflow_tests.reading import check_test_files
    return main(words, check_test_files)


def _test(words: Sequence[str]) -> int:
    from Middleware.cli.workflow_tests.command import main
    return main(words)


def _init(words: Sequence[str]) -> int:
    from Middleware.cli.init.command import main
    return main(words)


COMMANDS: dict[str, Command] = {"init": _init, "check": _check, "test": _test}


def find_command(argv: Sequence[str] | None = None) -> Callable[[], int] | None:
    """Return the sub-command on a command line, ready to run; None if a server is to start.

    ``argv`` is without the program's name; None for the command line of this process.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    command = COMMANDS.get(words[0]) if words else None
    return None if command is None else lambda: command(words[1:])


def no_such_command(word: str | None) -> str:
    """Return why ``word``, given as the older positional ConfigDirectory, is probably a misspelt command, or ""."""
    # A path, or an existing folder, is certainly not a misspelt command.
    if not word or not word.isidentifier() or os.path.isdir(word):
        return ""
    near = nearest(word, COMMANDS, COMMAND_CUTOFF)
    hint = f"Did you mean '{near}'?" if near else f"The commands: {', '.join(COMMANDS)}."
    return f"There is no command '{word}', and no configuration folder of that name. {hint}"
