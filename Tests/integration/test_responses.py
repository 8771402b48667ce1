"""The Responses API over sockets: long streams, silence, clients that leave, and counting beside a full gate."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from Tests.api.responses_stream import heard
from Tests.integration.conftest import Servers
from Tests.integration.launcher import Backend, Launcher, Response, dechunked, read_to_end, read_until, stuck
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import chat_stream_reply

PATH = "/v1/responses"
# Three bytes, four bytes, and what JSON escapes.
PIECES = ["Grü", "ße ", "漢字", "😀", '"\\', "\n"]


def ask(server: Launcher, path: str = PATH, **fields: Any) -> Response:
    return server.request("POST", path, {"model": "Single", "input": "Hi", **fields})


def send(server: Launcher, body: dict[str, Any]) -> socket.socket:
    """Send a request and leave the answer unread."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=CLIENT_PATIENCE)
    sock.sendall(
        b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (PATH.encode(), len(data), data)
    )
    return sock


@pytest.mark.contract
def test_three_thousand_tokens(script: str, servers: Servers, backend: Backend) -> None:
    tokens = PIECES * 500
    backend.replies["single"] = lambda request: chat_stream_reply(tokens)
    result = heard(ask(servers.get(script), stream=True).body)
    assert result.texts_in_order == ["".join(tokens).rstrip()]
    assert result.response["usage"]["output_tokens"] > 0


@pytest.mark.contract
def test_the_first_bytes_come_within_seconds_of_silence(script: str, servers: Servers, backend: Backend) -> None:
    backend.replies["single"] = chat_stream_reply(["Once"], header_delay=2.6)
    sock = send(servers.get(script), {"model": "Single", "input": "Hi", "stream": True})
    with sock:
        before = read_until(sock, b"event: response.in_progress")
        assert b"event: response.created" in before
        assert b"response.output_item.added" not in before
        result = heard(dechunked(before + read_to_end(sock)))
    assert result.texts_in_order == ["Once"]


@pytest.mark.contract
def test_a_client_that_leaves_frees_the_back_end(script: str, servers: Servers, backend: Backend) -> None:
    server = servers.get(script, 1)
    for stream in (True, False):
        backend.replies["single"] = stuck("single")
        sock = send(server, {"model": "Single", "input": backend.hello, "stream": stream})
        call = backend.wait_call("single", count=1 if stream else 2)
        sock.close()
        assert call.wait_ended()
        del backend.replies["single"]
        answer = ask(server)
        assert (answer.status, answer.json["status"]) == (200, "completed")


@pytest.mark.contract
def test_tokens_are_counted_while_the_gate_is_full(script: str, servers: Servers, backend: Backend) -> None:
    server = servers.get(script, 1)
    backend.replies["single"] = stuck("single")
    with send(server, {"model": "Single", "input": backend.hello, "stream": True}):
        backend.wait_call("single")
        counted = ask(server, f"{PATH}/input_tokens", input=backend.hello, instructions="Be terse.")
        assert counted.status == 200 and counted.json["input_tokens"] > 3
        assert len(backend.calls()) == 1
