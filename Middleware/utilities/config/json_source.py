"""JSON files as users write them: decoding, parsing, and the positions of values in the text."""

from __future__ import annotations

import codecs
import json
import locale
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, NoReturn

from Middleware.exceptions import ConfigSyntaxError
from Middleware.utilities.config import json_mistakes
from Middleware.utilities.files.file_access import open_to_read

logger = logging.getLogger(__name__)

# Messages show JSON paths, and a key may be a whole paragraph that was written on the wrong side of the colon.
MAX_KEY_LENGTH = 80
# A string ends on its line, so that one without a closing quotation mark does not extend to the end of the file.
_TOKEN = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|[{}\[\],]|\b(?:NaN|Infinity)\b|-Infinity\b')
# The same without an end where it is still being written.
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|$)', re.MULTILINE)
_KEY_BEFORE = re.compile(r'("(?:[^"\\\n]|\\.)*")\s*:\s*\Z')
_VALUE_OF_KEY = re.compile(r"\s*:\s*")
# One character of a string as it is written; two escapes may be one character.
_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)


class Position(NamedTuple):
    """A position in a file; both numbers count from 1."""

    line: int
    column: int


class DuplicateKey(NamedTuple):
    """The second (third, ...) appearance of a key in an object, by line and column of its opening quotation mark.

    Attributes:
        json_path: such as ``nodes[2].prompt``.
        first_line: the line in which the key appears first.
    """

    json_path: str
    line: int
    column: int
    first_line: int


@dataclass(frozen=True)
class OffsetContext:
    """What an offset of a text, which need not be valid JSON, belongs to.

    Attributes:
        around: the keys and indexes that lead to the object or list around it, the outermost first.
        key: the key or index of the value at the offset; None where a key belongs.
        start, end: of the text at the offset, without its quotation marks.
        is_string: the text is in quotation marks.
    """

    around: tuple[str | int, ...]
    key: str | int | None
    start: int
    end: int
    is_string: bool


# -- bytes to text -----------------------------------------------------------------------------------------------------


def legacy_code_page() -> str:
    """Return the most likely encoding of a file that is not UTF-8: the locale's own, else Western Windows."""
    # Not getpreferredencoding: that is UTF-8 everywhere in Python's UTF-8 mode, which Python 3.15 is always in.
    name = codecs.lookup(locale.getencoding()).name
    return name if name not in ("utf-8", "ascii") else "cp1252"


def decode(data: bytes) -> tuple[str, Position | None]:
    """Decode UTF-8 with an optional BOM; anything else as the legacy code page, bad bytes replaced.

    The position is that of the first byte that is not UTF-8, its column counted in bytes.
    """
    try:
        return data.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        position = Position(data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start))
        return data.decode(legacy_code_page(), errors="replace"), position


def decode_text(data: bytes, display: str) -> str:
    """Return the text of ``decode``, with a warning that names ``display`` if it is not UTF-8."""
    text, foreign = decode(data)
    if foreign is not None:
        logger.warning(
            "%s is not UTF-8 (line %d, column %d); it is read as %s. Expected: a file saved as UTF-8.",
            display,
            *foreign,
            legacy_code_page(),
        )
    return text


# -- text to data ------------------------------------------------------------------------------------------------------


def parse_json(data: bytes, display: str) -> object:
    """Parse strict JSON. Raises ``ConfigSyntaxError`` with ``display``, line and column."""
    return JsonSource(decode_text(data, display), display).parse()


