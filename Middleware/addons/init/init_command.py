"""``python server.py init``: connects an LLM server that runs already, and writes a user with three models for it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from Middleware.addons.init import init_output
from Middleware.addons.init.plan import Choice, make_plan, port_for
from Middleware.addons.init.probing import Found, look_closer, probe_all, smaller_model
from Middleware.addons.init.questions import (
    DEFAULT_USER,
    REPLACE,
    Dialogue,
    DialogueEndedError,
    confirm,
    is_terminal,
    named_model,
    no_address,
)
from Middleware.addons.init.servers import Model, NoServer, Server, normal_address, usual_addresses
from Middleware.addons.init.trial import Trial, needs_loading, try_model
from Middleware.addons.init.writing import Written, as_spelled, existing_files, other_name, user_name_problem, write
from Middleware.cli.arguments import apply_arguments, build_command_parser, parse_command_arguments
from Middleware.cli.program import StartError, program_name, say
from Middleware.cli.signals import INTERRUPTED, end_on_signals, interrupt_on_signals
from Middleware.utilities import config_utils
from Middleware.utilities.terminal import printable

DESCRIPTION = """Looks for an LLM server on this computer, or at the address that --backend names, and writes a user for
it: plain chat, an assistant that chooses a route for each message, and a conversation that is remembered. Asks at most
four questions; with --yes none. Files that exist are never replaced without a yes, and stay next to the new ones."""


OFFER = "No LLM is connected yet. Look for one on this computer now?"
SHOWN_FLAGS = ("help", "ConfigDirectory", "PublicDirectory")


@dataclass(frozen=True)
class Options:
    """The options of the command line; None: not given."""

    takes_defaults: bool = False
    backend: str | None = None
    model: str | None = None
    worker: str | None = None
    user: str | None = None
    port: int | None = None


def main(words: Sequence[str] = ()) -> int:
    """Run with the words of the command line; returns the exit status."""
    parser = build_command_parser(program_name("init"), DESCRIPTION)
    _add_flags(parser)
    arguments, options = parse_command_arguments(parser, words)
    _check(parser, options)
    # The user to write does not exist yet, so this process cannot have that user's settings.
    apply_arguments(replace(arguments, users=[]))
    named = options.user if options.user is not None else next(iter(arguments.users), None)
    return run(Options(options.yes, options.backend, options.model, options.worker, named, options.port))


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with status 2 for a word without its flag, which would become a folder, and for an invalid port."""
    word = next(iter(options.positionals), "")
    if word and not os.path.isdir(word):
        parser.error(
            f"'{printable(word)}' is not a configuration folder. A server's address goes with --backend, a model "
            "with --model, a new user's name with --user."
        )
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error("--port must be between 1 and 65535")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if action.dest == "port":
            action.help = "the port that the new user is served at (default: 5000)"
        elif action.dest not in SHOWN_FLAGS:
            # Accepted so that a launcher's command line can be used unchanged.
            action.help = argparse.SUPPRESS
    add = parser.add_argument
    add("--yes", action="store_true", help="ask nothing: the first server, its first model, the user 'me'")
    add(
        "--backend",
        metavar="URL",
        help="ask only this server, for example http://192.168.1.20:11434; the key for it, "
        "if it wants one, is taken from the environment variable WILMER_BACKEND_KEY",
    )
    add("--model", metavar="NAME", help="the model, as the server lists it")
    add(
        "--worker",
        metavar="NAME",
        help="a smaller model of the same server for small jobs: routes, memories, titles (default: the same model)",
    )
    add("--user", metavar="NAME", help="the name of the new user (default: me)")


