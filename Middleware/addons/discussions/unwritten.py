"""Of how many messages no searchable memory was written, as the database of a discussion shows."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from Middleware.utilities.discussions.vector_memory import SearchableMemories
from Middleware.utilities.discussions.vector_memory.searchable import MOST_ROWS

# A shorter stretch without a fact is usual.
LEAST_MESSAGES = 4
# So many stretches one after the other are hardly small talk.
MANY_IN_A_ROW = 3


@dataclass(frozen=True)
class Unwritten:
    """Messages that were looked at, and of which nothing was written down.

    Attributes:
        messages: how many.
        looked_at: of how many.
        last: when that happened last, as stored.
        in_a_row: how many of the newest stretches had no fact, one after the other.
    """

    messages: int
    looked_at: int
    last: str
    in_a_row: int

    @property
    def is_conspicuous(self) -> bool:
        return self.in_a_row >= MANY_IN_A_ROW

    def __str__(self) -> str:
        return f"no facts of {self.messages} of {self.looked_at} messages, last on {self.last[:16].replace('T', ' ')}"


def unwritten(memories: SearchableMemories) -> Unwritten | None:
    """Return the messages without a memory; None without any. Raises what reading the memories raises.

    Where memories follow edits, only chunks of which it is stored what they were made of count.
    """
    empty = looked_at = in_a_row = 0
    last = ""
    for count, has_memory, time in _of_chunks(memories) if memories.has_chunks else _of_log(memories):
        looked_at += count
        if count >= LEAST_MESSAGES:
            empty, last = (empty, last) if has_memory else (empty + count, time)
            in_a_row = 0 if has_memory else in_a_row + 1
    return Unwritten(empty, looked_at, last, in_a_row) if empty else None


def _of_chunks(memories: SearchableMemories) -> Iterator[tuple[int, bool, str]]:
    """Yield of each chunk how many messages it has, whether a memory was made of it, and when it was logged."""
    chunks = memories.chunks()
    facts = memories.facts_of(piece.id for piece in chunks)
    # They are the newest entries of the log, unless following was switched off since; then the time is a later one.
    times = [time for _, time in memories.processed_messages()[-len(chunks) :]]
    for piece, time in zip(chunks, times, strict=False):
        yield len(piece.sources), bool(facts[piece.id]), time


def _of_log(memories: SearchableMemories) -> Iterator[tuple[int, bool, str]]:
    """Yield the same of the stretches in the log.

    A stretch has a memory if one was added after the stretch before it was logged. The messages of a stretch are
    those between the logged positions.
    """
    log = memories.processed_messages()
    places = [logged.place for logged in reversed(memories.logged_messages(MOST_ROWS))]
    dates = sorted(memories.dates())
    before, end = "", 0
    for (_, time), place in zip(log, places, strict=False):
        index = place.index if place is not None else None
        count = max(0, index + 1 - end) if index is not None else 0
        end = end if index is None else index + 1
        yield count, bisect.bisect_right(dates, time) > bisect.bisect_right(dates, before), time
        before = time
