"""The memory of back-ends that could not be reached, so that a dead host does not cost every call its time-out."""
from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Origin = tuple[str, str, int]
Note = TypeVar("Note")

REFUSED_SECONDS = 1.0
"""Short: a refusal is found out at no cost, and a local server that was started again must be found at once."""
UNREACHABLE_SECONDS = 5.0
MAX_ORIGINS = 256

_NO_ROUTE = {getattr(errno, name) for name in ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN", "ETIMEDOUT")
             if hasattr(errno, name)}


@dataclass(frozen=True)
class Unreachable(Generic[Note]):
    """A failure that is remembered. ``seconds``: how much longer; ``note``: what was said about it."""

    note: Note
    seconds: float


class UnreachableOrigins(Generic[Note]):
    """Origins that could not be reached a moment ago. Thread-safe; ``clock`` counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Origin, tuple[Note, float, float]] = {}

    def remember(self, origin: Origin, cause: BaseException, note: Note, timeout: float = math.inf) -> None:
        """Keep ``note`` for as long as ``cause`` deserves; not at all if the host was reached, in spite of it.

        ``timeout``: seconds that an attempt was given. What a more patient one found out is not replaced.
        """
        seconds = _seconds_for(cause)
        if not seconds:
            return
        with self._lock:
            now = self._clock()
            known = self._known.get(origin)
            if known is not None and known[1] > now and known[2] > timeout:
                return
            self._known.pop(origin, None)  # so that the order of the dict is that of the notes
            self._known[origin] = note, now + seconds, timeout
            if len(self._known) > MAX_ORIGINS:
                del self._known[next(iter(self._known))]

    def find(self, origin: Origin, timeout: float = 0.0) -> Unreachable[Note] | None:
        """The failure to repeat, or None if the origin should be tried: one that would wait for longer may succeed."""
        with self._lock:
            note, until, patience = self._known.get(origin, (None, 0.0, 0.0))
            left = until - self._clock()
            if note is None or left <= 0:
                self._known.pop(origin, None)
                return None
            if timeout > patience:
                return None
            return Unreachable(note, left)

    def forget(self, origin: Origin) -> None:
        """The origin was reached."""
        with self._lock:
            self._known.pop(origin, None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)


def _seconds_for(cause: BaseException) -> float:
    if isinstance(cause, ConnectionRefusedError):
        return REFUSED_SECONDS
    if isinstance(cause, (TimeoutError, socket.gaierror)) or isinstance(cause, OSError) and cause.errno in _NO_ROUTE:
        return UNREACHABLE_SECONDS
    return 0.0
