"""A discussion that goes on in another dialect: what is remembered over one is known over all."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import USER, Launcher
from Tests.integration.memory_chat import MemoryBackend, conversation, markers, memory_tree

KEY, OTHER_KEY = "sk-one", "sk-other"
LENGTH = 24


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[tuple[Launcher, MemoryBackend]]:
    with MemoryBackend() as backend:
        tree = memory_tree(tmp_path / "Public", backend.url, vector=False, summary=False)
        user = tree.configs / "Users" / f"{USER}.json"
        tree.write(f"Users/{USER}.json", {**json.loads(user.read_text("utf-8")), "encryptUsingApiKey": True})
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as server:
            yield server, backend


def ask(server: Launcher, path: str, model: str, headers: dict[str, str]) -> None:
    system, *messages = conversation("one", LENGTH)
    said: dict[str, Any] = {"messages": [system, *messages]}
    if path == "/v1/responses":
        said = {"instructions": system["content"], "input": messages}
    elif path == "/v1/messages":
        said = {"system": system["content"], "messages": messages, "max_tokens": 100}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps({"model": model, **said}), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    finally:
        connection.close()


def test_written_over_responses_and_read_over_all(talk: tuple[Launcher, MemoryBackend]) -> None:
    server, backend = talk
    bearer = {"Authorization": f"Bearer {KEY}"}
    ask(server, "/v1/responses", "Chat", bearer)
    # Its nodes after the answer write the memories.
    server.wait_output("done after", 60)
    remembered: dict[str, list[int]] = {}

    def recall(name: str, path: str, headers: dict[str, str]) -> list[int]:
        ask(server, path, "Recall", headers)
        return markers(backend.requests[-1].json["messages"][0]["content"])

    for name, path, headers in (
        ("responses", "/v1/responses", bearer),
        ("chat", "/v1/chat/completions", bearer),
        ("bearer", "/v1/messages", bearer),
        ("x-api-key", "/v1/messages", {"x-api-key": KEY}),
    ):
        remembered[name] = recall(name, path, headers)
    assert len(remembered["chat"]) > 10 and remembered == dict.fromkeys(remembered, remembered["chat"])
    assert recall("stranger", "/v1/messages", {"x-api-key": OTHER_KEY}) == []
