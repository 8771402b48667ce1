"""Ctrl-C, SIGTERM, SIGHUP and Ctrl-Break as a flag for a serving loop, and the end of the process after it."""
from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)

LAST_MOMENT_SECONDS = 0.5
STUCK_SECONDS = 1.0
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_HANG_UP = getattr(signal, "SIGHUP", None)


class StopSignals:
    """Counts the requests to stop while its ``with`` block runs. Must be entered on the main thread.

    The first sets ``requested``: end cleanly. A second sets ``impatient``: the block shall end at once, and the process
    ends with it. One more after a second ends the process where it is: something holds it up. Once asked to stop, the
    signals stay caught after the block, so that a late one breaks nothing. SIGHUP is only ever a first: a terminal that
    is closed may send several. Signals that are ignored, as by ``nohup``, stay so. ``wake`` is called in the signal
    handler, so it must be short and take no locks.
    """

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._wake = wake
        self._previous: dict[int, object] = {}
        self._impatient_since = 0.0
        self.requested = False
        self.impatient = False

    def __enter__(self) -> StopSignals:
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.impatient:
            end_at_once()
        if not self.requested:
            for number, handler in self._previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
        elif number == _HANG_UP:
            return
        elif not self.impatient:
            self.impatient, self._impatient_since = True, time.monotonic()
        elif time.monotonic() - self._impatient_since > STUCK_SECONDS:
            os._exit(0)
        self._wake()


def say_stopped() -> None:
    """The server has returned: the last line of the log. Ends the process if threads would keep it from ending."""
    logger.info("stopped")
    held_up_by = [thread.name for thread in threading.enumerate()
                  if not thread.daemon and thread is not threading.main_thread()]
    if held_up_by:
        logger.debug("Not waiting for the threads %s", ", ".join(held_up_by))
        _exit()


def end_at_once() -> None:
    """End the process with status 0. What others wait for, or would be left over, is given back if that is quick."""
    logger.info("stopping at once")
    helper = threading.Thread(target=_release, name="release", daemon=True)
    helper.start()
    helper.join(LAST_MOMENT_SECONDS)
    logger.info("stopped")
    _exit()


def _release() -> None:
    from Middleware.api.running.shutdown import release_at_once
    release_at_once()


def _exit() -> None:
    """End without waiting for anything: threads of scripts, for one, may never end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the console is gone
            pass
    os._exit(0)

