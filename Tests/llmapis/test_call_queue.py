"""Which waiting call is next: places of servers, models of swap groups, and who gives way to whom."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from Middleware.exceptions import BackendError, EarlyTerminationException
from Middleware.llmapis import call_queue
from Middleware.llmapis.call_queue import (
    BACKGROUND_WAIT_SECONDS,
    BETWEEN_CALLS_SECONDS,
    IDLE_SECONDS,
    LONGEST_WAIT_BEHIND,
    MOST_RESTARTS,
    NEXT_CALL_SECONDS,
    PAUSE_SECONDS,
    CallQueue,
    Needs,
    Rank,
    Turn,
)
from Middleware.models.cancel_scope import GAVE_WAY, CancelScope
from Middleware.models.request_context import RequestContext


class QueueLab:
    """A queue with a clock that stands still until a test moves it, and the calls in it by name."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.queue = CallQueue(lambda: self.now)
        self.turns: dict[str, Turn] = {}

    def enter(
        self,
        name: str,
        model: str = "",
        rank: Rank = Rank.ANSWER,
        places: int = 0,
        patience: float = 30,
        stops: list[str] | None = None,
        request: RequestContext | None = None,
        yields: bool = False,
    ) -> Turn:
        """Enter a call; ``stops`` gets its name when it has to make room, which ends it."""
        turn = Turn(
            self.queue,
            Needs("E", None, "host:1", places, "card" if model else "", model, patience),
            rank,
            None,
            request,
            yields,
        )
        self.turns[name] = turn
        if stops is not None:

            def stop() -> None:
                stops.append(name)
                self.end(name)

            turn.stop = stop
        self.queue.enter(turn)
        return turn

    def end(self, *names: str) -> None:
        for name in names:
            self.queue.leave(self.turns.pop(name))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.queue.look()

    @property
    def running(self) -> list[str]:
        return [name for name, turn in self.turns.items() if turn.started.is_set()]

    def order(self) -> list[str]:
        """Ends the running calls one after the other; returns all in the order in which they ran."""
        order: list[str] = []
        while started := self.running:
            order.append(started[0])
            self.end(started[0])
        return order


@pytest.fixture
def lab() -> QueueLab:
    return QueueLab()


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [0, 1, 3])
def test_a_server_gets_as_many_calls_as_it_runs_side_by_side(lab: QueueLab, places: int) -> None:
    for number in range(5):
        lab.enter(str(number), places=places)
    assert len(lab.running) == (places or 5)
    assert lab.order() == ["0", "1", "2", "3", "4"]


def test_answers_first_then_what_follows_them_then_tasks(lab: QueueLab) -> None:
    lab.enter("first", places=1)
    for name, rank in (
        ("title", Rank.TASK),
        ("memory", Rank.BEHIND),
        ("a", Rank.ANSWER),
        ("summary", Rank.BEHIND),
        ("b", Rank.ANSWER),
    ):
        lab.enter(name, rank=rank, places=1)
    assert lab.order() == ["first", "a", "b", "memory", "summary", "title"]


def test_a_call_of_an_endpoint_that_does_not_say_is_not_counted(lab: QueueLab) -> None:
    """Its server may have other places; it never waits."""
    lab.enter("known", places=1)
    lab.enter("unknown", places=0)
    assert lab.running == ["known", "unknown"]


def test_what_waited_very_long_goes_first(lab: QueueLab) -> None:
    lab.enter("first", places=1)
    lab.enter("memory", rank=Rank.BEHIND, places=1)
    lab.wait(LONGEST_WAIT_BEHIND)
    lab.enter("answer", places=1)
    assert lab.order() == ["first", "memory", "answer"]


# -- giving way --------------------------------------------------------------------------------------------------------


