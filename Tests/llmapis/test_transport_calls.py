"""The transport against a scripted server on real sockets: plain calls, streams, kept connections."""

from __future__ import annotations

import gzip
import select
import threading
import time
from collections.abc import Callable
from types import MappingProxyType

import pytest

from Middleware.exceptions import BackendError, BackendResponseError, BackendStatusError, ConfigValueError
from Middleware.llmapis.transport import BackendRequest, BackendStream, Transport, get_transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http import exchange, pool, wire
from Middleware.utilities.http.connection import Connection
from Tests.llmapis.transport_lab import KEY, SOON, ask, idle_connections
from Tests.patience import PATIENCE
from Tests.stub_backend import AFTER_PIECES, Reply, StubBackend, chat_stream_reply, json_reply, sse_reply, status_reply
from Tests.tables import table

pytestmark = pytest.mark.usefixtures("short_retry_waits")


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
    assert idle_connections(transport) == 1


def test_parallel_calls_have_their_own_connections(backend: StubBackend, transport: Transport) -> None:
    all_there = threading.Event()
    backend.default = json_reply({"ok": True}, held=all_there)
    threads = [threading.Thread(target=transport.post_json, args=(ask(backend),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    backend.wait_requests(5)
    all_there.set()
    for thread in threads:
        thread.join()
    assert backend.connections == 5
    assert idle_connections(transport) == 5
    transport.close_all()
    assert all(request.wait_ended() for request in backend.requests)


def test_connection_closed_by_the_server_is_not_used_again(backend: StubBackend, transport: Transport) -> None:
    transport.post_json(ask(backend))
    backend.drop_connections()
    (connection,) = (one for stack in transport._pool._idle.values() for one in stack)
    # The server's own thread, which reads there, does not wake up on Windows.
    assert select.select([connection.sock], [], [], PATIENCE)[0]
    assert transport.post_json(ask(backend, single_attempt=True)) == {"ok": True}
    assert backend.connections == 2


@pytest.mark.parametrize(
    "reply",
    [
        json_reply({"n": 1}, keep_alive=False),
        json_reply({"n": 1}, headers={"Keep-Alive": "timeout=1"}),
        Reply(raw=b'HTTP/1.0 200 OK\r\n\r\n{"n": 1}'),
        Reply(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"n": 1}surplus'),
    ],
)
def test_connection_that_cannot_be_kept_is_closed(backend: StubBackend, transport: Transport, reply: Reply) -> None:
    backend.script(reply)
    assert transport.post_json(ask(backend)) == {"n": 1}
    assert idle_connections(transport) == 0


def test_idle_time_is_limited(backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PLAIN_IDLE_SECONDS", 0.05)
    transport.post_json(ask(backend))
    time.sleep(0.1)
    transport.post_json(ask(backend))
    assert backend.connections == 2


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_every_body_framing(backend: StubBackend, transport: Transport, framing: str) -> None:
    backend.script(Reply(pieces=[b'{"a":', b"[1,2", b"]}"], framing=framing, delay=0.01))
    assert transport.post_json(ask(backend)) == {"a": [1, 2]}


def test_interim_responses_folded_headers_and_trailers(backend: StubBackend, transport: Transport) -> None:
    backend.script(
        Reply(
            raw=b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\n  2\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n2;ext=1\r\n[1\r\n1\r\n]\r\n0\r\nX-T: 1\r\n\r\n"
        )
    )
    assert transport.post_json(ask(backend)) == [1]


def test_compressed_answer(backend: StubBackend, transport: Transport) -> None:
    import gzip
    import zlib

    bare = zlib.compressobj(wbits=-15)
    for encoding, body in (
        ("gzip", gzip.compress(b"[1]")),
        ("deflate", zlib.compress(b"[2]")),
        ("deflate", bare.compress(b"[3]") + bare.flush()),
    ):
        backend.script(Reply(body=body, headers={"Content-Encoding": encoding}))
    assert [transport.post_json(ask(backend)) for _ in range(3)] == [[1], [2], [3]]
    assert backend.requests[0].headers["accept-encoding"] == "identity"


def test_large_bodies_both_ways(backend: StubBackend, transport: Transport) -> None:
    text = "x" * 3_000_000
    backend.responder = lambda request: json_reply({"echo": request.json["t"]})
    assert transport.post_json(ask(backend, payload={"t": text})) == {"echo": text}


def test_only_a_body_that_fills_a_block_gets_large_ones(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def receive(connection: Connection) -> Callable[[int], bytes]:
        return lambda size: (sizes.append(size), connection.sock.recv(size))[1]

    monkeypatch.setattr(Connection, "receive", property(receive))
    backend.script(sse_reply(["a"] * 5, delay=0.01), json_reply({"text": "x" * 1_000_000}))
    assert list(transport.open_stream(ask(backend)))
    assert set(sizes) == {exchange.BLOCK_BYTES}
    assert len(transport.post_json(ask(backend))["text"]) == 1_000_000
    assert sizes[-1] == exchange.LARGE_BLOCK_BYTES


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


@pytest.mark.slow
@pytest.mark.parametrize(("held_piece", "before"), [(None, b""), (1, b"data: a\n\n")])
def test_silence_gives_a_sign_of_life_each_second(
    backend: StubBackend, transport: Transport, held_piece: int | None, before: bytes
) -> None:
    over, blocks, began = threading.Event(), list[bytes](), time.monotonic()
    backend.script(sse_reply(["a", "b"], held=over, held_piece=held_piece))
    for block in transport.open_stream(ask(backend)):
        blocks.append(block)
        if blocks.count(b"") == 2:
            over.set()
    signs = [number for number, block in enumerate(blocks) if not block]
    assert 2 <= len(signs) <= time.monotonic() - began
    assert b"".join(blocks[: signs[-1]]) == before and b"".join(blocks) == b"data: a\n\ndata: b\n\n"


def test_status_error_of_a_stream_comes_out_of_next(backend: StubBackend, transport: Transport) -> None:
    backend.script(status_reply(500, "out of memory"))
    stream = transport.open_stream(ask(backend))
    with pytest.raises(BackendStatusError) as caught:
        next(stream)
    assert (caught.value.status, caught.value.body, caught.value.endpoint) == (500, "out of memory", "my-llm")
    assert len(backend.requests) == 1
    assert stream.head is not None and stream.head.status == 500


def test_the_rest_is_read_to_the_end_and_the_connection_kept(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["finish", "usage", "[DONE]"], delay=0.05))
    stream = transport.open_stream(ask(backend))
    assert next(stream) + b"".join(stream.rest()) == b"data: finish\n\ndata: usage\n\ndata: [DONE]\n\n"
    stream.close()
    assert idle_connections(transport) == 1


def test_the_rest_has_an_empty_block_for_each_slice_of_silence(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["finish"], hang=True))
    stream = transport.open_stream(ask(backend))
    next(stream)
    started, rest = time.monotonic(), stream.rest()
    assert [next(rest), next(rest)] == [b"", b""]
    assert 0.35 < time.monotonic() - started < SOON
    stream.close()
    assert backend.requests[0].wait_ended(SOON)
    assert idle_connections(transport) == 0


def test_errors_after_the_end_are_swallowed(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["finish", "more"], delay=0.05, drop=AFTER_PIECES))
    stream = transport.open_stream(ask(backend))
    assert next(stream) + b"".join(stream.rest()) == b"data: finish\n\ndata: more\n\n"


def test_close_in_the_middle_ends_the_connection(backend: StubBackend, transport: Transport) -> None:
    backend.script(sse_reply(["a"], hang=True))
    stream = transport.open_stream(ask(backend))
    next(stream)
    closed_at = time.monotonic()
    stream.close()
    assert backend.requests[0].wait_ended()
    assert backend.requests[0].client_left
    assert (backend.requests[0].ended_at or 0) - closed_at < SOON


def test_close_right_after_the_last_block_keeps_the_connection(backend: StubBackend, transport: Transport) -> None:
    backend.script(Reply(pieces=[b"abc"], framing="length"))
    with transport.open_stream(ask(backend)) as stream:
        assert next(stream) == b"abc"
    assert idle_connections(transport) == 1


# ---- what is held for no longer than it is needed


def test_the_encoded_body_is_let_go_when_it_was_sent(backend: StubBackend) -> None:
    backend.default = sse_reply(["a"], hang=True)
    with BackendStream(pool.ConnectionPool(), ask(backend, payload={"text": "large"}), CancelScope()) as stream:
        while not next(stream):
            pass
        body = backend.requests[0].body
        assert body == b'{"text":"large"}'
        assert body not in (*vars(stream).values(), *vars(stream._exchange).values())


def test_an_answer_that_inflates_without_end_is_refused(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_INFLATED_BYTES", 1 << 20)
    backend.script(Reply(body=gzip.compress(bytes(1 << 21)), headers={"Content-Encoding": "gzip"}))
    with pytest.raises(BackendResponseError, match=r"the answer is too large \(more than 1 MB when decompressed\)"):
        transport.post_json(ask(backend))


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = CHUNKED + b"2\r\n[]\r\n0\r\n"
FOR_EVER = 10**9


@table(
    ("first", "piece", "count", "last", "wrong"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 100, PLAIN % 2 + b"[]", ""),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", FOR_EVER, b"", "too many interim heads"),
        (b"", b"HTTP/1.1 102 Processing\r\nA: b\r\n\r\n", FOR_EVER, b"", "too many interim heads"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 50, FOR_EVER, b"", "too many interim heads"),
        (b"", b"HTTP/1.1 199 x\r\n\r\n", 101, PLAIN % 2 + b"[]", "too many interim heads"),
        (LAST_CHUNK, b"A: " + b"b" * 15_000 + b"\r\n", 4, b"\r\n", ""),
        (LAST_CHUNK, b"A: b\r\n", FOR_EVER, b"", "trailer is too long"),
        (LAST_CHUNK, b"A: " + b"b" * 9000 + b"\r\n", FOR_EVER, b"", "trailer is too long"),
        (LAST_CHUNK, b"A: b\n", 20_000, b"\r\n", "trailer is too long"),
        (LAST_CHUNK, b"A", FOR_EVER, b"", "too long"),
        (CHUNKED, b"2\r\n  \r\n", FOR_EVER, b"", "more than 1 MB"),
        (CHUNKED, b"1;" + b"a" * 9000 + b"\r\n \r\n", FOR_EVER, b"", "more than 1 MB"),
        (CHUNKED, b"1" + b" " * 9000 + b"\r\n \r\n", FOR_EVER, b"", "more than 1 MB"),
        (TO_THE_END, b": nothing yet\n\n", FOR_EVER, b"", "more than 1 MB"),
        (PLAIN % ((1 << 21) + 2) + b"[", b" ", 1 << 21, b"]", "more than 1 MB"),
        (PLAIN % (10**6 + 2) + b"[", b" " * 1000, 1000, b"]", ""),
    ],
)
def test_an_answer_without_end_is_given_up(
    backend: StubBackend,
    transport: Transport,
    monkeypatch: pytest.MonkeyPatch,
    first: bytes,
    piece: bytes,
    count: int,
    last: bytes,
    wrong: str,
) -> None:
    """Interim heads, the body, the framing of its chunks, and trailers; read as a whole and as a stream."""
    monkeypatch.setattr("Middleware.utilities.http.exchange.MAX_ANSWER_BYTES", 1 << 20)
    pieces = min(len(piece) * count, 1 << 23) // len(piece)
    for read in (transport.post_json, lambda request: list(transport.open_stream(request))):
        backend.script(Reply(raw=first + piece * pieces + last))
        # The stub closes the connection after such an answer, perhaps too late to be noticed.
        transport.close_all()
        if not wrong:
            read(ask(backend))
            continue
        with pytest.raises(BackendError, match=wrong):
            read(ask(backend))
        assert idle_connections(transport) == 0


def test_expired_connections_are_closed_without_another_call(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PLAIN_IDLE_SECONDS", 0.2)
    for count in (5, 10):
        streams = [transport.open_stream(ask(backend)) for _ in range(5)]
        for stream in streams:
            assert list(stream)
        assert all(request.wait_ended() for request in backend.requests)
        assert len(backend.requests) == count
        assert idle_connections(transport) == 0


def test_expired_connections_to_other_servers_are_closed(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PLAIN_IDLE_SECONDS", 0.05)
    transport.post_json(ask(backend))
    time.sleep(0.1)
    with StubBackend(sse_reply(["a"], hang=True)) as other:
        with transport.open_stream(ask(other)) as stream:
            next(iter(stream))
        assert backend.requests[0].wait_ended()
        assert idle_connections(transport) == 0
