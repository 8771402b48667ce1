"""The transport against a scripted server on real sockets."""
from __future__ import annotations

import datetime
import json
import logging
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigValueError,
    EarlyTerminationException,
)
from Middleware.llmapis import transport as transport_module
from Middleware.llmapis import transport_exchange, transport_pool
from Middleware.llmapis.transport import BackendRequest, BackendStream, Transport, get_transport
from Middleware.llmapis.transport_wire import ChunkedDecoder, WireError, parse_head, parse_target
from Middleware.models.cancel_scope import CancelScope
from Tests.stub_backend import (
    AFTER_HEADERS,
    AFTER_PIECES,
    BEFORE_STATUS,
    Reply,
    StubBackend,
    chat_stream_reply,
    json_reply,
    sse_reply,
    status_reply,
)

KEY = "sk-very-secret-key"


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport()
    yield made
    made.close_all()


@pytest.fixture(autouse=True)
def short_retry_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "RETRY_WAITS", (0.02, 0.04))


def ask(backend: StubBackend, path: str = "/v1/chat/completions", **options: object) -> BackendRequest:
    options.setdefault("payload", {"model": "m", "messages": [{"role": "user", "content": "Grüße {x}"}]})
    return BackendRequest("my-llm", backend.url + path, headers={"Authorization": f"Bearer {KEY}"},
                          **options)  # type: ignore[arg-type]


def closed_port() -> int:
    with StubBackend() as stub:
        return stub.port


# ---- plain calls and reuse

def test_post_json_sends_the_payload_and_returns_the_answer(backend: StubBackend, transport: Transport) -> None:
    backend.script(json_reply({"text": "schön"}))
    assert transport.post_json(ask(backend)) == {"text": "schön"}
    request = backend.requests[0]
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.json["messages"][0]["content"] == "Grüße {x}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["host"] == f"127.0.0.1:{backend.port}"


def test_no_authorization_header_unless_given(backend: StubBackend, transport: Transport) -> None:
    transport.post_json(BackendRequest("e", backend.url + "/x", {}))
    assert "authorization" not in backend.requests[0].headers


def test_read_only_configuration_and_lone_surrogates_can_be_sent(backend: StubBackend, transport: Transport) -> None:
    transport.post_json(ask(backend, payload=MappingProxyType({"a": MappingProxyType({"b": "x\ud800y"})})))
    assert backend.requests[0].json == {"a": {"b": "x\ufffdy"}}


def test_a_payload_that_is_no_json_is_refused_before_sending(backend: StubBackend, transport: Transport) -> None:
    with pytest.raises(ConfigValueError):
        transport.post_json(ask(backend, payload={"temperature": float("nan")}))
    assert backend.connections == 0


def test_one_connection_serves_calls_and_streams(backend: StubBackend, transport: Transport) -> None:
    backend.script(json_reply(1), chat_stream_reply(["a", "b"]), status_reply(404), json_reply(4))
    transport.post_json(ask(backend))
    list(transport.open_stream(ask(backend)))
    with pytest.raises(BackendStatusError):
        transport.post_json(ask(backend))
    assert transport.post_json(ask(backend)) == 4
    assert backend.connections == 1
    assert transport.idle_connections() == 1


