"""Measures how long work goes on after its client has stopped it, and prints a table in Markdown.

    python benchmarks/stop_latency.py [TRIES] [--launcher NAME] [--phase TEXT] [--write]

TRIES stops (5 unless told) of each kind of client in each phase, with each server; the figures are milliseconds.
``--launcher`` and ``--phase`` choose some by part of their name. ``--write`` puts the table into
``Docs/Developer/stop-latency.md``; only a complete one can be written.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Tests.integration.stop_cases import PHASES, Phase
from Tests.integration.stop_clients import Client
from Tests.integration.stop_table import CLIENTS, Cell, StopLab

PAGE = Path(__file__).resolve().parents[1] / "Docs" / "Developer" / "stop-latency.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
NAMES = {"run_waitress.py": "Waitress", "run_eventlet.py": "Eventlet"}
"""A launcher of each server; server.py serves with Waitress, too."""

Table = dict[str, list[Cell]]


def measure(scripts: Sequence[str], phases: Sequence[Phase], tries: int) -> Table:
    """The stops of each launcher. Says on standard error what went wrong."""
    with tempfile.TemporaryDirectory() as folder, StopLab(Path(folder)) as lab:
        table = {script: lab.measure(script, phases, tries=tries) for script in scripts}
    for script, cells in table.items():
        for cell in cells:
            if cell.problem:
                print(f"{script}, {cell.phase.name}, {cell.client}: {cell.problem}", file=sys.stderr)
    return table


def markdown(table: Table) -> str:
    """One table for clients that close their connection, one for those that send DELETE, and the overall figures."""
    parts = [_part(table, [client for client in CLIENTS if client.deletes == deletes]) for deletes in (False, True)]
    times = [cell.seconds * 1000 for cells in table.values() for cell in cells if cell.seconds is not None]
    overall = f"Of all {len(times)} stops: median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms."
    return (
        f"The client closes its connection:\n\n{parts[0]}\n\n"
        f"The client sends `DELETE` with the id of its streamed request:\n\n{parts[1]}\n\n{overall}"
    )


def _part(table: Table, clients: Sequence[Client]) -> str:
    phases = list(dict.fromkeys(cell.phase.name for cells in table.values() for cell in cells))
    columns = [(script, client) for script in table for client in clients]
    heads = [
        f"{NAMES[script]}, {client.front.removesuffix(' chat')}"
        f"{'' if client.deletes else ', stream' if client.stream else ', whole'}"
        for script, client in columns
    ]
    rows = [["Phase", *heads], ["---", *["---:"] * len(columns)]]
    rows += [[name, *(_median(table[script], name, client) for script, client in columns)] for name in phases]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _median(cells: Sequence[Cell], phase: str, client: Client) -> str:
    times = [
        cell.seconds
        for cell in cells
        if cell.phase.name == phase and cell.client == client and cell.seconds is not None
    ]
    return f"{statistics.median(times) * 1000:.0f}" if times else "-"


def write(table: str) -> None:
    """Replace the table in the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8", newline="\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tries", nargs="?", type=int, default=5)
    parser.add_argument("--launcher", default="")
    parser.add_argument("--phase", default="")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    if options.write and (options.launcher or options.phase):
        parser.error("--write needs all launchers and phases")
    table = measure(
        [script for script in NAMES if options.launcher in script],
        [phase for phase in PHASES if options.phase in phase.name],
        options.tries,
    )
    text = markdown(table)
    print(text)
    failed = any(cell.problem for cells in table.values() for cell in cells)
    if options.write and failed:
        print("Nothing was written: not every stop arrived.", file=sys.stderr)
    elif options.write:
        write(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
