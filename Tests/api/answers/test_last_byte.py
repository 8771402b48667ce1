"""What a request still holds when the last byte of its answer goes out: nothing, unless nodes follow the answer.

The pieces of each answer are taken one by one from the WSGI application, as a server takes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder

from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import FairSemaphore, Waiter
from Middleware.models.process import process
from Middleware.services.idempotency_service import get_idempotency_service
from Middleware.services.locking_service import LockingService
from Middleware.services.response_store import get_response_store
from Tests.api.api_lab import ApiLab, settled
from Tests.stub_backend import (
    AFTER_PIECES,
    RecordedRequest,
    Reply,
    StubBackend,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    sse_reply,
    status_reply,
)
from Tests.tables import table
from Tests.workflows.engine_lab import llm, static

LOCK = {"type": "WorkflowLock", "workflowLockId": "gate"}
ANSWER = static("answer", returnToUser=True)
CHILD = {"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}
GRANDCHILD = {"type": "CustomWorkflow", "workflowName": "Grandchild", "returnToUser": True}
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@dataclass(frozen=True)
class Api:
    """Where an API is served, what its clients send, and what they take as the end of a stream.

    ``has_keys``: it knows idempotency keys.
    """

    path: str
    body: dict[str, Any]
    end: bytes
    stream_path: str = ""
    has_keys: bool = True


APIS = {
    "OpenAI chat": Api("/v1/chat/completions", MESSAGES, b"data: [DONE]"),
    "OpenAI text": Api("/v1/completions", {"prompt": "hi"}, b"data: [DONE]"),
    "Responses": Api("/v1/responses", {"input": "hi"}, b"event: response.completed"),
    "Messages": Api("/v1/messages", {**MESSAGES, "max_tokens": 100}, b"event: message_stop"),
    "Ollama chat": Api("/api/chat", {"model": "m", **MESSAGES}, b'"done":true', has_keys=False),
    "Ollama generate": Api("/api/generate", {"model": "m", "prompt": "hi"}, b'"done":true', has_keys=False),
    "Kobold": Api(
        "/api/v1/generate", {"prompt": "hi"}, b'"finish_reason":"', "/api/extra/generate/stream", has_keys=False
    ),
}


# As the APIs write an error that ends a stream.
ENDS_WITH_ERROR = re.compile(rb'"(error|detail)": ?[{"]')


class WatchedSlots(FairSemaphore):
    """Notes whether the workflow lock is held when a slot becomes free, at which a request that waits begins."""

    def __init__(self) -> None:
        super().__init__(1)
        self.locked: list[bool] = []

    def remove(self, waiter: Waiter) -> None:
        self.locked.append(is_locked())
        super().remove(waiter)


def is_locked() -> bool:
    return LockingService("other-session").is_locked("gate")


class Lab(ApiLab):
    """Takes answers piece by piece from the application behind a gate with one slot."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        super().__init__(root, monkeypatch, backend)
        self.slots = WatchedSlots()
        process().one(instance.Gate).semaphore = self.slots
        self.app = build_wsgi_application(create_app())

    def next_row(self) -> None:
        super().next_row()
        self.slots.locked.clear()

    def held(self) -> set[str]:
        """What the only request of the process holds."""
        things = {
            "lock": is_locked(),
            "slot": self.slots.taken,
            "entry": running_requests().count(),
            "key": get_idempotency_service().get_request_id_for_key("anon:again"),
            "response": get_response_store()._running,
        }
        return {name for name, thing in things.items() if thing}

    def at_the_end(self, api: Api, stream: bool, cancel_at: bytes = b"", **changes: Any) -> tuple[set[str], bytes]:
        """Ask, and return what is held when the last byte goes out, and the answer.

        The request is cancelled when its answer has come to the bytes ``cancel_at``.
        """
        data, length, held = b"", 0, None

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> Any:
            nonlocal length
            length = int(dict(headers).get("Content-Length", 0))

        path = api.stream_path if stream and api.stream_path else api.path
        body = {"stream": stream, **api.body, **changes}
        environ = EnvironBuilder(
            path, method="POST", data=json.dumps(body), headers={"X-Idempotency-Key": "again"}
        ).get_environ()
        pieces = self.app(environ, start)
        for piece in pieces:
            data += piece
            if cancel_at and cancel_at in data:
                [request] = running_requests()._requests.values()
                request.cancel_scope.cancel("stop")
                cancel_at = b""
            # A stream has no length. Its errors have ends of their own, behind which nothing comes.
            if held is None and (len(data) == length if length else ENDS_WITH_ERROR.search(data) or api.end in data):
                held = self.held()
        pieces.close()  # type: ignore[attr-defined]
        assert held is not None, data
        return held, data


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with StubBackend() as backend:
        yield Lab(tmp_path / "config", monkeypatch, backend)
    assert settled()
    instance.initialize_request_semaphore(0)


