"""What is kept between two searches of a database, and how a change of the file is noticed."""
from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

_TICK = 0.05  # seconds; changes closer together may look alike, as file systems keep time


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


class LatestUsed(Generic[T]):
    """At most ``size`` objects, those used last; thread-safe. Each is made under no lock of others."""

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
