"""What a request and a token cost, in figures that do not depend on the machine: calls, system calls, allocations.

    python benchmarks/budget.py                  measure, and print the figures beside the recorded ones
    python benchmarks/budget.py --check          also fail if one has grown by more than 2 %
    python benchmarks/budget.py --update         record the figures; with --only ROW,ROW those of some rows

The table of each Python version and system is a file of its own in ``benchmarks/budget``. Where there is none,
``--check`` prints the figures and passes. ``benchmarks/README.md`` says what the rows and the figures are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.budget_backend import MESSAGES, RESPONSES, SteppedBackend, Workload, ask, write_configuration
from Tests.integration.launcher import START_SECONDS, USER, Launcher

SERVER = "benchmarks/budget_server.py"
TABLES = Path(__file__).with_name("budget")
KINDS = ("calls", "system")
CALLS, SYSTEM_CALLS, FILE_OPENS = "Python calls", "system calls", "file opens"
ALLOCATIONS, BYTES = "allocations", "bytes allocated"
FIGURES = (CALLS, SYSTEM_CALLS, FILE_OPENS, ALLOCATIONS, BYTES)
# A figure may grow by this part of it.
TOLERANCE = 0.02
# Two measurements of the same code differ by less: so small a difference is not recorded.
NOISE = 0.01
WARM_UPS = 1
# Of each workload there are at least so many requests, and more until as many as AGREEING of them cost nearly the same
# as the cheapest. On a busy machine, several in a row may arrive in more pieces than others, which costs one per cent.
LEAST_REQUESTS, MOST_REQUESTS, AGREEING = 8, 16, 3
NEARLY = 1.001
# How many functions are named where a figure has grown.
NAMED = 12
# What has a smaller part in a figure is one of the others: the table would be three times as long.
SMALLEST_PART = 0.001
OTHERS = "others"
MARK = "/budget-mark/"

# One request of each, or two answers whose difference is what the additional tokens cost.
ROWS: dict[str, tuple[Workload, ...]] = {
    "nonstream": (Workload("Plain"),),
    "stream20": (Workload("Plain", stream=True),),
    "flat": tuple(Workload("Plain", tokens, stream=True) for tokens in (32, 96)),
    "think": tuple(Workload("Think", tokens, stream=True) for tokens in (32, 96)),
    "chain20": (Workload("Chain"),),
    "history2000": (Workload("Plain", messages=2000),),
    "items2000": (Workload("Plain", messages=2000, path=RESPONSES),),
    # A token in the other dialects of streams.
    "responses": tuple(Workload("Plain", tokens, stream=True, path=RESPONSES) for tokens in (32, 96)),
    "messages": tuple(Workload("Plain", tokens, stream=True, path=MESSAGES) for tokens in (32, 96)),
    "paced": tuple(Workload("Plain", tokens, stream=True, burst=1) for tokens in (10, 42)),
}
# In how many reads a long body arrives depends on the machine, and each costs two system calls. Elsewhere two pieces of
# an answer may become one.
SLACK = {
    ("history2000", SYSTEM_CALLS): 4.0,
    ("items2000", SYSTEM_CALLS): 4.0,
    **{
        (row, SYSTEM_CALLS): 1.5 / (long.tokens - short.tokens)
        for row, (short, *longer) in ROWS.items()
        for long in longer
    },
}

# The locks of the interpreter, its memory and its waiting depend on what else the machine does.
IGNORED_SYSTEM_CALLS = (
    "futex",
    "sched_yield",
    "brk",
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "rseq",
    "set_robust_list",
    "rt_sigprocmask",
    "sigaltstack",
    "restart_syscall",
)
_SYSTEM_CALL = re.compile(r"(\d+) +(\w+)\(")

# How often each function, system call or file had a part in a figure.
Parts = Mapping[str, float]
# By row and figure.
Costs = dict[str, dict[str, Parts]]


class CountingServer:
    """A server that counts, and how it is asked."""

    def __init__(self, kind: str, folder: Path, script: str = SERVER) -> None:
        self._backend = SteppedBackend().start()
        self._control = socket.create_server(("127.0.0.1", 0))
        self._control.settimeout(START_SECONDS)
        tree = write_configuration(folder / "Public", self._backend.url)
        self._launcher = Launcher(
            script,
            "--PublicDirectory",
            tree.public,
            "--User",
            USER,
            "--concurrency",
            "0",
            # What recording costs is measured by itself.
            "--console",
            "off",
            kind,
            str(self._control.getsockname()[1]),
        )

    def __enter__(self) -> CountingServer:
        self._launcher.__enter__()
        self._connection = self._control.accept()[0]
        self._lines = self._connection.makefile("r", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._connection.close()
        self._control.close()
        self._launcher.__exit__(None, None, None)
        self._backend.stop()

    @property
    def process_id(self) -> int:
        assert self._launcher.process is not None
        return self._launcher.process.pid

    def read(self) -> dict[str, dict[str, int]]:
        """Return what was counted since the last call, once nothing is under way."""
        self._connection.sendall(b"\n")
        reading: dict[str, dict[str, int]] = json.loads(self._lines.readline())
        return reading

    def warm_up(self, rows: Sequence[str]) -> None:
        for row in rows:
            for _ in range(WARM_UPS):
                ask(self._launcher.port, self._backend, ROWS[row][0])

    def requests(self, workload: Workload) -> list[dict[str, dict[str, int]]]:
        """Return the readings of some requests."""
        self.read()
        readings: list[dict[str, dict[str, int]]] = []
        costs: list[int] = []
        while len(readings) < MOST_REQUESTS:
            ask(self._launcher.port, self._backend, workload)
            readings.append(self.read())
            costs.append(sum(readings[-1].get(CALLS, readings[-1].get(ALLOCATIONS, {})).values()))
            agreeing = sum(cost <= NEARLY * min(costs) for cost in costs)
            if len(readings) >= LEAST_REQUESTS and agreeing >= AGREEING:
                break
        return readings


def measure(rows: Sequence[str], script: str = SERVER, kinds: Sequence[str] = KINDS) -> Costs:
    """Measure each kind of figure with a server of its own, at the same time."""
    # The order of sets would differ from one process to the next.
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        with ThreadPoolExecutor(len(kinds)) as pool:
            found = list(pool.map(lambda kind: _measure(kind, rows, script), kinds))
    finally:
        del os.environ["PYTHONHASHSEED"]
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before
    return {
        row: {figure: costs[row][figure] for figure in FIGURES for costs in found if figure in costs[row]}
        for row in rows
    }


def _measure(kind: str, rows: Sequence[str], script: str) -> Costs:
    with tempfile.TemporaryDirectory(prefix="budget-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        trace = folder / "strace.txt"
        with CountingServer(kind, folder, script) as server:
            server.warm_up(rows)
            with _strace(server.process_id, trace, kind == "system") as attached:
                readings = {row: [server.requests(workload) for workload in ROWS[row]] for row in rows}
        if attached:
            _add_system_calls(
                [reading for workloads in readings.values() for requests in workloads for reading in requests],
                trace.read_text(encoding="utf-8", errors="replace"),
            )
    if kind == "system" and ALLOCATIONS not in readings[rows[0]][0][0]:
        print("allocations are left out: there is no C compiler (cc)")
    return {row: _cost(row, [_least(requests) for requests in readings[row]]) for row in rows}


@contextmanager
def _strace(process: int, output: Path, wanted: bool) -> Iterator[bool]:
    """Have the system calls of a process written to a file. Yields False, and says why, if that is not possible."""
    if not wanted or not shutil.which("strace"):
        if wanted:
            print("system calls are left out: strace is not installed")
        yield False
        return
    tracer = subprocess.Popen(
        [
            "strace",
            "-f",
            "-s",
            "40",
            "-e",
            f"trace=!{','.join(IGNORED_SYSTEM_CALLS)}",
            "-o",
            os.fspath(output),
            "-p",
            str(process),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert tracer.stderr is not None
        # It comes once strace is attached to all threads, or says why it is not.
        line = tracer.stderr.readline().decode("utf-8", "replace").strip()
        attached = "attached" in line
        if not attached:
            print(f"system calls are left out: {line}")
        yield attached
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()


def _add_system_calls(readings: Sequence[dict[str, dict[str, int]]], trace: str) -> None:
    """Put the system calls of each reading beside its other figures."""
    left_out = {int(thread) for reading in readings for thread in reading["left out"]}
    found: dict[int, dict[str, int]] = {}
    current: dict[str, int] = {}
    mark = 0
    for line in trace.splitlines():
        if MARK in line:
            found[mark] = current
            mark, current = int(line.split(MARK)[1].split('"')[0]), {}
        elif (match := _SYSTEM_CALL.match(line)) and int(match[1]) not in left_out:
            current[match[2]] = current.get(match[2], 0) + 1
    for reading in readings:
        # A reading ends with its mark.
        reading[SYSTEM_CALLS] = found[reading["mark"][""] - 1]


def _least(readings: Sequence[Mapping[str, Parts]]) -> dict[str, Parts]:
    """Return each figure of the request that had the least: what is done once a second comes on top for others."""
    return {
        figure: min((reading[figure] for reading in readings), key=lambda parts: sum(parts.values()))
        for figure in readings[0]
    }


def _cost(row: str, least: Sequence[Mapping[str, Parts]]) -> dict[str, Parts]:
    """Return the parts of each figure, for one request or for one token."""
    if len(least) == 1:
        return {figure: _largest(parts) for figure, parts in least[0].items()}
    short, long = least
    tokens = ROWS[row][1].tokens - ROWS[row][0].tokens
    costs: dict[str, Parts] = {}
    for figure, parts in long.items():
        difference = Counter(parts)
        difference.subtract(short[figure])
        costs[figure] = _largest({name: round(count / tokens, 3) for name, count in difference.items()})
    return costs


def _largest(parts: Parts) -> Parts:
    """Put the smallest parts together."""
    smallest = SMALLEST_PART * sum(parts.values())
    largest = {name: count for name, count in parts.items() if count and count >= smallest}
    others = round(sum(parts.values()) - sum(largest.values()), 3)
    return {**largest, OTHERS: others} if others else largest


# -- the recorded table ------------------------------------------------------------------------------------------------
@dataclass
class Table:
    """What is recorded for a Python version and a system; a line for each figure, and one for each of its parts."""

    path: Path
    costs: Costs = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Table:
        """Read a table; empty if there is no such file. Raises ValueError if the file is damaged."""
        if not path.exists():
            return cls(path)
        data = json.loads(path.read_text(encoding="utf-8"))
        table = cls(path)
        for name in data["figures"]:
            row, figure = name.split(": ")
            table.costs.setdefault(row, {})[figure] = {}
        for name, counts in data["parts"].items():
            figure, part = name.split(": ", 1)
            for row, count in counts.items():
                table.costs[row][figure] = {**table.costs[row][figure], part: count}
        return table

    def record(self, costs: Costs) -> None:
        """Take over what differs from what is recorded."""
        for row, figures in costs.items():
            for figure, parts in figures.items():
                before = self.costs.get(row, {}).get(figure)
                if before is None or abs(_sum(parts) - _sum(before)) > NOISE * _sum(before):
                    self.costs.setdefault(row, {})[figure] = parts

    def save(self) -> None:
        figures = {
            f"{row}: {figure}": _sum(self.costs[row][figure])
            for row in ROWS
            for figure in FIGURES
            if figure in self.costs.get(row, {})
        }
        parts: dict[str, dict[str, float]] = {}
        for row in ROWS:
            for figure, counts in self.costs.get(row, {}).items():
                for part, count in counts.items():
                    parts.setdefault(f"{figure}: {part}", {})[row] = count
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(
            f'{{"figures": {_lines(figures)},\n"parts": {_lines(dict(sorted(parts.items())))}}}\n',
            encoding="utf-8",
            newline="\n",
        )


def _lines(values: Mapping[str, object]) -> str:
    """One line for each, so that two changes of a table seldom meet."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()) + "\n}"


