"""Responses that are cancelled by their ids, on a connection of its own, wherever they are."""

from __future__ import annotations

import json
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from Tests.integration.launcher import Backend, Launcher, Response, dechunked, read_to_end, read_until, stuck
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.stub_backend import Reply

PATH = "/v1/responses"


def opened(server: Launcher, backend: Backend, model: str, **fields: Any) -> socket.socket:
    """Send a request and leave the answer unread."""
    body = json.dumps({"model": model, "input": backend.hello, **fields}).encode()
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=CLIENT_PATIENCE)
    sock.sendall(
        b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (PATH.encode(), len(body), body)
    )
    return sock


def arrived(server: Launcher, since: int) -> str:
    """The id of the response to the request that came last. Only the log has it while a request waits."""
    output = server.wait_output(f"arrived: POST {PATH}\n", since=since)
    return f"resp_{uuid.UUID(output.rpartition(' arrived')[0].rpartition(' ')[2]).hex}"


def cancel(server: Launcher, name: str) -> Response:
    return server.request("POST", f"{PATH}/{name}/cancel")


def events(data: bytes) -> list[dict[str, Any]]:
    blocks = data.decode().split("\n\n")
    return [json.loads(block.partition("data: ")[2]) for block in blocks if block.startswith("event: ")]


def text_of(response: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["status"], item["content"][0]["text"]) for item in response["output"]]


@pytest.mark.contract
@pytest.mark.parametrize("tokens", [("Once ", "upon "), ()], ids=["in mid-stream", "before the first token"])
def test_a_stream(server: Launcher, backend: Backend, tokens: tuple[str, ...]) -> None:
    backend.replies["single"] = stuck(*tokens)
    with opened(server, backend, "Single", stream=True) as sock:
        begun = read_until(sock, b"upon" if tokens else b"response.in_progress")
        name = json.loads(begun.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]
        call = backend.wait_call("single")
        assert server.request("GET", f"{PATH}/{name}").json["status"] == "in_progress"
        answer = cancel(server, name)
        assert call.wait_ended(PATIENCE)
        last = events(dechunked(begun + read_to_end(sock)))[-1]
    assert (answer.status, answer.json["status"]) == (200, "cancelled")
    assert text_of(answer.json) == ([("incomplete", "Once upon")] if tokens else [])
    assert last["type"] == "response.incomplete" and last["response"] == answer.json
    assert server.request("GET", f"{PATH}/{name}").json == answer.json
    assert cancel(server, name).error == "Cannot cancel a completed response."


@pytest.mark.parametrize("store", [True, False])
def test_a_whole_answer(server: Launcher, backend: Backend, store: bool) -> None:
    backend.replies["single"] = Reply(never=True)
    since = server.output_size()
    with opened(server, backend, "Single", store=store) as sock:
        call, name = backend.wait_call("single"), arrived(server, since)
        answer = cancel(server, name)
        assert call.wait_ended(PATIENCE)
        head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
    assert b" 200 " in head and json.loads(body) == answer.json
    assert (answer.status, answer.json["status"], answer.json["output"]) == (200, "cancelled", [])
    assert server.request("GET", f"{PATH}/{name}").status == (200 if store else 404)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(server: Launcher, backend: Backend, stream: bool) -> None:
    """What nobody has got is not kept."""
    backend.replies["single"] = stuck("Once ") if stream else Reply(never=True)
    since = server.output_size()
    with opened(server, backend, "Single", stream=stream):
        call, name = backend.wait_call("single"), arrived(server, since)
        assert server.request("GET", f"{PATH}/{name}").status == 200
    assert call.wait_ended(PATIENCE)
    server.wait_output("done after", PATIENCE, since)
    assert server.request("GET", f"{PATH}/{name}").status == 404


@pytest.mark.parametrize("stream", [True, False])
def test_one_that_waits_at_the_gate(gated_server: Launcher, backend: Backend, stream: bool) -> None:
    server = gated_server
    backend.replies["single"] = stuck("Once ")
    with opened(server, backend, "Single", stream=True) as first:
        read_until(first, b"Once")
        since = server.output_size()
        with ThreadPoolExecutor(1) as pool, opened(server, backend, "Chain", stream=stream) as waiting:
            ended = pool.submit(read_to_end, waiting)
            name = arrived(server, since)
            server.wait_output("waits, 1 waiting", since=since)
            answer = cancel(server, name)
            data = ended.result(PATIENCE)
        found = events(dechunked(data))[-1]["response"] if stream else json.loads(data.partition(b"\r\n\r\n")[2])
    assert (answer.status, answer.json["status"], answer.json["output"]) == (200, "cancelled", [])
    assert found == answer.json and backend.nodes() == ["single"]


def test_the_unknown(server: Launcher) -> None:
    for name in ("resp_0", f"resp_{uuid.uuid4().hex}"):
        assert cancel(server, name).status == 404
