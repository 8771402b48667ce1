"""Which phrases of a search are rare enough to be ranked exactly, found out at bounded cost.

``bm25`` counts all matches of every phrase in one go that nothing can interrupt, and then scores every row that holds
one. So the matches are counted before, all phrases in turn and each only as far as its share of a budget reaches; what
the rare ones leave of it is shared among the others. No more matches than the budget, and one of each phrase, are read.
"""
from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_FIRST_SHARE = 1_000  # matches; most phrases of most searches have fewer
_GROWTH = 4
_LEAST_GROWTH = 1.5  # less is not worth another round
_COUNT = ("SELECT count(*), max(rowid) FROM "
          "(SELECT rowid FROM memories_fts WHERE memories_fts MATCH ? AND rowid > ? LIMIT ?)")


@dataclass(frozen=True)
class PhraseBudget:
    """Phrases that can be ranked together, without those that nothing holds, and the others.

    The common ones come longest first, because those tell most; those that took too long to count come last.
    """

    rare: list[str]
    common: list[str]


@dataclass
class _Phrase:
    """A phrase, how many matches were counted, the row of the last, and whether there may be more."""

    text: str
    matches: int = 0
    last: int = -1 << 63
    open: bool = True

    def count(self, database: sqlite3.Connection, share: int) -> None:
        """Go on counting, to one more than ``share``."""
        found, last = database.execute(_COUNT, (self.text, self.last, share + 1 - self.matches)).fetchone()
        self.matches += found
        self.last = last if found else self.last
        self.open = self.matches > share


def share_out(database: sqlite3.Connection, phrases: Sequence[str], budget: int, out_of_time: Callable[[], bool]
              ) -> PhraseBudget:
    """Share out a budget of matches among phrases. Raises sqlite3.Error.

    Args:
        out_of_time: asked after each count; phrases whose matches are not known by then are called common.
    """
    rows = most_rows(database)
    ordered = [_Phrase(phrase) for phrase in sorted(phrases, key=len)]
    share = 0
    while True:
        uncounted = [phrase for phrase in ordered if phrase.open]
        left = budget - sum(phrase.matches for phrase in ordered if not phrase.open)
        if len(uncounted) * rows <= left:  # at once in all but large memories
            return _divided(ordered, [])
        before, share = share, min(left // len(uncounted), max(_FIRST_SHARE, _GROWTH * share))
        if share < max(1.0, _LEAST_GROWTH * before) or out_of_time():
            return _divided(ordered, uncounted)
        for phrase in uncounted:
            phrase.count(database, share)
            if out_of_time():
                break


def _divided(phrases: Sequence[_Phrase], common: Sequence[_Phrase]) -> PhraseBudget:
    left_out = {phrase.text for phrase in common}
    rare = [phrase.text for phrase in phrases if phrase.text not in left_out and (phrase.open or phrase.matches)]
    ordered = sorted(common, key=lambda phrase: (not phrase.matches, -len(phrase.text)))
    return PhraseBudget(rare, [phrase.text for phrase in ordered])


def most_rows(database: sqlite3.Connection) -> int:
    """How many memories there can be at most: their ids start at 1."""
    newest: int | None = database.execute("SELECT max(id) FROM memories").fetchone()[0]
    return newest or 0
