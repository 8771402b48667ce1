"""Blocking work that a stop or a deadline ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, current_request, request_scope
from Middleware.utilities.daemon_threads import DeadlineError, run_interruptible
from Tests.patience import CLIENT_PATIENCE, PATIENCE


def fail(_: Callable[[], bool]) -> None:
    raise KeyError("mine")


def test_result_and_error() -> None:
    assert run_interruptible(lambda stopped: stopped(), CancelScope(), 5) is False
    with pytest.raises(KeyError, match="mine"):
        run_interruptible(fail, CancelScope(), 5)


def test_the_work_is_the_requests() -> None:
    """Its user and whether its text may be logged count there, too."""
    with request_scope(RequestContext(redact=True)) as request:
        assert run_interruptible(lambda _: current_request(), CancelScope(), 5) is request


def test_the_deadline_stops_the_work() -> None:
    left = threading.Event()

    def work(stopped: Callable[[], bool]) -> None:
        while not stopped():
            time.sleep(0.01)
        left.set()

    began = time.monotonic()
    with pytest.raises(DeadlineError):
        run_interruptible(work, CancelScope(), 0.1)
    assert time.monotonic() - began < PATIENCE
    assert left.wait(PATIENCE)


def test_a_stop_does_not_wait_for_the_work() -> None:
    scope, release = CancelScope(), threading.Event()
    timer = threading.Timer(0.05, scope.cancel)
    timer.start()
    began = time.monotonic()
    with pytest.raises(EarlyTerminationException):
        run_interruptible(lambda stop: release.wait(CLIENT_PATIENCE), scope, CLIENT_PATIENCE)
    assert time.monotonic() - began < PATIENCE
    release.set()


def test_nothing_starts_after_a_stop() -> None:
    scope = CancelScope()
    scope.cancel()
    done: list[int] = []
    with pytest.raises(EarlyTerminationException):
        run_interruptible(lambda stop: done.append(1), scope, 5)
    assert done == []
