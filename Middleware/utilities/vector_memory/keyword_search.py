"""Which memories fit a list of phrases best, in bounded time.

Every row that holds a phrase has to be scored before the best are known. That is exact and quick for all ordinary
searches: some 40 ms for 50 phrases in 100,000 memories. Dozens of phrases that nearly every memory holds would take
seconds, though, and tell little about any of them. So a search that used up ``CPU_SECONDS`` is given up, and:

1. The rarest phrases, as many as match ``RARE_MATCHES`` rows together, are searched for alone.
2. What is left of the limit is filled with the best, of the ``NEWEST`` newest memories that match, by the
   ``MOST_COMMON`` rarest of the other phrases: ``bm25`` counts all matches of each phrase before it ranks a single row.
"""
from __future__ import annotations

import itertools
import logging
import math
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.vector_memory.connection import RECENCY_BONUS, recency_score

logger = logging.getLogger(__name__)

CPU_SECONDS = 0.4  # of this thread, so that a busy machine finds the same as an idle one
WALL_SECONDS = 2.0
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
        return _ranked(database, search, search.phrases)
    except sqlite3.OperationalError as error:
        if not _is_interrupted(error, scope):
            raise
        logger.info("The phrases of a memory search are too common to rank all memories that hold them")
        database.set_progress_handler(_Clock(scope, limited=False), _STEPS)
        return _without_common_phrases(database, search, scope)
    finally:
        database.set_progress_handler(None, 0)


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
    matches = f"SELECT rowid AS id, {score} AS score FROM memories_fts WHERE memories_fts MATCH ?"
    values = [*weights, _any_of(phrases)]
    if newest is not None:  # rowid, not id: only that makes the index be read from its end
        matches, values = f"SELECT * FROM ({matches} ORDER BY rowid DESC LIMIT ?)", [*values, newest]
    ranked = f"{matches} ORDER BY score LIMIT ?"
    if search.use_recency:
        return _by_recency(database, ranked, [*values, -1], search.limit)
    return [row[0] for row in database.execute(ranked, [*values, search.limit])]


def _any_of(phrases: Sequence[str]) -> str:
    return " OR ".join(phrases)


def _by_recency(database: sqlite3.Connection, ranked: str, values: list[float | str], limit: int) -> list[int]:
    """The best by rank times ``recency_score``.

    Rows come by rank alone; reading ends where even a memory of this moment could not be among the best any more.
    """
    now = datetime.now(UTC)
    rows = database.cursor()
    rows.row_factory = None  # there may be very many
    rows.execute(f"SELECT f.id, f.score, m.date_added FROM ({ranked}) f CROSS JOIN memories m ON m.id = f.id", values)
    best: list[tuple[float, int]] = []
    bar = math.inf
    for number, score, date in rows:
        if score * (1.0 + RECENCY_BONUS if score < 0 else 1.0) > bar:
            break
        score *= recency_score(date, now)
        if score < bar:
            best.append((score, number))
            if len(best) >= 2 * limit:
                best = sorted(best, key=_rank)[:limit]
                bar = best[-1][0]
    rows.close()
    return [number for _, number in sorted(best, key=_rank)[:limit]]


def _rank(scored: tuple[float, int]) -> float:
    return scored[0]


def _without_common_phrases(database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None
                            ) -> list[int]:
    try:
        rare, others = _rare_phrases(database, search.phrases)
        found = _ranked(database, search, rare) if rare else []
        if len(found) < search.limit:
            known = set(found)
            newest = _ranked(database, search, others[:MOST_COMMON], NEWEST) if others else []
            found += [number for number in newest if number not in known]
    except sqlite3.OperationalError as error:
        _is_interrupted(error, scope)
        raise
    return found[:search.limit]


def _rare_phrases(database: sqlite3.Connection, phrases: Sequence[str]) -> tuple[list[str], list[str]]:
    """The phrases with the fewest matches, as many as stay within ``RARE_MATCHES`` together; the others.

    Both rarest first; among phrases too common to count, the longest. Phrases that nothing holds are left out.
    """
    counted = "SELECT count(*) FROM (SELECT 1 FROM memories_fts WHERE memories_fts MATCH ? LIMIT ?)"
    matches = [(database.execute(counted, (phrase, RARE_MATCHES + 1)).fetchone()[0], phrase) for phrase in phrases]
    matches = sorted((match for match in matches if match[0]), key=lambda match: (match[0], -len(match[1])))
    sums = itertools.accumulate(count for count, _ in matches)
    few = sum(1 for total in sums if total <= RARE_MATCHES)
    ordered = [phrase for _, phrase in matches]
    return ordered[:few], ordered[few:]
