"""What servers say of themselves, as it is asked for on the page Back-ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from Middleware.addons.console import backend_status
from Middleware.addons.console.backend_status import BackendServer, ask
from Middleware.llmapis import api_types
from Tests.tables import table


class Stub:
    """A server that answers GET by path, and remembers paths and keys."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.delay = 0.0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.asked.append((self.path, self.headers.get("Authorization") or self.headers.get("x-api-key") or ""))
                time.sleep(stub.delay)
                status, body = stub.answers.get(self.path, (404, {"error": "no such page"}))
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                raise AssertionError("a server was sent something")

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture(scope="module")
def running() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.server.shutdown()
    stub.server.server_close()


@pytest.fixture
def stub(running: Stub) -> Stub:
    running.answers, running.asked, running.delay = {}, [], 0.0
    return running


LLAMA = {
    "/health": (200, {"status": "ok"}),
    "/props": (200, {"model_path": "/m/qwen3.gguf", "total_slots": 4}),
    "/slots": (200, [{"is_processing": True}, {"is_processing": False}]),
}
LOADING = {"/health": (503, {"error": {"message": "Loading model"}})}
SWAP = {"/health": (200, "OK"), "/running": (200, {"running": [{"model": "small", "state": "ready"}]})}
STARTING = {"/health": (200, "OK"), "/running": (200, {"running": [{"model": "big", "state": "starting"}]})}


@table(
    ("kind", "answers", "status", "model", "slots"),
    [
        (api_types.OPENAI_CHAT, LLAMA, "healthy", "qwen3.gguf", "1 of 2 at work"),
        (api_types.OPENAI_COMPLETION, {**LLAMA, "/slots": (501, {})}, "healthy", "qwen3.gguf", "4"),
        (api_types.OPENAI_CHAT, LOADING, "loading", None, None),
        (api_types.OPENAI_CHAT, SWAP, "healthy", "small", None),
        (api_types.OPENAI_CHAT, STARTING, "loading", "big", None),
        (api_types.OPENAI_CHAT, {"/v1/models": (200, {"data": []})}, "healthy", None, None),
        (api_types.OPENAI_CHAT, {"/v1/models": (401, {})}, "refusing", None, None),
        (api_types.OPENAI_CHAT, {"/v1/models": (500, {})}, "slow", None, None),
        (api_types.OLLAMA_CHAT, {"/api/ps": (200, {"models": [{"name": "qwen3:8b"}]})}, "healthy", "qwen3:8b", None),
        (api_types.OLLAMA_GENERATE, {"/api/ps": (200, {"models": []})}, "healthy", "none loaded", None),
        (
            api_types.KOBOLD_GENERATE,
            {"/api/extra/perf": (200, {"idle": 0, "queue": 2})},
            "healthy",
            None,
            "busy, 2 waiting",
        ),
        (api_types.CLAUDE_MESSAGES, {"/v1/models": (200, {"data": []})}, "healthy", None, None),
    ],
)
def test_a_server_tells_how_it_is(
    stub: Stub, kind: str, answers: dict[str, Any], status: str, model: str | None, slots: str | None
) -> None:
    stub.answers = answers
    found = ask(BackendServer(stub.url, kind))
    assert (found.status, found.model, found.slots) == (status, model, slots)
    assert (found.problem is None) == (status == "healthy")


def test_a_stopped_server_is_told_from_a_slow_one(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(BackendServer("http://127.0.0.1:9", api_types.OPENAI_CHAT)).status == "stopped"
    stub.answers, stub.delay = {"/api/ps": (200, {"models": []})}, 0.3
    monkeypatch.setattr(backend_status, "SLOW_SECONDS", 0.2)
    assert ask(BackendServer(stub.url, api_types.OLLAMA_CHAT)).status == "slow"
    monkeypatch.setattr(backend_status, "ASK_SECONDS", 0.1)
    silent = ask(BackendServer(stub.url, api_types.OLLAMA_CHAT))
    assert silent.status == "slow" and "has not answered" in str(silent.problem)


def test_the_key_is_sent_only_where_it_is_wanted(stub: Stub) -> None:
    server = BackendServer(stub.url, api_types.OPENAI_CHAT, "secret")
    stub.answers = LLAMA
    ask(server)
    assert {key for _, key in stub.asked} == {""}
    stub.asked, stub.answers = [], {"/v1/models": (401, {})}
    assert ask(server).status == "refusing"
    assert ("/v1/models", "Bearer secret") in stub.asked and ("/health", "") in stub.asked


def test_nothing_that_loads_a_model_is_asked(stub: Stub) -> None:
    for kind in (api_types.OPENAI_CHAT, api_types.OLLAMA_CHAT, api_types.KOBOLD_GENERATE, api_types.CLAUDE_MESSAGES):
        ask(BackendServer(stub.url + "/v1", kind))
    assert {path for path, _ in stub.asked} <= {
        "/health",
        "/props",
        "/slots",
        "/running",
        "/v1/models",
        "/api/ps",
        "/api/extra/perf",
    }
