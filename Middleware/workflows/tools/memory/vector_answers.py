"""Extracts memories from the answer of an LLM.

A memory is a JSON object with at least ``title``, ``summary``, ``entities`` and ``key_phrases``. Models wrap it in
reasoning, prose and code fences, cut it off, and repeat what injected text tells them to write: every step here takes
time in proportion to the length of the answer.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from Middleware.utilities.answers.cut_off_thoughts import THOUGHT_TAG
from Middleware.utilities.text_utils import without_surrogates
from Middleware.workflows.tools.memory.memory_texts import plain_words

logger = logging.getLogger(__name__)

Item = dict[str, Any]

REQUIRED = ("title", "summary", "entities", "key_phrases")
# A longer answer is ignored: no set of memories is that long.
MOST_CHARACTERS = 2_000_000
# The most memories of one answer; more are a model that repeats itself.
MOST_ITEMS = 500
# The most bytes of one item as JSON.
MOST_ITEM_BYTES = 64 * 1024
# The deepest nesting of objects and lists inside one item.
MOST_LEVELS = 32
# How often the text may be read, all attempts to parse parts of it taken together.
_EFFORT = 16
_MOST_DIGITS = 300

# The beginning or end of a fenced block, its label, and what follows up to the next.
_FENCE = re.compile(r"```[ \t]*(\w*)((?:(?!```).)*)", re.DOTALL)
# The start of an object that is not empty, a list of objects, or an empty list.
_START = re.compile(r'\{\s*"|\[\s*[{\]]')
_NEXT_OBJECT = re.compile(r"[\s,;]*(?=\{)")
_CONTAINER = "memories"


def parse_memories(answer: str) -> list[Item] | None:
    """Return the memories in an answer; [] if it states that nothing is worth keeping; None if it is unusable.

    Items that lack a key, whose summary is not a string or was there before, or that are too large or too deep are left
    out; the rest can be written as JSON and UTF-8. The text of each is its ``summary``.
    """
    if len(answer) > MOST_CHARACTERS:
        logger.warning("An answer of %d characters is too long to be memories", len(answer))
        return None
    found = _whole(answer)
    if found is None:
        found = _search(without_thinking(answer))
    if not found:
        return found
    items = storable_items(found[:MOST_ITEMS])
    if len(found) > MOST_ITEMS:
        logger.warning("Of %d memories in one answer the first %d are kept", len(found), MOST_ITEMS)
    return items or None


def storable_items(items: Iterable[Item]) -> list[Item]:
    """Return the memories that can be stored, each once."""
    return _without_repetitions(item for item in map(_checked, items) if item is not None)


# -- reasoning ---------------------------------------------------------------------------------------------------------


def without_thinking(text: str) -> str:
    """Return the text without blocks of reasoning, even if the first tag is missing or the last block is not closed."""
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
            kept.append(text[position : tag.start()])
            position, block = tag.start(), name
        # The block began before the answer did; otherwise the tag is a word of the answer.
        elif tag.end() <= last:
            kept.clear()
            position = tag.end()
    # There is nothing but reasoning so far.
    if block and position <= first:
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
    """Parses JSON values inside a text, as long as the effort stays in proportion to its length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = _EFFORT * (len(text) + 64)

    def at(self, start: int) -> tuple[Any, int] | None:
        """Return the value that begins at ``start`` and its end; None if none does."""
        if self.left <= 0:
            return None
        try:
            value, end = _DECODER.raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            read_to = len(self.text) if error.msg.startswith("Unterminated") else error.pos
            # The error counts lines from the start.
            self.left -= read_to - start + 1 + error.pos // _EFFORT
            return None
        except (RecursionError, ValueError):
            self.left -= len(self.text) - start + 1
            return None
        self.left -= end - start
        return value, end


def _whole(answer: str) -> list[Item] | None:
    """Return the candidates of an answer that is JSON from its first to its last character."""
    text = answer.strip()
    if not text.startswith(("{", "[")):
        return None
    parsed = _Parser(text).at(0)
    if parsed is None or parsed[1] != len(text):
        return None
    return _items_in(parsed[0])


