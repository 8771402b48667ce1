"""A server in this process over the tree of mistakes, and what its log must say about each of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from Middleware.addons.check.load_check import LoadCheck
from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.running.running_requests import running_requests
from Middleware.utilities.config.lookup import reset_config_store
from Middleware.utilities.config.store import config_store
from Tests.integration.configuration_mistakes import Mistake
from Tests.integration.mistake_tree import MistakeTree
from Tests.integration.scripted_backend import MCP_PATH, Backend
from Tests.stub_backend import RecordedRequest, Reply, json_reply
from Tests.workflows.engine_lab import until

LOGGER = logging.getLogger("Middleware")
PER_REQUEST = "Middleware.api.errors"
"""The log that repeats for each request what its client is told."""

ANSWERS: Mapping[str | None, str] = {
    None: "answer says hello.",
    "Tools": "old says hello.",
    "Files": "two files",
    "Remember": "Remembered",
}
"""What each model answers when nothing is wrong."""


class MistakeBackend(Backend):
    """The LLM server of the tree, which answers text completions and is the MCP server, too."""

    def respond(self, request: RecordedRequest) -> Reply:
        if request.path.endswith("/v1/completions"):
            return json_reply({"choices": [{"text": ANSWERS["Tools"], "finish_reason": "stop"}]})
        message = request.json if request.path == MCP_PATH and request.body else {}
        results = {
            "tools/list": {"tools": [{"name": "list", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": ANSWERS["Files"]}]},
        }
        if message.get("method") in results:
            return json_reply({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})
        return super().respond(request)


# -- what a mistake is in a tree ---------------------------------------------------------------------------------------


def broken(tree: MistakeTree, mistake: Mistake) -> bytes:
    """The file with the mistake."""
    new = mistake.new if isinstance(mistake.new, bytes) else tree.filled(mistake.new).encode()
    if not mistake.old:
        return new
    parts = tree.text(mistake.file).split(tree.filled(mistake.old))
    assert len(parts) == 2, "the text to replace must stand in the file once"
    return parts[0].encode() + new + parts[1].encode()


def place(tree: MistakeTree, mistake: Mistake) -> tuple[int, int]:
    """Line and column of the place that the message must name."""
    text = broken(tree, mistake).decode("latin-1")
    before, bar, after = tree.filled(mistake.at).partition("|")
    wanted = before + after or (tree.filled(mistake.new) if isinstance(mistake.new, str) and not bar else "")
    assert not wanted or text.count(wanted) == 1, "the place must be the only one"
    position = text.index(wanted) + (len(before) if bar else 0)
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def make(tree: MistakeTree, mistake: Mistake) -> None:
    if mistake.unreadable:
        (tree.configs / mistake.file).chmod(0)
        return
    tree.write(mistake.file, broken(tree, mistake))
    for path, text in mistake.more.items():
        tree.write(path, text.encode())


def mend(tree: MistakeTree, mistake: Mistake) -> None:
    if mistake.unreadable:
        (tree.configs / mistake.file).chmod(0o700)
        return
    for path in (mistake.file, *mistake.more):
        tree.mend(path)


def names_place(text: str, tree: MistakeTree, mistake: Mistake) -> bool:
    line = place(tree, mistake)[0]
    workflow = f"Workflow {mistake.file.removeprefix('Workflows/').removesuffix('.json')}: "
    found = re.search(rf"\bline {line}\b|\.json:{line}:", text)
    return found is not None and (mistake.file in text or workflow in text)


def tells(text: str, tree: MistakeTree, mistake: Mistake) -> bool:
    """Whether a text says everything that must be said about a mistake."""
    hint = f"Did you mean '{tree.filled(mistake.nearest)}'?" if mistake.nearest else ""
    return names_place(text, tree, mistake) and all(part in text for part in (*mistake.says, hint))


# -- a server in this process ------------------------------------------------------------------------------------------


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


@dataclass
class Outcome:
    """What came of a request: the answer, or the error that the client is told."""

    status: int
    answer: str
    error: str


class Lab:
    """The application over a tree, with a clock that tests move on, and everything that is logged meanwhile."""

    def __init__(self, tree: MistakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree, self._now = tree, 1000.0
        self._records = _Records()
        self.made: list[Mistake] = []
        monkeypatch.setattr(config_store(), "clock", lambda: self._now)
        self._app = create_app()
        self._client = self._app.test_client()
        self.restart()

    def __enter__(self) -> Lab:
        self._level = LOGGER.level
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(self._records)
        return self

    def __exit__(self, *_: object) -> None:
        LOGGER.removeHandler(self._records)
        LOGGER.setLevel(self._level)

    def restart(self) -> None:
        """Forget everything, as a new process would."""
        reset_config_store()
        self.load_check = LoadCheck()
        build_wsgi_application(self._app, listeners=[self.load_check])
        self._records.found.clear()

    def later(self) -> None:
        """Let the time pass after which an edited file counts."""
        self._now += 1.5

    def make(self, mistake: Mistake) -> None:
        """Make a mistake, which is mended at the end of the test."""
        self.made.append(mistake)
        make(self.tree, mistake)

    def ask(self, model: str | None) -> Outcome:
        named = {} if model is None else {"model": model}
        response = self._client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hello"}], **named}
        )
        body: Any = response.get_json()
        response.close()
        assert until(lambda: running_requests().count() == 0)
        if response.status_code == 200:
            return Outcome(200, body["choices"][0]["message"]["content"], "")
        error = body["error"]
        return Outcome(response.status_code, "", error if isinstance(error, str) else error["message"])

    def log(self) -> list[tuple[int, str]]:
        """Levels and texts logged since this was asked last, without what repeats the answers to requests.

        Raises AssertionError for a trace.
        """
        found = list(self._records.found)
        self._records.found.clear()
        traces = [record.getMessage() for record in found if record.exc_info or "Traceback" in record.getMessage()]
        assert traces == []
        return [(record.levelno, record.getMessage()) for record in found if record.name != PER_REQUEST]

    def warnings(self) -> list[str]:
        """The texts of ``log`` that are more than information."""
        return [text for level, text in self.log() if level > logging.INFO]
