"""Blocking work that a stop or a deadline ends at once."""
from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.connect import StopSwitch

Result = TypeVar("Result")


class DeadlineError(Exception):
    """The work took too long."""


def run_interruptible(work: Callable[[StopSwitch], Result], scope: CancelScope, seconds: float) -> Result:
    """The result of ``work``, which runs on a helper thread: name resolution, for one, can only be left alone.

    ``work`` attaches the connection that it waits for to the switch it is given: firing the switch shuts that down, so
    that the helper thread ends soon after the caller has gone. Raises what ``work`` raises, DeadlineError after
    ``seconds``, EarlyTerminationException when ``scope`` is cancelled.
    """
    stop = StopSwitch(scope)
    task = _Task(work, stop)
    stop.watch(task.wake)
    token = scope.add_callback(stop.fire)
    try:
        if not scope.cancelled:
            context = contextvars.copy_context()  # what is logged there is the request's, and may be private
            threading.Thread(target=context.run, args=(task.run,), name="web-fetch", daemon=True).start()
            task.wake.wait(seconds)
    finally:
        scope.remove_callback(token)
        stop.watch(None)
        if not task.finished:
            stop.fire()
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    if not task.finished:
        raise DeadlineError
    return task.result()


class _Task(Generic[Result]):
    def __init__(self, work: Callable[[StopSwitch], Result], stop: StopSwitch) -> None:
        self.wake = threading.Event()
        self.finished = False
        self._work, self._stop = work, stop
        self._result: list[Result] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result.append(self._work(self._stop))
        except BaseException as error:  # boundary of a thread: the waiting one raises it
            self._error = error
        self.finished = True
        self.wake.set()

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._result[0]
