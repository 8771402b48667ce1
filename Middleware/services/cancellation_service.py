"""Cancel requests by their id. Each id identifies the cancel scope of a running request."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from Middleware.exceptions import StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process

logger = logging.getLogger(__name__)

# The cancellation of a request that never arrived is removed after this time, at the next cancellation, and earlier if
# there are more than MAX_UNKNOWN: a client could send any number of unknown ids.
MAX_UNKNOWN = 1024
MAX_AGE_SECONDS = 3600.0


@dataclass
class _Entry:
    scope: CancelScope = field(default_factory=CancelScope)
    # The scope belongs to a request that has arrived.
    adopted: bool = False
    # The number of runs without such a request that watch the scope.
    watchers: int = 0


class CancellationService:
    """Registry of cancel scopes by request id. Thread-safe; callbacks run outside its lock.

    ``clock`` is monotonic, in seconds.

    Attributes:
        relay: passes the cancellation of an unknown request on to other processes, with its id, a reason, and the users
            whose request it may be (None: any user's). None if there are no others. It may raise StateUnavailableError.
    """

    relay: Callable[[str, str, frozenset[str] | None], object] | None = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # The time of each cancellation of an unknown id, oldest first.
        self._unknown: dict[str, float] = {}

    def scope_for(self, request_id: str) -> CancelScope:
        """Return the scope of a request, a new one for a new id. An empty id gets a scope without an entry."""
        if not request_id:
            return CancelScope()
        with self._lock:
            return self._entry(request_id).scope

    @contextlib.contextmanager
    def watched(self, request_id: str) -> Iterator[CancelScope]:
        """Yield the scope of a request. The end of the block removes the id, unless others still use it."""
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
                # Under the same lock, because another thread might adopt the scope.
                if is_over:
                    del self._entries[request_id]
                    self._unknown.pop(request_id, None)
            if is_over:
                entry.scope.remove_callbacks()

    def adopt(self, request_id: str, scope: CancelScope) -> None:
        """Make ``scope`` the scope of a request. An earlier cancellation and earlier callbacks carry over to it."""
        if not request_id:
            logger.warning("A cancel scope without a request id cannot be registered")
            return
        with self._lock:
            entry = self._entries.get(request_id)
            if entry is None:
                self._entries[request_id] = _Entry(scope, adopted=True)
                return
            before, entry.scope, entry.adopted = entry.scope, scope, True
            self._unknown.pop(request_id, None)
        if before is scope:
            return
        if before.cancelled:
            scope.cancel(before.reason)
        else:
            scope.add_callback(lambda: before.cancel(scope.reason))

    def request_cancellation(self, request_id: str, reason: str = "", users: frozenset[str] | None = None) -> None:
        """Cancel a request, known or not; a second call does nothing.

        ``users``: whose requests other processes may cancel; None for those of all users. Who may cancel one of this
        process is asked before.

        Raises StateUnavailableError if other processes may have it and cannot be reached.
        """
        if not request_id:
            logger.warning("A cancellation without a request id was ignored")
            return
        with self._lock:
            entry = self._entry(request_id)
            if not entry.adopted:
                self._unknown.setdefault(request_id, self._clock())
            is_here = entry.adopted or entry.watchers
            self._drop_old()
        entry.scope.cancel(reason)
        if not is_here and self.relay is not None:
            self.relay(request_id, reason, users)

    def cancel_elsewhere(self, request_id: str, reason: str = "") -> None:
        """Cancel a request that another process may have; without effect if none can be reached."""
        if self.relay is not None:
            with contextlib.suppress(StateUnavailableError):
                self.relay(request_id, reason, None)

    def cancel_here(self, request_id: str, reason: str = "") -> None:
        """Cancel a request if this process has it."""
        with self._lock:
            entry = self._entries.get(request_id)
        if entry is not None:
            entry.scope.cancel(reason)

    def is_cancelled(self, request_id: str) -> bool:
        with self._lock:
            entry = self._entries.get(request_id) if request_id else None
            return entry is not None and entry.scope.cancelled

    def acknowledge_cancellation(self, request_id: str) -> None:
        """Remove a request with its callbacks. Owners of its scope still see the flag."""
        with self._lock:
            entry = self._entries.pop(request_id, None) if request_id else None
            self._unknown.pop(request_id, None)
        if entry is not None:
            entry.scope.remove_callbacks()

    def get_all_cancelled_requests(self) -> set[str]:
        with self._lock:
            return {request_id for request_id, entry in self._entries.items() if entry.scope.cancelled}

    def register_abort_callback(self, request_id: str, fn: Callable[[], object]) -> None:
        """Call ``fn`` when the request is cancelled, immediately if it already is. Its errors are logged."""
        if not request_id:
            logger.warning("An abort callback without a request id was ignored")
            return
        with self._lock:
            self._drop_old()
            scope = self._entry(request_id).scope
        scope.add_callback(fn)

    def unregister_abort_callbacks(self, request_id: str, fn: Callable[[], object] | None = None) -> None:
        """Remove one callback of a request, or all of them."""
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
    """Return the service of this process."""
    return process().one(CancellationService)


def __getattr__(name: str) -> object:
    """Provide ``cancellation_service``, the name that scripts use for the service of this process."""
    if name == "cancellation_service":
        return get_cancellation_service()
    raise AttributeError(name)
