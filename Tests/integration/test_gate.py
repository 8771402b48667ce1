"""The concurrency gate over real launchers: its order, who need not wait, and who leaves it early."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from Tests.api.front_dialects import message_at
from Tests.integration.gate_cases import CHAT, Ask, queued_ids, wait_in_queue
from Tests.integration.launcher import (
    USER,
    Backend,
    Launcher,
    read_until,
    sse_payloads,
    standard_tree,
    streamed_text,
    stuck,
)
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until

QUIET_SECONDS = 0.15
TIMEOUT = 0.5
BUSY = "Server busy, concurrency limit reached"


@contextmanager
def held(server: Launcher, backend: Backend) -> Iterator[socket.socket]:
    """One stream that has begun and does not end: the only slot is taken."""
    backend.replies["single"] = stuck("Once ", "upon ", "a ")
    with server.open("Single", stream=True) as sock:
        read_until(sock, b"upon")
        backend.replies.clear()
        yield sock


def free(sock: socket.socket) -> float:
    """End the stream that holds the slot; returns the time."""
    sock.close()
    return time.monotonic()


def texts(backend: Backend) -> list[str]:
    """The first word of the last message of every call, in order."""
    return [call.json["messages"][-1]["content"].split()[0] for call in backend.calls()]


@pytest.mark.contract
def test_only_what_runs_a_workflow_waits(gated_server: Launcher, backend: Backend) -> None:
    shown = gated_server.request("GET", "/v1/models").json["data"][0]["id"]
    with held(gated_server, backend) as sock:
        ask, _ = wait_in_queue(gated_server, backend.hello)
        for method, path, body, status in (
            ("GET", "/v1/models", None, 200),
            ("HEAD", "/api/tags", None, 200),
            ("OPTIONS", CHAT, None, 200),
            ("DELETE", "/api/chat", {"request_id": "nobody"}, 200),
            ("POST", "/api/show", {"model": shown}, 200),
            ("POST", "/api/pull", {"model": shown}, 200),
            ("POST", "/api/chat", {"model": shown}, 200),
            ("POST", "/api/chat/", {"model": shown, "messages": None, "keep_alive": "0s", "stream": False}, 200),
            ("POST", "/api/generate", {"model": shown, "prompt": "", "keep_alive": 0}, 200),
            ("POST", "/api/chat", {"messages": []}, 400),
            ("POST", "/nowhere", {}, 404),
        ):
            response = gated_server.request(method, path, body)
            assert (response.status, response.seconds < PATIENCE) == (status, True)
        assert ask.is_alive()
        left = free(sock)
        assert ask.answer().text == "single says hello."
        assert time.monotonic() - left < PATIENCE


def test_a_large_body_waits_even_if_it_has_no_messages(gated_server: Launcher, backend: Backend) -> None:
    """Nothing larger is read before there is a slot."""
    with held(gated_server, backend) as sock, ThreadPoolExecutor() as pool:
        asks = []
        for size in (4096, 5_000_000):
            before = len(queued_ids(gated_server))
            body = {"model": USER, "messages": [], "keep_alive": "0" * size, "stream": False}
            asks.append(pool.submit(gated_server.request, "POST", "/api/chat", body))
            assert until(lambda before=before: len(queued_ids(gated_server)) > before)
        free(sock)
        assert all("load" not in ask.result().json.get("done_reason", "") for ask in asks)


def test_the_line_of_a_request_tells_how_long_it_waited(gated_server: Launcher, backend: Backend) -> None:
    with held(gated_server, backend) as sock:
        ask, request_id = wait_in_queue(gated_server, backend.hello)
        free(sock)
        assert ask.answer().status == 200
    line = re.compile(
        rf"Request {request_id}: route shared Single \(model \S+\), endpoint \S+, "
        r"waited \d+\.\d\d s in the queue, answered after "
    )
    assert until(lambda: line.search(gated_server.output()) is not None), gated_server.output()


def test_first_come_first_served(gated_server: Launcher, backend: Backend) -> None:
    with held(gated_server, backend) as sock:
        asks = [
            wait_in_queue(gated_server, f"{number} {backend.hello}", stream=number % 2 == 0)[0] for number in range(6)
        ]
        free(sock)
        assert all(ask.answer().status == 200 for ask in asks)
    assert texts(backend)[1:] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("size", [10, 300_000], ids=["small", "large"])
def test_a_client_that_leaves_the_queue_is_noticed_at_once(gated_server: Launcher, backend: Backend, size: int) -> None:
    """Also one whose request is larger than what a server reads with the headers."""
    with held(gated_server, backend) as sock:
        ask, request_id = wait_in_queue(gated_server, f"gone {backend.hello} {'x' * size}")
        ask.leave()
        gated_server.wait_output(f"the client of request {request_id} has gone", PATIENCE)
        free(sock)
        assert gated_server.ask("Single").status == 200
    assert "gone" not in texts(backend)


DIALECTS = {
    CHAT: ["choices", 0, "message", "content"],
    "/v1/completions": ["choices", 0, "text"],
    "/api/chat": ["message", "content"],
    "/api/generate": ["response"],
}


@pytest.mark.parametrize("path", DIALECTS)
def test_a_request_cancelled_in_the_queue_gets_an_empty_answer_at_once(
    gated_server: Launcher, backend: Backend, path: str
) -> None:
    with held(gated_server, backend):
        model = USER if path.startswith("/api/") else None  # either way: prompt routing, which would ask the LLM
        ask, request_id = wait_in_queue(gated_server, backend.hello, model=model, path=path)
        started = time.monotonic()
        assert gated_server.request("DELETE", "/api/chat", {"request_id": request_id}).status == 200
        response = ask.answer()
        assert time.monotonic() - started < PATIENCE
        assert (response.status, response.headers["x-request-id"]) == (200, request_id)
        value = response.json
        for step in DIALECTS[path]:
            value = value[step]
        assert value == ""
        time.sleep(QUIET_SECONDS)
        assert backend.nodes() == ["single"]
        gated_server.wait_output(f"Request {request_id} is cancelled")


def test_a_stream_cancelled_in_the_queue_ends_properly(gated_server: Launcher, backend: Backend) -> None:
    with held(gated_server, backend):
        ask, request_id = wait_in_queue(gated_server, backend.hello, model="Chain", stream=True)
        gated_server.request("DELETE", "/api/generate", {"request_id": request_id})
        body = ask.answer().body
    assert streamed_text(body) == "" and sse_payloads(body)[-1] == "[DONE]"
    assert backend.nodes() == ["single"]


@pytest.fixture(scope="module")
def impatient(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    tree = standard_tree(tmp_path_factory.mktemp("impatient") / "Public", shared_backend.url)
    with Launcher(
        script,
        "--PublicDirectory",
        tree.public,
        "--User",
        USER,
        "--concurrency-timeout",
        str(TIMEOUT),
        backend=shared_backend,
    ) as server:
        yield server


@pytest.mark.parametrize("path", [CHAT, "/api/chat/", "/v1/messages", "/v1/v1/messages/", "/responses/"])
@pytest.mark.contract
def test_a_wait_too_long(impatient: Launcher, backend: Backend, path: str) -> None:
    with held(impatient, backend):
        began = time.monotonic()
        ask, request_id = wait_in_queue(impatient, backend.hello, path=path)
        response = ask.answer()
        assert response.status == 503 and time.monotonic() - began >= TIMEOUT
    assert message_at(path, response.json, 503) == BUSY
    assert int(response.headers["content-length"]) == len(response.body)
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["retry-after"]) > 0
    assert response.headers["x-request-id"] == request_id
    assert f"refusing request {request_id}" in impatient.output()
    assert backend.nodes() == ["single"]
    assert until(lambda: impatient.ask("Single").status == 200)  # the slot is free again


def test_calls_wait_in_line_at_the_level_of_endpoints(tmp_path: Path, backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", backend.url)
    with (
        Launcher(
            "run_waitress.py",
            "--PublicDirectory",
            tree.public,
            "--User",
            USER,
            "--concurrency-level",
            "endpoint",
            backend=backend,
        ) as server,
        held(server, backend) as sock,
    ):
        asks = []
        for number in range(4):
            asks.append(Ask(server, f"{number} {backend.hello}"))
            server.wait_output(f"waits, {number + 1} waiting")
        free(sock)
        assert [ask.answer().text for ask in asks] == ["single says hello."] * 4
    assert texts(backend)[1:] == ["0", "1", "2", "3"]
