"""The root of everything that lives as long as the process: caches, pools, locks and services shared by all requests.

A module names such an object by a function of its own, ``get_transport()`` for example, which asks
``process().one(Transport)``. Nothing is built before its first use, so importing a module builds nothing, and a test
can install a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")


class Process:
    """One object of each kind, built at its first use."""

    def __init__(self) -> None:
        self._objects: dict[Callable[[], object], object] = {}
        # Reentrant: what a factory makes may need another object of the process.
        self._lock = threading.RLock()

    def one(self, factory: Callable[[], T]) -> T:
        """Return the object that ``factory`` makes: the same one for every caller and every thread."""
        # One lookup and no more calls: requests ask some forty times.
        found = self._objects.get(factory)
        return self._built(factory) if found is None else found  # type: ignore[return-value]

    def _built(self, factory: Callable[[], T]) -> T:
        with self._lock:
            if factory not in self._objects:
                self._objects[factory] = factory()
            return cast(T, self._objects[factory])

    def built(self, factory: Callable[[], T]) -> T | None:
        """Return the object that ``factory`` has made, or None before its first use."""
        return cast("T | None", self._objects.get(factory))

    def put(self, factory: Callable[[], T], made: T) -> None:
        """Use ``made`` in place of what ``factory`` would make: for tests, and for programs that embed the app."""
        with self._lock:
            self._objects[factory] = made

    def factories(self) -> list[Callable[[], object]]:
        """Return the kinds of objects that exist so far, in the order in which they were built."""
        with self._lock:
            return list(self._objects)


_process = Process()


def process() -> Process:
    """Return the current process: the one that the app was built with, else a default for scripts and commands."""
    return _process


def install(new: Process) -> Process:
    """Make ``new`` the current process. Returns the one that it replaces."""
    global _process
    replaced, _process = _process, new
    return replaced
