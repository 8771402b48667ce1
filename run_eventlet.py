"""Starts WilmerAI on Eventlet, for those who already use it; ``run_waitress.py`` is the recommended launcher.

Eventlet is in maintenance mode. Without its package a server with a thread per connection takes over.
"""
from __future__ import annotations

import warnings

warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")  # said in this file's first lines
try:  # before any other import: everything imported later must see the patched modules
    import eventlet
    import eventlet.wsgi
    eventlet.monkey_patch()
except ImportError:
    eventlet = None

import logging
import socket
import sys
from collections.abc import Sequence

from Middleware.cli.console import say
from Middleware.cli.json_errors import JsonErrorsMixin
from Middleware.cli.listening import start_listening
from Middleware.cli.serve_threaded import FLUSH_SECONDS
from Middleware.cli.serve_threaded import serve as serve_threaded
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests, run
from Middleware.cli.stop_signals import StopSignals

logger = logging.getLogger(__name__)

CONNECTIONS = 100
SOCKET_TIMEOUT_SECONDS = 60
SEND_BUFFER_BYTES = 4096


def _protocol() -> type:
    class Protocol(JsonErrorsMixin, eventlet.wsgi.HttpProtocol):
        """Small writes leave at once; errors are JSON."""

        def setup(self) -> None:
            super().setup()
            try:
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            except OSError as error:
                logger.debug("Socket options were refused: %s", error)

    return Protocol


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    start_listening(launch.sock)
    acceptor = eventlet.spawn(
        eventlet.wsgi.server, launch.sock, launch.application, log=logger, log_output=False, max_size=CONNECTIONS,
        minimum_chunk_size=1, keepalive=False, socket_timeout=SOCKET_TIMEOUT_SECONDS, protocol=_protocol(), debug=False)
    launch.announce()
    with StopSignals() as signals:
        while not signals.requested and not acceptor.dead:
            eventlet.sleep(0.2)
        helper = eventlet.spawn(finish_requests, SHUTDOWN_SECONDS)
        acceptor.kill()
        launch.sock.close()
        while not helper.dead and not signals.impatient:
            eventlet.sleep(0.05)
        eventlet.sleep(FLUSH_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    if eventlet is None:
        say("NOTICE: the package eventlet is not installed; serving with threads instead. "
            "run_waitress.py is the recommended launcher.", error_stream=True)
        return run(serve_threaded, argv, "run_eventlet.py")
    return run(serve, argv, "run_eventlet.py", CONNECTIONS)


if __name__ == "__main__":
    sys.exit(main())
