"""HTTP/1.1 as bytes: any split, every framing, small sins of servers."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.http import wire
from Middleware.utilities.http.body import WireError
from Middleware.utilities.http.wire import MAX_HEAD_BYTES, HttpCall, HttpRequest, TooLargeError, parse_target
from Tests.corpora import cases

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def to(url: str, **headers: str) -> HttpRequest:
    return HttpRequest(
        parse_target(url), "POST", headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def new_call() -> HttpCall:
    call = HttpCall(to("http://host/v1"))
    call.request_head(2)
    return call


def answered(*wire: bytes) -> tuple[HttpCall, list[bytes]]:
    call = new_call()
    return call, [call.feed(piece) for piece in wire]


def split(wire: bytes, size: int) -> list[bytes]:
    return [wire[start : start + size] for start in range(0, len(wire), size)]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_chunked_bodies_split_anywhere(chunks: list[bytes], data: st.DataObject) -> None:
    wire = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nT: 1\r\n\r\n"
    call, found, position = new_call(), b"", 0
    while position < len(wire):
        assert not call.done
        size = data.draw(st.integers(1, 20))
        found += call.feed(wire[position : position + size])
        position += size
    assert call.done and call.reusable
    assert found == b"".join(chunks)


def test_all_chunks_of_a_piece_come_as_one_block() -> None:
    call, blocks = answered(CHUNKED + b"1\r\na\r\n2;ext=1\r\nbc\r\n3 \r\nd", b"ef\r\n1\r\ng\r\n")
    assert blocks == [b"abcd", b"efg"]
    assert not call.done


@given(st.integers(1, 60))
def test_heads_split_anywhere(size: int) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    wire = interim + b"HTTP/1.1 200 Fine\r\nA: 1\r\na: 2\r\nB:x:y\r\nFold: p\r\n  q\r\n\r\nrest"
    call, blocks = answered(*split(wire, size))
    assert call.head is not None and b"".join(blocks) == b"rest"
    assert (call.head.status, call.head.reason) == (200, "Fine")
    assert dict(call.head.headers) == {"a": "1, 2", "b": "x:y", "fold": "p q"}


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n",
        b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 2, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length:2\r\n\r\n",
        b"HTTP/1.1 200 G\xfct\r\nX-Utf8: \xc3\xbc\r\nX-Empty:\r\ncontent-length: 2\r\n\r\n",
    ],
)
def test_small_sins_in_heads(head: bytes) -> None:
    call, blocks = answered(head + b"ok")
    assert (blocks, call.done, call.reusable) == ([b"ok"], True, True)


@pytest.mark.parametrize(
    ("wire", "body", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\noksurplus", b"ok", False),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n", b"ok", False),
    ],
)
def test_ends_and_keep_alive(wire: bytes, body: bytes, reusable: bool) -> None:
    call, blocks = answered(wire)
    assert (blocks, call.done, call.reusable) == ([body], True, reusable)


@pytest.mark.parametrize(
    ("wire", "proper"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", False),
        (CHUNKED + b"9\r\nshort", False),
        (CHUNKED + b"5\r\nshort\r\n", False),
        (CHUNKED + b"5\r\nshort\r\n0\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", False),
    ],
)
def test_the_peer_closes(wire: bytes, proper: bool) -> None:
    call, _ = answered(wire)
    assert not call.done
    assert (call.eof(), call.done, call.reusable) == (proper, proper, False)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0",
        b"\x15\x03\x01",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e23\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: NaN\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        *(CHUNKED + wire for wire in (b"\r\n", b"-1\r\n", b"0x5\r\n", b"1_0\r\n", b"1\r\nab\r\n", b"f" * 300_000)),
    ],
)
def test_what_is_no_http(wire: bytes) -> None:
    with pytest.raises(WireError):
        answered(wire)


def test_long_heads_are_read_up_to_a_limit() -> None:
    call, _ = answered(b"HTTP/1.1 200 OK\r\nA: " + b"x" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n")
    assert call.head is not None
    with pytest.raises(WireError, match="too long"):
        answered(*[b"HTTP/1.1 200 OK\r\n"] + [b"A: " + b"x" * 1000 + b"\r\n"] * 300)


def test_errors_quote_nothing_of_the_answer() -> None:
    with pytest.raises(WireError) as caught:
        answered(CHUNKED + b"3\r\nabcsecret thoughts\r\n")
    assert str(caught.value) == "a chunk is longer than it says"
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def _bare_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("X-Gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", _bare_deflate),
        ("identity", bytes),
        ("", bytes),
    ],
)
def test_bodies_compressed_unasked(encoding: str, pack: object, size: int) -> None:
    body = json.dumps(list(range(50))).encode()
    packed: bytes = pack(body)  # type: ignore[operator]
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    call, blocks = answered(head, *split(packed, size))
    assert b"".join(blocks) == body and call.reusable


@pytest.mark.parametrize(("encoding", "body"), [("gzip", b"plain text"), ("deflate", b"plain text"), ("br", b"x")])
def test_bodies_that_cannot_be_unpacked(encoding: str, body: bytes) -> None:
    with pytest.raises(WireError, match="compressed"):
        answered(f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\n\r\n".encode(), body)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_body_has_a_limit(monkeypatch: pytest.MonkeyPatch, pack: object) -> None:
    monkeypatch.setattr(wire, "MAX_INFLATED_BYTES", 1 << 20)
    for size, fits in ((1 << 20, True), ((1 << 20) + 1, False), (1 << 26, False)):
        packed: bytes = pack(bytes(size))  # type: ignore[operator]
        encoding = "gzip" if pack is gzip.compress else "deflate"
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
        if fits:
            assert len(b"".join(answered(head, *split(packed, 100))[1])) == size
            continue
        with pytest.raises(TooLargeError, match="more than 1 MB"):
            answered(head, *split(packed, 100))


# ---- requests


def test_request_bytes() -> None:
    head = HttpCall(to("http://u:p@host:8080/v1?a=1", X_API_key=" k ", accept="a/b")).request_head(7)
    assert head == (
        b"POST /v1?a=1 HTTP/1.1\r\nHost: host:8080\r\nAccept-Encoding: identity\r\n"
        b"Authorization: Basic dTpw\r\nContent-Length: 7\r\nX-API-key: k\r\naccept: a/b\r\n\r\n"
    )


def test_a_request_without_a_body() -> None:
    call = HttpCall(HttpRequest(parse_target("http://host/v1"), "HEAD", {"host": "other"}))
    head = call.request_head(None)
    assert head == b"HEAD /v1 HTTP/1.1\r\nhost: other\r\nAccept-Encoding: identity\r\nAccept: */*\r\n\r\n"
    assert call.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n") == b"" and call.done and call.reusable


def test_request_bytes_for_a_proxy() -> None:
    head = HttpCall(to("http://host/v1", Content_Type="c", Authorization="Bearer k")).request_head(
        0, absolute=True, extra={"proxy-authorization": "Basic x"}
    )
    assert head == (
        b"POST http://host/v1 HTTP/1.1\r\nHost: host\r\nAccept-Encoding: identity\r\nAccept: */*\r\n"
        b"Content-Length: 0\r\nContent-Type: c\r\nAuthorization: Bearer k\r\n"
        b"proxy-authorization: Basic x\r\n\r\n"
    )


@pytest.mark.parametrize("entry", cases("hostile_headers", kind="outgoing", expected="refused"))
def test_headers_that_cannot_be_sent(entry: dict[str, str]) -> None:
    key = entry["input"]
    with pytest.raises(ConfigValueError, match="API key") as caught:
        HttpCall(to("http://host/", Authorization=key)).request_head(0)
    assert key not in str(caught.value)
    assert repr(key)[1:-1] not in str(caught.value)


@pytest.mark.parametrize("entry", cases("hostile_headers", kind="outgoing", expected="sent"))
def test_headers_that_are_odd_but_sent_as_they_are(entry: dict[str, str]) -> None:
    head = HttpCall(to("http://host/", Authorization=entry["input"])).request_head(0)
    assert b"Authorization: " + entry["input"].encode("latin-1") + b"\r\n" in head
    assert b"X-Injected" not in head.replace(entry["input"].encode("latin-1"), b"")


def test_urls() -> None:
    target = parse_target("http://user:pw@[::1]:8080/a b/ü?x=1#f")
    assert target.origin == ("http", "::1", 8080)
    assert target.path == "/a%20b/%C3%BC?x=1"
    assert (target.host_header, target.display) == ("[::1]:8080", "http://[::1]:8080/a%20b/%C3%BC")
    assert parse_target("https://api.example").origin == ("https", "api.example", 443)
    assert parse_target("https://api.example").path == "/"
    assert json.dumps(parse_target("HTTP://Host/").host) == '"host"'


def test_secrets_of_urls() -> None:
    secrets = parse_target("http://user:pass@h/?api-version=2024&api_key=abcd%2Fef&sig=xyz").secrets
    assert {"user:pass", "pass", "abcd/ef", "xyz"} <= set(secrets)
    assert "2024" not in secrets


def endpoint(path: str, **headers: str) -> HttpRequest:
    return replace(to(f"http://host{path}", **headers), remembers_unreachable=True)


def test_heads_to_an_endpoint_differ_in_the_length_only() -> None:
    wire._head_parts.cache_clear()
    request = endpoint("/v1", Authorization="Bearer k", X_Note="Content-Length: 1")
    heads = [HttpCall(request).request_head(length) for length in (0, 1, 1000)]
    fresh = [HttpCall(replace(request, remembers_unreachable=False)).request_head(length) for length in (0, 1, 1000)]
    assert heads == fresh
    assert [
        b"\r\nContent-Length: %d\r\n" % length in head for head, length in zip(heads, (0, 7, 1000), strict=True)
    ] == [True, False, True]
    assert wire._head_parts.cache_info().misses == 1


def test_a_length_that_is_given_is_sent() -> None:
    assert b"\r\ncontent-length: 5\r\n" in HttpCall(endpoint("/v1", content_length="5")).request_head(7)


def test_heads_that_may_quote_a_conversation_are_not_kept() -> None:
    wire._head_parts.cache_clear()
    HttpCall(to("http://host/search?q=secret")).request_head(None)
    assert wire._head_parts.cache_info().currsize == 0
