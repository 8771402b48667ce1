"""First come, first served."""

from __future__ import annotations

import threading
import time

import pytest

from Middleware.common.fair_semaphore import FairSemaphore
from Middleware.models.cancel_scope import CancelScope
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until


def test_it_works_like_a_bounded_semaphore() -> None:
    semaphore = FairSemaphore(2)
    assert [semaphore.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    started = time.monotonic()
    assert not semaphore.acquire(timeout=0.05)
    assert 0.04 < time.monotonic() - started < PATIENCE
    semaphore.release()
    assert semaphore.acquire()
    semaphore.release()
    semaphore.release()
    with pytest.raises(ValueError):
        semaphore.release()
    with pytest.raises(ValueError):
        FairSemaphore(-1)


def test_slots_are_handed_out_in_order() -> None:
    semaphore, served, threads = FairSemaphore(1), [], []
    semaphore.acquire()

    def wait(number: int) -> None:
        assert semaphore.acquire(timeout=PATIENCE)
        served.append(number)
        semaphore.release()

    for number in range(10):
        threads.append(threading.Thread(target=wait, args=(number,), daemon=True))
        threads[-1].start()
        assert until(lambda: semaphore.waiting == number + 1)  # noqa: B023
    semaphore.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert served == list(range(10))


def test_a_place_is_kept_between_two_looks() -> None:
    semaphore = FairSemaphore(1)
    semaphore.acquire()
    first, second = semaphore.enqueue(), semaphore.enqueue()
    assert not first.wait(0.01) and not second.wait(0)
    semaphore.release()
    assert not second.wait(0) and first.wait(0) and first.wait(0)
    semaphore.release()
    assert second.wait(0)


def test_a_newcomer_cannot_overtake() -> None:
    semaphore = FairSemaphore(1)
    semaphore.acquire()
    waiting = semaphore.enqueue()
    semaphore.release()
    assert not semaphore.acquire(blocking=False)
    assert waiting.wait(0)


def test_leaving_the_line_lets_the_next_one_go() -> None:
    semaphore = FairSemaphore(1)
    semaphore.acquire()
    leaves, stays = semaphore.enqueue(), semaphore.enqueue()
    leaves.leave()
    assert semaphore.waiting == 1
    semaphore.release()
    assert stays.wait(0) and not leaves.wait(0)


def test_a_slot_that_came_too_late_is_passed_on() -> None:
    semaphore = FairSemaphore(1)
    semaphore.acquire()
    late, following = semaphore.enqueue(), semaphore.enqueue()
    semaphore.release()  # late's turn has come, and it does not know yet
    late.leave()
    assert following.wait(0)
    following.leave()
    assert semaphore.acquire(blocking=False)


def test_no_slot_is_lost_under_load() -> None:
    semaphore, busy, most, lock = FairSemaphore(3), [0], [0], threading.Lock()

    def work(number: int) -> None:
        for turn in range(30):
            if not semaphore.acquire(timeout=0.0005 if (number + turn) % 3 else PATIENCE):
                continue
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            time.sleep(0.0002)
            with lock:
                busy[0] -= 1
            semaphore.release()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert most[0] <= 3 and semaphore.waiting == 0
    assert [semaphore.acquire(blocking=False) for _ in range(4)] == [True, True, True, False]


# -- waiters behind all others, and holders that give way --------------------------------------------------------------


def test_lower_ranks_get_a_slot_first_and_equal_ones_in_order() -> None:
    semaphore = FairSemaphore(1)
    semaphore.acquire()
    tasks = [semaphore.enqueue(rank=2) for _ in range(2)]
    behind, chat = semaphore.enqueue(rank=1), semaphore.enqueue()
    # What has waited for very long counts as a chat.
    tasks[1].rank = 0
    assert semaphore.waiting == 4
    for waiter in [tasks[1], chat, behind, tasks[0]]:
        assert not waiter.wait(0)
        semaphore.release()
        assert waiter.wait(0)
    semaphore.release()
    assert semaphore.free and semaphore.enqueue(rank=2).wait(0)


def test_who_waits_behind_can_leave() -> None:
    semaphore = FairSemaphore(1)
    semaphore.acquire()
    semaphore.enqueue(rank=1).leave()
    semaphore.release()
    assert semaphore.free


class Holder:
    """A holder of a slot that offers it, and leaves when it is stopped."""

    def __init__(self, semaphore: FairSemaphore, name: str, stopped: list[str], rank: int = 1) -> None:
        self.scope, self._name, self._stopped = CancelScope(), name, stopped
        self.waiter = semaphore.enqueue(rank)
        assert self.waiter.wait(0)
        self.waiter.offer(self._stop)

    def _stop(self) -> None:
        self._stopped.append(self._name)
        self.scope.cancel()
        self.waiter.leave()


def test_a_chat_stops_the_holder_of_the_highest_rank_that_came_last() -> None:
    semaphore, stopped = FairSemaphore(4), list[str]()
    for name, rank in (("behind", 1), ("task", 2), ("later task", 2)):
        Holder(semaphore, name, stopped, rank)
    assert semaphore.enqueue().wait(0), "a chat that offers nothing"
    assert semaphore.enqueue(rank=1) and not stopped
    for count, name in enumerate(("later task", "task", "behind"), 1):
        assert semaphore.enqueue().wait(0) and stopped[-1] == name and len(stopped) == count
    semaphore.enqueue()
    assert len(stopped) == 3, "each is stopped once"


def test_an_offer_is_taken_at_once_if_one_waits() -> None:
    semaphore, stopped = FairSemaphore(1), list[str]()
    holder = semaphore.enqueue(rank=1)
    chat = semaphore.enqueue()
    holder.offer(lambda: stopped.append("stopped"))
    assert stopped == ["stopped"]
    holder.leave()
    assert chat.wait(0)


def test_an_offer_can_be_taken_back() -> None:
    semaphore, stopped = FairSemaphore(1), list[str]()
    holder = Holder(semaphore, "holder", stopped)
    holder.waiter.withdraw(holder.scope)
    semaphore.enqueue()
    assert stopped == []


def test_who_takes_an_offer_back_too_late_waits_for_the_cancellation() -> None:
    """It must not reach what the holder does next."""
    semaphore, scope, events = FairSemaphore(1), CancelScope(), list[str]()
    holder, is_taken = semaphore.enqueue(rank=1), threading.Event()

    def stop() -> None:
        is_taken.set()
        time.sleep(0.05)
        events.append("cancelled")
        scope.cancel()

    holder.offer(stop)
    chat = threading.Thread(target=semaphore.enqueue, daemon=True)
    chat.start()
    assert is_taken.wait(PATIENCE)
    holder.withdraw(scope)
    events.append("taken back")
    chat.join(PATIENCE)
    assert events == ["cancelled", "taken back"]
