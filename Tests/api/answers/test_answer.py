"""From a run of the engine to an HTTP answer: heartbeats, batches, errors, and what happens after the answer."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.answers import answer as answer_module
from Middleware.api.answers.answer import FinishedAnswer, StreamingAnswer, WholeAnswer, estimated_usage
from Middleware.api.answers.stream_renderers import OllamaGenerateStream, OpenAIChatStream, Pauses, StreamRenderer
from Middleware.api.errors import PublicError
from Middleware.api.running.running_requests import SERVER_STOPS, running_requests
from Middleware.exceptions import (
    LOCKED,
    BackendStatusError,
    ClientError,
    EarlyTerminationException,
    ServerStoppingError,
)
from Middleware.models.llm_call import LlmOutcome
from Middleware.models.request_context import RequestContext, current_request, request_scope
from Middleware.services.cancellation_service import cancellation_service
from Middleware.services.response_builder_service import Counters
from Middleware.workflows.processors.workflows_processor import END
from Tests.api.api_lab import settled
from Tests.llmapis.lab import Lab
from Tests.workflows.engine_lab import until

Chunk = dict[str, Any]


class Foreign(BaseException):
    """What no ``except Exception`` sees."""


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(answer_module, "LOOK_SECONDS", 0.05)
    # No heartbeats but the first, where a test does not ask for them, however slow the machine is.
    monkeypatch.setattr(OpenAIChatStream, "pauses", Pauses(60.0, 60.0, 60.0))
    yield Lab(tmp_path, monkeypatch)
    assert settled()


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenAIChatStream, "pauses", Pauses(60.0, 0.05, 0.05))


@pytest.fixture
def request_() -> Iterator[RequestContext]:
    context = RequestContext()
    with request_scope(context):
        running_requests().begin(context, None)
        yield context


def text(token: str, more: bool = False) -> Chunk:
    return {"token": token, "finish_reason": None, **({"more": True} if more else {})}


FINAL: Chunk = {"token": "", "finish_reason": "stop"}
SILENCE: Chunk = {"token": "", "finish_reason": None}


class Run:
    """An engine's run made of chunks, pauses in seconds, exceptions and functions to call."""

    def __init__(self, *steps: Chunk | float | BaseException | Callable[[], Any]) -> None:
        self.steps = steps
        self.done: list[Any] = []
        self.closed = False

    def __call__(self) -> Iterator[Any]:
        try:
            for step in self.steps:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, float):
                    time.sleep(step)
                elif callable(step):
                    step()
                else:
                    yield step
                self.done.append(step)
        finally:
            self.closed = True


def stream(request: RequestContext, run: Run, include_usage: bool = False, timeout: float = 60.0) -> StreamingAnswer:
    renderer = OpenAIChatStream("m", include_usage)
    return StreamingAnswer(request, run, renderer, lambda answer: {"answer": answer}).begin(timeout)


def summary(writes: list[bytes]) -> list[str]:
    """Per write: its texts joined, ``~`` for a heartbeat, ``#type`` for an error, ``!reason`` for a finish, ``.`` for
    the terminator.
    """
    return ["".join(_block(block) for block in write.decode().split("\n\n") if block) for write in writes]


def _block(block: str) -> str:
    if block == "data: [DONE]":
        return "."
    event = json.loads(block[6:])
    if "error" in event:
        return f"#{event['error']['type']}"
    if not event["choices"]:
        return f"${event['usage']['answer']}"
    choice = event["choices"][0]
    calls = f"@{len(choice['delta']['tool_calls'])}" if "tool_calls" in choice["delta"] else ""
    finish = f"!{choice['finish_reason']}" if choice["finish_reason"] else ""
    return choice["delta"].get("content", "") + calls + finish or "~"


def written(body: StreamingAnswer) -> list[bytes]:
    writes = list(body)
    body.close()
    return writes


def read(body: StreamingAnswer) -> list[str]:
    return summary(written(body))


def read_late(request: RequestContext, *steps: Chunk | BaseException) -> list[str]:
    """What is written of a run that does nothing until its stream has begun."""
    begun = threading.Event()
    body = stream(request, Run(lambda: begun.wait(60), *steps), timeout=0.01)
    begun.set()
    return read(body)


