"""Daemon threads, for work in the background and for work that cannot be interrupted."""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from Middleware.exceptions import EarlyTerminationException, WilmerError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Clients come in bursts. After this time without work a thread of the pool ends and frees the memory of its stack.
IDLE_SECONDS = 2.0
# So much work at once that finds no idle thread is the beginning of a burst, for which spare threads are started.
# A single request needs up to three threads.
BURST = 4
SPARES = 4
IDLE_NAME = "resting"
"""The name of a thread of the pool between two pieces of work."""


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


class _PooledThread:
    """A thread of the pool: its next piece of work, and the lock that it waits for while it is idle."""

    __slots__ = ("wake", "work")

    def __init__(self, work: tuple[Callable[[], object], str] | None = None) -> None:
        self.work = work
        self.wake = threading.Lock()
        self.wake.acquire()


class DaemonThreadPool:
    """Daemon threads for short work, kept for the next piece of it; the one that became idle last works first.

    Starting a thread costs several system calls, and twice the wait until the interpreter's lock is free: for the new
    thread, and for the one that waits until it runs.
    """

    def __init__(self) -> None:
        # Its methods are atomic, so that it needs no lock.
        self._idle: list[_PooledThread] = []
        # Pieces of work that found no idle thread, lately. That it may miss one does no harm.
        self._missed = 0

    def start(self, target: Callable[[], object], name: str) -> None:
        """Run ``target`` on a thread that has this name during the run, in an empty context as on a new thread.

        Raises RuntimeError if none is idle and the system cannot start another.
        """
        try:
            worker = self._idle.pop()
        except IndexError:
            self._missed += 1
            self._add(_PooledThread((target, name)), name)
            return
        worker.work = target, name
        worker.wake.release()

    def _add(self, worker: _PooledThread, name: str) -> None:
        threading.Thread(target=self._run, args=(worker,), name=name, daemon=True).start()

    def _add_spares(self) -> None:
        self._missed = 0
        try:
            for _ in range(SPARES):
                self._add(_PooledThread(), IDLE_NAME)
        # Work that needs a thread will report it.
        except RuntimeError:
            pass

    def _run(self, worker: _PooledThread) -> None:
        while True:
            if worker.work is not None:
                self._do(worker)
            self._idle.append(worker)
            if not worker.wake.acquire(timeout=IDLE_SECONDS) and self._ends(worker):
                return

    def _do(self, worker: _PooledThread) -> None:
        thread = threading.current_thread()
        assert worker.work is not None
        target, thread.name = worker.work
        try:
            contextvars.Context().run(target)
        # As at the end of any thread.
        except BaseException:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))
        # An idle thread must not keep the last request alive.
        worker.work, thread.name = None, IDLE_NAME
        # More work is likely to come. Here no client waits for the start of the threads, unlike in the server's loop.
        if self._missed >= BURST:
            self._add_spares()

    def _ends(self, worker: _PooledThread) -> bool:
        try:
            self._idle.remove(worker)
        # It has just been chosen for another piece of work.
        except ValueError:
            worker.wake.acquire()
            return False
        self._missed = 0
        return True


def run_in_pool(target: Callable[[], object], name: str) -> None:
    """Run ``target`` on a thread of the process's pool. Raises RuntimeError as ``DaemonThreadPool.start`` does."""
    process().one(DaemonThreadPool).start(target, name)


class DeadlineError(WilmerError):
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
            run_in_pool(partial(context.run, run), "web-fetch")
            wake.wait(min(seconds, threading.TIMEOUT_MAX))
    finally:
        scope.remove_callback(token)
        left.set()
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled")
    if errors:
        raise errors[0]
    if not results:
        raise DeadlineError(f"it took longer than {seconds:g} s")
    return results[0]
