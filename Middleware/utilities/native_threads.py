"""Threads, locks and queues of the system, also where a launcher replaces those of Python by cooperative ones.

``run_eventlet.py`` imports this module before it replaces them. Work that must not hold up a request, whichever server
runs it, gets a thread from here; what it shares with requests is guarded by locks from here.
"""

from __future__ import annotations

import _thread
import logging
import threading
from _queue import SimpleQueue as SimpleQueue
from collections.abc import Callable

logger = logging.getLogger(__name__)

_start_new_thread = _thread.start_new_thread
new_lock = _thread.allocate_lock
"""Returns a lock that works between native threads. Hold it for milliseconds: a whole server may wait for it."""


def start_native(target: Callable[[], object], name: str) -> None:
    """Run ``target`` on a native daemon thread. Raises RuntimeError if the system cannot start another."""

    def run() -> None:
        # Where a launcher has replaced Python's threads, the list of them is behind a cooperative lock.
        if _thread.start_new_thread is _start_new_thread:
            threading.current_thread().name = name
        try:
            target()
        # As at the end of any thread.
        except Exception:
            logger.exception("The thread %s has ended", name)

    _start_new_thread(run, ())
