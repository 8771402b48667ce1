"""What the offline researcher nodes ask a real server, and what they make of its answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.services.service_http import ServiceHttp
from Middleware.workflows.tools.offline_researcher_api_tool import OfflineResearcherApiClient
from Tests.llmapis.lab import Lab
from Tests.stub_backend import BEFORE_STATUS, Reply, StubBackend, json_reply, status_reply

NOTHING = "No pertinent information was found in the search"


@pytest.fixture
def service() -> Iterator[StubBackend]:
    with StubBackend() as backend:
        yield backend


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: StubBackend) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.user(useOfflineResearcherApi=True, offlineResearcherApiPort=str(service.port))
    return lab


@pytest.fixture
def client(lab: Lab) -> OfflineResearcherApiClient:
    return OfflineResearcherApiClient(http=ServiceHttp())


def failure(reason: str) -> str:
    return f"I'm sorry, the offline researcher returned an error ({reason}) for 'ice'."


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, {"query": "ice", "mode": "deep"}),
        ({"max_iterations": 2}, {"query": "ice", "mode": "deep", "max_iterations": 2}),
        ({"max_iterations": 0}, {"query": "ice", "mode": "deep", "max_iterations": 0}),
    ],
)
def test_request(
    client: OfflineResearcherApiClient, service: StubBackend, options: dict[str, Any], body: dict[str, Any]
) -> None:
    client.search("ice", "deep", timeout=5, **options)
    assert (service.requests[0].method, service.requests[0].path) == ("POST", "/search")
    assert service.requests[0].json == body


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "ok", "answer": "Cold.", "no_information_found": False, "sources": []}, "Cold."),
        ({"answer": "Cold."}, "Cold."),
        ({"status": "ok", "answer": "Cold.", "no_information_found": True}, NOTHING),
        ({"status": "ok", "answer": ""}, NOTHING),
        ({"status": "ok", "answer": None}, NOTHING),
        ({"status": "ok"}, NOTHING),
        ({"status": "error", "reason": "index_missing", "answer": "x"}, failure("index_missing")),
        ({"status": "error"}, failure("unknown")),
        ([], failure("invalid_json")),
        ("text", failure("invalid_json")),
    ],
)
def test_answers(client: OfflineResearcherApiClient, service: StubBackend, answer: Any, text: str) -> None:
    service.default = json_reply(answer)
    assert client.search("ice", "quick", timeout=5) == text


@pytest.mark.parametrize(
    ("sources", "lines"),
    [
        (
            [{"book": "Ice", "title": "Flow"}, {"book": "Snow", "title": "Fall", "page": 3}],
            ["- Ice :: Flow", "- Snow :: Fall"],
        ),
        ([{"book": "Ice"}, {"title": "Flow"}, {}, {"book": " ", "title": None}, "x", None], ["- Ice", "- Flow"]),
        ([], []),
        ([{}], []),
        (None, []),
        ("x", []),
        ({"book": "Ice"}, []),
    ],
)
def test_sources(client: OfflineResearcherApiClient, service: StubBackend, sources: Any, lines: list[str]) -> None:
    service.default = json_reply({"status": "ok", "answer": "Cold.", "sources": sources})
    expected = "\n".join(["Cold.", "", "Sources:", *lines]) if lines else "Cold."
    assert client.search("ice", "quick", timeout=5, include_sources=True) == expected
    assert client.search("ice", "quick", timeout=5) == "Cold."


def test_nothing_found_has_no_sources(client: OfflineResearcherApiClient, service: StubBackend) -> None:
    service.default = json_reply({"answer": "", "sources": [{"book": "Ice", "title": "Flow"}]})
    assert client.search("ice", "quick", timeout=5, include_sources=True) == NOTHING


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (status_reply(404), "http_404"),
        (status_reply(500), "http_500"),
        (Reply(body=b"no json"), "invalid_json"),
        (Reply(drop=BEFORE_STATUS), "transport_error"),
        (Reply(never=True), "timeout"),
    ],
)
def test_failures(client: OfflineResearcherApiClient, service: StubBackend, reply: Reply, reason: str) -> None:
    service.default = reply
    assert client.search("ice", "quick", timeout=2 if reply.never else 60) == failure(reason)
    assert len(service.wait_requests()) == 1


@pytest.mark.parametrize("settings", [{}, {"useOfflineResearcherApi": "false"}])
def test_disabled_asks_nobody(
    lab: Lab, client: OfflineResearcherApiClient, service: StubBackend, settings: dict[str, Any]
) -> None:
    lab.user(offlineResearcherApiPort=service.port, **settings)
    assert client.search("ice", "quick", timeout=5) == failure("offline_researcher_disabled")
    assert service.connections == 0


def test_what_nobody_foresaw(lab: Lab) -> None:
    class Broken(ServiceHttp):
        def post(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("out of threads")

    assert (
        OfflineResearcherApiClient(http=Broken()).search("ice", "quick", timeout=5)
        == "I'm sorry, the offline researcher could not be reached for 'ice'."
    )


def test_cancel(lab: Lab, service: StubBackend) -> None:
    service.default = Reply(never=True)
    scope = CancelScope()
    threading.Thread(target=lambda: (service.wait_requests(), scope.cancel())).start()
    with pytest.raises(EarlyTerminationException):
        OfflineResearcherApiClient(scope).search("ice", "deep", timeout=600)
    assert service.requests[0].wait_ended()
