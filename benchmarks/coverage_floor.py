"""How much of each room of the program the quick tests run: lines and branches. It only rises.

    python benchmarks/coverage_floor.py             run the quick tests, and print the figures and the recorded ones
    python benchmarks/coverage_floor.py --check     also fail if a room is below what is recorded, or has no record
    python benchmarks/coverage_floor.py --update    raise what is recorded to what was measured

The rooms are those of ``size_budget.py``, the record is ``benchmarks/coverage.json``. Code that only other processes
run, such as a launcher that a test starts, counts as not run. ``--report FILE`` reads a report of coverage.py
(``--cov-report=json:FILE``) and runs no tests. Less than what is recorded is recorded by hand only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks.size_budget import PACKAGE, PROJECT, room_of

RECORDED = PROJECT / "benchmarks" / "coverage.json"
UPDATE = "python benchmarks/coverage_floor.py --update"
KINDS = ("lines", "branches")
# Which of two threads comes first decides about a few lines. In points.
TOLERANCE = 0.3
PROCESSES = "2"

# Per cent by kind, by room.
Figures = dict[str, dict[str, float]]


class TestsFailed(Exception):
    """The quick tests did not pass, or could not be run."""


def run_quick_tests(report: Path) -> None:
    """Run the quick tests, and have coverage.py write its report. Raises TestsFailed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        PROCESSES,
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "--quick",
        f"--cov={PACKAGE}",
        f"--cov-report=json:{report}",
    ]
    environment = {**os.environ, "COVERAGE_FILE": os.fspath(report.with_suffix(".data"))}
    if subprocess.run(command, cwd=PROJECT, env=environment).returncode:
        raise TestsFailed


def measured_in(report: Mapping[str, Any]) -> Figures:
    """Return the figures of each room from a report of coverage.py, in tenths of a point, rounded down."""
    counts: dict[str, list[int]] = {}
    for name, file in report["files"].items():
        path = name.replace("\\", "/").removeprefix(f"{PACKAGE}/")
        summary = file["summary"]
        room = counts.setdefault(room_of(path), [0, 0, 0, 0])
        for place, key in enumerate(("covered_lines", "num_statements", "covered_branches", "num_branches")):
            room[place] += summary[key]
    return {
        room: {kind: _per_cent(*found[2 * place : 2 * place + 2]) for place, kind in enumerate(KINDS)}
        for room, found in sorted(counts.items())
    }


def _per_cent(covered: int, count: int) -> float:
    return math.floor(1000 * covered / count) / 10 if count else 100.0


def failures(recorded: Figures, measured: Figures) -> list[str]:
    """Return a sentence for each figure that is below its floor, and for each room without one."""
    found = [f"{room}: no row in {RECORDED.name}" for room in measured if room not in recorded]
    return found + [
        f"{room}: {measured[room][kind]} % of the {kind}, {least} % are recorded"
        for room, floors in recorded.items()
        if room in measured
        for kind, least in floors.items()
        if measured[room][kind] < least - TOLERANCE
    ]


def raised(recorded: Figures, measured: Figures) -> Figures:
    """Return what to record: each figure or what was recorded, whichever is more; rooms that are gone are left out."""
    return {
        room: {kind: max(figure, recorded.get(room, {}).get(kind, 0.0)) for kind, figure in figures.items()}
        for room, figures in measured.items()
    }


def show(recorded: Figures, measured: Figures) -> None:
    """Print a line for each room."""
    print(f"{'':28} {'lines':>7} {'recorded':>9} {'branches':>9} {'recorded':>9}")
    for room, figures in measured.items():
        floors = recorded.get(room, {})
        print(
            f"{room:28} {figures['lines']:7} {floors.get('lines', '-'):>9} {figures['branches']:9} "
            f"{floors.get('branches', '-'):>9}"
        )


def main(argv: Sequence[str] | None = None, record: Path = RECORDED) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a room is below what is recorded")
    parser.add_argument("--update", action="store_true", help="raise what is recorded")
    parser.add_argument("--report", type=Path, help="a report of coverage.py, in place of a run of the tests")
    options = parser.parse_args(argv)
    recorded: Figures = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    with tempfile.TemporaryDirectory(prefix="coverage-", ignore_cleanup_errors=True) as folder:
        report = options.report or Path(folder) / "report.json"
        try:
            if not options.report:
                run_quick_tests(report)
        except TestsFailed:
            print("The quick tests do not pass, so nothing was compared.")
            return 1
        measured = measured_in(json.loads(report.read_text(encoding="utf-8")))
    show(recorded, measured)
    if options.update:
        record.write_text(json.dumps(raised(recorded, measured), indent=2) + "\n", encoding="utf-8", newline="\n")
        print(f"recorded in {record}")
        return 0
    failed = failures(recorded, measured)
    if options.check and failed:
        print("\n".join(["BELOW THE FLOOR:", *failed]))
        print(
            "Test what the change has added. Which lines no test runs: bash Scripts/developer/run_tests.sh --quick "
            f"--cov={PACKAGE} --cov-report=term-missing. A new room: {UPDATE}"
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
