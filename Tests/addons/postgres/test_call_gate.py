"""The gate of all workers for single calls of LLMs: ``--concurrency-level endpoint``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from Middleware.addons.postgres import gate as module
from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.gate import SharedGate
from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.call_queue import CallQueue, Needs, Rank, Turn
from Middleware.models.cancel_scope import CancelScope
from Tests.workflows.engine_lab import until


class Queue(CallQueue):
    """The queue of one of several workers."""

    def __init__(self, database: Database, number: int, size: int) -> None:
        super().__init__()
        self.gate = SharedGate(database, lambda: number, size)
        # It is alive.
        self.session = database.connect()
        self.session.execute("SELECT pg_advisory_lock(1464421453, %s)", [number])

    def turn(self, scope: CancelScope | None = None, rank: Rank = Rank.ANSWER) -> Turn:
        return Turn(self, Needs("Main", self.gate, "http://server", 0), rank, scope)


@pytest.fixture
def queues(
    database: Database, other: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], list[Queue]]]:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    made: list[Queue] = []

    def make(size: int) -> list[Queue]:
        made.extend([Queue(database, 1, size), Queue(other, 2, size)])
        return made

    yield make
    for queue in made:
        queue.session.close()


def tickets(queue: Queue) -> int:
    return len(queue.gate._database.read("SELECT id FROM wilmer.gate"))


class Calls:
    """Calls on threads, which run until they are let go."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.running = self.most = 0
        self._ends: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self.threads: list[threading.Thread] = []

    def start(self, name: str, turn: Turn) -> None:
        self._ends[name] = threading.Event()
        self.threads.append(threading.Thread(target=self._call, args=(name, turn), daemon=True))
        self.threads[-1].start()

    def _call(self, name: str, turn: Turn) -> None:
        with contextlib.suppress(EarlyTerminationException):
            turn.run(lambda scope: self._run(name))

    def _run(self, name: str) -> None:
        with self._lock:
            self.began.append(name)
            self.running += 1
            self.most = max(self.most, self.running)
        assert self._ends[name].wait(60)
        with self._lock:
            self.running -= 1

    def end(self, name: str) -> None:
        self._ends[name].set()

    def runs(self, *names: str) -> bool:
        return until(lambda: self.began == list(names), 60)


def test_calls_of_all_workers_go_in_the_order_of_arrival(queues: Callable[[int], list[Queue]]) -> None:
    one, two = queues(1)
    calls = Calls()
    for count, (name, queue) in enumerate((("a", one), ("b", two), ("c", one), ("d", one), ("e", two)), 1):
        calls.start(name, queue.turn())
        assert until(lambda count=count: tickets(one) == count, 60)
    for position, name in enumerate("abcde"):
        assert calls.runs(*"abcde"[: position + 1])
        calls.end(name)
    for thread in calls.threads:
        thread.join(60)
    assert calls.most == 1 and until(lambda: tickets(one) == 0, 60)


def test_never_more_than_allowed(queues: Callable[[int], list[Queue]]) -> None:
    workers = queues(2)
    lock = threading.Lock()
    running, most, done = 0, 0, 0

    def call(scope: CancelScope | None) -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
            done += 1

    threads = [threading.Thread(target=workers[number % 2].turn().run, args=(call,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (done, most) == (12, 2) and until(lambda: tickets(workers[0]) == 0, 60)


def test_a_call_that_is_cancelled_gives_its_place_up(queues: Callable[[int], list[Queue]]) -> None:
    one, two = queues(1)
    calls, scope = Calls(), CancelScope()
    calls.start("a", one.turn())
    assert calls.runs("a")
    calls.start("b", two.turn(scope))
    assert until(lambda: tickets(one) == 2, 60)
    calls.start("c", one.turn())
    assert until(lambda: tickets(one) == 3, 60)
    scope.cancel()
    assert until(lambda: tickets(one) == 2, 60)
    calls.end("a")
    assert calls.runs("a", "c")
    calls.end("c")


def test_answers_of_all_workers_go_first(queues: Callable[[int], list[Queue]]) -> None:
    one, two = queues(1)
    calls = Calls()
    calls.start("a", one.turn())
    assert calls.runs("a")
    calls.start("behind", one.turn(rank=Rank.BEHIND))
    assert until(lambda: one.gate.waiting == 1, 60)
    calls.start("b", one.turn())
    assert until(lambda: tickets(one) == 2, 60)
    calls.start("c", two.turn())
    assert until(lambda: tickets(one) == 3, 60), "that of the call behind answers is taken when a slot is free"
    for position, name in enumerate(("a", "b", "c", "behind")):
        assert calls.runs(*("a", "b", "c", "behind")[: position + 1])
        calls.end(name)
