"""Keeps a server busy with all that clients do, and says what grows: ``python benchmarks/soak.py [--minutes 10]``.

The full trial: ``--warm-up 300 --minutes 30 --rate 50 --streams 40 --bound 100``.

A scripted LLM server and the launcher run as processes of their own. Each line is a look at the launcher: memory
(resident, and what it shares with nobody), threads, descriptors. At the end come the slopes over the second half of the
time, by least squares, with their standard errors; what the launcher holds at rest, before and after; and a verdict.

Exit status 1: a client did not hear what it should, or a slope is above its bound by more than two standard errors, or
more threads or descriptors are held at rest than before. Speed has no part in it.

The memory of a server settles in the course of minutes, as the C library sets some aside for each thread that has
worked: judge it by ten minutes. Two are enough for threads and descriptors. Where memory grows for longer, set
GLIBC_TUNABLES=glibc.malloc.tcache_count=0 and MALLOC_ARENA_MAX=2 (Linux): what still grows then is a leak.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.soak_backend import USERS, backend_process, soak_tree
from benchmarks.soak_clients import Clients
from Tests.integration.launcher import LAUNCHERS, Launcher
from Tests.integration.process_figures import NOT_KNOWN, Figures, figures_of

SAMPLE_SECONDS = 5.0
# After this much warm-up the slopes are those of the whole time.
LONG_WARM_UP = 120.0
REST_SECONDS = 30.0
QUIET_LOOKS = 4
MEMORY_BOUND = 512.0
BOUNDS = {"threads": 0.5, "descriptors": 0.5}
"""Per minute, as ``MEMORY_BOUND``, which is in kB."""

Sample = tuple[float, Figures]


@dataclass(frozen=True)
class Slope:
    """Growth per minute and its standard error."""

    per_minute: float
    error: float

    def exceeds(self, bound: float) -> bool:
        """Whether it is above the bound for sure."""
        return self.per_minute - 2 * self.error > bound


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """The line of least squares through (seconds, value)."""
    count = len(points)
    if count < 3:
        return Slope(0.0, math.inf)
    middle, mean = sum(at for at, _ in points) / count, sum(value for _, value in points) / count
    spread = sum((at - middle) ** 2 for at, _ in points)
    rise = sum((at - middle) * (value - mean) for at, value in points) / spread
    left = sum((value - mean - rise * (at - middle)) ** 2 for at, value in points)
    return Slope(60 * rise, 60 * math.sqrt(left / (count - 2) / spread))


def look(server: Launcher) -> Figures:
    assert server.process is not None
    figures = figures_of(server.process.pid)
    if figures is None:
        raise SystemExit(
            f"{server.script} has ended, or nothing can be known of it here (try: pip install psutil):\n"
            + server.output()[-2000:]
        )
    return figures


def at_rest(server: Launcher) -> Figures:
    """What the server holds once that stays the same; kept connections expire when somebody asks."""
    looks = [look(server)]
    deadline = time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:
        time.sleep(1.5)
        server.request(
            "POST",
            "/v1/chat/completions",
            {"model": f"{USERS[0]}:Echo", "messages": [{"role": "user", "content": "Hello"}]},
        )
        time.sleep(0.5)
        looks.append(look(server))
        if len({tuple(figures.held.items()) for figures in looks[-QUIET_LOOKS:]}) == 1 and len(looks) > QUIET_LOOKS:
            break
    return looks[-1]


def soak(server: Launcher, clients: Clients, seconds: float) -> list[Sample]:
    started = time.monotonic()
    samples: list[Sample] = []
    clients.start()
    while (passed := time.monotonic() - started) < seconds:
        time.sleep(min(SAMPLE_SECONDS, seconds - passed))
        samples.append((time.monotonic() - started, look(server)))
        report(samples[-1], clients)
    clients.stop()
    return samples


def report(sample: Sample, clients: Clients) -> None:
    at, figures = sample
    print(
        f"{at:6.0f} s  RSS {figures.rss:7} kB  USS {figures.uss:7} kB  threads {figures.threads:4}  "
        f"descriptors {figures.descriptors:4}  done {sum(clients.done.values()):6}  failures {clients.failures}",
        flush=True,
    )


def growth(samples: Sequence[Sample], memory_bound: float, warm: bool) -> list[str]:
    """Print the slopes of the second half (``warm``: of all); returns what grows too fast."""
    half = samples if warm else [sample for sample in samples if sample[0] >= samples[-1][0] / 2]
    found = []
    # What is shared with nobody also grows when another Python on the machine ends: it has no bound.
    for name, bound in {"rss": memory_bound, "uss": math.inf, **BOUNDS}.items():
        points = [(at, float(getattr(figures, name))) for at, figures in half]
        if any(value == NOT_KNOWN for _, value in points):
            continue
        line = slope(points)
        unit = " kB" if name in ("rss", "uss") else ""
        print(f"{name:12} {line.per_minute:+8.2f}{unit} per minute, standard error {line.error:.2f}, bound {bound:g}")
        if line.exceeds(bound):
            found.append(f"{name} grows by {line.per_minute:.2f}{unit} per minute")
    return found


def kept(before: Figures, after: Figures) -> list[str]:
    """Print what is held at rest; returns what has become more."""
    print(f"at rest      before: {before}\n             after:  {after}")
    return [
        f"{name} at rest: {before.held[name]} before, {count} after"
        for name, count in after.held.items()
        if count > before.held[name]
    ]


def verdict(clients: Clients, troubles: Sequence[str]) -> int:
    for name, count in sorted(clients.done.items()):
        print(f"    {count:6} {name}")
    print(f"{sum(clients.done.values())} requests, {clients.failures} unexpected failures")
    for trouble in clients.troubles:
        print(f"    {trouble}")
    found = [*troubles, *([f"{clients.failures} unexpected failures"] if clients.failures else [])]
    print(f"VERDICT: {'; '.join(found) if found else 'nothing grows, nothing failed'}")
    return 1 if found else 0


def main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder, backend_process() as url:
        tree = soak_tree(Path(folder) / "Public", url)
        users = [argument for user in USERS for argument in ("--User", user)]
        with Launcher(
            options.launcher,
            "--PublicDirectory",
            tree.public,
            *users,
            "--concurrency",
            "0",
            "--file-logging",
            "--LoggingDirectory",
            Path(folder) / "logs",
        ) as server:
            clients = Clients(server.port, options.streams, options.rate)
            clients.start()
            time.sleep(options.warm_up)
            clients.stop()
            before = at_rest(server)
            samples = soak(server, clients, options.minutes * 60)
            after = at_rest(server)
            print(f"{options.launcher}, {options.minutes:g} minutes, {options.streams} clients")
            return verdict(
                clients, [*growth(samples, options.bound, options.warm_up >= LONG_WARM_UP), *kept(before, after)]
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds before the first look (15)")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second, at most (as many as it answers)")
    parser.add_argument(
        "--bound",
        type=float,
        default=MEMORY_BOUND,
        help=f"kB per minute by which resident memory may grow ({MEMORY_BOUND:g})",
    )
    parser.add_argument("--streams", type=int, default=10, help="how many clients at a time (10)")
    parser.add_argument("--launcher", choices=LAUNCHERS, default=LAUNCHERS[0], help=f"which ({LAUNCHERS[0]})")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(arguments()))
