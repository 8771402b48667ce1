"""Serving with a thread per connection: ``server.py``, and ``run_eventlet.py`` without its package."""
from __future__ import annotations

import io
import logging
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from Middleware.api.running.disconnect_watcher import LAST_REQUEST_KEY
from Middleware.cli.listening import start_listening
from Middleware.cli.serving import limits
from Middleware.cli.serving.json_errors import JsonErrorsMixin
from Middleware.cli.serving.lobby import Lobby, head_is_complete
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests
from Middleware.cli.stop_signals import StopSignals

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # at most, for the last bytes of answers that have just ended
PIECE_BYTES = 65536
LEFTOVER_PIECES = 160  # 10 MB
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Connection(io.RawIOBase):
    """A connection's bytes in both directions. Raises TimeoutError if the peer sends or takes nothing for too long.

    The limits belong to the system's calls: a time-out of the Python socket would hold for the watch over clients too,
    which must not meet it.

    Args:
        read: bytes that were taken off the connection already.
    """

    def __init__(self, connection: socket.socket, read: bytes) -> None:
        self._connection = connection
        self._read = memoryview(read)
        self.permission_is_due = False  # the peer waits for 100 Continue, and gets it when its body is wanted
        _limit(connection, socket.SO_RCVTIMEO, limits.IDLE_SECONDS)
        _limit(connection, socket.SO_SNDTIMEO, limits.STALLED_SECONDS)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._read:
            size = min(len(buffer), len(self._read))
            buffer[:size], self._read = self._read[:size], self._read[size:]
            return size
        try:
            if self.permission_is_due:
                self.permission_is_due = False
                self._connection.sendall(CONTINUE)
            return self._connection.recv_into(buffer)
        except (BlockingIOError, TimeoutError) as error:
            raise TimeoutError("The client has stopped sending") from error

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


def _limit(connection: socket.socket, option: int, seconds: float) -> None:
    whole = int(seconds)
    value = struct.pack("@L", int(seconds * 1000)) if sys.platform == "win32" else struct.pack(
        "@ll", whole, int((seconds - whole) * 1_000_000))
    try:
        connection.setsockopt(socket.SOL_SOCKET, option, value)
    except OSError as error:
        logger.debug("There is no limit of that kind here: %s", error)


class _ClientLeft(Exception):
    """The answer cannot be written."""


