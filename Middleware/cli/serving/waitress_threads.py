"""Waitress's worker threads. Whoever rested last works first, so that the same few do the work."""
from __future__ import annotations

import threading
import time

from waitress.task import ThreadedTaskDispatcher

START_SECONDS = 5.0  # for all threads to be ready, which takes a small part of one on an idle machine


class LatestFirst:
    """A condition like that of ``threading``, whose ``notify`` wakes the thread that began to wait last.

    All methods need ``lock`` to be held.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._waiting: list[threading.Lock] = []

    def wait(self) -> None:
        """Give the lock up until a call of ``notify``, then take it again."""
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        self._lock.release()
        try:
            turn.acquire()
        finally:
            self._lock.acquire()

    def notify(self) -> None:
        """Wake one thread, if any waits."""
        if self._waiting:
            self._waiting.pop().release()

    def notify_all(self) -> None:
        while self._waiting:
            self.notify()


class Dispatcher(ThreadedTaskDispatcher):
    """``count`` threads. Waitress itself would give the work to each of them in turn.

    Every thread that has ever worked keeps memory for the next time: its stack, and what the C library sets aside for
    it. With hundreds of threads that are seldom all needed this comes to many times what the requests need.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.queue_cv = LatestFirst(self.lock)
        self.set_thread_count(count)
        self._await_idle(time.monotonic() + START_SECONDS)

    def _await_idle(self, deadline: float) -> None:
        """Until then Waitress takes the new threads for busy, and warns of a queue at the first request."""
        while self.active_count and time.monotonic() < deadline:
            time.sleep(0.001)
