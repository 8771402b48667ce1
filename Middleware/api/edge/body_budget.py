"""How much memory the bodies of requests may take together before their turn, whichever server reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from Middleware.exceptions import WilmerError
from Middleware.utilities.allowed_memory import allowed_memory

_MEGABYTE = 1024 * 1024
# The part of the process's memory, and its bounds: a few images always fit, and a large machine is not filled.
_PART = 4
_LEAST, _MOST = 64 * _MEGABYTE, 1024 * _MEGABYTE
# What bodies have held may have left free blocks behind, of which a server with small requests keeps few.
_MUCH = 64 * _MEGABYTE


class NoRoomError(WilmerError):
    """There is no room for a body, or it is the largest of those that have too little."""


class Body:
    """A body that still comes, or waits for the turn of its request.

    Attributes:
        size: bytes of it that are held.
        ended: it must not be read any further, or wait, as there is no room for it.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self.size = 0
        self.ended = False
        self.end = end


class BodyBudget:
    """Limits what is held of all bodies that are not whole, or wait for their turn. Thread-safe.

    A body that alone holds anything always passes. Otherwise the largest one ends when there is too much, so that small
    ones pass while others fill the budget.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = min(max((allowed_memory() or 0) // _PART, _LEAST), _MOST) if limit is None else limit
        self._held = 0
        # Of all bodies that have left.
        self._freed = 0
        self._bodies: set[Body] = set()
        self._lock = threading.Lock()

    def begin(self, end: Callable[[], object]) -> Body | None:
        """Return the body of a request whose head has come; None while the budget is full, which ends the largest one.

        ``end`` is called when this body has to end, on any thread. Call ``leave`` when it is whole, or given up.
        """
        with self._lock:
            if self._held < self._limit:
                body = Body(end)
                self._bodies.add(body)
                return body
            largest = self._end_largest()
        largest.end()
        return None

    def hold(self, body: Body, size: int) -> None:
        """Note how much of a body is held now."""
        ended = []
        with self._lock:
            # What has left or ended counts no more, whatever another thread still reads of it.
            if body in self._bodies:
                self._held += size - body.size
                body.size = size
            while self._held > self._limit and sum(one.size > 0 for one in self._bodies) > 1:
                ended.append(self._end_largest())
        for one in ended:
            one.end()

    def keep(self, size: int) -> Body:
        """Return a whole body that waits from now on. It has to look whether it has ``ended``, and to ``leave``."""
        body = Body(lambda: None)
        with self._lock:
            self._bodies.add(body)
        # However large, it can wait while small ones come.
        self.hold(body, min(size, self._limit // 2))
        return body

    def leave(self, body: Body) -> None:
        """Count a body no more. A second call does nothing."""
        with self._lock:
            self._drop(body)

    def has_freed_much(self) -> bool:
        """Return whether bodies have held much since this was true last, and none holds anything now."""
        with self._lock:
            is_much = not self._held and self._freed >= _MUCH
            if is_much:
                self._freed = 0
            return is_much

    def _end_largest(self) -> Body:
        largest = max(self._bodies, key=lambda body: body.size)
        self._drop(largest)
        largest.ended = True
        return largest

    def _drop(self, body: Body) -> None:
        if body in self._bodies:
            self._bodies.remove(body)
            self._held -= body.size
            self._freed += body.size
