"""The cancellation of one request."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

GAVE_WAY = "a chat needs its slot"
"""The reason of the cancellation of work that is done again later, because a client waits for other work."""
SERVER_STOPS = "the server stops"
"""The reason of the cancellation of all that is under way when the server ends."""


class CancelScope:
    """A flag that is set once, and callbacks that interrupt blocked work.

    Thread-safe. Callbacks run once, outside the lock, on the thread that cancels; one that raises is logged and the
    others still run. A callback must not block and must not close descriptors that another thread reads from: shut
    the socket down instead, and let its owner close it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # An attribute, as every node and every token of a stream asks for it.
        self.cancelled = False
        # Under tokens, as two calls of a request may register equal callbacks.
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._tokens = itertools.count(1)
        self.reason = ""
        # Monotonic seconds.
        self.cancelled_at: float | None = None

    def cancel(self, reason: str = "") -> bool:
        """Set the flag and run the callbacks. Return False if it was already set."""
        with self._lock:
            if self.cancelled:
                return False
            # In this order, as other threads read these as soon as the flag is set.
            self.reason, self.cancelled_at = reason, time.monotonic()
            self.cancelled = True
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        # Without the lock, as a callback may register or remove others.
        for callback in callbacks:
            self._run(callback)
        return True

    def add_callback(self, callback: Callable[[], object]) -> int:
        """Call ``callback`` on cancellation, immediately if it has happened. Return a token for ``remove_callback``."""
        token = next(self._tokens)
        with self._lock:
            if not self.cancelled:
                self._callbacks[token] = callback
                return token
        # Cancelled already, perhaps by another thread just now.
        self._run(callback)
        return token

    def remove_callback(self, token: int) -> None:
        with self._lock:
            self._callbacks.pop(token, None)

    def remove_callbacks(self, callback: Callable[[], object] | None = None) -> None:
        """Drop every registration of ``callback``, or all of them."""
        with self._lock:
            self._callbacks = (
                {}
                if callback is None
                else {token: known for token, known in self._callbacks.items() if known != callback}
            )

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` or until cancelled; return whether the scope is cancelled."""
        # Made here, as hardly any request waits so, and each would hold a kilobyte.
        event = threading.Event()
        token = self.add_callback(event.set)
        event.wait(seconds)
        self.remove_callback(token)
        return self.cancelled

    @staticmethod
    def _run(callback: Callable[[], object]) -> None:
        try:
            callback()
        # A failing callback must not prevent the others from running.
        except Exception:
            logger.exception("An abort callback failed")