def _sum(parts: Parts) -> float:
    return round(sum(parts.values()), 3)


def compare(recorded: Costs, measured: Costs) -> tuple[list[str], list[str]]:
    """Return what has grown and what has shrunk by more than the tolerance, in lines for a reader."""
    grown: list[str] = []
    shrunk: list[str] = []
    for row, figures in measured.items():
        for figure, after in figures.items():
            before = recorded.get(row, {}).get(figure)
            if before is None:
                continue
            limit = TOLERANCE * _sum(before) + SLACK.get((row, figure), 0.0)
            difference = _sum(after) - _sum(before)
            if abs(difference) > limit:
                (grown if difference > 0 else shrunk).extend(_changed(row, figure, before, after))
    return grown, shrunk


def _measured_twice_if_grown(rows: Sequence[str], script: str, recorded: Costs) -> Costs:
    """Measure, and measure the rows that have grown once more: what a busy machine adds is seldom added twice."""
    measured = dict(measure(rows, script))
    grown = [row for row, figures in measured.items() if compare(recorded, {row: figures})[0]]
    for row, figures in (measure(grown, script) if grown else {}).items():
        measured[row] = {name: min((parts, measured[row][name]), key=_sum) for name, parts in figures.items()}
    return measured


def _changed(row: str, figure: str, before: Parts, after: Parts) -> list[str]:
    percent = f" ({_sum(after) / _sum(before) - 1:+.1%})" if _sum(before) else ""
    unit = "token" if len(ROWS[row]) > 1 else "request"
    lines = [f"{row}: {figure} for one {unit}: {_sum(before):.8g} before, {_sum(after):.8g} after{percent}"]
    changes = Counter(after)
    changes.subtract(before)
    # What has crossed the line between the smallest parts and the named ones has not changed.
    smallest = max(0.01, 2 * SMALLEST_PART * _sum(before))
    largest = sorted(changes, key=lambda name: -abs(changes[name]))[: NAMED if len(changes) > 1 else 0]
    return lines + [
        f"    {changes[name]:+8g}  {before.get(name, 0):g} -> {after.get(name, 0):g}  {name}"
        for name in largest
        if abs(changes[name]) >= smallest
    ]


