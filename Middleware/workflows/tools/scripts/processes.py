"""The processes that users' scripts start, so that a stop can end them with their children."""
from __future__ import annotations

import contextlib
import functools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.process import process

logger = logging.getLogger(__name__)

Process = subprocess.Popen[Any]

# A process that was created later than this after its start was noted may be another one with the same number. (The
# kernel of Linux rounds the times of creation down by up to a second, all alike.)
START_SECONDS = 1.0

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
        """Kill the processes that still run, with their children. Later ones are refused."""
        with self._lock:
            self._ended = True
            started, self._started = self._started, {}
            untraceable, self._untraceable = self._untraceable, set()
        for one, at in started.items():
            _end(one, at)
        for event in sorted(untraceable):
            logger.warning("A stopped script has used %s; processes started that way cannot be found and may go on",
                           event)


def _end(started: Process, at: float) -> None:
    """Kill a process with its descendants, without waiting for their end: the script itself may wait for it."""
    deadline = time.monotonic() + NUMBER_SECONDS
    while started.pid is None and time.monotonic() < deadline:
        time.sleep(0.002)
    if started.pid is None or started.returncode is not None:
        return
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError as error:
        logger.warning("Only the process itself is ended, not its children: %s", error)
        with contextlib.suppress(OSError):  # it may just have ended
            started.kill()
        return
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(started.pid)
        # An event loop may have reaped the process already, and another one may have its number by now.
        if found.ppid() != os.getpid() or found.create_time() > at + START_SECONDS:
            logger.info("Process %d is not ended: it is not surely the one that a script has started", started.pid)
            return
        for victim in [found, *found.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                victim.kill()


class RunningScripts:
    """The calls of scripts under way, including those that were abandoned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[ScriptProcesses] = set()

    @contextlib.contextmanager
    def including(self, call: ScriptProcesses) -> Iterator[None]:
        with self._lock:
            self._calls.add(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def count(self) -> int:
        return len(self._calls)

    def end_processes(self) -> None:
        """Kill all processes that the scripts have started."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.end()


def running_scripts() -> RunningScripts:
    """Return the running scripts of this process."""
    return process().one(RunningScripts)


_current: ContextVar[ScriptProcesses | None] = ContextVar("wilmer_script_processes", default=None)


@functools.cache
def _watch_starts() -> None:
    """Install the audit hook. Python offers no way to remove it, so it waits for the first script."""
    sys.addaudithook(_on_event)


def _on_event(event: str, _args: object) -> None:
    """Report the start of a process to the script that starts it. An exception from here prevents the start."""
    if (event != "subprocess.Popen" and event not in _UNTRACEABLE) or (call := _current.get()) is None:
        return
    # The event names the command only; the object that will know the number is the one whose method raises the event.
    owner = sys._getframe(1).f_locals.get("self") if event == "subprocess.Popen" else None
    call.add(owner if isinstance(owner, subprocess.Popen) else None, event)
