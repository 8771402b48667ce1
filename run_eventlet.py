"""Starts WilmerAI on Eventlet, for those who already use it; ``run_waitress.py`` is the recommended launcher.

Eventlet is in maintenance mode. Without its package Waitress serves instead.
"""

from Middleware.cli import prerequisites

if __name__ == "__main__":
    prerequisites.require_python()  # before a line that an old Python does not understand

import gc

from Middleware.cli.signals import end_on_signals

if __name__ == "__main__":
    end_on_signals()  # the other imports take a moment
    gc.disable()  # they leave nothing to collect; run() turns it on again
    prerequisites.require_packages()

import warnings

from Middleware.utilities import native_threads as native_threads  # keeps what is replaced below

warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")  # said in this file's first lines
try:  # before any other import: everything imported later must see the patched modules
    import eventlet
    import eventlet.wsgi

    eventlet.monkey_patch()
except ImportError:
    eventlet = None

import logging

if (
    eventlet is not None
):  # native threads log, too, and a thread that waits for a cooperative lock of theirs is never woken
    logging.threading = eventlet.patcher.original("threading")  # type: ignore[attr-defined]
    logging._lock = logging.threading.RLock()  # type: ignore[attr-defined]

import contextlib
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from email.message import Message
from functools import partial
from typing import Any

from Middleware import addons
from Middleware.api.edge.admission_middleware import BODY_LEFT_KEY, BODY_WHOLE_KEY, MAX_DIGITS, STOP_READING_KEY
from Middleware.api.edge.body_budget import NoRoomError
from Middleware.api.edge.browser_safety import has_body
from Middleware.api.running.disconnect_watcher import LAST_REQUEST_KEY
from Middleware.api.running.running_requests import running_requests
from Middleware.api.running.shutdown import shut_down
from Middleware.cli.program import say
from Middleware.cli.launch import Launch
from Middleware.cli.serving import limits
from Middleware.cli.serving.crowd import Crowd, Stage, Unfinished
from Middleware.cli.serving.listening import (
    BOTH_FRAMINGS,
    TLS_RECORD,
    TLS_REFUSED,
    DescriptorExhaustion,
    own_error,
    return_memory_of_bodies,
    start_listening,
)
from Middleware.cli.signals import StopSignals
from Middleware.cli.startup import run

logger = logging.getLogger(__name__)

# Small, so that the system takes bytes only as the client does, and holds little of an answer that may not be wanted.
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


def _linger(connection: socket.socket) -> None:
    """End the sending half and discard what the client still sends, until it closes too or the time is up.

    Closing at once would reset a connection on which data is under way, and the client might lose the answer.
    """
    deadline = time.monotonic() + limits.LINGER_SECONDS
    try:
        connection.shutdown(socket.SHUT_WR)
        left = limits.LINGER_SECONDS
        while left > 0:
            connection.settimeout(left)
            if not connection.recv(65536):
                return
            left = deadline - time.monotonic()
    except OSError:  # gone already, or silent for too long
        pass


def _framing_error(headers: Message) -> str | None:
    """Return why the end of a request's body is not certain; None if it is."""
    lengths = headers.get_all("Content-Length") or []
    usable = [length for length in lengths if length.isascii() and length.isdigit() and len(length) <= MAX_DIGITS]
    if len(usable) < len(lengths) or len(set(lengths)) > 1:
        return "Content-Length is invalid"
    if lengths and "Transfer-Encoding" in headers:
        return BOTH_FRAMINGS
    return None