class _Exchange:
    """One answer of the application, written to a connection that ends with it.

    Args:
        handler: the connection's handler; its request has been read.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._begun = False
        self._has_body = False
        self._chunked = False

    def run(self, application: Callable[..., Any], environ: dict[str, Any]) -> None:
        """Serve it. The answer's end is out before its body is closed: what that starts is none of the client's."""
        body: Any = None
        try:
            body = application(environ, self._start_response)
            for data in body:
                self._write(data)
            self._end()
        except _ClientLeft:
            pass
        except Exception:  # the application answers its own failures
            logger.exception("The application failed")
            if not self._begun:
                self._handler.send_error(500)
        finally:
            self._close(body)

    def _start_response(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., None]:
        if exc_info and self._begun:
            raise exc_info[1].with_traceback(exc_info[2])
        self._status, self._headers = status, headers
        return self._write

    def _write(self, data: bytes) -> None:
        try:
            if not self._begun:
                self._begin()
            if data and self._has_body:
                self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            self._handler.wfile.flush()
        except OSError as error:
            raise _ClientLeft from error

    def _begin(self) -> None:
        number, _, reason = self._status.partition(" ")
        code, handler = int(number), self._handler
        self._has_body = handler.command != "HEAD" and code >= 200 and code not in (204, 304)
        self._chunked = (self._has_body and handler.request_version >= "HTTP/1.1"
                         and not any(name.lower() == "content-length" for name, _ in self._headers))
        self._begun = True
        handler.send_response(code, reason)
        for name, value in (*self._headers, *([("Transfer-Encoding", "chunked")] if self._chunked else ()),
                            ("Connection", "close")):
            handler.send_header(name, value)
        handler.end_headers()

    def _end(self) -> None:
        self._write(b"")
        if self._chunked:
            self._chunked = False
            self._write(b"0\r\n\r\n")

    @staticmethod
    def _close(body: object) -> None:
        try:
            if hasattr(body, "close"):
                body.close()
        except Exception:
            logger.exception("The application failed after its answer")


class RequestHandler(JsonErrorsMixin, WSGIRequestHandler):
    """No access log, no delay on small writes, one write per chunk, errors as JSON; one request per connection."""

    protocol_version = "HTTP/1.1"

    def __init__(self, request: socket.socket, client_address: object, server: Any, head: bytes) -> None:
        self._head = head
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        self.connection = self.request
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SEND_BUFFER_BYTES)
        self._bytes = _Connection(self.connection, self._head)
        self.rfile = io.BufferedReader(self._bytes, PIECE_BYTES)
        self.wfile = io.BufferedWriter(self._bytes, PIECE_BYTES)  # each chunk is flushed

    def handle(self) -> None:
        if len(self._head) < limits.HEAD_BYTES or head_is_complete(self._head):
            super().handle()
            return
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        self.send_error(431 if b"\n" in self._head else 414)

    def handle_expect_100(self) -> bool:
        self._bytes.permission_is_due = True
        return True

    def send_response(self, code: int, message: str | None = None) -> None:
        self._bytes.permission_is_due = False  # whatever is still read is thrown away
        super().send_response(code, message)

    def run_wsgi(self) -> None:
        self.environ = {**self.make_environ(), LAST_REQUEST_KEY: True}
        _Exchange(self).run(self.server.app, self.environ)
        self.close_connection = True

    def finish(self) -> None:
        super().finish()
        self._discard_leftovers()

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
    """A thread per request; see ``Lobby`` for where connections are before they have one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lobby = Lobby(self.socket, self._admit)
        self._served: set[socket.socket] = set()

    def is_busy(self) -> bool:
        """Whether a request is read or answered."""
        return bool(self._served)

    def serve_forever(self, poll_interval: float = 0.1) -> None:
        self._lobby.run(poll_interval)

    def shutdown(self) -> None:
        self._lobby.stop()

    def _admit(self, connection: socket.socket, address: object, head: bytes) -> None:
        self._served.add(connection)
        try:
            threading.Thread(target=self._serve, args=(connection, address, head), name="request", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            logger.exception("A connection cannot be served")
            self._part_with(connection)

    def _serve(self, connection: socket.socket, address: object, head: bytes) -> None:
        try:
            RequestHandler(connection, address, self, head)
        except Exception:
            self.handle_error(connection, address)
        finally:
            self._part_with(connection)

    def _part_with(self, connection: socket.socket) -> None:
        self._served.discard(connection)  # sets bear it from several threads
        self.shutdown_request(connection)

    def handle_error(self, request: Any, client_address: object) -> None:
        """A client that goes away in mid-request is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("A connection failed")


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    start_listening(launch.sock)
    server = _Server(launch.host, launch.port, launch.application, RequestHandler, fd=launch.sock.fileno())
    launch.sock.close()  # the server works on its own duplicate
    acceptor = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="accept", daemon=True)
    with StopSignals() as signals:  # before the first request is taken
        acceptor.start()
        launch.announce()
        while not signals.requested and acceptor.is_alive():
            acceptor.join(0.2)
        server.shutdown()
        server.socket.close()
        helper = threading.Thread(target=finish_requests, args=(SHUTDOWN_SECONDS,), name="shutdown", daemon=True)
        helper.start()
        while helper.is_alive() and not signals.impatient:
            helper.join(0.05)
        deadline = time.monotonic() + FLUSH_SECONDS
        while server.is_busy() and time.monotonic() < deadline and not signals.impatient:
            time.sleep(0.01)
