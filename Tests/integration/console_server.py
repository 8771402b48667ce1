"""A server with its run console, over real sockets."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from Tests.integration.launcher import USER, Backend, Launcher, run_launcher, standard_tree
from Tests.patience import CLIENT_PATIENCE
from Tests.workflows.engine_lab import until

LINK = re.compile(r"(http://127\.0\.0\.1:\d+)/console/#signin=([\w.-]+)")
API = "/console/api/"


class Console:
    """A server with one slot at its gate, and its operator. ``flags``: more of its command line."""

    def __init__(self, folder: Path, backend: Backend, script: str, *flags: str) -> None:
        self.tree = standard_tree(folder / "Public", backend.url)
        self.arguments = ["--PublicDirectory", self.tree.public, "--User", USER]
        self.script = script
        self.server = Launcher(script, *self.arguments, "--concurrency", "1", *flags, backend=backend)
        self.backend = backend
        self.token = ""

    def link(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command that prints a sign-in link."""
        return run_launcher(self.script, "console", *self.arguments, *words)

    def sign_in(self) -> None:
        found = LINK.search(self.link().stdout)
        assert found and found[1] == self.server.url
        self.token = self.call("POST", "session", {"code": found[2]}, 200)["token"]

    def call(self, method: str, path: str, body: Any = None, status: int | None = 200) -> Any:
        answer = self.send(method, path, body)
        data = answer.read()
        answer.close()
        assert status in (None, answer.status), data
        return json.loads(data)

    def send(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        """Send a call on a connection of its own and return the beginning of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=CLIENT_PATIENCE)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = None if body is None else json.dumps(body)
        headers |= {"Content-Type": "application/json", "Connection": "close"}
        connection.request(method, API + path, data, headers)
        return connection.getresponse()

    def runs(self, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"runs{query}")["runs"]
        return found

    def newest(self) -> dict[str, Any]:
        return self.runs("?limit=1")[0]


T = TypeVar("T")


def found_in_time(look: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Return what is looked for, once it is there. Raises AssertionError."""
    found: list[T] = []

    def seen() -> bool:
        found[:] = [one for one in [look()] if one is not None]
        return bool(found)

    assert until(seen, seconds)
    return found[0]


class Stream:
    """Events as they arrive."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        assert response.status == 200
        self._response = response

    def wait_for(self, fits: Callable[[str, Any], bool]) -> Any:
        """Return the data of the first event that fits."""
        name = ""
        while line := self._response.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                value = json.loads(text[6:])
                if fits(name, value):
                    return value
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._response.close()
