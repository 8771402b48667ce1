from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.api.api_lab import ApiLab, after_heartbeats, pause
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import llm, reply_to, static, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.user(routingConfig="routes", categorizationWorkflow="Categorize")
        lab.write(
            "Routing/routes",
            {
                "REZEPTE ä\n料": {"description": "d", "workflow": "Cook"},
                "OTHER": {"description": "d", "workflow": "Gone"},
            },
        )
        lab.workflow("Categorize", [llm("?")])
        lab.workflow("Cook", [static("cooked")])
        yield lab


@pytest.mark.parametrize("stream", [False, True])
def test_header(lab: ApiLab, stream: bool) -> None:
    lab.backend.responder = lambda request: reply_to(request, "rezepte ä 料")
    answer = lab.chat(user("x"), stream=stream)
    assert answer.status == 200
    assert answer.headers["X-Wilmer-Route"] == "REZEPTE ä ? -> Cook"


@pytest.mark.parametrize("stream", [False, True])
def test_failing(lab: ApiLab, stream: bool) -> None:
    lab.backend.responder = lambda request: reply_to(request, "other")
    answer = lab.chat(user("x"), stream=stream)
    assert answer.status == 500
    assert answer.headers["X-Wilmer-Route"] == "OTHER -> Gone"


def test_none_without_a_workflow(lab: ApiLab) -> None:
    assert "X-Wilmer-Route" not in lab.get("/v1/models").headers
    assert "X-Wilmer-Route" not in lab.post("{").headers


def test_slow(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, 60.0, 0.05)
    begun = after_heartbeats(monkeypatch)
    lab.backend.responder = lambda request: reply_to(request, "rezepte ä 料", held=begun)
    answer = lab.chat(user("x"), stream=True)
    assert answer.streamed_text == "cooked" and "X-Wilmer-Route" not in answer.headers
