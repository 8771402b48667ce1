"""The page Back-ends: what servers say of themselves when somebody asks, and that nobody asks otherwise."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.console import backend_status
from Tests.api.record_lab import RecordLab, record_lab
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, status_reply


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordLab]:
    with record_lab(tmp_path, monkeypatch) as lab:
        yield lab


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def llama_cpp(request: RecordedRequest) -> Reply:
    answers: dict[str, Any] = {
        "/health": {"status": "ok"},
        "/props": {"model_path": "/models/qwen3.gguf", "total_slots": 2},
        "/slots": [{"is_processing": True}, {"is_processing": False}],
    }
    return json_reply(answers[request.path])


def ollama(request: RecordedRequest) -> Reply:
    return json_reply({"models": [{"name": "gemma3:4b"}]}) if request.path == "/api/ps" else status_reply(404)


def test_a_stopped_a_slow_a_loading_and_a_healthy_server_are_told_apart(
    lab: RecordLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_status, "ASK_SECONDS", 1.0)
    lab.write("ApiTypes/Ollama", {"type": "ollamaApiChat"})
    with StubBackend() as healthy, StubBackend() as loaded, StubBackend() as slow, StubBackend() as loading:
        healthy.responder, loaded.responder = llama_cpp, ollama
        slow.responder = lambda request: Reply(never=True)
        loading.responder = lambda request: status_reply(503, "Loading model")
        lab.endpoint("Main", {"apiKey": "s3cret"}, healthy.url)
        lab.endpoint("Small", {"apiTypeConfigFileName": "Ollama"}, loaded.url)
        lab.endpoint("Slow", {}, slow.url)
        lab.endpoint("Loading", {}, loading.url)
        lab.endpoint("Stopped", {}, f"http://127.0.0.1:{unused_port()}")
        servers = (healthy, loaded, slow, loading)

        # Looking at the page asks nobody.
        for _ in range(3):
            shown = lab.console("backends")
        assert {row["status"] for row in shown["endpoints"]} == {"not asked"}
        assert not any(server.requests for server in servers)

        rows = {row["name"]: row for row in lab.console("backends/check", "POST", {})["endpoints"]}
        assert {name: row["status"] for name, row in rows.items()} == {
            "Main": "healthy",
            "Small": "healthy",
            "Slow": "slow",
            "Loading": "loading",
            "Stopped": "stopped",
        }
        assert (rows["Main"]["model"], rows["Main"]["slots"]) == ("qwen3.gguf", "1 of 2 at work")
        assert rows["Small"]["model"] == "gemma3:4b"
        assert all(row["problem"] for name, row in rows.items() if name not in ("Main", "Small"))
        asked = [request for server in servers for request in server.requests]
        # Questions that load no model; the key goes only to a server that wants one.
        assert {(request.method, request.path) for request in asked} == {
            ("GET", "/health"),
            ("GET", "/props"),
            ("GET", "/slots"),
            ("GET", "/api/ps"),
        }
        assert "s3cret" not in str([request.headers for request in asked])


def test_a_row_has_the_figures_of_recorded_calls(lab: RecordLab) -> None:
    for _ in range(3):
        lab.ask()
    lab.backend.responder = lambda request: status_reply(400, "no such model")
    lab.ask()
    asked = len(lab.backend.requests)
    [row] = [row for row in lab.console("backends")["endpoints"] if row["name"] == "Main"]
    assert (row["calls"], row["failed"], sum(hour["calls"] for hour in row["hours"])) == (4, 1, 4)
    assert "400" in str(row["last_error"]) or "no such model" in str(row["last_error"])
    assert len(lab.backend.requests) == asked
