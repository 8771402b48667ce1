"""Calls of local services, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.services.service_http import ServiceHttp, ServiceReply, target_of
from Middleware.utilities.http import pool
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import AFTER_HEADERS, AFTER_PIECES, BEFORE_STATUS, Reply, StubBackend, json_reply, status_reply
from Tests.tables import table


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as backend:
        yield backend


@pytest.fixture
def http() -> ServiceHttp:
    return ServiceHttp()


def get(http: ServiceHttp, backend: StubBackend, scope: CancelScope | None = None, **options: Any) -> ServiceReply:
    return http.get("127.0.0.1", backend.port, "/find", {"prompt": "a b&ü", "n": 1}, scope, **options)


def post(http: ServiceHttp, backend: StubBackend) -> ServiceReply:
    return http.post("127.0.0.1", backend.port, "/search", {"query": "ü"})


def test_get(backend: StubBackend, http: ServiceHttp) -> None:
    backend.script(json_reply([{"title": "ü"}]))
    assert get(http, backend) == ServiceReply([{"title": "ü"}], 200)
    request = backend.requests[0]
    assert (request.method, request.path, request.body) == ("GET", "/find?prompt=a+b%26%C3%BC&n=1", b"")


def test_post(backend: StubBackend, http: ServiceHttp) -> None:
    assert post(http, backend) == ServiceReply({"ok": True}, 200)
    request = backend.requests[0]
    assert (request.method, request.path, request.json) == ("POST", "/search", {"query": "ü"})
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("make", [ServiceHttp.get, ServiceHttp.post])
def test_half_a_surrogate_pair_can_be_sent(backend: StubBackend, http: ServiceHttp, make: Any) -> None:
    assert make(http, "127.0.0.1", backend.port, "/", {"q": "a\ud800b"}).problem == ""
    assert backend.requests[0].json == {"q": "a?b"} if backend.requests[0].body else "a%3Fb" in backend.requests[0].path


@pytest.mark.parametrize(
    ("reply", "status", "problem"),
    [
        (status_reply(404), 404, "http_404"),
        (status_reply(500), 500, "http_500"),
        (Reply(status=301, body=b"", headers={"Location": "/"}), 301, "http_301"),
        (json_reply({}, 201), 201, "http_201"),
        (Reply(body=b"<html>"), 200, "invalid_json"),
        (Reply(body=b"\xff\xff\xff"), 200, "invalid_json"),
        (Reply(body=b"[" * 200_000), 200, "invalid_json"),
        (Reply(raw=b"SSH-2.0-x\r\n\r\n"), None, "transport_error"),
        (Reply(pieces=[b"[1,"], drop=AFTER_PIECES), None, "transport_error"),
        (Reply(pieces=[b"[1,", b"2]"], framing="length", drop=AFTER_HEADERS), None, "transport_error"),
    ],
)
def test_problems(backend: StubBackend, http: ServiceHttp, reply: Reply, status: int | None, problem: str) -> None:
    backend.default = reply
    assert post(http, backend) == ServiceReply(None, status, problem)


@table(
    ("reply", "words"),
    [
        (status_reply(500), "status 500"),
        (Reply(body=b"<html>"), "an answer that is not JSON"),
        (Reply(pieces=[b"[1,"], drop=AFTER_PIECES), "the server closed the connection in the middle of its answer"),
        (None, "connection refused"),
    ],
)
def test_the_log_says_in_words_what_is_wrong(
    backend: StubBackend, http: ServiceHttp, caplog: pytest.LogCaptureFixture, reply: Reply | None, words: str
) -> None:
    backend.default = reply or backend.default
    port = backend.port if reply else 1
    http.get("127.0.0.1", port, "/top_article", {"prompt": "walrus"})
    line = caplog.messages[-1]
    assert line.startswith(f"The service at 127.0.0.1, port {port}: {words}") and line.endswith(" at /top_article")


@pytest.mark.parametrize("port", [1, 0, -1, 99999])
def test_nobody_there(http: ServiceHttp, port: int) -> None:
    assert http.get("127.0.0.1", port, "/", {}).problem == "transport_error"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "", "a b", "ü" * 80, "127.0.0.1\r\nX: y"])
def test_impossible_host(http: ServiceHttp, host: str) -> None:
    assert http.get(host, 1, "/", {}, seconds=1).problem in ("transport_error", "timeout")


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(pieces=[b"["], hang=True)], ids=["headers", "body"])
def test_read_timeout(backend: StubBackend, http: ServiceHttp, reply: Reply) -> None:
    assert not get(http, backend).problem  # so that the time is not used up for connecting
    backend.default = reply
    assert get(http, backend, seconds=0.1).problem == "timeout"
    assert backend.wait_requests(2)[1].wait_ended()
    assert len(backend.requests) == 2


def test_connect_timeout(http: ServiceHttp) -> None:
    """A listener whose queue is full answers no further connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        started = time.monotonic()
        reply = http.get("127.0.0.1", full.getsockname()[1], "/", {}, seconds=0.2)
        for sock in waiting:
            sock.close()
    assert reply.problem == "timeout"
    assert time.monotonic() - started < SOON


# -- connections -------------------------------------------------------------------------------------------------------


def test_connections_are_kept(backend: StubBackend, http: ServiceHttp) -> None:
    for _ in range(3):
        assert not get(http, backend).problem
    backend.script(status_reply(404))
    assert post(http, backend).status == 404
    assert not get(http, backend).problem
    assert backend.connections == 1


