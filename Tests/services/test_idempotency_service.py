"""Which request works for which idempotency key."""

from __future__ import annotations

import threading

import pytest

from Middleware.services import idempotency_service as module
from Middleware.services.idempotency_service import MAX_AGE_SECONDS, MAX_ENTRIES, IdempotencyService


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> IdempotencyService:
    return IdempotencyService(clock)


def test_the_singleton_is_one_of_an_ordinary_class() -> None:
    assert isinstance(module.idempotency_service, IdempotencyService)
    assert IdempotencyService() is not IdempotencyService()


def test_a_key_in_flight_is_taken_over(service: IdempotencyService) -> None:
    assert service.register("k", "r1") is None
    assert service.register("k", "r2") == "r1"
    assert service.get_request_id_for_key("k") == "r2"
    service.release("r1")  # the displaced request ends later
    assert service.get_request_id_for_key("k") == "r2"
    service.release("r2")
    service.release("r2")
    assert service.get_request_id_for_key("k") is None
    assert service.register("k", "r3") is None


def test_the_same_request_displaces_nobody(service: IdempotencyService) -> None:
    service.register("k", "r1")
    assert service.register("k", "r1") is None
    assert service.get_request_id_for_key("k") == "r1"


def test_a_request_that_takes_another_key_gives_up_its_first(service: IdempotencyService) -> None:
    service.register("a", "r1")
    service.register("b", "r1")
    assert [service.get_request_id_for_key(key) for key in "ab"] == [None, "r1"]
    service.release("r1")
    assert service.get_request_id_for_key("b") is None


@pytest.mark.parametrize(("key", "request_id"), [("", "r"), (None, "r"), ("k", ""), ("k", None)])
def test_blank_input_is_ignored(service: IdempotencyService, key: str | None, request_id: str | None) -> None:
    assert service.register(key, request_id) is None
    service.release(request_id)
    assert service.get_request_id_for_key(key) is None


def test_clear(service: IdempotencyService) -> None:
    service.register("k", "r1")
    service.clear()
    assert service.get_request_id_for_key("k") is None
    assert service.register("k", "r2") is None


def test_the_oldest_entry_makes_room(service: IdempotencyService) -> None:
    for number in range(MAX_ENTRIES):
        service.register(f"k{number}", f"r{number}")
    service.register("k0", "new")  # refreshes its position
    service.register("one more", "r")
    assert service.get_request_id_for_key("k0") == "new"
    assert service.get_request_id_for_key("k1") is None
    assert service.get_request_id_for_key("k2") == "r2"
    service.release("r1")  # evicted, and still at work
    assert service.register("k1", "again") is None


@pytest.mark.parametrize(("age", "kept"), [(MAX_AGE_SECONDS, "r1"), (MAX_AGE_SECONDS + 1, None)])
def test_forgotten_entries_are_dropped_at_the_next_registration(
    service: IdempotencyService, clock: Clock, age: float, kept: str | None
) -> None:
    service.register("k", "r1")
    clock.now += age
    assert service.get_request_id_for_key("k") == "r1"
    service.register("other", "r2")
    assert service.get_request_id_for_key("k") == kept


def test_a_refreshed_entry_is_young_again(service: IdempotencyService, clock: Clock) -> None:
    service.register("k", "r1")
    clock.now += MAX_AGE_SECONDS
    service.register("k", "r1")
    clock.now += 2
    service.register("other", "r2")
    assert service.get_request_id_for_key("k") == "r1"


def test_the_entry_of_a_request_at_work_does_not_age(service: IdempotencyService, clock: Clock) -> None:
    service.is_running = {"works"}.__contains__
    service.register("a", "works")
    service.register("b", "lost")
    clock.now += 10 * MAX_AGE_SECONDS
    assert service.register("a", "retry") == "works"
    assert service.get_request_id_for_key("b") is None


def test_threads_that_fight_for_a_key_displace_each_other_once_each(service: IdempotencyService) -> None:
    displaced: list[str] = []

    def fight(name: str) -> None:
        for number in range(100):
            before = service.register("k", f"{name}{number}")
            if before:
                displaced.append(before)

    threads = [threading.Thread(target=fight, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = service.get_request_id_for_key("k")
    assert len(displaced) == len(set(displaced)) == 399 and last not in displaced
