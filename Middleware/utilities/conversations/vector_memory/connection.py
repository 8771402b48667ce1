"""Connections to the SQLite file of a conversation's memories."""
from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TypeVar

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope

T = TypeVar("T")

BUSY_SECONDS = 5.0
_SLICE_SECONDS = 0.1  # how long SQLite waits by itself, deaf to a cancelled request
_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
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
    connection = sqlite3.connect(os.path.abspath(path), timeout=_SLICE_SECONDS, isolation_level=None,
                                 check_same_thread=False)
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Name the columns of rows, teach ``recency_score``, and keep temporary data off the disk."""
    connection.row_factory = sqlite3.Row
    connection.create_function("recency_score", 1, recency_score)
    connection.execute("PRAGMA temp_store = MEMORY")


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Ask for a write-ahead log. Where the file system cannot have one, or not now, the file does without."""
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.Error as error:
        if not is_busy(error):
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA journal_mode = DELETE").fetchone()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, scope: CancelScope | None = None) -> Iterator[None]:
    """A transaction that nobody else writes beside; undone if the block raises."""
    when_free(lambda: connection.execute("BEGIN IMMEDIATE"), scope)
    try:
        yield
        when_free(lambda: connection.execute("COMMIT"), scope)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def when_free(action: Callable[[], T], scope: CancelScope | None = None) -> T:
    """The result of ``action``, trying for five seconds while others write.

    Raises the last ``sqlite3.OperationalError`` after that, EarlyTerminationException when ``scope`` is cancelled.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return action()
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        if scope is not None and scope.cancelled:
            raise EarlyTerminationException("The request was cancelled while a database was busy", CANCELLED)
        time.sleep(0.005)  # some kinds of busy are answered at once


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xff in _BUSY_CODES  # the upper bits tell the kinds apart
