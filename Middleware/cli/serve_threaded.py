"""Serving with a thread per connection: ``server.py``, and ``run_eventlet.py`` without its package."""
from __future__ import annotations

import io
import logging
import socket
import struct
import sys
import threading
import time
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from Middleware.cli.json_errors import JsonErrorsMixin
from Middleware.cli.listening import start_listening
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests
from Middleware.cli.stop_signals import StopSignals

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2  # for the last bytes of answers that have just ended
SEND_SECONDS = 120  # a client that takes nothing of its answer for so long counts as gone
PIECE_BYTES = 65536
LEFTOVER_PIECES = 160  # 10 MB


class _Output(io.RawIOBase):
    """The sending side of a connection. Raises TimeoutError if the peer takes nothing for ``SEND_SECONDS``.

    The limit belongs to the system's send call: a time-out of the Python socket would hold for reading too, where
    slow uploads and the watch over clients must not meet it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        windows = sys.platform == "win32"
        limit = struct.pack("@L", SEND_SECONDS * 1000) if windows else struct.pack("@ll", SEND_SECONDS, 0)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except OSError as error:
            logger.debug("There is no limit for sends here: %s", error)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self._connection.send(data)
        except (BlockingIOError, TimeoutError) as error:
            self._give_up()
            raise TimeoutError("The client has stopped reading") from error

    def _give_up(self) -> None:
        """Have later writes, of what is still in the buffer, fail at once."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class RequestHandler(JsonErrorsMixin, WSGIRequestHandler):
    """No access log, no delay on small writes, one write per chunk, errors as JSON."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = PIECE_BYTES  # werkzeug flushes after each chunk
    timeout = None  # for reading

    def setup(self) -> None:
        super().setup()
        self.wfile.close()
        self.wfile = io.BufferedWriter(_Output(self.connection), self.wbufsize)
        self._input = self.rfile

    def make_environ(self) -> dict[str, Any]:
        """Leave the connection's input to the application alone.

        Werkzeug reads what else is there before it closes the body of the answer. That may wait for ever, or fail, and
        the body's end must come. No other request follows on the connection.
        """
        environ = super().make_environ()
        self.rfile = io.BytesIO()
        return environ

    def finish(self) -> None:
        try:
            super().finish()
            self._discard_leftovers()
        finally:
            self._input.close()

    def _discard_leftovers(self) -> None:
        """Throw away what has come after the request: closing with it unread might cost the client its answer."""
        self.connection.setblocking(False)
        for _ in range(LEFTOVER_PIECES):
            try:
                if not self.connection.recv(PIECE_BYTES):
                    return
            except OSError:  # nothing is there, or nobody
                return


class _Server(ThreadedWSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-request is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("A connection failed")


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    start_listening(launch.sock)
    server = _Server(launch.host, launch.port, launch.application, RequestHandler, fd=launch.sock.fileno())
    launch.sock.close()  # the server works on its own duplicate
    acceptor = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="accept", daemon=True)
    acceptor.start()
    launch.announce()
    with StopSignals() as signals:
        while not signals.requested and acceptor.is_alive():
            acceptor.join(0.2)
        server.shutdown()
        server.socket.close()
        helper = threading.Thread(target=finish_requests, args=(SHUTDOWN_SECONDS,), name="shutdown", daemon=True)
        helper.start()
        while helper.is_alive() and not signals.impatient:
            helper.join(0.05)
        time.sleep(FLUSH_SECONDS)
