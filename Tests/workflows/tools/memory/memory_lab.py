"""A discussion with memory settings, and short ways to send it through the memory tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ExecutionContext, RunRequest
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, assistant, user

Message = dict[str, Any]
SETTINGS = {
    "endpointName": "Main",
    "systemPrompt": "",
    "prompt": "[TextChunk]",
    "lookbackStartTurn": 3,
    "maxMessagesBetweenChunks": 5,
    "chunkEstimatedTokenSize": 1000,
}


def chat(count: int, start: int = 0) -> list[Message]:
    """Messages ``m0``, ``m1``, ... by turns."""
    return [(assistant if number % 2 else user)(f"m{number}") for number in range(start, start + count)]


def said(*texts: str) -> list[Message]:
    return [user(text) for text in texts]


class MemoryLab(EngineLab):
    """The backend answers ``<chunk>``; memory files lie below ``root/discussions``."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root, monkeypatch, backend)
        self.folder = DiscussionFolder("d1")
        self.store = MemoryStore(self.folder)
        self.settings()

    def user(self, **settings: Any) -> None:
        super().user(
            **{
                "discussionDirectory": str(self.root / "discussions"),
                "discussionIdMemoryFileWorkflowSettings": "Memory",
                **settings,
            }
        )

    def settings(self, **changes: Any) -> None:
        merged = {**SETTINGS, **changes}
        self.write("Workflows/tester/Memory", {key: value for key, value in merged.items() if value is not ...})

    def context(
        self, messages: list[Message], request: RequestContext | None = None, **fields: Any
    ) -> ExecutionContext:
        request = request or self.request
        manager = WorkflowManager("Main", listeners=[])
        messages = [dict(message) for message in messages]
        fields = {"discussion_id": "d1", "config": {"title": "Memory", "type": "QualityMemory"}, **fields}
        run = RunRequest(
            request=request,
            workflow_id="w",
            workflow_name="Main",
            nodes=[],
            variables={},
            folder="tester",
            messages=messages,
            discussion_id=fields["discussion_id"],
        )
        return ExecutionContext(
            request_id=request.request_id,
            workflow_id="w",
            messages=messages,
            stream=False,
            request=request,
            run=run,
            workflow_variable_service=WorkflowVariableManager(),
            workflow_manager=manager,
            **fields,
        )

    def remember(
        self, messages: list[Message], force: bool = False, request: RequestContext | None = None, **fields: Any
    ) -> None:
        request = request or self.request
        with request_scope(request):
            SlowButQualityRAGTool().handle_discussion_id_flow(self.context(messages, request, **fields), force)

    @property
    def path(self) -> Path:
        return self.root / "discussions" / "d1" / "memories.json"

    def stored(self) -> list[tuple[str, str]]:
        return [(entry["text_block"], entry["hash"]) for entry in json.loads(self.path.read_text("utf-8"))]

    def put(self, *messages: str, texts: list[str] | None = None) -> None:
        """Store memories that reach to messages with these contents."""
        self.folder.create()
        texts = texts or [f"of {message}" for message in messages]
        self.store.replace_memories(
            [(text, hash_content(message)) for text, message in zip(texts, messages, strict=True)]
        )


def joined(*numbers: int) -> str:
    return "\n".join(f"m{number}" for number in range(numbers[0], numbers[1] + 1))


def covering(*spans: tuple[int, int]) -> list[tuple[str, str]]:
    """The memories of spans of ``chat`` messages, as the lab's backend words them."""
    return [(f"<{joined(*span)}>", hash_content(f"m{span[1]}")) for span in spans]
