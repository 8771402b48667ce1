"""Daemon threads, for work in the background and for work that cannot be interrupted."""
from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def start_daemon(target: Callable[[], object], name: str, without: str) -> threading.Thread | None:
    """Start and return a daemon thread; None if the system cannot start one, so that the caller may try again later.

    ``without`` is the warning about that: what does not work in the meantime.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    # Python raises it if the system cannot start another thread.
    except RuntimeError as error:
        logger.warning("%s: %s", without, error)
        return None
    return thread


class DeadlineError(Exception):
    """The work took too long."""


def run_interruptible(work: Callable[[Callable[[], bool]], Result], scope: CancelScope, seconds: float) -> Result:
    """Return the result of ``work``, run on a helper thread because name resolution, for one, cannot be interrupted.

    ``work`` gets a function that returns whether its caller has gone. Raises what ``work`` raises, DeadlineError after
    ``seconds``, and EarlyTerminationException when ``scope`` is cancelled.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    wake, left = threading.Event(), threading.Event()

    def run() -> None:
        try:
            results.append(work(left.is_set))
        # This is the boundary of a thread: the waiting thread raises the error.
        except BaseException as error:
            errors.append(error)
        wake.set()

    token = scope.add_callback(wake.set)
    try:
        if not scope.cancelled:
            # Log entries of the work belong to the request, and may be private.
            context = contextvars.copy_context()
            threading.Thread(target=context.run, args=(run,), name="web-fetch", daemon=True).start()
            wake.wait(min(seconds, threading.TIMEOUT_MAX))
    finally:
        scope.remove_callback(token)
        left.set()
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    if errors:
        raise errors[0]
    if not results:
        raise DeadlineError
    return results[0]
