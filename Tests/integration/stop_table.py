"""Runs clients that stop in every phase, several at a time, and says how long each stop took.

with StopLab(folder) as lab:
    for cell in lab.measure("run_waitress.py"):
        print(cell.phase.name, cell.client, cell.seconds, cell.problem)
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from Tests.integration.launcher import USER, Backend, Launcher
from Tests.integration.stop_cases import CONNECTING, MID_STREAM, PHASES, QUEUED, Phase
from Tests.integration.stop_clients import QUIET_SECONDS, Client, Stop, leave
from Tests.integration.stop_tree import deaf_listener, stop_tree
from Tests.patience import PATIENCE

AT_A_TIME = 8
WAITING_AT_A_TIME = 16  # clients that have to wait for seconds before they know what to delete
LONG_SECONDS = 0.5
OUT_OF_STEP = 0.06  # seconds by which clients wait longer at random: more than a round of the server's watcher
# Of each way to frame a stream one dialect: every client more is in every phase.
FRONTS = ("OpenAI chat", "Ollama chat")
CLIENTS = (
    *(Client(front, stream) for front in FRONTS for stream in (False, True)),
    *(Client(front, True, deletes=True) for front in FRONTS),
)
_ARRIVED = re.compile(r"Request ([0-9a-f-]{36}) arrived")
_ENDED = re.compile(r"Request ([0-9a-f-]{36}): route")


@dataclass(frozen=True)
class Cell:
    """One stop.

    Attributes:
        seconds: until it had arrived; None if it did not.
        problem: what went wrong, "" if nothing.
        missing: why this machine cannot do it; "" if it can.
    """

    phase: Phase
    client: Client
    seconds: float | None = None
    problem: str = ""
    missing: str = ""


_Made = tuple[Cell, Stop | None]  # no stop: it failed, or cannot be made


class StopLab:
    """A back-end, the workflows of all phases, and launchers that are started when they are wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._warm: set[str] = set()
        self._failed: dict[tuple[str, str], str] = {}
        self._running: dict[tuple[str, int], Launcher] = {}

    def __enter__(self) -> StopLab:
        self.backend = self._stack.enter_context(Backend())
        port, self._not_deaf = self._stack.enter_context(deaf_listener())
        self.tree = stop_tree(self._folder / "Public", self.backend, port)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def server(self, script: str, concurrency: int = 0) -> Launcher:
        """The launcher with that ``--concurrency`` (0: unlimited)."""
        key = script, concurrency
        if key not in self._running:
            self._running[key] = self._stack.enter_context(
                Launcher(
                    script,
                    "--PublicDirectory",
                    self.tree.public,
                    "--User",
                    USER,
                    "--concurrency",
                    str(concurrency),
                    backend=self.backend,
                )
            )
        return self._running[key]

    def measure(
        self,
        script: str,
        phases: Sequence[Phase] = PHASES,
        clients: Sequence[Client] = CLIENTS,
        tries: int = 1,
        again: bool = False,
    ) -> list[Cell]:
        """Every client in every phase: phases side by side, the clients of a phase one after another.

        Not what happens while Python loads a library: that is over after one client in each phase. ``again``: what
        took long is measured once more, alone, as other work of this machine may have been in its way.
        """
        if script not in self._warm:
            self._warm.add(script)
            self._side_by_side(script, phases, clients[:1])
        found = [
            made
            for deletes in (False, True)
            for made in self._side_by_side(
                script, phases, [client for client in clients if client.deletes == deletes] * tries
            )
        ]
        if again:
            found = [
                self._of_phase(script, cell.phase, [cell.client])[0]
                if (cell.seconds or 0) > LONG_SECONDS
                else (cell, stop)
                for cell, stop in found
            ]
        time.sleep(QUIET_SECONDS)
        return [cell if stop is None else replace(cell, problem=stop.complaint()) for cell, stop in found]

    def _side_by_side(self, script: str, phases: Sequence[Phase], clients: Sequence[Client]) -> list[_Made]:
        self.server(script)
        waiting = any(client.deletes for client in clients)
        with ThreadPoolExecutor(WAITING_AT_A_TIME if waiting else AT_A_TIME) as pool:
            found = pool.map(lambda phase: self._of_phase(script, phase, clients), phases)
        return [made for ones in found for made in ones]

    def unfinished(self, script: str) -> list[str]:
        """The ids of requests that the server has not let go of some time after all clients have stopped."""
        deadline = time.monotonic() + PATIENCE
        while True:
            output = self.server(script).output()
            ended = set(_ENDED.findall(output))
            left = [found for found in _ARRIVED.findall(output) if found not in ended]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def _of_phase(self, script: str, phase: Phase, clients: Sequence[Client]) -> list[_Made]:
        wanted = [client for client in clients if client.stream in phase.streams]
        missing = self._not_deaf if phase is CONNECTING else phase.missing()
        if missing:
            return [(Cell(phase, client, missing=missing), None) for client in wanted]
        if phase is not QUEUED:
            return [self._stopped(self.server(script), phase, client) for client in wanted]
        server = self.server(script, concurrency=1)
        with Stop(server, self.backend, MID_STREAM) as running:
            running.reach()
            return [self._stopped(server, phase, client) for client in wanted]

    def _stopped(self, server: Launcher, phase: Phase, client: Client) -> _Made:
        """One stop. Where one has failed no other is tried: each failure takes many seconds."""
        known = self._failed.get((server.script, phase.name))
        if known:
            return Cell(phase, client, problem=known), None
        try:
            stop = leave(server, self.backend, phase, client, phase.pause + random.uniform(0, OUT_OF_STEP))
        except (AssertionError, OSError) as error:
            problem = f"{client}: {str(error)[-300:] or repr(error)}"
            self._failed[server.script, phase.name] = problem
            return Cell(phase, client, problem=problem), None
        return Cell(phase, client, stop.took), stop
