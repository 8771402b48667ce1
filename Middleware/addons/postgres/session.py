"""The one connection of a worker that lives as long as the worker: its number, and the locks that it holds.

A worker is alive if and only if the lock of its number is held. PostgreSQL frees all locks of a connection when that
ends, so that nothing of a killed worker has to be cleaned up. If the connection is lost while the worker lives, the
holders of its locks are not notified: what they write is compared with what they have read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import psycopg

from Middleware.addons.postgres.database import (
    Database,
    StateConnection,
    StatementAbortedError,
    call_back,
    first_line,
)
from Middleware.exceptions import EarlyTerminationException, StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.files.file_access import PathLocks, wait_until

logger = logging.getLogger(__name__)

T = TypeVar("T")

NUMBERS = 0x57494C4D
"""The class of the locks on the numbers of workers, as the function ``live_workers`` of the schema has it."""
_MOST_WORKERS = 10_000
# As LIMIT ends the search, only one of these locks is taken.
_TAKE_SMALLEST = (
    f"SELECT number FROM generate_series(1, {_MOST_WORKERS}) AS number "
    f"WHERE pg_try_advisory_lock({NUMBERS}, number) LIMIT 1"
)
_TAKE = f"SELECT %s::int WHERE pg_try_advisory_lock({NUMBERS}, %s)"
_MUTEX_SLICE = 0.1
# Between two attempts to get a lock that another worker holds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1


class WorkerSession:
    """The session of one worker, for all its threads.

    Attributes:
        number: the worker's number, from 1; 0 before ``open``.
    """

    def __init__(self, database: Database) -> None:
        self.number = 0
        self._database = database
        self._mutex = threading.Lock()
        self._connection: StateConnection | None = None
        self._closed = False
        # Counts the connections; a lock ends with the one that took it.
        self._life = 0
        # Locks of the present connection whose release could not be sent, and whether they are shared.
        self._unreleased: list[tuple[int, bool]] = []
        self._on_number: list[Callable[[], object]] = []
        database.on_return(self.look)

    def open(self) -> int:
        """Take the smallest free number and return it; the pool connects under it. Raises psycopg.Error."""
        with self._mutex:
            self._connect()
        self._database.open()
        self._tell_number()
        return self.number

    def close(self) -> None:
        """Free the number and all locks."""
        with self._mutex:
            self._closed = True
            self._drop()

    def on_number(self, function: Callable[[], object]) -> None:
        """Call ``function`` whenever the worker has taken its number: first, and again, the same or another, after it
        was lost, when others may have removed what they knew of this worker."""
        self._on_number.append(function)

    def look(self) -> None:
        """Notice a lost connection and replace it: once a second, and when the database is back."""
        # Errors are those of the database, which has reported them.
        with contextlib.suppress(StateUnavailableError):
            self._use(_notice_loss)

    # -- locks ---------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def lock(
        self, name: str, key: int, scope: CancelScope | None = None, timeout: float | None = None
    ) -> Iterator[None]:
        """Hold a lock between the threads of all workers.

        Args:
            name: names it within this process.
            key: what ``lock_key`` returned.

        Raises StateUnavailableError if the database does not answer, EarlyTerminationException if ``scope`` is
        cancelled first, TimeoutError after ``timeout`` seconds (0: one attempt).
        """
        started = time.monotonic()
        with process().one(PathLocks).named(name, scope, timeout):
            taken, pauses = 0, _pauses()

            def attempt() -> bool:
                nonlocal taken
                time.sleep(next(pauses))
                taken = self.try_lock(key, scope=scope)
                return taken > 0

            wait_until(attempt, scope, None if timeout is None else max(0.0, timeout - (time.monotonic() - started)))
            try:
                yield
            finally:
                self.unlock(key, taken)

    def try_lock(self, key: int, *, shared: bool = False, scope: CancelScope | None = None) -> int:
        """Return what ``unlock`` needs, or 0 if another worker holds the lock.

        This worker's own locks do not count. Raises StateUnavailableError and EarlyTerminationException.
        """
        statement = "SELECT pg_try_advisory_lock_shared(%s)" if shared else "SELECT pg_try_advisory_lock(%s)"

        def attempt(connection: StateConnection) -> int:
            [(taken,)] = connection.execute(statement, [key]).fetchall()
            return self._life if taken else 0

        return self._use(attempt, scope)

    def unlock(self, key: int, taken: int, *, shared: bool = False) -> None:
        """Free a lock; if the database does not answer now, when it does."""

        def release(connection: StateConnection) -> None:
            # Those of a lost connection are free.
            if taken == self._life:
                connection.execute(_unlocking(shared), [key])

        try:
            self._use(release)
        except StateUnavailableError:
            with self._mutex:
                if taken == self._life:
                    self._unreleased.append((key, shared))

    # -- the connection ------------------------------------------------------------------------------------------------
    def _use(self, work: Callable[[StateConnection], T], scope: CancelScope | None = None) -> T:
        """Return the result of ``work``, which may run a second time, on a new connection, if the first breaks."""
        self._acquire(scope)
        before = self._life
        try:
            try:
                return self._work(work)
            except psycopg.Error as error:
                if isinstance(error, StatementAbortedError) or self._connection is None:
                    self._lost(error)
                # The server refuses something, and the locks are still held.
                if not self._connection.closed:
                    raise StateUnavailableError(f"the state database refuses a lock ({error.sqlstate})") from None
                self._drop()
            try:
                return self._work(work)
            except psycopg.Error as error:
                self._lost(error)
        finally:
            renewed = self._connection is not None and self._life != before > 0
            self._mutex.release()
            if renewed:
                logger.info(
                    "The connection that holds the number and the locks of this worker was lost and is "
                    "replaced; it is worker %d",
                    self.number,
                )
                self._tell_number()

    def _work(self, work: Callable[[StateConnection], T]) -> T:
        connection = self._connection or self._connect()
        while self._unreleased:
            key, shared = self._unreleased[-1]
            connection.execute(_unlocking(shared), [key])
            self._unreleased.pop()
        return work(connection)

    def _acquire(self, scope: CancelScope | None) -> None:
        while True:
            if self._database.down or self._closed:
                raise StateUnavailableError
            if scope is not None and scope.cancelled:
                raise EarlyTerminationException("The request was cancelled while it waited for a lock")
            if self._mutex.acquire(timeout=_MUTEX_SLICE):
                return

    def _connect(self) -> StateConnection:
        connection = self._database.connect()
        try:
            number = self._take_number(connection)
            name = f"wilmer-{number}"
            connection.execute("SELECT set_config('application_name', %s, false)", [name])
        except BaseException:
            connection.close()
            raise
        self.number, self._database.application_name = number, name
        self._connection, self._life = connection, self._life + 1
        return connection

    def _take_number(self, connection: StateConnection) -> int:
        if self.number:
            # The one before, unless its lock outlives its connection because a network was cut.
            for (number,) in connection.execute(_TAKE, [self.number, self.number]):
                return int(number)
        [(number,)] = connection.execute(_TAKE_SMALLEST).fetchall()
        return int(number)

    def _drop(self) -> None:
        """Give up the connection and with it all locks. The mutex is held."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._unreleased.clear()

    def _lost(self, error: psycopg.Error) -> NoReturn:
        self._drop()
        self._database.fail(first_line(error))
        raise StateUnavailableError from None

    def _tell_number(self) -> None:
        for function in self._on_number:
            call_back("the number of this worker", function)


def lock_key(*names: str) -> int:
    """Return the key of the lock with this name, the same in each process."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:8], "big", signed=True)


def _unlocking(shared: bool) -> str:
    return "SELECT pg_advisory_unlock_shared(%s)" if shared else "SELECT pg_advisory_unlock(%s)"


def _notice_loss(connection: StateConnection) -> None:
    """Raise psycopg.Error if the server has closed the connection, without asking it anything."""
    # The first call may read the server's last words, the second finds the end.
    connection.pgconn.consume_input()
    connection.pgconn.consume_input()


def _pauses() -> Iterator[float]:
    """Yield how long to wait before each attempt to get a lock."""
    yield 0.0
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)
