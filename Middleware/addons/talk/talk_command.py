"""``python server.py try`` and ``chat``: requests through the real engine, from the terminal."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus

from Middleware.addons.discussions.memory_command import KEY_VARIABLE, key_of
from Middleware.addons.init import demo
from Middleware.addons.talk.connections import (
    Connection,
    EngineConnection,
    Reply,
    ServerConnection,
    TalkError,
    answer,
    model_ids,
)
from Middleware.addons.talk.terminal_writer import TerminalWriter
from Middleware.addons.talk.trace import Trace
from Middleware.api.errors import log_error
from Middleware.api.logging_setup import LEVEL_VARIABLE
from Middleware.cli import served_users
from Middleware.cli.arguments import (
    LaunchArguments,
    apply_arguments,
    build_command_parser,
    parse_command_arguments,
)
from Middleware.cli.launch import Launch
from Middleware.cli.preparation import build_application, configure
from Middleware.cli.program import program_name, say
from Middleware.cli.running_server import announced, find_server
from Middleware.cli.signals import INTERRUPTED
from Middleware.cli.standard_streams import read_line, read_text
from Middleware.exceptions import OperatorError, WilmerError
from Middleware.utilities.terminal import wants_colour
from Middleware.utilities.text_utils import did_you_mean

TRY = """Sends one request to a model and prints the answer as it arrives. Ctrl-C stops it. A running server of this
configuration answers; without one, and with --trace, this process does. Exit status: 0 for an answer, 1 for none, 130
after Ctrl-C, 2 for a wrong command line."""
CHAT = """A conversation with a model in this terminal. Ctrl-C stops an answer; Ctrl-D (on Windows Ctrl-Z and Enter), or
/quit, ends the conversation; /new begins another one. A running server of this configuration answers; without one, and
with --trace, this process does."""
# A message lists at most this many models, so that it stays readable.
MAX_NAMED = 12
PROMPT = "> "
NOT_TEXT = "The standard input is not UTF-8 text, or has a character that is damaged."


def try_main(words: Sequence[str]) -> int:
    """Send one request; return the exit status."""
    parser = _parser("try", TRY)
    parser.add_argument("text", metavar="TEXT", help="the message; - reads it from standard input")
    arguments, options = parse_command_arguments(parser, words)
    text = options.text
    if text == "-":
        try:
            text = read_text()
        except UnicodeError:
            parser.error(NOT_TEXT)
    if not text.strip():
        parser.error("TEXT is blank")
    terminal = _terminal()
    with _reported(terminal) as outcome, _connected(arguments, options, terminal) as connection:
        _require_model(connection, options.model)
        _print_answer(connection, terminal, options.model, [{"role": "user", "content": text}], [])
        connection.finish()
    return outcome[0]


def chat_main(words: Sequence[str]) -> int:
    """Hold a conversation; return the exit status."""
    arguments, options = parse_command_arguments(_parser("chat", CHAT), words)
    terminal = _terminal()
    _end_on_other_signals()
    with _reported(terminal) as outcome, _connected(arguments, options, terminal) as connection:
        _require_model(connection, options.model)
        terminal.note(
            f"Chat with {options.model}. Ctrl-C stops an answer, /new starts a new conversation, /quit or "
            f"{'Ctrl-Z, Enter' if sys.platform == 'win32' else 'Ctrl-D'} ends the chat."
        )
        _converse(connection, terminal, options.model)
        connection.finish()
    return outcome[0]


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = build_command_parser(program_name(name), description, positionals=False)
    parser.add_argument("model", metavar="MODEL", help="a model as clients name it, such as me or me:chat")
    parser.add_argument(
        "--trace",
        action="store_true",
        help="print each node as it runs, its prompt and output (folded), the route, calls and times",
    )
    parser.add_argument("--full", action="store_true", help="with --trace: whole prompts and outputs")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"the API key, as a client sends it; others on this machine may see it, so rather set {KEY_VARIABLE}",
    )
    parser.add_argument("--ask-key", action="store_true", help="ask for the API key")
    return parser


def _terminal() -> TerminalWriter:
    return TerminalWriter(wants_colour(sys.stderr))


def _end_on_other_signals() -> None:
    """Have SIGTERM and a closed terminal end the process; only Ctrl-C stops an answer."""
    for name in ("SIGTERM", "SIGHUP"):
        # Windows has no SIGHUP.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, frame: sys.exit(INTERRUPTED))


@contextlib.contextmanager
def _reported(terminal: TerminalWriter) -> Iterator[list[int]]:
    """Print errors; the list that is yielded holds the exit status afterwards."""
    status = [0]
    try:
        yield status
    except (OperatorError, WilmerError, OSError) as error:
        terminal.end_line()
        is_locked = isinstance(error, TalkError) and error.status == HTTPStatus.UNAUTHORIZED
        hint = " --ask-key asks for the key." if is_locked else ""
        say(f"ERROR: {error}{hint}", error_stream=True)
        status[0] = 1
    except KeyboardInterrupt:
        terminal.note("Stopped.")
        status[0] = INTERRUPTED


# -- the connection ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(
    arguments: LaunchArguments, options: argparse.Namespace, terminal: TerminalWriter
) -> Iterator[Connection]:
    """Connect to a running server, or start the engine. Raises StartError."""
    apply_arguments(arguments)
    served_users.check_users()
    key = key_of(options, ask=True)
    server = None if options.trace else _answering_server(arguments.users, key, terminal)
    if server is not None:
        terminal.note(f"[the server at {server.url}]")
        yield server
        return
    with _own_engine(arguments, key, Trace(terminal, options.full) if options.trace else None) as engine:
        terminal.note("[the engine in this process]")
        yield engine


def _answering_server(names: Sequence[str], key: str, terminal: TerminalWriter) -> ServerConnection | None:
    found = find_server(names)
    if found is None:
        return None
    connection = ServerConnection(found.url, key)
    try:
        model_ids(connection)
    except TalkError as error:
        if error.status:
            raise
        # It is in another container, or has only begun to start.
        terminal.note(f"[{error}]")
        return None
    return connection


@contextlib.contextmanager
def _own_engine(arguments: LaunchArguments, key: str, trace: Trace | None) -> Iterator[EngineConnection]:
    demo_mode = demo.is_wanted(arguments)
    level = arguments.log_level or (None if os.environ.get(LEVEL_VARIABLE) else "WARNING")
    launch = Launch(replace(arguments, log_level=level), serves=False)
    configure(launch)
    logging.getLogger(log_error.__module__).addFilter(_is_not_in_answer)
    if demo_mode:
        demo.start_backend()
    with announced():
        launch.listeners += [trace] if trace is not None else []
        engine = EngineConnection(build_application(launch), key)
        try:
            yield engine
        finally:
            engine.close()
            launch.close()


def _is_not_in_answer(record: logging.LogRecord) -> bool:
    """Return whether only the log has an error: the terminal shows those that are the answer to a request."""
    phases = record.args if isinstance(record.args, tuple) else ()
    return bool(record.exc_info) or any("after the answer" in str(phase) for phase in phases)


def _require_model(connection: Connection, model: str) -> None:
    """Raise TalkError for a model that does not exist: a server would answer with the default workflow."""
    ids = model_ids(connection)
    known = dict.fromkeys([*ids, *(part for name in ids for part in name.split(":", 1))])
    if model.removesuffix(":latest") in known:
        return
    rest = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    raise TalkError(
        f"There is no model '{model}'. The models: {', '.join(ids[:MAX_NAMED])}{rest}."
        + did_you_mean(model, known, cutoff=0.6)
    )


# -- the conversation --------------------------------------------------------------------------------------------------


def _converse(connection: Connection, terminal: TerminalWriter, model: str) -> None:
    # With it, input() has a history and keys to edit the line.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    messages: list[dict[str, str]] = []
    while (text := _typed()) is not None and text.strip() != "/quit":
        if text.strip() == "/new":
            messages.clear()
            terminal.note("A new conversation.")
        elif text.strip():
            messages.append({"role": "user", "content": text})
            said: list[str] = []
            try:
                _print_answer(connection, terminal, model, messages, said)
            except KeyboardInterrupt:
                terminal.note("Stopped.")
            except TalkError as error:
                terminal.note(f"ERROR: {error}")
            # A message without an answer would be sent twice when it is repeated.
            if said:
                messages.append({"role": "assistant", "content": "".join(said)})
            else:
                messages.pop()


def _typed() -> str | None:
    """Return the next line; None at the end of the input, and after Ctrl-C. Raises OperatorError."""
    try:
        return read_line(PROMPT if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    except UnicodeError:
        raise OperatorError(NOT_TEXT) from None


def _print_answer(
    connection: Connection, terminal: TerminalWriter, model: str, messages: Sequence[dict[str, str]], said: list[str]
) -> None:
    """Print an answer as it arrives and keep its pieces in ``said``. Raises TalkError, KeyboardInterrupt."""
    reply, started, first = Reply(), time.monotonic(), None
    with contextlib.closing(answer(connection, reply, model, messages)) as pieces:
        for piece in pieces:
            first = first or time.monotonic()
            said.append(piece)
            terminal.write(piece)
    terminal.end_line()
    now = time.monotonic()
    parts = [
        *([f"route {reply.route}"] if reply.route else []),
        *([f"first text after {first - started:.2f} s"] if first else ["an empty answer"]),
        f"complete after {now - started:.2f} s",
    ]
    terminal.note(f"[{', '.join(parts)}]")
