"""Ctrl-C, SIGTERM, SIGHUP and Ctrl-Break where no server serves. Imports next to nothing."""
from __future__ import annotations

import os
import signal
from types import FrameType


def end_on_signals() -> None:
    """Until a server installs handlers of its own, these signals end the process at once, with status 0.

    Nothing is held yet that would have to be given back, and an exception in the middle of an import may be swallowed.
    Signals that are ignored stay so. For the main thread.
    """
    for number in _numbers():
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report Ctrl-C."""


def interrupt_on_signals() -> None:
    """From here on a signal that would end the process with status 0 raises KeyboardInterrupt.

    For what must give something back, or must not be taken for done.
    """
    for number in _numbers():
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler)


def _numbers() -> list[int]:
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)
