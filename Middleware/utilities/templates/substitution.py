"""Placeholders in texts: the grammar of ``str.format`` over a table of values, never over live objects.

A lookup function gives each name its value and says whether it came from the configuration. Only such values may
contain further placeholders; everything else (users, models, tools) is inserted with its braces as sentinels, so
that no later pass can take it for a template. Callers restore the sentinels when the last pass is done.

For a text in which inserted values must be distinguished from what its author wrote, each is put between two marks.
"""

from __future__ import annotations

import re

# What string.Formatter itself takes the names in placeholders apart with.
from _string import formatter_field_name_split  # type: ignore[import-not-found]
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from types import ModuleType
from typing import Any

from Middleware.exceptions import WilmerError
from Middleware.utilities.text_utils import escape_braces, restore_braces

# name -> (value, whether it comes from the configuration); raises UnknownVariableError.
Lookup = Callable[[str], "tuple[Any, bool]"]

# Unicode gives these to no text, for use inside of a program.
VALUE_BEGINS, VALUE_ENDS = "\ufdd0", "\ufdd1"
# A marked value from the configuration may hold others.
_MARKED = re.compile("B((?:[^BE]++|B[^BE]*+E)*+)E".replace("B", VALUE_BEGINS).replace("E", VALUE_ENDS))
_MARKS = dict.fromkeys(map(ord, (VALUE_BEGINS, VALUE_ENDS)))

# Longer texts are rare, and some hundred of them would take much memory.
MAX_CACHED_LENGTH = 16_384
_KNOWN_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")

# A width or precision of a million would only fill the memory.
LONG_NUMBER = re.compile(r"\d{7}")
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}


class SubstitutionError(WilmerError, ValueError):
    """A text cannot be filled in: its braces are not a valid template, or a placeholder cannot be resolved."""

    private = True


