"""What a process may have no more of."""

from __future__ import annotations

import threading

import pytest


def no_more_threads(patch: pytest.MonkeyPatch, name: str) -> None:
    """Have the system refuse every thread of that name."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", refuse)
