"""Prints how long a back-end call lives after its client has gone: ``python benchmarks/stop_latency.py [TRIES]``.

One line per launcher and phase: median and maximum in milliseconds of 10 tries, or as many as are asked for.
"""
from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Tests.integration.launcher import LAUNCHERS, USER, Backend, Launcher, standard_tree  # noqa: E402
from Tests.integration.stop_cases import NESTED, SINGLE_LEVEL, leave  # noqa: E402


def main(tries: int = 10) -> None:
    with tempfile.TemporaryDirectory() as folder, Backend() as backend:
        tree = standard_tree(Path(folder) / "Public", backend.url)
        for script in LAUNCHERS:
            with Launcher(script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0",
                          backend=backend) as server:
                for case in (*SINGLE_LEVEL, *NESTED):
                    times = []
                    for _ in range(tries):
                        backend.reset()
                        pause = random.uniform(0.05, 0.15)  # out of step with the watcher's rounds
                        times.append(leave(server, backend, case, pause) * 1000)
                    print(f"{script:16} {case.name:38} median {statistics.median(times):5.0f} ms, "
                          f"maximum {max(times):5.0f} ms", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
