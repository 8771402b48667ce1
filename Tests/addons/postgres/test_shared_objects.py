"""Two workers as their launchers make them: each with its number, its session and a listener."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.gate import SharedGate
from Middleware.addons.postgres.listener import Listener
from Middleware.addons.postgres.session import WorkerSession
from Middleware.addons.postgres.shared_objects import install
from Middleware.common import instance_global_variables as instance
from Middleware.models import process as process_module
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import Process
from Middleware.services.cancellation_service import CancellationService, get_cancellation_service
from Middleware.services.idempotency_service import get_idempotency_service
from Middleware.services.locking_service import get_locking_service
from Tests.workflows.engine_lab import until


class Worker:
    """What would be a process. ``service`` and ``gate`` belong to it."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch, concurrency: int = 2) -> None:
        monkeypatch.setattr(process_module, "_process", Process())
        monkeypatch.setattr(instance, "USERS", ["ann"])
        self.session, self.listener = WorkerSession(database), Listener(database)
        install(database, self.session, self.listener, concurrency, {}.get)
        self.session.open()
        self.listener.start()
        self.service: CancellationService = get_cancellation_service()
        self.gate = instance.get_request_semaphore()
        self.idempotency, self.locks = get_idempotency_service(), get_locking_service()

    def close(self) -> None:
        self.listener.stop()
        self.session.close()


@pytest.fixture
def workers(database: Database, other: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Worker]]:
    made = [Worker(database, monkeypatch), Worker(other, monkeypatch)]
    yield made
    for worker in made:
        worker.close()


def test_a_stop_reaches_the_worker_that_has_the_request(workers: list[Worker]) -> None:
    """Sixty times. The budget of 250 ms is for the benchmark: a busy machine may be slower."""
    one, two = workers
    seconds = []
    for number in range(60):
        scope = CancelScope()
        two.service.adopt(f"r {number}", scope)
        began = time.monotonic()
        one.service.request_cancellation(f"r {number}")
        assert scope.wait(60)
        seconds.append(time.monotonic() - began)
    print(f"median {sorted(seconds)[30] * 1000:.1f} ms, worst {max(seconds) * 1000:.1f} ms")


def test_a_retry_is_known_to_both(workers: list[Worker]) -> None:
    one, two = workers
    one.idempotency.register("k", "r 1")
    assert two.idempotency.register("k", "r 2") == "r 1"


def test_locks_are_those_of_both(workers: list[Worker]) -> None:
    one, two = workers
    one.locks.session_id, two.locks.session_id = "one", "two"
    assert one.locks.acquire("gate", "run 1", "ann") and not two.locks.acquire("gate", "run 2", "ann")
    one.locks.release("run 1")
    assert two.locks.acquire("gate", "run 2", "ann")
    two.locks.release("run 2")


def test_a_free_slot_is_heard_of(workers: list[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    from Middleware.addons.postgres import gate as module

    monkeypatch.setattr(module, "LOOK_SECONDS", 600)
    one, two = workers[0].gate, workers[1].gate
    assert isinstance(one, SharedGate) and isinstance(two, SharedGate)
    held = [one.enqueue(), one.enqueue()]
    waiting = two.enqueue()
    assert not waiting.wait(0.3)
    held[0].leave()
    assert waiting.wait(60)
    waiting.leave()
    held[1].leave()
    assert until(lambda: two._database.read("SELECT id FROM wilmer.gate") == [], 60)


def test_without_a_limit_there_is_no_gate(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(database, monkeypatch, concurrency=0)
    assert worker.gate is None
    worker.close()


def test_what_a_killed_worker_of_the_same_number_has_left_is_gone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its tickets would seem to be those of a living worker, and be in the way for ever."""
    database.write("INSERT INTO wilmer.gate (worker) VALUES (1), (1)")
    worker = Worker(database, monkeypatch)
    assert worker.session.number == 1 and isinstance(worker.gate, SharedGate)
    waiter = worker.gate.enqueue()
    assert waiter.wait(0) and database.read("SELECT worker FROM wilmer.gate") == [(1,)]
    waiter.leave()
    assert until(lambda: database.read("SELECT worker FROM wilmer.gate") == [], 60)
    worker.close()
