"""Ids that Windows and macOS take for the same name, on a real server: each discussion remembers its own.

The file system is that of the temporary folder; ``--basetemp`` names another one.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import USER, Launcher, run_launcher
from Tests.integration.memory_chat import Exchange, MemoryBackend, conversation, markers, memory_tree, message_text
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.workflows.engine_lab import until

SCRIPT = "run_waitress.py"
CODE = re.compile(r"#signin=([\w.-]+)")
IDS = ("Chat", "chat", "CHAT", "\u00c9t\u00e9", "\u00e9t\u00e9")
LENGTH, APART = 12, 100


def talk(discussion_id: str) -> list[dict[str, str]]:
    """A conversation whose messages have other numbers than those of the other ids."""
    first = IDS.index(discussion_id) * APART
    system, *said = conversation(discussion_id, LENGTH)
    return [system, *({**one, "content": message_text(first + number)} for number, one in enumerate(said))]


def only_of(discussion_id: str, text: str) -> bool:
    """Whether a text has what was said in this conversation, and nothing of another."""
    return {number // APART for number in markers(text)} == {IDS.index(discussion_id)}


class Scene:
    """A server and its console; ``arguments`` are those of each of its commands."""

    def __init__(self, folder: Path, backend: MemoryBackend) -> None:
        tree = memory_tree(folder / "Public", backend.url, vector=False)
        self.backend = backend
        self.arguments = ["--PublicDirectory", tree.public, "--User", USER]
        self.server = Launcher(SCRIPT, *self.arguments)

    def recalled(self, discussion_id: str) -> str:
        """What the prompt of the next message has of the memories."""
        assert Exchange(self.server.port, "Recall", talk(discussion_id)).wait().answered
        return str(self.backend.last_call("answer").json["messages"][0]["content"])

    def command(self, *words: str) -> str:
        done = run_launcher(SCRIPT, "memory", *self.arguments, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def listed(self) -> list[str]:
        return sorted(one["discussionId"] for one in json.loads(self.command("list", "--json")))

    def in_console(self, path: str) -> Any:
        found = CODE.search(run_launcher(SCRIPT, "console", *self.arguments).stdout)
        assert found
        token = self._call("POST", "session", {}, {"code": found[1]})["token"]
        return self._call("GET", path, {"Authorization": f"Bearer {token}"}, None)

    def _call(self, method: str, path: str, headers: dict[str, str], body: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=CLIENT_PATIENCE)
        headers = {"Content-Type": "application/json", "Connection": "close", **headers}
        connection.request(method, f"/console/api/{path}", None if body is None else json.dumps(body), headers)
        with connection.getresponse() as response:
            data = response.read()
            assert response.status == 200, data
            return json.loads(data)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with MemoryBackend() as backend:
        yield Scene(tmp_path, backend)


def test_each_discussion_remembers_its_own(scene: Scene, tmp_path: Path) -> None:
    with scene.server:
        # All of them begin at the same moment.
        for exchange in [Exchange(scene.server.port, "Chat", talk(name)) for name in IDS]:
            assert exchange.wait().answered
        for name in IDS:
            assert until(lambda name=name: markers(scene.recalled(name)), PATIENCE)
            assert only_of(name, scene.recalled(name))
        rows = scene.in_console("discussions")["discussions"]
        assert sorted(row["discussionId"] for row in rows) == sorted(IDS)
        assert only_of("CHAT", json.dumps(scene.in_console("discussions/CHAT?part=memories")))
    with Launcher(SCRIPT, *scene.arguments) as scene.server:
        assert all(only_of(name, scene.recalled(name)) for name in IDS)
        assert scene.listed() == sorted(IDS)
        for name in ("Chat", "chat"):
            file = tmp_path / f"{IDS.index(name)}.json"
            scene.command("export", name, "--output", str(file))
            exported = json.loads(file.read_text(encoding="utf-8"))
            assert exported["discussionId"] == name and only_of(name, json.dumps(exported))
        scene.command("delete", "chat", "--yes")
        assert scene.listed() == sorted({*IDS} - {"chat"})
        assert markers(scene.recalled("chat")) == []
        assert all(only_of(name, scene.recalled(name)) for name in IDS if name != "chat")
