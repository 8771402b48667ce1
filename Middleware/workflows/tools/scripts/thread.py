"""A call of a user's script: its thread, so that a request need not wait for its end, and the processes it starts."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.utilities.sensitive_logging_utils import REDACTED, is_encryption_active

logger = logging.getLogger(__name__)

Process = subprocess.Popen[Any]

# A process that was created later than this after its start was noted may be another one with the same number. (The
# kernel of Linux rounds the times of creation down by up to a second, all alike.) A busy machine starts one late.
START_SECONDS = 3.0

# A start that is under way when the script is stopped gets its number within this time, unless it fails.
NUMBER_SECONDS = 0.1

# Audit events of starts that leave no object from which the process can be found.
_UNTRACEABLE = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})


class ScriptProcesses:
    """The processes that one call of a script has started with ``subprocess``, ``os.popen`` or ``asyncio``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[Process, float] = {}
        self._untraceable: set[str] = set()
        self._ended = False

    def collect(self) -> None:
        """Take in every process that starts in the current context from now on."""
        _watch_starts()
        _current.set(self)

    def add(self, started: Process | None, event: str = "subprocess.Popen") -> None:
        """Take in a process just before it starts. Raise EarlyTerminationException once ``end`` was called."""
        # Its end needs it, and that of the server may leave no time for an import.
        with contextlib.suppress(ImportError):
            import psutil  # type: ignore[import-untyped]  # noqa: F401
        with self._lock:
            if self._ended:
                raise EarlyTerminationException("The request was cancelled; its script may start no more processes")
            if started is None:
                self._untraceable.add(event)
                return
            # A script may start any number of processes one after the other: only those that may run are kept.
            self._started = {known: at for known, at in self._started.items() if known.returncode is None}
            self._started[started] = time.time()

    def end(self) -> None:
        """Kill the processes that still run, with their children. Later ones are refused.

        One whose start takes too long is left for the next call, at the latest that at the end of the server.
        """
        with self._lock:
            self._ended = True
            started = self._started
            untraceable, self._untraceable = self._untraceable, set()
        # Until they are killed they stay known: the server may end in between, which calls this on another thread.
        ended = {one for one, at in started.items() if _end(one, at)}
        with self._lock:
            self._started = {known: at for known, at in self._started.items() if known not in ended}
        for event in sorted(untraceable):
            logger.warning(
                "A stopped script has used %s; processes started that way cannot be found and may go on", event
            )


def _end(started: Process, at: float) -> bool:
    """Kill a process with its children; return False if it has no number yet."""
    # Nothing waits for their end: the script itself may do that.
    deadline = time.monotonic() + NUMBER_SECONDS
    while started.pid is None and time.monotonic() < deadline:
        time.sleep(0.002)
    if started.pid is None:
        return False
    if started.returncode is None:
        _kill(started, at)
    return True


def _kill(started: Process, at: float) -> None:
    try:
        import psutil
    except ImportError as error:
        logger.warning("Only the process itself is ended, not its children: %s", error)
        # It may just have ended.
        with contextlib.suppress(OSError):
            started.kill()
        return
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(started.pid)
        # An event loop may have reaped the process already, and another one may have its number by now.
        if found.ppid() != os.getpid() or found.create_time() > at + START_SECONDS:
            logger.info("Process %d is not ended: it is not surely the one that a script has started", started.pid)
            return
        children: list[Any] = []
        with contextlib.suppress(psutil.Error):
            children = found.children(recursive=True)
        for victim in [found, *children]:
            with contextlib.suppress(psutil.Error):
                victim.kill()


class RunningScripts(list[ScriptProcesses]):
    """The calls of scripts under way, including those that were abandoned; twice while they are stopped."""

    def end_processes(self) -> None:
        """Kill all processes that the scripts have started."""
        # A copy, since scripts end during the loop.
        for call in self.copy():
            call.end()


def running_scripts() -> RunningScripts:
    """Return the running scripts of this process."""
    return process().one(RunningScripts)


_current: ContextVar[ScriptProcesses | None] = ContextVar("wilmer_script_processes", default=None)


@functools.cache
def _watch_starts() -> None:
    # Python offers no way to remove an audit hook, so it waits for the first script.
    sys.addaudithook(_on_event)


def _on_event(event: str, _args: object) -> None:
    """Report the start of a process to the script that starts it. An exception from here prevents the start."""
    if (event != "subprocess.Popen" and event not in _UNTRACEABLE) or (call := _current.get()) is None:
        return
    # The event names the command only; the object that will know the number is the one whose method raises the event.
    # Without a look at it, psutil would find the children of this process, but not those of one script: another may
    # start the same command at the same time, and a stop would end its processes too.
    # For one start that may be two events: subprocess.Popen starts most programs with os.posix_spawn.
    frame = sys._getframe(1)
    # By its name: run_eventlet.py has a second copy of the module.
    owner = frame.f_locals.get("self") if frame.f_globals.get("__name__") == subprocess.__name__ else None
    call.add(owner if isinstance(owner, subprocess.Popen) else None, event)