class Noted(OpenAIChatStream):
    """Writes what it is asked for as words."""

    tells_failures = True
    pauses = Pauses(60.0, 0.2, 0.5)
    beats = 0

    def beginning(self) -> bytes:
        return b"begin "

    def heartbeat(self) -> bytes:
        self.beats += 1
        return f"beat{time.monotonic()} ".encode()

    def text(self, token: str) -> bytes:
        return token.encode() + b" "

    def final(self, finish_reason: str) -> bytes:
        return b""

    def ending(self, usage: Any, cancelled: bool) -> list[bytes]:
        return [b"cancelled" if cancelled else b"end"]

    def error(self, error: PublicError) -> list[bytes]:
        return [error.cause.name.encode()]


def noted(
    request: RequestContext, *steps: Any, timeout: float = 60.0, renderer: StreamRenderer | None = None
) -> list[bytes]:
    body = StreamingAnswer(request, Run(*steps), renderer or Noted("m"), lambda answer: {}).begin(timeout)
    return written(body)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_the_beginning_goes_with_the_first_piece(request_: RequestContext) -> None:
    assert noted(request_, text("a"), text("b"), FINAL, END) == [b"begin a ", b"b ", b"end"]


def test_the_beginning_takes_the_place_of_the_first_heartbeat(request_: RequestContext) -> None:
    renderer = Noted("m")
    steps = (lambda: until(lambda: renderer.beats > 1), text("a"), FINAL, END)
    first, *beats, token, end = noted(request_, *steps, timeout=0.05, renderer=renderer)
    assert (first, token, end) == (b"begin ", b"a ", b"end")
    assert len(beats) > 1 and far_apart(beats)


def test_the_silence_counts_from_the_last_piece(request_: RequestContext) -> None:
    quiet = (0.05, SILENCE) * 20
    writes = noted(request_, text("a"), 0.1, SILENCE, text("b"), *quiet, text("c"), 0.1, SILENCE, FINAL, END)
    assert [write for write in writes if b"beat" not in write] == [b"begin a ", b"b ", b"c ", b"end"]
    beats = writes[writes.index(b"b ") + 1 : writes.index(b"c ")]
    assert len(beats) > 1 and far_apart(beats)


def far_apart(beats: list[bytes]) -> bool:
    """Whether the times of heartbeats are as far apart as those of ``Noted`` must be."""
    times = [float(beat.removeprefix(b"beat")) for beat in beats]
    return all(later - earlier >= 0.5 for earlier, later in pairwise(times))


def test_a_dialect_tells_failures_in_the_stream_from_the_first_second_on(request_: RequestContext) -> None:
    assert noted(request_, BackendStatusError("no", status=400)) == [b"begin LASTING"]
    assert request_.failed


def test_a_mistake_of_the_client_has_its_status_in_every_dialect(request_: RequestContext) -> None:
    with pytest.raises(ClientError):
        noted(request_, ClientError("wrong"))


@pytest.mark.parametrize(("last", "ending"), [(END, b"end"), (EarlyTerminationException(reason=LOCKED), b"end")])
def test_an_ending_knows_whether_the_answer_was_cancelled(request_: RequestContext, last: Any, ending: bytes) -> None:
    assert noted(request_, text("a"), last)[-1] == ending
    # A call of an LLM ends with a finish reason when it is cancelled, too.
    for steps in ((EarlyTerminationException(),), (FINAL, END)):
        cancelled = RequestContext()
        with request_scope(cancelled):
            running_requests().begin(cancelled, None)
            writes = noted(cancelled, text("a"), partial(cancelled.cancel_scope.cancel, "by its id"), *steps)
        assert writes == [b"begin a ", b"cancelled"]


def test_an_answer_that_ended_before_it_was_cancelled_is_whole(request_: RequestContext) -> None:
    assert noted(request_, text("a"), FINAL, lambda: request_.cancel_scope.cancel("by its id"), END)[-1] == b"end"


