"""Workflow locks: one name, held by one run at a time, among all processes that serve the same user."""
from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from datetime import datetime

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigurationError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.services.lock_database import CannotOpenDatabaseError, DatabaseBusyError, LockDatabase
from Middleware.utilities import config_utils
from Middleware.utilities.daemon_threads import start_daemon
from Middleware.utilities.files.path_utils import safe_join

logger = logging.getLogger(__name__)

BEAT_SECONDS = 20.0
RENEW_EVERY = 3
"""Beats after which the locks held get a later end; every beat says that the session is alive."""

_FAILURES = (sqlite3.Error, DatabaseBusyError, CannotOpenDatabaseError)


class LockingService:
    """Takes, renews and gives back locks. Thread-safe.

    A database is touched only to take a lock, while one is held, and when it is given back; a thread that keeps locks
    alive exists only while any are held.

    Args:
        session_id: name of this process among those that use the databases.
        now: gives local time.
        beat_seconds: pause of the thread that keeps locks alive.
    """

    def __init__(self, session_id: str | None = None, now: Callable[[], datetime] = datetime.now,
                 beat_seconds: float = BEAT_SECONDS) -> None:
        self.session_id = session_id or instance.INSTANCE_ID
        self._now = now
        self._beat_seconds = beat_seconds
        self._changed = threading.Condition()
        self._held: dict[str, set[str]] = {}  # run -> the files that hold locks of it
        self._ended: dict[str, set[str]] = {}  # file -> runs that ended when their locks could not be deleted in it
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def acquire(self, lock_id: str, workflow_id: str, user: str | None = None,
                scope: CancelScope | None = None) -> bool:
        """Take a lock for a run of ``user`` (None: the current one); whether that succeeded.

        False if somebody has it, the same run included, or if the database is busy. True, with a warning, if there
        can be no database or its disk is full. Raises EarlyTerminationException when ``scope`` is cancelled meanwhile,
        ``sqlite3.Error`` for a database that fails in another way.
        """
        database = self._database(user)
        ended = self._ended_in(database.path)
        try:
            acquired = database.acquire(lock_id, self.session_id, workflow_id, scope, ended)
        except DatabaseBusyError:
            logger.warning("The lock database is busy; a lock counts as held")
            return False
        except CannotOpenDatabaseError as error:
            logger.warning("The lock database %s cannot be used (%s); going on without a lock", database.path, error)
            return True
        self._deleted(database.path, ended)
        if acquired:
            self._keep_alive(workflow_id, database.path)
        return acquired

    def is_locked(self, lock_id: str, user: str | None = None) -> bool:
        """Whether anybody holds the lock now."""
        database = self._database(user)
        try:
            return database.exists and database.is_locked(lock_id)
        except _FAILURES as error:
            logger.warning("The lock database cannot be read (%s): %s", type(error).__name__, error)
            return False

    def release(self, workflow_id: str) -> None:
        """Give back all locks of a run that ended. Touches nothing if it took none.

        What cannot be given back now (the disk is full, others write) is logged, and no lock is refused because of it:
        it is deleted when the file is written next.
        """
        with self._changed:
            paths = self._held.pop(workflow_id, set())
            self._changed.notify_all()
        for path in paths:
            if not self._delete(LockDatabase(path, self._now), session_id=self.session_id, workflow_id=workflow_id):
                with self._changed:
                    self._ended.setdefault(path, set()).add(workflow_id)

    def release_all(self) -> None:
        """Give back the locks of all runs, at the end of the process. Errors are logged."""
        with self._changed:
            runs = list(self._held)
            ended = [(path, workflow_id) for path, late in self._ended.items() for workflow_id in late]
            self._ended.clear()
        for workflow_id in runs:
            self.release(workflow_id)
        for path, workflow_id in ended:
            self._delete(LockDatabase(path, self._now), session_id=self.session_id, workflow_id=workflow_id)

    def delete(self, session_id: str | None = None, workflow_id: str | None = None, lock_id: str | None = None,
               user: str | None = None) -> None:
        """Delete the locks that fit all that is given; nothing if nothing is. Errors are logged."""
        if session_id is None and workflow_id is None and lock_id is None:
            logger.warning("Locks can be deleted only by session, workflow or lock id")
            return
        self._delete(self._database(user), session_id=session_id, workflow_id=workflow_id, lock_id=lock_id)

    def delete_dead_locks(self, user: str | None = None) -> None:
        """Delete the locks that processes of the past left behind. Errors are logged; for the start of a server."""
        try:
            database = self._database(user)
            if database.exists:
                database.delete_dead(self.session_id)
        except (*_FAILURES, ConfigurationError, OSError) as error:
            whose = f"user {user}" if user else "the current user"
            logger.warning("Old locks of %s cannot be deleted: %s", whose, error)

    # -- which file ----------------------------------------------------------------------------------------------
    def _database(self, user: str | None) -> LockDatabase:
        name = f"WilmerDb.{user or config_utils.get_current_username()}.sqlite"
        path = os.path.abspath(safe_join(config_utils.get_lock_database_directory(user), name))
        return LockDatabase(path if os.path.exists(path) else self._old_path(name, path) or path, self._now)

    def _old_path(self, name: str, path: str) -> str | None:
        """Where an earlier version made the file, if it did and the file is still there."""
        for folder in (os.getcwd(), config_utils.get_project_root_directory_path()):
            old = os.path.abspath(safe_join(folder, name))
            if os.path.isfile(old):
                if old not in self._told:
                    self._told.add(old)
                    logger.info("Using the lock database %s. To move it, stop the server and move the file to %s",
                                old, path)
                return old
        return None

    # -- keeping locks -------------------------------------------------------------------------------------------
    def _keep_alive(self, workflow_id: str, path: str) -> None:
        with self._changed:
            self._held.setdefault(workflow_id, set()).add(path)
            if self._thread is None:
                self._thread = start_daemon(self._beat, "workflow-locks",
                                            "Locks are not kept beyond ten minutes for now")

    def _beat(self) -> None:
        beats = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._held, self._beat_seconds)
                if not self._held:
                    self._thread = None
                    return
                runs_of: dict[str, list[str]] = {}
                for workflow_id, paths in self._held.items():
                    for path in paths:
                        runs_of.setdefault(path, []).append(workflow_id)
            beats += 1
            for path, runs in runs_of.items():
                self._show_life(LockDatabase(path, self._now), runs if beats % RENEW_EVERY == 0 else [])

    def _show_life(self, database: LockDatabase, runs: list[str]) -> None:
        ended = self._ended_in(database.path)
        try:
            database.renew(self.session_id, runs, ended)
        except _FAILURES as error:  # the next beat tries again
            logger.warning("Locks could not be kept alive (%s): %s", type(error).__name__, error)
        else:
            self._deleted(database.path, ended)

    # -- giving back ---------------------------------------------------------------------------------------------
    def _delete(self, database: LockDatabase, **criteria: str | None) -> bool:
        """Whether the locks are gone."""
        try:
            if database.exists:
                database.delete(**criteria)
        except _FAILURES as error:
            logger.error("Locks could not be deleted (%s): %s", type(error).__name__, error)
            return False
        return True

    def _ended_in(self, path: str) -> tuple[str, ...]:
        """The runs that ended when their locks could not be deleted in this file."""
        with self._changed:
            return tuple(self._ended.get(path, ()))

    def _deleted(self, path: str, runs: tuple[str, ...]) -> None:
        with self._changed:
            left = self._ended.pop(path, set()).difference(runs)
            if left:
                self._ended[path] = left


def get_locking_service() -> LockingService:
    """The locks of this process."""
    return process().one(LockingService)
