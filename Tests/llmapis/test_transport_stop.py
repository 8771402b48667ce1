"""Stopping a call in every phase."""
from __future__ import annotations

import statistics
import threading
import time
from functools import partial

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.transport import BackendRequest, BackendStream, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http import pool
from Middleware.utilities.http.wire import parse_target
from Tests.llmapis.transport_lab import ask, cancel_during, idle_connections
from Tests.stub_backend import Reply, StubBackend, json_reply, sse_reply, status_reply

pytestmark = pytest.mark.usefixtures("short_retry_waits")


def _list(stream: BackendStream) -> list[bytes]:
    return list(stream)


STREAM_PHASES = {
    "headers": Reply(never=True),
    "body": sse_reply(["a"], hang=True),
    "flowing": sse_reply(["a"] * 500, delay=0.02),
}


@pytest.mark.parametrize("phase", STREAM_PHASES)
def test_cancel_ends_a_stream_quietly_and_at_once(backend: StubBackend, transport: Transport, phase: str) -> None:
    backend.default = STREAM_PHASES[phase]
    delays = []
    for number in range(1, 4):
        scope = CancelScope()
        work = partial(_list, transport.open_stream(ask(backend), scope))
        _, moment, done = cancel_during(backend, scope, number, work)
        assert backend.requests[-1].wait_ended(1)
        delays.append(max(done, backend.requests[-1].ended_at or 0) - moment)
    assert statistics.median(delays) < 0.1 and max(delays) < 0.25
    assert idle_connections(transport) == 0


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(pieces=[b"{"], hang=True)], ids=["headers", "body"])
def test_cancel_ends_a_plain_call(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.default = reply
    scope = CancelScope()
    result, moment, done = cancel_during(backend, scope, 1, lambda: transport.post_json(ask(backend), scope))
    assert isinstance(result, EarlyTerminationException) and result.is_cancellation
    assert done - moment < 0.25
    assert backend.requests[0].wait_ended(1)
    assert (backend.requests[0].ended_at or 0) - moment < 0.25
    assert len(backend.requests) == 1


def test_cancel_works_where_a_shutdown_wakes_nobody(backend: StubBackend, transport: Transport,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.Connection, "shutdown", lambda self: None)
    backend.default = Reply(never=True)
    scope = CancelScope()
    result, moment, done = cancel_during(backend, scope, 1, lambda: list(transport.open_stream(ask(backend), scope)))
    assert result == []
    assert done - moment < 0.25


def test_cancelled_before_the_start_sends_nothing(backend: StubBackend, transport: Transport) -> None:
    scope = CancelScope()
    scope.cancel()
    assert list(transport.open_stream(ask(backend), scope)) == []
    with pytest.raises(EarlyTerminationException):
        transport.post_json(ask(backend), scope)
    assert backend.connections == 0


def test_cancel_frees_the_caller_while_connecting(backend: StubBackend, transport: Transport,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    release, opened = threading.Event(), []
    real_open = pool.ConnectionPool.open

    def slow_open(self: pool.ConnectionPool, *args: object) -> pool.Connection:
        release.wait(5)
        opened.append(real_open(self, *args))  # type: ignore[arg-type]
        return opened[0]

    monkeypatch.setattr(pool.ConnectionPool, "open", slow_open)
    scope = CancelScope()
    threading.Timer(0.1, scope.cancel).start()
    started = time.monotonic()
    assert list(transport.open_stream(ask(backend), scope)) == []
    assert time.monotonic() - started < 0.35
    release.set()  # the attempt ends unseen, and leaves no connection open
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and not (opened and opened[0].sock.fileno() == -1):
        time.sleep(0.01)
    assert opened[0].sock.fileno() == -1
    assert backend.requests == []


def test_cancel_ends_the_wait_before_a_retry(backend: StubBackend, transport: Transport) -> None:
    backend.script(status_reply(503, headers={"Retry-After": "9"}))
    scope = CancelScope()
    result, moment, done = cancel_during(backend, scope, 1, lambda: transport.post_json(ask(backend), scope))
    assert isinstance(result, EarlyTerminationException)
    assert done - moment < 0.25


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
    assert next(other) == b"data: a\n\n"
    scope.cancel()
    assert list(other) == [b"data: b\n\n"]
    hanging.join(1)
    assert not hanging.is_alive()


def test_cancel_while_the_server_reads_nothing() -> None:
    import socket
    with socket.create_server(("127.0.0.1", 0)) as server:
        scope = CancelScope()
        threading.Timer(0.2, scope.cancel).start()
        request = BackendRequest("e", f"http://127.0.0.1:{server.getsockname()[1]}/", {"t": "x" * 30_000_000})
        started = time.monotonic()
        assert list(Transport().open_stream(request, scope)) == []
        assert time.monotonic() - started < 1.0
