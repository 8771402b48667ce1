"""The program as its users see it: its name, what it prints, and why it does not start; its limit of open files."""

from __future__ import annotations

import contextlib
import sys

from Middleware.cli.standard_streams import prepare_streams
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import OperatorError
from Middleware.utilities.command_lines import command, usual_start

# A stream takes two sockets, and Waitress accepts 1000 connections.
WANTED_DESCRIPTORS = 8192


class StartError(OperatorError):
    """The server cannot start. The message is one sentence for the operator: the reason, and the remedy.

    Attributes:
        status: the exit status of the process.
    """

    status = 1


class FlagError(StartError):
    """The launcher does not have what a flag asks for."""

    status = 2


class NotDoneError(OperatorError):
    """A command could not be carried out, or not to its end; the text says why and what is left to do."""


def prepare_process() -> None:
    """Make the standard streams safe, and allow enough open sockets."""
    prepare_streams()
    raise_descriptor_limit()


def raise_descriptor_limit(wanted: int = WANTED_DESCRIPTORS) -> None:
    """Raise the soft limit of open files to ``wanted``, as far as the hard limit allows. Never lower it."""
    # Windows has neither this limit nor the module.
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # The limit is high enough already, and must not be lowered.
    if soft == resource.RLIM_INFINITY or soft >= goal:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    except (OSError, ValueError) as error:
        say(f"WARNING: the limit of open files stays at {soft}: {error}", error_stream=True)


def launcher() -> list[str]:
    """Return the words that start the program as its users know it, else those that were typed."""
    return usual_start() or [next(iter(sys.orig_argv), "python"), sys.argv[0]]


def program_name(*words: str) -> str:
    """Return the command as the usage shows it, such as ``bash run_linux.sh check``."""
    return command([*launcher(), *words])


def same_configuration() -> list[str]:
    """Return the flags with which another start uses the same configuration and users as this one."""
    given = [
        ("--ConfigDirectory", instance.CONFIG_DIRECTORY),
        ("--PublicDirectory", instance.PUBLIC_DIRECTORY),
        *(("--User", user) for user in instance.USERS or ()),
    ]
    return [word for flag, value in given if value for word in (flag, value)]


def say(text: str, error_stream: bool = False) -> None:
    """Print a line at once. A closed terminal does not end the server."""
    stream = sys.stderr if error_stream else sys.stdout
    with contextlib.suppress(OSError, ValueError):
        print(text, file=stream, flush=True)
