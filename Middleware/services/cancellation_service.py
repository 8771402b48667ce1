"""Stop requests by their id. Each id stands for the cancel scope that the running request watches."""
from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process

logger = logging.getLogger(__name__)

MAX_UNKNOWN = 1024
MAX_AGE_SECONDS = 3600.0
"""The cancellation of a request that never arrived is forgotten after this time, at the next cancellation, and earlier
if there are more than ``MAX_UNKNOWN``."""


@dataclass
class _Entry:
    scope: CancelScope = field(default_factory=CancelScope)
    adopted: bool = False  # the scope is that of a request which has arrived
    watchers: int = 0  # runs without such a request that watch the scope


class CancellationService:
    """Registry of cancel scopes by request id. Thread-safe; callbacks run outside its lock.

    ``clock`` gives seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._unknown: dict[str, float] = {}  # when ids without a request were cancelled; oldest first

    def scope_for(self, request_id: str) -> CancelScope:
        """The scope of a request, made if it is new. An empty id gets a scope that nobody else can cancel."""
        if not request_id:
            return CancelScope()
        with self._lock:
            return self._entry(request_id).scope

    @contextlib.contextmanager
    def watched(self, request_id: str) -> Iterator[CancelScope]:
        """``scope_for`` for the time of a block. Its end forgets the id, unless others are still at work for it."""
        if not request_id:
            yield CancelScope()
            return
        with self._lock:
            entry = self._entry(request_id)
            entry.watchers += 1
        try:
            yield entry.scope
        finally:
            with self._lock:
                entry.watchers -= 1
                is_over = not entry.watchers and not entry.adopted and self._entries.get(request_id) is entry
                if is_over:  # in the same step: somebody might adopt it meanwhile
                    del self._entries[request_id]
                    self._unknown.pop(request_id, None)
            if is_over:
                entry.scope.remove_callbacks()

    def adopt(self, request_id: str, scope: CancelScope) -> None:
        """Make ``scope`` the one of a request. A cancellation and callbacks that came first carry over to it."""
        if not request_id:
            logger.warning("A cancel scope without a request id cannot be registered")
            return
        with self._lock:
            entry = self._entry(request_id)
            before, entry.scope, entry.adopted = entry.scope, scope, True
            self._unknown.pop(request_id, None)
        if before is scope:
            return
        if before.cancelled:
            scope.cancel(before.reason)
        else:
            scope.add_callback(lambda: before.cancel(scope.reason))

    def request_cancellation(self, request_id: str, reason: str = "") -> None:
        """Cancel a request, known or not; again is a no-op."""
        if not request_id:
            logger.warning("A cancellation without a request id was ignored")
            return
        with self._lock:
            entry = self._entry(request_id)
            if not entry.adopted:
                self._unknown.setdefault(request_id, self._clock())
            self._drop_old()
        entry.scope.cancel(reason)

    def is_cancelled(self, request_id: str) -> bool:
        with self._lock:
            entry = self._entries.get(request_id) if request_id else None
            return entry is not None and entry.scope.cancelled

    def acknowledge_cancellation(self, request_id: str) -> None:
        """Forget a request with its callbacks. What holds its scope still sees the flag."""
        with self._lock:
            entry = self._entries.pop(request_id, None) if request_id else None
            self._unknown.pop(request_id, None)
        if entry is not None:
            entry.scope.remove_callbacks()

    def get_all_cancelled_requests(self) -> set[str]:
        with self._lock:
            return {request_id for request_id, entry in self._entries.items() if entry.scope.cancelled}

    def register_abort_callback(self, request_id: str, fn: Callable[[], object]) -> None:
        """Call ``fn`` when the request is cancelled, at once if it is. Errors of it are logged."""
        if not request_id:
            logger.warning("An abort callback without a request id was ignored")
            return
        with self._lock:
            self._drop_old()
            scope = self._entry(request_id).scope
        scope.add_callback(fn)

    def unregister_abort_callbacks(self, request_id: str, fn: Callable[[], object] | None = None) -> None:
        """Drop one callback of a request, or all of them."""
        with self._lock:
            entry = self._entries.get(request_id) if request_id else None
        if entry is not None:
            entry.scope.remove_callbacks(fn)

    def _entry(self, request_id: str) -> _Entry:
        entry = self._entries.get(request_id)
        if entry is None:
            entry = self._entries[request_id] = _Entry()
        return entry

    def _drop_old(self) -> None:
        limit = self._clock() - MAX_AGE_SECONDS
        while self._unknown:
            oldest, cancelled_at = next(iter(self._unknown.items()))
            if cancelled_at >= limit and len(self._unknown) <= MAX_UNKNOWN:
                break
            del self._unknown[oldest]
            self._entries.pop(oldest).scope.remove_callbacks()


def get_cancellation_service() -> CancellationService:
    """The service of this process."""
    return process().one(CancellationService)


def __getattr__(name: str) -> object:
    """``cancellation_service``, the name by which scripts know the service of this process."""
    if name == "cancellation_service":
        return get_cancellation_service()
    raise AttributeError(name)
