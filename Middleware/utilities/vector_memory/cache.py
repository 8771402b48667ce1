"""What is kept between two searches of a database, and how a change of the file is noticed."""
from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope

T = TypeVar("T")

_TICK = 0.05  # seconds; changes closer together may look alike, as file systems keep time
_LOOK = 0.1  # seconds between two looks whether the request that waits is still wanted


def file_state(path: str) -> Hashable:
    """Differs whenever the database at ``path`` was changed. Take it before reading what it stands for."""
    state: list[tuple[int, int, int] | None] = []
    newest = 0.0
    for name in (path, f"{path}-wal"):
        try:
            known = os.stat(name)
        except OSError:
            state.append(None)
            continue
        if name != path and not known.st_size:  # made by opening the database
            state.append(None)
            continue
        newest = max(newest, known.st_mtime)
        state.append((known.st_ino, known.st_size, known.st_mtime_ns))
    if time.time() - newest < _TICK:
        return object()  # too fresh to tell it from the next change
    return tuple(state)


def raise_if_cancelled(scope: CancelScope | None) -> None:
    if scope is not None and scope.cancelled:
        raise EarlyTerminationException("The request was cancelled", CANCELLED)


@contextlib.contextmanager
def turn(lock: threading.Lock, scope: CancelScope | None) -> Iterator[None]:
    """Hold ``lock``. Raises EarlyTerminationException when ``scope`` is cancelled while it is another thread's."""
    while not lock.acquire(timeout=_LOOK):
        raise_if_cancelled(scope)
    try:
        yield
    finally:
        lock.release()


class LatestUsed(Generic[T]):
    """At most ``size`` objects, those used last; thread-safe.

    One object is made at a time while everybody else waits, so that making one must take no time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return self._kept[key]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
