"""The gate around single LLM calls, which the queue of calls keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException, GateTimeoutError
from Middleware.llmapis import call_queue
from Middleware.llmapis.call_queue import CallQueue
from Middleware.llmapis.call_turns import turn_for
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Tests.llmapis.queue_lab import one_slot_for_calls, taken, turn
from Tests.llmapis.transport_lab import SOON
from Tests.workflows.engine_lab import until


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallQueue]:
    with one_slot_for_calls(monkeypatch) as made:
        yield made


def test_a_second_call_waits_for_the_slot_and_gets_it_when_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    first, second = taken(), turn()
    started = time.monotonic()
    threading.Timer(0.1, first.end).start()
    taken(second)
    assert 0.08 < time.monotonic() - started < SOON
    second.end()


@pytest.mark.parametrize("answered_at", [None, 1.0], ids=["before-the-answer", "after-it"])
def test_the_wait_of_a_call_counts_for_its_request(answered_at: float | None) -> None:
    request = RequestContext(answered_at=answered_at)
    with request_scope(request):
        first = taken()
        assert not request.waited
        with pytest.raises(GateTimeoutError):
            taken()
    assert request.waited == 0 if answered_at else request.waited > 0.25
    assert request.paused == 0 if answered_at is None else request.paused > 0.15
    first.end()


def test_a_wait_too_long_names_seconds_level_and_limit() -> None:
    held = taken()
    with pytest.raises(GateTimeoutError, match=r"0\.3 s .*endpoint, limit 1"):
        taken()
    held.end()


def test_cancellation_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    held, scope = taken(), CancelScope()
    threading.Timer(0.05, scope.cancel).start()
    started = time.monotonic()
    with pytest.raises(EarlyTerminationException):
        taken(turn(scope))
    assert time.monotonic() - started < SOON
    held.end()


def test_a_slot_is_given_back_once_only() -> None:
    first = taken()
    first.end()
    second = taken()
    first.end()
    with pytest.raises(GateTimeoutError):
        taken()
    second.end()


def test_at_the_level_of_requests_calls_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "wilmer")
    assert turn_for("Main", {}, None) is None


def test_calls_are_served_in_order_and_the_log_tells_how_many_wait(
    caplog: pytest.LogCaptureFixture, queue: CallQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    served: list[int] = []

    def call(number: int) -> None:
        one = taken()
        served.append(number)
        one.end()

    def told() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if record.name == call_queue.__name__ and "slots are taken" in record.getMessage()
        ]

    held = taken()
    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        assert until(lambda: queue.waiting == len(told()) == number + 1)  # noqa: B023
    time.sleep(0.25)  # each has looked at its scope meanwhile
    held.end()
    for thread in threads:
        thread.join(SOON)
    assert served == [0, 1, 2, 3, 4]
    assert [f"{number} waiting" in line for number, line in enumerate(told(), 1)] == [True] * 5


@pytest.mark.parametrize("how", ["cancelled", "abandoned", "timed out"])
def test_a_call_that_gives_up_leaves_the_line(how: str, queue: CallQueue) -> None:
    held, scope = taken(), CancelScope()
    one = turn(scope)
    steps = one.waiting()
    if how == "abandoned":
        instance.CONCURRENCY_TIMEOUT = 60
        next(steps)
        steps.close()
    else:
        if how == "cancelled":
            scope.cancel()
        with pytest.raises((EarlyTerminationException, GateTimeoutError)):
            list(steps)
    assert queue.waiting == 0
    held.end()
    assert queue.running == 0
    taken().end()
