"""The requests under way, from arrival to the last background node."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from Middleware.api.disconnect_watcher import DisconnectWatcher, Probe
from Middleware.models.request_context import RequestContext
from Middleware.services.cancellation_service import cancellation_service
from Middleware.services.idempotency_service import idempotency_service

logger = logging.getLogger(__name__)

REQUEST_KEY = "wilmer.request"  # in the WSGI environ


def request_of(environ: Mapping[str, Any]) -> RequestContext | None:
    """The request that a WSGI environ stands for, if it came through the admission."""
    return environ.get(REQUEST_KEY)


class RunningRequests:
    """Registers a request's stop switch when it arrives and removes every trace of it when it ends."""

    def __init__(self) -> None:
        self._requests: dict[str, RequestContext] = {}
        self._at_work: set[str] = set()  # those that the engine has; it says when they end
        self._lock = threading.Lock()
        self.watcher = DisconnectWatcher()

    def arrive(self, request: RequestContext) -> None:
        """The request is there, perhaps to wait for its turn: it can be cancelled by its id from now on."""
        with self._lock:
            if request.request_id in self._requests:
                return
            self._requests[request.request_id] = request
        cancellation_service.adopt(request.request_id, request.cancel_scope)
        request.cancel_scope.add_callback(lambda: logger.info(
            "Request %s is cancelled: %s", request.request_id, request.cancel_scope.reason or "its id was sent"))

    def begin(self, request: RequestContext, probe: Probe | None) -> None:
        """The engine takes the request over, and whoever runs it calls ``end``."""
        self.arrive(request)
        with self._lock:
            self._at_work.add(request.request_id)
        self.watcher.watch(request, probe)

    def answered(self, request: RequestContext) -> None:
        """The whole answer has been handed to the server; the client may leave now."""
        request.answer_complete = True
        request.answered_at = time.monotonic()
        self.watcher.forget(request)

    def leave(self, request: RequestContext) -> None:
        """The response is over. Ends a request that the engine never had."""
        if request.request_id not in self._at_work:
            self.end(request)

    def end(self, request: RequestContext) -> None:
        """No work of this request is left."""
        self.watcher.forget(request)
        cancellation_service.acknowledge_cancellation(request.request_id)
        idempotency_service.release(request.request_id)
        with self._lock:
            self._requests.pop(request.request_id, None)
            self._at_work.discard(request.request_id)

    def cancel(self, request_id: str, reason: str) -> None:
        """Cancel a request if it is under way; leaves no trace if it has just ended."""
        request = self._requests.get(request_id)
        if request is not None:
            request.cancel_scope.cancel(reason)

    def knows(self, request_id: str) -> bool:
        return request_id in self._requests

    def count(self) -> int:
        return len(self._requests)

    def shut_down(self, patience: float) -> None:
        """Cancel what is not answered, and give the rest ``patience`` seconds."""
        with self._lock:
            running = list(self._requests.values())
        for request in running:
            if not request.answer_complete:
                cancellation_service.request_cancellation(request.request_id, "the server stops")
        deadline = time.monotonic() + patience
        while self._requests and time.monotonic() < deadline:
            time.sleep(0.05)
        with self._lock:
            left = list(self._requests.values())
        for request in left:
            logger.warning("Request %s is still at work; stopping it", request.request_id)
            cancellation_service.request_cancellation(request.request_id, "the server stops")


running_requests = RunningRequests()
