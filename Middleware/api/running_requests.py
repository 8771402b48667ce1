"""The requests under way, from arrival to the last background node."""
from __future__ import annotations

import logging
import threading
import time

from Middleware.api.disconnect_watcher import DisconnectWatcher, Probe
from Middleware.models.request_context import RequestContext
from Middleware.services.cancellation_service import cancellation_service

logger = logging.getLogger(__name__)


class RunningRequests:
    """Registers a request's stop switch when it begins and removes every trace of it when it ends."""

    def __init__(self) -> None:
        self._requests: dict[str, RequestContext] = {}
        self._lock = threading.Lock()
        self.watcher = DisconnectWatcher()

    def begin(self, request: RequestContext, probe: Probe | None) -> None:
        with self._lock:
            self._requests[request.request_id] = request
        cancellation_service.adopt(request.request_id, request.cancel_scope)
        self.watcher.watch(request, probe)

    def answered(self, request: RequestContext) -> None:
        """The whole answer has been handed to the server; the client may leave now."""
        request.answer_complete = True
        request.answered_at = time.monotonic()
        self.watcher.forget(request)

    def end(self, request: RequestContext) -> None:
        """No work of this request is left."""
        self.watcher.forget(request)
        cancellation_service.acknowledge_cancellation(request.request_id)
        with self._lock:
            self._requests.pop(request.request_id, None)

    def count(self) -> int:
        return len(self._requests)

    def shut_down(self, patience: float) -> None:
        """Cancel what is not answered, and give the rest ``patience`` seconds."""
        with self._lock:
            running = list(self._requests.values())
        for request in running:
            if not request.answer_complete:
                cancellation_service.request_cancellation(request.request_id)
        deadline = time.monotonic() + patience
        while self._requests and time.monotonic() < deadline:
            time.sleep(0.05)
        with self._lock:
            left = list(self._requests.values())
        for request in left:
            logger.warning("Request %s is still at work; stopping it", request.request_id)
            cancellation_service.request_cancellation(request.request_id)


running_requests = RunningRequests()