def test_one_write_per_batch(request_: RequestContext) -> None:
    run = Run(text("a"), text("b", more=True), text("c"), {**text(""), "more": True}, FINAL, END)
    assert read(stream(request_, run)) == ["a", "bc", "!stop", "."]


def test_empty_last_chunk_of_a_batch_flushes(request_: RequestContext) -> None:
    assert read(stream(request_, Run(text("a", more=True), SILENCE, FINAL, END)))[0] == "a"


@pytest.mark.parametrize("steps", [(), (END,), (SILENCE,), (text(""), END)])
def test_no_output_is_a_well_formed_empty_answer(request_: RequestContext, steps: tuple[Chunk, ...]) -> None:
    assert "".join(read(stream(request_, Run(*steps)))).replace("~", "") == "!stop."


def test_a_run_that_just_stops_is_closed_properly(request_: RequestContext) -> None:
    assert read(stream(request_, Run(text("a")))) == ["a", "!stop."]


def test_tool_calls_with_finish_reason_have_no_second_final_chunk(request_: RequestContext) -> None:
    calls = {"token": "", "finish_reason": "tool_calls", "tool_calls": [{"index": 0}]}
    assert "".join(read(stream(request_, Run(text("a"), calls, END)))) == "a@1!tool_calls."


@pytest.mark.parametrize(
    ("calls", "reason", "told"),
    [
        (True, "stop", "tool_calls"),
        (True, "length", "length"),
        (True, "content_filter", "content_filter"),
        (False, "tool_calls", "stop"),
        (False, "length", "length"),
    ],
)
def test_a_reason_agrees_with_the_calls(calls: bool, reason: str, told: str) -> None:
    """Nodes make calls, and take them out of answers."""
    made = {"token": "", "finish_reason": None, "tool_calls": [{"index": 0}] if calls else []}
    for last in ([{**FINAL, "finish_reason": reason}], []):
        fresh = RequestContext()
        with request_scope(fresh):
            running_requests().begin(fresh, None)
            steps = [text("a"), made, *last] if last else [text("a"), {**made, "finish_reason": reason}]
            got = "".join(read(stream(fresh, Run(*steps, END))))
        assert got.replace("~", "") == f"a{'@1' * calls}!{told}."


def test_parts_of_calls_of_a_cancelled_answer_are_no_calls(request_: RequestContext) -> None:
    calls = {"token": "", "finish_reason": None, "tool_calls": [{"index": 0}]}
    run = Run(calls, partial(request_.cancel_scope.cancel, "by its id"), FINAL, END)
    assert "".join(read(stream(request_, run))) == "@1!stop."


def test_arguments_that_are_an_object_become_text(request_: RequestContext) -> None:
    """As scripts may give them."""
    calls = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": {"a": "ü"}}}]
    data = b"".join(
        written(stream(request_, Run({"token": "", "finish_reason": "tool_calls", "tool_calls": calls}, END)))
    )
    assert '"arguments":"{\\"a\\": \\"ü\\"}"' in data.decode()


def test_only_one_final_chunk(request_: RequestContext) -> None:
    late_usage = {**SILENCE, "usage": {"total_tokens": 1}}
    assert "".join(read(stream(request_, Run(text("a"), FINAL, late_usage, FINAL, END)))) == "a!stop."


def test_usage_follows_the_final_chunk(request_: RequestContext) -> None:
    run = Run(text("ab"), text("c"), FINAL, END)
    assert "".join(read(stream(request_, run, include_usage=True))) == "abc!stop$abc."


@pytest.mark.usefixtures("heartbeats")
def test_heartbeats_before_the_first_chunk(request_: RequestContext) -> None:
    renderer = Counted("m")
    run = Run(lambda: until(lambda: renderer.beats > 1), text("a"), FINAL, END)
    got = read(StreamingAnswer(request_, run, renderer, lambda answer: {}).begin(0.01))
    assert got[:2] == ["~", "~"]
    assert "".join(got).lstrip("~") == "a!stop."


class Counted(OpenAIChatStream):
    beats = 0

    def heartbeat(self) -> bytes:
        self.beats += 1
        return super().heartbeat()


