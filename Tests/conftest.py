"""What holds for every test."""
from __future__ import annotations

import gc
import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Signals that whoever starts the tests ignores, as ``nohup`` and background jobs do, count again.

    Programs that the tests start inherit that, and tests of signals need it.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) == signal.SIG_IGN:
        signal.signal(hangup, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: at the end, one worker would have them while the others have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The modules and the thousands of tests stay to the end: the garbage collector need not go through them, which it
    would do in the middle of what a test measures."""
    gc.collect()
    gc.freeze()
