"""What recording runs costs: CPU time of the server, on all of its threads, with and without the console.

    python benchmarks/recording.py                       five alternating pairs of 3,000 requests for each row
    python benchmarks/recording.py --pairs 2 --requests 300 --only nonstream,flat

Each pair starts a server with ``--console off`` and one that records, and sends both the same requests, some to one and
some to the other in turns, so that a change of the machine's speed concerns both. The rows are those of
``benchmarks/budget.py``; those with answers of two lengths say what a token costs. Linux only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.budget import ROWS
from benchmarks.budget_backend import SteppedBackend, Workload, ask, write_configuration
from Tests.integration.launcher import USER, Launcher

OFF = ("--console", "off")
MODES = {"facts": ("--record", "facts"), "texts": ("--record", "texts")}
WARM_UPS = 50
# The writer gathers what comes within half a second; its work belongs to the requests before it.
WRITER_SECONDS = 1.0
# So many requests to one server, then to the other.
IN_TURN = 25
# A request of 2,000 messages takes fifty times as long as a short one.
LONG_ROWS = {"history2000": 20, "items2000": 20, "chain20": 4}
MICROSECONDS = 1_000_000


def process_seconds(pid: int) -> float:
    """Return the CPU time that a process has used so far."""
    if sys.platform == "win32":
        raise NotImplementedError
    # The number of Linux for the clock of a process; /proc counts in hundredths of a second.
    return time.clock_gettime(~pid << 3 | 2)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


class Server:
    """A server of which the CPU time is read."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._backend = SteppedBackend().start()
        tree = write_configuration(folder / "Public", self._backend.url)
        self._launcher = Launcher(
            "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", *words
        )

    def __enter__(self) -> Server:
        self._launcher.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._launcher.__exit__(None, None, None)
        self._backend.stop()

    def cpu_seconds(self) -> float:
        assert self._launcher.process is not None
        return process_seconds(self._launcher.process.pid)

    def ask(self, workload: Workload, requests: int) -> None:
        for _ in range(requests):
            ask(self._launcher.port, self._backend, workload)


def seconds_for(servers: Sequence[Server], workload: Workload, requests: int, in_turn: int = IN_TURN) -> list[float]:
    """Return the CPU time of so many requests to each server, with what is written because of them."""
    for server in servers:
        server.ask(workload, min(WARM_UPS, requests))
    time.sleep(WRITER_SECONDS)
    before = [server.cpu_seconds() for server in servers]
    for done in range(0, requests, in_turn):
        for server in servers:
            server.ask(workload, min(in_turn, requests - done))
    time.sleep(WRITER_SECONDS)
    return [server.cpu_seconds() - earlier for server, earlier in zip(servers, before, strict=True)]


def measure(words: Sequence[str], row: str, requests: int) -> list[float]:
    """Return the microseconds of a request, or of a token, of one row: without the console, and with it."""
    with (
        tempfile.TemporaryDirectory(prefix="recording-", ignore_cleanup_errors=True) as folder,
        Server(Path(folder, "off"), OFF) as off,
        Server(Path(folder, "on"), words) as on,
    ):
        short, *longer = ROWS[row]
        seconds = seconds_for((off, on), short, requests)
        if not longer:
            return [one / requests * MICROSECONDS for one in seconds]
        tokens = requests * (longer[0].tokens - short.tokens)
        return [
            (more - one) / tokens * MICROSECONDS
            for one, more in zip(seconds, seconds_for((off, on), longer[0], requests), strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument(
        "--only", default=",".join(("nonstream", "stream20", "flat", "think", "chain20", "history2000"))
    )
    options = parser.parse_args()
    print(f"{'row':<12} {'mode':<6} {'off':>10} {'on':>10} {'more':>10}   microseconds, medians of {options.pairs}")
    for row in options.only.split(","):
        requests = max(options.requests // LONG_ROWS.get(row, 1), 1)
        for mode, words in MODES.items():
            pairs = [measure(words, row, requests) for _ in range(options.pairs)]
            off, on = (statistics.median(column) for column in zip(*pairs, strict=True))
            more = statistics.median(with_it - without for without, with_it in pairs)
            print(f"{row:<12} {mode:<6} {off:>10.1f} {on:>10.1f} {more:>+10.1f}   {more / off:+.1%}", flush=True)


if __name__ == "__main__":
    main()
