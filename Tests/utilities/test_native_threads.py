"""Under Eventlet, native threads share no lock with requests, of which one could wait for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
# The interpreter changes threads all the time, so that each meets the other at its locks.
RACE = """
import logging, sys, threading
import run_eventlet
from Middleware.utilities import native_threads

assert run_eventlet.eventlet is not None
sys.setswitchinterval(1e-6)
logger = logging.getLogger("race")
logger.addHandler(logging.FileHandler(sys.argv[1], encoding="utf-8"))
logger.setLevel(logging.INFO)
for number in range(300):
    native_threads.start_native(lambda: [logger.info("native") for _ in range(int(sys.argv[2]))], "native")
    thread = threading.Thread(target=lambda: logger.info("cooperative"))
    thread.start()
    thread.join()
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [0, 20])
def test_requests_go_on_while_native_threads_start_and_log(tmp_path: Path, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RACE, str(tmp_path / "log"), str(lines)],
        cwd=PROJECT,
        text=True,
        capture_output=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout == "done\n" and "Traceback" not in done.stderr, done.stderr
