"""Jinja2's own filters, held to the budget of the rendering.

Only filters that can make much of little are here. What they make is asked for before they start; every text that
comes out of one counts as work.
"""
from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context

from Middleware.utilities.templates.jinja_limits import (
    MAX_OUTPUT_CHARACTERS,
    Budget,
    RenderLimitError,
    current_budget,
    printf_length,
    replaced_length,
)

# Each piece is a list of its own, also an empty one.
MAX_PIECES = 10_000

# What is asked for below does not count indentation.
_MAX_INDENT = 100

# Python's own limit is near: 10 to the power of 309 is no float.
_MAX_PRECISION = 300
_RUNS = re.compile(r"\s+|\S+")

Check = Callable[..., None]
"""Takes the budget and the arguments of the filter; raises RenderLimitError."""


def limited_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """``filters`` with those that make texts or lists watched."""
    return {name: _watched(function, CHECKS[name], name in _CONSUMING) if name in CHECKS else function
            for name, function in filters.items()}


def _watched(function: Callable[..., Any], check: Check, consumes: bool) -> Callable[..., Any]:
    first = _FIRST_ARGUMENT[getattr(getattr(function, "jinja_pass_arg", None), "name", "")]

    @pass_context  # also keeps the compiler from running the filter while it folds constants
    @functools.wraps(function)
    def watched(context: Context, value: object = "", *args: object, **kwargs: object) -> object:
        budget = current_budget()
        if consumes and isinstance(value, Iterator):
            value = list(value)  # of a lazy filter before this one
        check(budget, value, *args, **kwargs)
        result = function(*first(context), value, *args, **kwargs)
        if isinstance(result, str):
            budget.make(len(result))
        return result

    return watched


_FIRST_ARGUMENT: dict[str, Callable[[Context], tuple[object, ...]]] = {
    "": lambda context: (), "context": lambda context: (context,),
    "environment": lambda context: (context.environment,), "eval_context": lambda context: (context.eval_ctx,),
}


def _text(budget: Budget, value: object, *_args: object, **_kwargs: object) -> None:
    budget.make(budget.length(value))


def _center(budget: Budget, value: object, width: int = 80) -> None:
    budget.make(max(budget.length(value), width))


def _format(budget: Budget, value: object, *args: object, **kwargs: object) -> None:
    budget.make(printf_length(budget, str(value), kwargs or args))


def _indent(budget: Budget, value: object, width: int | str = 4, *_args: object, **_kwargs: object) -> None:
    size = len(width) if isinstance(width, str) else max(width, 0)
    lines = len(value.splitlines()) + 1 if isinstance(value, str) else 1
    budget.make(budget.length(value) + lines * size)


def _join(budget: Budget, value: object, d: object = "", *_args: object, **_kwargs: object) -> None:
    budget.make(budget.length(value) + (len(value) if isinstance(value, Sized) else 0) * budget.length(d))


def _pieces(budget: Budget, _value: object, *args: int, **kwargs: int) -> None:
    """For ``batch(linecount)`` and ``slice(slices)``, which go wrong by themselves without that argument."""
    count = args[0] if args else kwargs.get("linecount", kwargs.get("slices", 0))
    if count > MAX_PIECES:
        raise RenderLimitError(f"'batch' and 'slice' make at most {MAX_PIECES} pieces")
    budget.spend(max(count, 0))


def _replace(budget: Budget, value: object, old: object = "", new: object = "", *_args: object,
             **_kwargs: object) -> None:
    for part in (value, old, new):
        budget.length(part)  # written out below
    budget.make(replaced_length(str(value), str(old), str(new)))


def _round(_budget: Budget, _value: object, precision: int = 0, *_args: object, **_kwargs: object) -> None:
    if abs(precision) > _MAX_PRECISION:
        raise RenderLimitError("it rounds to too many places")


def _strip_tags(budget: Budget, value: object) -> None:
    size = budget.length(value)
    budget.make(size)
    # The whole text is copied for each comment.
    budget.spend(str(value).count("<!--") * size // 2000)


def _sum(budget: Budget, value: object, *_args: object, **_kwargs: object) -> None:
    weight = budget.weigh(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, (list, tuple, dict)) for item in value):
        # Adding lists copies what is there for each of them.
        budget.spend(len(value) * weight // 128)


def _to_json(budget: Budget, value: object, indent: int | None = None) -> None:
    if indent is not None and indent > _MAX_INDENT:
        raise RenderLimitError(f"'tojson' indents by at most {_MAX_INDENT}")
    budget.make(budget.weigh(value))


def _word_wrap(budget: Budget, value: object, width: int = 79, break_long_words: bool = True,
               wrapstring: str | None = None, *_args: object, **_kwargs: object) -> None:
    text, width = str(value) if budget.length(value) else "", max(width, 1)
    longest = max((len(run) for line in text.splitlines() for run in _RUNS.findall(line)), default=0)
    # The rest of a long run is copied for each line.
    budget.spend(longest * longest // width // 400)
    breaks = len(text) // width + sum(map(str.isspace, text))
    budget.make(len(text) + breaks * max(len(wrapstring or "\n") - 1, 0))


CHECKS: dict[str, Check] = {
    **dict.fromkeys(("capitalize", "e", "escape", "forceescape", "lower", "pprint", "safe", "string", "title", "trim",
                     "truncate", "upper", "urlencode", "urlize", "wordcount", "xmlattr"), _text),
    "batch": _pieces, "center": _center, "format": _format, "indent": _indent, "join": _join, "replace": _replace,
    "round": _round, "slice": _pieces, "striptags": _strip_tags, "sum": _sum, "tojson": _to_json,
    "wordwrap": _word_wrap,
}


_CONSUMING = frozenset({"batch", "join", "slice", "sum"})


def limited_lorem_ipsum(function: Callable[..., str]) -> Callable[..., str]:
    """Jinja2's ``lipsum``, of at most as many words as a text may have characters."""
    def lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
        if n * max * 10 > MAX_OUTPUT_CHARACTERS:
            raise RenderLimitError("'lipsum' is to make too long a text")
        return function(n, html, min, max)

    return lipsum
