"""Workflow locks in the state database, for all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from Middleware.exceptions import StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.services.lock_database import LOCK_LIFETIME, SESSION_LIFETIME, CannotOpenDatabaseError
from Middleware.services.locking_service import LockingService, LockStore
from Middleware.utilities import config_utils
from Middleware.utilities.text_utils import storable

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database, StateConnection

T = TypeVar("T")

LOCKS = 0x57494C4C
"""The class of the locks on the names of workflow locks, by their hash."""

_TOUCH = (
    "INSERT INTO wilmer.sessions (session_id, last_seen) VALUES (%s, now()) "
    "ON CONFLICT (session_id) DO UPDATE SET last_seen = now()"
)
_DELETE_RUNS = "DELETE FROM wilmer.workflow_locks WHERE user_name = %s AND session_id = %s AND workflow_id = ANY(%s)"
# Two acquisitions of one lock come one after the other. Otherwise the second, having waited for the row of the first,
# would judge its holder by what it saw before: a session that is not there yet, or has not been seen for long.
_LOCK_NAME = f"SELECT pg_advisory_xact_lock({LOCKS}, hashtext(%s))"
_ACQUIRE = """
INSERT INTO wilmer.workflow_locks AS held (user_name, lock_id, session_id, workflow_id, expires_at)
VALUES (%s, %s, %s, %s, now() + %s)
ON CONFLICT (user_name, lock_id) DO UPDATE
    SET session_id = excluded.session_id, workflow_id = excluded.workflow_id, expires_at = excluded.expires_at
    WHERE held.expires_at <= now() OR held.session_id <> excluded.session_id AND NOT EXISTS (
        SELECT FROM wilmer.sessions AS holder
        WHERE holder.session_id = held.session_id AND holder.last_seen > now() - %s)
RETURNING true
"""
_IS_LOCKED = "SELECT true FROM wilmer.workflow_locks WHERE user_name = %s AND lock_id = %s AND expires_at > now()"
_RENEW = (
    "UPDATE wilmer.workflow_locks SET expires_at = now() + %s "
    "WHERE user_name = %s AND session_id = %s AND workflow_id = ANY(%s)"
)
_DELETE = """
DELETE FROM wilmer.workflow_locks WHERE user_name = %s AND (%s::text IS NULL OR session_id = %s)
    AND (%s::text IS NULL OR workflow_id = %s) AND (%s::text IS NULL OR lock_id = %s)
"""
_DELETE_DEAD = """
DELETE FROM wilmer.workflow_locks AS held WHERE user_name = %s AND session_id <> %s AND NOT EXISTS (
    SELECT FROM wilmer.sessions AS holder
    WHERE holder.session_id = held.session_id AND holder.last_seen > now() - %s)
"""
# One that was seen just now may be about to take its first lock.
_FORGET_IDLE = """
DELETE FROM wilmer.sessions AS idle WHERE last_seen < now() - %s AND NOT EXISTS (
    SELECT FROM wilmer.workflow_locks AS held WHERE held.session_id = idle.session_id)
"""


class SharedLocks:
    """The locks of one user. An unreachable database is a CannotOpenDatabaseError, as an unusable file is."""

    exists = True

    def __init__(self, database: Database, user: str) -> None:
        self.path = user
        self._database = database
        self._user = storable(user)

    def acquire(
        self,
        lock_id: str,
        session_id: str,
        workflow_id: str,
        scope: CancelScope | None = None,
        ended: Iterable[str] = (),
    ) -> bool:
        runs = list(ended)

        def work(connection: StateConnection) -> bool:
            with connection.transaction():
                connection.execute(_LOCK_NAME, [f"{self._user}/{storable(lock_id)}"])
                if runs:
                    connection.execute(_DELETE_RUNS, [self._user, session_id, runs])
                connection.execute(_TOUCH, [session_id])
                taken = connection.execute(
                    _ACQUIRE, [self._user, storable(lock_id), session_id, workflow_id, LOCK_LIFETIME, SESSION_LIFETIME]
                )
                return taken.fetchone() is not None

        return self._run(work, scope)

    def is_locked(self, lock_id: str) -> bool:
        return self._run(
            lambda connection: connection.execute(_IS_LOCKED, [self._user, storable(lock_id)]).fetchone() is not None,
            again=True,
        )

    def renew(self, session_id: str, workflow_ids: Iterable[str], ended: Iterable[str] = ()) -> None:
        kept, gone = list(workflow_ids), list(ended)

        def work(connection: StateConnection) -> None:
            with connection.transaction():
                connection.execute(_TOUCH, [session_id])
                if gone:
                    connection.execute(_DELETE_RUNS, [self._user, session_id, gone])
                if kept:
                    connection.execute(_RENEW, [LOCK_LIFETIME, self._user, session_id, kept])
                connection.execute(_FORGET_IDLE, [SESSION_LIFETIME])

        self._run(work)

    def delete(self, session_id: str | None = None, workflow_id: str | None = None, lock_id: str | None = None) -> None:
        wanted = [None if value is None else storable(value) for value in (session_id, workflow_id, lock_id)]
        if wanted == [None, None, None]:
            raise ValueError("no argument selects the locks to delete")
        values = [self._user, *(value for value in wanted for _ in range(2))]
        self._run(lambda connection: connection.execute(_DELETE, values))

    def delete_dead(self, own_session_id: str) -> None:
        self._run(lambda connection: connection.execute(_DELETE_DEAD, [self._user, own_session_id, SESSION_LIFETIME]))

    def _run(self, work: Callable[[StateConnection], T], scope: CancelScope | None = None, again: bool = False) -> T:
        try:
            return self._database.run(work, again=again, scope=scope)
        except StateUnavailableError as error:
            raise CannotOpenDatabaseError(str(error)) from None


class SharedLockingService(LockingService):
    """The locks of all workers; the name of a user takes the place of a file's."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database_of_all = database

    def _open(self, path: str) -> LockStore:
        return SharedLocks(self._database_of_all, path)

    def _exists(self, path: str) -> bool:
        return True

    def _path(self, user: str | None) -> str:
        return user or config_utils.get_current_username()
