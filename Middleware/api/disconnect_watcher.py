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
from collections.abc import Callable, Mapping
from typing import Any

from Middleware.models.request_context import RequestContext

logger = logging.getLogger(__name__)

INTERVAL = 0.05  # seconds between two rounds

Probe = Callable[[], bool]


def probe_for(environ: Mapping[str, Any]) -> Probe | None:
    """A function that says whether the client of this WSGI request has gone; None if the server gives no way."""
    waitress_probe = environ.get("waitress.client_disconnected")
    if waitress_probe is not None:
        return waitress_probe
    connection = environ.get("werkzeug.socket")
    if connection is None and "eventlet.input" in environ:
        get_socket = getattr(environ["eventlet.input"], "get_socket", None)
        connection = get_socket() if get_socket else None
    if connection is None:
        return None
    return lambda: has_been_closed(getattr(connection, "fd", connection))


def has_been_closed(connection: socket.socket) -> bool:
    """Whether the peer has closed ``connection``, without reading from it and without waiting."""
    try:
        if hasattr(socket, "MSG_DONTWAIT"):
            return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except (OSError, ValueError):  # reset, or closed on our side
        return True


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
                self._thread = threading.Thread(target=self._run, name="disconnect-watcher", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, request: RequestContext) -> None:
        with self._changed:
            self._watched.pop(request.request_id, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._watched:
                    self._changed.wait()
                running = list(self._watched.values())
            for request, probe in running:
                # in this order: a client leaves a complete answer as it likes
                if self._gone(probe) and not request.answer_complete:
                    self.forget(request)
                    request.cancel_scope.cancel("client disconnected")  # leaves no trace if the request has just ended
            time.sleep(self._interval)

    @staticmethod
    def _gone(probe: Probe) -> bool:
        try:
            return probe()
        except Exception:  # the server's own probe; a failure must not end the watch over all other requests
            logger.exception("Could not ask whether a client is still there")
            return False