@pytest.mark.parametrize(("pause", "beats"), [(0.05, "~~"), (60.0, "")])
def test_signs_of_life_become_heartbeats_when_those_are_due(
    request_: RequestContext, monkeypatch: pytest.MonkeyPatch, pause: float, beats: str
) -> None:
    monkeypatch.setattr(OpenAIChatStream, "pauses", Pauses(60.0, pause, pause))
    got = read(stream(request_, Run(text("a"), 0.08, SILENCE, 0.08, SILENCE, text("b"), FINAL, END)))
    assert "".join(got) == f"a{beats}b!stop."


@pytest.mark.usefixtures("heartbeats")
def test_no_heartbeat_after_the_terminator(request_: RequestContext) -> None:
    assert read(stream(request_, Run(text("a"), FINAL, END, 0.2, SILENCE)))[-1].endswith(".")


@pytest.mark.parametrize("wanted", [False, True])
def test_reasoning_is_told_only_on_request(lab: Lab, request_: RequestContext, wanted: bool) -> None:
    lab.user(sendReasoningToClient=wanted)
    thought = {**SILENCE, "reasoning": "hm"}
    writes = written(stream(request_, Run(thought, text("a"), {**text("b"), "reasoning": "oh"}, FINAL, END)))
    told = [
        json.loads(write[6:])["choices"][0]["delta"]
        for block in writes
        for write in block.split(b"\n\n")
        if write.startswith(b"data: {")
    ]
    assert [delta.get("reasoning_content") for delta in told if "reasoning_content" in delta] == (
        ["hm", "oh"] if wanted else []
    )
    assert "".join(delta.get("content", "") for delta in told) == "ab"
    assert "role" in told[0] and not any("role" in delta for delta in told[1:])


@pytest.mark.parametrize("before", [{**SILENCE, "fingerprint": "b77"}, {**text("x"), "fingerprint": "b77"}])
def test_fingerprint_of_the_back_end(request_: RequestContext, before: Chunk) -> None:
    data = b"".join(written(stream(request_, Run(SILENCE, before, text("a"), text("b"), FINAL, END))))
    assert data.count(b'"system_fingerprint":"b77"') == data.count(b"system_fingerprint") > 2


def test_a_late_fingerprint_is_for_the_chunks_from_then_on(request_: RequestContext) -> None:
    run = Run(text("a"), text("b"), {**text("c"), "fingerprint": "b77"}, text("d"), FINAL, END)
    data = b"".join(written(stream(request_, run)))
    found = [b'"system_fingerprint":"b77"' in block for block in data.split(b"\n\n") if b"choices" in block]
    assert found == [False, False, True, True, True]


def test_lines_leave_one_by_one(request_: RequestContext) -> None:
    run = Run(text("a"), text("b", more=True), text("c", more=True), {**FINAL, "more": True}, END)
    renderer = OllamaGenerateStream("m", "r", lambda usage: Counters())
    body = StreamingAnswer(request_, run, renderer, lambda answer: {"completion_tokens": len(answer)}).begin()
    writes = written(body)
    assert [(line["response"], line["done"]) for line in map(json.loads, writes)] == [
        ("a", False),
        ("b", False),
        ("c", False),
        ("", True),
    ]
    assert all(write.endswith(b"\n") and write.count(b"\n") == 1 for write in writes)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_early_error_is_raised_with_its_own_type(request_: RequestContext) -> None:
    run = Run(BackendStatusError("no"))
    with pytest.raises(BackendStatusError):
        stream(request_, run)
    assert settled()


@pytest.mark.parametrize(
    "silent", [SILENCE, {**SILENCE, "fingerprint": "f"}, {**SILENCE, "reasoning": "hidden"}, {**SILENCE, "more": True}]
)
def test_an_error_after_chunks_that_show_nothing_keeps_its_status(request_: RequestContext, silent: Chunk) -> None:
    with pytest.raises(BackendStatusError):
        stream(request_, Run(silent, silent, BackendStatusError("no")))
    assert settled()


