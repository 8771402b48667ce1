"""A Flask application over a config tree and a scripted LLM server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from Middleware.api.answers.messages_answer import MessagesStream
from Middleware.api.answers.responses_answer import ResponsesAnswer
from Middleware.api.answers.stream_renderers import (
    KoboldStream,
    OllamaChatStream,
    OllamaGenerateStream,
    OpenAIChatStream,
    OpenAICompletionStream,
    Pauses,
)
from Middleware.api.app import create_app
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Tests.patience import PATIENCE
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, until, user

CHAT = "/v1/chat/completions"
STREAMS = (
    OpenAIChatStream,
    OpenAICompletionStream,
    OllamaChatStream,
    OllamaGenerateStream,
    ResponsesAnswer,
    MessagesStream,
    KoboldStream,
)


def pause(monkeypatch: pytest.MonkeyPatch, seconds: float, beginning: float | None = None) -> None:
    """Let all streams be silent for so long, before their first bytes for ``beginning`` seconds."""
    for stream in STREAMS:
        monkeypatch.setattr(stream, "pauses", Pauses(seconds if beginning is None else beginning, seconds, seconds))


def after_heartbeats(monkeypatch: pytest.MonkeyPatch, count: int = 1, having: bytes = b"") -> threading.Event:
    """The event of the ``count``th heartbeat of a stream, of those with ``having``. A back-end can wait for it."""
    happened, lock, left = threading.Event(), threading.Lock(), count

    def counted(heartbeat: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        def beat(self: Any) -> bytes:
            nonlocal left
            sent = heartbeat(self)
            with lock:
                left -= having in sent
                if left == 0:
                    happened.set()
            return sent

        return beat

    for stream in STREAMS:
        monkeypatch.setattr(stream, "heartbeat", counted(stream.heartbeat))
    return happened


class Answer:
    """A response, read to its end and closed."""

    def __init__(self, response: Any) -> None:
        self.status: int = response.status_code
        self.headers = response.headers
        self.data: bytes = response.get_data()
        response.close()

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def events(self) -> list[Any]:
        """The objects of a stream of server-sent events; ``[DONE]`` as text."""
        blocks = [block for block in self.data.decode().split("\n\n") if block]
        assert all(block.startswith("data: ") for block in blocks)
        return [block[6:] if block == "data: [DONE]" else json.loads(block[6:]) for block in blocks]

    @property
    def streamed_text(self) -> str:
        return "".join(
            event["choices"][0]["delta"].get("content", "")
            for event in self.events
            if isinstance(event, dict) and event.get("choices")
        )


class ApiLab(EngineLab):
    """``_DefaultWorkflow`` is one LLM node in conversation mode until a test writes another.

    Streams send no heartbeats, and failures before the first text have their own status, however long a busy machine
    takes for them; ``pause`` changes that.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root, monkeypatch, backend)
        self._monkeypatch = monkeypatch
        pause(monkeypatch, PATIENCE)
        self.workflow("_DefaultWorkflow", [{"type": "Standard", "endpointName": "Main", "prompt": ""}])
        self.client: FlaskClient = create_app().test_client()

    def users(self, *names: str) -> None:
        self._monkeypatch.setattr(instance, "USERS", list(names))

    def user_file(self, name: str, **settings: Any) -> None:
        self.write(
            f"Users/{name}", {"endpointConfigsSubDirectory": "lab", "chatPromptTemplateName": "chatml", **settings}
        )

    def default(self, nodes: list[dict[str, Any]], **variables: Any) -> None:
        self.workflow("_DefaultWorkflow", nodes, **variables)

    def shared(self, name: str, text: str) -> None:
        self.workflow("_DefaultWorkflow", [{"type": "StaticResponse", "content": text}], folder=f"_shared/{name}")

    def post(self, body: Any, path: str = CHAT, **options: Any) -> Answer:
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return Answer(self.client.post(path, data=data, **options))

    def chat(self, *messages: Any, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        return self.post({"messages": list(messages) or [user("hi")], **fields}, path, headers=headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return Answer(self.client.get(path, headers=headers))


def settled(seconds: float = PATIENCE) -> bool:
    """Whether no request is at work any more, background nodes included."""
    return until(lambda: running_requests().count() == 0, seconds)