class JsonSource:
    """The text of one JSON file. If it is not valid JSON, some positions are missing or wrong.

    Attributes:
        display: the name of the file in errors.
        is_list: the root is a list. Its entries are then those of ``nodes``.
    """

    def __init__(self, text: str, display: str = "") -> None:
        self.text, self.display = text, display
        self.is_list = self.text.lstrip().startswith("[")
        self._has_duplicates = False

    @classmethod
    def read(cls, path: str) -> JsonSource:
        """Return the text of a file for its positions; empty if the file cannot be read."""
        try:
            with open_to_read(path) as file:
                return cls(decode(file.read())[0])
        # ValueError: no file can have this path, as it contains a NUL.
        except (OSError, ValueError):
            return cls("")

    def parse(self) -> object:
        """Parse strict JSON. Raises ``ConfigSyntaxError`` with line, column and what to change."""
        if not self.text.strip():
            raise ConfigSyntaxError(self.display, "the file is empty", self.text or "\n")
        try:
            return json.loads(self.text, parse_constant=_refuse_constant, object_pairs_hook=self._object)
        except json.JSONDecodeError as error:
            message, offset = json_mistakes.explain(error.msg, self.text, error.pos, self.open_bracket)
        except _UnknownConstantError as error:
            message = f"{error} is not a JSON value"
            offset = next((match.start() for match in _TOKEN.finditer(self.text) if match.group() == str(error)), 0)
        except RecursionError:
            raise ConfigSyntaxError(self.display, "nested too deeply") from None
        # A number with more digits than Python converts.
        except ValueError as error:
            raise ConfigSyntaxError(self.display, str(error)) from None
        raise ConfigSyntaxError(self.display, message, self.text, offset)

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) != len(pairs):
            self._has_duplicates = True
        return value

    # -- positions -----------------------------------------------------------------------------------------------------
    def duplicates(self) -> tuple[DuplicateKey, ...]:
        """Return the keys that an object of the parsed text repeats, in their order."""
        # The scan of the text is slow, and hardly any file has repeated keys.
        if not self._has_duplicates:
            return ()
        return tuple(
            DuplicateKey(path.removeprefix("nodes") if self.is_list else path, *self._at(offset), self._at(first).line)
            for path, offset, first in self._scan.repeated
        )

    def position(self, path: str) -> Position | None:
        """Return the position of the value at ``path`` (of its key, if it has one), or of the nearest one around it."""
        offsets = self._scan.offsets
        while path and path not in offsets:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        start = len(self.text) - len(self.text.lstrip())
        return self._at(offsets.get(path, start)) if start < len(self.text) else None

    def position_in(self, path: str, index: int) -> Position | None:
        """Return the position of a character of the string at ``path``; like ``position`` if there is no string."""
        token = _TOKEN.match(self.text, self._scan.offsets.get(path, len(self.text)))
        # A key is followed by its value, an entry of a list is the value itself.
        value = _VALUE_OF_KEY.match(self.text, token.end()) if token else None
        token = _TOKEN.match(self.text, value.end()) if value else token
        if token is None or token.group()[0] != '"':
            return self.position(path)
        written = [one.start() for one in _CHARACTER.finditer(token.group(), 1, len(token.group()) - 1)]
        return self._at(token.start() + (written[index] if index < len(written) else len(token.group()) - 1))

    def line(self, number: int) -> str | None:
        """Return a line of the text, counted from 1, without its end; None if the text has fewer lines."""
        return self._lines[number - 1] if number <= len(self._lines) else None

    def start_of(self, number: int) -> int:
        """Return the offset at which a line begins."""
        return sum(len(text) + 1 for text in self._lines[: number - 1])

    def context_at(self, offset: int) -> OffsetContext:
        """Return what an offset belongs to."""
        start, end, is_string = self._word(offset)
        opening = start - is_string
        containers = _Scan(self.text, "", opening).open
        inside = containers[-1] if containers else None
        key = inside.key if inside is not None else None
        if inside is not None and not isinstance(key, int):
            # After a missing comma the scan still has the key of the line above.
            named = _KEY_BEFORE.search(self.text, self.text.rfind("\n", 0, opening) + 1, opening)
            key = _string(named[1]) if named else None if key and self._is_complete(inside, opening) else key
        around = tuple(container.key for container in containers[:-1] if container.key is not None)
        return OffsetContext(around, key, start, end, is_string)

    def string_at(self, path: str) -> str | None:
        """Return the string at a JSON path, also of a text with mistakes elsewhere, or None."""
        offset = self._scan.offsets.get(path)
        key = _TOKEN.match(self.text, offset) if offset is not None else None
        value = _VALUE_OF_KEY.match(self.text, key.end()) if key else None
        token = _TOKEN.match(self.text, value.end()) if value else None
        return _string(token.group()) if token is not None and token.group()[0] == '"' else None

    def paths(self) -> Collection[str]:
        """Return the JSON paths of all keys, and of the strings and containers in lists."""
        return self._scan.offsets.keys()

    def _word(self, offset: int) -> tuple[int, int, bool]:
        """Return start and end of the string or word at an offset, and whether it is a string."""
        first = self.text.rfind("\n", 0, offset) + 1
        for match in _STRING.finditer(self.text, first, self._end_of_line(offset)):
            is_closed = len(match.group()) > 1 and match.group()[-1] == '"'
            if match.start() < offset <= match.end() - is_closed:
                return match.start() + 1, match.end() - is_closed, True
        start = offset
        while start > first and _is_in_word(self.text[start - 1]):
            start -= 1
        end = offset
        while end < len(self.text) and _is_in_word(self.text[end]):
            end += 1
        return start, end, False

    def _end_of_line(self, offset: int) -> int:
        end = self.text.find("\n", offset)
        return len(self.text) if end < 0 else end

    def _is_complete(self, inside: _Container, end: int) -> bool:
        """Return whether the value of a key ends on a line above ``end``, so that only a comma is missing."""
        key = _TOKEN.match(self.text, inside.known.get(str(inside.key), end))
        between = self.text[key.end() : end] if key is not None else ""
        value = between.strip().removeprefix(":").strip()
        return bool(value) and value[-1] not in ",{[:" and "\n" in between[len(between.rstrip()) :]

    @cached_property
    def _lines(self) -> list[str]:
        # Not ``splitlines``, which also splits at characters that may be inside strings.
        return self.text.split("\n")

    def open_bracket(self, end: int) -> int | None:
        """Return the offset of the innermost bracket that is open at the offset ``end``."""
        containers = _Scan(self.text, "", end).open
        return containers[-1].start if containers else None

    @cached_property
    def _scan(self) -> _Scan:
        return _Scan(self.text, "nodes" if self.is_list else "", len(self.text))

    def position_of(self, offset: int) -> Position:
        """Return the position of an offset."""
        return self._at(offset)

    def _at(self, offset: int) -> Position:
        return Position(self.text.count("\n", 0, offset) + 1, offset - self.text.rfind("\n", 0, offset))


