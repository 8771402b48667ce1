"""Which request works for which idempotency key, so that a client's retry can displace its earlier attempt."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from Middleware.models.process import process

MAX_ENTRIES = 1024
MAX_AGE_SECONDS = 900.0
"""An entry that was never released is dropped after this time, at the next registration."""


@dataclass(frozen=True)
class _Entry:
    request_id: str
    registered_at: float  # seconds of the service's clock


class IdempotencyService:
    """Registry of request ids by key, in this process only. Thread-safe; answers are never replayed.

    Attributes:
        is_running: whether a request is still at work; the entries of such requests do not age.

    ``clock`` gives seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}  # oldest registration first
        self._keys: dict[str, str] = {}  # by request id
        self.is_running: Callable[[str], bool] = lambda request_id: False

    def register(self, key: str | None, request_id: str | None) -> str | None:
        """Bind ``key`` to a request. Returns the other request that had it, which the caller cancels, or None.

        Blank input is ignored.
        """
        if not key or not request_id:
            return None
        with self._lock:
            self._drop_old()
            self._forget(self._keys.get(request_id))  # a request has one key
            before = self._forget(key)
            self._entries[key] = _Entry(request_id, self._clock())
            self._keys[request_id] = key
            while len(self._entries) > MAX_ENTRIES:
                self._forget(next(iter(self._entries)))
        return before.request_id if before and before.request_id != request_id else None

    def release(self, request_id: str | None) -> None:
        """Unbind the key of a request, unless another request has it by now. Unknown ids are fine."""
        if request_id in self._keys:  # most requests have no key: they take no lock
            with self._lock:
                self._forget(self._keys.get(request_id))

    def get_request_id_for_key(self, key: str | None) -> str | None:
        """The request that is bound to ``key`` now."""
        with self._lock:
            entry = self._entries.get(key) if key else None
        return entry.request_id if entry else None

    def clear(self) -> None:
        """Forget everything."""
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
                break  # the rest is younger
            if not self.is_running(entry.request_id):
                old.append(key)
        for key in old:
            self._forget(key)


def get_idempotency_service() -> IdempotencyService:
    """The service of this process."""
    return process().one(IdempotencyService)


def __getattr__(name: str) -> object:
    """``idempotency_service``, the name by which scripts know the service of this process."""
    if name == "idempotency_service":
        return get_idempotency_service()
    raise AttributeError(name)
