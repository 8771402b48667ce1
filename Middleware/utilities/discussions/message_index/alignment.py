"""Which stored rows are the messages of a request, and where new ones go. Pure.

Keys are compared as they are stored. A *unit* is a stored message: one row, or the rows of a long message.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from Middleware.utilities.conversations.path import MOST_PLACES, longest_in_order
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE, ON_PATH, PART, PROVISIONAL

# What lies between two messages, so that the parts of a long one fit.
_LEAST_STEP = 0.1

Keys = tuple[bytes, ...]
"""The keys by which a message may be known: one or two."""


class StoredRow(NamedTuple):
    """A row as far as it is compared."""

    id: int
    place: float
    key: bytes
    key2: bytes | None
    role: str
    speaker: object
    said: int | None
    said_from: int
    state: int


@dataclass(frozen=True)
class Unit:
    """The rows of one message, in order."""

    rows: tuple[StoredRow, ...]

    @property
    def place(self) -> float:
        return self.rows[0].place

    @property
    def on_path(self) -> bool:
        """Whether it was in the conversation when it was last seen; what the user has deleted for good is not moved."""
        return self.rows[0].state != ELSEWHERE

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(row.id for row in self.rows)

    def is_one_of(self, keys: Keys) -> bool:
        return self.rows[0].key in keys or (self.rows[0].key2 is not None and self.rows[0].key2 in keys)


def units_of(rows: Iterable[StoredRow]) -> list[Unit]:
    """Return the rows, in the order of their places, as messages."""
    groups: list[list[StoredRow]] = []
    for row in rows:
        before = groups[-1][-1] if groups else None
        if before is not None and before.key == row.key and 0 < row.place - before.place < 2 * PART:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [Unit(tuple(group)) for group in groups]


def align(history: Sequence[Keys], units: Sequence[Unit]) -> list[Unit | None]:
    """Return for each message the unit that it is, None for a new one; units keep their order.

    What was on the path last is compared first, step by step from both ends; between them, as many messages as possible
    are found again, whatever their state.
    """
    path = [index for index, unit in enumerate(units) if unit.on_path]
    found: list[int | None] = [None] * len(history)
    same = 0
    while same < min(len(history), len(path)) and units[path[same]].is_one_of(history[same]):
        found[same] = path[same]
        same += 1
    end, last = len(history), len(path)
    while end > same and last > same and units[path[last - 1]].is_one_of(history[end - 1]):
        end, last = end - 1, last - 1
        found[end] = path[last]
    first = path[same - 1] + 1 if same else 0
    behind = path[last] if last < len(path) else len(units)
    for index, place in _longest(history[same:end], units, first, behind).items():
        found[same + index] = place
    return [None if index is None else units[index] for index in found]


def _longest(history: Sequence[Keys], units: Sequence[Unit], first: int, behind: int) -> dict[int, int]:
    """Return for messages the units from ``first`` to ``behind`` that they are: a longest choice in order of both."""
    places = defaultdict[bytes | None, list[int]](list)
    for index in range(first, behind):
        row = units[index].rows[0]
        for key in {row.key, row.key2}:
            places[key].append(index)
    choices = []
    for index, keys in enumerate(history):
        there = sorted({place for key in keys for place in places.get(key, ())})
        # Of a message that comes again and again, those near its place in the history.
        near = bisect.bisect_left(there, first + index)
        choices.append(there[max(0, near - MOST_PLACES) : near + MOST_PLACES])
    return longest_in_order(choices)


class Gap(NamedTuple):
    """New messages between two known ones, and the units that stood there and are no longer sent."""

    new: tuple[int, ...]
    gone: tuple[Unit, ...]
    before: Unit | None
    behind: Unit | None

    @property
    def replaced(self) -> dict[int, Unit]:
        """For each new message the unit in whose place it stands: an edit.

        There are as many of both, or the last one was edited before the next was sent.
        """
        is_last_edited = self.behind is None and len(self.gone) == 1
        same = len(self.new) == len(self.gone) or is_last_edited
        return dict(zip(self.new, self.gone, strict=False)) if same else {}

    def places(self, front: float | None) -> list[float] | None:
        """Return the places of the new messages, or None if there is no room for them: number the rows again.

        ``front``: the place of the row in front of the first one that is compared; None without one.
        """
        count = len(self.new)
        before = self.before.place if self.before is not None else front
        if before is None:
            before = self.behind.place - count - 1 if self.behind is not None else -1.0
        behind = self.behind.place if self.behind is not None else before + count + 1
        step = (behind - before) / (count + 1)
        return None if count and step < _LEAST_STEP else [before + step * (1 + index) for index in range(count)]


def gaps_of(found: Sequence[Unit | None], stretch: Sequence[Unit]) -> list[Gap]:
    """Return what is new and what is gone, in order. ``stretch``: the units that the messages were compared with."""
    gaps: list[Gap] = []
    new: list[int] = []
    before: Unit | None = None
    place = {id(unit): index for index, unit in enumerate(stretch)}
    position = 0
    for index, unit in enumerate((*found, None)):
        if unit is None and index < len(found):
            new.append(index)
            continue
        end = len(stretch) if unit is None else place[id(unit)]
        gone = tuple(one for one in stretch[position:end] if one.rows[0].state in (ON_PATH, PROVISIONAL))
        if new or gone:
            gaps.append(Gap(tuple(new), gone, before, unit))
        new, before, position = [], unit, end + 1
    return gaps