def run(options: Options, then_starts: bool = False) -> int:
    """Find, ask and write. ``then_starts``: the server starts right after, so how to start it is not printed."""
    try:
        trial, written = _set_up(options, Dialogue(options.takes_defaults, is_terminal()))
    except StartError as error:
        say(f"ERROR: {error}", error_stream=True)
        return 1
    except DialogueEndedError as stopped:
        _say(["Nothing was written.", *map(str, stopped.args)])
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted; nothing was written.")
        return INTERRUPTED
    choice = trial.choice
    try:
        _say(["", *init_output.summary(choice, written)])
        _say(["", *init_output.client_lines(choice)] if then_starts else init_output.next_steps(choice))
        _say(init_output.left_to_fix(trial))
    # Everything has been written already.
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def offer() -> None:
    """Ask at a first start whether to connect an LLM and do so, if there is a terminal to ask on.

    Afterwards the start goes on, with the new user or else with the demo. Ctrl-C ends the process.
    """
    if not is_terminal():
        return
    interrupt_on_signals()
    try:
        status = run(Options(), then_starts=True) if confirm(OFFER, default=True) else None
    except DialogueEndedError:
        status = None
    except KeyboardInterrupt:
        say("\nInterrupted; nothing was written.")
        status = INTERRUPTED
    if status == INTERRUPTED:
        sys.exit(INTERRUPTED)
    end_on_signals()
    say("" if status == 0 else "Starting the demo.\n")


def _set_up(options: Options, dialogue: Dialogue) -> tuple[Trial, Written]:
    """Raises StartError, DialogueEndedError or KeyboardInterrupt with nothing written."""
    # Cached content may be older than the files.
    config_utils.reset_config_store()
    if options.user is not None and (problem := user_name_problem(options.user)):
        raise StartError(f"{problem}. Nothing was written.")
    if not dialogue.asks:
        # Refuse before the search for servers, which takes seconds.
        _settle_existing(options.user or DEFAULT_USER, dialogue)
    found = _search(options, dialogue)
    server, model = _choose(_usable(found), options, dialogue)
    model = look_closer(server, model)
    worker = look_closer(server, named_model([server], options.worker)[1]) if options.worker else None
    smaller = None if worker else smaller_model(server, model)
    port = options.port or port_for(found)
    choice = Choice(server, model, options.user or DEFAULT_USER, port, worker, smaller)
    if not needs_loading(choice):
        _say([init_output.asking_model(model)])
    trial = try_model(choice)
    _say(init_output.tried(trial))
    # Nothing slow comes after it, in which another init could write files of the same user.
    user = _settle_existing(options.user or dialogue.user(), dialogue)
    trial = replace(trial, choice=replace(trial.choice, user=user))
    written = write(make_plan(trial.choice), user)
    config_utils.reset_config_store()
    return trial, written


def _search(options: Options, dialogue: Dialogue) -> list[Found]:
    """Return what is at the named address, or at the usual ones, or else at one that the user then names."""
    found = _look([_address(options.backend)] if options.backend else usual_addresses(), bool(options.backend))
    while not _usable(found) and options.backend is None and dialogue.asks:
        found += _look([dialogue.address()], named=True)
    return found


def _usable(found: Sequence[Found]) -> list[Server]:
    return [one for one in found if isinstance(one, Server) and one.models]


def _choose(servers: Sequence[Server], options: Options, dialogue: Dialogue) -> tuple[Server, Model]:
    if not servers:
        raise StartError("No LLM server was found that can be used. Nothing was written.")
    if options.model:
        return named_model(servers, options.model)
    server = dialogue.server(servers)
    return server, dialogue.model(server)


def _look(addresses: Sequence[str], named: bool) -> list[Found]:
    """Print what is at these addresses, and return it."""
    _say(init_output.asking(addresses, named))
    results = probe_all(addresses, named)
    servers = [result for result in results if isinstance(result, Server)]
    others = [result for result in results if isinstance(result, NoServer)]
    usable = _usable(results)
    _say(init_output.found(usable or servers, [] if named and not servers else others))
    if not usable:
        _say([init_output.without_models(server) for server in servers] or init_output.nothing_found(others, named))
    return results


def _address(text: str) -> str:
    try:
        return normal_address(text)
    except ValueError as error:
        raise StartError(f"{no_address(text, error)} Nothing was written.") from error


def _settle_existing(name: str, dialogue: Dialogue) -> str:
    """Return the user to write: not ``name`` if that exists and is not to be replaced.

    Raises StartError or DialogueEndedError.
    """
    while True:
        user = as_spelled(name)
        existing = existing_files(user)
        if not existing:
            return user
        more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        what = f"There is a user '{user}' already ({existing[0]}{more})"
        if not dialogue.asks:
            raise StartError(
                f"{what}. Nothing was written. Choose another name: "
                f"{init_output.init_command_line('--user', other_name(user))}"
            )
        name = dialogue.other_user(what, other_name(user))
        if name == REPLACE:
            return user


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)
