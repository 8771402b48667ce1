"""The running requests, from their arrival to the end of the last background node."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from wsgiref.types import WSGIEnvironment

from Middleware.api.running.disconnect_watcher import DisconnectWatcher, Probe
from Middleware.models.cancel_scope import SERVER_STOPS
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.idempotency_service import get_idempotency_service

logger = logging.getLogger(__name__)

# Keys of the WSGI environ. Requests that run no workflow have the id only.
REQUEST_KEY = "wilmer.request"
REQUEST_ID_KEY = "wilmer.request_id"
# When the time for background nodes is up, they are cancelled and get this much longer to end.
CANCELLED_SECONDS = 2.0
# Between two checks whether all requests have ended.
_POLL_SECONDS = 0.02


def request_of(environ: WSGIEnvironment) -> RequestContext | None:
    """Return the request that belongs to a WSGI environ; None if it was not admitted by the middleware."""
    return environ.get(REQUEST_KEY)


def is_cut_off(request: RequestContext) -> bool:
    """Return whether the end of the server has cancelled a request, so that its answer cannot be complete."""
    return request.cancel_scope.reason == SERVER_STOPS


def _note_cancellation(request: RequestContext) -> None:
    request.cancelled_at = request.cancel_scope.cancelled_at
    # The thread that cancels may serve another user, but the line belongs to this request's user.
    with request_scope(request):
        logger.info("Request %s is cancelled: %s", request.request_id, request.cancel_scope.reason or "its id was sent")


class RunningRequests:
    """Registers a request when it arrives, so that it can be cancelled, and removes it when it ends.

    Attributes:
        on_drain: called when no more requests are accepted and the server ends with the last one.
    """

    on_drain: Callable[[], object] | None = None

    def __init__(self) -> None:
        self._requests: dict[str, RequestContext] = {}
        # Requests that the engine has taken over; it calls ``end`` for them.
        self._in_engine: set[str] = set()
        # Requests whose background nodes have a thread.
        self._in_background: set[str] = set()
        self._stopping = self._draining = False
        self._lock = threading.Lock()
        self.watcher = DisconnectWatcher()

    def arrive(self, request: RequestContext) -> bool:
        """Register a request, which may have to wait for a slot: it can be cancelled by its id from now on.

        Returns False if it came too late because the server is stopping.
        """
        with self._lock:
            if request.request_id in self._requests:
                return True
            if self._stopping:
                return False
            self._requests[request.request_id] = request
        get_cancellation_service().adopt(request.request_id, request.cancel_scope)
        request.cancel_scope.add_callback(partial(_note_cancellation, request))
        return True

    def begin(self, request: RequestContext, probe: Probe | None) -> None:
        """Mark a request as taken over by the engine. The code that runs it must call ``end``."""
        self.arrive(request)
        with self._lock:
            self._in_engine.add(request.request_id)
        self.watcher.watch(request, probe)

    def renew(self, request: RequestContext, probe: Probe | None) -> None:
        """Let a request that was cancelled to make room run once more, as if it had just begun."""
        get_cancellation_service().acknowledge_cancellation(request.request_id)
        request.begin_again()
        get_cancellation_service().adopt(request.request_id, request.cancel_scope)
        request.cancel_scope.add_callback(partial(_note_cancellation, request))
        self.watcher.watch(request, probe)
        with self._lock:
            stopping = self._stopping
        # The end of the server may have cancelled the scope that is no longer in use.
        if stopping:
            request.cancel_scope.cancel(SERVER_STOPS)

    def answered(self, request: RequestContext) -> None:
        """Note that the server has the whole answer, so that the client may disconnect."""
        request.answered_at = time.monotonic()
        self.watcher.forget(request)

    def leave(self, request: RequestContext) -> None:
        """Note that the application has answered. This ends a request that never reached the engine."""
        # In this order, because the engine may end its own at any time, and that removes them here last.
        if request.request_id not in self._in_engine and request.request_id in self._requests:
            self.end(request)
            request.report("request_turned_away", request)

    def end(self, request: RequestContext) -> None:
        """Remove a request of which no work is left, with all that it holds. A second call does nothing."""
        self.watcher.forget(request)
        get_cancellation_service().acknowledge_cancellation(request.request_id)
        get_idempotency_service().release(request.request_id)
        with self._lock:
            self._requests.pop(request.request_id, None)
            self._in_engine.discard(request.request_id)
            on_end, request.on_end = request.on_end, None
        if on_end is not None:
            on_end()
        # Last, as the request that gets the slot begins at once.
        request.free_slot()

    def cancel(self, request_id: str, reason: str) -> None:
        """Cancel a request if it is running; without effect if it has just ended."""
        request = self._requests.get(request_id)
        if request is not None:
            request.cancel_scope.cancel(reason)

    def find(self, request_id: str) -> RequestContext | None:
        """Return the running request with this id, or None."""
        return self._requests.get(request_id)

    def of_client(self, api_type: str, api_key: str | None) -> list[RequestContext]:
        """Return the requests of a key in one dialect whose answers are not complete, oldest first."""
        with self._lock:
            running = list(self._requests.values())
        return [
            request
            for request in running
            if request.api_type == api_type and request.api_key == api_key and not request.answer_complete
        ]

    @property
    def stopping(self) -> bool:
        """Whether the server is about to end, so that what only waits for news ends too."""
        return self._stopping or self._draining

    @property
    def at_work(self) -> bool:
        """Whether a request or a background node runs."""
        return bool(self._requests or self._in_background)

    def knows(self, request_id: str) -> bool:
        return request_id in self._requests

    def count(self) -> int:
        return len(self._requests)

    @contextlib.contextmanager
    def in_background(self, request: RequestContext) -> Iterator[int]:
        """Count a request whose background nodes run in this thread; yields the number of such requests."""
        with self._lock:
            self._in_background.add(request.request_id)
            count = len(self._in_background)
        request.background_at = time.monotonic()
        try:
            yield count
        finally:
            with self._lock:
                self._in_background.discard(request.request_id)

    def begin_drain(self, timeout: float) -> None:
        """Note that the server will end when all requests have, but after ``timeout`` seconds at the latest."""
        self._draining = True
        if self.on_drain is not None:
            self.on_drain()
        if running := self.count():
            logger.info(
                "stopping: requests that may go on for up to %g s: %d; Ctrl-C again ends at once",
                timeout,
                running,
                extra={"terminal": True},
            )

    def shut_down(self, timeout: float) -> None:
        """Refuse new requests, cancel those without an answer, and give the others up to ``timeout`` seconds."""
        with self._lock:
            # Under the lock, so that no request arrives between the count of the running ones and the end.
            self._stopping = True
            running = list(self._requests.values())
        unanswered = [request for request in running if not request.answer_complete]
        if running:
            waited_for = len(running) - len(unanswered)
            logger.info(
                "stopping: requests cancelled: %d, finishing their background nodes (up to %g s): %d%s",
                len(unanswered),
                timeout,
                waited_for,
                "; Ctrl-C again ends at once" if waited_for else "",
                extra={"terminal": True},
            )
        else:
            logger.info("stopping: no request is under way", extra={"terminal": True})
        self._cancel_all(unanswered)
        if self._wait_for_end(timeout):
            return
        with self._lock:
            left = list(self._requests.values())
        for request in left:
            logger.warning("Request %s is still at work after %g s; it is cancelled", request.request_id, timeout)
        self._cancel_all(left)
        if not self._wait_for_end(CANCELLED_SECONDS):
            logger.warning("stopping: requests that do not end and are left alone: %d", self.count())

    @staticmethod
    def _cancel_all(requests: list[RequestContext]) -> None:
        for request in requests:
            # This has no effect if the request has just ended.
            request.cancel_scope.cancel(SERVER_STOPS)

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait until all work has ended and been logged; return False if the time was not enough."""
        deadline = time.monotonic() + seconds
        while self.at_work:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def running_requests() -> RunningRequests:
    """Return the running requests of this process."""
    return process().one(RunningRequests)
