"""What the transport makes of failures, and how often it tries to connect. ``test_repeats.py`` has the attempts."""

from __future__ import annotations

import threading
import time

import pytest

from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigValueError,
)
from Middleware.llmapis import transport as transport_module
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.utilities.http import connect, pool
from Tests.llmapis.transport_lab import SOON, ask, closed_port
from Tests.stub_backend import (
    AFTER_HEADERS,
    AFTER_PIECES,
    BEFORE_STATUS,
    Reply,
    StubBackend,
    sse_reply,
    status_reply,
)
from Tests.workflows.engine_lab import tried_with


def test_single_attempt(backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.script(status_reply(503))
    with pytest.raises(BackendStatusError):
        transport.post_json(ask(backend, single_attempt=True))
    assert len(backend.requests) == 1
    monkeypatch.setattr(connect, "CONNECT_WAITS", (1.2 * SOON,))
    started = time.monotonic()
    with pytest.raises(BackendConnectionError):
        transport.post_json(BackendRequest("e", f"http://127.0.0.1:{closed_port()}", {}, single_attempt=True))
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("3600", 10, 10),
        ("0", 0, 0),
        ("soon", 7, 7),
        ("", 7, 7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 10, 10),
        ("-1", 7, 7),
        ("1.5", 7, 7),
        ("9" * 400, 10, 10),
        ("Mon, 01 Jan 0001 00:00:00 -0000", 0, 7),
        ("Fri, 31 Dec 9999 23:59:59 -0000", 7, 10),
    ],
)
def test_retry_after_values(value: str, low: float, high: float) -> None:
    found = transport_module.retry_after(value)
    assert low <= (7 if found is None else found) <= high


@pytest.mark.parametrize("stream", [False, True])
def test_the_transport_sends_a_request_once(backend: StubBackend, transport: Transport, stream: bool) -> None:
    transport.post_json(ask(backend))
    for reply in (Reply(drop=BEFORE_STATUS), status_reply(503), sse_reply(["a"], drop=AFTER_PIECES)):
        backend.script(reply)
        count = len(backend.requests)
        with pytest.raises(BackendError):
            list(transport.open_stream(ask(backend))) if stream else transport.post_json(ask(backend))
        assert len(backend.requests) == count + 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body={"a": 1}, drop=AFTER_HEADERS),
        Reply(body={"a": 1}, drop=AFTER_PIECES),
        Reply(pieces=[b"{"], drop=AFTER_PIECES),
        Reply(pieces=[b"{"], drop=AFTER_PIECES, reset=True),
    ],
)
def test_connection_lost_within_the_answer_is_not_tried_again(
    backend: StubBackend, transport: Transport, reply: Reply
) -> None:
    backend.script(reply)
    with pytest.raises(BackendConnectionError, match="in the middle of its answer"):
        transport.post_json(ask(backend))
    assert len(backend.requests) == 1


def test_stream_dropped_in_the_middle_gives_tokens_then_the_error(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["a"], drop=AFTER_PIECES))
    stream = transport.open_stream(ask(backend))
    assert next(stream) == b"data: a\n\n"
    with pytest.raises(BackendConnectionError):
        next(stream)


def test_refused_tries_again_after_250_and_500_ms(transport: Transport) -> None:
    started = time.monotonic()
    with pytest.raises(BackendConnectionError, match=r"'my-llm'.*refused.*running.*container"):
        transport.post_json(BackendRequest("my-llm", f"http://localhost:{closed_port()}/v1", {}))
    assert 0.75 <= time.monotonic() - started < SOON


