"""What the person is asked, at most four times, and what stands in for an answer where nobody can be asked."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from Middleware.cli.console import say
from Middleware.cli.errors import StartError
from Middleware.cli.init.naming import cannot_chat, listed, models_named, port_of, servers_named
from Middleware.cli.init.output import LISTED_MODELS, SHOWN_MODELS, describe_model, name_shown
from Middleware.cli.init.servers import Model, Server, printable
from Middleware.cli.init.writing import user_name_problem

DEFAULT_USER = "me"
REPLACE = "replace"
"""What is typed in place of a name, to have a user that exists replaced."""
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Offer(Generic[_Item]):
    """What can be picked.

    Attributes:
        flag: the one that would have picked.
        named: which items a name fits.
        names: what can be typed, said after a wrong answer.
        refusal: why something with this name cannot be picked; empty if there is no more to say than that.
    """

    items: Sequence[_Item]
    flag: str
    named: Callable[[str], list[_Item]]
    names: str
    refusal: Callable[[str], str]


class Stopped(Exception):
    """The person has had enough: Ctrl-D, or an empty answer where one is needed."""


def is_terminal() -> bool:
    """Whether somebody can read a question and answer it: not in the background, where reading would stop the job."""
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        return sys.platform == "win32" or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, ValueError, OSError):  # no stream, a closed one, or no terminal of this session
        return False


@dataclass(frozen=True)
class Person:
    """Who decides.

    Attributes:
        takes_defaults: ``--yes``; nobody is asked.
        answers: there is a terminal with somebody in front of it.
    """

    takes_defaults: bool
    answers: bool

    @property
    def is_asked(self) -> bool:
        return self.answers and not self.takes_defaults

    def server(self, servers: Sequence[Server]) -> tuple[Server, Model | None]:
        """A server; with a model, if that was named instead."""
        known = ", ".join(f"{server.kind} ({port_of(server)})" for server in servers)
        items: list[tuple[Server, Model | None]] = [(server, None) for server in servers]
        return self._pick("Which server?", Offer(
            items, "--backend URL", lambda text: servers_named(servers, text),
            f"a name or a port: {known}, or a model's name", lambda text: cannot_chat(servers, text)))

    def model(self, server: Server) -> Model:
        if len(server.models) > 1 and self.is_asked:
            _list_models(server.models)
        known = listed([name_shown(model) for model in server.models], LISTED_MODELS)
        return self._pick("Which model?", Offer(
            server.models, "--model NAME", lambda text: models_named(server.models, text), f"or a name: {known}",
            lambda text: cannot_chat([server], text)))

    def user(self) -> str:
        if self.takes_defaults:
            return DEFAULT_USER
        self._require_answers("--user NAME")
        return _user_name(f"Name of the new user [{DEFAULT_USER}]: ", DEFAULT_USER)

    def other_user(self, what: str, suggested: str) -> str:
        """The name of another user than the one that exists already, as ``what`` says, or REPLACE."""
        while True:
            name = _user_name(f"{what}. Enter another name [{suggested}], or '{REPLACE}' to replace it and keep these "
                              "files under names that end in .bak: ", suggested)
            if name.lower() == REPLACE:
                return REPLACE
            if name.lower() not in ("y", "yes", "n", "no"):
                return name
            say(f"Please enter a name, or the word {REPLACE}.")

    def address(self) -> str:
        """Where a server is that was not found; Stopped without an answer."""
        text = read_line("Address of your LLM server, such as http://192.168.1.20:11434 (Enter: stop here): ")
        if not text:
            raise Stopped
        return text

    def agrees(self, question: str, default: bool = False) -> bool:
        while True:
            answer = read_line(f"{question} [{'Y/n' if default else 'y/N'}] ").lower()
            if not answer:
                return default
            if answer in ("y", "yes", "n", "no"):
                return answer[0] == "y"
            say("Please answer y or n.")

    def _pick(self, question: str, offer: Offer[_Item]) -> _Item:
        items = offer.items
        if len(items) == 1 or self.takes_defaults:
            return items[0]
        self._require_answers(offer.flag)
        while True:
            answer = read_line(f"{question} Number or name [1]: ") or "1"
            if answer.isdecimal() and len(answer) < 6 and 0 < int(answer) <= len(items):
                return items[int(answer) - 1]
            found = offer.named(answer)
            if len(found) == 1:
                return found[0]
            problem = "More than one fits" if found else "There is no such one"
            say(offer.refusal(answer) or f"{problem}; enter a number from 1 to {len(items)}, {offer.names}.")

    def _require_answers(self, flag: str) -> None:
        if not self.answers:
            raise StartError(f"There is no terminal to ask on. Choose with {flag}, or take the first of everything "
                             "with --yes. Nothing was written.")


def _user_name(question: str, default: str) -> str:
    """A name that a user can have."""
    while True:
        name = read_line(question) or default
        problem = user_name_problem(name)
        if problem is None:
            return name
        say(problem[0].upper() + problem[1:] + ".")


def read_line(prompt: str) -> str:
    """One answer without blanks around it; what is no text is a question mark. Raises Stopped at the end of the input.
    """
    try:
        return printable(input(prompt).strip())
    except UnicodeDecodeError:  # bytes that the terminal's encoding does not have
        return "?"
    except EOFError:
        say("")
        raise Stopped from None


def _list_models(models: Sequence[Model]) -> None:
    for number, model in enumerate(models[:SHOWN_MODELS], 1):
        say(f"  {number:>3}  {describe_model(model)}")
    if len(models) > SHOWN_MODELS:
        say(f"       ... and {len(models) - SHOWN_MODELS} more: enter the name")
