"""A semaphore that serves its waiters in the order in which they came."""
from __future__ import annotations

import threading


class FairSemaphore:
    """A bounded semaphore with a line in front of it.

    Works like ``threading.BoundedSemaphore``, first come, first served: a slot that becomes free belongs to the first
    in line, and whoever comes later cannot snatch it. A waiter that wants to look around now and then takes a place
    with ``line_up`` and keeps it between two looks.
    """

    def __init__(self, value: int = 1) -> None:
        if value < 0:
            raise ValueError("a semaphore cannot begin below zero")
        self._size = self._free = value
        self._line: dict[Place, None] = {}  # ordered; empty while a slot is free
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    def line_up(self) -> Place:
        """A place at the end of the line; with a slot at once if one is free."""
        place = Place(self)
        with self._lock:
            if self._free:
                self._free -= 1
                place.turn.set()
            else:
                self._line[place] = None
        return place

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take a slot, waiting for ``timeout`` seconds at most (None: for ever); whether there was one."""
        place = self.line_up()
        if place.wait(timeout if blocking else 0):
            return True
        place.leave()
        return False

    def release(self) -> None:
        """Give a slot back. Raises ValueError if all of them are free."""
        with self._lock:
            if self._line:
                place = next(iter(self._line))
                del self._line[place]
                place.turn.set()
            elif self._free >= self._size:
                raise ValueError("a slot was given back that nobody held")
            else:
                self._free += 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()

    def remove(self, place: Place) -> None:
        """Take a place out of the line; if its slot came in the meantime, give that back."""
        with self._lock:
            if place in self._line:
                del self._line[place]
                return
        self.release()


class Place:
    """One waiter's place in line, and later its slot."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self._semaphore = semaphore
        self.turn = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the turn; whether it has come. The place is kept until ``leave``."""
        return self.turn.wait(timeout)

    def leave(self) -> None:
        """Give up a place that is not wanted any more. To be called once, and not for a slot in use."""
        self._semaphore.remove(self)
