"""A semaphore that serves its waiters in the order of their arrival."""
from __future__ import annotations

import threading


class FairSemaphore:
    """A bounded semaphore with a queue.

    Works like ``threading.BoundedSemaphore``, but first come, first served: a slot that becomes free belongs to the
    first waiter in the queue. A caller that has to do other work while it waits calls ``enqueue`` and polls the waiter.
    """

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("the initial value of a semaphore cannot be negative")
        self._size = self._free = value
        # Ordered by arrival; empty while a slot is free.
        self._queue: dict[Waiter, None] = {}
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of waiters in the queue."""
        return len(self._queue)

    def enqueue(self) -> Waiter:
        """Return a waiter at the end of the queue, with a slot immediately if one is free."""
        waiter = Waiter(self)
        with self._lock:
            if self._free:
                self._free -= 1
                waiter.granted.set()
            else:
                self._queue[waiter] = None
        return waiter

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
            if self._queue:
                waiter = next(iter(self._queue))
                del self._queue[waiter]
                waiter.granted.set()
            elif self._free >= self._size:
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


class Waiter:
    """A position in the queue, and later a slot."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self._semaphore = semaphore
        self.granted = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the slot; return whether it was granted. The position is kept until ``leave``."""
        return self.granted.wait(timeout)

    def leave(self) -> None:
        """Leave the queue. Call it once, and not for a slot in use."""
        self._semaphore.remove(self)