def _is_in_word(character: str) -> bool:
    return character.isalnum() or character in "_.+-"


def child(path: str, *keys: str | int) -> str:
    """Return the JSON path of what the keys and indexes lead to, from the value at ``path``."""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        else:
            name = key if len(key) <= MAX_KEY_LENGTH else key[: MAX_KEY_LENGTH - 3] + "..."
            # ``dumps`` escapes everything but ASCII, so that the path is printable.
            path += f".{name}" if name.isidentifier() else f"[{json.dumps(name)}]"
    return path.removeprefix(".")


@dataclass
class _Container:
    """An object or list that is open at the current position of the scan.

    Attributes:
        key: the key of the current entry: its index in a list; in an object None until the key was read.
        known: the offsets of the keys of an object.
    """

    start: int
    path: str
    key: str | int | None
    known: dict[str, int] = field(default_factory=dict)

    @property
    def entry(self) -> str:
        return self.path if self.key is None else child(self.path, self.key)


class _Scan:
    """One pass over the text up to ``end``.

    Attributes:
        offsets: of keys and of list entries (of those only strings and containers), by JSON path.
        repeated: JSON path, offset and first offset of each key that was in its object before.
        open: the containers that are open at the end, the outermost first.
    """

    def __init__(self, text: str, root: str, end: int) -> None:
        self.offsets: dict[str, int] = {}
        self.repeated: list[tuple[str, int, int]] = []
        self.open: list[_Container] = []
        for match in _TOKEN.finditer(text, 0, end):
            inside = self.open[-1] if self.open else None
            token, start = match.group(), match.start()
            if token in "{[":
                path = inside.entry if inside else root
                self.offsets.setdefault(path, start)
                self.open.append(_Container(start, path, None if token == "{" else 0))
            elif inside:
                self._take(token, start, inside)

    def _take(self, token: str, start: int, inside: _Container) -> None:
        if token in "}]":
            self.open.pop()
        # In an object the next string is a key; in a list the next entry has the next index.
        elif token == ",":
            inside.key = inside.key + 1 if isinstance(inside.key, int) else None
        elif token[0] == '"':
            if inside.key is None:
                inside.key = key = _string(token)
                first = inside.known.setdefault(key, start)
                if first != start:
                    self.repeated.append((inside.entry, start, first))
            self.offsets.setdefault(inside.entry, start)


def _string(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token


class _UnknownConstantError(ValueError):
    """A word such as NaN, which is valid in JavaScript but not in JSON."""


def _refuse_constant(name: str) -> NoReturn:
    raise _UnknownConstantError(name)
