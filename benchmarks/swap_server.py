"""The server that ``benchmarks/swap.py`` starts: that of ``run_waitress.py``, with waits as short as those there."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware import addons
from Middleware.cli.serving import limits
from Middleware.cli.serving.serve_waitress import serve
from Middleware.cli.startup import run
from Middleware.llmapis import call_queue

SPEED = 5.0
"""All times of the benchmark are divided by it."""

if __name__ == "__main__":
    for name in (
        "PAUSE_SECONDS",
        "BETWEEN_CALLS_SECONDS",
        "IDLE_SECONDS",
        "LONGEST_WAIT_BEHIND",
        "BACKGROUND_WAIT_SECONDS",
    ):
        setattr(call_queue, name, getattr(call_queue, name) / SPEED)
    addons.load()
    sys.exit(run(serve, None, limits.WORKER_THREADS))
