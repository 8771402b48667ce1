"""Serving with Waitress: settings for hundreds of streams, JSON errors, and an orderly end."""
from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask

from Middleware.api.edge.browser_safety import headers_of_every_answer
from Middleware.cli.listening import GOODBYE_SECONDS
from Middleware.cli.serving import limits
from Middleware.cli.serving.json_errors import error_body
from Middleware.cli.serving.shortage import Shortage
from Middleware.cli.serving.waitress_parser import NEVER, Parser
from Middleware.cli.serving.waitress_threads import Dispatcher
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests
from Middleware.cli.stop_signals import StopSignals

logger = logging.getLogger(__name__)

WORKER_THREADS = 512  # all created at start: about 16 KB of memory each
HAS_POLL = hasattr(select, "poll")
FLUSH_SECONDS = 2.0


def waitress_settings() -> dict[str, object]:
    """Waitress's adjustments. Buffers never overflow into temporary files: those would hold conversations."""
    return {
        "threads": WORKER_THREADS,
        "connection_limit": 1000 if HAS_POLL else 450,  # select() ends at 512 sockets on Windows
        "asyncore_use_poll": HAS_POLL,
        "channel_request_lookahead": limits.PIPELINED + 1,  # and the one that runs: read on, to see its client leave
        "channel_timeout": limits.IDLE_SECONDS,
        "cleanup_interval": limits.SWEEP_SECONDS,
        "max_request_header_size": limits.HEAD_BYTES,
        "outbuf_high_watermark": limits.UNSENT_BYTES,
        "max_request_body_size": NEVER,  # Parser has the limit
        "inbuf_overflow": NEVER,
        "outbuf_overflow": NEVER,
        "recv_bytes": 65536,
        "expose_tracebacks": False,
        "clear_untrusted_proxy_headers": False,  # they give no rights, but show that a client is not on this computer
        "log_socket_errors": False,  # a client that leaves is no error
        "ident": None,
    }


class JsonErrorTask(ErrorTask):
    """Answers what Waitress itself refuses (malformed, a crash) as JSON."""

    def execute(self) -> None:
        error = self.request.error
        self.status = f"{error.code} {error.reason}"
        body = error_body(error.code, f"{error.reason}: {error.body}")
        self.response_headers += [("Content-Type", "application/json"), *headers_of_every_answer()]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class Channel(HTTPChannel):
    """A connection. After a refused body it lets the client read the answer before it closes.

    Closing at once would reset a connection on which data is under way, and the client might lose the answer.
    """

    error_task_class = JsonErrorTask
    sends = 0  # how often the client took something
    _deaf = False  # throws away what arrives
    _goodbye_until: float | None = None  # monotonic; set once the answer is out and our sending half is closed

    def parser_class(self, adj: object) -> Parser:
        """Called for every request, as the class would be."""
        return Parser(adj, self._grow_deaf, self.server.is_unwelcome)

    def _grow_deaf(self) -> None:
        self._deaf = True

    def received(self, data: bytes) -> bool:
        return self._deaf or bool(super().received(data))

    def readable(self) -> bool:
        return self._goodbye_until is not None or super().readable()

    def writable(self) -> bool:
        return self.will_close if self._goodbye_until is not None else super().writable()

    def handle_write(self) -> None:
        if not self._deaf or self.will_close:
            super().handle_write()
            return
        at_end = self.close_when_flushed  # asked once: a thread may set it any time, and then writes no more
        self._flush_exception(self._flush_some if at_end else self._flush_some_if_lockable)
        if at_end and not self.total_outbufs_len and not self.will_close:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self.close_when_flushed = False
        self._goodbye_until = time.monotonic() + GOODBYE_SECONDS
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:  # the peer has gone
            self.will_close = True

    def _flush_some(self, do_close: bool = True) -> bool:
        sent: bool = super()._flush_some(do_close)
        self.sends += sent
        return sent

    def handle_read(self) -> None:
        super().handle_read()
        if self._goodbye_until is not None and time.monotonic() > self._goodbye_until:
            self.will_close = True


