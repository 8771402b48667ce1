"""Which runs are removed from the disk when: those that are too old, too many, or take too much space."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Collection

from Middleware.addons.records.settings import StoredSettings
from Middleware.addons.records.store.index import INDEX_FILE, PINNED, UNPINNED, OtherVersionError, open_database
from Middleware.addons.records.store.segments import (
    PINNED_FILE,
    TABLES,
    UNREADABLE,
    forget_runs,
    is_written,
    lock_name,
    remove_database,
    segment_name,
    segment_numbers,
    size_of,
    truncate_log,
)
from Middleware.utilities import sqlite

logger = logging.getLogger(__name__)

# So many rows are deleted at once, so that other processes need not wait for the rest.
PORTION = 500
# Pages of the index that are given back at once.
VACUUM_PAGES = 500
DAY = 24 * 60 * 60
# A segment that a process has just made has no rows yet.
SURELY_USED = 600.0
MICROSECONDS = 1_000_000


class Retention:
    """The removal of runs from a folder, by the one thread that writes to ``database``, its index."""

    def __init__(self, folder: str, database: sqlite3.Connection, own: Collection[int] = ()) -> None:
        self._folder, self._database = folder, database
        # These stay, whoever holds them: in this process no file tells that.
        self._own = frozenset(own)

    def apply(self, settings: StoredSettings, now: float | None = None) -> None:
        """Remove what is beyond the limits. Files go first, because deleting rows needs space. Raises sqlite3.Error."""
        now = time.time() if now is None else now
        limit = self._oldest_kept(settings, now)
        self._remove_segments_before(limit)
        self._delete_rows("started < ? AND segment != ?", limit, PINNED)
        self._remove_lost(now)
        self._fit(settings.megabytes * 1024 * 1024)
        self._remove_set_aside(now - settings.days * DAY)
        self._give_back()

    def _oldest_kept(self, settings: StoredSettings, now: float) -> int:
        """Return the moment before which runs are too old, or too many."""
        limit = int((now - settings.days * DAY) * MICROSECONDS)
        row = self._database.execute(
            "SELECT started FROM run WHERE segment != ? ORDER BY started DESC LIMIT 1 OFFSET ?",
            (PINNED, settings.runs - 1),
        ).fetchone()
        return limit if row is None else max(limit, row[0])

    def _remove_segments_before(self, limit: int) -> None:
        rows = self._database.execute(
            "SELECT segment FROM run WHERE segment > 0 GROUP BY segment HAVING max(started) < ?", (limit,)
        ).fetchall()
        for (number,) in rows:
            self._remove(number)

    def _remove_lost(self, now: float) -> None:
        """Remove segments without rows and locks without segments; delete rows without a segment."""
        known = {row[0] for row in self._database.execute("SELECT DISTINCT segment FROM run WHERE segment > 0")}
        there = set(segment_numbers(self._folder))
        for number in there - known:
            with contextlib.suppress(OSError):
                if now - os.stat(self._path(number)).st_mtime > SURELY_USED:
                    self._remove(number)
        for number in known - there:
            self._delete_rows("segment = ?", number)

    def _fit(self, most: int) -> None:
        """Remove segments, the oldest first, until all take no more than ``most`` bytes."""
        numbers = segment_numbers(self._folder)
        sizes = {number: size_of(self._path(number)) for number in numbers}
        total = sum(sizes.values()) + size_of(os.path.join(self._folder, INDEX_FILE))
        for number in numbers:
            if total <= most:
                return
            if self._remove(number):
                total -= sizes[number]
                self._delete_rows("segment = ?", number)

    def _remove(self, number: int) -> bool:
        """Remove a segment unless somebody writes to it; return whether it is gone."""
        if number in self._own or is_written(self._folder, number):
            return False
        try:
            remove_database(self._path(number))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._folder, lock_name(number)))
        # Windows does not remove what somebody reads. The next time will do.
        except OSError as error:
            logger.debug("%s cannot be removed now: %s", segment_name(number), error.strerror)
            return False
        return True

    def _delete_rows(self, condition: str, *values: object) -> None:
        while True:
            rows = self._database.execute(
                f"SELECT n, segment FROM run WHERE {condition} LIMIT {PORTION}", values
            ).fetchall()
            self._forget_unpinned([n for n, segment in rows if segment == UNPINNED])
            with sqlite.transaction(self._database):
                self._database.executemany("DELETE FROM run WHERE n = ?", [(n,) for n, _ in rows])
            if len(rows) < PORTION:
                return

    def _forget_unpinned(self, numbers: list[int]) -> None:
        """Remove runs that were pinned once from the file of the pinned ones."""
        path = os.path.join(self._folder, PINNED_FILE)
        if numbers and os.path.exists(path):
            try:
                with contextlib.closing(open_database(path, TABLES)) as database:
                    forget_runs(database, numbers)
            except (*UNREADABLE, OtherVersionError) as error:
                logger.debug("%s: %s", path, error)

    def _remove_set_aside(self, before: float) -> None:
        """Remove old indexes, which hold texts too."""
        for name in set_aside(self._folder):
            path = os.path.join(self._folder, name)
            with contextlib.suppress(OSError):
                if os.stat(path).st_mtime < before:
                    os.unlink(path)

    def _give_back(self) -> None:
        """Return the free pages of the index to the file system."""
        while self._database.execute("PRAGMA freelist_count").fetchone()[0] > 0:
            # Each step of the statement frees a page.
            self._database.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
            if self._database.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
                return
        truncate_log(self._database)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, segment_name(number))


def set_aside(folder: str) -> list[str]:
    """Return the names of indexes that were damaged, or of another version. Raises OSError."""
    return [name for name in os.listdir(folder) if name.startswith((f"{INDEX_FILE}.old", f"{INDEX_FILE}.damaged"))]
