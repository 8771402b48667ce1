"""The best rows by rank times recency, reading as few dates as possible."""
from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from Middleware.utilities.conversations.vector_memory.connection import RECENCY_BONUS, recency_score

FIRST_ROWS = 1_024  # by rank alone; in most searches the best are among them
_LONGEST_DAY = timedelta(days=2)  # from its first moment anywhere, counted as UTC, to its last


@dataclass
class _Best:
    """The rows with the lowest scores; ``bar`` is what a score must reach to be among them."""

    limit: int
    bar: float = math.inf
    scored: list[tuple[float, int]] = field(default_factory=list)

    def add(self, score: float, number: int) -> None:
        if score <= self.bar:
            self.scored.append((score, number))
            if len(self.scored) >= 2 * self.limit:
                self.scored = self._sorted()
                self.bar = self.scored[-1][0]

    def _sorted(self) -> list[tuple[float, int]]:
        return sorted(self.scored, key=_score)[:self.limit]

    @property
    def ids(self) -> list[int]:
        return [number for _, number in self._sorted()]


def _score(scored: tuple[float, int]) -> float:
    return scored[0]


class _Days(dict[str, float]):
    """The most that ``recency_score`` can give a date that begins with these ten characters."""

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self._now = now

    def __missing__(self, day: str) -> float:
        try:
            most = recency_score((datetime.fromisoformat(day) + _LONGEST_DAY).isoformat(), self._now)
        except (ValueError, OverflowError):
            most = 1.0 + RECENCY_BONUS
        self[day] = most
        return most


def best_by_recency(database: sqlite3.Connection, matches: str, values: Sequence[float | str], limit: int
                    ) -> list[int]:
    """Ids of the best rows by their score times ``recency_score(date_added)``, best first. Raises sqlite3.Error.

    Args:
        matches: statement that gives the columns ``rowid`` and ``score``; the lowest score is the best.
        values: of the statement's parameters.
    """
    now = datetime.now(UTC)
    count = max(FIRST_ROWS, 8 * limit)
    best = _Best(limit)
    first = _dated(database, f"{matches} ORDER BY score LIMIT ?", [*values, count])
    rows = 0
    for number, score, date in first:
        rows += 1
        if score * (1.0 + RECENCY_BONUS if score < 0 else 1.0) > best.bar:
            return best.ids  # even a memory of this moment could not be among them any more
        best.add(score * recency_score(date, now), number)
    if rows == count:
        newest_first = f"{matches} ORDER BY rowid DESC LIMIT -1"  # without a limit, SQLite drops the order
        best = _of_all(_dated(database, newest_first, values), _Best(limit, best.bar), now)
    return best.ids


def _dated(database: sqlite3.Connection, matches: str, values: Sequence[float | str]) -> Iterator[Any]:
    """Id, score and date of each row, in the order of ``matches``."""
    rows = database.cursor()
    rows.row_factory = None  # there may be very many
    return rows.execute(f"SELECT m.id, f.score, m.date_added FROM ({matches}) f CROSS JOIN memories m "
                        "ON m.id = f.rowid", values)


def _of_all(rows: Iterator[Any], best: _Best, now: datetime) -> _Best:
    """The best of rows in any order, the newest first at best.

    Dates are only looked at closely where their day could be good enough.
    """
    days = _Days(now)
    for number, score, date in rows:
        if score < 0 and isinstance(date, str) and score * days[date[:10]] > best.bar:
            continue
        best.add(score * recency_score(date, now), number)
    return best
