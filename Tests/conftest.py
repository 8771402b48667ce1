"""What holds for every test."""
from __future__ import annotations

import gc
import os
import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Signals that whoever starts the tests ignores, as ``nohup`` and background jobs do, count again.

    Programs that the tests start inherit that, and tests of signals need it.
    """
    make_properties_repeatable()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) == signal.SIG_IGN:
        signal.signal(hangup, signal.SIG_DFL)


def make_properties_repeatable() -> None:
    """Property tests take the same examples in every run, however long a busy machine needs for one; with
    ``WILMER_FUZZ_SEED`` set, to look for more, others."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:  # the environments for clients and real servers have none
        return
    settings.register_profile("repeatable", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow],
                              derandomize="WILMER_FUZZ_SEED" not in os.environ)
    settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: at the end, one worker would have them while the others have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The modules and the thousands of tests stay to the end: the garbage collector need not go through them, which it
    would do in the middle of what a test measures."""
    gc.collect()
    gc.freeze()