def test_parallel_calls_have_their_own_connections(backend: StubBackend, transport: Transport) -> None:
    backend.default = json_reply({"ok": True}, header_delay=0.1)
    threads = [threading.Thread(target=transport.post_json, args=(ask(backend),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.connections == 5
    assert transport.idle_connections() == 5
    transport.close_all()
    assert all(request.wait_ended(1) for request in backend.requests)


def test_connection_closed_by_the_server_is_not_used_again(backend: StubBackend, transport: Transport) -> None:
    transport.post_json(ask(backend))
    backend.drop_connections()
    assert backend.requests[0].wait_ended()
    assert transport.post_json(ask(backend, single_attempt=True)) == {"ok": True}
    assert backend.connections == 2


@pytest.mark.parametrize("reply", [
    json_reply({"n": 1}, keep_alive=False),
    json_reply({"n": 1}, headers={"Keep-Alive": "timeout=1"}),
    Reply(raw=b'HTTP/1.0 200 OK\r\n\r\n{"n": 1}'),
    Reply(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"n": 1}surplus'),
])
def test_connection_that_cannot_be_kept_is_closed(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.script(reply)
    assert transport.post_json(ask(backend)) == {"n": 1}
    assert transport.idle_connections() == 0


def test_idle_time_is_limited(backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_pool, "PLAIN_IDLE_SECONDS", 0.05)
    transport.post_json(ask(backend))
    time.sleep(0.1)
    transport.post_json(ask(backend))
    assert backend.connections == 2


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_every_body_framing(backend: StubBackend, transport: Transport, framing: str) -> None:
    backend.script(Reply(pieces=[b'{"a":', b"[1,2", b"]}"], framing=framing, delay=0.01))
    assert transport.post_json(ask(backend)) == {"a": [1, 2]}


def test_interim_responses_folded_headers_and_trailers(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(raw=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\n  2\r\nTransfer-Encoding: "
                             b"chunked\r\n\r\n2;ext=1\r\n[1\r\n1\r\n]\r\n0\r\nX-T: 1\r\n\r\n"))
    assert transport.post_json(ask(backend)) == [1]


def test_compressed_answer(backend: StubBackend, transport: Transport) -> None:
    import gzip
    import zlib
    bare = zlib.compressobj(wbits=-15)
    for encoding, body in (("gzip", gzip.compress(b"[1]")), ("deflate", zlib.compress(b"[2]")),
                           ("deflate", bare.compress(b"[3]") + bare.flush())):
        backend.script(Reply(body=body, headers={"Content-Encoding": encoding}))
    assert [transport.post_json(ask(backend)) for _ in range(3)] == [[1], [2], [3]]
    assert backend.requests[0].headers["accept-encoding"] == "identity"


def test_large_bodies_both_ways(backend: StubBackend, transport: Transport) -> None:
    text = "x" * 3_000_000
    backend.responder = lambda request: json_reply({"echo": request.json["t"]})
    assert transport.post_json(ask(backend, payload={"t": text})) == {"echo": text}


def test_one_process_wide_transport() -> None:
    assert get_transport() is get_transport()


# ---- streams

def test_stream_yields_what_is_there(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["a", "b", "c"], delays=[0.0, 0.0, 0.15]))
    blocks = [block for block in transport.open_stream(ask(backend)) if block]
    assert b"".join(blocks) == b"data: a\n\ndata: b\n\ndata: c\n\n"
    assert blocks[-1] == b"data: c\n\n"


def test_stream_is_lazy(backend: StubBackend, transport: Transport) -> None:
    stream = transport.open_stream(ask(backend))
    stream.close()
    stream.close()
    assert list(stream) == []
    assert backend.connections == 0


def test_silence_gives_a_sign_of_life_each_second(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["a", "b"], header_delay=1.3, delays=[0, 1.3]))
    started = time.monotonic()
    seen = [(block, time.monotonic() - started) for block in transport.open_stream(ask(backend))]
    assert [block for block, _ in seen] == [b"", b"data: a\n\n", b"", b"data: b\n\n"]
    assert 0.95 < seen[0][1] < 1.3 and 2.25 < seen[2][1] < 2.6


def test_status_error_of_a_stream_comes_out_of_next(backend: StubBackend, transport: Transport) -> None:
    backend.script(status_reply(500, "out of memory"))
    stream = transport.open_stream(ask(backend))
    with pytest.raises(BackendStatusError) as caught:
        next(stream)
    assert (caught.value.status, caught.value.body, caught.value.endpoint) == (500, "out of memory", "my-llm")
    assert len(backend.requests) == 1
    assert stream.status == 500


def test_drain_returns_the_rest_and_the_connection(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["finish", "usage", "[DONE]"], delay=0.05))
    stream = transport.open_stream(ask(backend))
    assert next(stream) == b"data: finish\n\n"
    assert b"".join(stream.drain()) == b"data: usage\n\ndata: [DONE]\n\n"
    stream.close()
    assert transport.idle_connections() == 1


def test_drain_is_limited_in_time(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["finish"], hang=True))
    stream = transport.open_stream(ask(backend))
    next(stream)
    started = time.monotonic()
    assert stream.drain(max_seconds=0.4) == []
    assert 0.35 < time.monotonic() - started < 0.8
    stream.close()
    assert backend.requests[0].wait_ended(0.25)
    assert transport.idle_connections() == 0