class _Head:
    """The lines of a request's head. A head that ends in the middle is not a request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.complete = False

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(size)
        self.complete = line in (b"\r\n", b"\n")
        return line


class _JsonErrorsMixin:
    """Answers what cannot be read as HTTP, in handlers built on ``http.server``. Logs nothing itself."""

    rfile: Any
    path = ""  # until the first line of the head has been read
    body_left = False  # the client may still be sending what was refused

    def handle_one_request(self: Any) -> None:
        try:
            first = self.rfile.peek(1)[:1]
        except OSError:  # the client has gone, or sends nothing
            first = b""
        if first == TLS_RECORD:
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.send_error(400, TLS_REFUSED)
        elif first:
            super().handle_one_request()  # type: ignore[misc]
        else:
            self.close_connection = True

    def parse_request(self: Any) -> bool:
        plain, head = self.rfile, _Head(self.rfile)
        self.rfile = head
        try:
            understood = super().parse_request()  # type: ignore[misc]
        finally:
            self.rfile = plain
        if not understood:
            return False
        if not head.complete:
            self.close_connection = True
            return False
        wrong = "HTTP/0.9 is not spoken here" if self.request_version == "HTTP/0.9" else _framing_error(self.headers)
        if wrong:
            self.send_error(400, wrong)
        return not wrong

    def send_error(self: Any, code: int, message: str | None = None, explain: str | None = None) -> None:
        text = message or self.responses.get(code, ("error",))[0]
        headers, body = own_error(code, text, self.path.partition("?")[0])
        self.close_connection = True
        if self.request_version == "HTTP/0.9":  # also what an unreadable first line counts as; it had no status line
            self.request_version = "HTTP/1.0"
        self.body_left = True
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def finish(self: Any) -> None:
        """Let a client whose body was refused read why, before the connection ends."""
        if self.body_left or BODY_LEFT_KEY in getattr(self, "environ", ()):
            self._flush()
            self.arrival.is_refused = True
            _linger(self.connection)
        super().finish()  # type: ignore[misc]

    def _flush(self: Any) -> None:
        try:
            self.wfile.flush()
        except (OSError, ValueError):  # the client has gone
            pass

    def version_string(self) -> str:
        return "WilmerAI"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the application logs its requests."""

    def log_error(self, format: str, *args: object) -> None:
        """Nothing: the client gets the error."""


class _Arrival:
    """A connection. It carries one request."""

    def __init__(self, connection: Any, host: str) -> None:
        self.connection, self.host = connection, host
        self.has_head = self.is_whole = self.is_refused = False
        self._reader: Any = None  # the green thread that waits for a piece of the body

    def take_head(self, environ: dict[str, Any]) -> None:
        """Note that the head of the request has come, and let its body be stopped."""
        self.has_head = True
        if has_body(environ):
            environ["wsgi.input"] = _Body(environ["wsgi.input"], self)
            environ[STOP_READING_KEY] = self.stop_reading
            environ[BODY_WHOLE_KEY] = partial(setattr, self, "is_whole", True)
        else:
            self.is_whole = True

    def unfinished(self, writers: dict[int, object]) -> Unfinished["_Arrival"] | None:
        """What the client has to do next; None while its request is at work, or its answer leaves.

        Args:
            writers: of the descriptors on which green threads wait until they can write, an object for each wait.
        """
        found = partial(Unfinished, self, self.host)
        if self.is_refused:
            return found(True, Stage.REFUSAL)
        wait = writers.get(self.connection.fileno())
        if wait is not None:
            return found(wait, Stage.ANSWER)
        return None if self.is_whole else found(None, Stage.BODY if self.has_head else Stage.HEAD)

    def read(self, stream: Any, size: int) -> bytes:
        """Read a piece of the body. Raises NoRoomError if it has to end in the meantime."""
        self._reader = eventlet.getcurrent()
        try:
            piece: bytes = stream.read(size)
            return piece
        finally:
            self._reader = None

    def stop_reading(self) -> bool:
        """End a wait for a piece of the body; return whether there was one."""
        reader = self._reader
        if reader is not None:
            eventlet.kill(reader, NoRoomError)
        return reader is not None

    def drop(self) -> None:
        """End the connection for others; with an answer, if a body comes on it."""
        if not self.stop_reading():
            with contextlib.suppress(OSError):  # its green thread, which waits for bytes, ends then
                self.connection.shutdown(socket.SHUT_RDWR)


