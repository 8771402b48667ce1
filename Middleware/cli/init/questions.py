"""What the person is asked, at most four times, and what stands in for an answer where nobody can be asked."""
from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from Middleware.cli.console import say
from Middleware.cli.errors import StartError
from Middleware.cli.init.output import SHOWN_MODELS, describe_model, name_shown
from Middleware.cli.init.servers import Model, Server, printable
from Middleware.cli.init.writing import user_name_problem

DEFAULT_USER = "me"
_Item = TypeVar("_Item")
Names = Callable[[_Item], tuple[str, ...]]
"""The names of an item; as many for each."""


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

    def server(self, servers: Sequence[Server]) -> Server:
        return self._pick("Which server?", list(servers), "--backend URL", lambda server: (server.address,))

    def model(self, server: Server) -> Model:
        if len(server.models) > 1 and self.is_asked:
            _list_models(server.models)
        return self._pick("Which model?", list(server.models), "--model NAME", names_of)

    def user(self) -> str:
        if self.takes_defaults:
            return DEFAULT_USER
        self._require_answers("--user NAME")
        while True:
            name = read_line(f"Name of the new user [{DEFAULT_USER}]: ") or DEFAULT_USER
            problem = user_name_problem(name)
            if problem is None:
                return name
            say(problem[0].upper() + problem[1:] + ".")

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

    def _pick(self, question: str, items: list[_Item], flag: str, names: Names[_Item]) -> _Item:
        if len(items) == 1 or self.takes_defaults:
            return items[0]
        self._require_answers(flag)
        while True:
            answer = read_line(f"{question} Number or name [1]: ") or "1"
            if answer.isdecimal() and len(answer) < 6 and 0 < int(answer) <= len(items):
                return items[int(answer) - 1]
            found = find_named(items, answer, names)
            if found is not None:
                return found
            say(f"There is no such one; enter a number from 1 to {len(items)}.")

    def _require_answers(self, flag: str) -> None:
        if not self.answers:
            raise StartError(f"There is no terminal to ask on. Choose with {flag}, or take the first of everything "
                             "with --yes. Nothing was written.")


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


def named_model(servers: Sequence[Server], name: str) -> tuple[Server, Model]:
    """The first server that has this model, and the model; Ollama's ``:latest`` may be left out. Raises StartError."""
    found = find_named([(server, model) for server in servers for model in server.models], name,
                       lambda pair: names_of(pair[1]))
    if found is not None:
        return found
    known = [name_shown(model) for server in servers for model in server.models]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else f" There are: {_listed(known)}." if known else ""
    raise StartError(f"No server that was found has a model '{printable(name[:100])}'.{hint} Nothing was written.")


def names_of(model: Model) -> tuple[str, ...]:
    """What a model is called, the most exact first; Ollama's ``:latest`` may be left out."""
    return model.name, model.name.removesuffix(":latest"), name_shown(model)


def find_named(items: Sequence[_Item], name: str, names: Names[_Item]) -> _Item | None:
    """The item that fits best: by the first of its names, then by the others, then whatever the case."""
    for spell in (str, str.casefold):
        for rank in range(max((len(names(item)) for item in items), default=0)):
            for item in items:
                if spell(names(item)[rank]) == spell(name):
                    return item
    return None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return ", ".join(names[:SHOWN_MODELS]) + more


def _list_models(models: Sequence[Model]) -> None:
    for number, model in enumerate(models[:SHOWN_MODELS], 1):
        say(f"  {number:>3}  {describe_model(model)}")
    if len(models) > SHOWN_MODELS:
        say(f"       ... and {len(models) - SHOWN_MODELS} more: enter the name")
