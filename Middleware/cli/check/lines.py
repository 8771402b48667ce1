"""At which line and column of a JSON file the value of a path stands."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from Middleware.cli.check.findings import child

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],\n]', re.DOTALL)


class Spot(NamedTuple):
    """A place in a file; both numbers count from 1."""

    line: int
    column: int


@dataclass
class _Container:
    path: str
    is_object: bool
    index: int = 0
    key: str | None = None  # of an object's entry, once it was read

    @property
    def entry(self) -> str:
        if not self.is_object:
            return child(self.path, self.index)
        return self.path if self.key is None else child(self.path, self.key)

    def advance(self) -> None:
        self.index += 1
        self.key = None


class LineFinder:
    """The places of one file. ``text`` may be anything; of what is no JSON some places are missing or wrong.

    Attributes:
        is_list: the file's root is a list. Its entries are then those of ``nodes``.
        root: where the file's content begins; None if there is none.
    """

    def __init__(self, text: str) -> None:
        content = text.lstrip("\ufeff \t\r\n")
        self.is_list = content.startswith("[")
        self.root = _spot(text, len(text) - len(content)) if content else None
        self._spots: dict[str, Spot] = {}
        for path, spot in _entries(text, "nodes" if self.is_list else ""):
            self._spots.setdefault(path, spot)

    def spot(self, path: str) -> Spot | None:
        """The place of the value at ``path`` (that of its key), or of the nearest thing around it."""
        while path and path not in self._spots:
            path = path[:max(path.rfind("."), path.rfind("["), 0)]
        return self._spots.get(path, self.root)

    def line(self, path: str) -> int | None:
        """The line of ``spot``."""
        spot = self.spot(path)
        return spot.line if spot is not None else None


def _entries(text: str, root: str) -> Iterator[tuple[str, Spot]]:
    """Paths and places of keys and list entries (of those only texts and containers), in order."""
    line, line_start = 1, 1 if text.startswith("\ufeff") else 0
    open_containers: list[_Container] = []
    for match in _TOKEN.finditer(text):
        token, spot = match.group(), Spot(line, match.start() - line_start + 1)
        inside = open_containers[-1] if open_containers else None
        if token == "\n":
            line, line_start = line + 1, match.end()
        elif token in "{[":
            path = inside.entry if inside else root
            yield path, spot
            open_containers.append(_Container(path, token == "{"))
        elif token in "}]":
            if inside:
                open_containers.pop()
        elif inside and token == ",":
            inside.advance()
        elif inside:
            if inside.is_object and inside.key is None:
                inside.key = _key(token)
            yield inside.entry, spot


def _spot(text: str, position: int) -> Spot:
    start = max(text.rfind("\n", 0, position) + 1, 1 if text.startswith("\ufeff") else 0)
    return Spot(text.count("\n", 0, position) + 1, position - start + 1)


def _key(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token