# What a stopped script gets for its end, after its processes were killed. Every stop waits that long at most.
MOMENT_SECONDS = 0.1

_STEP, _CLOSE = True, False


class ScriptThread(Iterator[Any]):
    """Iterates ``steps`` on one thread of its own, in a copy of the caller's context.

    A step begins when it is asked for, so nothing runs ahead. What a step raises, ``next`` raises, ``StopIteration``
    with the generator's value included. Once ``scope`` is cancelled the script's processes are killed, the generator
    is closed on its thread, and EarlyTerminationException is raised after 0.1 s at the latest. A thread that is still
    at work then is abandoned, which the log says; its result is discarded. May be used from one thread at a time.

    Args:
        path: of the script, for the log.
    """

    def __init__(self, steps: Generator[Any, None, Any], path: str, scope: CancelScope) -> None:
        self._scope = scope
        self._worker = _Worker(steps, path, scope)
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._worker.run,), name="script", daemon=True
        )
        self._open = True

    def __next__(self) -> object:
        if not self._open:
            raise StopIteration
        answer = self._ask(_STEP)
        if answer is None:
            raise EarlyTerminationException("The request was cancelled")
        return self._result(answer)

    def close(self) -> None:
        """Close the generator; raises what that raises. Again is a no-op."""
        if self._open and (answer := self._ask(_CLOSE)) is not None:
            self._result(answer)

    def __del__(self) -> None:
        # It was not iterated to its end, so its result is not wanted any more. A finalizer must not wait.
        if getattr(self, "_open", False):
            self._worker.orders.put(_CLOSE)

    def _ask(self, order: bool) -> _Answer | None:
        answer = None
        if not self._scope.cancelled:
            self._worker.orders.put(order)
            # Only now, so that it need not wait for its first order.
            if self._thread.ident is None:
                self._thread.start()
            answer = self._worker.answers.get()
        if not self._scope.cancelled:
            return answer
        self._open = False
        if self._thread.ident is not None:
            self._worker.stop()
        return None

    def _result(self, answer: _Answer) -> object:
        self._open = not answer.last
        if answer.error is None:
            return answer.value
        try:
            raise answer.error
        finally:
            # It would be part of a circle with its own traceback.
            del answer


class _Answer(NamedTuple):
    value: object = None
    error: BaseException | None = None
    last: bool = False


class _Worker:
    """The thread's side. It keeps nothing of the ``ScriptThread``, so that one which is dropped ends it."""

    def __init__(self, steps: Generator[Any, None, Any], path: str, scope: CancelScope) -> None:
        self.orders: SimpleQueue[bool] = SimpleQueue()
        self.answers: SimpleQueue[_Answer | None] = SimpleQueue()
        self._steps, self._path, self._scope = steps, path, scope
        self._processes = ScriptProcesses()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._left_at: float | None = None

    def run(self) -> None:
        token = self._scope.add_callback(partial(self.answers.put, None))
        running_scripts().append(self._processes)
        try:
            self._processes.collect()
            while self.orders.get() is _STEP:
                if not self._do(partial(next, self._steps)):
                    return
            self._do(self._steps.close, last=True)
        finally:
            running_scripts().remove(self._processes)
            self._scope.remove_callback(token)
            self._end()

    def _do(self, step: Callable[[], Any], last: bool = False) -> bool:
        """Take a step and hand out its result. Return whether there may be another."""
        try:
            self.answers.put(_Answer(step(), last=last))
            return True
        # This is the boundary of a thread: the waiting one raises it.
        except BaseException as error:
            failure = error
            # Raised by the script itself; the caller must not take it for its own end.
            if isinstance(error, GeneratorExit):
                failure = RuntimeError("the script raised GeneratorExit")
                failure.__cause__ = error
            self.answers.put(_Answer(error=failure, last=True))
            return False

    def _end(self) -> None:
        with self._lock:
            self._over.set()
            left_at = self._left_at
        if left_at is not None:
            logger.info(
                "The script %s of request %s, left alone at a stop, has ended after %.1f s",
                *self._names(),
                time.monotonic() - left_at,
            )

    def stop(self) -> None:
        """End the processes, and leave the script alone unless it ends in a moment."""
        self.orders.put(_CLOSE)
        # The script may end now, and the server before the processes have been killed.
        running_scripts().append(self._processes)
        self._processes.end()
        running_scripts().remove(self._processes)
        if self._over.wait(MOMENT_SECONDS):
            return
        with self._lock:
            if not self._over.is_set():
                self._left_at = time.monotonic()
                logger.warning(
                    "The script %s of request %s does not end at a stop: it keeps running, and its result is discarded",
                    *self._names(),
                )

    def _names(self) -> tuple[str, str]:
        request = current_request()
        return REDACTED if is_encryption_active() else self._path, request.request_id if request else "-"