def show(recorded: Costs, measured: Costs) -> None:
    """Print a line for each figure."""
    print(f"{'':29} {'measured':>12} {'recorded':>12}")
    for row, figures in measured.items():
        for figure in FIGURES:
            parts, before = figures.get(figure), recorded.get(row, {}).get(figure)
            if parts is None and before is None:
                continue
            print(
                f"{row:12} {figure:16} {'left out' if parts is None else f'{_sum(parts):.8g}':>12} "
                f"{'-' if before is None else f'{_sum(before):.8g}':>12}"
            )


def table_path(tables: Path) -> Path:
    """Return the file of this Python version and system."""
    return tables / f"python{sys.version_info.major}.{sys.version_info.minor}-{sys.platform}.json"


def main(argv: Sequence[str] | None = None, tables: Path = TABLES, script: str = SERVER) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a figure has grown by more than 2 %%")
    parser.add_argument("--update", action="store_true", help="record the figures")
    parser.add_argument("--only", default=",".join(ROWS), help="rows to measure, with commas between them")
    options = parser.parse_args(argv)
    rows = options.only.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    path = table_path(tables)
    try:
        table = Table.load(path)
    # After a merge with a conflict, for example.
    except (ValueError, KeyError) as error:
        print(f"{path} cannot be read: {error!r}. Run: python benchmarks/budget.py --update")
        if not options.update or len(rows) < len(ROWS):
            return 1
        table = Table(path)
    started = time.monotonic()
    measured = _measured_twice_if_grown(rows, script, table.costs)
    show(table.costs, measured)
    print(f"measured in {time.monotonic() - started:.0f} s")
    grown, shrunk = compare(table.costs, measured)
    for title, lines in (("GROWN:", grown), ("shrunk:", shrunk)):
        if lines:
            print("\n".join([title, *lines]))
    if options.update:
        table.record(measured)
        table.save()
        print(f"recorded in {path}")
        return 0
    if not table.costs:
        print(f"There is no {path}: nothing was compared. With --update, it is made.")
    if shrunk:
        print("What has shrunk can grow again unnoticed unless it is recorded: python benchmarks/budget.py --update")
    if grown:
        print(
            "Make it as cheap as it was, or record what it costs now, and commit that together with the change and "
            "its reason: python benchmarks/budget.py --update"
        )
    return 1 if options.check and grown else 0


if __name__ == "__main__":
    sys.exit(main())
