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

import pytest

from Tests.integration.console_server import Console
from Tests.integration.launcher import Backend, stuck
from Tests.workflows.engine_lab import until

KILLS = 3
CLIENTS = 3
# A second is promised. The disk of a loaded machine takes longer.
SURELY_WRITTEN = 3.0


@dataclass
class Crashes:
    """What clients had seen. ``ended``: the ids of answers whose end they read, with the moment of it."""

    ended: list[tuple[str, float]] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)

    def surely_written(self) -> list[str]:
        """Return the runs that had ended well before their server was killed."""
        return [run_id for run_id, at in self.ended
                if min(kill for kill in self.kills if kill > at) - at > SURELY_WRITTEN]


def ask_until_killed(console: Console, crashes: Crashes) -> None:
    while True:
        try:
            answer = console.server.ask("Single", stream=True)
        except (OSError, http.client.HTTPException):
            return
        if b"[DONE]" in answer.body:
            crashes.ended.append((answer.headers["x-request-id"], time.monotonic()))


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
            server.process.wait(10)
            for client in clients:
                client.join(30)


def started_anew(folder: Path, backend: Backend) -> Console:
    return Console(folder, backend, "run_waitress.py", "--record", "texts", "--concurrency", "0")


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
            known = crashes.surely_written()
            for run_id in known:
                shown = console.call("GET", f"runs/{run_id}")
                assert shown["run"]["status"] == "ok" and shown["run"]["texts"] == "kept", shown["run"]
            for run_id in random.Random(1).sample(known, min(len(known), 20)):
                attempt = next(row for row in console.call("GET", f"runs/{run_id}")["spans"] if row[2] == "attempt")
                assert console.call("GET", f"runs/{run_id}/texts/{attempt[0]}")["payload"]["messages"]
            interrupted = console.call("GET", "runs?status=interrupted")["total"]
            # A run is written when it is two seconds old.
            assert sum(seconds > 2 + SURELY_WRITTEN for seconds in moments) <= interrupted
            assert {run["route"] for run in console.runs("?status=interrupted")} >= {"Chain"} or not interrupted
    for file in (console.tree.public / "Console").glob("*.db"):
        with closing(sqlite3.connect(file)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return crashes


@pytest.mark.skipif(sys.platform == "win32", reason="kill is another thing there")
def test_a_killed_server_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    crashes = crash(tmp_path, [1.0, 6.0, 2.5][:KILLS])
    assert len(crashes.ended) > 10 and crashes.surely_written()


if __name__ == "__main__":
    count, chance = int(sys.argv[1]), random.Random()
    with tempfile.TemporaryDirectory() as name:
        done = crash(Path(name), [chance.uniform(0.2, 7.0) for _ in range(count)])
    print(f"{count} kills, {len(done.ended)} runs that clients saw end, {len(done.surely_written())} of them well "
          f"before a kill: all there. Starts: first {done.starts[0]:.2f} s, median {statistics.median(done.starts):.2f} s, "
          f"last {done.starts[-1]:.2f} s.")
