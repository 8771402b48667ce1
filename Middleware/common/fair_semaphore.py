"""A semaphore that serves its waiters in the order of their arrival."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol


class Waiting(Protocol):
    """A position in the queue, and later a slot."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the slot; return whether it was granted. The position is kept until ``leave``."""

    def leave(self) -> None:
        """Leave the queue, or release the slot. Call it once."""


class Slots(Protocol):
    """The slots of the concurrency gate: those of this process, or of all workers together.

    Attributes:
        shared: other processes take slots, too.
    """

    shared: bool

    @property
    def size(self) -> int:
        """The number of slots, free or not."""

    @property
    def waiting(self) -> int:
        """The number of waiters of this process in the queue."""

    @property
    def taken(self) -> int:
        """The number of slots that this process holds."""

    @property
    def free(self) -> bool:
        """Whether a slot is certainly free at this moment."""

    def enqueue(self, behind: bool = False) -> Waiting:
        """Return a waiter at the end of the queue, with a slot immediately if one is free.

        ``behind``: it gets its slot only when no other waiter is left, and no waiter gives way to it.
        """

    def offer(self, stop: Callable[[], object]) -> None:
        """Offer the slot of the caller: ``stop`` is called once, at once or when a waiter comes that needs a slot."""

    def withdraw(self, stop: Callable[[], object]) -> bool:
        """Take an offer back; return False if it was taken."""


class OfferedSlots(ABC):
    """What holders of slots have offered to give up, for an object with slots and waiters.

    ``lock``: guards the waiters and the offers.
    """

    def __init__(self, lock: threading.Lock | threading.Condition) -> None:
        self._lock = lock
        # What stops the work of holders that have offered that, in the order of their offers.
        self._offers: dict[Callable[[], object], None] = {}

    @abstractmethod
    def _is_wanted(self) -> bool:
        """Return whether a waiter of this process needs a slot. The lock is held."""

    def offer(self, stop: Callable[[], object]) -> None:
        """Offer the slot of the caller: ``stop`` is called once, at once or when a waiter comes that needs a slot."""
        with self._lock:
            if not self._is_wanted():
                self._offers[stop] = None
                return
        stop()

    def withdraw(self, stop: Callable[[], object]) -> bool:
        """Take an offer back; return False if it was taken."""
        with self._lock:
            return self._offers.pop(stop, False) is None

    def _take_offer(self) -> Callable[[], object] | None:
        """Return what stops the holder that offered first, to be called without the lock. The lock is held."""
        stop = next(iter(self._offers), None)
        if stop is not None:
            del self._offers[stop]
        return stop


class FairSemaphore(OfferedSlots):
    """A bounded semaphore with a queue.

    Works like ``threading.BoundedSemaphore``, but first come, first served: a slot that becomes free belongs to the
    first waiter in the queue. A caller that has to do other work while it waits calls ``enqueue`` and polls the waiter.

    Some waiters stay behind all others, and the holder of a slot can offer to give it up for one of the others.
    """

    shared = False

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("the initial value of a semaphore cannot be negative")
        super().__init__(threading.Lock())
        self._size = self._free = value
        # Ordered by arrival; empty while a slot is free.
        self._queue: dict[Waiter, None] = {}
        self._behind: dict[Waiter, None] = {}

    @property
    def size(self) -> int:
        """The number of slots, free or not."""
        return self._size

    @property
    def waiting(self) -> int:
        """The number of waiters in the queue."""
        return len(self._queue) + len(self._behind)

    @property
    def taken(self) -> int:
        """The number of slots that are held."""
        return self._size - self._free

    @property
    def free(self) -> bool:
        """Whether a slot is free at this moment."""
        return self._free > 0

    def enqueue(self, behind: bool = False) -> Waiter:
        """Return a waiter at the end of the queue, with a slot immediately if one is free.

        ``behind``: it gets its slot only when no other waiter is left, and no waiter gives way to it.
        """
        waiter, stop = Waiter(self), None
        with self._lock:
            if self._free:
                self._free -= 1
                waiter.granted.set()
            elif behind:
                self._behind[waiter] = None
            else:
                self._queue[waiter] = None
                stop = self._take_offer()
        # Without the lock, as the holder may release its slot at once.
        if stop is not None:
            stop()
        return waiter

    def _is_wanted(self) -> bool:
        return bool(self._queue)

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
            queue = self._queue or self._behind
            if queue:
                waiter = next(iter(queue))
                del queue[waiter]
                waiter.granted.set()
            elif self._free >= self._size:
                raise ValueError("a slot was released that was not taken")
            else:
                self._free += 1

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter from the queue; if it got its slot in the meantime, release that."""
        with self._lock:
            for queue in (self._queue, self._behind):
                if waiter in queue:
                    del queue[waiter]
                    return
        self.release()


class Waiter:
    """A position in the queue, and later a slot."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self._semaphore = semaphore
        self.granted = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the slot; return whether it was granted. The position is kept until ``leave``."""
        return self.granted.wait(timeout)

    def leave(self) -> None:
        """Leave the queue, or release the slot. Call it once."""
        self._semaphore.remove(self)
