"""Serving with Waitress: settings for hundreds of streams, worker threads, and an orderly end."""
from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.running.shutdown import shut_down
from Middleware.cli.console import StartError
from Middleware.cli.serving import limits
from Middleware.cli.serving.listening import DescriptorExhaustion
from Middleware.cli.serving.waitress_connections import UNLIMITED, Channel, SlowClients
from Middleware.cli.signals import StopSignals

if TYPE_CHECKING:
    from Middleware.cli.startup import Launch

logger = logging.getLogger(__name__)

HAS_POLL = hasattr(select, "poll")

# For all threads to be ready, which takes a small part of it on an idle machine.
START_SECONDS = 5.0

# While the server stops, its loop turns this often, to notice the end of the requests.
STOPPING_TURN_SECONDS = 0.05


def waitress_settings() -> dict[str, object]:
    """Return Waitress's adjustments."""
    return {
        "threads": limits.WORKER_THREADS,
        "connection_limit": limits.CONNECTIONS if HAS_POLL else limits.CONNECTIONS_WITH_SELECT,
        "asyncore_use_poll": HAS_POLL,
        # Those that wait, and the one that runs: Waitress must read on to notice that a client leaves.
        "channel_request_lookahead": limits.PIPELINED + 1,
        "channel_timeout": limits.IDLE_SECONDS,
        "cleanup_interval": limits.SWEEP_SECONDS,
        "max_request_header_size": limits.HEAD_BYTES,
        "outbuf_high_watermark": limits.UNSENT_BYTES,
        # The parser has the limit. Buffers never overflow into temporary files: those would hold conversations.
        "max_request_body_size": UNLIMITED,
        "inbuf_overflow": UNLIMITED,
        "outbuf_overflow": UNLIMITED,
        "recv_bytes": 65536,
        "expose_tracebacks": False,
        # Forwarding headers give no rights, but show that a client is not on this computer.
        "clear_untrusted_proxy_headers": False,
        # A client that leaves is not an error.
        "log_socket_errors": False,
        "ident": None,
    }


class LatestFirst:
    """A condition like that of ``threading``, whose ``notify`` wakes the thread that began to wait last.

    All methods need ``lock`` to be held.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiting: list[threading.Lock] = []

    def wait(self) -> None:
        """Release the lock until a call of ``notify``, then take it again."""
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        self._lock.release()
        try:
            turn.acquire()
        finally:
            self._lock.acquire()

    def notify(self) -> None:
        """Wake one thread, if any waits."""
        if self._waiting:
            self._waiting.pop().release()

    def notify_all(self) -> None:
        while self._waiting:
            self.notify()


class Dispatcher(ThreadedTaskDispatcher):
    """``count`` worker threads, of which the one that rested last works first.

    Waitress would give the work to each of them in turn. Every thread that has ever worked keeps memory for the next
    time: its stack, and what the C library sets aside for it. With hundreds of threads that are seldom all needed this
    comes to many times what the requests need.

    Raises StartError if the system refuses some of them.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.queue_cv = LatestFirst(self.lock)
        try:
            self.set_thread_count(count)
        # Python raises it if the system cannot start another thread.
        except RuntimeError:
            raise StartError(
                f"The server needs {count} threads, and the system allows this process only {self.active_count}. Raise "
                "the limit on memory (ulimit -v; each thread reserves address space for its stack) or on threads "
                "(ulimit -u; the pids limit of a container).") from None
        self._await_idle(time.monotonic() + START_SECONDS)

    def _await_idle(self, deadline: float) -> None:
        # Until then Waitress takes the new threads for busy, and warns of a queue at the first request.
        while self.active_count and time.monotonic() < deadline:
            time.sleep(0.001)


class Server(TcpWSGIServer):
    """Accepts connections. Without a free descriptor it lets them wait, where Waitress would try again at once."""

    channel_class = Channel
    # Judges requests by their heads.
    is_unwelcome: Callable[[dict[str, object]], bool] | None = None

    def __init__(self, *arguments: object, **options: object) -> None:
        self._exhaustion = DescriptorExhaustion()
        self._closed_until = 0.0  # monotonic
        self._accepted = 0
        super().__init__(*arguments, **options)

    def readable(self) -> bool:
        return bool(super().readable()) and time.monotonic() >= self._closed_until

    def set_socket_options(self, conn: socket.socket) -> None:
        super().set_socket_options(conn)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SEND_BUFFER_BYTES)

    def handle_accept(self) -> None:
        """Accept all that wait: between two turns of the loop every connection is looked at."""
        accepted = -1
        while accepted < self._accepted and len(self._map) < self.adj.connection_limit:
            accepted = self._accepted
            try:
                super().handle_accept()
            # One connection has ended already. Without this branch, Waitress would stop listening.
            except OSError as error:
                logger.debug("A connection could not be taken: %s", error)

    def accept(self) -> object:
        try:
            accepted = super().accept()
        except OSError as error:
            if self._exhaustion.begins(error):
                self._closed_until = time.monotonic() + limits.EXHAUSTION_SECONDS
            raise
        if accepted is not None:
            self._accepted += 1
            self._exhaustion.ends()
        return accepted


def make_server(application: WSGIApplication, sock: socket.socket, channels: dict[int, Any]) -> Server:
    """Make a server on a bound socket; it listens from now on."""
    adjustments = Adjustments(sockets=[sock], **waitress_settings())
    server = Server(application, channels, True, sock, Dispatcher(limits.WORKER_THREADS), adjustments,
                    bind_socket=False, sockinfo=(sock.family, sock.type, sock.proto, sock.getsockname()))
    server.is_unwelcome = application.refuses if isinstance(application, AdmissionMiddleware) else None
    return server


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    channels: dict[int, Any] = {}
    server = make_server(launch.application, launch.sock, channels)
    slow_clients = SlowClients()
    # The signals are caught before the first request is taken.
    with StopSignals(wake=server.pull_trigger) as signals:
        launch.announce()
        while not signals.requested:
            turn(channels)
            slow_clients.sweep(channels.values())
        _stop(server, channels, signals)


def _stop(server: Server, channels: dict[int, Any], signals: StopSignals) -> None:
    """Stop listening, end the requests on a helper thread, and keep writing answers meanwhile."""
    # Only the listening socket: the server's own close() would also end the trigger that wakes the loop.
    wasyncore.dispatcher.close(server)
    helper = threading.Thread(target=shut_down, args=(limits.SHUTDOWN_SECONDS,), name="shutdown", daemon=True)
    helper.start()
    while helper.is_alive() and not signals.impatient:
        turn(channels, STOPPING_TURN_SECONDS)
    deadline = time.monotonic() + limits.FLUSH_SECONDS
    while _busy(channels) and time.monotonic() < deadline and not signals.impatient:
        turn(channels, STOPPING_TURN_SECONDS)
    wasyncore.close_all(channels)


def turn(channels: dict[int, Any], timeout: float = 1.0) -> None:
    """Wait at most ``timeout`` seconds for something to read or write, and do it."""
    wasyncore.loop(timeout=timeout, map=channels, use_poll=HAS_POLL, count=1)


def _busy(channels: dict[int, Any]) -> bool:
    return any(isinstance(channel, HTTPChannel) and (channel.requests or channel.total_outbufs_len)
               for channel in list(channels.values()))
