"""How much one rendering may do: a deadline, and a cap on every text it makes.

Python cannot stop a computation from outside its thread, so the template's own steps (loops, calls, operators,
filters) ask for permission before they make something whose size they choose. Sizes are in characters; they need
not be exact, only never far too low.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from Middleware.exceptions import WilmerError

# What Docs/User/variables.md promises.
RENDER_SECONDS = 2.0
MAX_OUTPUT_CHARACTERS = 1_000_000

# All texts that one rendering makes on its way, together: without this, a loop could keep many that are long.
MAX_WORK = 100 * MAX_OUTPUT_CHARACTERS
_GIVEN_WORK = 10

# A product of larger numbers takes Python seconds, in which it looks at no clock.
MAX_INTEGER_BITS = 100_000

# What an item of a container counts in addition to its own text: the space of one reference.
ITEM_SIZE = 8

CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_COMPOSED: tuple[type, ...] = (dict, *CONTAINERS, Mapping)


class RenderLimitError(WilmerError):
    """A template takes too long, or makes too large a text."""


class Budget:
    """What one rendering may still use.

    Attributes:
        text: characters that a single text may have.
        work: characters that all texts made from now on may have together.
    """

    __slots__ = ("deadline", "text", "work")

    def __init__(self, given: int = 0) -> None:
        """``given``: characters of the values that the template starts with, which it may hand on in full."""
        self.deadline = time.monotonic() + RENDER_SECONDS
        self.text = MAX_OUTPUT_CHARACTERS + given
        self.work = MAX_WORK + _GIVEN_WORK * given

    def tick(self) -> None:
        if time.monotonic() > self.deadline:
            raise RenderLimitError(f"it takes longer than {RENDER_SECONDS:g} seconds")

    def spend(self, amount: int) -> None:
        """Account for work in proportion to ``amount`` characters."""
        self.work -= amount
        if self.work < 0:
            raise RenderLimitError("it does too much work")
        self.tick()

    def make(self, size: int) -> None:
        """Ask for a text of ``size`` characters."""
        if size > self.text:
            raise RenderLimitError(f"it makes a text of more than {self.text} characters")
        self.spend(size)

    def length(self, value: object) -> int:
        """Return about the length of ``value`` as text; an error where that is more than a text may have."""
        return len(value) if isinstance(value, str) else weight(value, self.text)


class _State(threading.local):
    budget = Budget()


_state = _State()


def current_budget() -> Budget:
    """Return the budget of the rendering on this thread."""
    return _state.budget


@contextlib.contextmanager
def limited(given: int = 0) -> Iterator[Budget]:
    """Give everything rendered in this block, on this thread, one budget."""
    before, _state.budget = _state.budget, Budget(given)
    try:
        yield _state.budget
    finally:
        _state.budget = before


def weight(value: object, limit: float = float("inf")) -> int:
    """Return about the length of ``str(value)``; parts that occur several times count as often as they are written.

    Raises RenderLimitError beyond ``limit``, long before all of an endless value has been seen.
    """
    total, rest = 0, [value]
    while rest:
        item = rest.pop()
        parts: Any = (item,)
        if isinstance(item, Mapping):
            parts = (*item, *item.values())
        elif isinstance(item, CONTAINERS):
            parts = item
        for part in parts:
            if isinstance(part, (str, bytes)):
                total += len(part) + ITEM_SIZE
            elif isinstance(part, _COMPOSED):
                total += ITEM_SIZE
                rest.append(part)
            elif isinstance(part, int):
                total += ITEM_SIZE + part.bit_length() // 3
            else:
                total += ITEM_SIZE * (1 + len(part) if isinstance(part, range) else 1)
        if total > limit:
            raise RenderLimitError(f"it makes a value of more than {limit} characters")
    return total


# --- operators ---


def check_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """Ask for what ``left operator right`` would make."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if operator in ("*", "**"):
            _check_numbers(operator, left, right)
    elif operator == "%":
        if isinstance(left, (str, bytes)):
            _check_printf(budget, left if isinstance(left, str) else left.decode("latin-1"), right)
    elif operator == "*":
        sequence, count = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, Sized) and isinstance(count, int) and count > 0:
            budget.make(count * budget.length(sequence))
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        budget.make(_memory(left) + _memory(right))


def _check_numbers(operator: str, left: float, right: float) -> None:
    # Floats overflow by themselves.
    if not (isinstance(left, int) and isinstance(right, int)):
        return
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    if bits > MAX_INTEGER_BITS:
        raise RenderLimitError("it calculates with too large a number")


