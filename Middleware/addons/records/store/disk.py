"""The files of the store, for the one thread of this process that writes to them."""

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

from Middleware.addons.records.folder import OWNER_ONLY, ConsoleFolder
from Middleware.addons.records.model import UNFINISHED, RunDocument, StoredRun
from Middleware.addons.records.settings import StoredSettings
from Middleware.addons.records.store import index, segments
from Middleware.addons.records.store.index import PINNED, UNPINNED
from Middleware.addons.records.store.reading import sealed
from Middleware.addons.records.store.retention import DAY, Retention, set_aside
from Middleware.addons.records.store.segments import SegmentWriter
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
            self._mend(error)
            self._write(documents, with_texts)
        self._rotate_if_due()

    def _write(self, documents: Sequence[RunDocument], with_texts: bool) -> None:
        database = self.open()
        segment = self._opened_segment(database)
        try:
            with sqlite.transaction(database):
                for document in documents:
                    self._put(database, segment, document, with_texts)
                # First the trees: a row without a tree would be a run that nobody can open.
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
        n, is_new = index.put_run(
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
            # Somebody has deleted the folder. What was in it is lost, and a new one begins.
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
        return self._folder.file(index.INDEX_FILE)

    def _opened_segment(self, database: sqlite3.Connection) -> SegmentWriter:
        if self._segment is not None and not self._segment.is_there():
            self._close_segment()
        if self._segment is None:
            with sqlite.transaction(database):
                self._number = segments.new_segment(self._folder.path, database)
            path = self._folder.file(segments.segment_name(self._number))
            try:
                self._lock.enter_context(
                    process_lock(self._folder.file(segments.lock_name(self._number)), timeout=0, mode=OWNER_ONLY)
                )
                self._segment = SegmentWriter(path)
            except BaseException:
                # A full disk would otherwise leave an empty file at each attempt.
                self._close_segment()
                with contextlib.suppress(OSError):
                    segments.remove_database(path)
                raise
            self._runs_in_segment, self._begun, self._compressed = 0, time.time(), None
        return self._segment

    def _mend(self, error: sqlite3.Error) -> None:
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
            segments.size_of(self._segment.path) >= most_bytes
            or self._runs_in_segment >= settings.runs // PARTS
            or not 0 <= time.time() - self._begun < SEGMENT_SECONDS
        ):
            self._close_segment()
            self.retain()

    def retain(self) -> None:
        """Remove what is beyond the limits; a folder that is not there stays so."""
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
                segments.truncate_log(self._index)
            self._index.close()
            self._index = None

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._lock.close()
        if self._number:
            with contextlib.suppress(OSError):
                os.unlink(self._folder.file(segments.lock_name(self._number)))
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
        path = self._folder.file(segments.PINNED_FILE)
        if segments.size_of(path) > MOST_PINNED_BYTES:
            raise ClientError(
                f"The pinned runs take more than {MOST_PINNED_BYTES // MEGABYTE} MB. Unpin others first.",
                HTTPStatus.CONFLICT,
            )
        with contextlib.closing(index.open_database(path, segments.TABLES)) as target:
            segments.copy_run(self._folder.file(segments.segment_name(run.segment)), run.n, target)
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
        segments.truncate_log(database)

    def delete_everything(self, kept: Collection[str]) -> None:
        """Delete all runs but those with an id in ``kept``, whole files where that is possible."""
        database = self.open()
        self._close_segment()
        numbers = segments.segment_numbers(self._folder.path)
        with sqlite.transaction(database):
            database.execute(
                "DELETE FROM run WHERE id NOT IN (SELECT value FROM json_each(?))", (json.dumps(list(kept)),)
            )
            used = {row[0] for row in database.execute("SELECT DISTINCT segment FROM run")}
        for number in numbers:
            if number not in used and not segments.is_written(self._folder.path, number):
                with contextlib.suppress(OSError):
                    segments.remove_database(self._folder.file(segments.segment_name(number)))
        if not used & {PINNED, UNPINNED}:
            segments.remove_database(self._folder.file(segments.PINNED_FILE))
        for name in set_aside(self._folder.path):
            os.unlink(self._folder.file(name))
        segments.truncate_log(database)

    def _forget(self, segment: int, numbers: Sequence[int]) -> None:
        """Remove trees and their own texts from a file, if it is still there and can be read."""
        path = self._folder.file(segments.segment_name(segment))
        if segment == self._number and self._segment is not None:
            self._segment.forget_known()
        if os.path.exists(path):
            try:
                with contextlib.closing(index.open_database(path, segments.TABLES)) as database:
                    segments.forget_runs(database, numbers)
            except (*segments.UNREADABLE, index.OtherVersionError) as error:
                # A full disk, for example, is told to whoever wants to delete.
                if isinstance(error, sqlite3.Error) and sqlite.error_code(error) not in _DAMAGED:
                    raise
                logger.warning(
                    "%s of the run console is damaged, so nothing is removed from it: %s",
                    segments.segment_name(segment),
                    error,
                )


def open_sound_index(folder: ConsoleFolder) -> sqlite3.Connection:
    """Return the index for writing. One that is damaged, or of another version, is set aside, and a new one begun."""
    path = os.path.join(folder.made(), index.INDEX_FILE)
    try:
        return index.open_index(path)
    except index.OtherVersionError:
        _set_aside(folder, "old")
    except sqlite3.DatabaseError as error:
        if sqlite.error_code(error) not in _DAMAGED:
            raise
        _set_aside(folder, "damaged")
    return index.open_index(path)


def _set_aside(folder: ConsoleFolder, ending: str) -> None:
    path = folder.file(index.INDEX_FILE)
    with folder_lock(folder.path):
        # Another process may have done it meanwhile.
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
        with contextlib.closing(index.open_index(path)) as database:
            return _is_sound(database)
    except (sqlite3.Error, index.OtherVersionError):
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
        if segment != own and not segments.is_written(folder, segment):
            with sqlite.transaction(database):
                database.execute(
                    f"UPDATE run SET status = 'interrupted' WHERE segment = ? AND {condition}", (segment, *UNFINISHED)
                )


def _is_same(path: str, inode: int) -> bool:
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False


def _short_texts(document: RunDocument, kept: bool) -> index.ShortTexts:
    """Return the short texts as the index has them: only if they are kept, sealed for a private run."""
    facts = document.facts
    if not kept:
        return None, None, None
    if document.encryption_key is not None and facts["private"]:
        return sealed(facts, document.encryption_key), None, None
    # Not NULL: that is how the row says that texts are kept.
    return facts["question"] or "", facts["answer"], facts["error"]
