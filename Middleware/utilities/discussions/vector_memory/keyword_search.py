"""Find the memories that fit a list of phrases best, in bounded time.

Every row that holds a phrase has to be scored before the best are known, and ``bm25`` counts all matches of every
phrase in one go that nothing can interrupt. That is exact and quick for all ordinary searches. Dozens of phrases that
nearly every memory holds would take seconds, though, and say little about any of them: ``bm25`` gives phrases of every
second memory next to no weight. So:

1. The phrases with no more than an equal share of ``MOST_MATCHES`` matches are ranked exactly; all of them where the
   memory is small enough.
2. What is left of the limit is filled with the best, of the ``NEWEST`` newest memories that match, by the
   ``MOST_COMMON`` longest of the other phrases, or fewer in a large memory.

A ranking that used up ``CPU_SECONDS`` all the same is given up for one within ``RARE_MATCHES``.

The constants were chosen with ``python benchmarks/memory_search.py``; the figures next to them are what it prints for
20,000 memories.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import re
import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.vector_memory.schema import RECENCY_BONUS, recency_score

logger = logging.getLogger(__name__)

# CPU time of this thread, so that a busy machine finds the same as an idle one. Without any limit 60 phrases that every
# memory holds take 1.1 s; 50 ordinary ones take 17 ms.
CPU_SECONDS = 0.4

# For what CPU time does not show, such as a slow disk.
WALL_SECONDS = 2.0

# 60 phrases in every memory take 27 ms with 4,000 matches, 400 ms with 500,000, 1.1 s with all of them.
MOST_MATCHES = 500_000
RARE_MATCHES = 4_000

# Phrases that say next to nothing; 25 of them take 40 ms more than 10.
MOST_COMMON = 10

# Time does not decide this one (100 to 10,000 cost the same): it is enough to fill any limit.
NEWEST = 1_000

# Steps of SQLite's machine between two looks at the clock: about a millisecond.
_STEPS = 10_000


# As many as a search for the names in the results of another search has (``memory_search.MOST_NAMES``).
MOST_TERMS = 60
# Characters. A longer term is a pasted text, which no memory holds literally.
LONGEST_TERM = 1000
_BULLET = re.compile(r"^(?:[-*+•–—]\s+|\(?\d{1,3}[.)]\s+)+")


@dataclass(frozen=True)
class KeywordSearch:
    """What to look for.

    Attributes:
        phrases: literal FTS5 phrases, of which a row needs one.
        weights: of the five index columns; None: all alike.
        use_recency: the rank is multiplied by ``recency_score(date_added)``.
        left_out: ids of rows that are not found. They count in how common a phrase is.
    """

    phrases: Sequence[str]
    limit: int = 15
    weights: Sequence[float] | None = None
    use_recency: bool = False
    left_out: Collection[int] = ()


def split_query(query: str) -> list[str]:
    """Return the terms of a query, separated by ``;``, or by line breaks where it does not occur; at most 60.

    Lines may be the items of a list; their bullets and numbers are dropped.
    """
    parts = query.split(";")
    if len(parts) == 1:
        lines = [line.strip() for line in query.splitlines()]
        parts = [_BULLET.sub("", line) for line in lines] if len(lines) > 1 else lines
    terms = [part.strip() for part in parts if part.strip()]
    if len(terms) > MOST_TERMS:
        logger.warning("A memory search has %d terms; only the first %d are used", len(terms), MOST_TERMS)
    return terms[:MOST_TERMS]


def without_bullets(text: str) -> str:
    """Return ``text`` without the bullets and numbers of its lines, if it has several."""
    lines = text.splitlines()
    return "\n".join(_BULLET.sub("", line.strip()) for line in lines) if len(lines) > 1 else text


def phrases_of(query: str) -> list[str]:
    """Return the distinct terms as literal FTS5 phrases; nothing in them can act as an operator."""
    phrases = (_phrase(term) for term in split_query(query))
    return list(dict.fromkeys(phrase for phrase in phrases if phrase))


def _phrase(term: str) -> str:
    text = term[:LONGEST_TERM].replace("-", " ").replace("\0", " ").encode("utf-8", "replace").decode().strip()
    return '"{}"'.format(text.replace('"', '""')) if text else ""


def usable_weights(weights: object) -> list[float] | None:
    """Return five real numbers, in the order of the index columns; None, with a warning, for anything else."""
    if weights is None:
        return None
    # NaN and numbers beyond a float would make every comparison false or fail.
    with contextlib.suppress(OverflowError):
        if (
            isinstance(weights, list | tuple)
            and len(weights) == 5
            and all(type(weight) in (int, float) and math.isfinite(weight) for weight in weights)
        ):
            return [float(weight) for weight in weights]
    logger.warning("The weights of a memory search are not five numbers; they are ignored")
    return None


class _Clock:
    """A progress handler that stops the statement when its time is over or the request is cancelled."""

    def __init__(self, scope: CancelScope | None, limited: bool = True) -> None:
        self._scope, self._limited = scope, limited
        self._cpu, self._wall = time.thread_time() + CPU_SECONDS, time.monotonic() + WALL_SECONDS

    def __call__(self) -> int:
        if self._scope is not None and self._scope.cancelled:
            return 1
        return int(self._limited and (time.thread_time() > self._cpu or time.monotonic() > self._wall))


def search_ids(database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None = None) -> list[int]:
    """Return the ids of the best rows, best first. Raises sqlite3.Error and EarlyTerminationException."""
    if not search.phrases or search.limit < 1:
        return []
    if search.left_out:
        _note_left_out(database, search.left_out)
    try:
        database.set_progress_handler(_Clock(scope), _STEPS)
        return _best(database, search, MOST_MATCHES)
    except sqlite3.OperationalError as error:
        if not _is_interrupted(error, scope):
            raise
        database.set_progress_handler(_Clock(scope, limited=False), _STEPS)
        return _best_without_time_limit(database, search, scope)
    finally:
        database.set_progress_handler(None, 0)


def _note_left_out(database: sqlite3.Connection, numbers: Collection[int]) -> None:
    database.execute("CREATE TEMP TABLE IF NOT EXISTS left_out (id INTEGER PRIMARY KEY)")
    database.execute("DELETE FROM left_out")
    database.executemany("INSERT INTO left_out VALUES (?)", [(number,) for number in numbers])


def search_present_ids(
    database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None = None
) -> list[int]:
    """Return ``search_ids`` without rows whose memory was deleted by hand; other rows replace them."""
    found = search_ids(database, search, scope)
    present = _present(database, found)
    if len(present) == len(found):
        return found
    strays = database.execute("SELECT count(*) FROM memories_fts WHERE rowid NOT IN (SELECT id FROM memories)")
    more = replace(search, limit=search.limit + strays.fetchone()[0])
    return _present(database, search_ids(database, more, scope))[: search.limit]


def _present(database: sqlite3.Connection, numbers: Sequence[int]) -> list[int]:
    return [
        number for number in numbers if database.execute("SELECT 1 FROM memories WHERE id = ?", (number,)).fetchone()
    ]


def _best_without_time_limit(
    database: sqlite3.Connection, search: KeywordSearch, scope: CancelScope | None
) -> list[int]:
    try:
        return _best(database, search, RARE_MATCHES)
    except sqlite3.OperationalError as error:
        _is_interrupted(error, scope)
        raise


def _best(database: sqlite3.Connection, search: KeywordSearch, budget: int) -> list[int]:
    """Return the best by the phrases within a budget of matches, then the best of the newest by some of the others."""
    rare, common = share_out(database, search.phrases, budget)
    found = _ranked(database, search, rare) if rare else []
    if common and len(found) < search.limit:
        known = set(found)
        some = max(1, min(MOST_COMMON, MOST_MATCHES // most_rows(database)))
        newest = _ranked(database, search, common[:some], NEWEST)
        found += [number for number in newest if number not in known]
    if common:
        logger.info("%d phrases of a memory search are too common to rank all memories that hold them", len(common))
    return found[: search.limit]


def _is_interrupted(error: sqlite3.OperationalError, scope: CancelScope | None) -> bool:
    """Return whether the clock stopped the search. Raises EarlyTerminationException if the request was cancelled."""
    if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
        return False
    if scope is not None and scope.cancelled:
        raise EarlyTerminationException("The request was cancelled during a memory search", CANCELLED)
    return True


def _ranked(
    database: sqlite3.Connection, search: KeywordSearch, phrases: Sequence[str], newest: int | None = None
) -> list[int]:
    """Return the best of all rows that match, or of the ``newest`` ones."""
    weights: list[float | str] = list(search.weights or ())
    score = f"bm25(memories_fts{', ?' * len(weights)})"
    matches = f"SELECT rowid, {score} AS score FROM memories_fts WHERE memories_fts MATCH ?"
    if search.left_out:
        matches += " AND rowid NOT IN (SELECT id FROM left_out)"
    values = [*weights, " OR ".join(phrases)]
    if newest is not None:
        matches, values = f"SELECT rowid, score FROM ({matches} ORDER BY rowid DESC LIMIT ?)", [*values, newest]
    if search.use_recency:
        return _best_by_recency(database, matches, values, search.limit)
    return [row[0] for row in database.execute(f"{matches} ORDER BY score LIMIT ?", [*values, search.limit])]


def _best_by_recency(
    database: sqlite3.Connection, matches: str, values: Sequence[float | str], limit: int
) -> list[int]:
    """Return the rows with the lowest product of score and ``recency_score``. Reads no more dates than needed."""
    rows = database.cursor()
    # There may be very many, and tuples are the fastest.
    rows.row_factory = None
    # Without the LIMIT, SQLite would drop the order.
    rows.execute(
        f"""SELECT m.id, f.score, m.date_added FROM ({matches} ORDER BY score LIMIT -1) f
                     CROSS JOIN memories m ON m.id = f.rowid""",
        values,
    )
    # One moment for all rows: rows of the same score and date must stay equal while the clock goes on.
    now = datetime.now(UTC)
    # A heap of negated products and ids, so that the worst of the best is its first entry.
    best: list[tuple[float, int]] = []
    for number, score, date in rows:
        # Even a memory of this moment would not be among the best any more.
        if len(best) == limit and score * (1 + RECENCY_BONUS if score < 0 else 1) > -best[0][0]:
            break
        change = heapq.heappush if len(best) < limit else heapq.heappushpop
        change(best, (-score * recency_score(date, now), -number))
    return [-number for _, number in sorted(best, reverse=True)]


# --- which phrases are rare enough to be ranked exactly ---

_COUNT = "SELECT count(*) FROM (SELECT rowid FROM memories_fts WHERE memories_fts MATCH ? LIMIT ?)"


def share_out(database: sqlite3.Connection, phrases: Sequence[str], budget: int) -> tuple[list[str], list[str]]:
    """Return the phrases that can be ranked together within a budget of matches, and those that are too common.

    A phrase is rare if it has no more than an equal share of the matches. Those that nothing holds are left out of a
    large memory. The common ones come longest first, because those say most. Reads no more matches than the budget.
    Raises sqlite3.Error.
    """
    ordered = sorted(phrases, key=len)
    # Even if every memory held each of them: at once in all but large memories.
    if len(ordered) * most_rows(database) <= budget:
        return ordered, []
    share = budget // len(ordered)
    matches = {phrase: database.execute(_COUNT, (phrase, share + 1)).fetchone()[0] for phrase in ordered}
    common = [phrase for phrase in ordered if matches[phrase] > share]
    return [phrase for phrase in ordered if 0 < matches[phrase] <= share], sorted(common, key=len, reverse=True)


def most_rows(database: sqlite3.Connection) -> int:
    """Return how many memories there can be at most: their ids start at 1."""
    newest: int | None = database.execute("SELECT max(id) FROM memories").fetchone()[0]
    return newest or 0
