"""Idle connections to servers, one stack per origin, and the cache of servers that could not be reached."""
from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from Middleware.utilities.http.connection import Connection, open_connection
from Middleware.utilities.http.problems import HttpProblem
from Middleware.utilities.http.proxies import proxy_address
from Middleware.utilities.http.wire import DEFAULT_ROUTE, Route, Target
from Middleware.utilities.once import BoundedCache

Origin = tuple[str, str, int]
Note = TypeVar("Note")

# Short, because a refused attempt takes no time and a restarted local server must be found at once.
REFUSED_SECONDS = 1.0
# Longer, because a computer that is switched off stays off, and each attempt takes a whole timeout.
UNREACHABLE_SECONDS = 5.0
# More servers than any configuration contains.
MAX_ORIGINS = 256

_NO_ROUTE = {getattr(errno, name) for name in ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN", "ETIMEDOUT")
             if hasattr(errno, name)}

# More than the number of simultaneous calls that one server accepts.
MAX_IDLE_PER_ORIGIN = 256
# Common local servers close an idle connection after 5 s without notice, and opening a new one is cheap.
PLAIN_IDLE_SECONDS = 4.0
# Servers on the internet keep connections for a minute or longer, and opening a new one takes several round trips.
TLS_IDLE_SECONDS = 50.0
# Checking all origins takes time, and expired connections do no harm for a moment.
SWEEP_SECONDS = 1.0


@dataclass(frozen=True)
class Unreachable(Generic[Note]):
    """A cached failure: ``note`` describes it, ``seconds`` is the remaining lifetime."""

    note: Note
    seconds: float


class UnreachableOrigins(Generic[Note]):
    """Cache of origins that could not be reached a moment ago. Thread-safe; ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Per origin: the note, the time at which it expires, and the timeout of the attempt.
        self._known: BoundedCache[Origin, tuple[Note, float, float]] = BoundedCache(MAX_ORIGINS)

    def remember(self, origin: Origin, cause: BaseException, note: Note, timeout: float = math.inf) -> None:
        """Cache ``note`` for a time that depends on ``cause``; do not cache it if the host was reached.

        ``timeout`` is that of the attempt, in seconds. The result of an attempt with a longer one is not replaced.
        """
        seconds, now = _seconds_for(cause), self._clock()
        known = self._known.get(origin)
        if seconds and (known is None or known[1] <= now or known[2] <= timeout):
            self._known.put(origin, (note, now + seconds, timeout))

    def find(self, origin: Origin, timeout: float = 0.0) -> Unreachable[Note] | None:
        """Return the cached failure, or None if the origin should be tried: a longer ``timeout`` may succeed."""
        known = self._known.get(origin)
        if known is None:
            return None
        note, until, waited = known
        left = until - self._clock()
        if left <= 0:
            self._known.pop(origin)
        return Unreachable(note, left) if left > 0 and timeout <= waited else None

    def forget(self, origin: Origin) -> None:
        """Remove an origin that was reached."""
        self._known.pop(origin)

    def __len__(self) -> int:
        return len(self._known)


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
        self.unreachable: UnreachableOrigins[HttpProblem] = UnreachableOrigins()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}
        self._next_sweep = 0.0

    def take(self, target: Target, route: Route = DEFAULT_ROUTE) -> Connection | None:
        """Return a usable idle connection, or None. For a ``local_only`` route its peer is in the local network."""
        while True:
            with self._lock:
                stack = self._idle.get(target.origin)
                connection = stack.pop() if stack else None
                expired = self._expired(time.monotonic())
            for old in expired:
                old.close()
            if connection is None:
                return None
            if connection.is_fresh(route.local_only):
                return connection
            connection.close()

    def give_back(self, target: Target, connection: Connection, idle_seconds: float | None = None) -> None:
        """Keep a connection whose response was read completely. ``idle_seconds``: the server's own limit, if known."""
        default = TLS_IDLE_SECONDS if target.scheme == "https" else PLAIN_IDLE_SECONDS
        keep = default if idle_seconds is None else min(max(idle_seconds - 1.0, 0.0), TLS_IDLE_SECONDS)
        now = time.monotonic()
        connection.expires = now + keep
        with self._lock:
            dropped = self._expired(now)
            stack = self._idle.setdefault(target.origin, [])
            while stack and (stack[0].expires <= now or len(stack) >= MAX_IDLE_PER_ORIGIN):
                dropped.append(stack.pop(0))
            if keep <= 0:
                dropped.append(connection)
            else:
                stack.append(connection)
        for old in dropped:
            old.close()

    def _expired(self, now: float) -> list[Connection]:
        """Remove and return the expired connections of all origins, once per sweep. The caller holds the lock."""
        if now < self._next_sweep:
            return []
        self._next_sweep = now + SWEEP_SECONDS
        expired = [connection for stack in self._idle.values() for connection in stack if connection.expires <= now]
        self._idle = {origin: kept for origin, stack in self._idle.items()
                      if (kept := [connection for connection in stack if connection.expires > now])}
        return expired

    def close_all(self) -> None:
        """Close every idle connection; those in use are closed when their call ends."""
        with self._lock:
            idle = [connection for stack in self._idle.values() for connection in stack]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def open(self, target: Target, timeout: float, route: Route = DEFAULT_ROUTE) -> Connection:
        """Open a new connection, see ``open_connection``."""
        return open_connection(target, timeout, route)


def unreachable_key(target: Target, route: Route = DEFAULT_ROUTE) -> tuple[str, str, int]:
    """Return the key of a target in the cache of unreachable servers, different for direct and proxied access."""
    scheme, host, port = target.origin
    proxied = not route.local_only and bool(proxy_address(target, route))
    return f"{scheme} by proxy" if proxied else scheme, host, port
