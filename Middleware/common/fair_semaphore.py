"""The slots of the concurrency gate, which are given to waiters in the order of their arrival."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from Middleware.models.cancel_scope import CancelScope

# Between the moment a waiter takes the offer of a slot and the cancellation that follows it; far more than that needs.
TAKEN_SECONDS = 5.0


class Waiter:
    """A position in the queue for a slot, and later the slot.

    Attributes:
        rank: 0 for what a client waits for; a waiter of a higher rank gets its slot only when none of a lower one is
            left, and no holder gives way to it. It may be lowered during the wait.
    """

    def __init__(self, slots: Slots, rank: int) -> None:
        self._slots = slots
        self.rank = rank
        self.granted = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the slot; return whether it was granted. The position is kept until ``leave``."""
        return self.granted.wait(timeout)

    def leave(self) -> None:
        """Leave the queue, or release the slot. Call it once."""
        self._slots.remove(self)

    def offer(self, stop: Callable[[], object]) -> None:
        """Offer to give the slot up: ``stop`` is called once, at once or when a waiter of rank 0 comes."""
        self._slots.offer(self, stop)

    def withdraw(self, scope: CancelScope) -> None:
        """Take the offer back. If it was taken, wait for the cancellation of ``scope``, which is about to follow."""
        if not self._slots.withdraw(self):
            scope.wait(TAKEN_SECONDS)


class Slots(ABC):
    """The slots of the concurrency gate: those of this process, or of all workers together.

    Attributes:
        size: the number of slots, free or not.
    """

    def __init__(self, size: int, lock: threading.Lock | threading.Condition) -> None:
        """``lock``: guards the waiters and the offers."""
        self.size = size
        self._lock = lock
        # What stops the work of holders that have offered their slots, in the order of their offers.
        self._offers: dict[Waiter, Callable[[], object]] = {}

    @property
    @abstractmethod
    def waiting(self) -> int:
        """The number of waiters of this process in the queue."""

    @property
    @abstractmethod
    def taken(self) -> int:
        """The number of slots that this process holds."""

    @property
    @abstractmethod
    def free(self) -> bool:
        """Whether a slot is certainly free at this moment."""

    @abstractmethod
    def enqueue(self, rank: int = 0) -> Waiter:
        """Return a waiter at the end of the queue, with a slot immediately if one is free; ``rank``: see ``Waiter``."""

    @abstractmethod
    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter from the queue; if it has a slot, release that."""

    @abstractmethod
    def _is_wanted(self) -> bool:
        """Return whether a waiter of rank 0 of this process needs a slot. The lock is held."""

    def offer(self, holder: Waiter, stop: Callable[[], object]) -> None:
        """Offer the slot of ``holder``; see ``Waiter.offer``."""
        with self._lock:
            if not self._is_wanted():
                self._offers[holder] = stop
                return
        stop()

    def withdraw(self, holder: Waiter) -> bool:
        """Take an offer back; return False if it was taken."""
        with self._lock:
            return self._offers.pop(holder, None) is not None

    def _take_offer(self) -> Callable[[], object] | None:
        """Return what stops a holder, to be called without the lock. The lock is held.

        The one of the highest rank is stopped, and of equal ones that which came last: it loses the least.
        """
        holder = max(reversed(self._offers), key=lambda one: one.rank, default=None)
        return self._offers.pop(holder) if holder is not None else None


class FairSemaphore(Slots):
    """A bounded semaphore with a queue.

    Works like ``threading.BoundedSemaphore``, but first come, first served: a slot that becomes free belongs to the
    first waiter in the queue. A caller that has to do other work while it waits calls ``enqueue`` and polls the waiter.
    """

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("the initial value of a semaphore cannot be negative")
        super().__init__(value, threading.Lock())
        self._free = value
        # Ordered by arrival; empty while a slot is free.
        self._queue: dict[Waiter, None] = {}

    @property
    def waiting(self) -> int:
        """The number of waiters in the queue."""
        return len(self._queue)

    @property
    def taken(self) -> int:
        """The number of slots that are held."""
        return self.size - self._free

    @property
    def free(self) -> bool:
        """Whether a slot is free at this moment."""
        return self._free > 0

    def enqueue(self, rank: int = 0) -> Waiter:
        """Return a waiter at the end of the queue, with a slot immediately if one is free; ``rank``: see ``Waiter``."""
        waiter, stop = Waiter(self, rank), None
        with self._lock:
            if self._free:
                self._free -= 1
                waiter.granted.set()
            else:
                self._queue[waiter] = None
                stop = None if rank else self._take_offer()
        # Without the lock, as the holder may release its slot at once.
        if stop is not None:
            stop()
        return waiter

    def _is_wanted(self) -> bool:
        return any(not waiter.rank for waiter in self._queue)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take a slot, waiting for at most ``timeout`` seconds (None: no limit); return whether there was one."""
        waiter = self.enqueue()
        if waiter.wait(timeout if blocking else 0):
            return True
        waiter.leave()
        return False

    def release(self) -> None:
        """Release a slot. Raises ValueError if all of them are free."""
        with self._lock:
            # The first of those with the lowest rank.
            waiter = min(self._queue, key=lambda one: one.rank, default=None)
            if waiter is not None:
                del self._queue[waiter]
                waiter.granted.set()
            elif self._free >= self.size:
                raise ValueError("a slot was released that was not taken")
            else:
                self._free += 1

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter from the queue; if it got its slot in the meantime, release that."""
        with self._lock:
            if waiter in self._queue:
                del self._queue[waiter]
                return
        self.release()
