"""Starts WilmerAI on Eventlet, for those who already use it; ``run_waitress.py`` is the recommended launcher.

Eventlet is in maintenance mode. Without its package Waitress serves instead.
"""
from Middleware.cli import prerequisites

if __name__ == "__main__":
    prerequisites.require_python()  # before a line that an old Python does not understand

from Middleware.cli.signals import end_on_signals

if __name__ == "__main__":
    end_on_signals()  # the other imports take a moment
    prerequisites.require_packages()

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
from typing import Any

from Middleware.api.running.disconnect_watcher import LAST_REQUEST_KEY
from Middleware.api.running.shutdown import begin_shutdown
from Middleware.cli.serving import limits
from Middleware.cli.console import say
from Middleware.cli.serving.json_errors import JsonErrorsMixin
from Middleware.cli.serving.listening import DescriptorExhaustion, start_listening
from Middleware.cli.startup import Launch, run
from Middleware.cli.signals import StopSignals

logger = logging.getLogger(__name__)

# Small, so that a slow client is noticed: the timeout of a write counts from the last time that the system took bytes.
SEND_BUFFER_BYTES = 4096

# Of 10 ms, for the last bytes of answers that have just ended. Counted, because a busy machine may need all of them.
FLUSH_TURNS = 20


class _ListeningSocket:
    """A socket for Eventlet, which would end if a connection cannot be accepted for lack of descriptors."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._exhaustion = DescriptorExhaustion()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def accept(self) -> Any:
        while True:
            try:
                accepted = self._sock.accept()
            except OSError as error:
                if not self._exhaustion.begins(error):
                    raise
                eventlet.sleep(limits.EXHAUSTION_SECONDS)
            else:
                self._exhaustion.ends()
                return accepted


def _protocol() -> type:
    class Protocol(JsonErrorsMixin, eventlet.wsgi.HttpProtocol):
        """Small writes leave at once; errors are JSON, also those for which Eventlet has words of its own."""

        def setup(self) -> None:
            super().setup()
            try:
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            except OSError as error:
                logger.debug("Socket options were refused: %s", error)

        def finish(self) -> None:
            try:
                super().finish()
            finally:
                self.rfile.close()  # left open if the last bytes could not be sent; it keeps the socket

        def _read_request_line(self) -> bytes:
            line: bytes = super()._read_request_line()
            if len(line) < self.server.url_length_limit:
                return line
            self.request_version, self.command, self.requestline = "HTTP/1.0", "", ""
            self.send_error(414)
            return b""

        def parse_request(self) -> bool:
            try:
                return super().parse_request()
            except (eventlet.wsgi.HeaderLineTooLong, eventlet.wsgi.HeadersTooLarge):
                self.send_error(431)
                return False

    return Protocol


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    start_listening(launch.sock)
    with StopSignals() as signals:  # before the first request is taken
        acceptor = eventlet.spawn(
            eventlet.wsgi.server, _ListeningSocket(launch.sock), launch.application, log=logger, log_output=False,
            max_size=limits.EVENTLET_CONNECTIONS, minimum_chunk_size=1, keepalive=False,
            socket_timeout=limits.EVENTLET_SECONDS, protocol=_protocol(), debug=False, environ={LAST_REQUEST_KEY: True})
        launch.announce()
        while not signals.requested and not acceptor.dead:
            eventlet.sleep(0.2)
        helper = eventlet.spawn(begin_shutdown, limits.SHUTDOWN_SECONDS)
        acceptor.kill()
        launch.sock.close()
        while not helper.dead and not signals.impatient:
            eventlet.sleep(0.05)
        for _ in range(FLUSH_TURNS):
            eventlet.sleep(0.01)


def main(argv: Sequence[str] | None = None) -> int:
    if eventlet is None:
        say("NOTICE: the package eventlet is not installed; Waitress is used instead. "
            "run_waitress.py is the recommended launcher.", error_stream=True)
        prerequisites.require_packages("waitress")
        from Middleware.cli.serving import serve_waitress
        return run(serve_waitress.serve, argv, limits.WORKER_THREADS)
    return run(serve, argv, limits.EVENTLET_CONNECTIONS)


if __name__ == "__main__":
    sys.exit(main())