def _memory(value: Sized) -> int:
    return len(value) if isinstance(value, (str, bytes)) else ITEM_SIZE * len(value)


def _check_printf(budget: Budget, template: str, values: object) -> None:
    """Ask for ``template % values``, counting each field as if it showed all values."""
    # Flags, width and precision of a field follow its % or the key in parentheses, which may hold parentheses itself.
    fields = re.findall(r"[%)]([-#0 +\d.*]*)" if "%(" in template else r"%([-#0 +\d.*]*)", template)
    widths = sum(int(number) for field in fields for number in re.findall(r"\d+", field))
    # A * takes its number from the values.
    if any("*" in field for field in fields) and isinstance(values, tuple):
        widths += sum(abs(value) for value in values if isinstance(value, int))
    budget.make(len(template) + widths + len(fields) * budget.length(values))


# --- filters and methods ---

# The most parts, per name, between which the arguments are inserted. Most of these filters insert nothing, but copy.
_PARTS: dict[str, Callable[[Any, Any], int]] = {
    **dict.fromkeys(
        (
            "capitalize",
            "e",
            "escape",
            "forceescape",
            "lower",
            "pprint",
            "safe",
            "string",
            "title",
            "trim",
            "truncate",
            "upper",
            "urlencode",
            "urlize",
            "wordcount",
            "xmlattr",
        ),
        lambda value, first: 0,
    ),
    **dict.fromkeys(("center", "ljust", "rjust", "round", "to_bytes", "zfill"), lambda value, first: 1),
    # Each piece is a list of its own, also an empty one.
    **dict.fromkeys(("batch", "slice"), lambda value, first: 2 * ITEM_SIZE),
    "expandtabs": lambda value, first: value.count("\t" if isinstance(value, str) else b"\t"),
    # The name of Jinja's lipsum: words of a few characters, in paragraphs of so many.
    "generate_lorem_ipsum": lambda value, first: 800,
    "indent": lambda value, first: len(str(value).splitlines()) + 1,
    "join": lambda value, first: len(value) if isinstance(value, Sized) else 0,
    "replace": lambda value, first: value.count(first) if isinstance(value, bytes) else str(value).count(str(first)),
    "tojson": lambda value, first: weight(value) // ITEM_SIZE,
    "translate": lambda value, first: len(value),
}
_GROWING = frozenset({"add", "append", "extend", "fromkeys", "insert", "setdefault", "update"})
_RUNS = re.compile(r"\s+|\S+")


def check_call(budget: Budget, name: str, value: Any, args: Iterable[object], kwargs: Mapping[str, object]) -> None:
    """Ask for the most that a filter, or a method of ``value``, could make with these arguments."""
    given = (*args, *kwargs.values())
    if name in _GROWING:
        budget.spend(budget.length(given))
    elif name in _PARTS:
        size = budget.length(value)
        inserted = sum(abs(part) if isinstance(part, int) else budget.length(part) for part in given if part)
        parts = _PARTS[name](value, kwargs.get("old", given[0] if given else "")) if inserted else 0
        budget.make(size + parts * inserted)
    elif name in _SPECIAL:
        _SPECIAL[name](budget, value, *args, **kwargs)
    else:
        budget.tick()


def _format(budget: Budget, value: object, *args: object, **kwargs: object) -> None:
    _check_printf(budget, str(value), kwargs or args)


def _strip_tags(budget: Budget, value: object) -> None:
    size = budget.length(value)
    # The whole text is copied for each comment.
    budget.spend(size + str(value).count("<!--") * size // 2000)


def _sum(budget: Budget, value: object, *_args: object, **_kwargs: object) -> None:
    size = budget.length(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, (list, tuple, dict)) for item in value):
        # Adding lists copies what is there for each of them.
        budget.spend(len(value) * size // 128)


def _word_wrap(
    budget: Budget,
    value: object,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    *_args: object,
    **_kwargs: object,
) -> None:
    text, width = str(value) if budget.length(value) else "", max(width, 1)
    longest = max(map(len, _RUNS.findall(text)), default=0)
    # The rest of a long run is copied for each line.
    budget.spend(longest * longest // width // 400)
    budget.make(len(text) + (len(text) // width + sum(map(str.isspace, text))) * len(wrapstring or "\n"))


_SPECIAL: dict[str, Callable[..., None]] = {
    "format": _format,
    "striptags": _strip_tags,
    "sum": _sum,
    "wordwrap": _word_wrap,
}

# Other filters make no more than they are given, or are lazy: what comes out of them is counted where it is used.
LIMITED_FILTERS = frozenset({*_PARTS, *_SPECIAL})