def test_refused_then_up_again(transport: Transport, backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, failures = pool.ConnectionPool.open, [ConnectionRefusedError(111, "refused")]

    def open_late(self: pool.ConnectionPool, *args: object) -> pool.Connection:
        if failures:
            raise failures.pop()
        return real_open(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(pool.ConnectionPool, "open", open_late)
    assert transport.post_json(ask(backend)) == {"ok": True}


def test_unknown_host(transport: Transport) -> None:
    started = time.monotonic()
    with pytest.raises(BackendConnectionError, match="cannot be resolved"):
        transport.post_json(BackendRequest("e", "http://no-such-host.invalid/v1", {}, connect_timeout=0.5))
    assert time.monotonic() - started < SOON


def test_connecting_is_limited_to_twice_the_timeout(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(pool.ConnectionPool, "open", lambda *_: release.wait(2 * SOON))
    started = time.monotonic()
    with pytest.raises(BackendTimeoutError, match="could not connect in time"):
        transport.post_json(BackendRequest("e", "http://127.0.0.1:9/", {}, connect_timeout=0.4))
    assert 0.7 < time.monotonic() - started < SOON
    release.set()


@pytest.mark.parametrize(("single", "attempts"), [(False, 3), (True, 1)])
def test_attempts_to_connect(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, single: bool, attempts: int
) -> None:
    tried = []

    def reset(*_: object) -> None:
        tried.append(1)
        raise ConnectionResetError(104, "reset")

    assert connect.CONNECT_WAITS == (0.25, 0.5)
    monkeypatch.setattr(connect, "CONNECT_WAITS", (0.01, 0.01))
    monkeypatch.setattr(pool.ConnectionPool, "open", reset)
    with pytest.raises(BackendConnectionError, match="no connection"):
        transport.post_json(BackendRequest("e", "http://host.test/", {}, single_attempt=single))
    assert len(tried) == attempts


def test_a_wait_beyond_the_budget_is_not_begun(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.ConnectionPool, "open", lambda *_: 1 / 0)
    monkeypatch.setattr(connect, "CONNECT_WAITS", (60.0, 60.0))
    started = time.monotonic()
    with pytest.raises(BackendConnectionError):
        transport.post_json(BackendRequest("e", "http://host.test/", {}, connect_timeout=29))
    assert time.monotonic() - started < SOON


def test_signs_of_life_while_connecting(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(pool.ConnectionPool, "open", lambda *_: release.wait(2 * SOON))
    stream = transport.open_stream(BackendRequest("e", "http://127.0.0.1:9/", {}, connect_timeout=60))
    started = time.monotonic()
    assert next(stream) == b""
    assert 0.9 < time.monotonic() - started < SOON
    stream.close()
    release.set()


def test_silence_longer_than_the_read_timeout(backend: StubBackend, transport: Transport) -> None:
    backend.default = Reply(never=True)
    with pytest.raises(BackendTimeoutError, match="no data for 0.4 seconds"):
        transport.post_json(ask(backend, read_timeout=0.4))
    assert backend.requests[0].wait_ended(SOON)
    assert len(backend.requests) == 1


def test_tokens_within_the_read_timeout_keep_a_stream_alive(backend: StubBackend, transport: Transport) -> None:
    def check(limit: float) -> None:
        backend.default = sse_reply(["a"] * 6, delay=limit / 4)
        assert b"".join(transport.open_stream(ask(backend, read_timeout=limit))) == b"data: a\n\n" * 6

    tried_with(check, 1.0, 4.0, 16.0)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"}),
        Reply(body=b""),
        Reply(body=b"[" * 200_000),
    ],
)
def test_answer_that_is_no_json(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.script(reply)
    with pytest.raises(BackendResponseError, match="not JSON"):
        transport.post_json(ask(backend))
    assert len(backend.requests) == 1


def test_bad_utf8_and_bom_are_tolerated(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(body=b'["a\xff"]'), Reply(body=b"\xef\xbb\xbf[1]"))
    assert transport.post_json(ask(backend)) == ["a\ufffd"]
    assert transport.post_json(ask(backend)) == [1]


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nabc",
    ],
)
def test_answer_that_is_no_http(backend: StubBackend, transport: Transport, raw: bytes) -> None:
    backend.script(Reply(raw=raw))
    with pytest.raises(BackendResponseError, match="not proper HTTP"):
        transport.post_json(ask(backend))


def test_redirects_are_not_followed(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(status=307, headers={"Location": "http://127.0.0.1:1/elsewhere"}))
    with pytest.raises(BackendStatusError, match="redirects"):
        transport.post_json(ask(backend))
    assert len(backend.requests) == 1


@pytest.mark.parametrize("url", ["", "localhost:8080/v1", "ftp://host/x", "http://", "http://a b:x/"])
def test_unusable_urls(transport: Transport, url: str) -> None:
    with pytest.raises(ConfigValueError):
        transport.post_json(BackendRequest("e", url, {}))


@pytest.mark.parametrize("key", ["a\r\nX-Evil: 1", "schlüssel-€"])
def test_unusable_keys_are_named_not_sent(backend: StubBackend, transport: Transport, key: str) -> None:
    with pytest.raises(ConfigValueError, match="API key") as caught:
        transport.post_json(BackendRequest("e", backend.url, {}, {"Authorization": f"Bearer {key}"}))
    assert key not in str(caught.value)
    assert backend.requests == []