def test_an_answer_stops_only_as_many_calls_as_it_needs_places(lab: QueueLab) -> None:
    stopped: list[str] = []
    lab.enter("chat", places=3)
    lab.enter("memory", rank=Rank.BEHIND, places=3, stops=stopped)
    lab.enter("summary", rank=Rank.BEHIND, places=3, stops=stopped)
    lab.enter("answer", places=3)
    assert stopped == ["summary"] and lab.running == ["chat", "memory", "answer"]
    lab.enter("title", rank=Rank.TASK, places=3)
    lab.enter("vectors", rank=Rank.BEHIND, places=3)
    assert stopped == ["summary"]


def test_nothing_is_stopped_while_a_place_is_free(lab: QueueLab) -> None:
    stopped: list[str] = []
    lab.enter("memory", rank=Rank.BEHIND, places=2, stops=stopped)
    lab.enter("answer", places=2)
    assert not stopped and lab.running == ["memory", "answer"]


def test_a_call_that_is_being_stopped_is_not_stopped_for_a_second_answer(lab: QueueLab) -> None:
    stopped: list[str] = []
    memory = lab.enter("memory", rank=Rank.BEHIND, places=1)
    memory.stop = lambda: stopped.append("memory")
    lab.enter("a", places=1)
    lab.enter("b", places=1)
    assert stopped == ["memory"] and lab.running == ["memory"]


def test_after_a_very_long_wait_nothing_is_stopped(lab: QueueLab) -> None:
    stopped: list[str] = []
    lab.enter("chat", places=1)
    lab.enter("memory", rank=Rank.BEHIND, places=1, stops=stopped)
    lab.wait(LONGEST_WAIT_BEHIND)
    lab.end("chat")
    lab.enter("answer", places=1)
    assert not stopped and lab.running == ["memory"]


def test_work_behind_an_answer_begins_a_moment_after_it(lab: QueueLab) -> None:
    request = RequestContext(answered_at=lab.now)
    lab.enter("memory", rank=Rank.BEHIND, places=1, request=request, yields=True)
    lab.wait(PAUSE_SECONDS - 0.1)
    assert lab.running == []
    lab.wait(0.2)
    assert lab.running == ["memory"]
    lab.end("memory")
    lab.enter("summary", rank=Rank.BEHIND, places=1, request=request, yields=True)
    assert lab.running == ["summary"]


def test_it_does_not_slip_in_between_two_calls_of_an_answer(lab: QueueLab) -> None:
    earlier, message = RequestContext(answered_at=1.0), RequestContext()
    lab.enter("route", places=1, request=message)
    lab.enter("memory", rank=Rank.BEHIND, places=1, request=earlier, yields=True)
    lab.end("route")
    assert lab.running == []
    lab.enter("answer", places=1, request=message)
    lab.end("answer")
    message.answered_at = lab.now
    lab.wait(0.1)
    assert lab.running == ["memory"]


@pytest.mark.parametrize("end", ["cancelled", "failed", "long pause"])
def test_it_does_not_wait_for_an_answer_that_never_comes(lab: QueueLab, end: str) -> None:
    earlier, message = RequestContext(answered_at=1.0), RequestContext()
    lab.enter("route", places=1, request=message)
    lab.enter("memory", rank=Rank.BEHIND, places=1, request=earlier, yields=True)
    lab.end("route")
    if end == "cancelled":
        message.cancel_scope.cancel()
    elif end == "failed":
        message.failed = True
    lab.wait(BETWEEN_CALLS_SECONDS if end == "long pause" else 0.1)
    assert lab.running == ["memory"]


def test_without_the_users_wish_it_begins_at_once(lab: QueueLab) -> None:
    lab.enter("route", places=1, request=RequestContext())
    lab.enter("memory", rank=Rank.BEHIND, places=1, request=RequestContext(answered_at=lab.now))
    lab.end("route")
    assert lab.running == ["memory"]


class Call:
    """A call that is stopped the first few times, in the way that real calls end then."""

    def __init__(self, queue: CallQueue, stops: int, ending: Callable[[], Any]) -> None:
        self.queue, self.stops, self.ending = queue, stops, ending
        self.made = 0

    def __call__(self, scope: CancelScope | None) -> str:
        self.made += 1
        if self.made <= self.stops and scope is not None:
            scope.cancel(GAVE_WAY)
            self.ending()
            return ""
        return "whole"


