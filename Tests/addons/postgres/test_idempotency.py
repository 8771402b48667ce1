"""Idempotency keys among several workers."""

from __future__ import annotations

import hashlib
import threading

import pytest

from Middleware.addons.postgres.database import Database
from Middleware.addons.postgres.shared_objects import SharedIdempotency
from Tests.workflows.engine_lab import until


@pytest.fixture
def one(database: Database) -> SharedIdempotency:
    return SharedIdempotency(database, lambda: 1)


@pytest.fixture
def two(other: Database) -> SharedIdempotency:
    return SharedIdempotency(other, lambda: 2)


def keys(database: Database) -> list[tuple[object, ...]]:
    return database.read("SELECT request_id, worker FROM wilmer.idempotency ORDER BY request_id")


def test_a_retry_on_another_worker_finds_the_first_attempt(
    one: SharedIdempotency, two: SharedIdempotency, database: Database
) -> None:
    assert one.register("ann:k", "r 1") is None
    assert two.register("bob:k", "r 2") is None
    assert two.register("ann:k", "r 3") == "r 1"
    assert one.register("ann:k", "r 4") == "r 3"
    assert one.register("ann:k", "r 4") is None
    assert keys(database) == [("r 2", 2), ("r 4", 1)]
    [(stored,)] = database.read("SELECT key_hash FROM wilmer.idempotency WHERE request_id = 'r 4'")
    assert stored == hashlib.sha256(b"ann:k").digest()


def test_a_request_that_ends_takes_only_its_own_binding_away(
    one: SharedIdempotency, two: SharedIdempotency, database: Database
) -> None:
    one.register("k", "r 1")
    two.register("k", "r 2")
    one.register("other", "r 3")
    one.release("r 1")
    one.release("r 3")
    assert until(lambda: keys(database) == [("r 2", 2)], 60)
    two.release("r 2")
    two.release("unknown")
    assert until(lambda: keys(database) == [], 60)


@pytest.mark.parametrize(("seconds", "earlier"), [(800, "r 1"), (1000, None)])
def test_an_old_key_of_a_dead_worker_is_free(
    one: SharedIdempotency, two: SharedIdempotency, database: Database, seconds: int, earlier: str | None
) -> None:
    one.register("k", "r 1")
    database.write("UPDATE wilmer.idempotency SET registered_at = now() - make_interval(secs => %s)", [seconds])
    assert two.register("k", "r 2") == earlier


def test_an_old_key_of_a_live_worker_is_not(one: SharedIdempotency, two: SharedIdempotency, database: Database) -> None:
    one.register("k", "r 1")
    database.write("UPDATE wilmer.idempotency SET registered_at = now() - interval '1 day'")
    with database.connect() as session:
        session.execute("SELECT pg_advisory_lock(1464421453, 1)")
        assert two.register("k", "r 2") == "r 1"


def test_of_many_that_come_at_once_one_displaces_the_other(one: SharedIdempotency, two: SharedIdempotency) -> None:
    displaced: list[str | None] = []
    threads = [
        threading.Thread(
            target=lambda service=service, number=number: displaced.append(service.register("k", f"r {number}"))
        )
        for number, service in enumerate([one, two] * 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # Each but the last was displaced by exactly one other.
    assert displaced.count(None) == 1 and len(set(displaced)) == 12


def test_without_the_database_the_own_registry_is_left(one: SharedIdempotency, database: Database) -> None:
    one.register("k", "r 1")
    database.close()
    assert one.register("k", "r 2") == "r 1"
    one.release("r 2")
    assert one.get_request_id_for_key("k") is None
