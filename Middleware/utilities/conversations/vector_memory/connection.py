"""Connections to the SQLite file of a conversation's memories."""
from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from datetime import UTC, datetime

from Middleware.utilities import sqlite

RECENCY_BONUS = 1.5
_DAY = 86400.0
_MOST_ROWS = 1 << 31


def recency_score(date: object, now: datetime | None = None) -> float:
    """2.5 for a date that is now or to come, falling towards 1.0 with age; 1.0 for what is no date."""
    try:
        moment = datetime.fromisoformat(date)  # type: ignore[arg-type]
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        days = ((now or datetime.now(UTC)) - moment).total_seconds() / _DAY
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return 1.0 + RECENCY_BONUS * math.exp(-0.01 * max(0.0, days))


def row_limit(number: int) -> int:
    """A number of rows as SQLite can take it."""
    return min(max(0, number), _MOST_ROWS)


def utc_now() -> str:
    """This moment as it is stored: UTC, ISO 8601 with offset."""
    return datetime.now(UTC).isoformat()


def connect(path: str, *, create: bool = False, mode: int | None = None) -> sqlite3.Connection:
    """A connection without implicit transactions, whose rows know their columns' names.

    Args:
        create: make the file if it is missing; otherwise that is a ``sqlite3.OperationalError``.
        mode: permission bits of a file made here, and of the files SQLite makes beside it.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666 if mode is None else mode))
    elif not os.path.isfile(path):
        raise sqlite3.OperationalError("there is no such database")
    connection = sqlite3.connect(os.path.abspath(path), timeout=sqlite.SLICE_SECONDS, isolation_level=None,
                                 check_same_thread=False)
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Name the columns of rows, teach ``recency_score``, and keep temporary data off the disk."""
    connection.row_factory = sqlite3.Row
    connection.create_function("recency_score", 1, recency_score)
    connection.execute("PRAGMA temp_store = MEMORY")
