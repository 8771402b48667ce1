"""The newest runs, in memory."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from Middleware.addons.records.live_run import LiveRun
    from Middleware.addons.records.model import RunDocument, RunOwner

MAX_RUNS = 200
# Of texts, by the estimate in each run: what a browser shows of the last evening, and no more than a server spares.
MAX_BYTES = 32 * 1024 * 1024
# Adding up the sizes takes longer than all else that is done here, so it is done once for as many runs.
RUNS_BETWEEN_SUMS = 32
# A larger run is counted at once.
LARGE_RUN = 256 * 1024
# A reader that has not asked for so long begins again.
MAX_REMOVED = 1_000


class RunRing:
    """The runs at work and the newest of those that are over. Thread-safe without a lock.

    Attributes:
        counter: numbers the changes of runs and spans.
        first: its first number. It is greater than those of earlier processes, so that these are recognised.
        removed: the runs that are no longer here: the number of the removal, the id, and whose it was.
    """

    def __init__(self, max_runs: int = MAX_RUNS, max_bytes: int = MAX_BYTES) -> None:
        # Microseconds: no process makes a million changes in a second.
        self.first = time.time_ns() // 1000
        self.counter = itertools.count(self.first)
        self.removed: deque[tuple[int, str, RunOwner]] = deque(maxlen=MAX_REMOVED)
        self._max_runs, self._max_bytes = max_runs, max_bytes
        # In the order of their arrival. Single operations of dicts and deques are atomic.
        self._runs: dict[str, LiveRun] = {}
        # Those that are over, in the order of their ends.
        self._over: deque[str] = deque()
        self._until_sum = 0

    def add(self, run: LiveRun) -> None:
        """Add a run that has just begun."""
        self._runs[run.id] = run

    def end(self, run: LiveRun) -> None:
        """Note that a run is over: from now on it may have to make room for others."""
        self._over.append(run.id)
        while len(self._over) > self._max_runs:
            self._drop_oldest()
        self._until_sum -= 1
        if self._until_sum < 0 or run.size >= LARGE_RUN:
            self._until_sum = RUNS_BETWEEN_SUMS
            self._make_room()

    def documents(self) -> list[RunDocument]:
        """Return all runs, the newest first. The facts of those at work are as of now."""
        runs = self._listed()
        for run in runs:
            run.refresh()
        return [*reversed(runs)]

    def get(self, run_id: str) -> RunDocument | None:
        """Return the run with this id, None if it is not here."""
        run = self._runs.get(run_id)
        if run is not None:
            run.refresh()
        return run

    def remove(self, run_ids: Collection[str]) -> None:
        for run_id in run_ids:
            run = self._runs.pop(run_id, None)
            if run is not None:
                # Not the facts themselves: they hold texts.
                owner: RunOwner = {"user": run.user, "key_hash": run.key_hash}
                self.removed.append((next(self.counter), run_id, owner))

    def clear(self) -> None:
        """Remove all runs that are over."""
        self.remove([run.id for run in self._listed() if run.finished])

    def _listed(self) -> list[LiveRun]:
        while True:
            try:
                return list(self._runs.values())
            # Another thread has added a run in the meantime.
            except RuntimeError:
                continue

    def _drop_oldest(self) -> None:
        try:
            self.remove((self._over.popleft(),))
        # Another thread was faster.
        except IndexError:
            pass

    def _make_room(self) -> None:
        """Drop the oldest runs that are over until the texts of all runs fit."""
        size = sum(run.size for run in self._listed())
        for run_id in list(self._over):
            if size <= self._max_bytes:
                return
            run = self._runs.get(run_id)
            size -= run.size if run is not None else 0
            self._drop_oldest()
