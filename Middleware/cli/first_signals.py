"""Ctrl-C, SIGTERM, SIGHUP and Ctrl-Break while a launcher is loaded and prepared. Imports next to nothing."""
from __future__ import annotations

import os
import signal
from types import FrameType


def end_on_signals() -> None:
    """Until a server installs handlers of its own, these signals end the process at once, with status 0.

    Nothing is held yet that would have to be given back, and an exception in the middle of an import may be swallowed.
    Signals that are ignored stay so. For the main thread.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)