class _Arrivals:
    """All connections. Closes some when there are many; see ``Crowd``."""

    def __init__(self) -> None:
        self._all: set[_Arrival] = set()
        self._crowd: Crowd[_Arrival] = Crowd(limits.EVENTLET_CONNECTIONS)

    def add(self, connection: socket.socket, address: Any) -> _Arrival:
        arrival = _Arrival(connection, address[0] if address else "")
        self._all.add(arrival)
        return arrival

    def leave(self, arrival: _Arrival) -> None:
        self._all.discard(arrival)

    def _unfinished(self, arrivals: Iterable[_Arrival]) -> list[Unfinished[_Arrival]]:
        writers = {wait.fileno: wait for wait in eventlet.hubs.get_hub().get_writers()}
        states = [arrival.unfinished(writers) for arrival in arrivals]
        return [state for state in states if state is not None]

    def sweep(self) -> None:
        """Look at them, and whether a request is at work, again and again. It is a green thread of its own."""
        while True:
            eventlet.sleep(limits.SWEEP_SECONDS)
            states = self._unfinished(self._all)
            for one in self._crowd.leaving(states, time.monotonic()):
                # The end of each lets others run: a body may have become whole, and its request is at work then.
                now = self._unfinished([one.connection])
                if now and (now[0].phase, now[0].stage) == (one.phase, one.stage):
                    one.connection.drop()
            return_memory_of_bodies()


class _Body:
    """The body of a request as Eventlet's input reads it, whose wait for the next piece can be ended."""

    def __init__(self, stream: Any, arrival: _Arrival) -> None:
        self._stream, self.read = stream, partial(arrival.read, stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _protocol(arrivals: _Arrivals) -> type:
    class Protocol(_JsonErrorsMixin, eventlet.wsgi.HttpProtocol):
        """Small writes leave at once; errors are JSON, also those for which Eventlet has words of its own."""

        def setup(self) -> None:
            self.arrival = arrivals.add(self.request, self.client_address)
            super().setup()
            try:
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            except OSError as error:
                logger.debug("Socket options were refused: %s", error)

        def get_environ(self) -> dict[str, Any]:
            environ: dict[str, Any] = super().get_environ()
            self.arrival.take_head(environ)
            return environ

        def finish(self) -> None:
            try:
                super().finish()
            finally:
                arrivals.leave(self.arrival)
                # It has the body, and leads back here; until the collector runs, nothing would free them.
                self.environ: dict[str, Any] = {}
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
    # Eventlet reads them at each line; Waitress has one limit for the whole head.
    eventlet.wsgi.MAX_HEADER_LINE = eventlet.wsgi.MAX_TOTAL_HEADER_SIZE = limits.HEAD_BYTES
    arrivals = _Arrivals()
    with StopSignals() as signals:  # before the first request is taken
        sweeper = eventlet.spawn(arrivals.sweep)
        acceptor = eventlet.spawn(
            eventlet.wsgi.server,
            _ListeningSocket(launch.sock),
            launch.application,
            log=logger,
            log_output=False,
            max_size=limits.EVENTLET_CONNECTIONS,
            minimum_chunk_size=1,
            url_length_limit=limits.HEAD_BYTES,
            keepalive=False,
            socket_timeout=limits.EVENTLET_SECONDS,
            protocol=_protocol(arrivals),
            debug=False,
            environ={LAST_REQUEST_KEY: True},
        )
        launch.announce()
        while not signals.requested and not acceptor.dead:
            eventlet.sleep(0.2)
        acceptor.kill()
        sweeper.kill()
        launch.sock.close()
        if launch.arguments.drain_seconds:
            _drain(signals, launch.arguments.drain_seconds)
        if signals.forced:
            return
        helper = eventlet.spawn(shut_down, limits.SHUTDOWN_SECONDS)
        while not helper.dead and not signals.forced:
            eventlet.sleep(0.05)
        for _ in range(FLUSH_TURNS):
            eventlet.sleep(0.01)


def _drain(signals: StopSignals, seconds: float) -> None:
    """Let requests go on for at most ``seconds``. No connection here carries a second one."""
    requests, deadline = running_requests(), time.monotonic() + seconds
    requests.begin_drain(seconds)
    while requests.at_work and time.monotonic() < deadline and not signals.forced:
        eventlet.sleep(0.05)


def main(argv: Sequence[str] | None = None) -> int:
    addons.load()
    if eventlet is None:
        say(
            "NOTICE: the package eventlet is not installed; Waitress is used instead. "
            "run_waitress.py is the recommended launcher.",
            error_stream=True,
        )
        prerequisites.require_packages("waitress")
        from Middleware.cli.serving import serve_waitress

        return run(serve_waitress.serve, argv, limits.WORKER_THREADS)
    return run(serve, argv, limits.EVENTLET_CONNECTIONS, native=False)


if __name__ == "__main__":
    sys.exit(main())
