"""A cancelled request: the LLM call ends, and no further node starts, in parent and child alike."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_stream_reply
from Tests.workflows.engine_lab import EngineLab, Probe, Recorder, last_text, llm, reply_to, start, static, until, user

PROMPT_ENOUGH = 60.0  # seconds; a call that is not stopped never ends. Latency is measured elsewhere


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        backend.responder = slow_on_request
        yield lab


def slow_on_request(request: RecordedRequest) -> Reply:
    """A prompt ``wait`` is never answered, one ``talk`` never ends."""
    if "talk" in last_text(request):
        return chat_stream_reply(["one ", "two "], hang=True)
    return Reply(never=True) if "wait" in last_text(request) else reply_to(request, "ok")


class Run(threading.Thread):
    """Runs the workflow ``Main`` on a thread and keeps how it ended."""

    def __init__(self, lab: EngineLab, stream: bool = False) -> None:
        super().__init__(daemon=True)
        self.lab, self.stream = lab, stream
        self.items: list[Any] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with request_scope(self.lab.request):
                for item in WorkflowManager("Main").start(self.lab.request, [user("hi")], stream=self.stream):
                    self.items.append(item)
        except BaseException as error:
            self.error = error

    def cancelled_within(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive() and isinstance(self.error, EarlyTerminationException)


def test_cancelled_before_the_first_node(lab: EngineLab) -> None:
    lab.request.cancel_scope.cancel()
    probe = Probe()
    lab.workflow("Main", [static("x")])
    with pytest.raises(EarlyTerminationException, match="r-1") as caught:
        list(start(lab, probes={"StaticResponse": probe}))
    assert caught.value.is_cancellation
    assert probe.contexts == []


@pytest.mark.parametrize(
    "nodes",
    [
        [llm("a"), llm("wait"), llm("c"), llm("d")],
        [llm("a"), llm("wait", returnToUser=True), llm("c"), llm("d")],
    ],
)
def test_cancel_during_node_two(lab: EngineLab, nodes: list[dict[str, Any]]) -> None:
    lab.workflow("Main", nodes)
    run = Run(lab)
    lab.backend.wait_requests(2)
    lab.request.cancel_scope.cancel()
    assert run.cancelled_within(PROMPT_ENOUGH)
    assert lab.backend.requests[1].wait_ended(PROMPT_ENOUGH) and lab.backend.requests[1].client_left
    assert lab.prompts == ["a", "wait"]


@pytest.mark.parametrize("responder", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_cancel_during_a_nested_call(lab: EngineLab, responder: bool, stream: bool) -> None:
    lab.workflow("Inner", [llm("a"), llm("wait"), llm("inner never")])
    lab.workflow("Child", [{"type": "CustomWorkflow", "workflowName": "Inner"}, llm("child never")])
    lab.workflow(
        "Main", [{"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": responder}, llm("parent never")]
    )
    run = Run(lab, stream)
    lab.backend.wait_requests(2)
    lab.request.cancel_scope.cancel()
    assert run.cancelled_within(PROMPT_ENOUGH)
    assert lab.backend.requests[1].wait_ended(PROMPT_ENOUGH)
    assert lab.prompts == ["a", "wait"]


def test_cancel_in_mid_stream(lab: EngineLab) -> None:
    lab.workflow("Main", [llm("talk", returnToUser=True), llm("never")])
    run = Run(lab, stream=True)
    assert until(lambda: "two " in [item["token"] for item in run.items])
    lab.request.cancel_scope.cancel()
    run.join(PROMPT_ENOUGH)
    assert not run.is_alive()
    assert run.error is None or isinstance(run.error, EarlyTerminationException)
    assert "".join(item["token"] for item in run.items) == "one two "
    assert lab.backend.requests[0].wait_ended(PROMPT_ENOUGH)
    assert lab.prompts == ["talk"]


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_after_the_answer_always_propagates(lab: EngineLab, stream: bool) -> None:
    lab.workflow("Child", [static("answer", returnToUser=True), llm("wait"), llm("child never")])
    lab.workflow(
        "Main", [{"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}, llm("parent never")]
    )
    run = Run(lab, stream)
    lab.backend.wait_requests(1)
    lab.request.cancel_scope.cancel()
    assert run.cancelled_within(PROMPT_ENOUGH)
    assert "".join(item["token"] if stream else item for item in run.items) == "answer"
    assert lab.prompts == ["wait"]


def test_closing_the_run_ends_the_call(lab: EngineLab) -> None:
    lab.workflow("Child", [llm("talk")])
    lab.workflow("Main", [{"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}, llm("never")])
    with request_scope(lab.request):
        items = start(lab, stream=True)
        while next(items)["token"] != "two ":
            pass
        started = time.monotonic()
        items.close()  # type: ignore[attr-defined]
    assert lab.backend.requests[0].wait_ended(PROMPT_ENOUGH)
    assert time.monotonic() - started < PROMPT_ENOUGH
    assert lab.prompts == ["talk"]


def test_static_text_stops_in_mid_stream(lab: EngineLab) -> None:
    lab.workflow("Main", [static("word " * 100)])
    tokens = []
    with request_scope(lab.request), contextlib.suppress(EarlyTerminationException):
        for chunk in start(lab, stream=True):
            tokens.append(chunk["token"])
            if len(tokens) == 4:
                lab.request.cancel_scope.cancel()
    assert len(tokens) < 10


def test_an_answer_in_spite_of_the_cancellation_is_not_used(lab: EngineLab) -> None:
    def late(context: Any) -> str:
        context.request.cancel_scope.cancel()
        return "late"

    lab.workflow("Main", [static("x"), llm("never")])
    with request_scope(lab.request), pytest.raises(EarlyTerminationException):
        list(start(lab, probes={"StaticResponse": Probe(late)}))
    assert lab.backend.requests == []


def test_an_error_after_an_abort_counts_as_cancellation(lab: EngineLab) -> None:
    def broken(context: Any) -> str:
        context.request.cancel_scope.cancel()
        raise OSError("socket gone")

    lab.workflow("Main", [static("x")])
    with request_scope(lab.request), pytest.raises(EarlyTerminationException):
        list(start(lab, probes={"StaticResponse": Probe(broken)}))


def test_listeners_hear_of_the_end(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Main", [static("a"), static("b")])
    with request_scope(lab.request), pytest.raises(EarlyTerminationException):
        for item in start(
            lab,
            listener=recorder,
            probes={"StaticResponse": Probe(lambda context: context.request.cancel_scope.cancel())},
        ):
            pytest.fail(f"got {item!r}")
    assert recorder.events[-1] == ("run_finished", "EarlyTerminationException")
