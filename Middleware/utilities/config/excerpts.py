"""The line of a file that a finding or error is about, with a caret under the position and without its secrets."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from Middleware.exceptions import ConfigSyntaxError
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.sensitive_logging_utils import (
    MASK,
    SECRET_ENDING,
    joined_spans,
    secret_spans,
    spans_after_names,
)

# The longest part of a line to show: with the line number in front it must fit on a terminal of 120 columns.
MAX_COLUMNS = 100
# How much of a longer line is shown before the position.
CONTEXT_COLUMNS = 30
TAB_COLUMNS = 4
# A report goes through its findings by file, so a few files at a time are enough.
MAX_SOURCES = 16

_SECRET_KEY = re.compile(rf"(?i){SECRET_ENDING}\W*\Z")
# Arguments of programs and headers are as often secrets as not, and nothing in their text says which.
_SECRET_HOLDERS = frozenset({"args", "arguments", "env", "headers"})
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?|\'(?:[^\'\\]|\\.)*\'?|[^\s,:{}\[\]"\']+')
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"']+")
_MARKED = re.compile(r'"(?:[^"\\]|\\.)*"?|[\w.+-]+|.')
# What is not a secret under any key: a number, and a placeholder alone.
_PLAIN = re.compile(r"true|false|null|[-+]?\d[\d.eE+-]{0,15}|([\"'])\{\w+\}\1")

Paint = Callable[[str, str], str]
Span = tuple[int, int, str]


class Excerpts:
    """Lines of the files below ``root``, read when they are asked for."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._source = lru_cache(maxsize=MAX_SOURCES)(self._read)

    def _read(self, file: str) -> JsonSource:
        return JsonSource.read(os.path.join(self._root, *file.split("/")))

    def lines(self, file: str, line: int | None, column: int | None, severity: str, paint: Paint) -> list[str]:
        """Return the source line and the line of the caret; none if the position or the file is not known.

        ``paint`` colours a text by the name of a colour.
        """
        return excerpt(self._source(file), line, column, severity, paint)


def excerpt(
    source: JsonSource, line: int | None, column: int | None, severity: str = "", paint: Paint = lambda text, name: text
) -> list[str]:
    """Return a line of ``source`` and the line of the caret, as ``Excerpts.lines`` does."""
    text = source.line(line) if line is not None else None
    if line is None or not text or not text.strip():
        return []
    text, position = text.removesuffix("\r"), (column or 1) - 1
    hidden = [*_secrets(text, _is_secret_line(source, line))]
    # The line may have the mistake that makes values pass for names.
    after = spans_after_names(text)
    if after and _has_mistake(source):
        hidden = _with(hidden, after)
    shown, start, width = _shown(text, position, hidden)
    gutter = " " * len(str(line))
    lines = [f"{paint(f'  {line} |', 'gutter')} {shown}"]
    if column is not None:
        lines.append(f"{paint(f'  {gutter} |', 'gutter')} {' ' * start}{paint('^' * width, severity)}")
    return lines


def _has_mistake(source: JsonSource) -> bool:
    try:
        source.parse()
    except ConfigSyntaxError:
        return True
    return False


def _with(hidden: list[Span], spans: Sequence[tuple[int, int]]) -> list[Span]:
    """Return the secrets of a line together with ``spans``, in order; those that overlap become one."""
    known = {span[:2]: span for span in hidden}
    return [known.get(span, (*span, MASK)) for span in joined_spans([*known, *spans])]


def _shown(text: str, column: int, hidden: Sequence[Span]) -> tuple[str, int, int]:
    """Return a line as it is shown, and the position and the length of the mark below it, in columns.

    ``hidden``: the secrets of the line, and what is shown instead.
    """
    match = _MARKED.match(text, column)
    end = match.end() if match else column + 1
    text, column, end = _masked(text, column, end, hidden)
    text, column, end = _cut(text, column, end)
    start = _columns(text[:column])
    shown = "".join(_printable(character) for character in text).rstrip()
    return shown, start, max(_columns(text[column:end]), 1)


def _masked(text: str, column: int, end: int, hidden: Sequence[Span]) -> tuple[str, int, int]:
    """Return the line with its secrets replaced, and the moved ends of the mark."""
    pieces, position, moved = [], 0, [column, end]
    for start, stop, instead in hidden:
        pieces += [text[position:start], instead]
        position = stop
        for index, place in enumerate((column, end)):
            if place >= stop:
                moved[index] += len(instead) - (stop - start)
            elif place > start:
                moved[index] += start + index * len(instead) - place
    return "".join([*pieces, text[position:]]), moved[0], moved[1]


def _secrets(text: str, is_secret: bool) -> Iterator[Span]:
    """Yield the start and end of each secret of a line, with what is shown instead."""
    # Once a key has opened a bracket, all that follows on the line may belong to it.
    name, stays = "", is_secret
    for match in _QUOTED.finditer(text):
        written = match.group()
        rest = text[match.end() :].lstrip()
        if rest[:1] in (":", "=") and not _URL.match(written):
            name = written.strip("\"'")
            stays = stays or (_holds_secrets(name) and rest[1:].lstrip()[:1] in ("[", "{"))
        elif (stays or _holds_secrets(name)) and not _PLAIN.fullmatch(written):
            quote = written[0] if written[0] in "\"'" else ""
            closed = quote if len(written) > 1 and written.endswith(quote) else ""
            yield match.start(), match.end(), f"{quote}{MASK}{closed}"
        else:
            yield from _in_text(match.start(), written)


def _in_text(offset: int, written: str) -> Iterator[Span]:
    for start, end in secret_spans(written):
        yield offset + start, offset + end, MASK


def is_secret_name(name: str) -> bool:
    """Return whether the values under a key of this name are probably passwords, keys or the like."""
    return _SECRET_KEY.search(name) is not None


def _holds_secrets(name: str) -> bool:
    return name in _SECRET_HOLDERS or is_secret_name(name)


def _is_secret_line(source: JsonSource, line: int) -> bool:
    """Return whether a line begins inside the value of a key whose values are not shown."""
    return any(_holds_secrets(str(key)) for key in source.keys_around(line))


def _cut(text: str, column: int, end: int) -> tuple[str, int, int]:
    """Return the part of a long line around the mark, and the mark's ends in it."""
    if len(text) > MAX_COLUMNS:
        first = max(min(column - CONTEXT_COLUMNS, len(text) - MAX_COLUMNS), 0)
        last = first + MAX_COLUMNS
        before, after = "..." if first else "", "..." if last < len(text) else ""
        moved = len(before) - first
        text, column, end = before + text[first:last] + after, column + moved, min(end, last) + moved
    return text, column, end


def _printable(character: str) -> str:
    # A file may hold escape sequences, which a terminal would obey.
    return " " * TAB_COLUMNS if character == "\t" else character if character.isprintable() else "?"


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        TAB_COLUMNS
        if character == "\t"
        else 0
        if unicodedata.combining(character)
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )
