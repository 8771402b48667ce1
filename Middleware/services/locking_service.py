"""Workflow locks: each name is held by one run at a time, across all processes that serve the same user."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.daemon_threads import start_daemon
from Middleware.utilities.files.path_utils import safe_join

logger = logging.getLogger(__name__)

BEAT_SECONDS = 20.0
# Every beat marks the session as alive; only every third one renews the locks, which live for ten minutes.
RENEW_EVERY = 3


def _failures() -> tuple[type[Exception], type[Exception], type[Exception]]:
    """Return the errors of a database."""
    import sqlite3

    from Middleware.services.lock_database import CannotOpenDatabaseError, DatabaseBusyError

    return sqlite3.Error, DatabaseBusyError, CannotOpenDatabaseError


class LockStore(Protocol):
    """Where the locks of one user are. Raises the errors of ``lock_database``."""

    path: str

    @property
    def exists(self) -> bool:
        """Whether there may be locks."""

    def acquire(
        self,
        lock_id: str,
        session_id: str,
        workflow_id: str,
        scope: CancelScope | None = None,
        ended: Iterable[str] = (),
    ) -> bool:
        """Take a lock, unless a live session holds it, and delete this session's locks of the runs ``ended``."""

    def is_locked(self, lock_id: str) -> bool:
        """Return whether there is an unexpired lock."""

    def renew(self, session_id: str, workflow_ids: Iterable[str], ended: Iterable[str] = ()) -> None:
        """Mark the session as alive, renew the locks of these runs, and delete those of the runs ``ended``."""

    def delete(self, session_id: str | None = None, workflow_id: str | None = None, lock_id: str | None = None) -> None:
        """Delete the locks that match all given arguments."""

    def delete_dead(self, own_session_id: str) -> None:
        """Delete the locks of other sessions that have ended."""


class LockingService:
    """Takes, renews and releases locks. Thread-safe.

    A database is accessed only to take a lock, while one is held, and to release it. The thread that renews locks
    exists only while there are any.

    Args:
        session_id: name of this process among those that use the databases.
        now: returns local time.
        beat_seconds: interval of the thread that renews locks.
    """

    def __init__(
        self,
        session_id: str | None = None,
        now: Callable[[], datetime] = datetime.now,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self.session_id = session_id or instance.INSTANCE_ID
        self._now = now
        self._beat_seconds = beat_seconds
        self._changed = threading.Condition()
        # The files that contain locks of a run.
        self._held: dict[str, set[str]] = {}
        # The runs that ended when their locks could not be deleted, by file.
        self._ended: dict[str, set[str]] = {}
        self._thread: threading.Thread | None = None
        self._reported: set[str] = set()

    def acquire(
        self, lock_id: str, workflow_id: str, user: str | None = None, scope: CancelScope | None = None
    ) -> bool:
        """Take a lock for a run of ``user`` (None: the current one); return whether that succeeded.

        Return False if any run has it, including the same one, or if the database is busy. Return True, with a warning,
        if the database cannot be created or its disk is full. Raises EarlyTerminationException when ``scope`` is
        cancelled during that time, ``sqlite3.Error`` for a database that fails in another way.
        """
        from Middleware.services.lock_database import CannotOpenDatabaseError, DatabaseBusyError

        database = self._database(user)
        ended = self._ended_in(database.path)
        try:
            acquired = database.acquire(lock_id, self.session_id, workflow_id, scope, ended)
        except DatabaseBusyError:
            logger.warning("The lock database is busy; the lock is treated as held")
            return False
        except CannotOpenDatabaseError as error:
            logger.warning("The lock database %s cannot be used (%s); continuing without a lock", database.path, error)
            return True
        self._deleted(database.path, ended)
        if acquired:
            self._keep_alive(workflow_id, database.path)
        return acquired

    def is_locked(self, lock_id: str, user: str | None = None) -> bool:
        """Return whether the lock is held now."""
        database = self._database(user)
        try:
            return database.exists and database.is_locked(lock_id)
        except _failures() as error:
            logger.warning("The lock database cannot be read (%s): %s", type(error).__name__, error)
            return False

    def release(self, workflow_id: str) -> None:
        """Release all locks of a run that ended. Does nothing if it has none.

        A lock that cannot be deleted now (the disk is full, the database is busy) is logged and does not block others:
        it is deleted when the file is written next.
        """
        with self._changed:
            paths = self._held.pop(workflow_id, set())
            self._changed.notify_all()
        # Without the lock, because a busy database takes seconds.
        for path in paths:
            if not self._delete(self._open(path), session_id=self.session_id, workflow_id=workflow_id):
                with self._changed:
                    self._ended.setdefault(path, set()).add(workflow_id)

    def release_all(self) -> None:
        """Release the locks of all runs, at the end of the process. Errors are logged."""
        with self._changed:
            runs = list(self._held)
            ended = [(path, workflow_id) for path, late in self._ended.items() for workflow_id in late]
            self._ended.clear()
        for workflow_id in runs:
            self.release(workflow_id)
        for path, workflow_id in ended:
            self._delete(self._open(path), session_id=self.session_id, workflow_id=workflow_id)

    def delete(
        self,
        session_id: str | None = None,
        workflow_id: str | None = None,
        lock_id: str | None = None,
        user: str | None = None,
    ) -> None:
        """Delete the locks that match all given arguments; none without arguments. Errors are logged."""
        if session_id is None and workflow_id is None and lock_id is None:
            logger.warning("Locks can be deleted only by session, workflow or lock id")
            return
        self._delete(self._database(user), session_id=session_id, workflow_id=workflow_id, lock_id=lock_id)

    def delete_dead_locks(self, user: str | None = None) -> None:
        """Delete the locks of processes that have ended, at the start of a server. Errors are logged."""
        try:
            path = self._path(user)
            if self._exists(path):
                self._open(path).delete_dead(self.session_id)
        # The folder is not known without the user's file; the check of the start reports what is wrong in it.
        except ConfigurationError:
            return
        except (*_failures(), OSError) as error:
            whose = f"user {user}" if user else "the current user"
            logger.warning("Old locks of %s cannot be deleted: %s", whose, error)

    # -- which file ----------------------------------------------------------------------------------------------
    def _database(self, user: str | None) -> LockStore:
        return self._open(self._path(user))

    def _open(self, path: str) -> LockStore:
        # Imported with the first database: SQLite takes a megabyte, and few workflows have locks.
        from Middleware.services.lock_database import LockDatabase

        return LockDatabase(path, self._now)

    def _exists(self, path: str) -> bool:
        return os.path.exists(path)

    def _path(self, user: str | None) -> str:
        name = f"WilmerDb.{user or config_utils.get_current_username()}.sqlite"
        path = os.path.abspath(safe_join(config_utils.get_lock_database_directory(user), name))
        return path if os.path.exists(path) else self._old_path(name, path) or path

    def _old_path(self, name: str, path: str) -> str | None:
        """Return the path at which an earlier version created the file, if it still exists."""
        for folder in (os.getcwd(), config_utils.get_project_root_directory_path()):
            old = os.path.abspath(safe_join(folder, name))
            if os.path.isfile(old):
                if old not in self._reported:
                    self._reported.add(old)
                    logger.info(
                        "Using the lock database %s. To move it, stop the server and move the file to %s", old, path
                    )
                return old
        return None

    # -- keeping locks -------------------------------------------------------------------------------------------
    def _keep_alive(self, workflow_id: str, path: str) -> None:
        with self._changed:
            self._held.setdefault(workflow_id, set()).add(path)
            if self._thread is None:
                self._thread = start_daemon(
                    self._beat, "workflow-locks", "Locks cannot be renewed now and expire after ten minutes"
                )

    def _beat(self) -> None:
        beats = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._held, self._beat_seconds)
                if not self._held:
                    # Under the lock, so that a run that takes a lock now starts a new thread.
                    self._thread = None
                    return
                runs_of: dict[str, list[str]] = {}
                for workflow_id, paths in self._held.items():
                    for path in paths:
                        runs_of.setdefault(path, []).append(workflow_id)
            beats += 1
            for path, runs in runs_of.items():
                self._renew_in(self._open(path), runs if beats % RENEW_EVERY == 0 else [])

    def _renew_in(self, database: LockStore, runs: list[str]) -> None:
        ended = self._ended_in(database.path)
        try:
            database.renew(self.session_id, runs, ended)
        # The next beat tries again.
        except _failures() as error:
            logger.warning("Locks could not be kept alive (%s): %s", type(error).__name__, error)
        else:
            self._deleted(database.path, ended)

    # -- giving back ---------------------------------------------------------------------------------------------
    def _delete(self, database: LockStore, **criteria: str | None) -> bool:
        """Delete locks; return whether that succeeded."""
        try:
            if database.exists:
                database.delete(**criteria)
        except _failures() as error:
            logger.error("Locks could not be deleted (%s): %s", type(error).__name__, error)
            return False
        return True

    def _ended_in(self, path: str) -> tuple[str, ...]:
        """Return the runs whose locks could not be deleted in this file when they ended."""
        with self._changed:
            return tuple(self._ended.get(path, ()))

    def _deleted(self, path: str, runs: tuple[str, ...]) -> None:
        with self._changed:
            left = self._ended.pop(path, set()).difference(runs)
            if left:
                self._ended[path] = left


def get_locking_service() -> LockingService:
    """Return the service of this process."""
    return process().one(LockingService)
