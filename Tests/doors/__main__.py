"""Prints the result of each cell: ``python -m Tests.doors [--deep] [TEXT ...]``, only rows with one of the texts."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from Tests.doors.calls import CALLS
from Tests.doors.rows import ROWS
from Tests.doors.trying import Cell, lab, runs, tried


def table(cells: Iterable[Cell]) -> str:
    """Return a line for each client of a server, with a mark for each of its calls."""
    lines: dict[tuple[str, str, str], dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        lines[cell.row, cell.by, cell.client][cell.call] = cell
    names = [call.name for call in CALLS]
    shown = [f"{'row':<58} {'started by':<28} {'client':<36} {' '.join(f'{name:<9}' for name in names)}"]
    for (row, by, client), found in lines.items():
        marks = [_mark(found[name]) if name in found else "-" for name in names]
        others = [f"{name}: {_mark(cell)}" for name, cell in found.items() if name not in names]
        shown.append(
            f"{row[:58]:<58} {by[:28]:<28} {client[:36]:<36} "
            f"{' '.join(f'{mark:<9}' for mark in marks)} {' '.join(others)}".rstrip()
        )
    return "\n".join(shown)


def _mark(cell: Cell) -> str:
    return "FAILS" if cell.problem else "left out" if cell.left_out else "ok"


def main() -> int:
    parser = argparse.ArgumentParser(description="Try every documented way to start the server.")
    parser.add_argument("--deep", action="store_true", help="each row on all launchers")
    parser.add_argument("--jobs", type=int, default=2, help="servers at a time (default: 2)")
    parser.add_argument("texts", nargs="*", help="only the rows whose names or flags have one of these in them")
    options = parser.parse_args()
    rows = tuple(
        row for row in ROWS if not options.texts or any(text in f"{row.title} {row.flags}" for text in options.texts)
    )
    began = time.monotonic()
    with lab() as shared, ThreadPoolExecutor(options.jobs) as pool:
        cells = [
            cell
            for found in pool.map(lambda run: tried(run[0], run[1], shared), runs(rows, options.deep))
            for cell in found
        ]
    print(table(cells))
    failed = [cell for cell in cells if cell.problem]
    print(*(f"FAILS: {cell}" for cell in failed), sep="\n")
    count = sum(not cell.left_out for cell in cells)
    print(
        f"{count} cells of {len(runs(rows, options.deep))} servers tried in {time.monotonic() - began:.0f} s, "
        f"{len(cells) - count} left out, {len(failed)} failed"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
