"""Keys that stand twice in one object of a JSON file, of which a parser lets the last one win without a word."""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEYS = re.compile(rf"{_STRING}(\s*:)?", re.DOTALL)
_TOKENS = re.compile(rf"{_STRING}|[{{}}\[\],]", re.DOTALL)


@dataclass(frozen=True)
class DuplicateKey:
    """The second (third, ...) appearance of a key in an object.

    Attributes:
        json_path: such as ``nodes[2].prompt``.
        line: from 1.
        column: of the opening quote, from 1.
        first_line: where the key stands for the first time.
    """

    json_path: str
    line: int
    column: int
    first_line: int


def duplicate_keys(text: str, value: object) -> tuple[DuplicateKey, ...]:
    """The repeated keys of ``text``, valid JSON that was parsed into ``value``, in their order."""
    written = sum(1 for match in _KEYS.finditer(text) if match.group(1))
    return () if written == _count_keys(value) else tuple(_find(text))


def _count_keys(value: object) -> int:
    count, waiting = 0, [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            count += len(found)
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)
    return count


@dataclass
class _Container:
    """An object or list that the search is inside of."""

    path: str
    is_object: bool
    index: int = 0
    key: str | None = None  # of an object's current entry, once it was read
    starts: dict[str, int] = field(default_factory=dict)

    def entry(self) -> str:
        if not self.is_object:
            return f"{self.path}[{self.index}]"
        name = self.key or ""
        if not name.isidentifier():
            return f"{self.path}[{json.dumps(name)}]"
        return f"{self.path}.{name}" if self.path else name

    def advance(self) -> None:
        self.index += 1
        self.key = None


def _find(text: str) -> Iterator[DuplicateKey]:
    inside: list[_Container] = []
    for match in _TOKENS.finditer(text):
        token, around = match.group(), inside[-1] if inside else None
        if token in "{[":
            inside.append(_Container(around.entry() if around else "", token == "{"))
        elif around is None:
            continue
        elif token in "}]":
            inside.pop()
        elif token == ",":
            around.advance()
        elif around.is_object and around.key is None:
            around.key = json.loads(token)
            first = around.starts.setdefault(around.key, match.start())
            if first != match.start():
                line, column = _position(text, match.start())
                yield DuplicateKey(around.entry(), line, column, _position(text, first)[0])


def _position(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
