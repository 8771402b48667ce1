"""At which line of a JSON file the value of a path stands."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from Middleware.workflows.validation.findings import child

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],\n]', re.DOTALL)


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
    """The lines of one file. ``text`` may be anything; of what is no JSON some lines are missing or wrong.

    Attributes:
        is_list: the file's root is a list. Its entries are then those of ``nodes``.
    """

    def __init__(self, text: str) -> None:
        self.is_list = text.lstrip("\ufeff \t\r\n").startswith("[")
        self._lines: dict[str, int] = {}
        for path, line in _entries(text, "nodes" if self.is_list else ""):
            self._lines.setdefault(path, line)

    def line(self, path: str) -> int | None:
        """The line of the value at ``path``, or of the nearest thing around it."""
        while path and path not in self._lines:
            path = path[:max(path.rfind("."), path.rfind("["), 0)]
        return self._lines.get(path)


def _entries(text: str, root: str) -> Iterator[tuple[str, int]]:
    """Paths and lines of keys and list entries (of those only texts and containers), in order."""
    line = 1
    open_containers: list[_Container] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        inside = open_containers[-1] if open_containers else None
        if token == "\n":
            line += 1
        elif token in "{[":
            path = inside.entry if inside else root
            yield path, line
            open_containers.append(_Container(path, token == "{"))
        elif token in "}]":
            if inside:
                open_containers.pop()
        elif inside and token == ",":
            inside.advance()
        elif inside:
            if inside.is_object and inside.key is None:
                inside.key = _key(token)
            yield inside.entry, line


def _key(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token
