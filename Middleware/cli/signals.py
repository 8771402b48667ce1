"""Ctrl-C, SIGTERM, SIGHUP and Ctrl-Break: during the start, for commands, and while a server serves.

A launcher imports this module first. It imports next to nothing, so that signals are caught early, and so that Eventlet
can patch ``threading`` before ``logging`` makes its locks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType

# Exit status of an interrupted command, as shells report Ctrl-C.
INTERRUPTED = 130

# How long the quick release may take when a second signal ends the process at once. It needs milliseconds, which may be
# seconds on a busy machine, and the processes of a script that are left over would run on.
RELEASE_SECONDS = 5.0

# A third signal after this time ends the process where it is, because something holds it up.
STUCK_SECONDS = 1.0

# Windows has no SIGHUP, and only Windows has SIGBREAK.
_NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
_HANG_UP = getattr(signal, "SIGHUP", None)


def end_on_signals() -> None:
    """End the process on a signal, at once and with status 0, until a server installs handlers of its own.

    Nothing is held yet that would have to be given back, and an exception in the middle of an import may be swallowed.
    Signals that are ignored stay so. For the main thread.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on a signal that would end the process with status 0.

    For what must give something back, or must not be taken for done.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(0)


class StopSignals:
    """Counts the requests to stop while its ``with`` block runs. Must be entered on the main thread.

    The first sets ``requested``: end cleanly. A second sets ``forced``: the block must end at once, and the process
    ends with it. One more after ``STUCK_SECONDS`` ends the process where it is. Signals that are ignored, as by
    ``nohup``, stay so.

    Args:
        wake: called in the signal handler, so it must be short and take no locks.
    """

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._wake = wake
        self._previous: dict[int, object] = {}
        self._forced_since = 0.0
        self.requested = False
        self.forced = False

    def __enter__(self) -> StopSignals:
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.forced:
            end_at_once()
        # Once asked to stop, the signals stay caught, so that a late one breaks nothing.
        if not self.requested:
            for number, handler in self._previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def request(self) -> None:
        """Ask for a clean end, on any thread. It is never a second request."""
        self.requested = True
        self._wake()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.requested = True
        # A terminal that is closed may send several of these: they are never a second request.
        elif number == _HANG_UP:
            return
        elif not self.forced:
            self.forced, self._forced_since = True, time.monotonic()
        elif time.monotonic() - self._forced_since > STUCK_SECONDS:
            os._exit(0)
        self._wake()


def end_orderly() -> None:
    """Log the end after the server has returned. End the process if threads would keep it from ending."""
    import logging
    import threading

    logger = logging.getLogger(__name__)
    logger.info("stopped", extra={"terminal": True})
    held_up_by = [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    if held_up_by:
        logger.debug("Not waiting for the threads %s", ", ".join(held_up_by))
        _exit()


def end_at_once() -> None:
    """End the process with status 0. Release what others wait for, or what would be left over, if that is quick."""
    import logging
    import threading

    from Middleware.api.running.shutdown import release_at_once

    logger = logging.getLogger(__name__)
    logger.info("stopping at once", extra={"terminal": True})
    helper = threading.Thread(target=release_at_once, name="release", daemon=True)
    helper.start()
    # A release that hangs must not keep the process from ending.
    helper.join(RELEASE_SECONDS)
    logger.info("stopped", extra={"terminal": True})
    _exit()


def _exit() -> None:
    """End the process without waiting for its threads, of which those of scripts may never end."""
    import logging

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        # The terminal has been closed.
        except (OSError, ValueError):
            pass
    os._exit(0)
