"""The memory of servers that could not be reached, so that a dead host does not cost every call its timeout."""
from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from Middleware.utilities.once import BoundedCache

Origin = tuple[str, str, int]
Note = TypeVar("Note")

# Short: a refusal is found out at no cost, and a local server that was started again must be found at once.
REFUSED_SECONDS = 1.0
# A computer that is off stays so for longer, and each attempt costs a whole timeout.
UNREACHABLE_SECONDS = 5.0
# More servers than any configuration names.
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
        # Per origin: the note, until when it holds, and the timeout of the attempt.
        self._known: BoundedCache[Origin, tuple[Note, float, float]] = BoundedCache(MAX_ORIGINS)

    def remember(self, origin: Origin, cause: BaseException, note: Note, timeout: float = math.inf) -> None:
        """Keep ``note`` for as long as ``cause`` deserves; not at all if the host was reached, in spite of it.

        ``timeout``: seconds that an attempt was given. What an attempt with a longer one found out is not replaced.
        """
        seconds, now = _seconds_for(cause), self._clock()
        known = self._known.get(origin)
        if seconds and (known is None or known[1] <= now or known[2] <= timeout):
            self._known.put(origin, (note, now + seconds, timeout))

    def find(self, origin: Origin, timeout: float = 0.0) -> Unreachable[Note] | None:
        """The failure to repeat, or None if the origin should be tried: one that would wait for longer may succeed."""
        known = self._known.get(origin)
        if known is None:
            return None
        note, until, waited = known
        left = until - self._clock()
        if left <= 0:
            self._known.pop(origin)
        return Unreachable(note, left) if left > 0 and timeout <= waited else None

    def forget(self, origin: Origin) -> None:
        """The origin was reached."""
        self._known.pop(origin)

    def __len__(self) -> int:
        return len(self._known)


def _seconds_for(cause: BaseException) -> float:
    if isinstance(cause, ConnectionRefusedError):
        return REFUSED_SECONDS
    if isinstance(cause, (TimeoutError, socket.gaierror)) or (isinstance(cause, OSError) and cause.errno in _NO_ROUTE):
        return UNREACHABLE_SECONDS
    return 0.0