def test_drain_is_limited_in_size_and_swallows_errors(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["finish", "x" * 300_000, "end"], delay=0.02, hang=True),
                   sse_reply(["finish", "more"], delay=0.05, drop=AFTER_PIECES))
    stream = transport.open_stream(ask(backend))
    next(stream)
    assert 65536 <= sum(map(len, stream.drain())) < 300_000
    stream.close()
    stream = transport.open_stream(ask(backend))
    next(stream)
    assert stream.drain() == [b"data: more\n\n"]


def test_close_in_the_middle_ends_the_connection(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["a"], hang=True))
    stream = transport.open_stream(ask(backend))
    next(stream)
    closed_at = time.monotonic()
    stream.close()
    assert backend.requests[0].wait_ended(1)
    assert backend.requests[0].client_left
    assert (backend.requests[0].ended_at or 0) - closed_at < 0.25


def test_close_right_after_the_last_block_keeps_the_connection(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(pieces=[b"abc"], framing="length"))
    with transport.open_stream(ask(backend)) as stream:
        assert next(stream) == b"abc"
    assert transport.idle_connections() == 1


# ---- stop

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
        _, moment, done = _cancel_during(backend, scope, number, work)
        assert backend.requests[-1].wait_ended(1)
        delays.append(max(done, backend.requests[-1].ended_at or 0) - moment)
    assert statistics.median(delays) < 0.1 and max(delays) < 0.25
    assert transport.idle_connections() == 0


