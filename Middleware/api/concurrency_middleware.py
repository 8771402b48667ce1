"""The concurrency gate at the front door (frontend-api, section 11)."""
from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from Middleware.api.disconnect_watcher import probe_for

logger = logging.getLogger(__name__)

BUSY = json.dumps({"error": {"message": "Server busy, concurrency limit reached", "type": "server_error",
                             "code": 503}}).encode()
SLICE = 0.1  # seconds between two looks at a waiting client
RETRY_AFTER = "5"

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class ConcurrencyLimitMiddleware:
    """Lets a limited number of POST requests through at a time; other methods never wait.

    Args:
        app: the WSGI application behind the gate.
        semaphore: its slots; a slot is held until the response body is closed.
        acquire_timeout: seconds a request may wait before it is answered with 503.
        max_waiting: how many requests may wait at a time (each occupies a server thread); more get their 503 at once.
    """

    def __init__(self, app: WsgiApp, semaphore: threading.BoundedSemaphore, acquire_timeout: float = 900,
                 max_waiting: int | None = None) -> None:
        self.app = app
        self.semaphore = semaphore
        self.acquire_timeout = acquire_timeout
        self.max_waiting = max_waiting
        self._waiting = 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") != "POST":
            return self.app(environ, start_response)
        if not self._acquire(environ):
            start_response("503 Service Unavailable", [
                ("Content-Type", "application/json"), ("Content-Length", str(len(BUSY))),
                ("Retry-After", RETRY_AFTER)])
            return [BUSY]
        slot = _Slot(self.semaphore)
        try:
            body = self.app(environ, start_response)
        except BaseException:
            slot.release()
            raise
        return _GatedBody(body, slot)

    def _acquire(self, environ: dict[str, Any]) -> bool:
        if self.semaphore.acquire(blocking=False):
            return True
        with self._lock:
            if self.max_waiting is not None and self._waiting >= self.max_waiting:
                logger.warning("Concurrency gate: %d requests wait already, refusing one more", self._waiting)
                return False
            self._waiting += 1
            logger.info("Concurrency gate: all slots are taken, %d waiting", self._waiting)
        try:
            return self._wait(environ)
        finally:
            with self._lock:
                self._waiting -= 1

    def _wait(self, environ: dict[str, Any]) -> bool:
        gone = probe_for(environ)
        deadline = time.monotonic() + self.acquire_timeout
        while (left := deadline - time.monotonic()) > 0:
            if self.semaphore.acquire(timeout=min(SLICE, left)):
                return True
            if gone is not None and gone():
                logger.info("Concurrency gate: a waiting client has gone")
                return False
        logger.warning("Concurrency gate: no slot became free in %s s", self.acquire_timeout)
        return False


class _Slot:
    """One place, given back exactly once."""

    def __init__(self, semaphore: threading.BoundedSemaphore) -> None:
        self._semaphore: threading.BoundedSemaphore | None = semaphore
        self._lock = threading.Lock()

    def release(self) -> None:
        with self._lock:
            semaphore, self._semaphore = self._semaphore, None
        if semaphore is not None:
            semaphore.release()


class _GatedBody:
    """A response body that gives its slot back when it is exhausted, fails or is closed."""

    def __init__(self, body: Iterable[bytes], slot: _Slot) -> None:
        self._body = body
        self._iterator = iter(body)
        self._slot = slot

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._iterator)
        except BaseException:
            self._slot.release()
            raise

    def close(self) -> None:
        self._slot.release()  # the answer is out; what close() starts in the background holds no slot
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
