"""What stays in memory between two searches of a database, and how a change of the file is noticed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.encryption_utils import Cipher
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.vector_math_utils import NormalisedVectors

T = TypeVar("T")

IDLE_SECONDS = 600.0

# Seconds; changes closer together may look alike, as file systems keep time.
_TICK = 0.05

# Seconds between two looks whether the request that waits is still wanted.
_LOOK = 0.1


@dataclass(frozen=True)
class RowsState:
    """How the rows of a database stand.

    Attributes:
        version: differs after each change.
        generation: as long as it stays equal, memories were only added, with higher ids than those before, and vectors
            only added. None: anything may have changed.
    """

    version: Hashable
    generation: Hashable | None = None


def file_state(path: str) -> Hashable:
    """Return a value that differs after each change of the database. Call it before reading the database."""
    state: list[tuple[int, int, int] | None] = []
    newest = 0.0
    for name in (path, f"{path}-wal"):
        try:
            known = os.stat(name)
        except OSError:
            state.append(None)
            continue
        # Opening the database creates an empty log.
        if name != path and not known.st_size:
            state.append(None)
            continue
        newest = max(newest, known.st_mtime)
        state.append((known.st_ino, known.st_size, known.st_mtime_ns))
    if time.time() - newest < _TICK:
        # Too fresh to tell it from the next change: an object equals nothing else.
        return object()
    return tuple(state)


def raise_if_cancelled(scope: CancelScope | None) -> None:
    if scope is not None and scope.cancelled:
        raise EarlyTerminationException("The request was cancelled", CANCELLED)


@contextlib.contextmanager
def held(lock: threading.Lock, scope: CancelScope | None) -> Iterator[None]:
    """Hold ``lock``. Raises EarlyTerminationException when ``scope`` is cancelled while it is another thread's."""
    while not lock.acquire(timeout=_LOOK):
        raise_if_cancelled(scope)
    try:
        yield
    finally:
        lock.release()


class LatestUsed(BoundedCache[Hashable, tuple[T, float]]):
    """The objects used last, each with the time of its last use.

    Only one thread creates an object at a time, so creating one must be quick. Objects that were not used for
    ``idle_seconds`` are dropped by a thread that exists only while there are any.
    """

    def __init__(self, size: int, idle_seconds: float = IDLE_SECONDS) -> None:
        super().__init__(size)
        self._idle = idle_seconds
        self._timer: threading.Timer | None = None

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the object of ``key``, which counts as used now; make it if it is not kept."""
        with self._lock:
            known = self.get(key)
            found = make() if known is None else known[0]
            self.put(key, (found, time.monotonic()))
            if self._timer is None:
                self._look_again()
            return found

    def clear(self) -> None:
        with self._lock:
            super().clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _look_again(self) -> None:
        """Start the thread that waits until the object used longest ago has expired."""
        used = next(iter(self._entries.values()))[1]
        timer = threading.Timer(max(0.01, used + self._idle - time.monotonic()), self._forget)
        timer.daemon, timer.name = True, "idle-memories"
        # The system has no more threads at present: the next use tries again.
        with contextlib.suppress(RuntimeError):
            timer.start()
            self._timer = timer

    def _forget(self) -> None:
        with self._lock:
            self._timer = None
            limit = time.monotonic() - self._idle
            while self._entries and next(iter(self._entries.values()))[1] <= limit:
                self.pop(next(iter(self._entries)))
            if self._entries:
                self._look_again()


# Databases and models whose vectors stay in memory: a set of 100,000 vectors takes some 150 MB.
MOST_SETS = 8


class CachedVectors:
    """The vectors of one model in one database, of length 1, so that each costs a search one multiplication."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: RowsState | None = None
        self._vectors: NormalisedVectors | None = None

    def current(
        self,
        state: Callable[[], RowsState],
        load: Callable[[Collection[int]], list[tuple[int, bytes]]],
        scope: CancelScope | None = None,
    ) -> NormalisedVectors:
        """Return the vectors as they are stored now.

        Args:
            load: returns all vectors but those of the rows that it is given; called if their state has changed.

        Raises EarlyTerminationException when ``scope`` is cancelled while another thread loads them.
        """
        with held(self._lock, scope):
            # Taken before the vectors are read, so that what is written during the read is noticed next time.
            found = state()
            if self._vectors is None or found != self._state:
                if self._vectors and self._state and found.generation == self._state.generation is not None:
                    self._vectors = self._vectors.extended(load(self._vectors.ids))
                else:
                    self._vectors = NormalisedVectors(load(()))
                self._state = found
            return self._vectors


def _sets() -> LatestUsed[CachedVectors]:
    return LatestUsed(MOST_SETS)


def vectors_of(place: str, model: str, cipher: Cipher) -> CachedVectors:
    return process().one(_sets).get_or_make((place, model, cipher.mark), CachedVectors)
