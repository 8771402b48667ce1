"""The gate around single LLM calls, which the queue of calls keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import FairSemaphore, Slots
from Middleware.exceptions import EarlyTerminationException, GateTimeoutError
from Middleware.llmapis import call_queue
from Middleware.llmapis.call_queue import CallQueue, Needs, Rank, Turn
from Middleware.llmapis.call_turns import turn_for
from Middleware.models.cancel_scope import GAVE_WAY, CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Tests.llmapis.queue_lab import one_slot_for_calls, taken, turn
from Tests.llmapis.transport_lab import SOON
from Tests.workflows.engine_lab import until


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallQueue]:
    with one_slot_for_calls(monkeypatch) as made:
        yield made


def gate() -> Slots:
    found = instance.get_request_semaphore()
    assert found is not None
    return found


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
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
        assert until(lambda: gate().waiting == len(told()) == number + 1)  # noqa: B023
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
    assert gate().waiting == 0
    held.end()
    assert queue.running == 0 and gate().taken == 0
    taken().end()


# -- calls that give way -----------------------------------------------------------------------------------------------


class Behind:
    """A call behind an answer, on a thread, that runs until it is stopped or let go."""

    def __init__(self, queue: CallQueue, places: int = 0, rank: Rank = Rank.BEHIND) -> None:
        needs = Needs("Main", gate(), "http://server", places)
        self.turn = Turn(queue, needs, rank, None, RequestContext(answered_at=1.0), yields=True)
        self.began: list[CancelScope | None] = []
        self.may_end = threading.Event()
        self.thread = threading.Thread(target=self.turn.run, args=(self._call,), daemon=True)
        self.thread.start()

    def _call(self, scope: CancelScope | None) -> None:
        self.began.append(scope)
        assert until(lambda: self.may_end.is_set() or (scope is not None and scope.cancelled), SOON)

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(SOON)
        assert not self.thread.is_alive()


@pytest.fixture
def _long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 60)


@pytest.mark.usefixtures("_long_waits")
def test_a_call_behind_an_answer_gives_its_slot_to_an_answer_and_begins_again(queue: CallQueue) -> None:
    behind = Behind(queue)
    assert until(lambda: len(behind.began) == 1, SOON)
    answer = taken()
    assert behind.began[0] is not None and behind.began[0].reason == GAVE_WAY
    assert until(lambda: gate().waiting == 1, SOON), "it waits again"
    assert len(behind.began) == 1
    answer.end()
    assert until(lambda: len(behind.began) == 2, SOON)
    behind.end()
    assert (behind.turn.restarts, gate().taken, queue.running) == (1, 0, 0)


@pytest.mark.usefixtures("_long_waits")
def test_a_call_that_waits_for_a_slot_makes_room_on_its_server(queue: CallQueue) -> None:
    """The slot is another server's; the call behind the answer has the only place of its own server."""
    held, behind = taken(), Behind(queue, places=1)
    assert until(lambda: gate().waiting == 1, SOON)
    answer = Turn(queue, Needs("Main", gate(), "http://server", 1), Rank.ANSWER, None)
    queue.enter(answer)
    assert until(answer.started.is_set, SOON), "it has the place"
    held.end()
    taken(answer).end()
    assert until(lambda: len(behind.began) == 1, SOON)
    behind.end()


@pytest.mark.usefixtures("_long_waits")
def test_a_task_that_has_waited_for_very_long_goes_like_an_answer(
    queue: CallQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, task = taken(), Behind(queue, rank=Rank.TASK)
    assert until(lambda: gate().waiting == 1, SOON)
    monkeypatch.setattr(call_queue, "LONGEST_WAIT_BEHIND", 0.0)
    slots = gate()
    assert isinstance(slots, FairSemaphore)
    assert until(lambda: [one.rank for one in slots._queue] == [0], SOON)
    late = slots.enqueue()
    held.end()
    assert until(lambda: len(task.began) == 1, SOON) and not late.wait(0)
    task.end()
    assert late.wait(SOON)
    late.leave()
