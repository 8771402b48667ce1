"""A config tree with workflows, a scripted LLM server behind it, and short ways to run the engine against both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.events import EngineListener, RunRecord
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.models.execution_context import ExecutionContext, NodeExecutionInfo
from Tests.llmapis.lab import Lab
from Tests.patience import PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> Message:
    return cast(Message, {"role": "assistant", "content": text, **more})


def static(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "StaticResponse", "content": text, **more}


def llm(prompt: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "Standard", "endpointName": "Main", "prompt": prompt, **more}


def reply_to(request: RecordedRequest, text: str, **options: Any) -> Reply:
    """``text`` as the request wants it, streamed in pieces of three characters or whole."""
    return chat_answer(request, [text[i : i + 3] for i in range(0, len(text), 3)], **options)


def last_text(request: RecordedRequest) -> str:
    """What the last message sent to the LLM server said."""
    return str(request.json["messages"][-1]["content"])


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Wait for ``condition``, far longer than even a busy machine needs; return whether it came true.

    A condition may cost a request, so it is asked the less often the longer it takes.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            return False
        time.sleep(min(max(waited / 10, 0.003), 0.1))
    return True


def tried_with(check: Callable[[float], object], *seconds: float) -> None:
    """Check what takes so long with a time of the test's choice, and again with a longer one if that was too short.

    For limits of the product that would also end what a busy machine does slowly.
    """
    for time_given in seconds[:-1]:
        try:
            check(time_given)
            return
        except (Exception, pytest.fail.Exception):
            continue
    check(seconds[-1])


class EngineLab(Lab):
    """``backend`` answers ``<last message>`` unless told otherwise."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root, monkeypatch)
        if instance.DISCUSSION_DIRECTORY is None:  # else conversations would end up in the project's own folder
            monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(root / "discussions"))
        if instance.USER_LEVEL_SQLITE_DIRECTORY is None:
            monkeypatch.setattr(instance, "USER_LEVEL_SQLITE_DIRECTORY", str(root / "locks"))
        self.backend = backend
        self.endpoint("Main", {}, backend.url)
        self._begin()

    def _begin(self) -> None:
        self.backend.next_row()
        self.backend.responder = lambda request: reply_to(request, f"<{last_text(request)}>")
        self.request = RequestContext(request_id="r-1")

    def next_row(self) -> None:
        super().next_row()
        self._begin()

    def workflow(self, name: str, nodes: list[dict[str, Any]], folder: str = "tester", **variables: Any) -> None:
        self.write(f"Workflows/{folder}/{name}", {**variables, "nodes": nodes})

    def run(self, nodes: list[dict[str, Any]], *messages: Message, **options: Any) -> Any:
        """The result of these nodes, not streamed."""
        self.workflow("Main", nodes)
        return self.run_named("Main", *messages, **options)

    def run_named(self, name: str, *messages: Message, **options: Any) -> Any:
        with request_scope(self.request):
            return WorkflowManager.run_custom_workflow(name, "r-1", None, list(messages) or [user("hi")], **options)

    def chunks(self, nodes: list[dict[str, Any]], *messages: Message) -> list[dict[str, Any]]:
        """All chunk dicts of these nodes, streamed."""
        self.workflow("Main", nodes)
        with request_scope(self.request):
            return list(
                WorkflowManager.run_custom_workflow(
                    "Main", "r-1", None, list(messages) or [user("hi")], is_streaming=True
                )
            )

    def streamed(self, nodes: list[dict[str, Any]], *messages: Message) -> str:
        return "".join(chunk["token"] for chunk in self.chunks(nodes, *messages))

    @property
    def prompts(self) -> list[str]:
        """The last message of every request that reached the LLM server."""
        return [last_text(request) for request in self.backend.requests]


class Recorder(EngineListener):
    """Keeps everything the engine tells."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.infos: list[NodeExecutionInfo] = []
        self.workflow_ids: list[str] = []
        self.finished: list[RunRecord] = []

    def run_started(self, record: RunRecord) -> None:
        self.events.append(("run_started", record.run.workflow_name))
        self.workflow_ids.append(record.run.workflow_id)

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        self.events.append(("node_started", index, node_type, name))

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        self.events.append(("node_finished", info.node_index))
        self.infos.append(info)

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        self.events.append(("node_failed", index, type(error).__name__))

    def run_finished(self, record: RunRecord) -> None:
        self.events.append(("run_finished", record.error))
        self.finished.append(record)


class Probe(BaseHandler):
    """Stands in for a node type: keeps the contexts it is given and answers with ``answer``."""

    def __init__(self, answer: Any = "probe") -> None:
        super().__init__()
        self.contexts: list[ExecutionContext] = []
        self.answer = answer

    def handle(self, context: ExecutionContext) -> Any:
        self.contexts.append(context)
        return self.answer(context) if callable(self.answer) else self.answer


def start(
    lab: EngineLab,
    name: str = "Main",
    *messages: Message,
    listener: EngineListener | None = None,
    probes: dict[str, Any] | None = None,
    **run_fields: Any,
) -> Iterator[Any]:
    """Start a written workflow with listeners and stubs of node types."""
    manager = WorkflowManager(name, listeners=[listener] if listener else None)
    manager.node_handlers.update(probes or {})
    return manager.start(lab.request, list(messages) or [user("hi")], **run_fields)
