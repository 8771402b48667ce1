"""Whatever a server does, a call ends in a text or a BackendError, and leaves no connection but idle ones."""

from __future__ import annotations

import gc
import gzip
import socket
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    EarlyTerminationException,
)
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.models.cancel_scope import CancelScope
from Tests.llmapis.transport_lab import SOON, ask, idle_connections, open_sockets_to
from Tests.stub_backend import AFTER_HEADERS, AFTER_PIECES, BEFORE_STATUS, Reply, StubBackend, json_reply, sse_reply

pytestmark = pytest.mark.usefixtures("short_retry_waits")

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b'{"text": "hello"}'

# name: reply, what post_json ends in, what a stream ends in (bytes: the body that was read), idle connections per call
FAULTS: dict[str, tuple[Reply, type[BackendError] | dict[str, object], type[BackendError] | bytes, int]] = {
    "accept and close": (Reply(drop=BEFORE_STATUS), BackendConnectionError, BackendConnectionError, 0),
    "accept and reset": (Reply(drop=BEFORE_STATUS, reset=True), BackendConnectionError, BackendConnectionError, 0),
    "close after the headers": (
        Reply(pieces=[b"x"], drop=AFTER_HEADERS),
        BackendConnectionError,
        BackendConnectionError,
        0,
    ),
    "reset within a chunk": (
        Reply(pieces=[b"{"], drop=AFTER_PIECES, reset=True),
        BackendConnectionError,
        BackendConnectionError,
        0,
    ),
    "truncated chunk": (Reply(raw=CHUNKED + b"40\r\n{"), BackendConnectionError, BackendConnectionError, 0),
    "no last chunk": (Reply(raw=CHUNKED + b"2\r\n{}\r\n"), BackendConnectionError, BackendConnectionError, 0),
    "chunk longer than it says": (
        Reply(raw=CHUNKED + b"2\r\n{}}}}\r\n"),
        BackendResponseError,
        BackendResponseError,
        0,
    ),
    "chunk without a size": (Reply(raw=CHUNKED + b"zz\r\n{}\r\n"), BackendResponseError, BackendResponseError, 0),
    "body shorter than its length": (
        Reply(raw=HEAD + b"Content-Length: 99\r\n\r\n" + BODY),
        BackendConnectionError,
        BackendConnectionError,
        0,
    ),
    "body longer than its length": (
        Reply(raw=HEAD + b"Content-Length: 17\r\n\r\n" + BODY + b"more"),
        {"text": "hello"},
        BODY,
        0,
    ),
    "two lengths": (
        Reply(raw=HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
        BackendResponseError,
        BackendResponseError,
        0,
    ),
    "garbage instead of a status line": (
        Reply(raw=b"\x00\x01garbage\r\n\r\n"),
        BackendResponseError,
        BackendResponseError,
        0,
    ),
    "half a status line": (Reply(raw=b"HTTP/1.1 2"), BackendConnectionError, BackendConnectionError, 0),
    "half a head": (Reply(raw=HEAD + b"Content-Le"), BackendConnectionError, BackendConnectionError, 0),
    "endless headers": (Reply(raw=HEAD + b"A: b\r\n" * 60_000), BackendResponseError, BackendResponseError, 0),
    "another protocol": (
        Reply(raw=b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        BackendResponseError,
        BackendResponseError,
        0,
    ),
    "HTML with a good status": (Reply(body=b"<html></html>"), BackendResponseError, b"<html></html>", 1),
    "an error body with a good status": (json_reply({"error": "x"}), {"error": "x"}, b'{"error": "x"}', 1),
    "gzip": (Reply(body=gzip.compress(BODY), headers={"Content-Encoding": "gzip"}), {"text": "hello"}, BODY, 1),
    "broken gzip": (
        Reply(body=BODY, headers={"Content-Encoding": "gzip"}),
        BackendResponseError,
        BackendResponseError,
        1,
    ),
    "400": (json_reply({"error": "x"}, 400), BackendStatusError, BackendStatusError, 1),
    "500": (json_reply({"error": "x"}, 500), BackendStatusError, BackendStatusError, 1),
    "503 and close": (json_reply({"error": "x"}, 503, keep_alive=False), BackendStatusError, BackendStatusError, 0),
    "404 cut short": (
        Reply(status=404, body={"error": "x"}, drop=AFTER_PIECES),
        BackendStatusError,
        BackendStatusError,
        0,
    ),
    "silence": (Reply(never=True), BackendTimeoutError, BackendTimeoutError, 0),
    "silence within the answer": (Reply(pieces=[b"{"], hang=True), BackendTimeoutError, BackendTimeoutError, 0),
}


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except (BackendError, EarlyTerminationException) as error:
        return error


def check_end(backend: StubBackend, transport: Transport, idle: int, seconds: float = SOON) -> None:
    """No socket is open but idle ones, on either side, and none had to be closed by the garbage collector."""
    assert idle_connections(transport) == idle
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
        deadline = time.monotonic() + seconds  # a connection that nobody waits for any more is closed by its own thread
        while open_sockets_to(backend) != idle and time.monotonic() < deadline:
            time.sleep(0.02)
        assert open_sockets_to(backend) == idle
    assert [str(warning.message) for warning in found] == []
    deadline = time.monotonic() + seconds
    while len(backend._sockets) > idle and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(backend._sockets) == idle


def matches(result: object, expected: object) -> bool:
    return isinstance(result, expected) if isinstance(expected, type) else result == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(backend: StubBackend, transport: Transport, name: str) -> None:
    reply, plain, streamed, idle = FAULTS[name]
    backend.default = reply
    request = ask(backend, read_timeout=0.4 if "silence" in name else 4 * SOON)
    started = time.monotonic()
    result = outcome(lambda: transport.post_json(request))
    assert matches(result, plain), repr(result)
    result = outcome(lambda: b"".join(transport.open_stream(request)))
    assert matches(result, streamed), repr(result)
    assert time.monotonic() - started < SOON
    check_end(backend, transport, idle)


@pytest.mark.slow
def test_the_count_sees_a_leak(backend: StubBackend, transport: Transport) -> None:
    leaked = socket.create_connection(("127.0.0.1", backend.port))
    with pytest.raises(AssertionError):
        check_end(backend, transport, 0, 0.5)
    leaked.close()


def test_refused_leaves_nothing(transport: Transport) -> None:
    with StubBackend() as stub:
        request = BackendRequest("e", stub.url, {})
    assert isinstance(outcome(lambda: transport.post_json(request)), BackendConnectionError)
    check_end(stub, transport, 0)


@pytest.mark.parametrize(
    "reply",
    [
        sse_reply(["token"] * 5000, delay=0.02),
        Reply(pieces=[b" "] * 5000, delay=0.02, framing="length"),
        Reply(pieces=[b" "] * 5000, delay=0.02, framing="close"),
        Reply(status=500, pieces=[b" "] * 5000, delay=0.02),
        Reply(never=True),
    ],
    ids=["chunked", "length", "close", "error", "silence"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_slow_drips_that_are_cancelled(backend: StubBackend, transport: Transport, reply: Reply, stream: bool) -> None:
    backend.default = reply
    scope = CancelScope()
    threading.Timer(0.3, scope.cancel).start()
    started = time.monotonic()
    if stream:
        assert isinstance(outcome(lambda: b"".join(transport.open_stream(ask(backend), scope))), bytes)
    else:
        assert isinstance(outcome(lambda: transport.post_json(ask(backend), scope)), EarlyTerminationException)
    assert time.monotonic() - started < SOON
    check_end(backend, transport, 0)


def test_streams_that_nobody_reads_to_the_end(backend: StubBackend, transport: Transport) -> None:
    backend.default = sse_reply(["token"] * 500, delay=0.01)
    for _ in range(5):
        with transport.open_stream(ask(backend)) as stream:
            assert next(stream)
    abandoned = transport.open_stream(ask(backend))
    next(abandoned)
    del abandoned
    check_end(backend, transport, 0)
