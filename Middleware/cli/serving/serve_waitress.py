"""Serving with Waitress: settings for hundreds of streams, worker threads, and an orderly end."""

from __future__ import annotations

import logging
import mmap
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.utilities import logger as waitress_logger
from waitress.utilities import queue_logger

from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.running.running_requests import running_requests
from Middleware.api.running.shutdown import shut_down
from Middleware.cli.program import StartError
from Middleware.cli.serving import limits
from Middleware.cli.serving.listening import DescriptorExhaustion, start_listening
from Middleware.cli.serving.waitress_connections import UNLIMITED, Channel, SlowClients
from Middleware.cli.signals import StopSignals
from Middleware.utilities.daemon_threads import run_in_pool

if TYPE_CHECKING:
    from Middleware.cli.launch import Launch

logger = logging.getLogger(__name__)

HAS_POLL = hasattr(select, "poll")

# What glibc takes if the limit on stacks says "unlimited".
UNLIMITED_STACK_BYTES = 2 * 1024 * 1024

MORE_THREADS = (
    "Let the server have more threads (ulimit -u, TasksMax of systemd, the pids limit of a container), or more address "
    "space (ulimit -v)"
)

# While the server stops, its loop runs this often, to notice the end of the requests.
STOPPING_ROUND_SECONDS = 0.05


