"""The line of a file that a finding or error is about, with a caret under the position and without its secrets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from Middleware.utilities.config.file_secrets import Span, find_secrets
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.sensitive_logging_utils import MASK, joined_spans, secret_spans

# The longest part of a line to show: with the line number in front it must fit on a terminal of 120 columns.
MAX_COLUMNS = 100
# How much of a longer line is shown before the position.
CONTEXT_COLUMNS = 30
TAB_COLUMNS = 4
# A report goes through its findings by file, so a few files at a time are enough.
MAX_SOURCES = 16

# Arguments of programs and headers are as often secrets as not, and nothing in their text says which.
_SECRET_HOLDERS = frozenset({"args", "arguments", "env", "headers"})
_MARKED = re.compile(r'"(?:[^"\\]|\\.)*"?|[\w.+-]+|.')
_NUMBER = re.compile(r"[-+]?\d[\d.eE+-]{0,15}")

Paint = Callable[[str, str], str]


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
    shown, start, width = _shown(text, position, [*_hidden(source.text, source.start_of(line), text)])
    gutter = " " * len(str(line))
    lines = [f"{paint(f'  {line} |', 'gutter')} {shown}"]
    if column is not None:
        lines.append(f"{paint(f'  {gutter} |', 'gutter')} {' ' * start}{paint('^' * width, severity)}")
    return lines


@lru_cache(maxsize=MAX_SOURCES)
def _secrets(text: str) -> list[Span]:
    found = find_secrets(text, _SECRET_HOLDERS)
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(text)
        return found
    # A quotation mark too many, or one less, turns a line inside out: what was a text stands between two of them.
    known, offset = {(span.start, span.end): span for span in found}, 0
    inside_out = list[tuple[int, int]]()
    for line in text.split("\n"):
        spans = [span for span in secret_spans(line) if line[slice(*span)] not in ("true", "false", "null")]
        inside_out += [(offset + start, offset + end) for start, end in spans]
        offset += len(line) + 1
    return [known.get(span) or Span(*span, False) for span in joined_spans([*known, *inside_out])]


def _hidden(whole: str, offset: int, line: str) -> Iterator[tuple[int, int, str]]:
    """Yield start and end of each secret of a line that begins at an offset, with what is shown instead."""
    for span in _secrets(whole):
        start, end = max(span.start - offset, 0), min(span.end - offset, len(line))
        # A number as a whole value is shown under any key; inside a text, digits are as secret as letters.
        if start < end and not (_NUMBER.fullmatch(secret := line[start:end]) and span.whole):
            quote = secret[0] if span.whole and secret[0] in "\"'" else ""
            yield start, end, f"{quote}{MASK}{quote if len(secret) > 1 and secret.endswith(quote) else ''}"


def _shown(text: str, column: int, hidden: Sequence[tuple[int, int, str]]) -> tuple[str, int, int]:
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


def _masked(text: str, column: int, end: int, hidden: Sequence[tuple[int, int, str]]) -> tuple[str, int, int]:
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
