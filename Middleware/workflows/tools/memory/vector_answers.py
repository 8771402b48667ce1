"""Reading memories out of what an LLM wrote.

A memory is a JSON object with at least ``title``, ``summary``, ``entities`` and ``key_phrases``. Models wrap it in
thinking, prose and code fences, cut it off, and repeat what strangers told them to say: every step here takes time in
proportion to the length of the answer.
"""
from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from Middleware.utilities.answers.cut_off_thoughts import THOUGHT_TAG
from Middleware.utilities.text_utils import without_surrogates

logger = logging.getLogger(__name__)

Item = dict[str, Any]

REQUIRED = ("title", "summary", "entities", "key_phrases")
MOST_CHARACTERS = 2_000_000  # a longer answer is not looked at
MOST_ITEMS = 500  # of one answer
MOST_ITEM_BYTES = 64 * 1024  # of one item as JSON
MOST_LEVELS = 32  # of objects and lists inside one item
_EFFORT = 16  # how often the text may be read, all attempts to parse parts of it taken together
_MOST_DIGITS = 300

_FENCE = re.compile(r"```[ \t]*(\w*)")
_START = re.compile(r'\{\s*"|\[\s*[{\]]')  # of an object that is not empty, a list of objects, an empty list
_NEXT_OBJECT = re.compile(r"[\s,;]*(?=\{)")
_CONTAINER = "memories"


def parse_memories(answer: str) -> list[Item] | None:
    """The memories in an answer; an empty list if it says that nothing is worth keeping; None if it is unusable.

    Items that lack a key, whose summary is no text, or that are too large or too deep are left out; what remains is
    fit for JSON and UTF-8. The text of each is its ``summary``.
    """
    if len(answer) > MOST_CHARACTERS:
        logger.warning("An answer of %d characters is too long to be memories", len(answer))
        return None
    found = _whole(answer)
    if found is None:
        found = _search(without_thinking(answer))
    if not found:
        return found
    items = [item for item in map(_checked, found[:MOST_ITEMS]) if item is not None]
    if len(found) > MOST_ITEMS:
        logger.warning("Of %d memories in one answer the first %d are kept", len(found), MOST_ITEMS)
    return items or None


# -- thinking ----------------------------------------------------------------------------------------------------------

def without_thinking(text: str) -> str:
    """The text without blocks of thinking, also if their opening tag is missing or the last block is never closed."""
    starts = [found.start() for found in _START.finditer(text)]
    first, last = (starts[0], starts[-1]) if starts else (len(text), -1)
    kept: list[str] = []
    position, block = 0, ""
    for tag in THOUGHT_TAG.finditer(text):
        closing, name = bool(tag.group(1)), tag.group(2).lower()
        if block:
            if closing and name == block:
                position, block = tag.end(), ""
        elif not closing:
            kept.append(text[position:tag.start()])
            position, block = tag.start(), name
        elif tag.end() <= last:  # it began before the answer did; else the tag is a word of the answer
            kept.clear()
            position = tag.end()
    if block and position <= first:  # nothing but thinking so far
        return "".join(kept)
    return "".join(kept) + text[position:]


# -- finding JSON ------------------------------------------------------------------------------------------------------

def _number(digits: str) -> float | int | None:
    if len(digits) > _MOST_DIGITS:
        return None
    if digits.lstrip("-").isdigit():
        return int(digits)
    value = float(digits)
    return value if math.isfinite(value) else None


# Line breaks inside strings are accepted. Numbers that JSON or a database cannot hold become null.
_DECODER = json.JSONDecoder(strict=False, parse_int=_number, parse_float=_number, parse_constant=lambda name: None)