class UnknownVariableError(SubstitutionError):
    """There is no variable of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown variable '{name}'")


@dataclass(frozen=True)
class Field:
    """One placeholder. ``path`` holds (is an attribute, key) steps; ``source`` is the placeholder as written."""

    name: str
    path: tuple[tuple[bool, str | int], ...]
    conversion: str
    spec: Template | None
    source: str


@dataclass(frozen=True)
class Template:
    """A parsed text: literal pieces and placeholders, in order."""

    parts: tuple[str | Field, ...]

    def fill(self, lookup: Lookup, keep_unknown: bool = False, marked: bool = False) -> str:
        """Return the text with values inserted.

        ``keep_unknown`` leaves placeholders of unknown names as written; ``marked`` puts each value between two marks.
        """
        pieces = []
        for part in self.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            try:
                value = _render(part, lookup)
                pieces.append(mark(value) if marked else value)
            except UnknownVariableError:
                if not keep_unknown:
                    raise
                pieces.append(part.source)
        return "".join(pieces)


def parse(text: str) -> Template:
    """Parse ``text``; results of texts of ordinary length are remembered. Raises SubstitutionError."""
    return _parse_cached(text) if len(text) <= MAX_CACHED_LENGTH else _parse(text)


def has_braces(text: str) -> bool:
    return "{" in text or "}" in text


def mark(value: str) -> str:
    """Return a value between the two marks, without any that it has itself."""
    return f"{VALUE_BEGINS}{without_marks(value)}{VALUE_ENDS}"


def without_marks(text: str) -> str:
    return text.translate(_MARKS)


def without_values(marked: str) -> tuple[str, list[str]]:
    """Return a text with ``VALUE_BEGINS`` in place of each marked value, and these in their order.

    ``VALUE_ENDS`` is left in the text where a filter of a template has cut off the beginning of a value, and more
    ``VALUE_BEGINS`` than values where it has cut off the end of one.
    """
    return _MARKED.sub(VALUE_BEGINS, marked), [without_marks(found[1]) for found in _MARKED.finditer(marked)]


def substitute(text: str, lookup: Lookup, keep_unknown: bool = False, marked: bool = False) -> str:
    """Fill in all placeholders, then once more those that came with values from the configuration.

    A failure of the first pass raises SubstitutionError, one of the second is ignored. Sentinels are not restored.
    ``keep_unknown`` and ``marked`` are those of ``Template.fill``. A marked value from the configuration has marked
    values in it.
    """
    result = parse(text).fill(lookup, keep_unknown, marked)
    if "{" not in result:
        return result
    try:
        return _parse(result).fill(lookup, keep_unknown, marked)
    except SubstitutionError:
        return result


def substitute_wherever_possible(text: str, lookup: Lookup, marked: bool = False) -> str:
    """Replace each ``{placeholder}`` that can be resolved and leave everything else; never fails on the text."""

    def replace(match: re.Match[str]) -> str:
        try:
            return parse(match.group()).fill(lookup, marked=marked)
        except SubstitutionError:
            return match.group()

    return _KNOWN_PLACEHOLDER.sub(replace, _KNOWN_PLACEHOLDER.sub(replace, text))


def _parse(text: str) -> Template:
    # As in str.format: a placeholder may stand in the format specification of another, and no deeper.
    return Template(tuple(_parts(text, depth=2)))


_parse_cached = lru_cache(maxsize=512)(_parse)


def _parts(text: str, depth: int) -> list[str | Field]:
    if depth == 0:
        raise SubstitutionError("placeholders nested too deeply")
    parts: list[str | Field] = []
    try:
        for literal, name, spec, conversion in Formatter().parse(text):
            if literal:
                parts.append(literal)
            if name is not None:
                parts.append(_field(name, spec or "", conversion or "", depth))
    except SubstitutionError:
        raise
    except ValueError as error:
        raise SubstitutionError(str(error)) from None
    return parts


def _field(expression: str, spec: str, conversion: str, depth: int) -> Field:
    name, rest = formatter_field_name_split(expression)
    # str.format would take a number, or nothing, for the position of an argument.
    if not isinstance(name, str) or not name:
        raise SubstitutionError("a placeholder needs a name")
    if conversion and conversion not in _CONVERSIONS:
        raise SubstitutionError(f"unknown conversion '!{conversion}'")
    source = "{" + expression + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
    return Field(name, tuple(rest), conversion, Template(tuple(_parts(spec, depth - 1))) if spec else None, source)


def _render(field: Field, lookup: Lookup) -> str:
    value, from_config = lookup(field.name)
    if isinstance(value, str) and not (field.path or field.conversion or field.spec):
        return value if from_config else escape_braces(value)
    spec = field.spec.fill(lookup) if field.spec else ""
    if LONG_NUMBER.search(spec):
        raise SubstitutionError("a format specification asks for too large a number")
    try:
        text = _format(value, field, restore_braces(spec), from_config)
    except SubstitutionError:
        raise
    # Values may be objects of users' scripts, whose methods may raise anything.
    except Exception as error:
        raise SubstitutionError(f"'{field.name}' cannot be formatted: {type(error).__name__}") from error
    return text if from_config else escape_braces(text)


def _format(value: Any, field: Field, spec: str, from_config: bool) -> str:
    value = _plain(value, from_config)
    for is_attribute, key in field.path:
        value = _attribute(value, str(key)) if is_attribute else value[key]
        value = _plain(value, from_config)
    if field.conversion:
        value = _CONVERSIONS[field.conversion](value)
    return format(value, spec)


def _plain(value: object, from_config: bool) -> object:
    """Return a string with real braces: formats and indexes must not count the letters of a sentinel."""
    return restore_braces(value) if isinstance(value, str) and not from_config else value


def _attribute(value: object, name: str) -> object:
    """Return a public attribute that holds data. Dictionaries have keys instead."""
    if name.startswith("_") or isinstance(value, (Mapping, ModuleType, type)):
        raise SubstitutionError(f"'.{name}' is not available in placeholders")
    result = getattr(value, name)
    if callable(result) or isinstance(result, ModuleType):
        raise SubstitutionError(f"'.{name}' is not data")
    return result