def test_closing_while_nothing_is_shown_ends_the_run(request_: RequestContext) -> None:
    silence: list[Chunk | float | BaseException | Callable[[], Any]] = [SILENCE, 0.02]
    run = Run(*silence * 5000)
    body = stream(request_, run, timeout=0.05)
    body.close()
    assert settled() and run.closed


def test_an_error_before_the_run_exists_is_raised(request_: RequestContext) -> None:
    def start() -> Iterator[Any]:
        raise ValueError("no workflow")

    with pytest.raises(ValueError, match="no workflow"):
        stream(request_, start)  # type: ignore[arg-type]
    assert settled()


def test_an_error_after_a_heartbeat_is_an_event(request_: RequestContext) -> None:
    writes = read_late(request_, BackendStatusError("no"))
    assert "".join(writes).strip("~") == "#server_error."


def test_an_error_in_mid_stream_is_an_event(request_: RequestContext) -> None:
    assert read(stream(request_, Run(text("a"), ValueError("bug")))) == ["a", "#server_error."]
    assert not request_.cancel_scope.cancelled


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Foreign(), SystemExit(3)], ids=repr)
def test_no_foreign_exception_leaves_a_stream(
    request_: RequestContext, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    assert read(stream(request_, Run(text("a"), error))) == ["a", "#server_error."]
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_foreign_exceptions_after_a_heartbeat(request_: RequestContext, error: BaseException) -> None:
    assert "".join(read_late(request_, error)).strip("~") == "#server_error."


def test_text_held_back_for_its_batch_goes_before_the_error(request_: RequestContext) -> None:
    assert "".join(read(stream(request_, Run(text("a", more=True), ValueError("bug"))))) == "a#server_error."


def test_an_early_end_in_mid_stream_ends_properly(request_: RequestContext) -> None:
    assert "".join(read(stream(request_, Run(text("a"), EarlyTerminationException("stop"))))) == "a!stop."


@pytest.mark.parametrize("timeout", [0.01, 60.0])
def test_an_early_end_before_any_output_is_an_empty_answer(request_: RequestContext, timeout: float) -> None:
    run = Run(0.1, EarlyTerminationException("stop"))
    assert "".join(read(stream(request_, run, timeout=timeout))).strip("~") == "!stop."


# -- the client leaves -------------------------------------------------------------------------------------------------


def test_closing_in_mid_stream_cancels_and_closes(request_: RequestContext) -> None:
    run = Run(text("a"), text("b"), text("c"), END)
    body = stream(request_, run)
    next(iter(body))
    body.close()
    body.close()
    assert request_.cancel_scope.cancelled
    assert run.closed and len(run.done) < 3


def test_closing_before_the_first_chunk_cancels_at_once(request_: RequestContext) -> None:
    run = Run(lambda: request_.cancel_scope.wait(120), text("a"), text("b"), END)
    body = stream(request_, run, timeout=0.01)
    started = time.monotonic()
    body.close()
    # Less than the wait of the engine's first step.
    assert time.monotonic() - started < 60
    assert until(lambda: run.closed)
    assert settled()
    assert len(run.done) <= 2


def test_a_body_that_was_never_read_is_cleaned_up(request_: RequestContext) -> None:
    run = Run(text("a"), END)
    stream(request_, run).close()
    assert run.closed and request_.cancel_scope.cancelled
    assert settled()


def test_no_flag_is_left_behind(request_: RequestContext) -> None:
    body = stream(request_, Run(text("a"), END))
    next(iter(body))
    cancellation_service.request_cancellation(request_.request_id)
    body.close()
    assert request_.request_id not in cancellation_service.get_all_cancelled_requests()


# -- after the answer --------------------------------------------------------------------------------------------------


def after(request: RequestContext, *steps: Any) -> Run:
    """An answer followed by nodes."""

    def announce() -> None:
        request.background_nodes = 1

    return Run(text("a"), FINAL, announce, END, *steps)


def test_later_nodes_run_in_the_background(request_: RequestContext) -> None:
    gate = threading.Event()
    threads: list[Any] = []
    run = after(
        request_,
        lambda: threads.append(threading.current_thread()),
        lambda: gate.wait(60),
        lambda: threads.append(current_request()),
    )
    assert "".join(read(stream(request_, run))) == "a!stop."
    assert request_.answer_complete and not request_.cancel_scope.cancelled
    assert running_requests().count() == 1
    gate.set()
    assert settled()
    assert threads[0] is not threading.current_thread()
    assert threads[1] is request_


def test_leaving_after_the_terminator_cancels_nothing(request_: RequestContext) -> None:
    ran: list[bool] = []
    body = stream(request_, after(request_, lambda: ran.append(True)))
    while not next(iter(body)).endswith(b"data: [DONE]\n\n"):
        pass
    body.close()
    assert settled() and ran == [True]
    assert not request_.cancel_scope.cancelled


def test_cancelling_later_nodes(request_: RequestContext) -> None:
    ran: list[bool] = []

    def node() -> None:
        if request_.cancel_scope.wait(60):
            raise EarlyTerminationException("cancelled")

    read(stream(request_, after(request_, node, lambda: ran.append(True))))
    cancellation_service.request_cancellation(request_.request_id)
    assert settled() and ran == []
    assert request_.request_id not in cancellation_service.get_all_cancelled_requests()


def test_failing_later_nodes_are_logged(request_: RequestContext, caplog: pytest.LogCaptureFixture) -> None:
    read(stream(request_, after(request_, ValueError("memory is full"))))
    assert settled()
    assert "memory is full" in caplog.text


@pytest.mark.parametrize("later", [False, True])
def test_foreign_exceptions_of_later_nodes(
    request_: RequestContext, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    steps = (text("a"), FINAL, END, asyncio.CancelledError())
    read(stream(request_, after(request_, asyncio.CancelledError()) if later else Run(*steps)))
    assert settled()
    assert "CancelledError" in caplog.text and "after the answer" in caplog.text


def test_foreign_exceptions_while_a_run_is_stopped(request_: RequestContext, caplog: pytest.LogCaptureFixture) -> None:
    def run() -> Iterator[Any]:
        try:
            yield text("a")
        finally:
            raise Foreign

    stream(request_, run).close()  # type: ignore[arg-type]
    assert settled()
    assert "Foreign" in caplog.text


@pytest.mark.parametrize("thread", ["Thread", "Timer"])
def test_no_thread_for_later_nodes(
    request_: RequestContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, thread: str
) -> None:
    def start(self: threading.Thread) -> None:
        if (self.name == "background-nodes" and thread == "Thread") or isinstance(self, threading.Timer):
            raise RuntimeError("can't start new thread")
        real(self)

    real = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    run = after(request_, lambda: None)
    assert "".join(read(stream(request_, run))) == "a!stop."
    assert settled() and run.closed
    assert "can't start new thread" in caplog.text


def test_the_closing_line_of_a_run_that_never_was(request_: RequestContext, caplog: pytest.LogCaptureFixture) -> None:
    def start() -> Iterator[Any]:
        raise ValueError("no workflow")

    caplog.set_level(logging.INFO)
    with pytest.raises(ValueError, match="no workflow"):
        stream(request_, start)  # type: ignore[arg-type]
    assert caplog.text.count("done after") == 1


def test_later_nodes_have_a_deadline(lab: Lab, request_: RequestContext) -> None:
    lab.user(backgroundNodesTimeoutInSeconds=1)
    ended: list[bool] = []
    read(stream(request_, after(request_, lambda: ended.append(request_.cancel_scope.wait(60)))))
    assert settled(90) and ended == [True]


def test_a_stream_that_cannot_be_rendered_stops_its_run_before_it_tells_that(request_: RequestContext) -> None:
    """The run is not read to its end for nobody."""

    class Broken(Noted):
        def text(self, token: str) -> bytes:
            assert token != "b"
            return super().text(token)

    run = Run(text("a"), text("b"), text("never"), END)
    body = StreamingAnswer(request_, run, Broken("m"), lambda answer: {}).begin()
    assert [(piece, run.closed, running_requests().count()) for piece in body] == [
        (b"begin a ", False, 1),
        (b"OTHER", True, 0),
    ]
    assert run.done == [text("a")]
    body.close()


# -- whole answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (("text",), "text"),
        ((None,), ""),
        ((), ""),
        (({"tool_calls": [1]},), {"tool_calls": [1]}),
        ((EarlyTerminationException("stop"),), ""),
    ],
)
def test_whole_answer(request_: RequestContext, steps: tuple[Any, ...], value: Any) -> None:
    answer = WholeAnswer(request_, lambda: Run(*steps)())
    assert answer.value() == value
    assert answer.complete() and request_.answer_complete
    assert not running_requests().knows(request_.request_id)


