"""Which memories fit a list of phrases best, in bounded time.

Every row that holds a phrase has to be scored before the best are known. That is exact and quick for all ordinary
searches: some 45 ms for 50 phrases in 100,000 memories. Dozens of phrases that nearly every memory holds would take
seconds, though, and tell little about any of them: ``bm25`` gives phrases of every second memory next to no weight. So:

1. The rarest phrases, as many as match ``MOST_MATCHES`` rows together, are ranked exactly.
2. What is left of the limit is filled with the best, of the ``NEWEST`` newest memories that match, by the
   ``MOST_COMMON`` longest of the other phrases, or fewer in a large memory.

A ranking that used up ``CPU_SECONDS`` all the same is given up for one within ``RARE_MATCHES``.
"""
from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.conversations.vector_memory.phrase_budget import most_rows, share_out
from Middleware.utilities.conversations.vector_memory.recency_ranking import best_by_recency

logger = logging.getLogger(__name__)

CPU_SECONDS = 0.4  # of this thread, so that a busy machine finds the same as an idle one
WALL_SECONDS = 2.0
COUNT_SECONDS = 0.15  # of CPU, for counting matches; the words of a phrase may be common where the phrase is not
MOST_MATCHES = 500_000
RARE_MATCHES = 4_000
NEWEST = 1_000
MOST_COMMON = 10
_STEPS = 10_000  # of SQLite's machine between two looks at the clock: about a millisecond


@dataclass(frozen=True)
class KeywordSearch:
    """What to look for.

    Attributes:
        phrases: literal FTS5 phrases, of which a row needs one.
        weights: of the five index columns; None: all alike.
        use_recency: the rank is multiplied by ``recency_score(date_added)``.
    """

    phrases: Sequence[str]
    limit: int = 15
    weights: Sequence[float] | None = None
    use_recency: bool = False


class _Clock:
    """Stops the running statement when its time is over or the request is cancelled."""

    def __init__(self, scope: CancelScope | None, limited: bool = True) -> None:
        self._scope, self._limited = scope, limited
        self._cpu, self._wall = time.thread_time() + CPU_SECONDS, time.monotonic() + WALL_SECONDS

    def __call__(self) -> int:
        if self._scope is not None and self._scope.cancelled:
            return 1
        return int(self._limited and (time.thread_time() > self._cpu or time.monotonic() > self._wall))


def search_ids(database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None = None) -> list[int]:
    """Ids of the best rows of ``memories_fts``, best first. Raises sqlite3.Error, EarlyTerminationException."""
    if not search.phrases or search.limit < 1:
        return []
    try:
        database.set_progress_handler(_Clock(scope), _STEPS)
        return _best(database, search, MOST_MATCHES)
    except sqlite3.OperationalError as error:
        if not _is_interrupted(error, scope):
            raise
        database.set_progress_handler(_Clock(scope, limited=False), _STEPS)
        return _unhurried(database, search, scope)
    finally:
        database.set_progress_handler(None, 0)


def search_present_ids(database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None = None
                       ) -> list[int]:
    """``search_ids`` without rows whose memory somebody deleted: they take no places of others in the result."""
    found = search_ids(database, search, scope)
    present = _present(database, found)
    if len(present) == len(found):
        return found
    strays = database.execute("SELECT count(*) FROM memories_fts WHERE rowid NOT IN (SELECT id FROM memories)")
    more = replace(search, limit=search.limit + strays.fetchone()[0])
    return _present(database, search_ids(database, more, scope))[:search.limit]


def _present(database: sqlite3.Connection, numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers
            if database.execute("SELECT 1 FROM memories WHERE id = ?", (number,)).fetchone()]


def _unhurried(database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None) -> list[int]:
    try:
        return _best(database, search, RARE_MATCHES)
    except sqlite3.OperationalError as error:
        _is_interrupted(error, scope)
        raise


def _best(database: sqlite3.Connection, search: KeywordSearch, budget: int) -> list[int]:
    """The best by the phrases within a budget of matches, then the best of the newest by some of the others."""
    deadline = time.thread_time() + COUNT_SECONDS
    phrases = share_out(database, search.phrases, budget, lambda: time.thread_time() > deadline)
    found = _ranked(database, search, phrases.rare) if phrases.rare else []
    if phrases.common and len(found) < search.limit:
        known = set(found)
        some = max(1, min(MOST_COMMON, MOST_MATCHES // most_rows(database)))
        newest = _ranked(database, search, phrases.common[:some], NEWEST)
        found += [number for number in newest if number not in known]
    if phrases.common:
        logger.info("%d phrases of a memory search are too common to rank all memories that hold them",
                    len(phrases.common))
    return found[:search.limit]


def _is_interrupted(error: sqlite3.OperationalError, scope: CancelScope | None) -> bool:
    """Whether the clock stopped the search. Raises EarlyTerminationException if the request was cancelled."""
    if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
        return False
    if scope is not None and scope.cancelled:
        raise EarlyTerminationException("The request was cancelled during a memory search", CANCELLED)
    return True


def _ranked(database: sqlite3.Connection, search: KeywordSearch, phrases: Sequence[str],
            newest: int | None = None) -> list[int]:
    """The best rows of all that match, or of that many of the newest of them."""
    weights: list[float | str] = list(search.weights or ())
    score = f"bm25(memories_fts{', ?' * len(weights)})"
    matches = f"SELECT rowid, {score} AS score FROM memories_fts WHERE memories_fts MATCH ?"
    values = [*weights, " OR ".join(phrases)]
    if newest is not None:
        matches, values = f"SELECT rowid, score FROM ({matches} ORDER BY rowid DESC LIMIT ?)", [*values, newest]
    if search.use_recency:
        return best_by_recency(database, matches, values, search.limit)
    return [row[0] for row in database.execute(f"{matches} ORDER BY score LIMIT ?", [*values, search.limit])]