def _broken() -> None:
    raise BackendError("cut off", endpoint="E")


@pytest.mark.parametrize("ending", [lambda: None, _broken], ids=["empty", "error"])
def test_a_stopped_call_is_made_again_and_the_third_time_to_its_end(ending: Callable[[], Any]) -> None:
    queue = CallQueue()
    scope = CancelScope()

    def turn() -> Turn:
        return Turn(queue, Needs("E", None, "host:1", 1), Rank.BEHIND, scope, RequestContext(answered_at=1.0), True)

    call = Call(queue, MOST_RESTARTS, ending)
    assert turn().run(call) == "whole" and call.made == MOST_RESTARTS + 1
    last: list[CancelScope | None] = []

    def third(given: CancelScope | None) -> str:
        last.append(given)
        if given is not scope and given is not None:
            given.cancel(GAVE_WAY)
        return ""

    one = turn()
    one.run(third)
    # The third time it has nothing but the scope of its request, so that nothing else stops it.
    assert len(last) == 3 and last[2] is scope and one.stop is None and queue.running == 0


def test_the_cancellation_of_the_request_is_no_giving_way() -> None:
    queue, scope = CallQueue(), CancelScope()
    one = Turn(queue, Needs("E", None, "host:1", 1), Rank.BEHIND, scope, RequestContext(answered_at=1.0), True)
    made: list[CancelScope | None] = []

    def call(given: CancelScope | None) -> str:
        made.append(given)
        scope.cancel("stopped")
        assert given is not None and given.cancelled
        return ""

    assert one.run(call) == "" and len(made) == 1 and queue.running == 0


# -- models that share memory -----------------------------------------------------------------------------------------


def test_the_loaded_model_goes_first(lab: QueueLab) -> None:
    """A-B-A-A-B becomes A-A-A-B-B."""
    for name in ("A1", "B1", "A2", "A3", "B2"):
        lab.enter(name, name[0], places=1)
    assert lab.order() == ["A1", "A2", "A3", "B1", "B2"]


def test_calls_of_one_model_run_side_by_side_and_others_wait_for_all(lab: QueueLab) -> None:
    for name in ("A1", "B1", "A2"):
        lab.enter(name, name[0])
    assert lab.running == ["A1", "A2"]
    lab.end("A1")
    assert lab.running == ["A2"]
    lab.end("A2")
    assert lab.running == ["B1"] and lab.queue.loaded("card") == "B"


def test_patience_ends_the_run_of_the_loaded_model(lab: QueueLab) -> None:
    lab.enter("A1", "A", places=1)
    lab.enter("B1", "B", places=1, patience=5)
    lab.enter("A2", "A", places=1)
    lab.end("A1")
    assert lab.running == ["A2"]
    lab.wait(6)
    lab.enter("A3", "A", places=1)
    lab.enter("B2", "B", places=1, patience=5)
    lab.enter("C1", "C", places=1)
    lab.end("A2")
    assert lab.running == ["B1"]
    lab.wait(40)
    lab.enter("B3", "B", places=1)
    lab.end("B1")
    assert lab.running == ["B2"], "it came before its model was loaded"
    lab.end("B2")
    assert lab.running == ["A3"], "the model with the oldest call is next"
    lab.end("A3")
    assert lab.order() == ["C1", "B3"]


def test_work_behind_answers_changes_the_model_late(lab: QueueLab) -> None:
    lab.enter("A1", "A")
    lab.enter("memory", "B", Rank.BEHIND)
    lab.end("A1")
    lab.wait(IDLE_SECONDS - 1)
    assert lab.running == []
    lab.enter("A2", "A")
    lab.enter("note", "A", Rank.BEHIND)
    assert lab.running == ["A2", "note"], "at once if its model is loaded"
    lab.end("A2", "note")
    lab.wait(IDLE_SECONDS - 1)
    assert lab.running == []
    lab.wait(1.1)
    assert lab.running == ["memory"]


