"""LLM calls that nodes make side by side."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendConnectionError, EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.request_context import RequestContext, current_request, request_scope
from Middleware.services.llm_calls import direct_calls
from Middleware.services.llm_calls.direct_calls import answer_text, call_with_texts, raise_if_cancelled, run_together


def test_results_keep_the_order_of_the_tasks() -> None:
    tasks = [lambda scope, number=number: time.sleep(0.1 / (number + 1)) or number for number in range(6)]
    assert run_together(tasks, CancelScope()) == list(range(6))
    assert run_together([], CancelScope()) == []


@pytest.mark.parametrize("count", [1, 3])
def test_tasks_work_for_the_request_of_their_caller(count: int) -> None:
    with request_scope(RequestContext(request_id="r-1")):
        found = run_together([lambda scope: getattr(current_request(), "request_id", "")] * count, CancelScope())
    assert found == ["r-1"] * count


@pytest.mark.parametrize(("level", "limit", "places"), [("endpoint", 2, 2), ("endpoint", 9, 4), ("request", 2, 4)])
def test_only_a_few_work_at_a_time(monkeypatch: pytest.MonkeyPatch, level: str, limit: int, places: int) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", level)
    monkeypatch.setattr(instance, "CONCURRENCY_LIMIT", limit)
    lock, full, now, most = threading.Lock(), threading.Event(), 0, 0

    def task(_: CancelScope) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
            if now == places:
                full.set()
        assert full.wait(60)
        # A task too many would come now.
        time.sleep(0.05)
        with lock:
            now -= 1

    run_together([task] * 10, CancelScope())
    assert most == places


def test_a_failure_cancels_the_others_and_is_raised() -> None:
    stopped = threading.Event()

    def fail(_: CancelScope) -> None:
        raise BackendConnectionError("lost")

    def wait(scope: CancelScope) -> None:
        if scope.wait(60):
            stopped.set()

    with pytest.raises(BackendConnectionError, match="lost"):
        run_together([wait, fail], CancelScope())
    assert stopped.is_set()


@pytest.mark.parametrize("count", [1, 3])
def test_a_cancelled_round_raises(count: int) -> None:
    scope = CancelScope()
    threading.Timer(0.1, scope.cancel).start()
    started = time.monotonic()
    with pytest.raises(EarlyTerminationException):
        run_together([lambda group: group.wait(120)] * count, scope)
    assert time.monotonic() - started < 60
    with pytest.raises(EarlyTerminationException):
        raise_if_cancelled(scope)


def test_messages_leave_out_what_is_empty() -> None:
    calls: list[Any] = []
    llm = SimpleNamespace(get_response_from_llm=lambda **given: calls.append(given) or "answer")
    handler = LlmHandler(llm)
    assert call_with_texts(handler, "", "hi", "r-1") == "answer"
    call_with_texts(handler, "be brief", "hi")
    assert calls[0] == {"conversation": [{"role": "user", "content": "hi"}], "request_id": "r-1"}
    assert [message["role"] for message in calls[1]["conversation"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("result", "text"), [("a", "a"), ({"content": "b"}, "b"), ({"content": None}, ""), ("", ""), (None, "")]
)
def test_the_text_of_an_answer(result: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        direct_calls, "post_process_llm_output", lambda text, rules, node: seen.append((rules, node)) or text
    )
    outcome = SimpleNamespace(endpoint_name="", endpoint_config={"name": "backup"})
    handler = LlmHandler(SimpleNamespace(outcome=outcome), endpoint_config={"name": "first"})
    assert answer_text(result, handler, {"n": 1}) == text
    assert seen == ([({"name": "backup"}, {"n": 1})] if text else [])
