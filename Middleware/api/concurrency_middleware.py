"""The concurrency gate: a limit on the requests that run at the same time."""
from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from Middleware.api.edge.admission_middleware import COMPLETIONS, route_path
from Middleware.api.errors import RETRY_AFTER, error_body
from Middleware.api.running.disconnect_watcher import probe_for
from Middleware.api.running.running_requests import request_of
from Middleware.common.fair_semaphore import FairSemaphore, Waiter
from Middleware.models.request_context import note_wait
from Middleware.services.response_builder_service import to_json

logger = logging.getLogger(__name__)

BUSY = "Server busy, concurrency limit reached"
# Seconds between two checks whether the client of a waiting request has disconnected.
POLL_SECONDS = 0.1
WORKFLOW_PATHS = COMPLETIONS | {"/api/chat", "/api/generate"}


class ConcurrencyLimitMiddleware:
    """Limits the number of requests that run a workflow at the same time, and serves them in the order of arrival.

    Other requests never wait. A waiting request whose client disconnects is dropped. A request that is cancelled while
    its client still waits needs no slot: the application runs nothing for it, and answers in its dialect.

    Args:
        app: the WSGI application behind the gate.
        semaphore: its slots; a slot is held until the response body is exhausted, closed or fails. Only a
            ``FairSemaphore`` keeps the order of arrival.
        acquire_timeout: seconds a request may wait before it is answered with 503.
        max_waiting: the number of requests that may wait at the same time, each of which occupies a server thread;
            further ones get a 503 at once.
    """

    def __init__(self, app: WSGIApplication, semaphore: FairSemaphore | threading.Semaphore,
                 acquire_timeout: float = 900, max_waiting: int | None = None) -> None:
        self.app = app
        self.semaphore = semaphore
        self.acquire_timeout = acquire_timeout
        self.max_waiting = max_waiting
        self._waiting = 0
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") != "POST" or route_path(environ) not in WORKFLOW_PATHS:
            return self.app(environ, start_response)
        outcome = self._queue(environ)
        if outcome is _Outcome.WITHOUT_SLOT:
            return self.app(environ, start_response)
        if outcome is _Outcome.REFUSED:
            body = to_json(error_body(BUSY, 503, environ.get("PATH_INFO", "")))
            start_response("503 Service Unavailable", [
                ("Content-Type", "application/json"), ("Content-Length", str(len(body))), RETRY_AFTER])
            return [body]
        try:
            return _GatedBody(self.app(environ, start_response), self.semaphore)
        except BaseException:
            self.semaphore.release()
            raise

    def _queue(self, environ: WSGIEnvironment) -> _Outcome:
        waiter = self.semaphore.enqueue() if isinstance(self.semaphore, FairSemaphore) else _Poll(self.semaphore)
        if waiter.wait(0):
            return _Outcome.WITH_SLOT
        outcome = _Outcome.REFUSED
        try:
            if self._may_wait(environ):
                outcome = self._wait(environ, waiter)
        finally:
            if outcome is not _Outcome.WITH_SLOT:
                waiter.leave()
        return outcome

    def _may_wait(self, environ: WSGIEnvironment) -> bool:
        with self._lock:
            waiting = self._waiting
            full = self.max_waiting is not None and waiting >= self.max_waiting
            self._waiting += not full
        if full:
            logger.warning("Concurrency gate: %d requests wait already, refusing request %s", waiting, _name(environ))
        else:
            logger.info("Concurrency gate: all slots are taken, request %s waits, %d waiting", _name(environ),
                        waiting + 1)
        return not full

    def _wait(self, environ: WSGIEnvironment, waiter: Waiter | _Poll) -> _Outcome:
        began = time.monotonic()
        try:
            outcome = self._wait_in_line(environ, waiter, began + self.acquire_timeout)
        finally:
            waited = time.monotonic() - began
            note_wait(request_of(environ), waited)
            with self._lock:
                self._waiting -= 1
        if outcome is _Outcome.WITH_SLOT:
            logger.info("Concurrency gate: request %s goes on after %.2f s", _name(environ), waited)
        return outcome

    def _wait_in_line(self, environ: WSGIEnvironment, waiter: Waiter | _Poll, deadline: float) -> _Outcome:
        has_left, request = probe_for(environ), request_of(environ)
        while (left := deadline - time.monotonic()) > 0:
            if waiter.wait(min(POLL_SECONDS, left)):
                return _Outcome.WITH_SLOT
            if has_left is not None and has_left():
                logger.info("Concurrency gate: the client of request %s has gone", _name(environ))
                return _Outcome.REFUSED
            if request is not None and request.cancel_scope.cancelled:
                return _Outcome.WITHOUT_SLOT
        logger.warning("Concurrency gate: no slot became free in %s s, refusing request %s", self.acquire_timeout,
                       _name(environ))
        return _Outcome.REFUSED


class _Outcome(enum.Enum):
    """The ways in which a request leaves the queue."""

    WITH_SLOT = enum.auto()
    WITHOUT_SLOT = enum.auto()
    REFUSED = enum.auto()


class _Poll:
    """Replaces a waiter in the queue for semaphores that have no queue."""

    def __init__(self, semaphore: threading.Semaphore) -> None:
        self._semaphore = semaphore

    def wait(self, timeout: float) -> bool:
        return self._semaphore.acquire(timeout=timeout) if timeout else self._semaphore.acquire(blocking=False)

    def leave(self) -> None:
        """Do nothing, as there is no waiter to give up."""


def _name(environ: WSGIEnvironment) -> str:
    request = request_of(environ)
    return request.request_id if request else "-"


class _GatedBody:
    """A response body that releases its slot once, when it is exhausted, fails or is closed."""

    def __init__(self, body: Iterable[bytes], semaphore: FairSemaphore | threading.Semaphore) -> None:
        self._body = body
        self._iterator = iter(body)
        self._semaphore: FairSemaphore | threading.Semaphore | None = semaphore
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._iterator)
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        # The answer has been sent, and background nodes, which the inner close() starts, need no slot.
        self._release()
        close = getattr(self._body, "close", None)
        if close is not None:
            close()

    def _release(self) -> None:
        # The server may close the body on another thread than the one that iterates over it.
        with self._lock:
            semaphore, self._semaphore = self._semaphore, None
        if semaphore is not None:
            semaphore.release()
