"""What an add-on brings to the program. The core knows this class and no add-on; launchers load those there are."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from Middleware.cli.launch import Launch

T = TypeVar("T")


@dataclass(frozen=True)
class Command:
    """A sub-command: its line in the help, and its function, which takes the words after its own and returns the exit
    status."""

    summary: str
    run: Callable[[Sequence[str]], int]


class Flags:
    """Adds flags to a parser: of a launcher, or of a sub-command, which accepts those of launchers without effect."""

    def __init__(self, parser: argparse.ArgumentParser, **replaced: str) -> None:
        self._parser, self._replaced = parser, replaced

    def add(self, *names: str, **options: Any) -> None:
        self._parser.add_argument(*names, **{**options, **self._replaced})

    def add_directory(self, *names: str, **options: Any) -> None:
        """Add a flag that means the same in sub-commands."""
        self._parser.add_argument(*names, **options)


class AddOn:
    """Each method does nothing unless an add-on overrides it.

    A launcher calls all of them, in this order, if no command is given. A command that starts the engine, such as
    ``try``, calls ``connect`` and ``prepare`` without a socket, and so does a WSGI host, which first calls ``check``.
    The module of an add-on's object is imported at every start, so its methods import what they need themselves.
    """

    def add_flags(self, flags: Flags) -> None:
        """Add flags to those of the launchers."""

    def check_flags(self, flags: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> None:
        """Call ``refuse`` with a sentence for a value that is not possible; the program then ends with status 2."""

    def commands(self) -> Mapping[str, Command]:
        """Return sub-commands by their names."""
        return {}

    def apply(self, flags: argparse.Namespace) -> None:
        """Store what was given on the command line of a server or of a sub-command, which may lack flags."""

    def check(self, launch: Launch) -> None:
        """Look whether the launch is possible, and ask for what is missing. Nothing is logged or bound yet. Raises
        StartError."""

    def connect(self, launch: Launch) -> None:
        """Put what several processes share in its place. Logging is set up, nothing is built yet. Raises StartError."""

    def prepare(self, launch: Launch) -> None:
        """Add to the lists of the launch. The application is not built yet; the socket of a launcher is bound. Raises
        StartError."""

    def find(self, kind: type[T]) -> T | None:
        """Return this add-on's object of a kind that another add-on asks for; None if it has none."""
        return None


_used: list[AddOn] = []


def use(*addons: AddOn) -> None:
    """Let the command line know these add-ons, in this order, and no others."""
    _used[:] = addons


def addons() -> Sequence[AddOn]:
    """Return the add-ons that the command line knows."""
    return tuple(_used)


def found(kind: type[T]) -> Iterator[T]:
    """Yield what other add-ons have of a kind."""
    return (one for addon in _used if (one := addon.find(kind)) is not None)
