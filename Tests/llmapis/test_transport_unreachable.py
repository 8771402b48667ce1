"""The cache of origins that could not be reached."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time

import pytest

from Middleware.exceptions import BackendConnectionError, BackendError, BackendTimeoutError
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.utilities.http import connect, pool
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.pool import MAX_ORIGINS, UnreachableOrigins
from Middleware.utilities.http.problems import HttpError, HttpProblem, Kind
from Middleware.utilities.http.wire import HttpRequest, parse_target
from Tests.llmapis.transport_lab import SOON, ask, closed_port
from Tests.stub_backend import StubBackend

ORIGIN = ("http", "host", 80)
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
NO_ROUTE = OSError(errno.EHOSTUNREACH, "No route to host")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# ---- the cache itself

WHY = HttpProblem(Kind.REFUSED, "why")


@pytest.mark.parametrize(
    ("cause", "seconds"),
    [(REFUSED, 1.0), (TimeoutError("connect"), 5.0), (socket.gaierror(-2, "unknown"), 5.0), (NO_ROUTE, 5.0)],
)
def test_how_long_a_failure_is_remembered(cause: Exception, seconds: float) -> None:
    clock = Clock()
    memory = UnreachableOrigins(clock)
    memory.remember(ORIGIN, cause, WHY, 30.0)
    clock.now += seconds - 0.25
    assert memory.find(ORIGIN, 30.0) == HttpProblem(Kind.REFUSED, "not tried again for 1 s after: why")
    assert memory.find(("http", "host", 81), 30.0) is None
    clock.now += 0.25
    assert memory.find(ORIGIN, 30.0) is None


@pytest.mark.parametrize("cause", [ssl.SSLError("handshake"), ConnectionResetError(104, "reset"), ValueError("URL")])
def test_a_host_that_was_reached_is_not_remembered(cause: Exception) -> None:
    memory = UnreachableOrigins()
    memory.remember(ORIGIN, cause, WHY, 30.0)
    assert memory.find(ORIGIN, 30.0) is None


def test_forgetting() -> None:
    memory = UnreachableOrigins()
    memory.remember(ORIGIN, REFUSED, WHY, 30.0)
    memory.forget(ORIGIN)
    memory.forget(ORIGIN)
    assert memory.find(ORIGIN, 30.0) is None


def test_the_oldest_notes_make_room() -> None:
    memory = UnreachableOrigins(Clock())
    for port in range(MAX_ORIGINS + 10):
        memory.remember(("http", "host", port), REFUSED, WHY, 30.0)
        memory.remember(("http", "host", 0), REFUSED, WHY, 30.0)  # renewed, so never the oldest
    assert memory.find(("http", "host", 0), 30.0) is not None
    assert memory.find(("http", "host", 5), 30.0) is None


@pytest.mark.parametrize(("asked", "found"), [(0.5, True), (2.0, True), (2.5, False)])
def test_a_longer_attempt_may_succeed(asked: float, found: bool) -> None:
    memory = UnreachableOrigins(Clock())
    memory.remember(ORIGIN, TimeoutError("connect"), WHY, 2.0)
    assert (memory.find(ORIGIN, asked) is not None) is found
    assert memory.find(ORIGIN, 2.0) is not None  # and asking forgets nothing


def test_a_shorter_attempt_does_not_replace_what_a_longer_one_found() -> None:
    clock = Clock()
    memory = UnreachableOrigins(clock)
    memory.remember(ORIGIN, TimeoutError("connect"), WHY, 30.0)
    memory.remember(ORIGIN, TimeoutError("connect"), HttpProblem(Kind.REFUSED, "shorter"), 1.0)
    known = memory.find(ORIGIN, 30.0)
    assert known is not None and known.text.endswith("after: why")
    clock.now += 5.0
    memory.remember(ORIGIN, TimeoutError("connect"), WHY, 1.0)
    assert memory.find(ORIGIN, 30.0) is None and memory.find(ORIGIN, 1.0) is not None


# ---- in use


def fail(transport: Transport, request: BackendRequest) -> tuple[BackendError, float]:
    started = time.monotonic()
    with pytest.raises(BackendError) as caught:
        transport.post_json(request)
    return caught.value, time.monotonic() - started


def opens_fail(monkeypatch: pytest.MonkeyPatch, cause: Exception) -> list[object]:
    """Make every attempt to connect raise ``cause``; the list grows with each."""
    attempts: list[object] = []

    def refuse(*arguments: object) -> None:
        attempts.append(arguments)
        raise cause

    monkeypatch.setattr(pool.ConnectionPool, "open", refuse)
    monkeypatch.setattr(connect, "CONNECT_WAITS", (0.0,))
    return attempts


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
    ("cause", "kind", "text"),
    [
        (TimeoutError("connect"), BackendTimeoutError, "could not connect in time"),
        (socket.gaierror(-2, "unknown"), BackendConnectionError, "the host name 'host.test' cannot be resolved"),
        (NO_ROUTE, BackendConnectionError, "no connection (No route to host)"),
    ],
)
def test_later_calls_fail_at_once_in_the_same_way(
    transport: Transport,
    monkeypatch: pytest.MonkeyPatch,
    single: bool,
    cause: Exception,
    kind: type[BackendError],
    text: str,
) -> None:
    attempts = opens_fail(monkeypatch, cause)
    monkeypatch.setattr(transport._pool, "unreachable", UnreachableOrigins(Clock()))
    first, _ = fail(transport, BackendRequest("first", "http://host.test/a", {}, single_attempt=single))
    count = len(attempts)
    again, _ = fail(transport, BackendRequest("second", "http://host.test/b", {}, single_attempt=not single))
    assert type(first) is type(again) is kind
    assert "not tried" not in str(first)
    assert str(again).startswith("Endpoint 'second' (http://host.test/b): not tried again for 5 s after: " + text)
    assert len(attempts) == count


@pytest.mark.parametrize(("first", "second", "tried"), [(1, 30, True), (30, 1, False), (5, 5, False)])
def test_a_short_connect_timeout_blocks_no_patient_call(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, first: float, second: float, tried: bool
) -> None:
    attempts = opens_fail(monkeypatch, TimeoutError("connect"))
    fail(transport, BackendRequest("e", "http://host.test/", {}, connect_timeout=first, single_attempt=True))
    fail(transport, BackendRequest("e", "http://host.test/", {}, connect_timeout=second, single_attempt=True))
    assert len(attempts) == 1 + tried


@pytest.mark.parametrize("without", [0, 1])
def test_a_call_may_do_without_the_cache(monkeypatch: pytest.MonkeyPatch, without: int) -> None:
    attempts, client = opens_fail(monkeypatch, TimeoutError("connect")), HttpClient()
    for number in range(2):
        with pytest.raises(HttpError):
            client.call(HttpRequest(parse_target("http://host.test/"), remembers_unreachable=number != without))
    assert len(attempts) == 2


@pytest.mark.parametrize(("proxy", "tried"), [("http://proxy.test:1", True), ("", False)])
def test_directly_and_by_proxy_are_two_ways(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, proxy: str, tried: bool
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    attempts = opens_fail(monkeypatch, TimeoutError("connect"))
    for local_only in (True, False):
        fail(transport, BackendRequest("e", "http://host.test/", {}, single_attempt=True, local_only=local_only))
    assert len(attempts) == 1 + tried


@pytest.mark.slow
def test_refused_waits_only_the_first_time(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(transport._pool, "unreachable", UnreachableOrigins(clock))
    request = BackendRequest("e", f"http://127.0.0.1:{closed_port()}/", {})
    assert fail(transport, request)[1] >= 0.7
    assert "not tried again for 1 s after: connection refused." in str(fail(transport, request)[0])
    clock.now += 1.0
    assert fail(transport, request)[1] >= 0.7


def test_a_single_refusal_takes_nothing_from_calls_that_may_wait(transport: Transport) -> None:
    port = closed_port()
    fail(transport, BackendRequest("e", f"http://127.0.0.1:{port}/", {}, single_attempt=True))
    assert fail(transport, BackendRequest("e", f"http://127.0.0.1:{port}/", {}))[1] >= 0.7


def test_a_server_that_is_started_again_is_found(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(transport._pool, "unreachable", UnreachableOrigins(clock))
    with monkeypatch.context() as patched:
        opens_fail(patched, REFUSED)
        fail(transport, ask(backend))
    assert "not tried" in str(fail(transport, ask(backend))[0])
    clock.now += pool.REFUSED_SECONDS
    assert transport.post_json(ask(backend)) == {"ok": True}


def test_streams_use_the_memory_too(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    opens_fail(monkeypatch, TimeoutError("connect"))
    request = BackendRequest("e", "http://host.test/", {})
    fail(transport, request)
    with pytest.raises(BackendTimeoutError, match="not tried again"):
        next(transport.open_stream(request))


def test_calls_that_wait_already_go_on_and_their_success_clears_the_memory(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, started, release = pool.ConnectionPool.open, threading.Event(), threading.Event()

    def late(self: pool.ConnectionPool, *arguments: object) -> pool.Connection:
        started.set()
        release.wait(60)
        return real_open(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pool.ConnectionPool, "open", late)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(transport.post_json(ask(backend))))
    waiting.start()
    assert started.wait(SOON)
    origin = parse_target(backend.url).origin
    transport._pool.unreachable.remember(origin, TimeoutError(), WHY, 30.0)
    assert "not tried" in str(fail(transport, ask(backend))[0])
    release.set()
    waiting.join(SOON)
    assert answers == [{"ok": True}]
    assert transport._pool.unreachable.find(origin, 0.0) is None


def test_an_attempt_that_succeeds_too_late_clears_the_memory(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, release, forgotten = pool.ConnectionPool.open, threading.Event(), threading.Event()
    unreachable, origin = transport._pool.unreachable, parse_target(backend.url).origin
    real_forget = unreachable.forget

    def slow(self: pool.ConnectionPool, *arguments: object) -> pool.Connection:
        release.wait(30)
        return real_open(self, *arguments)  # type: ignore[arg-type]

    def forget(origin: tuple[str, str, int]) -> None:
        real_forget(origin)
        forgotten.set()

    monkeypatch.setattr(pool.ConnectionPool, "open", slow)
    monkeypatch.setattr(unreachable, "forget", forget)
    assert isinstance(fail(transport, ask(backend, connect_timeout=0.2, single_attempt=True))[0], BackendTimeoutError)
    assert unreachable.find(origin, 0.0) is not None
    release.set()
    assert forgotten.wait(SOON) and unreachable.find(origin, 0.0) is None


def test_kept_connections_need_no_memory(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.post_json(ask(backend))
    transport._pool.unreachable.remember(parse_target(backend.url).origin, REFUSED, WHY, 30.0)
    assert transport.post_json(ask(backend)) == {"ok": True}