class _Parser:
    """Parses JSON values at places of a text, as long as the effort stays in proportion to its length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._left = _EFFORT * (len(text) + 64)

    @property
    def tired(self) -> bool:
        return self._left <= 0

    def at(self, start: int) -> tuple[Any, int] | None:
        """The value that begins at ``start`` and where it ends; None if none does."""
        if self.tired:
            return None
        try:
            value, end = _DECODER.raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            read_to = len(self.text) if error.msg.startswith("Unterminated") else error.pos
            self._left -= read_to - start + 1 + error.pos // _EFFORT  # the error counts lines from the start
            return None
        except (RecursionError, ValueError):
            self._left -= len(self.text) - start + 1
            return None
        self._left -= end - start
        return value, end


def _whole(answer: str) -> list[Item] | None:
    """The candidates of an answer that is JSON from its first to its last character."""
    text = answer.strip()
    if not text.startswith(("{", "[")):
        return None
    parsed = _Parser(text).at(0)
    if parsed is None or parsed[1] != len(text):
        return None
    return _items_in(parsed[0])


def _search(text: str) -> list[Item] | None:
    """The candidates of the first place that has any: in a fence for JSON, in another fence, anywhere."""
    parser = _Parser(text)
    labelled, others = _fences(text)
    for start, end in (*labelled, *others):
        found = _first_items(parser, start, end)
        if found is not None:
            return found
    return _first_items(parser, 0, len(text))


def _fences(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where fenced blocks for JSON, and ones without a label, begin and end. An open one ends with the text."""
    marks = list(_FENCE.finditer(text))
    labelled: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    inside = False
    for mark, following in zip(marks, (*marks[1:], None), strict=False):
        label = mark.group(1).lower()
        span = (mark.end(), len(text) if following is None else following.start())
        if label.startswith("json"):
            labelled.append(span)
        elif not label and not inside:
            others.append(span)
        inside = bool(label) or not inside
    return labelled, others


def _first_items(parser: _Parser, start: int, end: int) -> list[Item] | None:
    """The candidates of the first value that begins between the places and has any.

    Values inside something unfinished count too, but an empty list there may be a part of what got lost.
    """
    nothing: list[Item] | None = None
    whole = True
    while (begin := _START.search(parser.text, start, end)) and not parser.tired:
        parsed = parser.at(begin.start())
        if parsed is None:
            start, whole = begin.start() + 1, False
            continue
        value, start = parsed
        items = _items_in(value)
        if items:
            return items + list(_more_objects(parser, start)) if isinstance(value, dict) else items
        if items is not None and whole:
            nothing = items
    return nothing


def _more_objects(parser: _Parser, position: int) -> Iterator[Item]:
    """Objects that follow with nothing but commas or space between: a list whose brackets are missing or cut off."""
    while following := _NEXT_OBJECT.match(parser.text, position):
        parsed = parser.at(following.end())
        if parsed is None:
            return
        value, position = parsed
        yield from _items_in(value) or ()


def _items_in(value: object) -> list[Item] | None:
    """The memories in a JSON value, unchecked; empty if it is an empty list; None if it holds something else."""
    if isinstance(value, dict) and not _is_memory(value):
        value = value.get(_CONTAINER)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return None
    items = [entry for entry in value if isinstance(entry, dict) and _is_memory(entry)]
    return items if items or not value else None


def _is_memory(entry: Item) -> bool:
    summary = entry.get("summary")
    return all(key in entry for key in REQUIRED) and isinstance(summary, str) and bool(summary.strip())


# -- what may be stored ------------------------------------------------------------------------------------------------

def _checked(item: Item) -> Item | None:
    """The item with nothing in it that cannot be stored; None, with a warning, if it is too large or too deep."""
    if _too_deep(item):
        logger.warning("A memory is not kept: it is nested more than %d levels deep", MOST_LEVELS)
        return None
    clean: Item = _storable(item)
    if len(json.dumps(clean, ensure_ascii=False).encode()) > MOST_ITEM_BYTES:
        logger.warning("A memory is not kept: it has more than %d bytes", MOST_ITEM_BYTES)
        return None
    return clean


def _storable(value: object) -> Any:
    """A copy without NULs and halves of surrogate pairs, in keys and texts."""
    if isinstance(value, str):
        return without_surrogates(value).replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_storable(inner) for inner in value]
    if isinstance(value, dict):
        return {_storable(key): _storable(inner) for key, inner in value.items()}
    return value


def _too_deep(item: Item) -> bool:
    level: Sequence[Any] = [item]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)
                 if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True
