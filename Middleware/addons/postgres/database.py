"""The state database: its connections, how long a caller waits for it, and what happens when it does not answer.

The database is either up or down. It is down when a statement was given up, when no connection could be had, or when
the second attempt of a statement failed as the first did. Then every use fails at once, and one thread of its own tries
to connect once a second until it is up again: no request ever waits to find out.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar, cast

import psycopg
from psycopg import conninfo, errors
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from Middleware.addons.postgres.database_address import UNREADABLE, problem_of
from Middleware.exceptions import EarlyTerminationException, StateUnavailableError, WilmerError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.daemon_threads import start_daemon

logger = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]
Values = Sequence[object] | Mapping[str, object]

# After this time a statement is given up: a server that is frozen or cut off keeps no time limit of its own.
_STATEMENT_SECONDS = 4.0
# How long a statement may wait for one of the pool's connections.
_CHECKOUT_SECONDS = 2.0
_CONNECT_SECONDS = 3
_PROBE_SECONDS = 1.0
CONNECTIONS_OF_A_WORKER = 10
"""Those of the pool, the session and the listener."""

# How long a cancelled request may wait for the socket of its connection.
_SLICE_SECONDS = 0.2
_POOL_SIZES = 2, 8
_SETTINGS = {
    # A worker that stops in the middle of a transaction must not hold its row locks for longer.
    "idle_in_transaction_session_timeout": "10000",
    # A client that vanishes without a word is noticed after 11 seconds.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "default_transaction_isolation": "read committed",
}
_SET = "SELECT set_config('statement_timeout', %s, false), " + ", ".join(
    f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items()
)
# As _SETTINGS, for the client's side.
_CONNECT: dict[str, Any] = {
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}


class StatementAbortedError(WilmerError, psycopg.OperationalError):
    """A statement took too long, or the database went down during it. Its connection is closed."""


class AddressError(WilmerError, psycopg.ProgrammingError):
    """The address of the database cannot be read. The text says why, and quotes nothing of it."""


class StateConnection(psycopg.Connection[TupleRow]):
    """A connection that waits for its socket in slices, and is closed when its caller no longer waits.

    Attributes:
        scope: the request that waits for the present statement.
        seconds: after how long a statement is given up; None waits on.
        gone: returns whether the database is known to be down.
        opened: when it was connected, on the monotonic clock.
    """

    scope: CancelScope | None = None
    seconds: float | None = _STATEMENT_SECONDS
    gone: Callable[[], bool] | None = None
    opened = 0.0

    @classmethod
    def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        report: Callable[[psycopg.Error], object] | None = None,
        seconds: float = _STATEMENT_SECONDS,
        **settings: Any,
    ) -> Self:
        """Return a new connection with this program's settings; ``report`` gets the error if that fails."""
        try:
            connection = super().connect(conninfo, **settings)
            try:
                # The server ends a statement that its client has given up already.
                connection.execute(_SET, [f"{1000 * (seconds + 1):.0f}"])
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            if report is not None:
                report(error)
            raise
        connection.opened = time.monotonic()
        return connection

    def wait(self, gen: Generator[Any, Any, T], interval: float = _SLICE_SECONDS, timeout: float | None = None) -> T:
        # With a timeout it is not a statement that waits, but a listener.
        if timeout is not None:
            return super().wait(gen, max(timeout, _SLICE_SECONDS), timeout)
        return super().wait(self._watched(gen), _SLICE_SECONDS)

    def _watched(self, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on what ``waiting`` waits for, until it must be given up."""
        ends = None if self.seconds is None else time.monotonic() + self.seconds
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                # A slice has passed, or else a long answer arrives in pieces.
                if not ready:
                    self._give_up_if_gone()
                if ends is not None and time.monotonic() >= ends:
                    self.close()
                    raise StatementAbortedError(f"a statement was not answered within {self.seconds:g} s")
                wanted = waiting.send(ready)
        except StopIteration as done:
            return cast(T, done.value)

    def _give_up_if_gone(self) -> None:
        if self.scope is not None and self.scope.cancelled:
            self.close()
            raise EarlyTerminationException("The request was cancelled while the state database was asked")
        if self.gone is not None and self.gone():
            self.close()
            raise StatementAbortedError("the database is down")


_Pool: TypeAlias = ConnectionPool[StateConnection]


class Database:
    """The connections of one worker to the state database, which serve all its threads.

    ``run``, ``read`` and ``write`` raise StateUnavailableError if the database does not answer, and
    EarlyTerminationException when ``scope`` is cancelled.

    Attributes:
        application_name: what the server's administrator sees next to each connection.
    """

    # Tests wait longer for a busy machine.
    statement_seconds = _STATEMENT_SECONDS
    checkout_seconds = _CHECKOUT_SECONDS

    def __init__(self, url: str, application_name: str = "wilmer") -> None:
        """Does not connect yet. Raises AddressError for an address that libpq does not understand."""
        if problem := problem_of(url):
            raise AddressError(problem)
        self._url = url
        self.application_name = application_name
        try:
            self._given = conninfo.conninfo_to_dict(url)
        # What libpq quotes may be a part of the password.
        except psycopg.Error:
            raise AddressError(UNREADABLE) from None
        # Several hosts may have a port each. Another text there is the password of an address without @.
        if (port := self.setting("port")) and not port.replace(",", "0").isdecimal():
            raise AddressError(UNREADABLE)
        self._lock = threading.Lock()
        self._pool: _Pool | None = None
        self._prober: threading.Thread | None = None
        self._closed = threading.Event()
        self._went_down = 0.0
        self._drained = 0.0
        self._problem = ""
        self._returns: list[Callable[[], object]] = []
        # The pool reports what this class decides on, and each connection that it hands out.
        for name in ("psycopg", "psycopg.pool"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    @property
    def down(self) -> bool:
        return self._pool is None

    @property
    def place(self) -> str:
        """The database in messages: its name, host and port as far as the address has them."""
        name = self.setting("dbname", "service", "user") or "the default"
        return f"{name} at {self.setting('hostaddr', 'host') or 'localhost'}:{self.setting('port') or 5432}"

    def setting(self, *names: str) -> str:
        """Return the first of these settings that the address has; empty if it has none of them."""
        return next((str(self._given[name]) for name in names if self._given.get(name)), "")

    # -- its life ------------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Begin to connect. The first user waits for the first connection."""
        with self._lock:
            if self._pool is None and not self._closed.is_set():
                self._pool = self._new_pool()

    def close(self) -> None:
        """Close the connections. A caller that uses the database from now on gets StateUnavailableError."""
        with self._lock:
            self._closed.set()
            pool, self._pool = self._pool, None
            prober = self._prober
        if pool is not None:
            pool.close()
        if prober is not None:
            prober.join(_PROBE_SECONDS + _CONNECT_SECONDS)

    def connect(self) -> StateConnection:
        """Return a new connection outside the pool, in autocommit mode. Raises psycopg.Error, such as AddressError."""
        try:
            connection = StateConnection.connect(self._url, **self._settings())
        except psycopg.OperationalError as error:
            # It quotes what it took for the value.
            if "for connection option" in first_line(error):
                raise AddressError(UNREADABLE) from None
            raise
        connection.seconds = self.statement_seconds
        return connection

    def on_return(self, function: Callable[[], object]) -> None:
        """Call ``function`` on a thread of the database's own whenever it was down and is up again."""
        self._returns.append(function)

    def _settings(self) -> dict[str, Any]:
        chosen = {name: value for name, value in _CONNECT.items() if name not in self._given}
        return {
            **chosen,
            "autocommit": True,
            "client_encoding": "UTF8",
            "application_name": self.application_name,
            "report": self._note,
            "seconds": self.statement_seconds,
        }

    def _note(self, error: psycopg.Error) -> None:
        self._problem = first_line(error)

    def _new_pool(self) -> _Pool:
        smallest, largest = _POOL_SIZES
        return ConnectionPool(
            self._url,
            connection_class=StateConnection,
            kwargs=self._settings,
            min_size=smallest,
            max_size=largest,
            num_workers=2,
            open=True,
        )

    # -- statements ----------------------------------------------------------------------------------------------------
    def read(self, statement: str, values: Values = (), scope: CancelScope | None = None) -> list[Row]:
        """Return the rows of a statement that changes nothing."""
        return self.run(lambda connection: _rows(connection, statement, values), again=True, scope=scope)

    def write(self, statement: str, values: Sequence[object] = (), scope: CancelScope | None = None) -> list[Row]:
        """Return the rows of a statement that may not be repeated, those of its RETURNING; none without it."""
        return self.run(lambda connection: _rows(connection, statement, values), scope=scope)

    def run(self, work: Callable[[StateConnection], T], *, again: bool = False, scope: CancelScope | None = None) -> T:
        """Return the result of ``work``, which gets a connection: for one statement or one short transaction.

        Args:
            work: does nothing that waits for anything but the database. Each statement is its own transaction, unless
                it stands in ``with connection.transaction():``.
            again: whether ``work`` may run a second time after its connection broke, perhaps at its very end: reading,
                and writing that compares first.
            scope: ends the wait when it is cancelled.
        """
        if again:
            try:
                return self._attempt(work, scope)
            except _BrokenConnectionError:
                pass
        try:
            return self._attempt(work, scope)
        except _BrokenConnectionError as error:
            if again:
                self._fail(error.problem, error.pool)
            raise StateUnavailableError from None

    def _attempt(self, work: Callable[[StateConnection], T], scope: CancelScope | None) -> T:
        with self._connected(scope) as connection:
            return work(connection)

    @contextlib.contextmanager
    def transaction(self, scope: CancelScope | None = None) -> Iterator[StateConnection]:
        """Run the block as a transaction on one connection, for reading and writing in turn; it runs once.

        Raises as ``run`` does. The block waits for nothing but the database.
        """
        try:
            with self._connected(scope) as connection, connection.transaction():
                yield connection
        except _BrokenConnectionError:
            raise StateUnavailableError from None

    @contextlib.contextmanager
    def _connected(self, scope: CancelScope | None) -> Iterator[StateConnection]:
        if scope is not None and scope.cancelled:
            raise EarlyTerminationException("The request was cancelled before the state database was asked")
        pool, connection = self._checkout()
        connection.scope, connection.gone = scope, lambda: self._pool is not pool
        connection.seconds = self.statement_seconds
        try:
            yield connection
        except StatementAbortedError as error:
            self._fail(first_line(error), pool)
            raise StateUnavailableError from None
        except psycopg.Error as error:
            if not connection.closed:
                raise _refusal(error) from None
            self._drain(pool, connection)
            raise _BrokenConnectionError(first_line(error), pool) from None
        finally:
            connection.scope = connection.gone = None
            pool.putconn(connection)

    def _checkout(self) -> tuple[_Pool, StateConnection]:
        pool = self._pool
        if pool is None:
            self._probe_if_down()
            raise StateUnavailableError
        try:
            return pool, pool.getconn(self.checkout_seconds)
        except PoolTimeout:
            self._fail(self._problem or f"no connection was free for {self.checkout_seconds:g} s", pool)
        # It went down while this thread waited for a connection.
        except PoolClosed:
            pass
        raise StateUnavailableError

    def _drain(self, pool: _Pool, broken: StateConnection) -> None:
        """Throw out all connections, once for all that broke at the same time."""
        with self._lock:
            if broken.opened < self._drained:
                return
            self._drained = time.monotonic()
        pool.drain()

    # -- down and up ---------------------------------------------------------------------------------------------------
    def fail(self, problem: str) -> None:
        """Say that the database does not answer, for connections that are not of the pool."""
        self._fail(problem, self._pool)

    def _fail(self, problem: str, pool: _Pool | None) -> None:
        with self._lock:
            # Another thread has found that out already, and perhaps the database is up again.
            if pool is None or self._pool is not pool:
                return
            self._pool, self._went_down, self._problem = None, time.monotonic(), ""
        logger.error(
            "The state database (%s) does not answer: %s. Requests go on without stored memories until it does.%s",
            self.place,
            problem,
            _advice(problem),
        )
        pool.close(timeout=0)
        self._probe_if_down()

    def _probe_if_down(self) -> None:
        """Start the thread that looks whether the database is back, unless it runs."""
        with self._lock:
            if self._pool is None and self._prober is None and not self._closed.is_set():
                self._prober = start_daemon(
                    self._probe, "state-database", "No thread can check whether the state database is back"
                )

    def _probe(self) -> None:
        while not self._closed.wait(_PROBE_SECONDS):
            try:
                self.connect().close()
            except psycopg.Error:
                continue
            self._return()
            return

    def _return(self) -> None:
        with self._lock:
            self._prober, self._problem = None, ""
            if self._closed.is_set():
                return
            self._pool = self._new_pool()
        logger.info("The state database answers again after %.0f s", time.monotonic() - self._went_down)
        for function in self._returns:
            call_back("the return of the state database", function)


class _BrokenConnectionError(Exception):
    def __init__(self, problem: str, pool: _Pool) -> None:
        self.problem, self.pool = problem, pool
        super().__init__(problem)


def _rows(connection: StateConnection, statement: str, values: Values) -> list[Row]:
    cursor = connection.execute(statement, values)
    return cursor.fetchall() if cursor.description else []


def _refusal(error: psycopg.Error) -> StateUnavailableError:
    """Return the error for a statement that the server did not carry out.

    The texts of most errors may contain values, and so words of a conversation.
    """
    if isinstance(error, errors.DiskFull):
        return StateUnavailableError("the disk of the state database is full")
    state = error.sqlstate or ""
    # Names of tables and columns, and what the role may not do.
    text = f": {error.diag.message_primary}" if state.startswith("42") else ""
    return StateUnavailableError(f"the state database refuses a statement ({type(error).__name__} {state}{text})")


def call_back(event: str, function: Callable[..., object], *arguments: object) -> None:
    """Call what follows an event. An error of it is logged, so that others learn of the event, too."""
    try:
        # The database has reported it, and a caller that needs its answer tries again.
        with contextlib.suppress(StateUnavailableError):
            function(*arguments)
    except Exception:
        logger.exception("Something that follows %s failed", event)


def first_line(error: BaseException) -> str:
    """Return the first line of libpq's words without a full stop at its end."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".")


def _advice(problem: str) -> str:
    # libpq does not tell the code of an error before there is a connection. The server may speak another language.
    if not any(words in problem for words in ("too many", "remaining connection slots")):
        return ""
    return f" Its max_connections is too low: each worker needs {CONNECTIONS_OF_A_WORKER}."
