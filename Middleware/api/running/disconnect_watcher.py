"""Cancel the requests of clients that have disconnected.

One thread checks the connection of every running request several times a second. A client that closes only its sending
half counts as disconnected: HTTP clients do not do that while they wait for an answer.
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
# Seconds between two rounds of checks. An LLM call goes on for at most this long after its client has disconnected.
INTERVAL = 0.05
# One check discards at most 1 MB, so that a client that keeps sending cannot hold up the others.
CHECK_BYTES, CHECK_PIECES = 65536, 16
LAST_REQUEST_KEY = "wilmer.last_request"
"""Set in the WSGI environ by a server that reads no further request from the connection."""

Probe = Callable[[], bool]


def probe_for(environ: WSGIEnvironment) -> Probe | None:
    """Return a function that tells whether the client of a WSGI request has disconnected; None if the server has none.

    There are three kinds: Waitress reads ahead and knows; a launcher that serves one request per connection lets the
    probe discard later bytes; under any other server the probe may only peek, and late bytes hide the end behind them.
    The body must have been read from the connection.
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
    """Return the operating system's socket, not Eventlet's, which would switch to other green threads."""
    connection = environ.get("werkzeug.socket")
    if connection is None and "eventlet.input" in environ:
        get_socket = getattr(environ["eventlet.input"], "get_socket", None)
        connection = get_socket() if get_socket else None
    found: socket.socket | None = getattr(connection, "fd", connection)
    return found


def has_been_closed(connection: socket.socket) -> bool:
    """Return whether the peer has closed ``connection``, without reading from it and without waiting."""
    return _receive(connection, 1, socket.MSG_PEEK) == b""


def has_ended(connection: socket.socket) -> bool:
    """Return the same for a connection from which nothing else will be read, discarding the bytes before its end."""
    for _ in range(CHECK_PIECES):
        piece = _receive(connection, CHECK_BYTES)
        if not piece:
            return piece is not None
    return False


def _receive(connection: socket.socket, size: int, flags: int = 0) -> bytes | None:
    """Return the received bytes: None before the first, empty at the connection's end or if it was reset."""
    try:
        if hasattr(socket, "MSG_DONTWAIT"):
            return connection.recv(size, flags | socket.MSG_DONTWAIT)
        readable, _, _ = select.select([connection], [], [], 0)
        return connection.recv(size, flags) if readable else None
    except (BlockingIOError, InterruptedError):
        return None
    # The connection was reset, or closed by this side.
    except (OSError, ValueError):
        return b""


class DisconnectWatcher:
    """The running requests, and the thread that watches their clients."""

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
                self._thread = start_daemon(
                    self._run, "disconnect-watcher", "At present, requests of clients that disconnect are not cancelled"
                )
            self._changed.notify()

    def forget(self, request: RequestContext) -> None:
        with self._changed:
            self._watched.pop(request.request_id, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched:
                    self._changed.wait()
            # A separate function, so that no local variable here keeps the last request alive.
            self._check_all()
            time.sleep(self._interval)

    def _check_all(self) -> None:
        with self._changed:
            running = list(self._watched.values())
        for request, probe in running:
            # The order matters: a client may disconnect as soon as its answer is complete.
            if self._has_left(probe) and not request.answer_complete:
                self.forget(request)
                # This has no effect if the request has just ended.
                request.cancel_scope.cancel(CLIENT_LEFT)

    @staticmethod
    def _has_left(probe: Probe) -> bool:
        try:
            return probe()
        # A failing probe of one request must not end the watch over all others.
        except Exception:
            logger.exception("Could not check whether a client is still connected")
            return False
