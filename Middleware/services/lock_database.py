"""The SQLite file with a user's workflow locks and the sessions that hold them.

Dates are local time as strings, ``YYYY-MM-DD HH:MM:SS.ffffff``. Each operation opens its own connection, so nothing is
bound to a thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from Middleware.exceptions import WilmerError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import sqlite

LOCK_LIFETIME = timedelta(minutes=10)
# A session that was not renewed for this time is dead: its process ended, or cannot access the file.
SESSION_LIFETIME = timedelta(seconds=60)

_NO_USE_CODES = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS WorkflowLocks (Id INTEGER PRIMARY KEY AUTOINCREMENT, WilmerSessionId NVARCHAR(50), "
    "WorkflowId NVARCHAR(50), WorkflowLockId NVARCHAR(500), ExpirationDate DATETIME)",
    "CREATE TABLE IF NOT EXISTS WorkflowSessions (WilmerSessionId NVARCHAR(50) PRIMARY KEY, LastSeen DATETIME)",
)


class DatabaseBusyError(WilmerError):
    """Another connection wrote to the file for too long."""


class CannotOpenDatabaseError(WilmerError):
    """The file cannot be created or used as a database."""


class LockDatabase:
    """The locks in one file. Raises the two errors above and ``sqlite3.Error`` for all other failures.

    ``now`` returns local time.
    """

    def __init__(self, path: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.path = path
        self._now = now

    @property
    def exists(self) -> bool:
        return os.path.exists(self.path)

    def acquire(
        self,
        lock_id: str,
        session_id: str,
        workflow_id: str,
        scope: CancelScope | None = None,
        ended: Iterable[str] = (),
    ) -> bool:
        """Take a lock for ten minutes, unless a live session holds it; also mark this session as alive.

        Expired locks and those of dead sessions are replaced. All locks of this session for the runs ``ended`` are
        deleted first. Raises EarlyTerminationException when ``scope`` is cancelled while waiting for
        the file.
        """
        now = self._now()
        with self._transaction(scope) as database:
            _delete_runs(database, session_id, ended)
            rows = database.execute(
                "SELECT l.Id, l.ExpirationDate, l.WilmerSessionId != ? AND s.LastSeen IS NOT NULL, s.LastSeen "
                "FROM WorkflowLocks l LEFT JOIN WorkflowSessions s ON s.WilmerSessionId = l.WilmerSessionId "
                "WHERE l.WorkflowLockId = ?",
                (session_id, lock_id),
            ).fetchall()
            for _, expires, of_known_session, last_seen in rows:
                # Versions without sessions took the other locks, which live until they expire.
                dead = of_known_session and _is_past(last_seen, now - SESSION_LIFETIME)
                if not dead and not _is_past(expires, now):
                    return False
            database.executemany("DELETE FROM WorkflowLocks WHERE Id = ?", [row[:1] for row in rows])
            database.execute(
                "INSERT INTO WorkflowLocks (WilmerSessionId, WorkflowId, WorkflowLockId, ExpirationDate) "
                "VALUES (?, ?, ?, ?)",
                (session_id, workflow_id, lock_id, _text(now + LOCK_LIFETIME)),
            )
            _touch(database, session_id, now)
        return True

    def is_locked(self, lock_id: str) -> bool:
        """Return whether there is an unexpired lock; expired ones are deleted."""
        now = self._now()
        with self._transaction() as database:
            rows = database.execute(
                "SELECT Id, ExpirationDate FROM WorkflowLocks WHERE WorkflowLockId = ?", (lock_id,)
            ).fetchall()
            expired = [(number,) for number, expires in rows if _is_past(expires, now)]
            database.executemany("DELETE FROM WorkflowLocks WHERE Id = ?", expired)
        return len(rows) > len(expired)

    def renew(self, session_id: str, workflow_ids: Iterable[str], ended: Iterable[str] = ()) -> None:
        """Mark the session as alive, if it has locks, and renew the locks of these runs for ten minutes.

        Its locks of the runs ``ended`` are deleted.
        """
        now = self._now()
        with self._transaction() as database:
            _delete_runs(database, session_id, ended)
            _touch(database, session_id, now)
            database.executemany(
                "UPDATE WorkflowLocks SET ExpirationDate = ? WHERE WilmerSessionId = ? AND WorkflowId = ?",
                [(_text(now + LOCK_LIFETIME), session_id, workflow_id) for workflow_id in workflow_ids],
            )
            # The session's last lock may have been deleted in the meantime.
            _forget_idle_sessions(database)

    def delete(self, session_id: str | None = None, workflow_id: str | None = None, lock_id: str | None = None) -> None:
        """Delete the locks that match all given arguments, and sessions without locks."""
        given = {"WilmerSessionId": session_id, "WorkflowId": workflow_id, "WorkflowLockId": lock_id}
        wanted = {column: value for column, value in given.items() if value is not None}
        if not wanted:
            raise ValueError("no argument selects the locks to delete")
        with self._transaction() as database:
            condition = " AND ".join(f"{column} = ?" for column in wanted)
            database.execute(f"DELETE FROM WorkflowLocks WHERE {condition}", tuple(wanted.values()))
            _forget_idle_sessions(database)

    def delete_dead(self, own_session_id: str) -> None:
        """Delete the locks of other sessions that were not renewed for a minute."""
        limit = self._now() - SESSION_LIFETIME
        with self._transaction() as database:
            sessions = database.execute("SELECT WilmerSessionId, LastSeen FROM WorkflowSessions").fetchall()
            alive = {session for session, last_seen in sessions if not _is_past(last_seen, limit)} | {own_session_id}
            holders = {row[0] for row in database.execute("SELECT DISTINCT WilmerSessionId FROM WorkflowLocks")}
            for session in holders - alive:
                database.execute("DELETE FROM WorkflowLocks WHERE WilmerSessionId IS ?", (session,))
            _forget_idle_sessions(database)

    @contextlib.contextmanager
    def _transaction(self, scope: CancelScope | None = None) -> Iterator[sqlite3.Connection]:
        """Run a transaction on the file and create missing tables; roll back if the block raises."""
        has_begun = False
        with contextlib.closing(self._open()) as database:
            sqlite.use_write_ahead_log(database)
            try:
                # Locks need not survive a power failure, which also ends the runs that hold them. With five waits for
                # the disk per transaction, runs waited for each other until the file of a busy disk counted as busy.
                sqlite.set_pragma(database, "synchronous = OFF", scope)
                with sqlite.transaction(database, scope):
                    for statement in _TABLES:
                        database.execute(statement)
                    has_begun = True
                    yield database
            except sqlite3.Error as error:
                if sqlite.is_busy(error):
                    raise DatabaseBusyError(f"others have been writing to it for {sqlite.BUSY_SECONDS:g} s") from error
                # SQLite reads the file only when a transaction begins, so any earlier error concerns the file.
                if not has_begun or sqlite.error_code(error) in _NO_USE_CODES:
                    raise CannotOpenDatabaseError(str(error)) from error
                raise

    def _open(self) -> sqlite3.Connection:
        try:
            os.makedirs(os.path.dirname(self.path) or os.curdir, exist_ok=True)
            return sqlite3.connect(self.path, timeout=sqlite.SLICE_SECONDS, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise CannotOpenDatabaseError(str(error)) from error


def _touch(database: sqlite3.Connection, session_id: str, now: datetime) -> None:
    database.execute(
        "INSERT OR REPLACE INTO WorkflowSessions (WilmerSessionId, LastSeen) VALUES (?, ?)", (session_id, _text(now))
    )


def _delete_runs(database: sqlite3.Connection, session_id: str, workflow_ids: Iterable[str]) -> None:
    database.executemany(
        "DELETE FROM WorkflowLocks WHERE WilmerSessionId = ? AND WorkflowId = ?",
        [(session_id, workflow_id) for workflow_id in workflow_ids],
    )


def _forget_idle_sessions(database: sqlite3.Connection) -> None:
    database.execute(
        "DELETE FROM WorkflowSessions WHERE WilmerSessionId NOT IN "
        "(SELECT WilmerSessionId FROM WorkflowLocks WHERE WilmerSessionId IS NOT NULL)"
    )


def _text(moment: datetime) -> str:
    return moment.isoformat(" ", "microseconds")


def _is_past(text: object, moment: datetime) -> bool:
    """Return whether the date in ``text`` is not after ``moment``; an invalid date counts as past."""
    try:
        return datetime.fromisoformat(str(text)) <= moment
    # TypeError: a date with a time zone cannot be compared.
    except (ValueError, TypeError):
        return True
