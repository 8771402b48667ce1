"""The questions of ``init``, at most four; the default answers with ``--yes``; and what a typed name selects."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from Middleware.addons.init.init_output import LISTED_MODELS, SHOWN_MODELS, describe_model, listed, name_shown
from Middleware.addons.init.servers import Model, Server, normal_address
from Middleware.addons.init.writing import user_name_problem
from Middleware.cli.program import StartError, say
from Middleware.exceptions import OperatorError
from Middleware.utilities.terminal import printable

DEFAULT_USER = "me"
# Typed in place of a name, it has an existing user replaced.
REPLACE = "replace"
# Fewer characters would select by accident: a single digit is part of many names.
SHORTEST_PART = 3

_Item = TypeVar("_Item")


class DialogueEndedError(OperatorError):
    """The user ends the dialogue: Ctrl-D, or an empty answer where one is needed."""


def is_terminal() -> bool:
    """Return whether a question can be read and answered: not in the background, where reading would stop the job."""
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        # A background process of a shell would be stopped by reading from the terminal.
        return sys.platform == "win32" or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    # There is no stream, it is closed, or it is not a terminal of this session.
    except (AttributeError, ValueError, OSError):
        return False


@dataclass(frozen=True)
class Dialogue:
    """Asks the user, or takes the defaults.

    Attributes:
        takes_defaults: ``--yes``; nothing is asked.
        has_terminal: there is a terminal to ask on.
    """

    takes_defaults: bool
    has_terminal: bool

    @property
    def asks(self) -> bool:
        return self.has_terminal and not self.takes_defaults

    def server(self, servers: Sequence[Server]) -> Server:
        return self._choose(
            "Which server?", "--backend URL", servers, [f"{server.address} {server.kind}" for server in servers]
        )

    def model(self, server: Server) -> Model:
        if len(server.models) > 1 and self.asks:
            _list_models(server.models)
        return self._choose("Which model?", "--model NAME", server.models, [name_shown(one) for one in server.models])

    def user(self) -> str:
        if self.takes_defaults:
            return DEFAULT_USER
        self._require_terminal("--user NAME")
        return _user_name(f"Name of the new user [{DEFAULT_USER}]: ", DEFAULT_USER)

    def other_user(self, what: str, suggested: str) -> str:
        """Return the name of another user than the one that exists already, as ``what`` says, or REPLACE."""
        while True:
            name = _user_name(
                f"{what}. Enter another name [{suggested}], or '{REPLACE}' to replace it and keep these "
                "files under names that end in .bak: ",
                suggested,
            )
            if name.lower() == REPLACE:
                return REPLACE
            if name.lower() not in ("y", "yes", "n", "no"):
                return name
            say(f"Please enter a name, or the word {REPLACE}.")

    def address(self) -> str:
        """Return the address of a server that was not found. Raises DialogueEndedError without an answer."""
        while True:
            text = read_line("Address of your LLM server, such as http://192.168.1.20:11434 (Enter: stop here): ")
            if not text:
                raise DialogueEndedError
            try:
                return normal_address(text)
            except ValueError as error:
                say(no_address(text, error))

    def _choose(self, question: str, flag: str, items: Sequence[_Item], names: Sequence[str]) -> _Item:
        """Return one of ``items``, by its number or by the part of its name that is typed."""
        if len(items) == 1 or self.takes_defaults:
            return items[0]
        self._require_terminal(flag)
        while True:
            answer = read_line(f"{question} Number or name [1]: ") or "1"
            # More digits are a port, or part of a name.
            if answer.isdecimal() and len(answer) < SHORTEST_PART and 0 < int(answer) <= len(items):
                return items[int(answer) - 1]
            found = matching(names, answer)
            if len(found) == 1:
                return items[found[0]]
            problem = "More than one fits" if found else "There is no such one"
            say(f"{problem}; enter a number from 1 to {len(items)}, or a name: {listed(names, LISTED_MODELS)}.")

    def _require_terminal(self, flag: str) -> None:
        if not self.has_terminal:
            raise StartError(
                f"There is no terminal to ask on. Choose with {flag}, or take the first of everything "
                "with --yes. Nothing was written."
            )


def confirm(question: str, default: bool) -> bool:
    """Ask a question that is answered with yes or no. Raises DialogueEndedError."""
    while True:
        answer = read_line(f"{question} [{'Y/n' if default else 'y/N'}] ").lower()
        if not answer:
            return default
        if answer in ("y", "yes", "n", "no"):
            return answer[0] == "y"
        say("Please answer y or n.")


def no_address(text: str, error: ValueError) -> str:
    """Return the sentence about a text that ``normal_address`` has refused."""
    return f"'{printable(text)}' is not an address of a server: {error}. One looks like http://192.168.1.20:11434."


def _user_name(question: str, default: str) -> str:
    """Ask for a name that a user can have."""
    while True:
        name = read_line(question) or default
        problem = user_name_problem(name)
        if problem is None:
            return name
        say(problem[0].upper() + problem[1:] + ".")


def read_line(prompt: str) -> str:
    """Read one answer, without blanks around it. Raises DialogueEndedError at the end of the input."""
    try:
        return printable(input(prompt).strip())
    # The terminal sent bytes that are not valid in its encoding.
    except UnicodeDecodeError:
        return "?"
    except EOFError:
        say("")
        raise DialogueEndedError from None


def _list_models(models: Sequence[Model]) -> None:
    for number, model in enumerate(models[:SHOWN_MODELS], 1):
        say(f"  {number:>3}  {describe_model(model)}")
    if len(models) > SHOWN_MODELS:
        say(f"       ... and {len(models) - SHOWN_MODELS} more: enter the name")


# -- names -------------------------------------------------------------------------------------------------------------


def named_model(servers: Sequence[Server], name: str) -> tuple[Server, Model]:
    """Return the first server that has this model, and the model. Raises StartError."""
    pairs = [(server, model) for server in servers for model in server.models]
    # Ollama's ":latest" may be left out.
    for server, model in pairs:
        if name.casefold() in {
            spelling.casefold() for spelling in (model.name, model.name.removesuffix(":latest"), name_shown(model))
        }:
            return server, model
    known = [name_shown(model) for _, model in pairs]
    near = [known[index] for index in matching(known, name)] or difflib.get_close_matches(name, known, n=1)
    hint = (
        f"Did you mean {' or '.join(map(repr, near[:SHOWN_MODELS]))}?"
        if near
        else f"There are: {listed(known, SHOWN_MODELS)}."
    )
    raise StartError(
        f"No server that was found has a model '{printable(name[:100])}' to chat with. {hint} Nothing was written."
    )


def matching(names: Sequence[str], text: str) -> list[int]:
    """Return the indexes of the names that are ``text``, else of those that contain it, ignoring case."""
    wanted, folded = text.casefold(), [name.casefold() for name in names]
    exact = [index for index, name in enumerate(folded) if name == wanted]
    if exact or len(text) < SHORTEST_PART:
        return exact
    return [index for index, name in enumerate(folded) if wanted in name]
