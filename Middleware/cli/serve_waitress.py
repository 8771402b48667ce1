"""Serving with Waitress: settings for hundreds of streams, JSON errors, and an orderly end."""
from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.task import ErrorTask

from Middleware.cli.json_errors import error_body
from Middleware.cli.listening import GOODBYE_SECONDS
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests
from Middleware.cli.stop_signals import StopSignals
from Middleware.common import instance_global_variables as instance

WORKER_THREADS = 512  # all created at start: about 16 KB of memory each
MEGABYTE = 1024 * 1024
NEVER = sys.maxsize  # bytes
HAS_POLL = hasattr(select, "poll")
FLUSH_SECONDS = 2.0


def waitress_settings() -> dict[str, Any]:
    """Waitress's adjustments. Buffers never overflow into temporary files: those would hold conversations."""
    return {
        "threads": WORKER_THREADS,
        "connection_limit": 1000 if HAS_POLL else 450,  # select() ends at 512 sockets on Windows
        "asyncore_use_poll": HAS_POLL,
        "channel_request_lookahead": 8,  # keep reading while a request runs, to see its client leave
        "channel_timeout": 120,
        "max_request_body_size": NEVER,  # Parser has the limit
        "inbuf_overflow": NEVER,
        "outbuf_overflow": NEVER,
        "recv_bytes": 65536,
        "expose_tracebacks": False,
        "clear_untrusted_proxy_headers": True,
        "log_socket_errors": False,  # a client that leaves is no error
        "ident": None,
    }


class Parser(HTTPRequestParser):
    """Stops reading a body above the limit. The application is told its length, and answers that.

    ``on_refusal`` is called then: the rest of the body is still to come, and no request can follow it.
    """

    def __init__(self, adj: Any, on_refusal: Callable[[], None]) -> None:
        super().__init__(adj)
        self._limit = instance.MAX_REQUEST_MB * MEGABYTE or NEVER
        self._on_refusal = on_refusal

    def received(self, data: bytes) -> int:
        consumed: int = super().received(data)
        size = self._size()
        if size <= self._limit:
            return consumed
        self.completed = True
        self.error, self.expect_continue = None, False
        self.headers.update(CONTENT_LENGTH=str(size), CONNECTION="close")
        self.close()
        self.body_rcv = None
        self._on_refusal()
        return len(data)

    def _size(self) -> int:
        """Bytes of the body: as announced, else so far. Framing counts where it is most of what was sent."""
        if not self.chunked or self.body_rcv is None:
            return self.content_length
        return max(len(self.body_rcv), self.body_bytes_received // 8)


class JsonErrorTask(ErrorTask):
    """Answers what Waitress itself refuses (malformed, a crash) as JSON."""

    def execute(self) -> None:
        error = self.request.error
        self.status = f"{error.code} {error.reason}"
        body = error_body(error.code, f"{error.reason}: {error.body}")
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class Channel(HTTPChannel):
    """A connection. After a refused body it lets the client read the answer before it closes.

    Closing at once would reset a connection on which data is under way, and the client might lose the answer.
    """

    error_task_class = JsonErrorTask
    _deaf = False  # throws away what arrives
    _goodbye_until: float | None = None  # monotonic; set once the answer is out and our sending half is closed

    def parser_class(self, adj: Any) -> Parser:
        """Called for every request, as the class would be."""
        return Parser(adj, self._grow_deaf)

    def _grow_deaf(self) -> None:
        self._deaf = True

    def received(self, data: bytes) -> bool:
        return self._deaf or bool(super().received(data))

    def readable(self) -> bool:
        return self._goodbye_until is not None or super().readable()

    def writable(self) -> bool:
        return self.will_close if self._goodbye_until is not None else super().writable()

    def handle_write(self) -> None:
        if not self._deaf or not self.close_when_flushed or self.will_close:
            super().handle_write()
            return
        self._flush_exception(self._flush_some)
        if not self.total_outbufs_len and not self.will_close:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        self.close_when_flushed = False
        self._goodbye_until = time.monotonic() + GOODBYE_SECONDS
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:  # the peer has gone
            self.will_close = True

    def handle_read(self) -> None:
        super().handle_read()
        if self._goodbye_until is not None and time.monotonic() > self._goodbye_until:
            self.will_close = True


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    channels: dict[int, Any] = {}
    server = create_server(launch.application, map=channels, sockets=[launch.sock], **waitress_settings())
    server.channel_class = Channel
    launch.announce()
    with StopSignals(wake=server.pull_trigger) as signals:
        while not signals.requested:
            _turn(channels)
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
