"""Of how many messages no searchable memory was written, as the database of a discussion shows."""

from __future__ import annotations

import bisect
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

    A stretch has a memory if one was added after the stretch before it was logged. The messages of a stretch are
    those between the logged positions.
    """
    log = memories.processed_messages()
    places = [logged.place for logged in reversed(memories.logged_messages(MOST_ROWS))]
    dates = sorted(memories.dates())
    empty = looked_at = in_a_row = 0
    last = before = ""
    end = 0
    for (_, time), place in zip(log, places, strict=False):
        index = place.index if place is not None else None
        count = max(0, index + 1 - end) if index is not None else 0
        end = end if index is None else index + 1
        looked_at += count
        has_memory = bisect.bisect_right(dates, time) > bisect.bisect_right(dates, before)
        before = time
        if count >= LEAST_MESSAGES:
            empty, last = (empty, last) if has_memory else (empty + count, time)
            in_a_row = 0 if has_memory else in_a_row + 1
    return Unwritten(empty, looked_at, last, in_a_row) if empty else None