def test_where_nobody_rests_it_joins_the_loaded_model(lab: QueueLab) -> None:
    """With calls of its own model, without being stopped, and not before those of answers for another model."""
    stopped: list[str] = []
    message, earlier = RequestContext(), RequestContext(answered_at=1.0)
    lab.enter("A1", "A", request=message)
    lab.enter("memory", "B", Rank.BEHIND, stops=stopped, request=earlier, yields=True)
    lab.wait(BACKGROUND_WAIT_SECONDS)
    lab.end("A1")
    lab.enter("B1", "B", request=message)
    assert sorted(lab.running) == ["B1", "memory"]
    lab.end("B1")
    lab.enter("A2", "A", request=message)
    assert not stopped and lab.running == ["memory"]


def test_a_call_that_waits_goes_to_the_endpoint_that_stands_in(lab: QueueLab) -> None:
    """As soon as that one's model is loaded; the call is then made there."""

    def enter(name: str) -> Turn:
        needs = Needs("Small", None, "host:1", 0, "card", "B", 30)
        turn = Turn(lab.queue, needs, Rank.ANSWER, None, stand_in=Needs("Big", None, "host:1", 1, "card", "A", 30))
        lab.turns[name] = turn
        lab.queue.enter(turn)
        return turn

    lab.enter("C1", "C")
    first = enter("first")
    lab.enter("A1", "A", places=1)
    lab.end("C1")
    assert lab.running == ["first"] and first.needs.endpoint == "Small", "nothing of the group was loaded for it"
    lab.end("first")
    assert lab.running == ["A1"]
    second = enter("second")
    assert "second" not in lab.running, "the place of the other endpoint's server is taken"
    lab.end("A1")
    assert lab.running == ["second"] and second.needs.endpoint == "Big"


def test_it_does_not_wait_for_ever(lab: QueueLab) -> None:
    stopped: list[str] = []
    lab.enter("A1", "A")
    lab.enter("memory", "B", Rank.BEHIND, stops=stopped)
    for number in range(2, 20):
        lab.wait(8)
        lab.enter(f"A{number}", "A")
        lab.end(f"A{number - 1}") if f"A{number - 1}" in lab.turns else None
        if "memory" in lab.running:
            break
    else:
        lab.end(*lab.running)
    assert "memory" in lab.running and not stopped
    assert lab.now - 1000 >= LONGEST_WAIT_BEHIND


def test_an_answer_with_another_model_stops_what_nobody_waits_for(lab: QueueLab) -> None:
    stopped: list[str] = []
    lab.enter("A0", "A")
    lab.end("A0")
    lab.wait(IDLE_SECONDS)
    lab.enter("memory", "B", Rank.BEHIND, stops=stopped)
    lab.enter("summary", "B", Rank.BEHIND, stops=stopped)
    lab.enter("A1", "A")
    assert stopped == ["memory", "summary"] and lab.running == ["A1"]


def test_it_stops_nothing_in_vain(lab: QueueLab) -> None:
    stopped: list[str] = []
    lab.enter("B1", "B")
    lab.enter("memory", "B", Rank.BEHIND, stops=stopped)
    lab.enter("A1", "A")
    assert not stopped and lab.running == ["B1", "memory"]
    lab.enter("late", "B", Rank.BEHIND)
    assert "late" not in lab.running, "it would keep the answer waiting"
    lab.end("B1")
    assert stopped == ["memory"] and lab.running == ["A1"]


def test_the_model_stays_between_two_calls_of_one_answer(lab: QueueLab) -> None:
    """The next one comes within milliseconds; if it does not, others need not wait long."""
    message = RequestContext()
    lab.enter("draft", "A", request=message)
    lab.enter("B1", "B")
    lab.end("draft")
    assert lab.running == []
    lab.enter("answer", "A", request=message)
    assert lab.running == ["answer"]
    lab.end("answer")
    lab.wait(NEXT_CALL_SECONDS + 0.01)
    assert lab.running == ["B1"]
    lab.end("B1")
    lab.enter("A2", "A")
    assert lab.running == ["A2"], "the message is not expected to call B"


