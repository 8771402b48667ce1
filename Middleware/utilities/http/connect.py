"""When a call gets a connection: retries, the cache of unreachable servers, and waits that a stop ends.

How a connection is opened is in ``open_connection`` of ``connection.py``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from http.client import HTTPException

from urllib3.exceptions import HTTPError

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.daemon_threads import run_in_pool
from Middleware.utilities.http.connection import SLICE_SECONDS, Connection
from Middleware.utilities.http.pool import ConnectionPool, unreachable_key
from Middleware.utilities.http.problems import PERMANENT, HttpError, Kind, connect_problem, root_cause
from Middleware.utilities.http.wire import HttpRequest, Route, Target

logger = logging.getLogger(__name__)

# How often a silent call returns to its caller, which can then send a heartbeat of its own. The interval of those to
# clients is in api/answers/stream_renderers.py.
HEARTBEAT_SECONDS = 1.0
HEARTBEAT = b""
# Pauses before the second and the third attempt: a server that is restarting refuses connections for a moment.
CONNECT_WAITS = (0.25, 0.5)
# The last attempt gets at least this time, even if the waits before it have used up the timeout.
MIN_ATTEMPT_SECONDS = 0.05


class IdleTime:
    """The seconds in which no data arrived, counted in slices.

    Attributes:
        server_seconds: time since the last byte, counting only waits for the server.
        since_heartbeat: time since the last byte or heartbeat.
        heartbeat_after: the interval of heartbeats.
    """

    def __init__(self) -> None:
        self.server_seconds = 0.0
        self.since_heartbeat = 0.0
        self.heartbeat_after = HEARTBEAT_SECONDS

    def reset(self) -> None:
        """Start again, because data arrived."""
        self.server_seconds = self.since_heartbeat = 0.0

    def slice_passed(self) -> bool:
        """Count a slice and return whether a heartbeat is due; the caller must then yield one."""
        self.since_heartbeat += SLICE_SECONDS
        # The tolerance absorbs the rounding error of adding up slices.
        if self.since_heartbeat + 0.001 < self.heartbeat_after:
            return False
        self.since_heartbeat = 0.0
        return True


class StopSwitch:
    """Interrupts a call, whether it waits for its socket or for a new connection.

    The lock guarantees that a late stop never shuts down a socket that was returned to the pool or closed.
    """

    def __init__(self, scope: CancelScope) -> None:
        self.scope = scope
        self.fired = False
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._event: threading.Event | None = None

    @property
    def stopped(self) -> bool:
        return self.scope.cancelled or self.fired

    def fire(self) -> None:
        with self._lock:
            self.fired = True
            if self._connection is not None:
                self._connection.shutdown()
            if self._event is not None:
                self._event.set()

    def attach(self, connection: Connection) -> None:
        with self._lock:
            self._connection = connection
            if self.fired:
                connection.shutdown()

    def detach(self) -> Connection | None:
        with self._lock:
            connection, self._connection = self._connection, None
            return connection

    def watch(self, event: threading.Event | None) -> None:
        with self._lock:
            self._event = event
            if self.fired and event is not None:
                event.set()


class Connector:
    """Connects one call to its server. The new connection is attached to ``stop``."""

    def __init__(self, pool: ConnectionPool, request: HttpRequest, stop: StopSwitch, idle: IdleTime) -> None:
        self._pool, self._request, self._stop, self._idle = pool, request, stop, idle
        self._key = unreachable_key(request.target, request.route)

    def connect(self) -> Generator[bytes, None, Connection | None]:
        """Yield heartbeats and return an open connection, None when stopped.

        A failed attempt is repeated after 0.25 and 0.5 s, all within twice the connect timeout. A server that has just
        failed with such a timeout is not tried at all. Raises HttpError.
        """
        timeout = self._request.connect_timeout
        known = self._pool.unreachable.find(self._key, timeout)
        if known is not None and self._request.remembers_unreachable:
            raise HttpError(known)
        deadline = time.monotonic() + 2 * timeout
        waits = iter(CONNECT_WAITS)
        while True:
            outcome = yield from self._attempt(min(timeout, max(deadline - time.monotonic(), MIN_ATTEMPT_SECONDS)))
            if self._stop.stopped or isinstance(outcome, Connection):
                return outcome if isinstance(outcome, Connection) else None
            cause = root_cause(outcome)
            problem = connect_problem(self._request.target.host, cause)
            wait = next(waits, None)
            hopeless = problem.kind in PERMANENT or self._request.single_attempt
            if hopeless or wait is None or time.monotonic() + wait >= deadline:
                # A single refused attempt takes no time, and the server may just be restarting.
                refused_once = self._request.single_attempt and problem.kind is Kind.REFUSED
                if self._request.remembers_unreachable and not refused_once:
                    self._pool.unreachable.remember(self._key, cause, problem, timeout)
                raise HttpError(problem) from outcome
            yield from self._pause(wait)
            if self._stop.stopped:
                return None

    def _attempt(self, timeout: float) -> Generator[bytes, None, Connection | Exception]:
        """Connect on a helper thread, because name resolution and connecting can be abandoned but not interrupted."""
        opening = _PendingConnection(self._pool, self._request.target, timeout, self._request.route)
        self._stop.watch(opening.ready)
        deadline = time.monotonic() + timeout
        opening.start()
        try:
            while not opening.ready.wait(SLICE_SECONDS):
                if time.monotonic() >= deadline:
                    return TimeoutError("connect")
                if self._idle.slice_passed():
                    yield HEARTBEAT
            if self._stop.stopped:
                return TimeoutError("stopped")
            outcome = opening.take()
            if isinstance(outcome, Connection):
                self._stop.attach(outcome)
            return outcome
        finally:
            self._stop.watch(None)
            opening.abandon()

    def _pause(self, seconds: float) -> Generator[bytes, None, None]:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stop.stopped:
            if self._stop.scope.wait(min(left, SLICE_SECONDS)):
                return
            if self._idle.slice_passed():
                yield HEARTBEAT


class _PendingConnection:
    """A connection that another thread opens; an abandoned one is closed as soon as it is open."""

    def __init__(self, pool: ConnectionPool, target: Target, timeout: float, route: Route) -> None:
        self.ready = threading.Event()
        self._pool, self._target, self._timeout, self._route = pool, target, timeout, route
        self._lock = threading.Lock()
        self._abandoned = False
        self._outcome: Connection | Exception | None = None

    def start(self) -> None:
        run_in_pool(self._run, "http-connect")

    def _run(self) -> None:
        outcome: Connection | Exception
        try:
            outcome = self._pool.open(self._target, self._timeout, self._route)
            self._pool.unreachable.forget(unreachable_key(self._target, self._route))
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            outcome = error
        except Exception as error:
            # An exception must reach the waiting thread and not end with this one.
            logger.exception("Connecting to %s failed", self._target.host_header)
            outcome = error
        with self._lock:
            self._outcome = outcome
            late = self._abandoned
        if late and isinstance(outcome, Connection):
            outcome.close()
        self.ready.set()

    def take(self) -> Connection | Exception:
        """Return the result once ``ready`` is set. The caller becomes its owner."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return outcome if outcome is not None else TimeoutError("connect")

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Connection):
            outcome.close()
