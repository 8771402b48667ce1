"""A warm request opens no file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.api.app import create_app
from Middleware.utilities import config_utils
from Tests.llmapis.lab import Lab
from Tests.stub_backend import StubBackend, chat_reply

_watching: list[list[str]] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event in ("open", "os.listdir", "os.scandir"):
        _watching[-1].append(f"{event} {arguments[0]}")


sys.addaudithook(_hook)  # cannot be removed; does nothing unless a test watches


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    yield Lab(tmp_path, monkeypatch)
    config_utils.reset_config_store()


def test_a_warm_request_opens_no_file_and_lists_no_folder(lab: Lab) -> None:
    with StubBackend(chat_reply("Hello.")) as backend:
        lab.user(customWorkflowOverride=True, customWorkflow="Two")
        lab.endpoint("Main", {"presetSamplers": {"temperature": 0.5}}, backend.url)
        node = {"endpointName": "Main", "systemPrompt": "Be brief. {agent1Output}", "prompt": ""}
        lab.write(
            "Workflows/tester/Two",
            [{"type": "StringConcatenator", "strings": ["a", "b"]}, {**node, "returnToUser": True}],
        )
        client = create_app().test_client()
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert client.post("/v1/chat/completions", json=body, buffered=True).status_code == 200
        seen: list[str] = []
        _watching.append(seen)
        try:
            answer = client.post("/v1/chat/completions", json=body, buffered=True)
        finally:
            _watching.pop()
    assert answer.json["choices"][0]["message"]["content"] == "Hello."
    inside = [entry for entry in seen if os.fspath(lab.root) in entry]
    assert inside == []
    assert seen == []
