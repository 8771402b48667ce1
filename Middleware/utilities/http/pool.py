"""Open connections to servers, kept between requests: one stack per origin."""
from __future__ import annotations

import threading
import time

from Middleware.utilities.http.connection import Connection, open_connection
from Middleware.utilities.http.problems import HttpProblem
from Middleware.utilities.http.proxies import proxy_address
from Middleware.utilities.http.unreachable import UnreachableOrigins
from Middleware.utilities.http.wire import DEFAULT_ROUTE, Route, Target

# More than any number of calls at the same time that one server takes.
MAX_IDLE_PER_ORIGIN = 256
# Common local servers close an idle connection after 5 s without saying so; a new one there costs next to nothing.
PLAIN_IDLE_SECONDS = 4.0
# Servers on the internet keep connections for a minute or longer, and a new one costs several round trips.
TLS_IDLE_SECONDS = 50.0
# Looking at all origins takes time, and expired connections do no harm for a moment.
SWEEP_SECONDS = 1.0


class ConnectionPool:
    """Idle connections by origin. Thread-safe; the newest is taken first.

    Attributes:
        unreachable: the origins that new connections are not tried to for a moment.
    """

    def __init__(self) -> None:
        self.unreachable: UnreachableOrigins[HttpProblem] = UnreachableOrigins()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}
        self._next_sweep = 0.0

    def take(self, target: Target, route: Route = DEFAULT_ROUTE) -> Connection | None:
        """An idle connection that is still good, or None. A ``local_only`` route: and whose peer is in that network."""
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
        """Keep a connection whose response was read to its end. ``idle_seconds``: the server's own limit, if known."""
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
        """Take out the idle connections whose time is over, of all origins, once in a while. Needs the lock."""
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
        """A new connection. See ``open_connection``."""
        return open_connection(target, timeout, route)


def way_to(target: Target, route: Route = DEFAULT_ROUTE) -> tuple[str, str, int]:
    """Under what name it is remembered that a target cannot be reached: directly and by proxy are two ways."""
    scheme, host, port = target.origin
    proxied = not route.local_only and bool(proxy_address(target, route))
    return f"{scheme} by proxy" if proxied else scheme, host, port
