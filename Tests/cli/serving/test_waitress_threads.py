"""The threads that work on Waitress's tasks: how many, and that all work gets done."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from waitress import wasyncore

from Middleware.cli.program import StartError
from Middleware.cli.serving.limits import CONNECTIONS, WORKER_THREADS
from Middleware.cli.serving.serve_waitress import MORE_THREADS, Dispatcher, allowed_threads, make_server
from Middleware.models.process import Process
from Middleware.utilities import daemon_threads
from Middleware.utilities.daemon_threads import DaemonThreadPool
from Tests.patience import PATIENCE
from Tests.utilities.shortages import no_more_threads
from Tests.workflows.engine_lab import until


class Task:
    """Notes its number once it has begun, and works until ``gate`` lets it end."""

    def __init__(self, begun: list[int], number: int = 0, gate: threading.Event | None = None) -> None:
        self._begun, self._number, self._gate = begun, number, gate
        self.cancelled = False
        self.thread: threading.Thread | None = None

    def service(self) -> None:
        self.thread = threading.current_thread()
        self._begun.append(self._number)
        if self._gate is not None:
            self._gate.wait(PATIENCE)

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonThreadPool]:
    """The thread pool of a process of its own, without spares."""
    own = Process()
    monkeypatch.setattr(daemon_threads, "SPARES", 0)
    monkeypatch.setattr("Middleware.models.process._process", own)
    yield own.one(DaemonThreadPool)


def rest(pool: DaemonThreadPool, count: int) -> bool:
    return until(lambda: len(pool._idle) == count)


def test_one_after_the_other_is_the_work_of_one_thread(pool: DaemonThreadPool) -> None:
    dispatcher, begun = Dispatcher(5), list[int]()
    tasks = [Task(begun, number) for number in range(20)]
    for task in tasks:
        dispatcher.add_task(task)
        assert rest(pool, 1)
    assert begun == list(range(20)) and len({task.thread for task in tasks}) == 1


def test_as_many_at_a_time_as_there_are_threads(pool: DaemonThreadPool, caplog: pytest.LogCaptureFixture) -> None:
    """The others follow in order; the number of those that wait is logged."""
    dispatcher, begun, gate = Dispatcher(5), list[int](), threading.Event()
    for number in range(12):
        dispatcher.add_task(Task(begun, number, gate))
        assert until(lambda number=number: len(begun) == min(number + 1, 5))  # type: ignore[misc]
    assert [record.getMessage() for record in caplog.records] == [f"Task queue depth is {n}" for n in range(1, 8)]
    gate.set()
    assert rest(pool, 5) and sorted(begun) == list(range(12)) and begun[:5] == list(range(5))


def test_those_that_wait_follow_in_order(pool: DaemonThreadPool) -> None:
    dispatcher, begun, gate = Dispatcher(1), list[int](), threading.Event()
    for number in range(8):
        dispatcher.add_task(Task(begun, number, gate))
    gate.set()
    assert rest(pool, 1) and begun == list(range(8))


def test_no_thread_before_the_first_request(pool: DaemonThreadPool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        channels: dict[int, Any] = {}
        before = threading.active_count()
        server = make_server(lambda environ, start_response: [], listener, channels)
        try:
            assert isinstance(server.task_dispatcher, Dispatcher)
            assert server.task_dispatcher._free in (WORKER_THREADS, CONNECTIONS) and threading.active_count() <= before
        finally:
            wasyncore.close_all(channels)


def test_a_task_that_fails_costs_no_thread(pool: DaemonThreadPool, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Task):
        def service(self) -> None:
            raise KeyError("mine")

    dispatcher, begun = Dispatcher(1), list[int]()
    for _ in range(3):
        dispatcher.add_task(Failing(begun))
        assert rest(pool, 1)
    dispatcher.add_task(Task(begun, 7))
    assert rest(pool, 1) and begun == [7]
    assert caplog.text.count("Exception when servicing") == 3


def test_the_end_cancels_the_tasks_that_wait(pool: DaemonThreadPool) -> None:
    dispatcher, begun, gate = Dispatcher(1), list[int](), threading.Event()
    tasks = [Task(begun, number, gate) for number in range(3)]
    for task in tasks:
        dispatcher.add_task(task)
    dispatcher.shutdown()
    gate.set()
    assert rest(pool, 1) and begun == [0] and [task.cancelled for task in tasks] == [False, True, True]


# -- too few threads ---------------------------------------------------------------------------------------------------


def test_the_system_refuses_a_thread(
    pool: DaemonThreadPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request waits for one that ends; only if there is none, its connection is closed."""
    dispatcher, begun, gate = Dispatcher(5), list[int](), threading.Event()
    dispatcher.add_task(Task(begun, 0, gate))
    with monkeypatch.context() as patch:
        no_more_threads(patch, "waitress")
        later = [Task(begun, number, gate) for number in (1, 2)]
        for task in later:
            dispatcher.add_task(task)
        gate.set()
        assert rest(pool, 1) and begun == [0, 1, 2] and not any(task.cancelled for task in later)
        pool._idle.clear()
        alone = Task(begun, 3)
        dispatcher.add_task(alone)
        assert alone.cancelled and begun == [0, 1, 2]
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    advice = f". {MORE_THREADS}"
    waits = f"A request waits until another ends: can't start new thread{advice}"
    assert messages == [waits, waits, f"A request is given up: can't start new thread{advice}"]
    dispatcher.add_task(Task(begun, 4))
    assert rest(pool, 1) and begun == [0, 1, 2, 4] and dispatcher._free == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_a_limit_on_address_space(pool: DaemonThreadPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the stacks have space is tried without threads: without memory one may never report its start."""
    import resource

    bytes_of = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_STACK: 1 << 20}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (bytes_of[kind], resource.RLIM_INFINITY))
    assert allowed_threads() == CONNECTIONS
    bytes_of[resource.RLIMIT_AS] = 1 << 40
    assert allowed_threads() == WORKER_THREADS
    bytes_of[resource.RLIMIT_STACK] = resource.RLIM_INFINITY
    assert allowed_threads() == WORKER_THREADS
    bytes_of[resource.RLIMIT_STACK] = 1 << 46
    with pytest.raises(StartError, match="too small for the stacks of 512 threads, 34359738368 MB in all"):
        allowed_threads()
    assert pool._idle == []
