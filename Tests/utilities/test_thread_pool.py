"""The pool of daemon threads that are kept for the next piece of work."""
from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from Middleware.utilities import daemon_threads
from Middleware.utilities.daemon_threads import BURST, IDLE_NAME, SPARES, DaemonThreadPool
from Tests.utilities.shortages import no_more_threads
from Tests.workflows.engine_lab import until

VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("VALUE", default="unset")


class Crew:
    """Work for a pool of its own, and who did it."""

    def __init__(self) -> None:
        self.pool = DaemonThreadPool()
        self.workers: list[threading.Thread] = []
        self.names: list[str] = []

    def work(self, gate: threading.Event | None = None, name: str = "work") -> None:
        """Start a piece of work, and wait until it has begun."""
        begun = len(self.workers)

        def target() -> None:
            self.names.append(threading.current_thread().name)
            self.workers.append(threading.current_thread())
            if gate is not None:
                gate.wait(5)

        self.pool.start(target, name)
        assert until(lambda: len(self.workers) > begun)

    def rests(self, count: int) -> bool:
        return until(lambda: len(self.pool._idle) == count)


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    crew = Crew()
    yield crew
    # Those that rest find it when they rest again.
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.01)


def test_one_after_the_other_is_the_work_of_one_thread(crew: Crew) -> None:
    for number in range(20):
        crew.work(name=f"work {number}")
        assert crew.rests(1)
    assert len(set(crew.workers)) == 1 and crew.names == [f"work {number}" for number in range(20)]
    assert until(lambda: crew.workers[0].name == IDLE_NAME) and crew.workers[0].daemon


def test_the_last_to_rest_is_the_first_to_work(crew: Crew) -> None:
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        crew.work(gate)
    first = list(crew.workers)
    assert len(set(first)) == 3
    for rested, number in enumerate((1, 2, 0)):
        gates[number].set()
        assert crew.rests(rested + 1)
    hold = threading.Event()
    for _ in range(3):
        crew.work(hold)
    hold.set()
    assert crew.workers[3:] == [first[0], first[2], first[1]]


def test_a_thread_that_rests_too_long_ends(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.05)
    crew.work()
    crew.workers[0].join(5)
    assert not crew.workers[0].is_alive() and crew.rests(0)
    crew.work()
    assert crew.workers[1] is not crew.workers[0]


def test_no_work_is_lost_at_the_end_of_a_rest(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the thread is chosen before or after its time is up."""
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.001)
    for _ in range(300):
        crew.work()
    assert crew.rests(0)


def test_a_burst_finds_spare_threads(crew: Crew) -> None:
    """They are started by a thread that has just ended its work, not by the one that has more of it."""
    hold, first = threading.Event(), threading.Event()
    for number in range(BURST):
        crew.work(hold if number else first)
    assert crew.pool._idle == []
    first.set()
    assert crew.rests(SPARES + 1)
    for _ in range(SPARES + 1):
        crew.work(hold)
    hold.set()
    assert crew.rests(BURST + SPARES) and len(set(crew.workers)) == BURST + SPARES


def test_single_requests_need_no_spare_threads(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.01)
    for _ in range(2):
        gate = threading.Event()
        for _ in range(BURST - 1):
            crew.work(gate)
        gate.set()
        assert until(lambda: not any(worker.is_alive() for worker in crew.workers))
    assert len(set(crew.workers)) == 2 * (BURST - 1) and crew.pool._idle == []


def test_work_begins_in_an_empty_context(crew: Crew) -> None:
    seen: list[str] = []

    def work() -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")

    VALUE.set("of the caller")
    for number in range(2):
        crew.pool.start(work, "work")
        assert until(lambda: len(seen) > number) and crew.rests(1)  # noqa: B023
    assert seen == ["unset", "unset"]


def test_a_thread_that_rests_keeps_nothing_alive(crew: Crew) -> None:
    class Work:
        def __call__(self) -> None:
            pass

    work = Work()
    gone = weakref.ref(work)
    crew.pool.start(work, "work")
    assert crew.rests(1)
    del work
    gc.collect()
    assert gone() is None


def test_an_error_is_shown_and_its_thread_goes_on(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)

    def fail() -> None:
        raise KeyError("mine")

    crew.pool.start(fail, "work")
    assert crew.rests(1)
    assert [(args.exc_type, args.thread and args.thread.daemon) for args in shown] == [(KeyError, True)]
    crew.work()
    assert crew.rests(1)


def test_the_system_refuses_another_thread(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    crew.work(gate)
    with monkeypatch.context() as patch:
        no_more_threads(patch, "one more")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            crew.pool.start(lambda: None, "one more")
        gate.set()
        assert crew.rests(1)
        crew.work(name="one more")
    assert len(set(crew.workers)) == 1