def test_connections_expire(backend: StubBackend, http: ServiceHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PLAIN_IDLE_SECONDS", 0.0)
    get(http, backend)
    get(http, backend)
    assert backend.connections == 2
    assert backend.requests[0].wait_ended()


@pytest.mark.parametrize("keep_alive", [True, False])
def test_expired_connections_to_other_services_are_closed(
    backend: StubBackend, http: ServiceHttp, keep_alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PLAIN_IDLE_SECONDS", 0.05)
    get(http, backend)
    time.sleep(0.1)
    with StubBackend(json_reply({"ok": True}, keep_alive=keep_alive)) as other:
        get(http, other)
        assert backend.requests[0].wait_ended()


def test_a_connection_that_the_service_ends_is_not_kept(backend: StubBackend, http: ServiceHttp) -> None:
    backend.script(json_reply(1, keep_alive=False))
    assert get(http, backend).value == 1
    assert get(http, backend).value == {"ok": True}
    assert backend.connections == 2


@pytest.mark.parametrize("reset", [False, True])
def test_a_read_is_tried_once_more_after_a_reset(backend: StubBackend, http: ServiceHttp, reset: bool) -> None:
    lost = Reply(drop=BEFORE_STATUS, reset=reset)
    backend.script(lost, json_reply(2), lost, lost, json_reply(5))
    assert get(http, backend).value == 2
    assert get(ServiceHttp(), backend).problem == "transport_error"
    assert len(backend.requests) == 4


def test_a_search_is_repeated_only_after_a_kept_connection_was_lost(backend: StubBackend, http: ServiceHttp) -> None:
    lost = Reply(drop=BEFORE_STATUS)
    backend.script(lost)
    assert post(http, backend).problem == "transport_error"
    backend.script(json_reply(1), lost, json_reply(2))
    assert post(http, backend).value == 1
    assert post(http, backend).value == 2
    assert len(backend.requests) == 4


def test_parallel_calls(backend: StubBackend, http: ServiceHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    together, real_take = threading.Barrier(8), pool.ConnectionPool.take

    def take(self: pool.ConnectionPool, *args: Any) -> Any:
        found = real_take(self, *args)
        # No call is sent before all have looked for a connection.
        together.wait(60)
        return found

    monkeypatch.setattr(pool.ConnectionPool, "take", take)
    replies: list[ServiceReply] = []
    threads = [threading.Thread(target=lambda: replies.append(get(http, backend))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert [reply.value for reply in replies] == [{"ok": True}] * 8
    assert backend.connections == 8


# -- stopping ----------------------------------------------------------------------------------------------------------


def cancelled_call(http: ServiceHttp, backend: StubBackend, scope: CancelScope) -> float:
    """Make the call, expect it to end as cancelled, and return the moment."""
    with pytest.raises(EarlyTerminationException) as caught:
        get(http, backend, scope)
    assert caught.value.is_cancellation
    return time.monotonic()


@pytest.mark.parametrize(
    "reply",
    [Reply(never=True), Reply(pieces=[b"["], hang=True), Reply(pieces=[b"["] * 5000, delay=0.02)],
    ids=["headers", "body", "flowing"],
)
def test_cancel(backend: StubBackend, http: ServiceHttp, reply: Reply) -> None:
    backend.default = reply
    scope = CancelScope()
    cancelled_at: list[float] = []

    def cancel() -> None:
        backend.wait_requests()
        time.sleep(0.05)
        cancelled_at.append(time.monotonic())
        scope.cancel()

    threading.Thread(target=cancel).start()
    ended = cancelled_call(http, backend, scope)
    assert ended - cancelled_at[0] < SOON
    assert backend.requests[0].wait_ended()
    assert (backend.requests[0].ended_at or 0) - cancelled_at[0] < SOON
    assert len(backend.requests) == 1


def test_cancel_while_connecting(backend: StubBackend, http: ServiceHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, connecting, closed = threading.Event(), threading.Event(), threading.Event()
    real_open, real_close = pool.ConnectionPool.open, pool.Connection.close

    def slow_open(self: pool.ConnectionPool, *args: Any) -> pool.Connection:
        connecting.set()
        go_on.wait(60)
        return real_open(self, *args)

    def close(self: pool.Connection) -> None:
        real_close(self)
        closed.set()

    monkeypatch.setattr(pool.ConnectionPool, "open", slow_open)
    monkeypatch.setattr(pool.Connection, "close", close)
    scope = CancelScope()
    threading.Thread(target=lambda: (connecting.wait(60), scope.cancel())).start()
    started = time.monotonic()
    assert cancelled_call(http, backend, scope) - started < SOON
    go_on.set()
    assert closed.wait(SOON)
    assert backend.requests == []


def test_cancelled_before_the_start(backend: StubBackend, http: ServiceHttp) -> None:
    scope = CancelScope()
    scope.cancel()
    cancelled_call(http, backend, scope)
    assert backend.connections == 0


def test_a_late_cancel_leaves_kept_connections_alone(backend: StubBackend, http: ServiceHttp) -> None:
    scope = CancelScope()
    get(http, backend, scope)
    scope.cancel()
    assert not get(http, backend).problem
    assert backend.connections == 1


# -- proxies -----------------------------------------------------------------------------------------------------------


def test_a_service_elsewhere_is_asked_through_the_proxy(
    backend: StubBackend, http: ServiceHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", backend.url)
    assert http.get("wiki.invalid", 5728, "/find", {"n": 1}) == ServiceReply({"ok": True}, 200)
    assert backend.requests[0].path == "http://wiki.invalid:5728/find?n=1"


def test_a_service_on_this_computer_is_not(
    backend: StubBackend, http: ServiceHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:1")
    assert get(http, backend).problem == ""


def test_an_ipv6_address_needs_no_brackets() -> None:
    assert target_of("::1", 5728, "/").host_header == "[::1]:5728"