def test_the_model_is_free_as_soon_as_the_answer_is_complete(lab: QueueLab) -> None:
    message = RequestContext()
    lab.enter("answer", "A", request=message)
    lab.enter("B1", "B")
    message.answered_at = lab.now
    lab.end("answer")
    assert lab.running == ["B1"]


def test_who_leaves_while_it_waits_holds_nobody_up(lab: QueueLab) -> None:
    lab.enter("A1", "A")
    lab.enter("B1", "B")
    lab.enter("A2", "A", places=1)
    lab.end("B1")
    lab.end("A1", "A2")
    lab.enter("C1", "C")
    assert lab.running == ["C1"]


@pytest.mark.parametrize("seed", range(5))
def test_no_answer_waits_longer_than_its_patience_and_the_calls_of_one_model(lab: QueueLab, seed: int) -> None:
    """Two models, of which one is always asked for, and calls of up to 8 s."""
    chance, patience, longest, step = random.Random(seed), 10.0, 8.0, 0.5
    came: dict[str, float] = {}
    ends: dict[str, float] = {}
    waits: list[float] = []
    for number in range(400):
        for model in "A" if chance.random() < 0.8 else "B", "B" if chance.random() < 0.1 else "A":
            name = f"{model}{number}{len(came)}"
            came[name] = lab.now
            lab.enter(name, model, patience=patience)
        for name in lab.running:
            if name not in ends:
                ends[name] = lab.now + chance.uniform(1, longest)
                waits.append(lab.now - came[name])
        for name in [name for name, moment in ends.items() if name in lab.turns and moment <= lab.now]:
            lab.end(name)
        lab.wait(step)
    assert len(waits) > 700 and max(waits) <= patience + longest + 2 * step


# -- under load --------------------------------------------------------------------------------------------------------


def test_nothing_is_lost_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never too many calls on a server, one model at a time, and whoever waits leaves or runs."""
    # Work behind answers changes the model here without the rest that people leave it.
    monkeypatch.setattr(call_queue, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(call_queue, "NEXT_CALL_SECONDS", 0.0)
    queue, lock, chance = CallQueue(), threading.Lock(), random.Random(7)
    busy: Counter[str] = Counter()
    models: Counter[str] = Counter()
    problems: list[str] = []
    done: list[float] = []

    def call(server: str, model: str, places: int) -> str:
        with lock:
            busy[server] += 1
            models[model] += bool(model)
            if busy[server] > places or sum(count > 0 for count in models.values()) > 1:
                problems.append(f"{dict(busy)} {dict(models)}")
        time.sleep(0.0005)
        with lock:
            busy[server] -= 1
            models[model] -= bool(model)
        return "whole"

    def work(seed: float) -> None:
        mine = random.Random(seed)
        for _ in range(25):
            server, places = mine.choice([("x", 1), ("y", 2)])
            model = mine.choice(["", "A", "B"])
            rank = mine.choice([Rank.ANSWER, Rank.ANSWER, Rank.BEHIND, Rank.TASK])
            scope = CancelScope()
            request = RequestContext(answered_at=1.0 if rank is Rank.BEHIND else None)
            needs = Needs("E", None, server, places, "card" if model else "", model, 0.05)
            turn = Turn(queue, needs, rank, scope, request, yields=rank is Rank.BEHIND)
            if mine.random() < 0.2:
                threading.Timer(mine.random() * 0.02, scope.cancel).start()
            with contextlib.suppress(EarlyTerminationException):
                # A stopped call gives nothing, like a real one.
                turn.run(
                    lambda given, server=server, model=model, places=places: (  # type: ignore[misc]
                        "" if given is not None and given.cancelled else call(server, model, places)
                    )
                )
            request.answered_at = 1.0
        done.append(seed)

    threads = [threading.Thread(target=work, args=(chance.random(),), daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 16 and not problems and (queue.waiting, queue.running) == (0, 0)
