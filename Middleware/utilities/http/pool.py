"""Idle connections to servers, one stack per origin, and the cache of servers that could not be reached."""

from __future__ import annotations

import errno
import socket
import threading
import time
import weakref
from collections.abc import Callable

from Middleware.utilities.daemon_threads import start_daemon
from Middleware.utilities.http.connection import Connection, open_connection
from Middleware.utilities.http.problems import HttpProblem, remembered_problem
from Middleware.utilities.http.proxies import proxy_address
from Middleware.utilities.http.wire import DEFAULT_ROUTE, Route, Target
from Middleware.utilities.once import BoundedCache

Origin = tuple[str, str, int]

# Short, because a refused attempt takes no time and a restarted local server must be found at once.
REFUSED_SECONDS = 1.0
# Longer, because a computer that is switched off stays off, and each attempt takes a whole timeout.
UNREACHABLE_SECONDS = 5.0
# More servers than any configuration contains.
MAX_ORIGINS = 256

_NO_ROUTE = {
    getattr(errno, name)
    for name in ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN", "ETIMEDOUT")
    if hasattr(errno, name)
}

# More than the number of simultaneous calls that one server accepts.
MAX_IDLE_PER_ORIGIN = 256
# Common local servers close an idle connection after 5 s without notice, and opening a new one is cheap.
PLAIN_IDLE_SECONDS = 4.0
# Between two looks for expired connections at least, because busy ones expire one after the other.
CLOSER_SECONDS = 0.5
# Servers on the internet keep connections for a minute or longer, and opening a new one takes several round trips.
TLS_IDLE_SECONDS = 50.0


class UnreachableOrigins:
    """Cache of origins that could not be reached a moment ago. Thread-safe; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Per origin: the problem, the time at which the entry expires, and the timeout of the attempt.
        self._known: BoundedCache[Origin, tuple[HttpProblem, float, float]] = BoundedCache(MAX_ORIGINS)

    def remember(self, origin: Origin, cause: BaseException, problem: HttpProblem, timeout: float) -> None:
        """Cache ``problem`` for a time that depends on ``cause``; do not cache it if the host was reached.

        ``timeout`` is that of the attempt, in seconds. The result of an attempt with a longer one is not replaced.
        """
        seconds, now = _seconds_for(cause), self._clock()
        known = self._known.get(origin)
        if seconds and (known is None or known[1] <= now or known[2] <= timeout):
            self._known.put(origin, (problem, now + seconds, timeout))

    def find(self, origin: Origin, timeout: float) -> HttpProblem | None:
        """Return the cached problem, or None if the origin should be tried: a longer ``timeout`` may succeed."""
        known = self._known.get(origin)
        if known is None:
            return None
        problem, until, waited = known
        left = until - self._clock()
        return remembered_problem(problem, left) if left > 0 and timeout <= waited else None

    def forget(self, origin: Origin) -> None:
        """Remove an origin that was reached."""
        self._known.pop(origin)


def _seconds_for(cause: BaseException) -> float:
    if isinstance(cause, ConnectionRefusedError):
        return REFUSED_SECONDS
    if isinstance(cause, (TimeoutError, socket.gaierror)) or (isinstance(cause, OSError) and cause.errno in _NO_ROUTE):
        return UNREACHABLE_SECONDS
    return 0.0


class ConnectionPool:
    """Idle connections by origin. Thread-safe; the newest is taken first.

    Attributes:
        unreachable: the origins to which no connection is tried for a moment.
    """

    def __init__(self) -> None:
        self.unreachable = UnreachableOrigins()
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[Connection]] = {}
        self._closer: threading.Thread | None = None
        self._wake = threading.Event()

    def take(self, target: Target, route: Route = DEFAULT_ROUTE) -> Connection | None:
        """Return a usable idle connection, or None. For a ``local_only`` route its peer is in the local network."""
        while True:
            with self._lock:
                stack = self._idle.get(target.origin)
                connection = stack.pop() if stack else None
            if connection is None or connection.is_fresh(route.local_only):
                return connection
            connection.close()

    def give_back(self, target: Target, connection: Connection, idle_seconds: float | None = None) -> None:
        """Keep a connection whose response was read completely. ``idle_seconds``: the server's own limit, if known."""
        default = TLS_IDLE_SECONDS if target.scheme == "https" else PLAIN_IDLE_SECONDS
        # A second less than the server, which must not close the connection while a request is on its way.
        keep = default if idle_seconds is None else min(idle_seconds - 1.0, TLS_IDLE_SECONDS)
        connection.expires = time.monotonic() + keep
        with self._lock:
            stack = self._idle.setdefault(target.origin, [])
            full = len(stack) >= MAX_IDLE_PER_ORIGIN
            if keep > 0 and not full:
                stack.append(connection)
                if self._closer is None:
                    self._start_closer()
                return
        connection.close()

    def _start_closer(self) -> None:
        """Start the thread that closes expired connections; it exists only while there are idle ones.

        The next call would be too late: after many at the same time there may be none for hours.
        """
        wake = self._wake = threading.Event()
        # The thread must not keep the pool of a short command alive, nor outlive it.
        pool = weakref.ref(self, lambda _: wake.set())
        self._closer = start_daemon(
            lambda: _close_in_time(pool, wake), "idle-connections", "Idle connections stay open"
        )

    def close_expired(self) -> float | None:
        """Close the expired connections of all origins. Return when the next one expires; None if none is left."""
        now = time.monotonic()
        with self._lock:
            expired = [connection for stack in self._idle.values() for connection in stack if connection.expires <= now]
            if expired:
                self._idle = {
                    origin: [connection for connection in stack if connection.expires > now]
                    for origin, stack in self._idle.items()
                }
            left = [connection.expires for stack in self._idle.values() for connection in stack]
            if not left:
                self._closer = None
        for connection in expired:
            connection.close()
        return min(left, default=None)

    def close_all(self) -> None:
        """Close every idle connection; those in use are closed when their call ends."""
        with self._lock:
            idle = [connection for stack in self._idle.values() for connection in stack]
            self._idle.clear()
            self._wake.set()
        for connection in idle:
            connection.close()

    def open(self, target: Target, timeout: float, route: Route = DEFAULT_ROUTE) -> Connection:
        """Open a new connection, see ``open_connection``."""
        return open_connection(target, timeout, route)


def _close_in_time(pool: weakref.ref[ConnectionPool], wake: threading.Event) -> None:
    """Close the expired connections of a pool until it has no idle ones, or is gone."""
    while (kept := pool()) is not None:
        expires = kept.close_expired()
        if expires is None:
            return
        del kept
        wake.wait(max(expires - time.monotonic(), CLOSER_SECONDS))
        wake.clear()


def unreachable_key(target: Target, route: Route = DEFAULT_ROUTE) -> Origin:
    """Return the key of a target in the cache of unreachable servers, different for direct and proxied access."""
    scheme, host, port = target.origin
    proxied = not route.local_only and bool(proxy_address(target, route))
    return f"{scheme} by proxy" if proxied else scheme, host, port
