"""Long lists of messages that repeat others: a client sends the whole conversation in each turn, with a message more.

To look at each message of such a list takes as long as the rest of a request. To compare it with the list of the turn
before is one operation on whole lists, which Python does without a step of its own for each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, cast

V = TypeVar("V")

# Shorter lists are looked at message by message.
LEAST_MESSAGES = 32
# Of so many lists, one is that of the turn before; a run with one call leaves two.
MOST_LISTS = 8
# All messages of the lists together, in characters: they may be in no other part of the memory any more.
MOST_CHARACTERS = 8 * 1024 * 1024
# So many messages at both ends are compared by themselves: a system prompt with the time of day, texts near the end.
ENDS = 4
# Lists that differ in more places have nothing to do with each other.
MOST_DIFFERENCES = 64


class CommonRange(NamedTuple):
    """Messages of a list that are in another one, too.

    Attributes:
        start, end: their positions in the list.
        position: that of the first of them in the other one.
    """

    start: int
    end: int
    position: int


@dataclass(frozen=True)
class KnownList(Generic[V]):
    """A list that was seen, and what is known of it.

    Attributes:
        characters: an estimate of what it takes in memory.
    """

    items: Sequence[object]
    value: V
    characters: int = 0


class KnownLists(Generic[V]):
    """The long lists that were seen last, which must not be changed.

    Of two threads that add a list at the same time, one may add nothing.
    """

    def __init__(self) -> None:
        self._lists: list[KnownList[V]] = []

    def find(self, items: Sequence[object]) -> tuple[KnownList[V], list[CommonRange]] | None:
        """Return the newest list that has most of these items, and which; None without one."""
        for known in self._lists:
            try:
                shift = _shift(items, known.items)
                if shift is not None:
                    return known, _common_ranges(items, known.items, shift)
            # Messages that are nested too deeply to be compared are looked at one by one.
            except RecursionError:
                return None
        return None

    def add(self, known: KnownList[V], instead: KnownList[V] | None = None) -> None:
        """Remember a list, in place of the one that it goes on from."""
        lists = [known, *(other for other in self._lists if other is not instead)][:MOST_LISTS]
        while len(lists) > 1 and sum(other.characters for other in lists) > MOST_CHARACTERS:
            lists.pop()
        self._lists = lists

    def clear(self) -> None:
        self._lists = []


class SharedLists:
    """The objects of long lists, for the runs that repeat them: of a conversation, each message is kept once.

    What a run leaves in memory is memory that the next request cannot use again while the processor still has it in its
    caches, and more for the garbage collector to look at. Thread-safe without a lock: of two runs that end at the same
    time, one may find nothing.
    """

    def __init__(self) -> None:
        self._known = KnownLists[None]()

    def shared(self, items: Sequence[V], characters: int) -> list[V]:
        """Return the list with the objects of an earlier one where they are equal. They must not be changed any more.

        ``characters``: an estimate of what the list takes in memory.
        """
        result = list(items)
        known, ranges = self._known.find(items) or (None, [])
        for start, end, position in ranges:
            assert known is not None
            # Equal to those that they replace, so of the same kind.
            result[start:end] = cast("Sequence[V]", known.items[position : position + end - start])
        self._known.add(KnownList(result, None, characters), known)
        return result


def _shift(items: Sequence[object], known: Sequence[object]) -> int | None:
    """Return how much further back the same items are in ``known``; None if the lists have nothing in common."""
    # Most lists go on at the end, or have one more or less at the beginning.
    for shift in dict.fromkeys((0, len(known) - len(items))):
        first, last = max(0, -shift), min(len(items), len(known) - shift)
        samples = [first + (last - first) * part // 4 for part in (1, 2, 3)] if last > first else []
        if sum(items[sample] == known[sample + shift] for sample in samples) >= 2:
            return shift
    return None


def _common_ranges(items: Sequence[object], known: Sequence[object], shift: int) -> list[CommonRange]:
    """Return where the items are equal, in their order."""
    found: list[CommonRange] = []
    differences = 0
    first, last = max(0, -shift), min(len(items), len(known) - shift)
    # Halves are compared as long as they differ; the first ones are on top. Differences are mostly at the ends.
    left = (
        [
            (max(first, last - ENDS), last),
            (min(last, first + ENDS), max(first, last - ENDS)),
            (first, min(last, first + ENDS)),
        ]
        if last - first > 2 * ENDS
        else [(first, last)]
    )
    while left and differences < MOST_DIFFERENCES:
        start, end = left.pop()
        if items[start:end] == known[start + shift : end + shift]:
            if found and found[-1].end == start:
                found[-1] = found[-1]._replace(end=end)
            elif end > start:
                found.append(CommonRange(start, end, start + shift))
        elif end - start > 1:
            middle = (start + end) // 2
            left += [(middle, end), (start, middle)]
        else:
            differences += 1
    return found
