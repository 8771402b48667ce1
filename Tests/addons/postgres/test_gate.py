"""The gate of all workers: exactly so many at a time, in the order of arrival, whatever happens to workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from Middleware.addons.postgres import gate as module
from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.gate import SharedGate, SharedWaiter
from Middleware.models.cancel_scope import CancelScope
from Tests.postgres_lab import eventually, open_database
from Tests.workflows.engine_lab import until

NUMBERS = 1464421453


class Worker:
    """A worker with the lock of its number, which it loses when it is killed."""

    def __init__(self, url: str, number: int, size: int) -> None:
        self.number = number
        self.database = open_database(url)
        self.session = self.database.connect()
        self.session.execute("SELECT pg_advisory_lock(%s, %s)", [NUMBERS, number])
        self.gate = SharedGate(self.database, lambda: self.number, size)

    def die(self) -> None:
        self.session.close()
        self.database.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)


@pytest.fixture
def start(database: Database, database_url: str) -> Iterator[Callable[..., Worker]]:
    """Starts the next worker."""
    workers: list[Worker] = []

    def start(size: int) -> Worker:
        workers.append(Worker(database_url, len(workers) + 1, size))
        # As when it has taken its number.
        workers[-1].gate.renew()
        return workers[-1]

    yield start
    for worker in workers:
        for waiter in list(worker.gate._waiters):
            waiter.leave()
        worker.die()


def has(waiter: SharedWaiter) -> bool:
    return waiter.wait(0)


def gets(waiter: SharedWaiter) -> bool:
    return waiter.wait(60)


def tickets(database: Database) -> list[int]:
    return [number for (number,) in database.read("SELECT worker FROM wilmer.gate ORDER BY id")]


def test_slots_are_those_of_all_workers(start: Callable[..., Worker]) -> None:
    one, two = start(2).gate, start(2).gate
    first, second = one.enqueue(), two.enqueue()
    assert has(first) and has(second)
    third, fourth = one.enqueue(), two.enqueue()
    assert not has(third) and not has(fourth)
    assert (one.size, one.taken, one.waiting, two.taken, two.waiting) == (2, 1, 1, 1, 1)
    second.leave()
    assert gets(third) and not has(fourth)
    third.leave()
    assert gets(fourth)
    for waiter in (first, fourth):
        waiter.leave()
    assert has(one.enqueue()) or until(lambda: two.taken == 0, 60)


def test_a_slot_comes_with_the_notification(start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 600)
    one, two = start(1).gate, start(1).gate
    # The start has left word to look, which the first waiter may read when the slot is free.
    two._noticed = False
    first, second = one.enqueue(), two.enqueue()
    first.leave()
    # The listener would say so; until then nobody looks.
    assert until(lambda: not one._waiters and len(tickets(one._database)) == 1, 60) and not has(second)
    two.notified()
    assert gets(second)


def test_the_order_of_arrival_counts_on_all_workers(start: Callable[..., Worker]) -> None:
    gates = [start(1).gate, start(1).gate, start(1).gate]
    waiters = [gates[number % 3].enqueue() for number in (0, 2, 1, 1, 0, 2, 1)]
    for position, waiter in enumerate(waiters):
        assert gets(waiter) and not any(map(has, waiters[position + 1 :]))
        waiter.leave()


def test_never_more_than_allowed(start: Callable[..., Worker]) -> None:
    gates = [start(2).gate, start(2).gate, start(2).gate]
    lock = threading.Lock()
    running, most, served = 0, 0, 0

    def request(gate: SharedGate) -> None:
        nonlocal running, most, served
        waiter = gate.enqueue()
        assert gets(waiter)
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
            served += 1
        waiter.leave()
        for other in gates:
            other.notified()

    threads = [threading.Thread(target=request, args=(gates[number % 3],)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (served, most) == (12, 2)


def test_one_that_gives_up_is_passed_over(start: Callable[..., Worker]) -> None:
    one, two = start(1).gate, start(1).gate
    first, second, third = one.enqueue(), two.enqueue(), one.enqueue()
    second.leave()
    second.leave()
    first.leave()
    assert gets(third)


def test_the_slots_of_a_killed_worker_serve_others(start: Callable[..., Worker], database: Database) -> None:
    one, two = start(2), start(2)
    assert has(one.gate.enqueue()) and has(one.gate.enqueue())
    waiting = two.gate.enqueue()
    assert not waiting.wait(0.5) and tickets(database) == [1, 1, 2]
    one.die()
    assert gets(waiting) and tickets(database) == [2]


def test_front_ends_own_requests_wait_behind_all_others(start: Callable[..., Worker]) -> None:
    one, two = start(1).gate, start(1).gate
    first, task, later_task = one.enqueue(), two.enqueue(rank=1), two.enqueue(rank=1)
    chat = one.enqueue()
    first.leave()
    assert gets(chat) and not has(task)
    chat.leave()
    assert gets(task) and not has(later_task)
    task.leave()
    assert gets(later_task)


def test_a_slot_that_is_free_goes_to_a_task_at_once(start: Callable[..., Worker]) -> None:
    assert has(start(1).gate.enqueue(rank=1))


def test_a_holder_gives_way_to_a_chat_of_its_worker(start: Callable[..., Worker]) -> None:
    gate = start(1).gate
    task, stopped = gate.enqueue(rank=1), list[str]()
    task.offer(lambda: stopped.append("first"))
    gate.enqueue(rank=1)
    assert stopped == []
    chat = gate.enqueue()
    assert stopped == ["first"]
    task.offer(lambda: stopped.append("second"))
    assert stopped == ["first", "second"], "at once, as the chat still waits"
    task.leave()
    assert gets(chat)
    chat.offer(lambda: stopped.append("third"))
    chat.withdraw(CancelScope())
    gate.enqueue()
    assert stopped == ["first", "second"]


def test_who_has_waited_for_very_long_takes_a_ticket_like_a_chat(start: Callable[..., Worker]) -> None:
    one, two = start(1).gate, start(1).gate
    first, task = one.enqueue(), two.enqueue(rank=1)
    task.rank = 0
    assert until(lambda: task.ticket is not None, 60)
    chat = one.enqueue()
    first.leave()
    assert gets(task) and not has(chat)


# -- a database that fails ---------------------------------------------------------------------------------------------


def test_without_the_database_each_worker_has_its_share(start: Callable[..., Worker]) -> None:
    one = start(5)
    start(5)
    one.gate.beat()
    running = one.gate.enqueue()
    one.database.close()
    waiters = [one.gate.enqueue() for _ in range(3)]
    assert has(running) and list(map(has, waiters)) == [True, False, False]
    running.leave()
    assert gets(waiters[1]) and not has(waiters[2])
    waiters[2].leave()
    waiters[0].leave()
    assert has(one.gate.enqueue())


def test_one_that_waits_when_the_database_goes_down_gets_its_share(start: Callable[..., Worker]) -> None:
    one, two = start(1), start(1)
    first, second = one.gate.enqueue(), two.gate.enqueue()
    assert has(first) and not has(second)
    two.database.close()
    assert gets(second)


def test_a_worker_with_more_slots_than_its_share_serves_nobody_else(start: Callable[..., Worker]) -> None:
    one = start(1)
    first = one.gate.enqueue()
    one.database.close()
    second = one.gate.enqueue()
    assert not second.wait(0.5)
    first.leave()
    assert gets(second)


def test_lost_tickets_are_taken_anew_those_of_running_requests_first(
    start: Callable[..., Worker], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of the database, which empties the table."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 600)
    one, two = start(2).gate, start(2).gate
    first, second = one.enqueue(), two.enqueue()
    waiting = [one.enqueue(), two.enqueue()]
    database.write("DELETE FROM wilmer.gate")
    two.renew()
    one.renew()
    # Those that wait come later, so that they cannot get in front of a running request of another worker.
    assert until(lambda: sorted(tickets(database)) == [1, 2], 60)
    assert not any(waiter.wait(0.5) for waiter in waiting)
    for gate in (one, two):
        gate._enter_from = 0.0
    assert until(lambda: sorted(tickets(database)) == [1, 1, 2, 2], 60)
    assert not any(waiter.wait(0.5) for waiter in waiting)
    for waiter in (first, second):
        waiter.leave()
    assert all(map(gets, waiting))
    for waiter in waiting:
        waiter.leave()
    assert until(lambda: tickets(database) == [], 60)


def test_a_lost_ticket_is_noticed(start: Callable[..., Worker], database: Database) -> None:
    gate = start(1).gate
    first, second = gate.enqueue(), gate.enqueue()
    database.write("DELETE FROM wilmer.gate")
    assert until(lambda: tickets(database) == [1, 1], 60) and not has(second)
    first.leave()
    assert gets(second)


def test_tickets_that_belong_to_nobody_are_given_back(
    start: Callable[..., Worker], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNT_SECONDS", 0)
    gate = start(2).gate
    gate.enqueue()
    database.write("INSERT INTO wilmer.gate (worker) VALUES (1), (2)")
    gate.beat()
    assert tickets(database) == [1, 1, 2]
    gate.beat()
    assert tickets(database) == [1, 2]


def test_a_worker_with_a_new_number_takes_its_tickets_along(start: Callable[..., Worker], database: Database) -> None:
    one = start(2)
    first, second, third = one.gate.enqueue(), one.gate.enqueue(), one.gate.enqueue()
    database.write("INSERT INTO wilmer.gate (worker) VALUES (7)")
    one.session.execute("SELECT pg_advisory_lock(%s, 7)", [NUMBERS])
    one.number = 7
    one.gate.renew()
    # What another worker of this number had left is gone.
    assert until(lambda: tickets(database) == [7, 7, 7], 60)
    first.leave()
    assert gets(third)
    second.leave()
    third.leave()
    assert until(lambda: tickets(database) == [], 60)


def test_requests_that_ended_while_the_database_was_away_hold_nothing(
    start: Callable[..., Worker], database: Database
) -> None:
    one = start(1)
    first = one.gate.enqueue()
    working, one.gate._database = one.gate._database, Database("postgresql:///nowhere")
    first.leave()
    second = one.gate.enqueue()
    assert gets(second)
    one.gate._database = working
    one.gate.renew()
    assert len(tickets(database)) == 1
    second.leave()
    assert until(lambda: tickets(database) == [], 60)


def test_dead_rows_are_removed_now_and_then(
    start: Callable[..., Worker], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody counts over them while all others wait."""
    monkeypatch.setattr(module, "TIDY_TICKETS", 3)
    gate = start(2).gate

    def vacuums() -> int:
        [(count,)] = database.read("SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'gate'")
        return int(count)

    for _ in range(3):
        gate.beat()
        gate.enqueue().leave()
        eventually(lambda: not tickets(database))
    assert vacuums() == 0
    for _ in range(2):
        gate.beat()
        eventually(lambda: vacuums() == 1)
