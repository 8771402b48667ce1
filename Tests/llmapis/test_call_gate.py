"""The gate around single LLM calls."""
from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException, GateTimeoutError
from Middleware.llmapis import llm_api
from Middleware.llmapis.llm_api import CallSlot
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Tests.llmapis.transport_lab import SOON
from Tests.workflows.engine_lab import until


@pytest.fixture(autouse=True)
def one_slot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "endpoint")
    monkeypatch.setattr(instance, "CONCURRENCY_LIMIT", 1)
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 0.3)
    instance.initialize_request_semaphore(1)
    yield
    instance.initialize_request_semaphore(0)


def test_a_second_call_waits_for_the_slot_and_gets_it_when_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    first, second = CallSlot(None), CallSlot(None)
    first.acquire()
    started = time.monotonic()
    threading.Timer(0.1, first.release).start()
    second.acquire()
    assert 0.08 < time.monotonic() - started < SOON
    second.release()


@pytest.mark.parametrize("answered_at", [None, 1.0], ids=["before-the-answer", "after-it"])
def test_the_wait_of_a_call_counts_for_its_request(answered_at: float | None) -> None:
    request, first = RequestContext(answered_at=answered_at), CallSlot(None)
    with request_scope(request):
        first.acquire()
        assert not request.waited
        with pytest.raises(GateTimeoutError):
            CallSlot(None).acquire()
    assert request.waited == 0 if answered_at else request.waited > 0.25
    first.release()


def test_a_wait_too_long_names_seconds_level_and_limit() -> None:
    held = CallSlot(None)
    held.acquire()
    with pytest.raises(GateTimeoutError, match=r"0\.3 s .*endpoint, limit 1"):
        CallSlot(None).acquire()
    held.release()


def test_cancellation_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    held, scope = CallSlot(None), CancelScope()
    held.acquire()
    threading.Timer(0.05, scope.cancel).start()
    started = time.monotonic()
    with pytest.raises(EarlyTerminationException):
        CallSlot(scope).acquire()
    assert time.monotonic() - started < SOON
    held.release()


def test_a_slot_is_given_back_once_only() -> None:
    slot = CallSlot(None)
    slot.acquire()
    slot.release()
    slot.release()  # a bounded semaphore would raise
    CallSlot(None).acquire()


def test_at_the_level_of_requests_calls_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "wilmer")
    for _ in range(3):
        CallSlot(None).acquire()


def test_calls_are_served_in_order_and_the_log_tells_how_many_wait(caplog: pytest.LogCaptureFixture,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)
    semaphore = instance.get_request_semaphore()
    assert semaphore is not None
    served: list[int] = []

    def call(number: int) -> None:
        slot = CallSlot(None)
        slot.acquire()
        served.append(number)
        slot.release()

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == llm_api.__name__]

    held = CallSlot(None)
    held.acquire()
    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        assert until(lambda: semaphore.waiting == len(told()) == number + 1)  # noqa: B023
    time.sleep(0.25)  # each has looked at its scope meanwhile
    held.release()
    for thread in threads:
        thread.join(SOON)
    assert served == [0, 1, 2, 3, 4]
    assert [f"{number} waiting" in line for number, line in enumerate(told(), 1)] == [True] * 5


@pytest.mark.parametrize("how", ["cancelled", "abandoned", "timed out"])
def test_a_call_that_gives_up_leaves_the_line(how: str) -> None:
    held, scope, semaphore = CallSlot(None), CancelScope(), instance.get_request_semaphore()
    assert semaphore is not None
    held.acquire()
    slot = CallSlot(scope)
    steps = slot.waiting()
    if how == "abandoned":
        instance.CONCURRENCY_TIMEOUT = 60
        next(steps)
        steps.close()
    else:
        if how == "cancelled":
            scope.cancel()
        with pytest.raises((EarlyTerminationException, GateTimeoutError)):
            list(steps)
    assert semaphore.waiting == 0
    held.release()
    assert semaphore.acquire(blocking=False)
