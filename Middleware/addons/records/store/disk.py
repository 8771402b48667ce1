"""The files of the store, for the one thread of this process that writes to them and removes what is too much."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus

from Middleware.addons.records.console_folder import DAY, OWNER_ONLY, ConsoleFolder
from Middleware.addons.records.model import MICROSECONDS, UNFINISHED, RunDocument, StoredRun
from Middleware.addons.records.settings import StoredSettings
from Middleware.addons.records.store import store_files
from Middleware.addons.records.store.index import ShortTexts, put_run, sealed
from Middleware.addons.records.store.store_files import INDEX_FILE, PINNED, PINNED_FILE, UNPINNED, SegmentWriter
from Middleware.exceptions import ClientError
from Middleware.utilities import sqlite
from Middleware.utilities.files.file_access import folder_lock, process_lock

logger = logging.getLogger(__name__)

MEGABYTE = 1024 * 1024
SEGMENT_BYTES = 32 * MEGABYTE
SEGMENT_SECONDS = DAY
# The limits of retention are kept by removing whole segments, so none may hold a large part of what is kept.
PARTS = 8
MOST_PINNED_BYTES = 256 * MEGABYTE
# The versions of configuration files that are kept. Each takes a kilobyte or two.
MOST_CONFIGS = 5000
# So many rows are deleted at once, so that other processes need not wait for the rest.
PORTION = 500
# Pages of the index that are given back at once.
VACUUM_PAGES = 500
# A segment that a process has just made has no rows yet.
SURELY_USED = 600.0
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Disk:
    """The index, the segment that is written to, and the lock that says so. Not thread-safe.

    Raises sqlite3.Error and OSError from all methods; the next call tries again.
    """

    def __init__(self, folder: ConsoleFolder, settings: Callable[[], StoredSettings]) -> None:
        self._folder, self._settings = folder, settings
        self._index: sqlite3.Connection | None = None
        self._index_id = 0
        self._segment: SegmentWriter | None = None
        self._number = 0
        self._runs_in_segment, self._begun = 0, 0.0
        self._lock = contextlib.ExitStack()
        self._configs: set[str] = set()
        # Those of the run before; runs of one second share them.
        self._config_texts: Mapping[str, str] | None = None
        # The trees above this number are not compressed yet; None: all are.
        self._compressed: int | None = None

    # -- writing -----------------------------------------------------------------------------------------------------
    def write(self, documents: Sequence[RunDocument], with_texts: bool) -> None:
        """Write runs in one transaction."""
        try:
            self._write(documents, with_texts)
        except sqlite3.Error as error:
            if sqlite.error_code(error) not in _DAMAGED:
                raise
            self._repair(error)
            self._write(documents, with_texts)
        self._rotate_if_due()

    def _write(self, documents: Sequence[RunDocument], with_texts: bool) -> None:
        database = self.open()
        segment = self._opened_segment(database)
        try:
            with sqlite.transaction(database):
                for document in documents:
                    self._put(database, segment, document, with_texts)
                # First the trees: a row without a tree would be a run that cannot be opened.
                segment.commit()
        except BaseException:
            segment.roll_back()
            self._forget_configs()
            raise
        self._compressed = self._compressed or 0

    def _put(
        self, database: sqlite3.Connection, segment: SegmentWriter, document: RunDocument, with_texts: bool
    ) -> None:
        facts = document.facts
        kept = with_texts and (not facts["private"] or document.encryption_key is not None)
        if document.config_texts is not self._config_texts:
            self._put_configs(database, document)
        n, is_new = put_run(
            database, facts, _short_texts(document, kept), self._number, lambda before, n: self._forget(before, [n])
        )
        segment.put(n, document, kept)
        self._runs_in_segment += is_new

    def _put_configs(self, database: sqlite3.Connection, document: RunDocument) -> None:
        self._config_texts = document.config_texts
        for version in document.facts["config"]:
            text = document.config_texts.get(version["hash"])
            if text is not None and version["hash"] not in self._configs:
                body = zlib.compress(text.encode("utf-8", "surrogatepass"))
                database.execute(
                    "INSERT OR IGNORE INTO config (hash, path, body) VALUES (?, ?, ?)",
                    (bytes.fromhex(version["hash"]), version["path"], body),
                )
                self._configs.add(version["hash"])

    # -- opening -----------------------------------------------------------------------------------------------------
    def open(self) -> sqlite3.Connection:
        """Return the index, opened and with the ends of runs that a crash has ended."""
        if self._index is not None and not _is_same(self._index_path, self._index_id):
            # The folder was deleted. What was in it is lost, and a new one begins.
            self.close()
        if self._index is None:
            self._index = open_sound_index(self._folder)
            self._index_id = os.stat(self._index_path).st_ino
            self._forget_configs()
            end_interrupted(self._index, self._folder.path)
        return self._index

    def _forget_configs(self) -> None:
        self._configs.clear()
        self._config_texts = None

    @property
    def _index_path(self) -> str:
        return self._folder.file(INDEX_FILE)

    def _opened_segment(self, database: sqlite3.Connection) -> SegmentWriter:
        if self._segment is not None and not self._segment.is_there():
            self._close_segment()
        if self._segment is None:
            with sqlite.transaction(database):
                self._number = store_files.new_segment(self._folder.path, database)
            path = self._folder.file(store_files.segment_name(self._number))
            try:
                self._lock.enter_context(
                    process_lock(self._folder.file(store_files.lock_name(self._number)), timeout=0, mode=OWNER_ONLY)
                )
                self._segment = SegmentWriter(path)
            except BaseException:
                # A full disk would otherwise leave an empty file at each attempt.
                self._close_segment()
                with contextlib.suppress(OSError):
                    store_files.remove_database(path)
                raise
            self._runs_in_segment, self._begun, self._compressed = 0, time.time(), None
        return self._segment

    def _repair(self, error: sqlite3.Error) -> None:
        """Set the index aside if it is damaged; otherwise begin a new segment."""
        logger.warning("A file of the run console is damaged (%s).", error)
        damaged = self._index is None or not _is_sound(self._index)
        self.close()
        if damaged:
            _set_aside(self._folder, "damaged")

    # -- rest --------------------------------------------------------------------------------------------------------
    def _rotate_if_due(self) -> None:
        settings = self._settings()
        if self._segment is None:
            return
        most_bytes = min(SEGMENT_BYTES, settings.megabytes * MEGABYTE // PARTS)
        if (
            store_files.size_of(self._segment.path) >= most_bytes
            or self._runs_in_segment >= settings.runs // PARTS
            or not 0 <= time.time() - self._begun < SEGMENT_SECONDS
        ):
            self._close_segment()
            self.retain()

    def retain(self) -> None:
        """Remove what is beyond the limits; a folder that is not there stays so."""
        self._folder.remove_old_exports(self._settings().days)
        if os.path.exists(self._index_path):
            database = self.open()
            Retention(self._folder.path, database, [self._number] if self._segment else []).apply(self._settings())
            end_interrupted(database, self._folder.path, self._number)
            with sqlite.transaction(database):
                database.execute(
                    "DELETE FROM config WHERE rowid <= (SELECT max(rowid) FROM config) - ?", (MOST_CONFIGS,)
                )

    def compress(self) -> bool:
        """Compress some trees that were written in a hurry; return whether there may be more."""
        if self._segment is None or self._compressed is None:
            return False
        self._compressed = self._segment.compress_trees(self._compressed)
        return self._compressed is not None

    def close(self) -> None:
        """Close all files; the next call opens them again."""
        self._close_segment()
        if self._index is not None:
            with contextlib.suppress(sqlite3.Error):
                store_files.truncate_log(self._index)
            self._index.close()
            self._index = None

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._lock.close()
        if self._number:
            with contextlib.suppress(OSError):
                os.unlink(self._folder.file(store_files.lock_name(self._number)))
        self._number = 0

    # -- changes of single runs --------------------------------------------------------------------------------------
    def pin(self, run: StoredRun, pinned: bool) -> None:
        """Move a run to the file of the pinned ones; one that is unpinned stays there until it is too old."""
        database = self.open()
        if run.segment in (PINNED, UNPINNED):
            with sqlite.transaction(database):
                database.execute("UPDATE run SET segment = ? WHERE n = ?", (PINNED if pinned else UNPINNED, run.n))
            return
        if not pinned:
            return
        path = self._folder.file(PINNED_FILE)
        if store_files.size_of(path) > MOST_PINNED_BYTES:
            raise ClientError(
                f"The pinned runs take more than {MOST_PINNED_BYTES // MEGABYTE} MB. Unpin others first.",
                HTTPStatus.CONFLICT,
            )
        with contextlib.closing(store_files.open_segment(path)) as target:
            store_files.copy_run(self._folder.file(store_files.segment_name(run.segment)), run.n, target)
        with sqlite.transaction(database):
            database.execute("UPDATE run SET segment = ? WHERE n = ?", (PINNED, run.n))
        self._forget(run.segment, [run.n])

    def note(self, run: StoredRun, text: str | None) -> None:
        """Write a note on a run."""
        database = self.open()
        with sqlite.transaction(database):
            database.execute("UPDATE run SET note = ? WHERE n = ?", (text, run.n))

    def delete(self, runs: Sequence[StoredRun]) -> None:
        """Delete runs: their rows, trees, and the texts that no other run of their files uses."""
        database = self.open()
        for segment in sorted({run.segment for run in runs}):
            numbers = [run.n for run in runs if run.segment == segment]
            self._forget(segment, numbers)
            with sqlite.transaction(database):
                database.executemany("DELETE FROM run WHERE n = ?", [(n,) for n in numbers])
        store_files.truncate_log(database)

    def delete_everything(self, kept: Collection[str]) -> None:
        """Delete all runs but those with an id in ``kept``, whole files where that is possible."""
        database = self.open()
        self._close_segment()
        numbers = store_files.segment_numbers(self._folder.path)
        with sqlite.transaction(database):
            database.execute(
                "DELETE FROM run WHERE id NOT IN (SELECT value FROM json_each(?))", (json.dumps(list(kept)),)
            )
            used = {row[0] for row in database.execute("SELECT DISTINCT segment FROM run")}
        for number in numbers:
            if number not in used and not store_files.is_written(self._folder.path, number):
                with contextlib.suppress(OSError):
                    store_files.remove_database(self._folder.file(store_files.segment_name(number)))
        if not used & {PINNED, UNPINNED}:
            store_files.remove_database(self._folder.file(PINNED_FILE))
        for name in set_aside(self._folder.path):
            os.unlink(self._folder.file(name))
        store_files.truncate_log(database)

    def _forget(self, segment: int, numbers: Sequence[int]) -> None:
        if segment == self._number and self._segment is not None:
            self._segment.forget_known()
        _forget(self._folder.path, segment, numbers)


def _forget(folder: str, segment: int, numbers: Sequence[int]) -> None:
    """Remove trees and their own texts from a file, if it is still there and can be read. Raises sqlite3.Error."""
    name = store_files.segment_name(segment)
    if not numbers or not os.path.exists(os.path.join(folder, name)):
        return
    try:
        with contextlib.closing(store_files.open_segment(os.path.join(folder, name))) as database:
            store_files.forget_runs(database, numbers)
    except (*store_files.UNREADABLE, store_files.OtherVersionError) as error:
        # The user who wants to delete sees that the disk is full, for example.
        if isinstance(error, sqlite3.Error) and sqlite.error_code(error) not in _DAMAGED:
            raise
        logger.warning("%s of the run console is damaged, so nothing is removed from it: %s", name, error)


def open_sound_index(folder: ConsoleFolder) -> sqlite3.Connection:
    """Return the index for writing. One that is damaged, or of another version, is set aside, and a new one begun."""
    path = os.path.join(folder.made(), INDEX_FILE)
    try:
        return store_files.open_index(path)
    except store_files.OtherVersionError:
        _set_aside(folder, "old")
    except sqlite3.DatabaseError as error:
        if sqlite.error_code(error) not in _DAMAGED:
            raise
        _set_aside(folder, "damaged")
    return store_files.open_index(path)


def _set_aside(folder: ConsoleFolder, ending: str) -> None:
    path = folder.file(INDEX_FILE)
    with folder_lock(folder.path):
        # Another process may have done it in the meantime.
        if _is_usable(path):
            return
        logger.warning(
            "%s cannot be used (%s). It is kept as %s.%s, and a new one is begun.",
            path,
            "it is damaged" if ending == "damaged" else "it is of another version",
            path,
            ending,
        )
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(path + suffix, f"{path}.{ending}{suffix}")


def _is_usable(path: str) -> bool:
    try:
        with contextlib.closing(store_files.open_index(path)) as database:
            return _is_sound(database)
    except (sqlite3.Error, store_files.OtherVersionError):
        return False


def _is_sound(database: sqlite3.Connection) -> bool:
    try:
        return bool(database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.Error:
        return False


def end_interrupted(database: sqlite3.Connection, folder: str, own: int = 0) -> None:
    """Give the status ``interrupted`` to runs that had not ended when their process did."""
    condition = f"status IN ({', '.join('?' * len(UNFINISHED))})"
    rows = database.execute(f"SELECT DISTINCT segment FROM run WHERE {condition}", tuple(UNFINISHED)).fetchall()
    for (segment,) in rows:
        if segment != own and not store_files.is_written(folder, segment):
            with sqlite.transaction(database):
                database.execute(
                    f"UPDATE run SET status = 'interrupted' WHERE segment = ? AND {condition}", (segment, *UNFINISHED)
                )


def _is_same(path: str, inode: int) -> bool:
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False


def _short_texts(document: RunDocument, kept: bool) -> ShortTexts:
    """Return the short texts as the index has them: only if they are kept, sealed for a private run."""
    facts = document.facts
    if not kept:
        return None, None, None
    if document.encryption_key is not None and facts["private"]:
        return sealed(facts, document.encryption_key), None, None
    # Not NULL: that is how the row says that texts are kept.
    return facts["question"] or "", facts["answer"], facts["error"]


# -- retention ---------------------------------------------------------------------------------------------------------


class Retention:
    """The removal of runs from a folder, by the one thread that writes to ``database``, its index."""

    def __init__(self, folder: str, database: sqlite3.Connection, own: Collection[int] = ()) -> None:
        self._folder, self._database = folder, database
        # These stay, whichever process holds them: in this process no file shows that.
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
        there = set(store_files.segment_numbers(self._folder))
        for number in there - known:
            with contextlib.suppress(OSError):
                if now - os.stat(self._path(number)).st_mtime > SURELY_USED:
                    self._remove(number)
        for number in known - there:
            self._delete_rows("segment = ?", number)

    def _fit(self, most: int) -> None:
        """Remove segments, the oldest first, until all take no more than ``most`` bytes."""
        numbers = store_files.segment_numbers(self._folder)
        sizes = {number: store_files.size_of(self._path(number)) for number in numbers}
        total = sum(sizes.values()) + store_files.size_of(os.path.join(self._folder, INDEX_FILE))
        for number in numbers:
            if total <= most:
                return
            if self._remove(number):
                total -= sizes[number]
                self._delete_rows("segment = ?", number)

    def _remove(self, number: int) -> bool:
        """Remove a segment unless a process writes to it; return whether it is gone."""
        if number in self._own or store_files.is_written(self._folder, number):
            return False
        try:
            store_files.remove_database(self._path(number))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._folder, store_files.lock_name(number)))
        # Windows does not remove a file that is being read. The next attempt will.
        except OSError as error:
            logger.debug("%s cannot be removed now: %s", store_files.segment_name(number), error.strerror)
            return False
        return True

    def _delete_rows(self, condition: str, *values: object) -> None:
        while True:
            rows = self._database.execute(
                f"SELECT n, segment FROM run WHERE {condition} LIMIT {PORTION}", values
            ).fetchall()
            # On a full disk, their texts stay in the file of the pinned runs; removing rows and segments goes on.
            with contextlib.suppress(sqlite3.Error):
                _forget(self._folder, UNPINNED, [n for n, segment in rows if segment == UNPINNED])
            with sqlite.transaction(self._database):
                self._database.executemany("DELETE FROM run WHERE n = ?", [(n,) for n, _ in rows])
            if len(rows) < PORTION:
                return

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
        store_files.truncate_log(self._database)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, store_files.segment_name(number))


def set_aside(folder: str) -> list[str]:
    """Return the names of indexes that were damaged, or of another version. Raises OSError."""
    return [name for name in os.listdir(folder) if name.startswith((f"{INDEX_FILE}.old", f"{INDEX_FILE}.damaged"))]
