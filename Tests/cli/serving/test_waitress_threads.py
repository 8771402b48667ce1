"""Waitress's worker threads: who works, and that all work gets done."""
from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from waitress import wasyncore

from Middleware.cli.serving.limits import WORKER_THREADS
from Middleware.cli.serving.serve_waitress import Dispatcher, LatestFirst, make_server
from Tests.workflows.engine_lab import until


class Task:
    """Notes the thread that works on it, once ``gate`` lets it."""

    def __init__(self, workers: list[str], gate: threading.Event | None = None) -> None:
        self._workers, self._gate = workers, gate

    def service(self) -> None:
        self._workers.append(threading.current_thread().name)
        if self._gate is not None:
            self._gate.wait(5)

    def cancel(self) -> None:
        self._workers.append("cancelled")


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(5)
    assert until(lambda: resting(dispatcher) == 5)
    yield dispatcher
    dispatcher.shutdown()
    assert dispatcher.threads == set()


def resting(dispatcher: Any) -> int:
    return len(dispatcher.queue_cv._waiting)


def comes_to(count: int, number: Callable[[], int]) -> bool:
    return until(lambda: number() == count)


def put_to_work(dispatcher: Dispatcher, gates: Sequence[threading.Event]) -> list[str]:
    """Add a task for each gate, each once the one before it has begun; returns who works on them, in order."""
    workers: list[str] = []
    for number, gate in enumerate(gates):
        dispatcher.add_task(Task(workers, gate))
        assert comes_to(number + 1, lambda: len(workers))
    return workers


def test_one_after_the_other_is_the_work_of_one_thread(dispatcher: Dispatcher) -> None:
    workers: list[str] = []
    for number in range(20):
        dispatcher.add_task(Task(workers))
        assert comes_to(number + 1, lambda: len(workers)) and comes_to(5, lambda: resting(dispatcher))
    assert len(set(workers)) == 1


def test_as_many_at_a_time_as_there_are_threads(dispatcher: Dispatcher) -> None:
    workers: list[str] = []
    gate = threading.Event()
    for _ in range(12):
        dispatcher.add_task(Task(workers, gate))
    assert until(lambda: len(workers) == 5)
    assert len(set(workers)) == 5 and resting(dispatcher) == 0
    gate.set()
    assert until(lambda: len(workers) == 12 and resting(dispatcher) == 5)


def test_the_last_to_rest_is_the_first_to_work(dispatcher: Dispatcher) -> None:
    gates = [threading.Event() for _ in range(3)]
    workers = put_to_work(dispatcher, gates)
    for rested, number in enumerate((1, 2, 0)):
        gates[number].set()
        assert comes_to(3 + rested, lambda: resting(dispatcher))
    hold = threading.Event()
    again = put_to_work(dispatcher, [hold] * 3)
    hold.set()
    assert again == [workers[0], workers[2], workers[1]]


def test_the_server_has_these_threads() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        channels: dict[int, Any] = {}
        server = make_server(lambda environ, start_response: [], listener, channels)
        try:
            assert isinstance(server.task_dispatcher, Dispatcher)
            assert len(server.task_dispatcher.threads) == WORKER_THREADS
        finally:
            server.task_dispatcher.shutdown()
            wasyncore.close_all(channels)


def test_nobody_waits() -> None:
    """A call that finds no thread waiting is not kept for later."""
    lock = threading.Lock()
    condition = LatestFirst(lock)
    woken: list[int] = []
    with lock:
        condition.notify()
        condition.notify_all()

    def wait(number: int) -> None:
        with lock:
            condition.wait()
            woken.append(number)

    threads = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(3)]
    for number, thread in enumerate(threads):
        thread.start()
        assert comes_to(number + 1, lambda: len(condition._waiting))
    assert woken == []
    with lock:
        condition.notify()
    threads[2].join(5)
    assert woken == [2]
    with lock:
        condition.notify_all()
    for thread in threads:
        thread.join(5)
    assert sorted(woken) == [0, 1, 2]


def test_the_first_request_finds_threads_that_rest() -> None:
    """Waitress takes threads that have not yet begun for busy ones, and would warn of a queue."""
    for _ in range(20):
        dispatcher = Dispatcher(8)
        try:
            assert resting(dispatcher) == 8
        finally:
            dispatcher.shutdown()
