"""Ctrl-C, SIGTERM and Ctrl-Break as a flag that a serving loop looks at."""
from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Counts the requests to stop while its ``with`` block runs. Must be entered on the main thread.

    The first sets ``requested``: end cleanly. A second sets ``impatient``: end at once. ``wake`` is called in the
    signal handler, so it must be short and take no locks.
    """

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._wake = wake
        self._previous: dict[int, Any] = {}
        self.requested = False
        self.impatient = False

    def __enter__(self) -> StopSignals:
        for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.impatient = self.requested
        self.requested = True
        self._wake()


def exit_quietly_on_sigterm() -> None:
    """Until a server installs ``StopSignals``, SIGTERM ends the process as Ctrl-C does. For the main thread."""
    signal.signal(signal.SIGTERM, _raise_interrupt)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
