"""The concurrency gate around single LLM calls (``--concurrency-level endpoint``)."""
from __future__ import annotations

import logging
import time
from collections.abc import Generator

from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import Waiter
from Middleware.exceptions import EarlyTerminationException, GateTimeoutError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_request

logger = logging.getLogger(__name__)

# A cancellation takes effect after this time at the latest.
SLICE_SECONDS = 0.1


class CallSlot:
    """One call's slot of the concurrency gate; it does nothing if the gate is not at this level."""

    def __init__(self, scope: CancelScope | None) -> None:
        self._scope = scope
        gated = instance.CONCURRENCY_LEVEL == "endpoint"
        self._semaphore = instance.get_request_semaphore() if gated else None
        self._held = False

    def acquire(self) -> None:
        """Wait for a slot. Raises GateTimeoutError, or EarlyTerminationException when cancelled meanwhile."""
        for _ in self.waiting():
            pass

    def waiting(self) -> Generator[None, None, None]:
        """Wait like ``acquire``, but yield once per second, so that a stream can send heartbeats."""
        if self._semaphore is None or self._held:
            return
        waiter = self._semaphore.enqueue()
        try:
            # A free slot is taken without a line in the log.
            self._held = waiter.wait(0)
            if not self._held:
                yield from self._wait(waiter, self._semaphore.waiting)
        finally:
            if not self._held:
                waiter.leave()

    def _wait(self, waiter: Waiter, waiting: int) -> Generator[None, None, None]:
        request = current_request()
        logger.info("Concurrency gate: all slots are taken, a call of request %s waits, %d waiting",
                    request.request_id if request else "-", waiting)
        started = shown = time.monotonic()
        while not waiter.wait(SLICE_SECONDS):
            now = time.monotonic()
            if self._scope is not None and self._scope.cancelled:
                raise EarlyTerminationException("cancelled while waiting for a slot")
            if now - started >= instance.CONCURRENCY_TIMEOUT:
                raise GateTimeoutError(
                    f"no slot for an LLM call became free within {instance.CONCURRENCY_TIMEOUT:g} s "
                    f"(--concurrency-level endpoint, limit {instance.CONCURRENCY_LIMIT})")
            if now - shown >= 1.0:
                shown = now
                yield
        self._held = True

    def release(self) -> None:
        """Release the slot; a second call does nothing."""
        if self._held and self._semaphore is not None:
            self._held = False
            self._semaphore.release()
