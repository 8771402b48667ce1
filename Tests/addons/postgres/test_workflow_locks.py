"""Workflow locks in a real database, of several workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.workflow_locks import LOCKS, SharedLockingService
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.services.locking_service import LockingService
from Tests.workflows.engine_lab import until


def worker(database: Database, session: str) -> LockingService:
    service = SharedLockingService(database)
    service.session_id = session
    return service


@pytest.fixture
def one(database: Database) -> Iterator[LockingService]:
    service = worker(database, "one")
    yield service
    service.release_all()


@pytest.fixture
def two(other: Database) -> Iterator[LockingService]:
    service = worker(other, "two")
    yield service
    service.release_all()


def test_a_lock_is_held_by_one_run_of_all_workers(one: LockingService, two: LockingService) -> None:
    assert one.acquire("gate", "run 1", "ann")
    assert not two.acquire("gate", "run 2", "ann") and not one.acquire("gate", "run 1", "ann")
    assert two.is_locked("gate", "ann") and not two.is_locked("gate", "bob")
    assert two.acquire("gate", "run 2", "bob") and two.acquire("other", "run 2", "ann")
    one.release("run 1")
    assert not two.is_locked("gate", "ann") and two.acquire("gate", "run 3", "ann")


def test_a_holder_that_was_idle_is_not_taken_for_dead(
    one: LockingService, two: LockingService, database: Database, database_url: str
) -> None:
    """It is seen again in the very transaction that takes the lock, which the other one waits for."""
    assert one.acquire("other", "run 0", "ann")
    database.write("UPDATE wilmer.sessions SET last_seen = now() - interval '1 day'")
    taken: list[bool] = []
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(%s, hashtext('ann/gate'))", [LOCKS])
        holder.execute("UPDATE wilmer.sessions SET last_seen = now()")
        holder.execute(
            "INSERT INTO wilmer.workflow_locks VALUES ('ann', 'gate', 'one', 'run 1', now() + interval '1 minute')"
        )
        waiting = threading.Thread(target=lambda: taken.append(two.acquire("gate", "run 2", "ann")))
        waiting.start()
        assert until(lambda: database.read("SELECT 1 FROM pg_locks WHERE NOT granted") != [])
    waiting.join(60)
    assert taken == [False]


def test_of_many_that_come_at_once_one_has_the_lock(one: LockingService, two: LockingService) -> None:
    taken: list[str] = []

    def take(service: LockingService, run: str) -> None:
        if service.acquire("gate", run, "ann"):
            taken.append(run)

    threads = [
        threading.Thread(target=take, args=(service, f"run {number}")) for number, service in enumerate([one, two] * 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("change", "is_free"),
    [
        ("UPDATE wilmer.workflow_locks SET expires_at = now()", True),
        ("UPDATE wilmer.sessions SET last_seen = now() - interval '61 seconds'", True),
        ("UPDATE wilmer.sessions SET last_seen = now() - interval '50 seconds'", False),
    ],
)
def test_locks_end_with_their_time_and_with_their_worker(
    one: LockingService, two: LockingService, database: Database, change: str, is_free: bool
) -> None:
    assert one.acquire("gate", "run 1", "ann")
    database.write(change)
    assert two.acquire("gate", "run 2", "ann") is is_free


def test_a_start_deletes_the_locks_of_workers_that_have_ended(
    one: LockingService, two: LockingService, database: Database
) -> None:
    assert one.acquire("gate", "run 1", "ann") and one.acquire("gate", "run 2", "bob")
    two.delete_dead_locks("ann")
    assert two.is_locked("gate", "ann")
    database.write("UPDATE wilmer.sessions SET last_seen = now() - interval '61 seconds'")
    two.delete_dead_locks("ann")
    assert not two.is_locked("gate", "ann") and two.is_locked("gate", "bob")


def test_a_worker_keeps_its_locks_alive(database: Database) -> None:
    service = SharedLockingService(database)
    service._beat_seconds = 0.05
    assert service.acquire("gate", "run 1", "ann")
    database.write("UPDATE wilmer.sessions SET last_seen = now() - interval '1 hour'")
    database.write("UPDATE wilmer.workflow_locks SET expires_at = now() + interval '1 minute'")
    kept = (
        "SELECT 1 FROM wilmer.sessions, wilmer.workflow_locks "
        "WHERE last_seen > now() - interval '50 seconds' AND expires_at > now() + interval '9 minutes'"
    )
    assert until(lambda: len(database.read(kept)) == 1, 60)
    service.release("run 1")
    assert database.read("SELECT 1 FROM wilmer.workflow_locks") == []


@pytest.mark.parametrize(
    "choose",
    [
        lambda service: service.delete("one", user="ann"),
        lambda service: service.delete(workflow_id="run 1", user="ann"),
        lambda service: service.delete("one", "run 1", "gate", "ann"),
        lambda service: service.delete(lock_id="gate", user="ann"),
    ],
)
def test_locks_are_deleted_by_what_is_given(
    one: LockingService, database: Database, choose: Callable[[LockingService], None]
) -> None:
    assert one.acquire("gate", "run 1", "ann") and one.acquire("gate", "run 2", "bob")
    one.delete("two", "run 1", user="ann")
    assert one.is_locked("gate", "ann")
    choose(one)
    assert not one.is_locked("gate", "ann") and one.is_locked("gate", "bob")


def test_names_that_postgresql_cannot_hold(one: LockingService, two: LockingService) -> None:
    assert one.acquire("a\0b\ud800", "run 1", "ann") and not two.acquire("a\0b\ud800", "run 2", "ann")


def test_a_database_that_is_down_locks_nothing(
    database: Database, one: LockingService, caplog: pytest.LogCaptureFixture
) -> None:
    assert one.acquire("gate", "run 1", "ann")
    database.close()
    assert one.acquire("gate", "run 2", "ann") and not one.is_locked("gate", "ann")
    assert "continuing without a lock" in caplog.text
    one.release("run 1")


def test_a_cancelled_request_takes_no_lock(one: LockingService) -> None:
    scope = CancelScope()
    scope.cancel()
    with pytest.raises(EarlyTerminationException):
        one.acquire("gate", "run 1", "ann", scope)
    assert not one.is_locked("gate", "ann")
