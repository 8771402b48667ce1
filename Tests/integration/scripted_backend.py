"""A scripted LLM server that knows which node of which conversation calls it, and plays web pages and services too.

A node names itself in its system prompt (``node:first``), a web page or service in its path (``/node/page/...``).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from typing import Any

from Tests.patience import PATIENCE
from Tests.stub_backend import (
    RecordedRequest,
    Reply,
    StubBackend,
    chat_answer,
    chat_chunk,
    json_reply,
    node_of,
    sse_reply,
)

USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
NODE_PATH = "/node/"
MCP_PATH = "/mcp"
ABORT_PATH = "/api/extra/abort"

Answer = Reply | Callable[[RecordedRequest], Reply]


class Talk:
    """What the nodes of one conversation are told, and what they asked.

    ``replies[name]`` is what the node ``name`` gets; without one it is told ``<name> says hello.`` in three tokens.
    ``hello`` is a text that no other conversation holds: only calls with it are recorded, so that nodes which an
    earlier test left running in the background do not count.
    """

    def __init__(self, hello: str) -> None:
        self.hello = hello
        self.replies: dict[str, Answer] = {}
        self._calls: list[tuple[str, RecordedRequest]] = []
        self._called = threading.Condition()

    def calls(self, node: str | None = None) -> list[RecordedRequest]:
        """The calls so far, of one node or of all."""
        with self._called:
            return [request for name, request in self._calls if node in (None, name)]

    def nodes(self) -> list[str]:
        """The names of the nodes that called, in order."""
        with self._called:
            return [name for name, _ in self._calls]

    def wait_call(self, node: str, timeout: float = PATIENCE, count: int = 1) -> RecordedRequest:
        """Call number ``count`` of a node. Raises AssertionError if there are fewer within ``timeout`` seconds."""
        with self._called:

            def found() -> list[RecordedRequest]:
                return [request for name, request in self._calls if name == node][count - 1 :]

            if not self._called.wait_for(found, timeout):
                raise AssertionError(f"node {node} did not call; called: {[name for name, _ in self._calls]}")
            return found()[0]

    def take(self, name: str, request: RecordedRequest) -> Answer | None:
        """Record a call, if it is of this conversation; returns what was scripted for the node."""
        with self._called:
            if self.hello.encode() in request.body or self.hello in request.path:
                self._calls.append((name, request))
                self._called.notify_all()
            return self.replies.get(name)


class Backend(StubBackend):
    """The server. Its own ``replies``, ``hello`` and calls are those of one conversation; ``talk`` begins others.

    ``aborts``: the calls of KoboldCpp's way to stop what it generates, which name no conversation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.aborts: list[RecordedRequest] = []
        self._numbers = itertools.count(1)
        self._main = Talk("Hello 0.")
        self._talks: list[Talk] = []

    @property
    def hello(self) -> str:
        return self._main.hello

    @property
    def replies(self) -> dict[str, Answer]:
        return self._main.replies

    def reset(self) -> None:
        """Forget replies and calls, and begin a new conversation."""
        self._main = Talk(f"Hello {next(self._numbers)}.")

    def talk(self) -> Talk:
        """A conversation beside the others. Its ``hello`` can be part of a path."""
        talk = Talk(f"talk-{next(self._numbers)}x")
        self._talks.append(talk)
        return talk

    def calls(self, node: str | None = None) -> list[RecordedRequest]:
        return self._main.calls(node)

    def nodes(self) -> list[str]:
        return self._main.nodes()

    def wait_call(self, node: str, timeout: float = PATIENCE, count: int = 1) -> RecordedRequest:
        return self._main.wait_call(node, timeout, count)

    def respond(self, request: RecordedRequest) -> Reply:
        if request.path.endswith(ABORT_PATH):
            self.aborts.append(request)
            return json_reply({"success": True})
        if request.path == MCP_PATH and (reply := _mcp_reply(request)) is not None:
            return reply
        name = _node_of(request)
        answer = self._talk_of(request).take(name, request)
        if answer is None:
            return says(request, name)
        return answer(request) if callable(answer) else answer

    def _talk_of(self, request: RecordedRequest) -> Talk:
        body = request.body
        return next(
            (talk for talk in reversed(self._talks) if talk.hello.encode() in body or talk.hello in request.path),
            self._main,
        )


def _node_of(request: RecordedRequest) -> str:
    """The node that calls: named in what it says, or in the path."""
    if not request.body:
        return re.split("[/?]", request.path.removeprefix(NODE_PATH).lstrip("/"))[0]
    return "mcp" if request.path == MCP_PATH else node_of(request)


def _mcp_reply(request: RecordedRequest) -> Reply | None:
    """What an MCP server says to anything but the call of a tool."""
    if request.method != "POST":
        return json_reply({}, 405 if request.method == "GET" else 200)
    message = request.json
    if "id" not in message:
        return json_reply(b"", 202)
    if message["method"] == "tools/call":
        return None
    answer: dict[str, Any] = {"error": {"code": -32601, "message": "no such method"}}
    if message["method"] == "initialize":
        answer = {
            "result": {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "scripted", "version": "1"},
            }
        }
    return json_reply({"jsonrpc": "2.0", "id": message["id"], **answer})


def says(request: RecordedRequest, name: str, **options: Any) -> Reply:
    """``<name> says hello.``, streamed if the request wants that."""
    return chat_answer(request, [f"{name} ", "says ", "hello."], usage=USAGE, **options)


def slow(name: str, seconds: float) -> Callable[[RecordedRequest], Reply]:
    """The usual answer after a silence of some seconds, before the status line."""
    return lambda request: says(request, name, header_delay=seconds)


def stuck(*tokens: str) -> Reply:
    """A stream that stops after some tokens without an end."""
    return sse_reply([chat_chunk({"content": token}) for token in tokens], hang=True)
