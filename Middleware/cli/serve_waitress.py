"""Serving with Waitress: settings for hundreds of streams, JSON errors, and an orderly end."""
from __future__ import annotations

import select
import threading
import time
from typing import Any

from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel
from waitress.task import ErrorTask

from Middleware.cli.json_errors import error_body
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests
from Middleware.cli.stop_signals import StopSignals

WORKER_THREADS = 512  # all created at start: about 16 KB of memory each
MEGABYTE = 1024 * 1024
MAX_BODY_BYTES = 512 * MEGABYTE
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
        "max_request_body_size": MAX_BODY_BYTES,
        "inbuf_overflow": MAX_BODY_BYTES + MEGABYTE,
        "outbuf_overflow": MAX_BODY_BYTES + MEGABYTE,
        "recv_bytes": 65536,
        "expose_tracebacks": False,
        "clear_untrusted_proxy_headers": True,
        "log_socket_errors": False,  # a client that leaves is no error
        "ident": None,
    }


class JsonErrorTask(ErrorTask):
    """Answers what Waitress itself refuses (malformed, too large, a crash) as JSON."""

    def execute(self) -> None:
        error = self.request.error
        self.status = f"{error.code} {error.reason}"
        body = error_body(error.code, f"{error.reason}: {error.body}")
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class JsonErrorChannel(HTTPChannel):
    error_task_class = JsonErrorTask


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    channels: dict[int, Any] = {}
    server = create_server(launch.application, map=channels, sockets=[launch.sock], **waitress_settings())
    server.channel_class = JsonErrorChannel
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
