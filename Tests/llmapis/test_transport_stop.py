"""Stopping a call in every phase."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.transport import BackendRequest, BackendStream, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http import connection, pool
from Middleware.utilities.http.wire import parse_target
from Tests.llmapis.transport_lab import SOON, ask, cancel_during, idle_connections
from Tests.stub_backend import Reply, StubBackend, json_reply, sse_reply

pytestmark = pytest.mark.usefixtures("short_retry_waits")


def _list(stream: BackendStream) -> list[bytes]:
    return list(stream)


STREAM_PHASES = {
    "headers": Reply(never=True),
    "body": sse_reply(["a"], hang=True),
    "flowing": sse_reply(["a"] * 5000, delay=0.02),
}


@pytest.mark.parametrize("phase", STREAM_PHASES)
def test_cancel_ends_a_stream_quietly_and_at_once(
    backend: StubBackend, transport: Transport, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A wait of this length ends in time only if the shutdown of the socket wakes the reader.
    monkeypatch.setattr(connection, "SLICE_SECONDS", 60.0)
    backend.default = STREAM_PHASES[phase]
    delays = []
    for number in range(1, 4):
        scope = CancelScope()
        work = partial(_list, transport.open_stream(ask(backend), scope))
        _, moment, done = cancel_during(backend, scope, number, work)
        assert backend.requests[-1].wait_ended()
        delays.append(max(done, backend.requests[-1].ended_at or 0) - moment)
    assert max(delays) < SOON
    assert idle_connections(transport) == 0


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(pieces=[b"{"], hang=True)], ids=["headers", "body"])
def test_cancel_ends_a_plain_call(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.default = reply
    scope = CancelScope()
    result, moment, done = cancel_during(backend, scope, 1, lambda: transport.post_json(ask(backend), scope))
    assert isinstance(result, EarlyTerminationException) and result.is_cancellation
    assert done - moment < SOON
    assert backend.requests[0].wait_ended()
    assert (backend.requests[0].ended_at or 0) - moment < SOON
    assert len(backend.requests) == 1


def test_cancel_works_where_a_shutdown_wakes_nobody(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.Connection, "shutdown", lambda self: None)
    backend.default = Reply(never=True)
    scope = CancelScope()
    result, moment, done = cancel_during(backend, scope, 1, lambda: list(transport.open_stream(ask(backend), scope)))
    assert result == []
    # Then the end of a slice ends the wait.
    assert connection.SLICE_SECONDS <= 0.2 and done - moment < SOON


def test_cancelled_before_the_start_sends_nothing(backend: StubBackend, transport: Transport) -> None:
    scope = CancelScope()
    scope.cancel()
    assert list(transport.open_stream(ask(backend), scope)) == []
    with pytest.raises(EarlyTerminationException):
        transport.post_json(ask(backend), scope)
    assert backend.connections == 0


def test_cancel_frees_the_caller_while_connecting(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, release, closed, opened = threading.Event(), threading.Event(), threading.Event(), []
    real_open = pool.ConnectionPool.open

    def slow_open(self: pool.ConnectionPool, *args: object) -> pool.Connection:
        connecting.set()
        release.wait(60)
        opened.append(real_open(self, *args))  # type: ignore[arg-type]
        return opened[0]

    real_close = pool.Connection.close
    monkeypatch.setattr(pool.Connection, "close", lambda self: (real_close(self), closed.set()))
    monkeypatch.setattr(pool.ConnectionPool, "open", slow_open)
    scope = CancelScope()
    threading.Thread(target=lambda: (connecting.wait(60), scope.cancel())).start()
    started = time.monotonic()
    assert list(transport.open_stream(ask(backend), scope)) == []
    assert time.monotonic() - started < SOON
    release.set()  # the attempt ends unseen, and leaves no connection open
    assert closed.wait(SOON) and opened[0].sock.fileno() == -1
    assert backend.requests == []


def test_an_answer_that_came_meanwhile_is_not_delivered(backend: StubBackend, transport: Transport) -> None:
    scope = CancelScope()

    def answer(_request: object) -> Reply:
        scope.cancel()
        return json_reply({"late": True})

    backend.responder = answer
    with pytest.raises(EarlyTerminationException):
        transport.post_json(ask(backend), scope)


def test_a_stop_after_the_end_leaves_the_kept_connection_alone(backend: StubBackend, transport: Transport) -> None:
    scope = CancelScope()
    transport.post_json(ask(backend), scope)
    scope.cancel()
    transport.post_json(ask(backend))
    assert backend.connections == 1


def test_a_stop_that_comes_too_late_finds_no_socket(backend: StubBackend) -> None:
    kept = pool.ConnectionPool()
    stream = BackendStream(kept, ask(backend), CancelScope())
    assert list(stream) == [b'{"ok": true}']
    stream.abort()  # as if the cancelling thread had fetched the callback before it was removed
    connection = kept.take(parse_target(ask(backend).url))
    assert connection is not None
    connection.close()


def test_a_stop_touches_no_other_call(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(never=True), sse_reply(["a", "b"], delay=0.3))
    scope = CancelScope()
    hanging = threading.Thread(target=_list, args=(transport.open_stream(ask(backend), scope),))
    hanging.start()
    backend.wait_requests(1)
    other = transport.open_stream(ask(backend))
    first = next(other)
    scope.cancel()
    assert first + b"".join(other) == b"data: a\n\ndata: b\n\n"
    hanging.join(SOON)
    assert not hanging.is_alive()


def test_cancel_while_the_server_reads_nothing() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        scope = CancelScope()
        threading.Timer(0.2, scope.cancel).start()
        request = BackendRequest("e", f"http://127.0.0.1:{server.getsockname()[1]}/", {"t": "x" * 30_000_000})
        started = time.monotonic()
        assert list(Transport().open_stream(request, scope)) == []
        assert time.monotonic() - started < SOON
