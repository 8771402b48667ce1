"""Servers that are killed at any moment under load keep what had ended, and say what had not.

``python -m Tests.integration.test_console_crash 30`` kills so many and prints figures.
"""

from __future__ import annotations

import http.client
import random
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.console_server import Console
from Tests.integration.launcher import USER, Backend, stuck
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until

CLIENTS = 3
# Of a client between two requests: it is the number of runs at each moment that counts, not the speed of the machine.
PAUSE = 0.02
# A second is promised. The disk of a loaded machine takes longer.
SURELY_WRITTEN = 3.0


@dataclass
class Crashes:
    """What clients had seen.

    Attributes:
        ended: the ids of answers whose end they read, with the moment and the number of the server.
    """

    ended: list[tuple[str, float, int]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def surely_written(self) -> list[str]:
        """Return the runs that had ended well before their server was killed."""
        return [run_id for run_id, at, server in self.ended if self.kills[server] - at > SURELY_WRITTEN]


def ask_until_killed(console: Console, crashes: Crashes) -> None:
    number = len(crashes.starts) - 1
    while True:
        try:
            answer = console.server.ask("Single", stream=True)
        except (OSError, http.client.HTTPException):
            return
        if b"[DONE]" in answer.body:
            crashes.ended.append((answer.headers["x-request-id"], time.monotonic(), number))
        time.sleep(PAUSE)


def kill_under_load(console: Console, crashes: Crashes, seconds: float) -> None:
    """Start the server, ask it by several clients, and kill it after some seconds."""
    began = time.monotonic()
    with console.server as server:
        crashes.starts.append(time.monotonic() - began)
        clients = [threading.Thread(target=ask_until_killed, args=(console, crashes)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        # Never answered: it is at work whenever the server is killed.
        with server.open("Chain", stream=True):
            time.sleep(seconds)
            assert server.process is not None
            server.process.kill()
            crashes.kills.append(time.monotonic())
            server.process.wait(PATIENCE)
            for client in clients:
                client.join(PATIENCE)


def started_anew(folder: Path, backend: Backend) -> Console:
    return Console(folder, backend, "run_waitress.py", "--record", "texts", "--concurrency", "0")


def listed_runs(console: Console) -> dict[str, dict[str, Any]]:
    """Return all runs by their ids."""
    found, before = dict[str, dict[str, Any]](), ""
    while True:
        page = console.call("GET", f"runs?limit=200&before={before}")
        found.update({run["id"]: run for run in page["runs"]})
        if not page["next"]:
            return found
        before = page["next"]


def crash(folder: Path, moments: list[float]) -> Crashes:
    """Kill a server at these moments after its start, and look at what the next one finds."""
    crashes = Crashes()
    with Backend() as backend:
        backend.replies["first"] = stuck()
        for seconds in moments:
            kill_under_load(started_anew(folder, backend), crashes, seconds)
        console = started_anew(folder, backend)
        began = time.monotonic()
        with console.server:
            crashes.starts.append(time.monotonic() - began)
            console.sign_in()
            # The next run that is written, if not this start, gives those that were at work their status.
            assert console.server.ask("Single").status == 200
            assert until(lambda: console.call("GET", "runs?status=running,answered,queued")["total"] == 0)
            assert "damaged" not in console.server.output() and "Traceback" not in console.server.output()
            known, listed = crashes.surely_written(), listed_runs(console)
            for run_id in known:
                assert (listed[run_id]["status"], listed[run_id]["texts"]) == ("ok", "kept")
            for run_id in random.Random(1).sample(known, min(len(known), 10)):
                attempt = next(row for row in console.call("GET", f"runs/{run_id}")["spans"] if row[2] == "attempt")
                assert console.call("GET", f"runs/{run_id}/texts/{attempt[0]}")["payload"]["messages"]
            interrupted = [run["route"] for run in listed.values() if run["status"] == "interrupted"]
            # A run is written when it is two seconds old.
            assert sum(seconds > 2 + SURELY_WRITTEN for seconds in moments) <= len(interrupted)
            assert f"{USER}:Chain" in interrupted or not interrupted
    for file in (console.tree.public / "Console").glob("*.db"):
        with closing(sqlite3.connect(file)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return crashes


@pytest.mark.skipif(sys.platform == "win32", reason="kill is another thing there")
def test_a_killed_server_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    crashes = crash(tmp_path, [0.5, 5.5])
    assert crashes.ended


if __name__ == "__main__":
    count, chance = int(sys.argv[1]), random.Random()
    with tempfile.TemporaryDirectory() as name:
        done = crash(Path(name), [chance.uniform(0.2, 7.0) for _ in range(count)])
    starts = [f"{seconds:.2f} s" for seconds in (done.starts[0], statistics.median(done.starts), done.starts[-1])]
    print(
        f"{count} kills, {len(done.ended)} runs that clients saw end, {len(done.surely_written())} of them well "
        f"before a kill: all there. Starts: first {starts[0]}, median {starts[1]}, last {starts[2]}."
    )