def test_whole_answer_that_fails(request_: RequestContext) -> None:
    with pytest.raises(BackendStatusError):
        WholeAnswer(request_, Run(BackendStatusError("no"))).value()
    assert settled()


def test_the_closing_line_of_a_whole_answer_that_fails(
    request_: RequestContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(Foreign):
        WholeAnswer(request_, Run(Foreign())).value()
    assert caplog.text.count("done after") == 1


def test_closing_a_whole_answer_keeps_the_time_of_the_answer(request_: RequestContext) -> None:
    answer = WholeAnswer(request_, lambda: iter(Run("x")()))
    answer.value()
    request_.background_nodes = 1
    assert not answer.complete()
    answered = request_.answered_at
    time.sleep(0.01)
    answer.close()
    assert request_.answered_at == answered


def test_whole_answer_goes_before_later_nodes(request_: RequestContext) -> None:
    ran: list[bool] = []
    run = Run(lambda: setattr(request_, "background_nodes", 1), {"a": 1}, lambda: ran.append(True))
    answer = WholeAnswer(request_, run)
    assert answer.value() == {"a": 1}
    assert ran == [] and not request_.answer_complete
    assert not answer.complete() and ran == [] and running_requests().knows(request_.request_id)
    answer.close()
    assert settled() and ran == [True]


CALLS = [{"id": "c1"}]


@pytest.mark.parametrize(
    ("value", "text", "calls"),
    [
        ("x", "x", None),
        (5, "5", None),
        ({"a": 1}, "{'a': 1}", None),
        ({"tool_calls": CALLS, "content": "x"}, "x", CALLS),
        ({"tool_calls": CALLS, "content": None}, "", CALLS),
        ({"tool_calls": CALLS}, "", CALLS),
        ({"tool_calls": [], "content": "x"}, "x", None),
        ({"tool_calls": None, "content": "x"}, "x", None),
    ],
)
def test_what_a_whole_answer_says(
    request_: RequestContext, value: Any, text: str, calls: list[dict[str, Any]] | None
) -> None:
    request_.outcome = LlmOutcome("length", reasoning="hidden", fingerprint="b77")
    found = FinishedAnswer.of(value, request_, [])
    assert (found.text, found.tool_calls, found.reasoning) == (text, calls, "")
    assert (found.fingerprint, found.finish_reason) == ("b77", "length")
    running_requests().end(request_)


def test_estimated_counts_come_in_their_usual_order(request_: RequestContext) -> None:
    assert list(estimated_usage(request_, [], "x")) == ["prompt_tokens", "completion_tokens", "total_tokens"]
    running_requests().end(request_)


def test_reasoning_of_a_whole_answer(lab: Lab, request_: RequestContext) -> None:
    lab.user(sendReasoningToClient=True)
    request_.outcome.reasoning = "hm"
    assert FinishedAnswer.of("x", request_, []).reasoning == "hm"
    running_requests().end(request_)


def test_usage_estimate() -> None:
    request_ = RequestContext()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello world"}, {"role": "user", "content": None}]
    assert estimated_usage(request_, messages, "hello world") == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
    }


