"""What holds for every test."""
from __future__ import annotations

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
