"""Requests that are too large, over real launchers: what the client reads, and what becomes of the connection."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from Tests.api.front_dialects import message_at
from Tests.integration.gate_cases import CHAT
from Tests.integration.launcher import USER, Backend, Launcher, read_to_end, read_until, standard_tree
from Tests.patience import BEFORE_BYTES, CLIENT_PATIENCE

MEGABYTE = 1024 * 1024
TOO_LARGE = "The request body is larger than 1 MB (--max-request-mb)."
OPENAI = {"message": TOO_LARGE, "type": "invalid_request_error", "param": None, "code": None}


@pytest.fixture(scope="module")
def small(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A launcher that takes one megabyte."""
    tree = standard_tree(tmp_path_factory.mktemp("small") / "Public", shared_backend.url)
    with Launcher(
        script, "--PublicDirectory", tree.public, "--User", USER, "--max-request-mb", "1", backend=shared_backend
    ) as server:
        yield server


def body_of(size: int, text: str) -> bytes:
    """A chat completion of exactly ``size`` bytes."""
    start = json.dumps(
        {"model": "Single", "stream": False, "messages": [{"role": "user", "content": text}], "padding": ""}
    ).encode()[:-2]
    return start + b"x" * (size - len(start) - 2) + b'"}'


def send(
    server: Launcher, data: bytes, chunk: int = 0, path: str = CHAT, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """POST ``data``, in chunks of that size if one is given, and read the answer after the last byte was sent."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
    try:
        body: Any = (data[at : at + chunk] for at in range(0, len(data), chunk)) if chunk else data
        connection.request("POST", path, body, headers, encode_chunked=bool(chunk))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("chunk", [0, 65536, 1000], ids=["length", "chunks", "small chunks"])
def test_the_limit_is_exact(small: Launcher, backend: Backend, chunk: int) -> None:
    status, _, _ = send(small, body_of(MEGABYTE, backend.hello), chunk)
    assert status == 200 and backend.nodes() == ["single"]
    status, headers, data = send(small, body_of(MEGABYTE + 1, backend.hello), chunk)
    assert (status, json.loads(data)) == (413, {"error": OPENAI})
    assert headers["content-type"] == "application/json" and int(headers["content-length"]) == len(data)
    assert headers["connection"] == "close" and headers["x-request-id"] in small.output()
    assert backend.nodes() == ["single"]


@pytest.mark.contract
@pytest.mark.parametrize("chunk", [0, 65536], ids=["length", "chunks"])
@pytest.mark.parametrize(
    ("path", "error"),
    [(CHAT, OPENAI), ("/v1/completions/", OPENAI), ("/api/chat", TOO_LARGE), ("/api/generate", TOO_LARGE)],
)
def test_a_client_that_sends_all_of_it_first_reads_why(small: Launcher, path: str, error: Any, chunk: int) -> None:
    status, _, data = send(small, b"x" * 20 * MEGABYTE, chunk, path)
    assert (status, json.loads(data)) == (413, {"error": error})


def test_the_refusal_has_the_form_of_the_path(small: Launcher) -> None:
    for path in ("/v1/messages", "/messages/count_tokens", "/v1/responses"):
        status, headers, data = send(small, b"x" * 2 * MEGABYTE, path=path)
        assert status == 413 and message_at(path, json.loads(data), 413) == TOO_LARGE
        assert ("request-id" in headers) is ("messages" in path)


def test_many_small_chunks_do_not_count_by_their_framing(small: Launcher, backend: Backend) -> None:
    body = body_of(200_000, backend.hello)
    framed = b"".join(b"1\r\n" + body[at : at + 1] + b"\r\n" for at in range(len(body))) + b"0\r\n\r\n"
    assert len(framed) > MEGABYTE
    with socket.create_connection(("127.0.0.1", small.port), timeout=CLIENT_PATIENCE) as sock:
        sock.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
            + framed
        )
        assert b"single says hello." in read_until(sock, b"single says hello.")


@pytest.mark.contract
@pytest.mark.parametrize("chunk", [0, 1000], ids=["length", "chunks"])
def test_of_a_compressed_body_the_contents_count(small: Launcher, backend: Backend, chunk: int) -> None:
    coded = {"Content-Encoding": "gzip"}
    assert send(small, gzip.compress(body_of(MEGABYTE, backend.hello)), chunk, **coded)[0] == 200
    assert backend.nodes() == ["single"]
    status, _, data = send(small, gzip.compress(b"\0" * 40 * MEGABYTE), chunk, **coded)
    assert (status, json.loads(data)) == (413, {"error": OPENAI})
    status, headers, data = send(small, b"x" * 5000, chunk, "//api//chat/", **{"Content-Encoding": "br"})
    assert status == 415 and "'br'" in message_at("/api/chat", json.loads(data), 415)
    assert headers["accept-encoding"] == "gzip, deflate, identity"
    assert backend.nodes() == ["single"]


@pytest.mark.contract
def test_the_answer_comes_before_the_body(small: Launcher) -> None:
    """And no byte of the body is waited for, also where the client waits for the permission to send it."""
    for more in ("", "Expect: 100-continue\r\n"):
        with socket.create_connection(("127.0.0.1", small.port), timeout=BEFORE_BYTES) as sock:
            sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: 999999999\r\n\r\n".encode())
            assert b"413 " in read_until(sock, b"--max-request-mb")


@pytest.mark.contract
def test_what_follows_a_refused_body_is_no_request(small: Launcher, backend: Backend) -> None:
    body = body_of(300, backend.hello)
    hidden = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    for head in (f"Content-Length: {MEGABYTE + len(hidden)}", "Transfer-Encoding: chunked"):
        data = b"x" * MEGABYTE + hidden
        if "chunked" in head:
            data = b"%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", small.port), timeout=CLIENT_PATIENCE) as sock:
            sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + data + hidden)
            answer = read_to_end(sock)
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 413 ") == 1
    time.sleep(0.1)
    assert backend.nodes() == []


def test_a_keep_alive_client_goes_on_with_a_new_connection(small: Launcher) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", small.port, timeout=CLIENT_PATIENCE)
    for size in (2 * MEGABYTE, 500, 2 * MEGABYTE, 500):
        connection.request("POST", CHAT, body_of(size, "hi"))
        response = connection.getresponse()
        response.read()
        assert response.status == (200 if size == 500 else 413)
    connection.close()


def test_an_unfinished_body_holds_no_slot(small: Launcher) -> None:
    """``small`` serves one request at a time."""
    with socket.create_connection(("127.0.0.1", small.port), timeout=BEFORE_BYTES) as sock:
        sock.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
        time.sleep(0.1)
        assert small.ask("Single").status == 200


def test_chunked_bodies_are_accepted_without_a_limit(server: Launcher, backend: Backend) -> None:
    assert send(server, body_of(5000, backend.hello), 700)[0] == 200
