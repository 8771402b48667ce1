"""How many requests or calls run and wait at present, for the console and for ``/metrics``."""

from __future__ import annotations

from typing import TypedDict

from Middleware.common import instance_global_variables as instance
from Middleware.llmapis.call_queue import CallQueue
from Middleware.models.process import process


class GateFigures(TypedDict):
    """The concurrency gate. ``level``: what takes a slot, ``request`` or ``call``; ``limit``: None for any number."""

    level: str
    limit: int | None
    running: int
    waiting: int


def gate_figures() -> GateFigures:
    """Return the figures of this moment."""
    semaphore, calls = instance.get_request_semaphore(), process().one(CallQueue)
    level = "request" if instance.CONCURRENCY_LEVEL == "wilmer" and semaphore is not None else "call"
    return {
        "level": level,
        "limit": semaphore.size if semaphore is not None else None,
        "running": semaphore.taken if semaphore is not None else calls.running,
        "waiting": calls.waiting + (semaphore.waiting if semaphore is not None else 0),
    }
