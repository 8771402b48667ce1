"""The requests under way, from arrival to the last background node."""
from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from wsgiref.types import WSGIEnvironment

from Middleware.api.running.disconnect_watcher import DisconnectWatcher, Probe
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.idempotency_service import get_idempotency_service

logger = logging.getLogger(__name__)

REQUEST_KEY = "wilmer.request"  # in the WSGI environ
REQUEST_ID_KEY = "wilmer.request_id"  # there too, also of requests that run no workflow
SERVER_STOPS = "the server stops"
CANCELLED_SECONDS = 2.0
"""What the nodes after an answer get to end when they were cancelled, because the time for them was up."""
_SLICE = 0.02


def request_of(environ: WSGIEnvironment) -> RequestContext | None:
    """The request that a WSGI environ stands for, if it came through the admission."""
    return environ.get(REQUEST_KEY)


def _note_cancellation(request: RequestContext) -> None:
    request.cancelled_at = time.monotonic()
    with request_scope(request):  # whoever cancels it, the line belongs to the request's user
        logger.info("Request %s is cancelled: %s", request.request_id, request.cancel_scope.reason or "its id was sent")


class RunningRequests:
    """Registers a request's stop switch when it arrives and removes every trace of it when it ends."""

    def __init__(self) -> None:
        self._requests: dict[str, RequestContext] = {}
        self._at_work: set[str] = set()  # those that the engine has; it says when they end
        self._in_background: set[str] = set()  # those whose nodes after the answer have a thread
        self._stopping = False
        self._lock = threading.Lock()
        self.watcher = DisconnectWatcher()

    def arrive(self, request: RequestContext) -> bool:
        """The request is there, perhaps to wait for its turn: it can be cancelled by its id from now on.

        Returns False if it came too late, because the server stops.
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
        """The engine takes the request over, and whoever runs it calls ``end``."""
        self.arrive(request)
        with self._lock:
            self._at_work.add(request.request_id)
        self.watcher.watch(request, probe)

    def answered(self, request: RequestContext) -> None:
        """The whole answer has been handed to the server; the client may leave now."""
        request.answered_at = time.monotonic()
        self.watcher.forget(request)

    def leave(self, request: RequestContext) -> None:
        """The response is over. Ends a request that the engine never had."""
        if request.request_id not in self._at_work:
            self.end(request)

    def end(self, request: RequestContext) -> None:
        """No work of this request is left."""
        self.watcher.forget(request)
        get_cancellation_service().acknowledge_cancellation(request.request_id)
        get_idempotency_service().release(request.request_id)
        with self._lock:
            self._requests.pop(request.request_id, None)
            self._at_work.discard(request.request_id)

    def cancel(self, request_id: str, reason: str) -> None:
        """Cancel a request if it is under way; leaves no trace if it has just ended."""
        request = self._requests.get(request_id)
        if request is not None:
            request.cancel_scope.cancel(reason)

    def find(self, request_id: str) -> RequestContext | None:
        """The request of this id if it is under way."""
        return self._requests.get(request_id)

    def knows(self, request_id: str) -> bool:
        return request_id in self._requests

    def count(self) -> int:
        return len(self._requests)

    @contextlib.contextmanager
    def in_background(self, request: RequestContext) -> Iterator[int]:
        """For the thread that runs the nodes after an answer; yields how many requests have such a thread now."""
        with self._lock:
            self._in_background.add(request.request_id)
            count = len(self._in_background)
        request.background_at = time.monotonic()
        try:
            yield count
        finally:
            with self._lock:
                self._in_background.discard(request.request_id)

    def refuse_more(self) -> None:
        """Requests that arrive from now on are too late."""
        with self._lock:
            self._stopping = True

    def shut_down(self, patience: float) -> None:
        """Cancel what is not answered, and give the rest ``patience`` seconds."""
        with self._lock:
            running = list(self._requests.values())
        unanswered = [request for request in running if not request.answer_complete]
        if running:
            waited_for = len(running) - len(unanswered)
            logger.info("stopping: requests cancelled: %d, finishing their background nodes (up to %g s): %d%s",
                        len(unanswered), patience, waited_for, "; Ctrl-C again ends at once" if waited_for else "")
        else:
            logger.info("stopping: no request is under way")
        self._cancel_all(unanswered)
        if self._wait_for_the_end(patience):
            return
        with self._lock:
            left = list(self._requests.values())
        for request in left:
            logger.warning("Request %s is still at work after %g s; it is cancelled", request.request_id, patience)
        self._cancel_all(left)
        if not self._wait_for_the_end(CANCELLED_SECONDS):
            logger.warning("stopping: requests that do not end and are left alone: %d", self.count())

    @staticmethod
    def _cancel_all(requests: list[RequestContext]) -> None:
        for request in requests:
            request.cancel_scope.cancel(SERVER_STOPS)  # leaves no trace if the request has just ended

    def _wait_for_the_end(self, seconds: float) -> bool:
        """Whether all work ended in time, with its last words in the log."""
        deadline = time.monotonic() + seconds
        while self._requests or self._in_background:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_SLICE)
        return True


def running_requests() -> RunningRequests:
    """The requests of this process."""
    return process().one(RunningRequests)
