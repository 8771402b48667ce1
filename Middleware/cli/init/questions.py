"""The questions of ``init``, at most four; the default answers with ``--yes``; and what a typed name selects."""
from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from Middleware.cli.console import StartError, say
from Middleware.cli.init.output import LISTED_MODELS, SHOWN_MODELS, describe_model, name_shown
from Middleware.cli.init.servers import LOOPBACK, Model, Server, normal_address, printable
from Middleware.cli.init.writing import user_name_problem

DEFAULT_USER = "me"

# Typed in place of a name, it has an existing user replaced.
REPLACE = "replace"

# Fewer characters would select by accident.
SHORTEST_PART = 3

_Item = TypeVar("_Item")
Selection = tuple[Server, Model | None]


@dataclass(frozen=True)
class Menu(Generic[_Item]):
    """The items that can be chosen.

    Attributes:
        flag: the one that would have chosen.
        find: returns the items that a typed name fits.
        names: the names that can be typed, for the message about a wrong answer.
        servers: those whose models for other purposes the message about a wrong answer knows.
    """

    items: Sequence[_Item]
    flag: str
    find: Callable[[str], list[_Item]]
    names: str
    servers: Sequence[Server]


class Stopped(Exception):
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

    def server(self, servers: Sequence[Server]) -> Selection:
        """Return a server; with a model, if that was named instead."""
        known = ", ".join(f"{server.kind} ({_port_of(server)})" for server in servers)
        items: list[Selection] = [(server, None) for server in servers]
        return self._choose("Which server?", Menu(
            items, "--backend URL", lambda text: find_servers(servers, text),
            f"a name or a port: {known}, or a model's name", servers))

    def model(self, server: Server) -> Model:
        if len(server.models) > 1 and self.asks:
            _list_models(server.models)
        known = _listed([name_shown(model) for model in server.models], LISTED_MODELS)
        return self._choose("Which model?", Menu(
            server.models, "--model NAME", lambda text: [model for _, model in find_models([server], text)],
            f"or a name: {known}", [server]))

    def user(self) -> str:
        if self.takes_defaults:
            return DEFAULT_USER
        self._require_terminal("--user NAME")
        return _user_name(f"Name of the new user [{DEFAULT_USER}]: ", DEFAULT_USER)

    def other_user(self, what: str, suggested: str) -> str:
        """Return the name of another user than the one that exists already, as ``what`` says, or REPLACE."""
        while True:
            name = _user_name(f"{what}. Enter another name [{suggested}], or '{REPLACE}' to replace it and keep these "
                              "files under names that end in .bak: ", suggested)
            if name.lower() == REPLACE:
                return REPLACE
            if name.lower() not in ("y", "yes", "n", "no"):
                return name
            say(f"Please enter a name, or the word {REPLACE}.")

    def address(self) -> str:
        """Return the address of a server that was not found. Raises Stopped without an answer."""
        text = read_line("Address of your LLM server, such as http://192.168.1.20:11434 (Enter: stop here): ")
        if not text:
            raise Stopped
        return text

    def _choose(self, question: str, menu: Menu[_Item]) -> _Item:
        items = menu.items
        if len(items) == 1 or self.takes_defaults:
            return items[0]
        self._require_terminal(menu.flag)
        while True:
            answer = read_line(f"{question} Number or name [1]: ") or "1"
            if answer.isdecimal() and len(answer) < 6 and 0 < int(answer) <= len(items):
                return items[int(answer) - 1]
            found = menu.find(answer)
            if len(found) == 1:
                return found[0]
            problem = "More than one fits" if found else "There is no such one"
            say(_cannot_chat(menu.servers, answer)
                or f"{problem}; enter a number from 1 to {len(items)}, {menu.names}.")

    def _require_terminal(self, flag: str) -> None:
        if not self.has_terminal:
            raise StartError(f"There is no terminal to ask on. Choose with {flag}, or take the first of everything "
                             "with --yes. Nothing was written.")


def confirm(question: str, default: bool) -> bool:
    """Ask a question that is answered with yes or no. Raises Stopped."""
    while True:
        answer = read_line(f"{question} [{'Y/n' if default else 'y/N'}] ").lower()
        if not answer:
            return default
        if answer in ("y", "yes", "n", "no"):
            return answer[0] == "y"
        say("Please answer y or n.")


