"""The requests by idempotency key, so that a client's retry can replace its earlier attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from Middleware.models.process import process

# Clients choose the keys, so their number needs a limit.
MAX_ENTRIES = 1024
# An entry that was never released is removed after this time, at the next registration.
MAX_AGE_SECONDS = 900.0


@dataclass(frozen=True)
class _Entry:
    request_id: str
    # Seconds of the service's clock.
    registered_at: float


class IdempotencyService:
    """Registry of request ids by key, in this process only. Thread-safe; answers are never replayed.

    Attributes:
        is_running: returns whether a request is still running; the entries of such requests do not expire.

    ``clock`` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Ordered by registration, oldest first.
        self._entries: dict[str, _Entry] = {}
        # The key of each request, by request id.
        self._keys: dict[str, str] = {}
        self.is_running: Callable[[str], bool] = lambda request_id: False

    def register(self, key: str | None, request_id: str | None) -> str | None:
        """Bind ``key`` to a request. Return the other request that had it, which the caller cancels, or None.

        Empty arguments are ignored.
        """
        if not key or not request_id:
            return None
        with self._lock:
            self._drop_old()
            # A request has only one key.
            self._forget(self._keys.get(request_id))
            before = self._forget(key)
            self._entries[key] = _Entry(request_id, self._clock())
            self._keys[request_id] = key
            while len(self._entries) > MAX_ENTRIES:
                self._forget(next(iter(self._entries)))
        return before.request_id if before and before.request_id != request_id else None

    def release(self, request_id: str | None) -> None:
        """Release the key of a request, unless another request has taken it. Unknown ids are ignored."""
        # Most requests have no key and must not wait for the lock.
        if request_id in self._keys:
            with self._lock:
                self._forget(self._keys.get(request_id))

    def get_request_id_for_key(self, key: str | None) -> str | None:
        """Return the request that has ``key`` now."""
        with self._lock:
            entry = self._entries.get(key) if key else None
        return entry.request_id if entry else None

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._keys.clear()

    def _forget(self, key: str | None) -> _Entry | None:
        entry = self._entries.pop(key, None) if key else None
        if entry is not None:
            self._keys.pop(entry.request_id, None)
        return entry

    def _drop_old(self) -> None:
        limit = self._clock() - MAX_AGE_SECONDS
        old = []
        for key, entry in self._entries.items():
            if entry.registered_at >= limit:
                # All following entries are younger.
                break
            if not self.is_running(entry.request_id):
                old.append(key)
        for key in old:
            self._forget(key)


def get_idempotency_service() -> IdempotencyService:
    """Return the service of this process."""
    return process().one(IdempotencyService)


def __getattr__(name: str) -> object:
    """Provide ``idempotency_service``, the name that scripts use for the service of this process."""
    if name == "idempotency_service":
        return get_idempotency_service()
    raise AttributeError(name)
