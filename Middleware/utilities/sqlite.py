"""Transactions on SQLite files, and waiting while another connection writes."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope

T = TypeVar("T")

# Writes take milliseconds; a program that locks the file for longer hangs or copies it.
BUSY_SECONDS = 5.0
# How long SQLite waits by itself, during which a cancelled request is not noticed.
SLICE_SECONDS = 0.1
# For some kinds of "busy" SQLite returns at once, without that wait.
_PAUSE_SECONDS = 0.005
_BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Ask for a write-ahead log. Where the file system cannot have one, or not now, the file does without."""
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.Error as error:
        if not is_busy(error):
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA journal_mode = DELETE").fetchone()


def set_pragma(connection: sqlite3.Connection, setting: str, scope: CancelScope | None = None) -> None:
    """Change a setting such as ``synchronous = OFF``. Some read the file, so this waits as ``when_free`` does."""
    when_free(lambda: connection.execute(f"PRAGMA {setting}"), scope)


@contextlib.contextmanager
def transaction(
    connection: sqlite3.Connection, scope: CancelScope | None = None, seconds: float = BUSY_SECONDS
) -> Iterator[None]:
    """Run the block as a transaction without other writers; it is rolled back if the block raises."""
    when_free(lambda: connection.execute("BEGIN IMMEDIATE"), scope, seconds)
    try:
        yield
        when_free(lambda: connection.execute("COMMIT"), scope, seconds)
    except BaseException:
        # Closing the connection also ends the transaction; the first error says more than that of the ROLLBACK.
        with contextlib.suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


def when_free(action: Callable[[], T], scope: CancelScope | None = None, seconds: float = BUSY_SECONDS) -> T:
    """Return the result of ``action``, tried for some seconds while others write.

    Raises the last ``sqlite3.Error`` after that, EarlyTerminationException when ``scope`` is cancelled.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        if scope is not None and scope.cancelled:
            raise EarlyTerminationException("The request was cancelled while a database was busy", CANCELLED)
        time.sleep(_PAUSE_SECONDS)


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether others were writing to the file."""
    return error_code(error) in _BUSY_CODES


def error_code(error: sqlite3.Error) -> int:
    """Return the primary result code; 0 for an error that the Python module itself raised."""
    # The upper bits distinguish the kinds of one code.
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