# Without nodes behind the answer: the nodes of the workflow, of its child and of its grandchild.
ENDS = {
    "a text": ([LOCK, ANSWER], [], []),
    "an LLM's answer": ([LOCK, llm("p")], [], []),
    "a child's answer": ([LOCK, CHILD], [ANSWER], []),
    "a child with the lock": ([CHILD], [LOCK, ANSWER], []),
    "a grandchild with the lock": ([CHILD], [GRANDCHILD], [LOCK, ANSWER]),
    "an end before the answer": ([LOCK, LOCK, ANSWER], [], []),
    "a child that ends before the answer": ([LOCK, CHILD], [LOCK, ANSWER], []),
}
SHAPES = [(name, stream) for name in APIS for stream in (False, True)]


@table(("api", "stream", "shape"), [(*row, shape) for row in SHAPES for shape in ENDS])
def test_a_run_without_nodes_left_holds_nothing(lab: Lab, api: str, stream: bool, shape: str) -> None:
    nodes, child, grandchild = ENDS[shape]
    lab.workflow("Grandchild", grandchild)
    lab.workflow("Child", child)
    lab.default(nodes)
    held, data = lab.at_the_end(APIS[api], stream)
    assert held == set()
    assert (b"answer" in data or b"<p>" in data) == ("end" not in shape)
    # A request that waits for the slot finds the lock free.
    assert lab.slots.locked == [False]


def drops(request: RecordedRequest) -> Reply:
    """The beginning of an answer, whichever is asked for."""
    if request.json["stream"]:
        return sse_reply([chat_chunk({"content": "answ"})], drop=AFTER_PIECES)
    return chat_reply("answ", drop=AFTER_PIECES)


FAILURES: dict[str, Callable[[RecordedRequest], Reply]] = {
    "refused by the back-end": lambda _: status_reply(400),
    "broken off": drops,
}


@table(("api", "stream", "failure"), [(*row, failure) for row in SHAPES for failure in FAILURES])
def test_a_run_that_fails_holds_nothing(lab: Lab, api: str, stream: bool, failure: str) -> None:
    lab.backend.responder = FAILURES[failure]
    lab.default([LOCK, llm("p", returnToUser=True), llm("never")])
    held, data = lab.at_the_end(APIS[api], stream)
    assert held == set() and b"error" in data
    assert lab.slots.locked == [False] and "never" not in lab.prompts


@table(("api", "stream"), SHAPES)
def test_a_refused_request_holds_nothing(lab: Lab, api: str, stream: bool) -> None:
    lab.default([LOCK, ANSWER])
    wrong = {"messages": "none", "prompt": 5, "input": 5}
    held, data = lab.at_the_end(APIS[api], stream, **wrong)
    assert held == set() and b"error" in data


@table("api", APIS)
def test_a_stopped_stream_holds_nothing(lab: Lab, api: str) -> None:
    lab.backend.responder = lambda _: chat_stream_reply(["answ"], None, hang=True)
    lab.default([LOCK, llm("p", returnToUser=True), llm("never")])
    held, data = lab.at_the_end(replace(APIS[api], end=STOPPED.get(api, APIS[api].end)), True, cancel_at=b"answ")
    assert held == set() and b"answ" in data
    assert lab.slots.locked == [False] and lab.prompts == ["p"]


# How a stream ends whose answer was stopped, where that is not its usual end.
STOPPED = {"Responses": b"event: response.incomplete"}


# With nodes behind the answer: those of the workflow and of its child, and whether the lock is held for them.
LATER = llm("later")
GOES_ON = {
    "the run's own": ([LOCK, ANSWER, LATER], [], True),
    "the child's": ([CHILD], [LOCK, ANSWER, LATER], True),
    "the parent's, which has the lock": ([LOCK, CHILD, LATER], [ANSWER], True),
    "the parent's, whose child had the lock": ([CHILD, LATER], [LOCK, ANSWER], False),
}


@table(("api", "stream", "nodes"), [(*row, nodes) for row in SHAPES for nodes in GOES_ON])
def test_nodes_behind_the_answer_keep_what_they_need(lab: Lab, api: str, stream: bool, nodes: str) -> None:
    """They need no slot."""
    own, child, locked = GOES_ON[nodes]
    lab.workflow("Child", child)
    lab.default(own)
    held, data = lab.at_the_end(APIS[api], stream)
    assert held == {"entry", *(["key"] if APIS[api].has_keys else []), *(["lock"] if locked else [])}
    assert b"answer" in data
    assert lab.slots.locked == [locked]
    assert settled() and lab.prompts == ["later"] and lab.held() == set()