COMPLETE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (COMPLETE, COMPLETE),
        ({**COMPLETE, "details": {"cached": 1}}, {**COMPLETE, "details": {"cached": 1}}),
        (dict.fromkeys(COMPLETE), {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}),
        (dict.fromkeys(COMPLETE, "7"), {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}),
        (dict.fromkeys(COMPLETE, 7.5), {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}),
        (dict.fromkeys(COMPLETE, True), {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}),
        (
            {"prompt_tokens": 10, "completion_tokens": None},
            {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
        ),
        ({"completion_tokens": 0, "total_tokens": 9}, {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}),
        ({"prompt_tokens": 10, "total_tokens": 15}, COMPLETE),
        ({"completion_tokens": "x", "prompt_tokens": 10, "total_tokens": 15}, COMPLETE),
        ({"prompt_tokens": 10, "total_tokens": 7}, {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}),
        # No rest is left for an answer that has text, or for a prompt.
        ({"prompt_tokens": 10, "total_tokens": 10}, {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}),
        ({"completion_tokens": 5, "total_tokens": 5}, {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}),
        ({"prompt_tokens": 0, "total_tokens": 0}, {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}),
        ({"total_tokens": 9}, {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}),
        ({**COMPLETE, "total_tokens": 40}, {**COMPLETE, "total_tokens": 40}),
        ({**COMPLETE, "total_tokens": 0}, COMPLETE),
        ({**COMPLETE, "total_tokens": 7}, COMPLETE),
    ],
)
def test_what_the_back_end_says_of_its_usage(said: dict[str, Any], told: dict[str, Any]) -> None:
    request_ = RequestContext(outcome=LlmOutcome(usage=said))
    assert estimated_usage(request_, [{"role": "user", "content": "hello world"}], "hello world") == told


