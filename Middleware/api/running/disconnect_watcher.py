"""Notices clients that have gone, and cancels their requests.

One thread asks every running request several times a second whether its client is still there. A client that closes
only its sending half counts as gone: no HTTP client does that while it waits for an answer.
"""
from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from wsgiref.types import WSGIEnvironment

from Middleware.models.request_context import RequestContext
from Middleware.utilities.daemon_threads import start_daemon

logger = logging.getLogger(__name__)

CLIENT_LEFT = "the client went away"
INTERVAL = 0.05  # seconds between two rounds
LOOK_BYTES, LOOK_PIECES = 65536, 16  # what one look may throw away: 1 MB
LAST_REQUEST_KEY = "wilmer.last_request"
"""Set in the WSGI environ by a server that reads no further request from the connection."""

Probe = Callable[[], bool]


def probe_for(environ: WSGIEnvironment) -> Probe | None:
    """A function that says whether the client of this WSGI request has gone; None if the server gives no way.

    Three ways: Waitress reads ahead and knows; a launcher that serves one request per connection lets the probe throw
    away what follows it; under any other server the probe may only look, and late bytes hide the end behind them.
    The body must have been taken off the connection.
    """
    waitress_probe: Probe | None = environ.get("waitress.client_disconnected")
    if waitress_probe is not None:
        return waitress_probe
    connection = _connection_of(environ)
    if connection is None:
        return None
    if environ.get(LAST_REQUEST_KEY):
        return lambda: has_ended(connection)
    return lambda: has_been_closed(connection)


def _connection_of(environ: WSGIEnvironment) -> socket.socket | None:
    """The system's own socket, which never waits for other green threads."""
    connection = environ.get("werkzeug.socket")
    if connection is None and "eventlet.input" in environ:
        get_socket = getattr(environ["eventlet.input"], "get_socket", None)
        connection = get_socket() if get_socket else None
    found: socket.socket | None = getattr(connection, "fd", connection)
    return found


def has_been_closed(connection: socket.socket) -> bool:
    """Whether the peer has closed ``connection``, without reading from it and without waiting."""
    return _receive(connection, 1, socket.MSG_PEEK) == b""


def has_ended(connection: socket.socket) -> bool:
    """The same for a connection from which nothing else will be read: what is in the way is thrown away."""
    for _ in range(LOOK_PIECES):
        piece = _receive(connection, LOOK_BYTES)
        if not piece:
            return piece is not None
    return False


def _receive(connection: socket.socket, size: int, flags: int = 0) -> bytes | None:
    """What is there: None if that is nothing yet, no bytes at the connection's end, or if it was reset."""
    try:
        if hasattr(socket, "MSG_DONTWAIT"):
            return connection.recv(size, flags | socket.MSG_DONTWAIT)
        readable, _, _ = select.select([connection], [], [], 0)
        return connection.recv(size, flags) if readable else None
    except (BlockingIOError, InterruptedError):
        return None
    except (OSError, ValueError):  # reset, or closed on our side
        return b""


class DisconnectWatcher:
    """The running requests and the thread that watches their clients; the thread lives while there are any."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._watched: dict[str, tuple[RequestContext, Probe]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def watch(self, request: RequestContext, probe: Probe | None) -> None:
        if probe is None:
            return
        with self._changed:
            self._watched[request.request_id] = (request, probe)
            if self._thread is None:
                self._thread = start_daemon(self._run, "disconnect-watcher",
                                            "For now nobody notices which clients go away")
            self._changed.notify()

    def forget(self, request: RequestContext) -> None:
        with self._changed:
            self._watched.pop(request.request_id, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched:
                    self._changed.wait()
            self._ask_all()  # a function of its own: while nobody is watched, no request may be held here
            time.sleep(self._interval)

    def _ask_all(self) -> None:
        with self._changed:
            running = list(self._watched.values())
        for request, probe in running:
            # in this order: a client leaves a complete answer as it likes
            if self._gone(probe) and not request.answer_complete:
                self.forget(request)
                request.cancel_scope.cancel(CLIENT_LEFT)  # leaves no trace if the request has just ended

    @staticmethod
    def _gone(probe: Probe) -> bool:
        try:
            return probe()
        except Exception:  # the server's own probe; a failure must not end the watch over all other requests
            logger.exception("Could not ask whether a client is still there")
            return False
