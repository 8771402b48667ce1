"""The page Back-ends: what servers say of themselves when somebody asks, and that nobody asks otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.console import backend_routes
from Middleware.addons.console.backend_routes import BackendServer, ask
from Middleware.llmapis import api_types
from Middleware.utilities.http.via import comes_back
from Tests.api.record_lab import RecordLab, record_lab
from Tests.free_ports import free_port
from Tests.patience import PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, status_reply
from Tests.tables import table


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordLab]:
    with record_lab(tmp_path, monkeypatch) as lab:
        yield lab


def llama_cpp(request: RecordedRequest) -> Reply:
    answers: dict[str, Any] = {
        "/health": {"status": "ok"},
        "/props": {"model_path": "/models/qwen3.gguf", "total_slots": 2},
        "/slots": [{"is_processing": True}, {"is_processing": False}],
    }
    return json_reply(answers[request.path])


def ollama(request: RecordedRequest) -> Reply:
    return json_reply({"models": [{"name": "gemma3:4b"}]}) if request.path == "/api/ps" else status_reply(404)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers is not slow because this machine is."""
    for name in ("ASK_SECONDS", "SLOW_SECONDS"):
        monkeypatch.setattr(backend_routes, name, PATIENCE)


def test_a_stopped_a_slow_a_loading_and_a_healthy_server_are_told_apart(
    lab: RecordLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_routes, "ASK_SECONDS", 4.0)
    lab.write("ApiTypes/Ollama", {"type": "ollamaApiChat"})
    with StubBackend() as healthy, StubBackend() as loaded, StubBackend() as slow, StubBackend() as loading:
        healthy.responder, loaded.responder = llama_cpp, ollama
        slow.responder = lambda request: Reply(never=True)
        loading.responder = lambda request: status_reply(503, "Loading model")
        lab.endpoint("Main", {"apiKey": "s3cret"}, healthy.url)
        lab.endpoint("Small", {"apiTypeConfigFileName": "Ollama"}, loaded.url)
        lab.endpoint("Slow", {}, slow.url)
        lab.endpoint("Loading", {}, loading.url)
        lab.endpoint("Stopped", {}, f"http://127.0.0.1:{free_port()}")
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


# -- what servers say --------------------------------------------------------------------------------------------------


class Stub(StubBackend):
    """A server that answers GET by path."""

    def __init__(self) -> None:
        super().__init__()
        self.next_row()

    def next_row(self) -> None:
        super().next_row()
        self.answers: dict[str, tuple[int, Any]] = {}
        self.delay = 0.0

    def respond(self, request: RecordedRequest) -> Reply:
        status, body = self.answers.get(request.path, (404, {"error": "no such page"}))
        return Reply(status, body.encode() if isinstance(body, str) else body, header_delay=self.delay)

    @property
    def asked(self) -> list[tuple[str, str]]:
        """The paths, with the keys that were sent. Nothing but GET may come."""
        assert {request.method for request in self.requests} <= {"GET"}
        keys = ("authorization", "x-api-key")
        return [(one.path, next((one.headers[key] for key in keys if key in one.headers), "")) for one in self.requests]


@pytest.fixture(scope="module")
def running() -> Iterator[Stub]:
    with Stub() as stub:
        yield stub


@pytest.fixture
def stub(running: Stub) -> Stub:
    running.next_row()
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


@table("kind", [*api_types.KNOWN_TYPES])
def test_a_server_that_is_this_one(kind: str) -> None:
    with StubBackend() as server:
        server.responder = lambda request: status_reply(508, "this WilmerAI is already answering this request")
        found = ask(BackendServer(server.url, kind))
        assert (found.status, found.problem) == ("refusing", "it leads back to this WilmerAI")
        assert all(comes_back(request.headers["x-wilmer-via"]) for request in server.requests)


def test_a_stopped_server_is_told_from_a_slow_one(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(BackendServer("http://127.0.0.1:9", api_types.OPENAI_CHAT)).status == "stopped"
    stub.answers, stub.delay = {"/api/ps": (200, {"models": []})}, 0.3
    monkeypatch.setattr(backend_routes, "SLOW_SECONDS", 0.2)
    assert ask(BackendServer(stub.url, api_types.OLLAMA_CHAT)).status == "slow"
    monkeypatch.setattr(backend_routes, "ASK_SECONDS", 0.1)
    silent = ask(BackendServer(stub.url, api_types.OLLAMA_CHAT))
    assert silent.status == "slow" and "has not answered" in str(silent.problem)


def test_the_key_is_sent_only_where_it_is_wanted(stub: Stub) -> None:
    server = BackendServer(stub.url, api_types.OPENAI_CHAT, "secret")
    stub.answers = LLAMA
    ask(server)
    assert {key for _, key in stub.asked} == {""}
    stub.next_row()
    stub.answers = {"/v1/models": (401, {})}
    assert ask(server).status == "refusing"
    assert ("/v1/models", "Bearer secret") in stub.asked and ("/health", "") in stub.asked


def test_the_list_of_models_is_asked_for_where_calls_go(stub: Stub) -> None:
    for path, api_path, asked in (
        ("/v1beta/openai", None, ["/v1beta/openai/models"]),
        ("/x/chat/completions", None, ["/x/v1/models", "/x/models"]),
        ("/x", "/v9", ["/x/v9/models"]),
    ):
        stub.next_row()
        stub.answers = {asked[-1]: (200, {"data": []})}
        assert ask(BackendServer(stub.url + path, api_types.OPENAI_CHAT, api_path=api_path)).status == "healthy"
        assert [path for path, _ in stub.asked if path.endswith("/models")] == asked


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