@pytest.mark.parametrize("reply", [Reply(never=True), Reply(pieces=[b"{"], hang=True)], ids=["headers", "body"])
def test_cancel_ends_a_plain_call(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.default = reply
    scope = CancelScope()
    result, moment, done = _cancel_during(backend, scope, 1, lambda: transport.post_json(ask(backend), scope))
    assert isinstance(result, EarlyTerminationException) and result.is_cancellation
    assert done - moment < 0.25
    assert backend.requests[0].wait_ended(1)
    assert (backend.requests[0].ended_at or 0) - moment < 0.25
    assert len(backend.requests) == 1


def _cancel_during(backend: StubBackend, scope: CancelScope, count: int,
                   work: Callable[[], object]) -> tuple[object, float, float]:
    """Cancel 100 ms after request ``count`` arrived: what came of the work, when it was cancelled, when it ended."""
    moments: list[float] = []

    def cancel() -> None:
        backend.wait_requests(count)
        time.sleep(0.1)
        moments.append(time.monotonic())
        scope.cancel("test")

    thread = threading.Thread(target=cancel)
    thread.start()
    result: object
    try:
        result = work()
    except Exception as error:
        result = error
    done = time.monotonic()
    thread.join()
    return result, moments[0], done


def test_cancel_works_where_a_shutdown_wakes_nobody(backend: StubBackend, transport: Transport,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_pool.Connection, "shutdown", lambda self: None)
    backend.default = Reply(never=True)
    scope = CancelScope()
    result, moment, done = _cancel_during(backend, scope, 1, lambda: list(transport.open_stream(ask(backend), scope)))
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
    real_open = transport_pool.ConnectionPool.open

    def slow_open(self: transport_pool.ConnectionPool, *args: object) -> transport_pool.Connection:
        release.wait(5)
        opened.append(real_open(self, *args))  # type: ignore[arg-type]
        return opened[0]

    monkeypatch.setattr(transport_pool.ConnectionPool, "open", slow_open)
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
    result, moment, done = _cancel_during(backend, scope, 1, lambda: transport.post_json(ask(backend), scope))
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
    pool = transport_pool.ConnectionPool()
    exchange = transport_exchange.Exchange(pool, ask(backend), b"{}", CancelScope())
    assert list(exchange.blocks()) == [b'{"ok": true}']
    exchange.abort()  # as if the cancelling thread had fetched the callback before it was removed
    connection = pool.take(parse_target(ask(backend).url))
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


# ---- failures and retries

@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_plain_call_tries_three_times(backend: StubBackend, transport: Transport, status: int) -> None:
    backend.script(status_reply(status), status_reply(status), json_reply({"third": True}))
    assert transport.post_json(ask(backend)) == {"third": True}
    assert len(backend.requests) == 3


def test_the_last_of_three_errors_is_raised(backend: StubBackend, transport: Transport) -> None:
    backend.script(status_reply(500, "one"), status_reply(502, "two"), status_reply(503, "three"))
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(ask(backend))
    assert (caught.value.status, caught.value.body) == (503, "three")
    assert len(backend.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_other_statuses_are_not_tried_again(backend: StubBackend, transport: Transport, status: int) -> None:
    backend.script(status_reply(status))
    with pytest.raises(BackendStatusError):
        transport.post_json(ask(backend))
    assert len(backend.requests) == 1


def test_single_attempt(backend: StubBackend, transport: Transport) -> None:
    backend.script(status_reply(503))
    with pytest.raises(BackendStatusError):
        transport.post_json(ask(backend, single_attempt=True))
    assert len(backend.requests) == 1
    started = time.monotonic()
    with pytest.raises(BackendConnectionError):
        transport.post_json(BackendRequest("e", f"http://127.0.0.1:{closed_port()}", {}, single_attempt=True))
    assert time.monotonic() - started < 0.2


def test_retry_after_is_obeyed_within_its_limit(backend: StubBackend, transport: Transport,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_RETRY_AFTER_SECONDS", 0.3)
    backend.script(status_reply(429, headers={"Retry-After": "1"}))
    started = time.monotonic()
    transport.post_json(ask(backend))
    assert 0.3 <= time.monotonic() - started < 0.6


@pytest.mark.parametrize(("value", "low", "high"), [
    ("3600", 10, 10), ("0", 0, 0), ("soon", 7, 7), ("", 7, 7), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ("Wed, 21 Oct 2099 07:28:00 GMT", 10, 10),
])
def test_retry_after_values(backend: StubBackend, value: str, low: float, high: float) -> None:
    exchange = transport_exchange.Exchange(transport_pool.ConnectionPool(), ask(backend), b"", CancelScope())
    exchange.head = transport_exchange.ResponseHead(503, "", "1.1", {"retry-after": value})
    assert low <= transport_module._retry_after(exchange, 7) <= high


@pytest.mark.parametrize("reset", [False, True])
def test_connection_lost_before_the_status_line_is_tried_again(backend: StubBackend, transport: Transport,
                                                              reset: bool) -> None:
    backend.script(Reply(drop=BEFORE_STATUS, reset=reset))
    assert transport.post_json(ask(backend)) == {"ok": True}
    assert len(backend.requests) == 2


def test_stream_is_never_sent_twice(backend: StubBackend, transport: Transport) -> None:
    transport.post_json(ask(backend))
    for reply in (Reply(drop=BEFORE_STATUS), status_reply(503), sse_reply(["a"], drop=AFTER_PIECES)):
        backend.script(reply)
        count = len(backend.requests)
        with pytest.raises(BackendError):
            list(transport.open_stream(ask(backend)))
        assert len(backend.requests) == count + 1


@pytest.mark.parametrize("reply", [
    Reply(body={"a": 1}, drop=AFTER_HEADERS), Reply(body={"a": 1}, drop=AFTER_PIECES),
    Reply(pieces=[b"{"], drop=AFTER_PIECES), Reply(pieces=[b"{"], drop=AFTER_PIECES, reset=True),
])
def test_connection_lost_within_the_answer_is_not_tried_again(backend: StubBackend, transport: Transport,
                                                             reply: Reply) -> None:
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


def test_refused_tries_again_after_200_and_500_ms(transport: Transport) -> None:
    started = time.monotonic()
    with pytest.raises(BackendConnectionError, match=r"'my-llm'.*refused.*running.*container"):
        transport.post_json(BackendRequest("my-llm", f"http://localhost:{closed_port()}/v1", {}))
    assert 0.7 <= time.monotonic() - started < 1.2


def test_refused_then_up_again(transport: Transport, backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, failures = transport_pool.ConnectionPool.open, [ConnectionRefusedError(111, "refused")]

    def open_late(self: transport_pool.ConnectionPool, *args: object) -> transport_pool.Connection:
        if failures:
            raise failures.pop()
        return real_open(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(transport_pool.ConnectionPool, "open", open_late)
    assert transport.post_json(ask(backend)) == {"ok": True}


def test_unknown_host(transport: Transport) -> None:
    started = time.monotonic()
    with pytest.raises(BackendConnectionError, match="cannot be resolved"):
        transport.post_json(BackendRequest("e", "http://no-such-host.invalid/v1", {}, connect_timeout=0.5))
    assert time.monotonic() - started < 1.5


def test_connecting_is_limited_to_twice_the_timeout(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_pool.ConnectionPool, "open", lambda *_: time.sleep(2))
    started = time.monotonic()
    with pytest.raises(BackendTimeoutError, match="could not connect in time"):
        transport.post_json(BackendRequest("e", "http://127.0.0.1:9/", {}, connect_timeout=0.4))
    assert 0.7 < time.monotonic() - started < 1.2


def test_signs_of_life_while_connecting(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_pool.ConnectionPool, "open", lambda *_: time.sleep(3))
    stream = transport.open_stream(BackendRequest("e", "http://127.0.0.1:9/", {}, connect_timeout=5))
    started = time.monotonic()
    assert next(stream) == b""
    assert 0.9 < time.monotonic() - started < 1.3
    stream.close()


def test_silence_longer_than_the_read_timeout(backend: StubBackend, transport: Transport) -> None:
    backend.default = Reply(never=True)
    with pytest.raises(BackendTimeoutError, match="no data for 0.4 seconds"):
        transport.post_json(ask(backend, read_timeout=0.4))
    assert backend.requests[0].wait_ended(0.25)
    assert len(backend.requests) == 1


def test_tokens_within_the_read_timeout_keep_a_stream_alive(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["a"] * 4, delay=0.25))
    assert len(list(transport.open_stream(ask(backend, read_timeout=0.5)))) == 4


@pytest.mark.parametrize("reply", [Reply(body=b"<html>Welcome</html>", headers={"Content-Type": "text/html"}),
                                   Reply(body=b""), Reply(body=b"[" * 200_000)])
def test_answer_that_is_no_json(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.script(reply)
    with pytest.raises(BackendResponseError, match="not JSON"):
        transport.post_json(ask(backend))
    assert len(backend.requests) == 1


def test_bad_utf8_and_bom_are_tolerated(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(body=b'["a\xff"]'), Reply(body=b"\xef\xbb\xbf[1]"))
    assert transport.post_json(ask(backend)) == ["a\ufffd"]
    assert transport.post_json(ask(backend)) == [1]


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 OK\r\n\r\n",
                                 b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                                 b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                                 b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nabc"])
def test_answer_that_is_no_http(backend: StubBackend, transport: Transport, raw: bytes) -> None:
    backend.script(Reply(raw=raw))
    with pytest.raises(BackendResponseError, match="not proper HTTP"):
        transport.post_json(ask(backend))


def test_redirects_are_not_followed(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(status=307, headers={"Location": "http://127.0.0.1:1/elsewhere"}))
    with pytest.raises(BackendStatusError, match="redirects"):
        transport.post_json(ask(backend))
    assert len(backend.requests) == 1


@pytest.mark.parametrize(("status", "hint"), [(401, "apiKey"), (404, "wrong path.*model"), (503, "loading")])
def test_status_messages_help(backend: StubBackend, transport: Transport, status: int, hint: str) -> None:
    backend.default = status_reply(status, "nope")
    with pytest.raises(BackendStatusError, match=rf"my-llm.*{status}.*nope\. .*{hint}"):
        transport.post_json(ask(backend, single_attempt=True))


def test_messages_and_log_hold_no_secrets(backend: StubBackend, transport: Transport,
                                          caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend.default = status_reply(500, f"bad key {KEY}, pass pa55word, query token=querysecret")
    url = f"http://user:pa55word@127.0.0.1:{backend.port}/v1?token=querysecret"
    with pytest.raises(BackendStatusError) as caught:
        transport.post_json(BackendRequest("e", url, {}, {"Authorization": f"Bearer {KEY}"}))
    for text in (str(caught.value), caught.value.body, caplog.text):
        assert not any(secret in text for secret in (KEY, "pa55word", "querysecret"))
    assert backend.requests[0].path == "/v1?token=querysecret"


def test_long_and_html_bodies_become_one_short_line(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(status=400, body=("line\n" * 5000).encode()),
                   Reply(status=404, body=b"<html><title>404 Not\nFound</title><body>x</body></html>"),
                   Reply(status=400, body={"error": "plain text"}), Reply(status=400, body={"detail": [{"msg": "m"}]}),
                   Reply(status=400, body=b"", ))
    bodies = []
    for _ in range(5):
        with pytest.raises(BackendStatusError) as caught:
            transport.post_json(ask(backend))
        bodies.append(caught.value.body)
        assert "\n" not in str(caught.value)
    assert len(bodies[0]) == 500
    assert bodies[1:] == ["404 Not Found", "plain text", "m", ""]


def test_error_body_that_never_ends_does_not_hide_the_status(backend: StubBackend, transport: Transport,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_exchange, "MAX_ERROR_BODY_WAIT", 0.0)
    backend.script(Reply(status=400, pieces=[b"half"], hang=True),
                   Reply(status=400, pieces=[b"half"], drop=AFTER_PIECES))
    for _ in range(2):
        with pytest.raises(BackendStatusError, match="half"):
            transport.post_json(ask(backend))


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


# ---- proxies and TLS

def test_loopback_ignores_proxies(backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("no_proxy", "")
    assert transport.post_json(ask(backend)) == {"ok": True}


def test_other_hosts_go_through_the_proxy(backend: StubBackend, transport: Transport,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:word@127.0.0.1:{backend.port}")
    monkeypatch.setenv("no_proxy", "intern.invalid")
    assert transport.post_json(BackendRequest("e", "http://llm.invalid:8000/v1", {})) == {"ok": True}
    assert backend.requests[0].path == "http://llm.invalid:8000/v1"
    assert backend.requests[0].headers["host"] == "llm.invalid:8000"
    assert backend.requests[0].headers["proxy-authorization"].startswith("Basic ")
    with pytest.raises(BackendConnectionError):
        transport.post_json(BackendRequest("e", "http://intern.invalid/v1", {}, single_attempt=True))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stub")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(1)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    public = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
             .serial_number(1).not_valid_before(now - day).not_valid_after(now + day)
             .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
             .add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
             .add_extension(public, False).sign(key, hashes.SHA256()))
    path = tmp_path_factory.mktemp("tls") / "stub.pem"
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                       serialization.NoEncryption()) + built.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls_backend(certificate: Path) -> Iterator[StubBackend]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with StubBackend(tls=context) as stub:
        yield stub


def test_tls_calls_streams_reuse_and_stop(tls_backend: StubBackend, transport: Transport, certificate: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    tls_backend.script(json_reply({"n": 1}), sse_reply(["a", "b" * 100_000, "c"], delay=0.3), json_reply({"n": 3}))
    assert transport.post_json(ask(tls_backend)) == {"n": 1}
    assert len(b"".join(transport.open_stream(ask(tls_backend)))) == 100_000 + 2 + 3 * len(b"data: \n\n")
    assert transport.post_json(ask(tls_backend)) == {"n": 3}
    assert tls_backend.connections == 1
    tls_backend.default = Reply(never=True)
    scope = CancelScope()
    result, moment, done = _cancel_during(tls_backend, scope, 4, lambda: list(
        transport.open_stream(ask(tls_backend), scope)))
    assert result == []
    assert done - moment < 0.25
    assert tls_backend.requests[3].wait_ended(1)
    assert (tls_backend.requests[3].ended_at or 0) - moment < 0.25


def test_untrusted_certificate(tls_backend: StubBackend, transport: Transport) -> None:
    started = time.monotonic()
    with pytest.raises(BackendConnectionError, match="certificate was not accepted"):
        transport.post_json(ask(tls_backend))
    assert time.monotonic() - started < 1


def test_https_to_a_plain_server(backend: StubBackend, transport: Transport) -> None:
    with pytest.raises(BackendConnectionError, match="https"):
        transport.post_json(BackendRequest("e", f"https://127.0.0.1:{backend.port}/", {}, single_attempt=True))


# ---- parsers without sockets

@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_chunked_bodies_split_anywhere(chunks: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nT: 1\r\n\r\n"
    decoder, found, position = ChunkedDecoder(), b"", 0
    while position < len(wire):
        assert not decoder.done
        size = data.draw(st.integers(1, 20))
        found += decoder.feed(wire[position:position + size])
        position += size
    assert decoder.done and decoder.eof() and not decoder.surplus
    assert found == b"".join(chunks)


@pytest.mark.parametrize("wire", [b"\r\n", b"-1\r\n", b"0x5\r\n", b"1_0\r\n", b"1\r\nab\r\n", b"f" * 20_000])
def test_broken_chunks(wire: bytes) -> None:
    with pytest.raises(WireError):
        ChunkedDecoder().feed(wire)


@given(st.integers(1, 60))
def test_heads_split_anywhere(size: int) -> None:
    wire = b"HTTP/1.1 200 Fine\r\nA: 1\r\na: 2\r\nB:x:y\r\n\r\nrest"
    for position in range(0, len(wire) - 4):
        if wire[:position].endswith(b"\r\n\r\n"):
            break
        assert parse_head(wire[:position]) is None
    parsed = parse_head(wire)
    assert parsed is not None
    head, rest = parsed
    assert (head.status, head.reason, dict(head.headers), rest) == (200, "Fine", {"a": "1, 2", "b": "x:y"}, b"rest")


def test_urls() -> None:
    target = parse_target("http://user:pw@[::1]:8080/a b/ü?x=1#f")
    assert target.origin == ("http", "::1", 8080)
    assert target.path == "/a%20b/%C3%BC?x=1"
    assert (target.host_header, target.display) == ("[::1]:8080", "http://[::1]:8080/a%20b/%C3%BC")
    assert parse_target("https://api.example").origin == ("https", "api.example", 443)
    assert parse_target("https://api.example").path == "/"
    assert json.dumps(parse_target("HTTP://Host/").host) == '"host"'
