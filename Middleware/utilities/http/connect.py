"""Making the connection of one call: retries, the memory of dead origins, and waits that a stop ends."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from http.client import HTTPException

from urllib3.exceptions import HTTPError

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.connection import SLICE_SECONDS, Connection
from Middleware.utilities.http.pool import ConnectionPool, way_to
from Middleware.utilities.http.problems import (
    PERMANENT,
    HttpError,
    Kind,
    connect_problem,
    remembered_problem,
    root_cause,
)
from Middleware.utilities.http.wire import HttpRequest, Route, Target

logger = logging.getLogger(__name__)

# Callers keep their own clients alive while a server is silent; common front-ends give up after ten seconds or more.
HEARTBEAT_SECONDS = 1.0
HEARTBEAT = b""
# A server that is just restarting refuses for a moment, and a refusal costs nothing.
REFUSED_WAITS = (0.2, 0.5)
# Between attempts that failed otherwise: a network that comes back needs seconds.
CONNECT_WAITS = (0.0, 2.0, 4.0, 8.0, 16.0)
# An attempt needs some time even where the waits before it took all there was.
MIN_ATTEMPT_SECONDS = 0.05


class Silence:
    """Seconds in which nothing came, counted in slices.

    Attributes:
        of_server: since the last byte, not counting what was no wait for the server.
        unsigned: since the last byte or heartbeat.
        sign_after: seconds after which a heartbeat is due.
    """

    def __init__(self) -> None:
        self.of_server = 0.0
        self.unsigned = 0.0
        self.sign_after = HEARTBEAT_SECONDS

    def broken(self) -> None:
        """Something came."""
        self.of_server = self.unsigned = 0.0

    def slice_passed(self) -> bool:
        """Count a slice; True when a heartbeat is due, which is then taken as given."""
        self.unsigned += SLICE_SECONDS
        if self.unsigned + 0.001 < self.sign_after:
            return False
        self.unsigned = 0.0
        return True


class StopSwitch:
    """Reaches whatever a call waits for: its socket, or the event of a connection being made.

    The lock guarantees that a socket given back to the pool or closed is never shut down by a late stop.
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
    """Connects one call to its origin. The connection made is attached to ``stop``."""

    def __init__(self, pool: ConnectionPool, request: HttpRequest, stop: StopSwitch, silence: Silence) -> None:
        self._pool, self._request, self._stop, self._silence = pool, request, stop, silence
        self._way = way_to(request.target, request.route)

    def connect(self) -> Generator[bytes, None, Connection | None]:
        """An open connection, None when stopped; yields heartbeats.

        A refusal is tried again after 0.2 and 0.5 s, other failures after longer waits, all within twice the connect
        timeout. An origin that just failed an attempt with such a timeout is not tried at all. Raises HttpError.
        """
        self._raise_if_remembered()
        timeout = self._request.connect_timeout
        deadline = time.monotonic() + 2 * timeout
        refused_waits, other_waits = iter(REFUSED_WAITS), iter(CONNECT_WAITS)
        while True:
            outcome = yield from self._attempt(min(timeout, max(deadline - time.monotonic(), MIN_ATTEMPT_SECONDS)))
            if self._stop.stopped or isinstance(outcome, Connection):
                return outcome if isinstance(outcome, Connection) else None
            cause = root_cause(outcome)
            problem = connect_problem(self._request.target.host, cause)
            wait = next(refused_waits if problem.kind is Kind.REFUSED else other_waits, None)
            hopeless = problem.kind in PERMANENT or self._request.single_attempt
            if hopeless or wait is None or time.monotonic() + wait >= deadline:
                if self._worth_remembering(problem.kind):
                    self._pool.unreachable.remember(self._way, cause, problem, timeout)
                raise HttpError(problem) from outcome
            yield from self._pause(wait)
            if self._stop.stopped:
                return None

    def _raise_if_remembered(self) -> None:
        known = self._pool.unreachable.find(self._way, self._request.connect_timeout)
        if known is not None and self._request.uses_memory:
            raise HttpError(remembered_problem(known.note, known.seconds))

    def _worth_remembering(self, kind: Kind) -> bool:
        # A refusal of a single attempt cost nothing, and says little about a server that is just starting again.
        refused_once = self._request.single_attempt and kind is Kind.REFUSED
        return self._request.uses_memory and not refused_once

    def _attempt(self, timeout: float) -> Generator[bytes, None, Connection | Exception]:
        """Connect on a helper thread: neither name resolution nor connecting can be interrupted, only left alone."""
        opening = _Opening(self._pool, self._request.target, timeout, self._request.route)
        self._stop.watch(opening.ready)
        deadline = time.monotonic() + timeout
        opening.start()
        try:
            while not opening.ready.wait(SLICE_SECONDS):
                if time.monotonic() >= deadline:
                    return TimeoutError("connect")
                if self._silence.slice_passed():
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
            if self._silence.slice_passed():
                yield HEARTBEAT


class _Opening:
    """A connection being made on a daemon thread; one that nobody waits for any more is closed when it is there."""

    def __init__(self, pool: ConnectionPool, target: Target, timeout: float, route: Route) -> None:
        self.ready = threading.Event()
        self._pool, self._target, self._timeout, self._route = pool, target, timeout, route
        self._lock = threading.Lock()
        self._abandoned = False
        self._outcome: Connection | Exception | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="http-connect", daemon=True).start()

    def _run(self) -> None:
        outcome: Connection | Exception
        try:
            outcome = self._pool.open(self._target, self._timeout, self._route)
            self._pool.unreachable.forget(way_to(self._target, self._route))
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            outcome = error
        except Exception as error:
            # The boundary of a thread: the waiting thread must learn of it.
            logger.exception("Connecting to %s failed", self._target.host_header)
            outcome = error
        with self._lock:
            self._outcome = outcome
            late = self._abandoned
        if late and isinstance(outcome, Connection):
            outcome.close()
        self.ready.set()

    def take(self) -> Connection | Exception:
        """The result, once ``ready`` is set; it belongs to the caller."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return outcome if outcome is not None else TimeoutError("connect")

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Connection):
            outcome.close()
