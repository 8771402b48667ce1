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
from collections.abc import Iterator, Mapping, Sized
from typing import Any

RENDER_SECONDS = 2.0
MAX_OUTPUT_CHARACTERS = 1_000_000
MAX_WORK = 100 * MAX_OUTPUT_CHARACTERS  # all texts that one rendering makes on its way, together
MAX_INTEGER_BITS = 100_000

# Such a number as a width or precision would only fill the memory.
LONG_NUMBER = re.compile(r"\d{7}")
ITEM_SIZE = 8  # what an item of a container counts besides its own text

CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_COMPOSED: tuple[type, ...] = (dict, *CONTAINERS, Mapping)
_GIVEN_WORK = 10
_PARENTHESES = re.compile("[()]")
_PRINTF_FLAGS = re.compile(r"[-#0 +\d.*]*")


class RenderLimitError(Exception):
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

    def weigh(self, value: object) -> int:
        """``weight``, with an error where that is more than a text may have."""
        return weight(value, self.text)

    def length(self, value: object) -> int:
        """The length of ``value`` as text."""
        return len(value) if isinstance(value, str) else self.weigh(value)


class _State(threading.local):
    budget = Budget()


_state = _State()


def current_budget() -> Budget:
    """The budget of the rendering on this thread."""
    return _state.budget


@contextlib.contextmanager
def limited(given: int = 0) -> Iterator[Budget]:
    """Everything rendered in this block, on this thread, shares one budget."""
    before, _state.budget = _state.budget, Budget(given)
    try:
        yield _state.budget
    finally:
        _state.budget = before


# --- sizes ---

def weight(value: object, limit: float = float("inf")) -> int:
    """About the length of ``str(value)``; parts that occur several times count as often as they would be written.

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


def replaced_length(text: Any, old: object, new: Any) -> int:
    """The length of ``text.replace(old, new)``, or more."""
    return int(len(text) + text.count(old) * len(new))


def printf_length(budget: Budget, template: str, values: Any) -> int:
    """An upper bound for the length of ``template % values``; ``values`` is a tuple or a mapping."""
    fields = list(_printf_fields(template))
    if any(LONG_NUMBER.search(field) for field in fields):
        raise RenderLimitError("it asks for too large a width")
    widths = sum(int(number) for field in fields for number in re.findall(r"\d+", field))
    if any("*" in field for field in fields):
        widths += sum(abs(value) for value in values if isinstance(value, int))
    return len(template) + widths + len(fields) * budget.weigh(values)


def _printf_fields(template: str) -> Iterator[str]:
    """Flags, width and precision of each field. The key of a field may hold parentheses, in pairs."""
    at = template.find("%") + 1
    while at:
        if template.startswith("(", at):
            at = _end_of_key(template, at)
        if found := _PRINTF_FLAGS.match(template, at):
            yield found.group()
            at = template.find("%", found.end()) + 1


def _end_of_key(template: str, start: int) -> int:
    """The place behind the parenthesis that closes the one at ``start``, or the end of the text."""
    depth = 0
    for place in _PARENTHESES.finditer(template, start):
        depth += 1 if place.group() == "(" else -1
        if depth == 0:
            return place.end()
    return len(template)


# --- operators ---

def check_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """Ask for what ``left operator right`` would make."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if operator in ("*", "**"):
            _check_numbers(operator, left, right)
    elif operator == "%":
        if isinstance(left, (str, bytes)):
            template = left if isinstance(left, str) else left.decode("latin-1")
            budget.make(printf_length(budget, template, right if isinstance(right, (tuple, Mapping)) else (right,)))
    elif operator == "*":
        sequence, count = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, Sized) and isinstance(count, int) and count > 0:
            budget.make(count * budget.length(sequence))
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        budget.make(_memory(left) + _memory(right))


def _check_numbers(operator: str, left: float, right: float) -> None:
    if not (isinstance(left, int) and isinstance(right, int)):
        return  # floats overflow by themselves
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    if bits > MAX_INTEGER_BITS:
        raise RenderLimitError("it calculates with too large a number")


def _memory(value: Sized) -> int:
    return len(value) if isinstance(value, (str, bytes)) else ITEM_SIZE * len(value)


# --- methods ---

_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "to_bytes"})
_GROWING = frozenset({"add", "append", "extend", "fromkeys", "insert", "setdefault", "update"})


def check_method(budget: Budget, owner: object, name: str, args: tuple[object, ...],
                 kwargs: Mapping[str, object]) -> None:
    """Ask for what ``owner.name(*args, **kwargs)`` would make, for methods of text, numbers and containers."""
    if name in _PADDING and isinstance(owner, (str, bytes, int)):
        budget.make(max((value for value in (*args, *kwargs.values()) if isinstance(value, int)), default=0))
    elif isinstance(owner, (str, bytes)):
        budget.make(_text_method_size(budget, owner, name, args, kwargs))
    elif name in _GROWING:
        times = len(args[0]) if name == "fromkeys" and isinstance(args[0], Sized) else 1
        budget.spend(times * budget.weigh([*args, *kwargs.values()]))


def _text_method_size(budget: Budget, owner: Any, name: str, args: tuple[object, ...],
                      kwargs: Mapping[str, object]) -> int:
    first = args[0] if args else None
    if name == "replace" and len(args) > 1:
        return replaced_length(owner, first, args[1])
    if name == "join" and isinstance(first, Sized):
        return budget.weigh(first) + len(owner) * len(first)
    if name == "expandtabs":
        size = next((value for value in (*args, *kwargs.values()) if isinstance(value, int)), 8)
        return int(len(owner) + owner.count("\t" if isinstance(owner, str) else b"\t") * max(size, 0))
    if name == "translate" and isinstance(first, Mapping):
        return len(owner) * max((len(value) for value in first.values() if isinstance(value, str)), default=1)
    return 0