# -- the end of the server ---------------------------------------------------------------------------------------------

STOPPED = [EarlyTerminationException("cancelled"), FINAL, ValueError("the connection was closed")]


def stopped_by(request: RequestContext, *steps: Any) -> Run:
    """A run that the end of the server reaches before its last step."""
    return Run(*steps[:-1], lambda: request.cancel_scope.cancel(SERVER_STOPS), steps[-1])


@pytest.mark.parametrize("last", STOPPED, ids=["cancelled", "finish reason", "error"])
def test_a_stream_that_the_server_cuts_off_ends_with_an_error(
    request_: RequestContext, last: Any, caplog: pytest.LogCaptureFixture
) -> None:
    writes = written(stream(request_, stopped_by(request_, text("a"), last)))
    assert summary(writes) == ["a", "#server_error."] and b"The server is stopping." in writes[-1]
    assert "Traceback" not in caplog.text and request_.failed


def test_a_stream_that_ends_without_a_finish_reason_is_cut_off_too(request_: RequestContext) -> None:
    run = Run(text("a"), lambda: request_.cancel_scope.cancel(SERVER_STOPS))
    assert read(stream(request_, run)) == ["a", "#server_error."]


def test_the_server_may_stop_after_the_finish_reason(request_: RequestContext) -> None:
    run = stopped_by(request_, text("a"), FINAL, EarlyTerminationException("cancelled"))
    assert "".join(read(stream(request_, run))) == "a!stop."


@pytest.mark.parametrize("last", STOPPED, ids=["cancelled", "finish reason", "error"])
def test_a_stream_without_text_yet_gets_the_status(request_: RequestContext, last: Any) -> None:
    if last is FINAL:
        assert read(stream(request_, stopped_by(request_, last))) == ["#server_error."]
        return
    with pytest.raises(ServerStoppingError):
        stream(request_, stopped_by(request_, last))


def test_an_engine_that_does_not_end_is_left_behind(request_: RequestContext) -> None:
    released = threading.Event()
    body = stream(request_, Run(lambda: released.wait(60), text("late")), timeout=0.01)
    request_.cancel_scope.cancel(SERVER_STOPS)
    assert "".join(read(body)).strip("~") == "#server_error."
    released.set()


@pytest.mark.parametrize("last", [*STOPPED, "a part"], ids=["cancelled", "finish reason", "error", "text"])
def test_a_whole_answer_that_the_server_cuts_off_is_refused(request_: RequestContext, last: Any) -> None:
    run = stopped_by(request_, last)
    with pytest.raises(ServerStoppingError):
        WholeAnswer(request_, run).value()
    assert run.closed
