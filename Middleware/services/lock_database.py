"""The SQLite file that holds a user's workflow locks, and which sessions are alive to hold them.

Dates are local time as text, ``YYYY-MM-DD HH:MM:SS.ffffff``. A connection lives for one operation only, so nothing is
bound to a thread.
"""
from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import sqlite

LOCK_LIFETIME = timedelta(minutes=10)
SESSION_LIFETIME = timedelta(seconds=60)
"""A session that was not seen for so long is dead: its process ended, or lost its way to the file."""

_NO_USE_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
                 sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS WorkflowLocks (Id INTEGER PRIMARY KEY AUTOINCREMENT, WilmerSessionId NVARCHAR(50), "
    "WorkflowId NVARCHAR(50), WorkflowLockId NVARCHAR(500), ExpirationDate DATETIME)",
    "CREATE TABLE IF NOT EXISTS WorkflowSessions (WilmerSessionId NVARCHAR(50) PRIMARY KEY, LastSeen DATETIME)",
)


class DatabaseBusyError(Exception):
    """Somebody else wrote to the file for too long."""

    private = False  # says nothing of what is stored


class CannotOpenDatabaseError(Exception):
    """The file cannot be made or used as a database."""

    private = False


class LockDatabase:
    """The locks in one file. Raises the two errors above and, for whatever else goes wrong, ``sqlite3.Error``.

    ``now`` gives local time.
    """

    def __init__(self, path: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.path = path
        self._now = now

    @property
    def exists(self) -> bool:
        return os.path.exists(self.path)

    def acquire(self, lock_id: str, session_id: str, workflow_id: str, scope: CancelScope | None = None,
                ended: Iterable[str] = ()) -> bool:
        """Take a lock for ten minutes, unless an unexpired one of a living session is there; also marks the session.

        Locks of other sessions that are dead, and expired ones, give way. All locks that this session has for the runs
        ``ended`` are deleted first. Raises EarlyTerminationException when ``scope`` is cancelled while waiting for
        the file.
        """
        now = self._now()
        with self._transaction(scope) as database:
            _delete_runs(database, session_id, ended)
            rows = database.execute(
                "SELECT l.Id, l.ExpirationDate, l.WilmerSessionId != ? AND s.LastSeen IS NOT NULL, s.LastSeen "
                "FROM WorkflowLocks l LEFT JOIN WorkflowSessions s ON s.WilmerSessionId = l.WilmerSessionId "
                "WHERE l.WorkflowLockId = ?", (session_id, lock_id)).fetchall()
            for _, expires, of_known_session, last_seen in rows:
                dead = of_known_session and _is_past(last_seen, now - SESSION_LIFETIME)
                if not dead and not _is_past(expires, now):
                    return False
            database.executemany("DELETE FROM WorkflowLocks WHERE Id = ?", [row[:1] for row in rows])
            database.execute(
                "INSERT INTO WorkflowLocks (WilmerSessionId, WorkflowId, WorkflowLockId, ExpirationDate) "
                "VALUES (?, ?, ?, ?)", (session_id, workflow_id, lock_id, _text(now + LOCK_LIFETIME)))
            _touch(database, session_id, now)
        return True

    def is_locked(self, lock_id: str) -> bool:
        """Whether an unexpired lock is there; expired ones are deleted."""
        now = self._now()
        with self._transaction() as database:
            rows = database.execute("SELECT Id, ExpirationDate FROM WorkflowLocks WHERE WorkflowLockId = ?",
                                    (lock_id,)).fetchall()
            expired = [(number,) for number, expires in rows if _is_past(expires, now)]
            database.executemany("DELETE FROM WorkflowLocks WHERE Id = ?", expired)
        return len(rows) > len(expired)

    def renew(self, session_id: str, workflow_ids: Iterable[str], ended: Iterable[str] = ()) -> None:
        """Mark the session as alive, if it has locks, and give those of these runs another ten minutes.

        Its locks of the runs ``ended`` are deleted.
        """
        now = self._now()
        with self._transaction() as database:
            _delete_runs(database, session_id, ended)
            _touch(database, session_id, now)
            database.executemany(
                "UPDATE WorkflowLocks SET ExpirationDate = ? WHERE WilmerSessionId = ? AND WorkflowId = ?",
                [(_text(now + LOCK_LIFETIME), session_id, workflow_id) for workflow_id in workflow_ids])
            _forget_idle_sessions(database)  # its last lock may have gone meanwhile

    def delete(self, session_id: str | None = None, workflow_id: str | None = None,
               lock_id: str | None = None) -> None:
        """Delete the locks that fit all that is given, and sessions that have no lock left."""
        given = {"WilmerSessionId": session_id, "WorkflowId": workflow_id, "WorkflowLockId": lock_id}
        wanted = {column: value for column, value in given.items() if value is not None}
        if not wanted:
            raise ValueError("nothing says which locks to delete")
        with self._transaction() as database:
            condition = " AND ".join(f"{column} = ?" for column in wanted)
            database.execute(f"DELETE FROM WorkflowLocks WHERE {condition}", tuple(wanted.values()))
            _forget_idle_sessions(database)

    def delete_dead(self, own_session_id: str) -> None:
        """Delete the locks of other sessions that were not seen for a minute, or never."""
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
        """A transaction on a file that has the tables; undone if the block raises."""
        has_begun = False
        with contextlib.closing(self._open()) as database:
            sqlite.use_write_ahead_log(database)
            try:
                with sqlite.transaction(database, scope):
                    for statement in _TABLES:
                        database.execute(statement)
                    has_begun = True
                    yield database
            except sqlite3.Error as error:
                if sqlite.is_busy(error):
                    raise DatabaseBusyError(f"others have been writing to it for {sqlite.BUSY_SECONDS:g} s") from error
                # SQLite looks at the file only when a transaction begins, so any error there is about the file.
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
    database.execute("INSERT OR REPLACE INTO WorkflowSessions (WilmerSessionId, LastSeen) VALUES (?, ?)",
                     (session_id, _text(now)))


def _delete_runs(database: sqlite3.Connection, session_id: str, workflow_ids: Iterable[str]) -> None:
    database.executemany("DELETE FROM WorkflowLocks WHERE WilmerSessionId = ? AND WorkflowId = ?",
                         [(session_id, workflow_id) for workflow_id in workflow_ids])


def _forget_idle_sessions(database: sqlite3.Connection) -> None:
    database.execute("DELETE FROM WorkflowSessions WHERE WilmerSessionId NOT IN "
                     "(SELECT WilmerSessionId FROM WorkflowLocks WHERE WilmerSessionId IS NOT NULL)")


def _text(moment: datetime) -> str:
    return moment.isoformat(" ", "microseconds")


def _is_past(text: object, moment: datetime) -> bool:
    """Whether the date in ``text`` is not after ``moment``; what is no date is past."""
    try:
        return datetime.fromisoformat(str(text)) <= moment
    except (ValueError, TypeError):  # no date; one with a time zone
        return True