def _search(text: str) -> list[Item] | None:
    """Return the candidates of the first source that has any: a fence for JSON, another fence, the whole text."""
    parser = _Parser(text)
    labelled, others = _fences(text)
    for start, end in (*labelled, *others):
        found = _first_items(parser, start, end)
        if found is not None:
            return found
    return _first_items(parser, 0, len(text))


def _fences(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the bounds of fenced blocks for JSON, and of blocks without a label. An open block ends with the text."""
    labelled: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    inside = False
    for mark in _FENCE.finditer(text):
        label = mark[1].lower()
        if label.startswith("json"):
            labelled.append(mark.span(2))
        elif not label and not inside:
            others.append(mark.span(2))
        # A mark with a label always opens a block: the end of the one before may be missing.
        inside = bool(label) or not inside
    return labelled, others


def _first_items(parser: _Parser, start: int, end: int) -> list[Item] | None:
    """Return the candidates of the first value that begins inside the bounds and has any."""
    nothing: list[Item] | None = None
    whole = True
    while (begin := _START.search(parser.text, start, end)) and parser.left > 0:
        parsed = parser.at(begin.start())
        if parsed is None:
            start, whole = begin.start() + 1, False
            continue
        value, start = parsed
        items = _items_in(value)
        if items:
            return items + list(_more_objects(parser, start)) if isinstance(value, dict) else items
        # An empty list inside something unfinished may be a part of what was cut off.
        if items is not None and whole:
            nothing = items
    return nothing


def _more_objects(parser: _Parser, position: int) -> Iterator[Item]:
    # A list whose brackets are missing or cut off: objects, separated by commas or space.
    while following := _NEXT_OBJECT.match(parser.text, position):
        parsed = parser.at(following.end())
        if parsed is None:
            return
        value, position = parsed
        yield from _items_in(value) or ()


def json_objects(text: str) -> Iterator[Item]:
    """Yield the outermost objects that can be parsed, whatever stands between them."""
    parser, position = _Parser(text), 0
    while (begin := text.find("{", position)) >= 0 and parser.left > 0:
        parsed = parser.at(begin)
        if parsed is not None and isinstance(parsed[0], dict):
            yield parsed[0]
        position = begin + 1 if parsed is None else parsed[1]


def _items_in(value: object) -> list[Item] | None:
    """Return the unchecked memories in a JSON value; [] for an empty list; None if it holds something else."""
    if isinstance(value, dict) and not is_memory(value):
        value = value.get(_CONTAINER)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return None
    items = [entry for entry in value if isinstance(entry, dict) and is_memory(entry)]
    if 0 < len(items) < len(value):
        logger.warning(
            "Of %d memories in one answer %d are kept; the others lack one of %s",
            len(value),
            len(items),
            ", ".join(REQUIRED),
        )
    return items if items or not value else None


def is_memory(entry: Item) -> bool:
    """Return whether an object has the keys of a memory, and a text."""
    summary = entry.get("summary")
    return all(key in entry for key in REQUIRED) and isinstance(summary, str) and bool(summary.strip())


# -- storable items ----------------------------------------------------------------------------------------------------


def _checked(item: Item) -> Item | None:
    """Return the item without anything that cannot be stored; None, with a warning, if it is too large or too deep."""
    if _too_deep(item):
        logger.warning("A memory is not kept: it is nested more than %d levels deep", MOST_LEVELS)
        return None
    clean: Item = _storable(item)
    if len(json.dumps(clean, ensure_ascii=False).encode()) > MOST_ITEM_BYTES:
        logger.warning("A memory is not kept: it has more than %d bytes", MOST_ITEM_BYTES)
        return None
    return clean


def _without_repetitions(items: Iterable[Item]) -> list[Item]:
    # Small models write the same memory again and again until their answer is cut off.
    different: dict[str, Item] = {}
    for item in items:
        different.setdefault(plain_words(item["summary"]) or item["summary"], item)
    return list(different.values())


def _storable(value: object) -> Any:
    """Return a copy without NULs and halves of surrogate pairs, in keys and strings."""
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
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True