def waitress_settings() -> dict[str, object]:
    """Return Waitress's adjustments."""
    return {
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


class Dispatcher:
    """Has the threads of the pool work on Waitress's tasks, at most ``count`` at a time; further tasks wait.

    Waitress's own dispatcher starts all its threads at once, and gives the work to one after the other. With hundreds
    of threads that are seldom all needed this takes time at the start, and every thread keeps memory, all the more
    once it has worked: its stack, and what the C library sets aside for it.
    """

    def __init__(self, count: int) -> None:
        self._free = self._count = count
        self._waiting: deque[Any] = deque()
        self._lock = threading.Lock()

    def add_task(self, task: Any) -> None:
        """Have a thread call the task's ``service``. Waitress calls this for each request."""
        with self._lock:
            begins = self._free > 0
            self._free -= begins
            if not begins:
                self._waiting.append(task)
            depth = len(self._waiting)
        if begins:
            self._begin(task)
        else:
            queue_logger.warning("Task queue depth is %d", depth)

    def _begin(self, task: Any) -> None:
        try:
            run_in_pool(partial(self._work, task), "waitress")
        # The system cannot start another thread.
        except RuntimeError as error:
            with self._lock:
                self._free += 1
                others_work = self._free < self._count
                if others_work:
                    self._waiting.append(task)
            if others_work:
                logger.error("A request waits until another ends: %s. %s", error, MORE_THREADS)
            else:
                logger.error("A request is given up: %s. %s", error, MORE_THREADS)
                task.cancel()

    def _work(self, task: Any) -> None:
        while task is not None:
            try:
                task.service()
            # Otherwise one thread less would be left for other tasks.
            except BaseException:
                waitress_logger.exception("Exception when servicing %r", task)
            with self._lock:
                task = self._waiting.popleft() if self._waiting else None
                self._free += task is None

    def shutdown(self) -> None:
        """Cancel the tasks that wait."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        for task in waiting:
            task.cancel()


def allowed_threads() -> int:
    """Return how many requests Waitress may work on at the same time. Raises StartError if that is too few.

    Only a limit on address space is looked at before: without memory a thread can die before it reports its start, and
    ``Thread.start`` waits for that report without end. Any other shortage of threads is an error, which ``Dispatcher``
    catches.
    """
    if sys.platform == "win32":
        return limits.CONNECTIONS
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return limits.CONNECTIONS
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    size = limits.WORKER_THREADS * (UNLIMITED_STACK_BYTES if stack == resource.RLIM_INFINITY else stack)
    try:
        # It cannot be written to, so that it takes address space only: no memory is promised.
        mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
    except (OSError, MemoryError):
        raise StartError(
            f"The address space of this process is too small for the stacks of {limits.WORKER_THREADS} threads, "
            f"{size >> 20} MB in all. Raise the limit on it (ulimit -v)."
        ) from None
    return limits.WORKER_THREADS


class Server(TcpWSGIServer):
    """Accepts connections. Without a free descriptor it lets them wait, where Waitress would try again at once."""

    channel_class = Channel
    # Judges requests by their environ, before their bodies are read.
    is_unwelcome: Callable[[dict[str, Any]], bool] | None = None
    # Requests go on until they end, and connections are closed when they are idle.
    draining = False

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
        """Accept all that wait: between two rounds of the loop every connection is looked at."""
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
    """Make a server on a bound socket; it listens from now on. Raises StartError."""
    # Waitress does it, too, but its error would be a traceback.
    start_listening(sock)
    dispatcher = Dispatcher(allowed_threads())
    adjustments = Adjustments(sockets=[sock], **waitress_settings())
    server = Server(
        application,
        channels,
        True,
        sock,
        dispatcher,
        adjustments,
        bind_socket=False,
        sockinfo=(sock.family, sock.type, sock.proto, sock.getsockname()),
    )
    server.is_unwelcome = application.refuses if isinstance(application, AdmissionMiddleware) else None
    return server


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    channels: dict[int, Any] = {}
    server = make_server(launch.application, launch.sock, channels)
    slow_clients = SlowClients()
    # The signals are caught before the first request is taken.
    with StopSignals(wake=server.pull_trigger) as signals:
        launch.announce(signals.request)
        while not signals.requested:
            loop_once(channels)
            slow_clients.sweep(channels.values())
        _stop(server, channels, signals, launch.arguments.drain_seconds)


def _stop(server: Server, channels: dict[int, Any], signals: StopSignals, drain_seconds: float) -> None:
    """Stop listening, end the requests on a helper thread, and keep writing answers during that time.

    With ``drain_seconds``, the requests get so long to come to their end before.
    """
    if drain_seconds:
        # The system would end the connections that it has made already together with the socket.
        server.handle_accept()
    # Only the listening socket: the server's own close() would also end the trigger that wakes the loop.
    wasyncore.dispatcher.close(server)
    if drain_seconds:
        drain(server, channels, signals, drain_seconds)
    # The operator has asked again.
    if signals.forced:
        return
    helper = threading.Thread(target=shut_down, args=(limits.SHUTDOWN_SECONDS,), name="shutdown", daemon=True)
    helper.start()
    while helper.is_alive() and not signals.forced:
        loop_once(channels, STOPPING_ROUND_SECONDS)
    deadline = time.monotonic() + limits.FLUSH_SECONDS
    while _busy(channels) and time.monotonic() < deadline and not signals.forced:
        loop_once(channels, STOPPING_ROUND_SECONDS)
    close_connections(server, channels)


def close_connections(server: Server, channels: dict[int, Any]) -> None:
    """Close all connections of a server that does not listen any more. The process must end after that.

    The thread of a request may be at its last step, in which it wakes the loop. So the trigger stays open: the numbers
    of its descriptors could soon be those of other files, to which that thread would write.
    """
    server.trigger.del_channel()
    wasyncore.close_all(channels)


def drain(server: Server, channels: dict[int, Any], signals: StopSignals, seconds: float) -> None:
    """Let requests go on for at most ``seconds``, and close each connection that is idle."""
    requests, slow_clients = running_requests(), SlowClients()
    requests.begin_drain(seconds)
    server.draining = True
    deadline = time.monotonic() + seconds
    is_over = False
    while not is_over and time.monotonic() < deadline and not signals.forced:
        # First of all, what has already arrived.
        loop_once(channels, STOPPING_ROUND_SECONDS)
        slow_clients.sweep(channels.values())
        connections = [channel for channel in list(channels.values()) if isinstance(channel, Channel)]
        for connection in connections:
            connection.close_if_idle()
        is_over = not connections and not requests.at_work


def loop_once(channels: dict[int, Any], timeout: float = 1.0) -> None:
    """Wait at most ``timeout`` seconds for something to read or write, and do it."""
    wasyncore.loop(timeout=timeout, map=channels, use_poll=HAS_POLL, count=1)


def _busy(channels: dict[int, Any]) -> bool:
    return any(
        isinstance(channel, HTTPChannel) and (channel.requests or channel.total_outbufs_len)
        for channel in list(channels.values())
    )
