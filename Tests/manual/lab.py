"""The lab of the browser checks: a scripted model, WilmerAI in front of it.

with Lab() as lab:
    lab.server.url                      # WilmerAI
    lab.model.wait("chat", 1)           # calls that reached the model, by kind
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import tempfile
import threading
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from Tests.backend_dialects import Answer, speak
from Tests.backend_dialects import Call as ToolCall
from Tests.integration.launcher import NO_MARKS, USER, ConfigTree, Launcher, api_type, endpoint, llm_node
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, status_reply

WORKFLOW = "Lab"
MODEL = f"{USER}:{WORKFLOW}"
CHAT_NODE = "chat-node"
BACKGROUND_NODE = "background-node"
TOOL = "lab_word"
COUNTED = " ".join(str(number) for number in range(1, 21))
FAILURE = "the lab is closed"
TITLE = "Lab title"
TAG = "Lab tag"
FOLLOW_UP = "Lab follow-up"
TASKS = {
    "title": {"title": TITLE},
    "tags": {"tags": [TAG]},
    "follow_ups": {"follow_ups": [f"{FOLLOW_UP} one", f"{FOLLOW_UP} two", f"{FOLLOW_UP} three"]},
}
_TASK = re.compile(r'JSON format: \{ "(\w+)"')


@dataclass(frozen=True)
class Call:
    """A call that reached the model.

    Attributes:
        kind: ``chat``, ``count``, ``slow``, ``fail``, ``tool call``, ``tool result``, ``image``, or a key of TASKS.
        node: the node that called, CHAT_NODE or BACKGROUND_NODE.
    """

    kind: str
    node: str
    request: RecordedRequest

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.request.json["messages"]
        return messages

    @property
    def offered(self) -> list[str]:
        """The names of the tools on offer."""
        return [tool["function"]["name"] for tool in self.request.json.get("tools") or []]

    @property
    def images(self) -> list[str]:
        """The addresses of the images in the last message."""
        return _images(self.messages)


class Model(StubBackend):
    """Answers by what the last user message says, as an OpenAI-compatible chat server.

    ``count``: the numbers to 20 in three seconds. ``slow``: five tokens per second for a minute. ``use the tool``: a
    call of TOOL if it is on offer, else of the first tool. ``fail``: status 500. Images: how many there are. A
    tool's result: what it was. Requests for a title, tags or follow-ups: their JSON. Anything else: ``Lab answer N.``
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._numbers = itertools.count(1)
        self._arrived = threading.Condition()

    def of(self, kind: str) -> list[Call]:
        """The calls of one kind so far."""
        with self._arrived:
            return [call for call in self.calls if call.kind == kind]

    def wait(self, kind: str, count: int = 1, timeout: float = 30.0) -> Call:
        """The last of at least ``count`` calls of a kind. Raises AssertionError."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: sum(call.kind == kind for call in self.calls) >= count, timeout):
                raise AssertionError(f"no call '{kind}' number {count}; calls: {[call.kind for call in self.calls]}")
        return self.of(kind)[-1]

    def forget(self) -> None:
        """Forget the calls so far."""
        with self._arrived:
            self.calls.clear()

    def respond(self, request: RecordedRequest) -> Reply:
        body = request.json
        kind = _kind(body)
        with self._arrived:
            self.calls.append(Call(kind, body["model"], request))
            self._arrived.notify_all()
        if kind == "tool call":
            return speak(request, _tool_call(body))
        if kind == "fail":
            return status_reply(500, FAILURE)
        if kind == "slow":
            return _say(request, [f"tick {number} " for number in range(300)], 0.2)
        if kind == "count":
            return _say(request, [f"{number} " for number in range(1, 20)] + ["20"], 0.15)
        return _say(request, re.findall(r"\S+\s*", self._words(kind, body)), 0.02)

    def _words(self, kind: str, body: dict[str, Any]) -> str:
        if kind in TASKS:
            return json.dumps(TASKS[kind])
        if kind == "tool result":
            return f"The tool said: {_text(body['messages'][-1]['content'])}"
        if kind == "image":
            return f"Images seen: {len(_images(body['messages']))}."
        return f"Lab answer {next(self._numbers)}."


def _kind(body: dict[str, Any]) -> str:
    messages = body["messages"]
    text = _last_user_text(messages)
    task = _TASK.search(text) if text.lstrip().startswith("### Task:") else None
    if task:
        return task[1]
    if messages and messages[-1]["role"] == "tool":
        return "tool result"
    if "use the tool" in text and body.get("tools"):
        return "tool call"
    if _images(messages):
        return "image"
    return next((word for word in ("slow", "count", "fail") if word in text), "chat")


def _last_user_text(messages: list[dict[str, Any]]) -> str:
    return next((_text(message["content"]) for message in reversed(messages) if message["role"] == "user"), "")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return str(content or "")


def _images(messages: list[dict[str, Any]]) -> list[str]:
    users = [message for message in messages if message["role"] == "user"]
    content = users[-1]["content"] if users else ""
    if not isinstance(content, list):
        return []
    return [part["image_url"]["url"] for part in content if part.get("type") == "image_url"]


def _say(request: RecordedRequest, tokens: list[str], delay: float) -> Reply:
    silence = 0.0 if request.json.get("stream") else delay * len(tokens)
    return speak(request, Answer(tokens), delay=delay, header_delay=silence)


def _tool_call(body: dict[str, Any]) -> Answer:
    names = [tool["function"]["name"] for tool in body["tools"]]
    name = next((name for name in names if TOOL in name), names[0])
    return Answer((), "tool_calls", calls=(ToolCall(name, id="call_lab"),))


def _png(size: int) -> bytes:
    """A square of colours."""
    rows = b"".join(
        b"\0" + bytes(value for x in range(size) for value in (4 * x, 4 * y, x * y % 256)) for y in range(size)
    )
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def lab_tree(public: Path, model_url: str) -> ConfigTree:
    """One user, one workflow of one node for chats, one for the requests that clients make on their own."""
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(
        f"Users/{USER}.json",
        {
            "customWorkflowOverride": True,
            "customWorkflow": "Chat",
            "allowSharedWorkflows": True,
            "chatPromptTemplateName": "_chatonly",
            "backgroundTaskWorkflow": "Background",
        },
    )
    tree.write("PromptTemplates/_chatonly.json", NO_MARKS)
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write("Presets/Chat/Plain.json", {})
    for node in (CHAT_NODE, BACKGROUND_NODE):
        tree.write(
            f"Endpoints/{node}.json", endpoint(model_url, modelNameToSendToAPI=node, maxContextTokenSize=100_000)
        )
    tree.private("Chat", _node(CHAT_NODE))
    tree.private("Background", _node(BACKGROUND_NODE))
    tree.shared(WORKFLOW, _node(CHAT_NODE))
    return tree


def _node(name: str) -> dict[str, Any]:
    return llm_node(
        name,
        endpointName=name,
        systemPrompt="{chat_system_prompt}",
        lastMessagesToSendInsteadOfPrompt=200,
        maxResponseSizeInTokens=1000,
        allowTools=True,
        acceptImages=True,
        returnToUser=True,
    )


class Lab:
    """The scripted model and WilmerAI, answering one request at a time."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher
        self._stack = ExitStack()
        self.model = Model()
        self.folder = Path()
        self.server: Launcher

    def __enter__(self) -> Lab:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            stack.enter_context(self.model)
            tree = lab_tree(self.folder / "Public", self.model.url)
            arguments = ("--PublicDirectory", tree.public, "--User", USER, "--concurrency", "1")
            self.server = stack.enter_context(Launcher(self._launcher, *arguments))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def picture(self) -> Path:
        """A PNG file, 64 pixels wide."""
        file = self.folder / "picture.png"
        file.write_bytes(_png(64))
        return file
