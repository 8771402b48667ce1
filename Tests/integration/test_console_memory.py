"""The Memory pages' calls on a real server: what is listed, where it came from, and that an edit is not undone."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import USER, Launcher, run_launcher
from Tests.integration.memory_chat import Exchange, MemoryBackend, conversation, markers, memory_tree
from Tests.patience import CLIENT_PATIENCE
from Tests.workflows.engine_lab import until

SCRIPT = "run_waitress.py"
LENGTH = 24
CODE = re.compile(r"#signin=([\w.-]+)")


class Talk:
    """A server with memories, and the operator of its console."""

    def __init__(self, folder: Path, backend: MemoryBackend) -> None:
        tree = memory_tree(folder / "Public", backend.url, vector=False, summary=False)
        self.arguments = ["--PublicDirectory", tree.public, "--User", USER]
        self.server, self.backend, self.token = Launcher(SCRIPT, *self.arguments), backend, ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=CLIENT_PATIENCE)
        headers = {
            "Content-Type": "application/json",
            "Connection": "close",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        connection.request(method, f"/console/api/{path}", None if body is None else json.dumps(body), headers)
        with connection.getresponse() as response:
            data = response.read()
            assert response.status == 200, data
            return json.loads(data)

    def sign_in(self) -> None:
        found = CODE.search(run_launcher(SCRIPT, "console", *self.arguments).stdout)
        assert found
        self.token = self.call("POST", "session", {"code": found[1]})["token"]

    def memories(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", "discussions/one?part=memories")["entries"]
        return found

    def say(self, count: int, model: str = "Chat") -> None:
        """Send a conversation of so many messages, and wait for the nodes after its answer."""
        before = self.call("GET", "runs?status=ok")["total"]
        assert Exchange(self.server.port, model, conversation("one", count)).wait(60).answered
        assert until(lambda: self.call("GET", "runs?status=ok")["total"] > before, 60)

    def remembered(self) -> str:
        """What the prompt of the next message has of the memories."""
        self.say(LENGTH, "Recall")
        return str(self.backend.requests[-1].json["messages"][0]["content"])


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with MemoryBackend() as backend:
        talk = Talk(tmp_path, backend)
        with talk.server:
            talk.sign_in()
            yield talk


def test_memories_are_listed_traced_and_mended(talk: Talk) -> None:
    talk.say(LENGTH)
    memories = talk.memories()
    assert len(memories) > 2
    [row] = talk.call("GET", "discussions")["discussions"]
    printed = json.loads(run_launcher(SCRIPT, "memory", *talk.arguments, "list", "--json").stdout)
    del printed[0]["folders"]
    assert [{**row, "user": None}] == [{**one, "user": None} for one in printed]

    # The call that wrote a memory was shown its messages.
    newest = memories[0]
    origin = talk.call("GET", f"discussions/one/memories/{newest['key']}")
    span = next(row for row in talk.call("GET", f"runs/{origin['run']}")["spans"] if row[0] == origin["span"])
    assert span[2] == "llm"
    attempt = next(row for row in talk.call("GET", f"runs/{origin['run']}")["spans"] if row[1] == origin["span"])
    payload = talk.call("GET", f"runs/{origin['run']}/texts/{attempt[0]}")["payload"]
    assert set(markers(newest["text"])) <= set(markers(json.dumps(payload)))

    # An edit is in the next prompt, a deleted memory is not, and neither is written again.
    oldest, second = memories[-1], memories[-2]
    talk.call("PUT", f"discussions/one/memories/{oldest['key']}", {"text": "Mara has it."})
    talk.call("DELETE", f"discussions/one/memories/{newest['key']}")
    talk.call("DELETE", f"discussions/one/memories/{second['key']}")
    calls = len(talk.backend.calls)
    talk.say(LENGTH)
    prompt = talk.remembered()
    assert "Mara has it." in prompt
    assert not set(markers(prompt)) & {*markers(oldest["text"]), *markers(second["text"]), *markers(newest["text"])}
    assert len(talk.memories()) == len(memories) - 2
    assert "memory" not in talk.backend.calls[calls:]
