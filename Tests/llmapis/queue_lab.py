"""Turns of the queue of calls, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.llmapis.call_queue import CallQueue, Turn
from Middleware.llmapis.call_turns import turn_for
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process


@contextmanager
def one_slot_for_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallQueue]:
    """The concurrency gate lets one call run at a time, and refuses those that have waited for 0.3 s."""
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "endpoint")
    monkeypatch.setattr(instance, "CONCURRENCY_LIMIT", 1)
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 0.3)
    instance.initialize_request_semaphore(1)
    queue = CallQueue()
    process().put(CallQueue, queue)
    yield queue
    instance.initialize_request_semaphore(0)
    process().put(CallQueue, CallQueue())


def turn(scope: CancelScope | None = None) -> Turn:
    """The turn of a call that needs nothing but a slot of the gate."""
    found = turn_for("Main", {}, scope)
    assert found is not None
    return found


def taken(one: Turn | None = None) -> Turn:
    """A turn whose call runs."""
    one = one or turn()
    for _ in one.waiting():
        pass
    return one
