"""The processes that users' scripts start, so that a stop can end them with their children."""
from __future__ import annotations

import contextlib
import functools
import logging
import subprocess
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.process import process

logger = logging.getLogger(__name__)

Process = subprocess.Popen[Any]


class _Started:
    """A process that a script has started, known by more than a number that another one may get after its end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._known: Any = None  # to psutil
        self._why = "it has ended already"
        try:
            import psutil  # type: ignore[import-untyped]
            with contextlib.suppress(psutil.Error):
                self._known = psutil.Process(process.pid)
        except ImportError as error:
            self._why = str(error)

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def end(self) -> None:
        """Kill it with its descendants. It is not waited for: that is up to who started it."""
        if self.ended:
            return
        if self._known is None:
            logger.warning("Only the process itself is ended, not its children: %s", self._why)
            with contextlib.suppress(OSError):  # it may just have ended
                self._process.kill()
            return
        import psutil

        with contextlib.suppress(psutil.Error):
            for victim in [self._known, *self._known.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    victim.kill()


class ScriptProcesses:
    """The processes that one call of a script has started with ``subprocess``, ``os.popen`` or ``asyncio``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[_Started] = []
        self._ended = False

    def collect(self) -> None:
        """Take in what is started in the current context from now on."""
        _watch_starts()
        _current.set(self)

    def check(self) -> None:
        """Raise EarlyTerminationException once ``end`` was called."""
        if self._ended:
            raise EarlyTerminationException("The request was cancelled; its script may start no more processes")

    def add(self, process: Process) -> None:
        """Take in a process, or end it if it came too late."""
        started = _Started(process)
        with self._lock:
            if not self._ended:
                self._running = [known for known in self._running if not known.ended]
                self._running.append(started)
                return
        started.end()

    def end(self) -> None:
        """Kill the processes that still run, with their children. Later ones are refused."""
        with self._lock:
            self._ended = True
            running, self._running = self._running, []
        for started in running:
            started.end()


class RunningScripts:
    """The calls of scripts under way, those included that were left alone."""

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
        """Kill what all of them have started."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.end()


def running_scripts() -> RunningScripts:
    """The scripts of this process."""
    return process().one(RunningScripts)


_current: ContextVar[ScriptProcesses | None] = ContextVar("wilmer_script_processes", default=None)
_watch_lock = threading.Lock()


def _watch_starts() -> None:
    """Have every start of a process look whether a script does it. All ways of ``subprocess`` lead through there."""
    with _watch_lock:
        original = subprocess.Popen.__init__
        if getattr(original, "watched_for_scripts", False):
            return

        @functools.wraps(original)
        def start(self: Process, *args: Any, **kwargs: Any) -> None:
            call = _current.get()
            if call is None:
                original(self, *args, **kwargs)
                return
            call.check()
            original(self, *args, **kwargs)
            call.add(self)

        start.watched_for_scripts = True  # type: ignore[attr-defined]
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]