def _user_name(question: str, default: str) -> str:
    """Ask for a name that a user can have."""
    while True:
        name = read_line(question) or default
        problem = user_name_problem(name)
        if problem is None:
            return name
        say(problem[0].upper() + problem[1:] + ".")


def read_line(prompt: str) -> str:
    """Read one answer, without blanks around it. Raises Stopped at the end of the input."""
    try:
        return printable(input(prompt).strip())
    # The terminal sent bytes that are not valid in its encoding.
    except UnicodeDecodeError:
        return "?"
    except EOFError:
        say("")
        raise Stopped from None


def _list_models(models: Sequence[Model]) -> None:
    for number, model in enumerate(models[:SHOWN_MODELS], 1):
        say(f"  {number:>3}  {describe_model(model)}")
    if len(models) > SHOWN_MODELS:
        say(f"       ... and {len(models) - SHOWN_MODELS} more: enter the name")


# -- names -------------------------------------------------------------------------------------------------------------

def named_model(servers: Sequence[Server], name: str) -> tuple[Server, Model]:
    """Return the first server that has this model, and the model. Raises StartError."""
    pairs = _pairs(servers)
    if found := _find(pairs, name, _names_of_pair):
        return found[0]
    if refusal := _cannot_chat(servers, name):
        raise StartError(f"{refusal} Nothing was written.")
    known = [name_shown(model) for _, model in pairs]
    near = [name_shown(model) for _, model in find_models(servers, name)] or difflib.get_close_matches(name, known, n=1)
    hint = ""
    if near:
        hint = " Did you mean " + " or ".join(f"'{one}'" for one in near[:SHOWN_MODELS]) + "?"
    elif known:
        hint = f" There are: {_listed(known, SHOWN_MODELS)}."
    raise StartError(f"No server that was found has a model '{printable(name[:100])}'.{hint} Nothing was written.")


def find_servers(servers: Sequence[Server], text: str) -> list[Selection]:
    """Return the servers of this kind, port or address; else those that have a model of this name, with the model."""
    found = _find(servers, _as_address(text), _names_of_server) or _find(servers, text, _names_of_server)
    return [(server, None) for server in found] or [*find_models(servers, text)]


def find_models(servers: Sequence[Server], text: str) -> list[tuple[Server, Model]]:
    """Return the models of this name, or those whose names have this part."""
    pairs = _pairs(servers)
    found = _find(pairs, text, _names_of_pair)
    # A number may be a slip of the finger, and is part of many names.
    if found or len(text) < SHORTEST_PART or text.isdecimal():
        return found
    return [pair for pair in pairs if text.casefold() in pair[1].name.casefold()]


def _find(items: Sequence[_Item], text: str, names: Callable[[_Item], Sequence[str]]) -> list[_Item]:
    """Return the items with this name; if there are none, those whose name differs in case."""
    return [item for item in items if text in names(item)] or [
        item for item in items if text.casefold() in map(str.casefold, names(item))]


def _pairs(servers: Sequence[Server]) -> list[tuple[Server, Model]]:
    return [(server, model) for server in servers for model in server.models]


def _names_of_pair(pair: tuple[Server, Model]) -> Sequence[str]:
    # Ollama's ":latest" may be left out, and so may the folders of a file.
    name = pair[1].name
    return name, name.removesuffix(":latest"), name_shown(pair[1])


def _names_of_server(server: Server) -> Sequence[str]:
    return server.address, server.kind, _port_of(server), urlsplit(server.address).hostname or ""


def _port_of(server: Server) -> str:
    parts = urlsplit(server.address)
    return str(parts.port or (443 if parts.scheme == "https" else 80))


def _as_address(text: str) -> str:
    """Return a typed address the way addresses are shown."""
    try:
        return normal_address(text).replace("://localhost", f"://{LOOPBACK}")
    except ValueError:
        return text


def _cannot_chat(servers: Sequence[Server], name: str) -> str:
    """Return a sentence for the name of a model with another purpose; empty for any other name."""
    others = [other for server in servers for other in server.not_for_chat]
    found = _find(others, name, lambda other: (other, other.removesuffix(":latest")))
    return f"'{found[0]}' is a model for embeddings or the like and cannot chat." if found else ""


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
