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
from Tests.patience import PATIENCE
from Tests.utilities.shortages import no_more_threads
from Tests.workflows.engine_lab import until

VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("VALUE", default="unset")


class PoolLab:
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
                gate.wait(PATIENCE)

        self.pool.start(target, name)
        assert until(lambda: len(self.workers) > begun)

    def rests(self, count: int) -> bool:
        return until(lambda: len(self.pool._idle) == count)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolLab]:
    lab = PoolLab()
    yield lab
    # Those that rest find it when they rest again.
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.01)


def test_one_after_the_other_is_the_work_of_one_thread(lab: PoolLab) -> None:
    for number in range(20):
        lab.work(name=f"work {number}")
        assert lab.rests(1)
    assert len(set(lab.workers)) == 1 and lab.names == [f"work {number}" for number in range(20)]
    assert until(lambda: lab.workers[0].name == IDLE_NAME) and lab.workers[0].daemon


def test_the_last_to_rest_is_the_first_to_work(lab: PoolLab) -> None:
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        lab.work(gate)
    first = list(lab.workers)
    assert len(set(first)) == 3
    for rested, number in enumerate((1, 2, 0)):
        gates[number].set()
        assert lab.rests(rested + 1)
    hold = threading.Event()
    for _ in range(3):
        lab.work(hold)
    hold.set()
    assert lab.workers[3:] == [first[0], first[2], first[1]]


def test_a_thread_that_rests_too_long_ends(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.05)
    lab.work()
    lab.workers[0].join(PATIENCE)
    assert not lab.workers[0].is_alive() and lab.rests(0)
    lab.work()
    assert lab.workers[1] is not lab.workers[0]


def test_no_work_is_lost_at_the_end_of_a_rest(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the thread is chosen before or after its time is up."""
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.001)
    for _ in range(300):
        lab.work()
    assert lab.rests(0)


def test_a_burst_finds_spare_threads(lab: PoolLab) -> None:
    """They are started by a thread that has just ended its work, not by the one that has more of it."""
    hold, first = threading.Event(), threading.Event()
    for number in range(BURST):
        lab.work(hold if number else first)
    assert lab.pool._idle == []
    first.set()
    assert lab.rests(SPARES + 1)
    for _ in range(SPARES + 1):
        lab.work(hold)
    hold.set()
    assert lab.rests(BURST + SPARES) and len(set(lab.workers)) == BURST + SPARES


def test_single_requests_need_no_spare_threads(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_SECONDS", 0.01)
    for _ in range(2):
        gate = threading.Event()
        for _ in range(BURST - 1):
            lab.work(gate)
        gate.set()
        assert until(lambda: not any(worker.is_alive() for worker in lab.workers))
    assert len(set(lab.workers)) == 2 * (BURST - 1) and lab.pool._idle == []


def test_work_begins_in_an_empty_context(lab: PoolLab) -> None:
    seen: list[str] = []

    def work() -> None:
        seen.append(VALUE.get())
        VALUE.set("left behind")

    VALUE.set("of the caller")
    for number in range(2):
        lab.pool.start(work, "work")
        assert until(lambda: len(seen) > number) and lab.rests(1)  # noqa: B023
    assert seen == ["unset", "unset"]


def test_a_thread_that_rests_keeps_nothing_alive(lab: PoolLab) -> None:
    class Work:
        def __call__(self) -> None:
            pass

    work = Work()
    gone = weakref.ref(work)
    lab.pool.start(work, "work")
    assert lab.rests(1)
    del work
    gc.collect()
    assert gone() is None


def test_an_error_is_shown_and_its_thread_goes_on(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)

    def fail() -> None:
        raise KeyError("mine")

    lab.pool.start(fail, "work")
    assert lab.rests(1)
    assert [(args.exc_type, args.thread and args.thread.daemon) for args in shown] == [(KeyError, True)]
    lab.work()
    assert lab.rests(1)


def test_the_system_refuses_another_thread(lab: PoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    lab.work(gate)
    with monkeypatch.context() as patch:
        no_more_threads(patch, "one more")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            lab.pool.start(lambda: None, "one more")
        gate.set()
        assert lab.rests(1)
        lab.work(name="one more")
    assert len(set(lab.workers)) == 1