class Server(TcpWSGIServer):
    """Accepts connections. Without a free descriptor it lets them wait, where Waitress would ask again at once."""

    channel_class = Channel
    is_unwelcome: Callable[[dict[str, object]], bool] | None = None  # judges requests by their heads

    def __init__(self, *arguments: object, **options: object) -> None:
        self._shortage = Shortage()
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
            except OSError as error:  # of one connection that has ended already; Waitress would stop to listen
                logger.debug("A connection could not be taken: %s", error)

    def accept(self) -> object:
        try:
            accepted = super().accept()
        except OSError as error:
            if self._shortage.begins(error):
                self._closed_until = time.monotonic() + limits.SHORTAGE_SECONDS
            raise
        if accepted is not None:
            self._accepted += 1
            self._shortage.ends()
        return accepted


class Patience:
    """Gives up clients that take nothing of their answer, as each may hold a thread, memory and a back-end, and those
    whose request's head does not come to its end.

    Waitress itself only closes idle connections, and waits until it can write before it does.
    """

    def __init__(self) -> None:
        self._last_seen: dict[Channel, tuple[int, float]] = {}
        self._heads: dict[Parser, float] = {}
        self._next_look = 0.0

    def look(self, channels: Iterable[object]) -> None:
        """To be called often, between two turns of the loop; a look is taken now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + limits.SWEEP_SECONDS
        clients = [channel for channel in list(channels) if isinstance(channel, Channel)]
        self._look_at_readers([channel for channel in clients if channel.total_outbufs_len], now)
        self._look_at_heads(clients, now)

    def _look_at_readers(self, clients: list[Channel], now: float) -> None:
        seen: dict[Channel, tuple[int, float]] = {}
        for channel in clients:
            sends, since = self._last_seen.get(channel, (-1, now))
            seen[channel] = (channel.sends, since if sends == channel.sends else now)
            if now - seen[channel][1] >= limits.STALLED_SECONDS:
                logger.info("A client that has stopped reading is given up")
                channel.handle_close()
        self._last_seen = seen

    def _look_at_heads(self, clients: list[Channel], now: float) -> None:
        heads: dict[Parser, float] = {}
        for channel in clients:
            head = channel.request
            if head is None or head.headers_finished or head.completed:
                continue
            heads[head] = self._heads.get(head, now)
            if now - heads[head] >= limits.HEAD_SECONDS:
                channel.handle_close()
        self._heads = heads


def make_server(application: Callable[..., Any], sock: socket.socket, channels: dict[int, Any]) -> Server:
    """A server on a bound socket; it listens from now on."""
    adjustments = Adjustments(sockets=[sock], **waitress_settings())
    server = Server(application, channels, True, sock, Dispatcher(WORKER_THREADS), adjustments, bind_socket=False,
                    sockinfo=(sock.family, sock.type, sock.proto, sock.getsockname()))
    server.is_unwelcome = getattr(application, "refuses", None)
    return server


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    channels: dict[int, Any] = {}
    server = make_server(launch.application, launch.sock, channels)
    patience = Patience()
    with StopSignals(wake=server.pull_trigger) as signals:
        launch.announce()
        while not signals.requested:
            _turn(channels)
            patience.look(channels.values())
        _stop(server, channels, signals)


def _stop(server: Any, channels: dict[int, Any], signals: StopSignals) -> None:
    """Close the door, end the requests on a helper thread, and keep writing answers meanwhile."""
    wasyncore.dispatcher.close(server)  # the listening socket only: its own close() also ends the trigger
    helper = threading.Thread(target=finish_requests, args=(SHUTDOWN_SECONDS,), name="shutdown", daemon=True)
    helper.start()
    while helper.is_alive() and not signals.impatient:
        _turn(channels, 0.05)
    deadline = time.monotonic() + FLUSH_SECONDS
    while _busy(channels) and time.monotonic() < deadline and not signals.impatient:
        _turn(channels, 0.05)
    wasyncore.close_all(channels)


def _turn(channels: dict[int, Any], timeout: float = 1.0) -> None:
    wasyncore.loop(timeout=timeout, map=channels, use_poll=HAS_POLL, count=1)


def _busy(channels: dict[int, Any]) -> bool:
    return any(isinstance(channel, HTTPChannel) and (channel.requests or channel.total_outbufs_len)
               for channel in list(channels.values()))
