"""What listeners are told about LLM calls, over real sockets."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendError, BackendStatusError
from Middleware.llmapis.call_watch import CallWatch
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import Attempt, LlmCallRecord, NodeSite, enter_node, leave_node
from Middleware.models.request_context import RequestContext, request_scope
from Tests.llmapis.lab import Lab
from Tests.stub_backend import (
    Reply,
    StubBackend,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    sse_reply,
    status_reply,
)

HI = [
    {"role": "system", "content": "abc"},
    {"role": "user", "content": [{"type": "text", "text": "de"}]},
    {"role": "assistant", "content": None},
]
CALL = {"id": "c", "type": "function", "function": {"name": "Find", "arguments": "{}"}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}


class Ear:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.calls: list[LlmCallRecord] = []
        self.errors: list[BaseException] = []
        self.at_start: list[dict[str, Any]] = []
        self.prompts: list[Any] = []
        self.attempts: list[Attempt] = []
        self.under_way: list[Attempt] = []

    def listens_to(self, *events: str) -> bool:
        return True

    def emit(self, event: str, *arguments: Any) -> None:
        if event == "llm_prompt":
            assert arguments[0] is self.calls[-1] and self.events[-1] == "llm_call_started"
            self.prompts.append(arguments[1])
            return
        if event.startswith("attempt"):
            (self.attempts if event == "attempt_finished" else self.under_way).append(arguments[0])
            return
        self.events.append(event)
        if event == "llm_call_started":
            self.calls.append(arguments[0])
            self.at_start.append(
                {one.name: getattr(arguments[0], one.name) for one in dataclasses.fields(arguments[0])}
            )
        else:
            assert arguments[0] is self.calls[-1]
        self.errors += arguments[1:]

    @property
    def call(self) -> LlmCallRecord:
        assert len(self.calls) == 1
        return self.calls[0]


class Deaf(Ear):
    def listens_to(self, *events: str) -> bool:
        assert set(events) == {
            "llm_call_started",
            "llm_prompt",
            "llm_call_finished",
            "llm_call_failed",
            "attempt_started",
            "attempt_finished",
        }
        return False


ENDED, FAILED = ["llm_call_started", "llm_call_finished"], ["llm_call_started", "llm_call_failed"]
both_modes = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    with request_scope(RequestContext(request_id="r-7", listeners=ear)):
        yield ear


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


@pytest.fixture
def backend(lab: Lab) -> Iterator[StubBackend]:
    with StubBackend() as stub:
        lab.endpoint("Main", {}, stub.url)
        yield stub


def reply(text: str, stream: bool, **options: Any) -> Reply:
    return chat_stream_reply([text[:1], text[1:]], **options) if stream else chat_reply(text, **options)


def ask(service: LlmApiService, conversation: Any = HI, **arguments: Any) -> Any:
    answer = service.get_response_from_llm(conversation, **arguments)
    return answer if isinstance(answer, (str, dict)) else "".join(chunk["token"] for chunk in answer)


@both_modes
@pytest.mark.parametrize("usage", [None, USAGE])
def test_the_record_of_a_call(ear: Ear, backend: StubBackend, stream: bool, usage: dict[str, int] | None) -> None:
    backend.script(reply("Hello", stream, usage=usage))
    assert ask(LlmApiService("Main", stream=stream), request_id="ignored") == "Hello"
    assert ear.events == ENDED
    call = ear.call
    assert (call.request_id, call.workflow_name, call.node_index, call.node_name) == ("r-7", "", 0, "")
    assert (call.endpoint, call.model, call.streamed) == ("Main", "model-x", stream)
    assert (call.messages, call.answer.characters) == (3, 5)
    assert (call.finish_reason, call.failed_endpoints, call.stopped) == ("stop", (), False)
    assert call.prompt_tokens == (7 if usage else None)
    assert call.completion_tokens == (9 if usage else 2 if stream else None)
    assert call.chunks == (2 if stream else 0)


@both_modes
@pytest.mark.parametrize(
    ("details", "cached", "processed"),
    [
        ({"cached_tokens": 5}, 5, 2),
        ({"cached_tokens": 0}, 0, 7),
        ({"cached_tokens": None}, None, None),
        (None, None, None),
    ],
)
def test_cached_tokens_are_recorded_if_the_back_end_reports_them(
    ear: Ear, backend: StubBackend, stream: bool, details: Any, cached: int | None, processed: int | None
) -> None:
    backend.script(reply("Hello", stream, usage={**USAGE, "prompt_tokens_details": details}))
    ask(LlmApiService("Main", stream=stream))
    assert (ear.call.prompt_tokens, ear.call.cached_tokens, ear.call.processed_tokens) == (7, cached, processed)


@both_modes
def test_the_times(ear: Ear, backend: StubBackend, stream: bool) -> None:
    later = threading.Event()
    backend.script(reply("Hello", stream, header_delay=0.1, **({"held": later, "held_piece": 2} if stream else {})))
    for chunk in LlmApiService("Main", stream=stream).get_response_from_llm(HI):
        if stream and chunk["token"]:  # type: ignore[index]
            time.sleep(0.1)
            later.set()
    first, seconds = ear.call.seconds_to_first_token, ear.call.seconds
    if stream:
        assert first is not None and 0.09 <= first < seconds - 0.05
    else:
        assert first is None and seconds >= 0.09


def test_what_is_known_at_the_start(ear: Ear, backend: StubBackend) -> None:
    backend.script(chat_reply("Hello"))
    ask(LlmApiService("Main"))
    start = ear.at_start[0]
    assert (start["endpoint"], start["model"], start["messages"]) == ("Main", "model-x", 3)
    assert (start["seconds"], start["finish_reason"]) == (0.0, None)


def test_two_texts(ear: Ear, backend: StubBackend) -> None:
    backend.script(chat_reply("Hello"))
    ask(LlmApiService("Main"), None, system_prompt="Be", prompt="brief")
    assert ear.call.messages == 0 and (ear.prompts[0].system_prompt, ear.prompts[0].prompt) == ("Be", "brief")


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0, **CALL}]}], ids=["reasoning", "tool-call"]
)
def test_reasoning_and_tool_calls_are_first_tokens(ear: Ear, backend: StubBackend, delta: dict[str, Any]) -> None:
    backend.script(sse_reply([chat_chunk({"role": "assistant"}), chat_chunk(delta), chat_chunk({}, "stop"), "[DONE]"]))
    ask(LlmApiService("Main", stream=True))
    assert ear.call.seconds_to_first_token is not None and ear.call.chunks == 0


def test_a_tool_call_answer_without_text(ear: Ear, backend: StubBackend) -> None:
    calls = [CALL]
    backend.script(
        Reply(body={"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]})
    )
    assert ask(LlmApiService("Main"))["tool_calls"] == calls
    assert ear.events == ENDED and (ear.call.answer.characters, ear.call.finish_reason) == (0, "tool_calls")


@both_modes
def test_a_failure(ear: Ear, backend: StubBackend, stream: bool) -> None:
    backend.default = status_reply(400)
    with pytest.raises(BackendStatusError) as caught:
        ask(LlmApiService("Main", stream=stream))
    assert ear.events == FAILED and ear.errors == [caught.value]
    assert ear.call.seconds > 0 and ear.call.seconds_to_first_token is None and not ear.call.stopped


def test_an_answer_that_breaks_off(ear: Ear, backend: StubBackend) -> None:
    broken = {"error": {"message": "out of memory", "code": 500}}
    backend.script(sse_reply([chat_chunk({"content": "a"}), chat_chunk({"content": "b"}), broken]))
    with pytest.raises(BackendError):
        ask(LlmApiService("Main", stream=True))
    assert ear.events == FAILED and ear.call.chunks == ear.call.completion_tokens == 2


def test_a_stream_says_nothing_before_it_is_pulled(ear: Ear, backend: StubBackend) -> None:
    backend.default = chat_stream_reply(["a"])
    service = LlmApiService("Main", stream=True)
    stream: Any = service.get_response_from_llm(HI)
    assert ear.events == []
    service.close()
    assert list(stream) == [] and ear.events == []


def test_an_abandoned_stream(ear: Ear, backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a", "b"], delay=0.05, hang=True))
    stream: Any = LlmApiService("Main", stream=True).get_response_from_llm(HI)
    while not next(stream)["token"]:
        pass
    assert ear.events == ["llm_call_started"]
    stream.close()
    assert ear.events == ENDED and ear.call.stopped and ear.call.chunks == 1
    assert backend.requests[0].wait_ended()


def test_a_stream_left_after_its_end_is_not_stopped(ear: Ear, backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a"]))
    stream: Any = LlmApiService("Main", stream=True).get_response_from_llm(HI)
    while not next(stream)["finish_reason"]:
        pass
    stream.close()
    assert ear.events == ENDED and not ear.call.stopped and ear.call.finish_reason == "stop"


@both_modes
def test_a_cancelled_call(ear: Ear, backend: StubBackend, stream: bool) -> None:
    scope = CancelScope()
    scope.cancel()
    assert ask(LlmApiService("Main", stream=stream, scope=scope)) == ""
    assert ear.events == ENDED and ear.call.stopped


@both_modes
def test_a_backup_is_part_of_the_same_call(ear: Ear, lab: Lab, backend: StubBackend, stream: bool) -> None:
    lab.endpoint("First", {"backupEndpointName": "Second"})
    lab.endpoint("Second", {"backupEndpointName": "Main"})
    backend.script(reply("Hello", stream))
    assert ask(LlmApiService("First", stream=stream)) == "Hello"
    assert ear.events == ENDED and ear.at_start[0]["endpoint"] == "First"
    assert (ear.call.endpoint, ear.call.failed_endpoints, ear.call.finish_reason) == (
        "Main",
        ("First", "Second"),
        "stop",
    )


@both_modes
def test_a_backup_that_fails_too(ear: Ear, lab: Lab, backend: StubBackend, stream: bool) -> None:
    lab.endpoint("First", {"backupEndpointName": "Main"})
    backend.default = status_reply(400)
    with pytest.raises(BackendError):
        ask(LlmApiService("First", stream=stream))
    assert ear.events == FAILED and (ear.call.endpoint, ear.call.failed_endpoints) == ("Main", ("First",))


def test_the_node_counts_more_than_the_request(ear: Ear, backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a"]))
    inner = Ear()
    site = NodeSite(inner, "r-7", "Child", 3, "Ask")
    before = enter_node(site)
    stream: Any = LlmApiService("Main", stream=True).get_response_from_llm(HI)
    leave_node(site, before)
    list(stream)
    assert ear.events == [] and inner.events == ENDED
    assert (inner.call.request_id, inner.call.workflow_name, inner.call.node_index, inner.call.node_name) == (
        "r-7",
        "Child",
        3,
        "Ask",
    )


@both_modes
@pytest.mark.parametrize("listeners", [None, Deaf()], ids=["none", "deaf"])
def test_without_a_listener(backend: StubBackend, stream: bool, listeners: Ear | None) -> None:
    backend.script(reply("Hello", stream))
    with request_scope(RequestContext(listeners=listeners)):
        assert ask(LlmApiService("Main", stream=stream)) == "Hello"
    assert listeners is None or listeners.events == []


def test_a_node_that_an_earlier_request_left_is_not_blamed(ear: Ear) -> None:
    left = NodeSite(Ear(), "r-1", "Old", 1, "left behind")
    before = enter_node(left)
    try:
        with request_scope(RequestContext(request_id="r-2", listeners=ear)):
            watch = CallWatch.of("Main", False, None)
    finally:
        leave_node(left, before)
    assert watch is not None and watch._observer is ear
    assert (watch._record.request_id, watch._record.workflow_name) == ("r-2", "")


# -- the requests of a call -------------------------------------------------------------------------------------------


@both_modes
def test_each_request_of_a_call_is_an_attempt(ear: Ear, lab: Lab, backend: StubBackend, stream: bool) -> None:
    lab.endpoint("First", {"backupEndpointName": "Main"}, "http://127.0.0.1:9")
    backend.script(reply("Hello", stream, usage=USAGE))
    assert ask(LlmApiService("First", stream=stream)) == "Hello"
    first, second = ear.attempts
    assert ear.under_way == ear.attempts and first.call is second.call is ear.call
    assert [(one.endpoint, one.stands_in_for, one.status, one.stopped) for one in ear.attempts] == [
        ("First", "", None, False),
        ("Main", "First", 200, False),
    ]
    assert isinstance(first.error, BackendError) and second.error is None
    assert second.payload == backend.requests[0].json and second.operation == "chat"
    assert second.outcome.usage == USAGE and second.outcome.model == "stub"


def test_a_repeated_request_is_an_attempt_of_its_own(ear: Ear, backend: StubBackend) -> None:
    backend.script(status_reply(503, headers={"Retry-After": "0"}), chat_reply("Hello"))
    assert ask(LlmApiService("Main")) == "Hello"
    assert [(one.status, one.error is None, one.stands_in_for) for one in ear.attempts] == [
        (503, False, ""),
        (200, True, ""),
    ]


def test_an_abandoned_stream_stops_its_attempt(ear: Ear, backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a", "b"], None, hang=True))
    stream: Any = LlmApiService("Main", stream=True).get_response_from_llm(HI)
    while not next(stream)["token"]:
        pass
    stream.close()
    assert [(one.stopped, one.error, one.status) for one in ear.attempts] == [(True, None, 200)]


def test_the_answer_is_kept_as_it_came(ear: Ear, backend: StubBackend) -> None:
    fragments = [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "Find", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
    ]
    deltas = [
        {"role": "assistant"},
        {"reasoning_content": "hm"},
        {"content": "a"},
        {"content": ""},
        {"content": "b"},
        *({"tool_calls": [fragment]} for fragment in fragments),
    ]
    backend.script(sse_reply([*map(chat_chunk, deltas), chat_chunk({}, "tool_calls"), "[DONE]"]))
    ask(LlmApiService("Main", stream=True))
    answer = ear.call.answer
    assert answer.texts == ["a", "b"] and ear.call.chunks == 2
    assert "".join(chunk.get("reasoning", "") for chunk in answer.others) == "hm"
    assert [call for chunk in answer.others for call in chunk.get("tool_calls", ())] == fragments
