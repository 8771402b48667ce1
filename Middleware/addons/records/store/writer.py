"""The runs on disk: a queue, the thread that writes what comes through it, and the way to what was written.

A request only puts its finished run into the queue. Everything else, SQLite included, belongs to the writer's thread,
which starts with the first run and is a native one under every launcher.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import Empty
from typing import TYPE_CHECKING, Protocol, TypeAlias

from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.model import MICROSECONDS, RunDocument
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.run_texts import completed, normalised, without_texts
from Middleware.addons.records.settings import RecordMode, RecordSettings
from Middleware.utilities.native_threads import SimpleQueue, new_lock, start_native
from Middleware.utilities.once import Once

if TYPE_CHECKING:
    import sqlite3

    from Middleware.addons.records.store.disk import Disk
    from Middleware.addons.records.store.index import Reader

logger = logging.getLogger(__name__)

WRITER = "run-writer"
"""The name of the thread."""
# What finishes within this time is written in one transaction.
GATHER_SECONDS = 0.3
# A run that takes longer than the first is written before its end, and again after the second.
LONG_SECONDS, AGAIN_SECONDS = 2.0, 10.0
# A failing disk is tried again so often.
RETRY_SECONDS = 30.0
BUSY_RETRY_SECONDS = 1.0
RETENTION_SECONDS = 3600.0
# After this time without runs, what was written in a hurry is compressed.
IDLE_SECONDS = 10.0
# What waits for a disk that fails, or is slow, is limited in both.
MOST_WAITING, MOST_WAITING_BYTES = 2000, 64 * 1024 * 1024
# A server that ends waits no longer for the disk.
CLOSE_SECONDS = 5.0
FLUSH_SECONDS = 3.0


class _Flush:
    """A request to write what came before it; the lock is released when that is done."""

    def __init__(self) -> None:
        self.done = new_lock()
        self.done.acquire()


_Item: TypeAlias = "RunDocument | _Flush | None"


class RunObserver(Protocol):
    """An observer of each finished run, on the writer's thread."""

    def observe(self, document: RunDocument) -> None:
        """See a run that has just ended."""


class RunStore:
    """The runs on disk. ``began`` and ``finished`` cost a request next to nothing; all else is for readers.

    Args:
        ring: the runs in memory, of which the long ones are written before they end.
    """

    def __init__(self, folder: ConsoleFolder, ring: RunRing, settings: RecordSettings) -> None:
        self.folder, self.settings = folder, settings
        self._ring = ring
        self._observers: list[RunObserver] = []
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        # The writer will not look at the ring by itself: it must be woken when a run begins.
        self._resting = True
        self._started = self._closing = False
        # Guards the files. Held for the milliseconds of a transaction, also by those who pin or delete runs.
        self._guard = new_lock()
        self._stop = new_lock()
        self._stop.acquire()
        self._ended = new_lock()
        self._disk: Disk | None = None
        self._reader: Reader | None = None
        self._waiting: deque[RunDocument] = deque()
        self._try_at = self._busy_since = 0.0
        self._written_at: dict[str, float] = {}
        self._retain_at = self._idle_at = 0.0
        self._dropped_texts = self._dropped_runs = 0
        self._failures: Once[str] = Once(1)
        # A reader could not use the index. The writer, which has it open, may not notice what others did to it.
        self._may_be_damaged = False

    # -- from requests -----------------------------------------------------------------------------------------------
    def observe(self, observer: RunObserver) -> None:
        """Let ``observer`` see each finished run, whatever is kept. Call it before the first."""
        self._observers.append(observer)

    def began(self) -> None:
        """Note that a run has begun, which is in the ring already."""
        if self._resting:
            self._resting = False
            self._put(None)

    def finished(self, document: RunDocument) -> None:
        """Take a run that has ended."""
        # The writer may be waiting for a slow disk.
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped_runs += 1
        else:
            self._put(document)

    def _put(self, item: _Item) -> None:
        self._queue.put(item)
        if not self._started:
            self._start()

    def _start(self) -> None:
        with self._guard:
            if self._started:
                return
            self._started = True
            self._ended.acquire()
            try:
                start_native(self._run, WRITER)
            # The system has no thread left. The next run may find one.
            except RuntimeError as error:
                self._started = False
                self._ended.release()
                logger.warning("Runs are not written to disk now: %s", error)

    # -- the thread --------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._retain_at = time.monotonic() + RETENTION_SECONDS
            while not self._closing:
                self._round(self._next())
            self._end()
        finally:
            self._ended.release()

    def _round(self, first: _Item) -> None:
        """Write what has come since the last round, and do what is due."""
        flushes = [first] if isinstance(first, _Flush) else []
        try:
            if isinstance(first, RunDocument):
                self._take(first)
                # Others may end at the same time. Returns at once when the server ends.
                if self._stop.acquire(timeout=GATHER_SECONDS):
                    self._stop.release()
            flushes += self._take_all()
            self._write()
            self._do_what_is_due()
        # The thread must not end because of one run, or of a disk that fails in an unforeseen way.
        except Exception:
            logger.exception("A run could not be recorded")
            self._waiting.clear()
        for flush in flushes:
            flush.done.release()

    def _next(self) -> _Item:
        """Wait for the next item; None when something else may be due."""
        seconds = self._seconds_until_due()
        if self._long_ones():
            seconds = min(seconds, LONG_SECONDS)
        else:
            self._resting = True
            # One may have begun just now and found the writer awake.
            if self._long_ones():
                self._resting = False
                seconds = min(seconds, LONG_SECONDS)
        try:
            return self._queue.get(timeout=seconds)
        except Empty:
            return None
        finally:
            self._resting = False

    def _seconds_until_due(self) -> float:
        now = time.monotonic()
        due = self._retain_at
        if self._waiting:
            due = min(due, self._try_at)
        if self._idle_at:
            due = min(due, self._idle_at)
        return max(due - now, 0.0)

    def _long_ones(self) -> list[RunDocument]:
        """Return the runs that have not ended."""
        if self.settings.mode() == "off":
            return []
        return [document for document in self._ring.documents() if not document.finished]

    def _take_all(self) -> list[_Flush]:
        flushes: list[_Flush] = []
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return flushes
            if isinstance(item, RunDocument):
                self._take(item)
            elif item is not None:
                flushes.append(item)

    def _take(self, document: RunDocument) -> None:
        """Make a finished run what is stored of it."""
        for observer in self._observers:
            try:
                observer.observe(document)
            except Exception:
                logger.exception("%s failed", type(observer).__name__)
        self._written_at.pop(document.facts["id"], None)
        mode = self.settings.mode()
        try:
            if mode == "off":
                # After that, nothing holds the payloads of its requests to servers any more.
                completed(document)
            else:
                # What is not kept need not be looked at: who writes the run leaves its texts out.
                self._waiting.append(normalised(document) if _keeps_texts(mode, document) else completed(document))
        # The runs that wait with it are recorded.
        except Exception:
            self._lost(document)

    def _write(self) -> None:
        if not self._waiting:
            return
        if time.monotonic() < self._try_at:
            self._limit()
            return
        if self._on_disk(list(self._waiting)):
            self._waiting.clear()
        else:
            self._limit()

    def _on_disk(self, documents: Sequence[RunDocument]) -> bool:
        """Write runs; return whether the disk took them. If not, nothing is tried for a while."""
        if not documents:
            return True
        try:
            with self.disk() as disk:
                self._written(disk, documents)
        except _disk_errors() as error:
            now = time.monotonic()
            if _is_busy(error):
                self._busy_since = self._busy_since or now
                # Another process writes, on a machine that has much to do: nothing is wrong with the disk yet.
                if now - self._busy_since < RETRY_SECONDS:
                    self._try_at = now + BUSY_RETRY_SECONDS
                    return False
            self._try_at = now + RETRY_SECONDS
            if self._failures.first(str(error)):
                logger.warning(
                    "Runs are not written to %s: %s. Requests go on; it is tried again every %d seconds.",
                    self.folder.path,
                    error,
                    RETRY_SECONDS,
                )
            return False
        self._idle_at = time.monotonic() + IDLE_SECONDS
        self._try_at = self._busy_since = 0.0
        if self._failures.keys():
            self._failures.clear()
            logger.info("Runs are written to %s again.", self.folder.path)
        return True

    def _written(self, disk: Disk, documents: Sequence[RunDocument]) -> None:
        """Write runs together; if that fails for what one of them contains, each by itself, without that one."""
        with_texts = self.settings.mode() == "texts"
        try:
            disk.write(documents, with_texts)
            return
        except Exception as error:
            if _is_of_disk(error):
                raise
        for document in documents:
            try:
                disk.write([document], with_texts)
            except Exception as error:
                if _is_of_disk(error):
                    raise
                self._lost(document)

    def _lost(self, document: RunDocument) -> None:
        """Count and report a run that cannot be recorded; called where its error is handled."""
        self._dropped_runs += 1
        logger.exception("A run could not be recorded: %s", document.facts["id"])

    def _limit(self) -> None:
        """Drop texts, then runs, of what waits for the disk."""
        before = self._dropped_runs + self._dropped_texts
        mode, total = self.settings.mode(), sum(document.size for document in self._waiting)
        for position, document in enumerate(self._waiting):
            if document.size:
                is_lost = _keeps_texts(mode, document)
                if is_lost and total <= MOST_WAITING_BYTES:
                    continue
                self._waiting[position] = without_texts(document)
                total -= document.size
                self._dropped_texts += is_lost
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._dropped_runs += 1
        if before == 0 and self._dropped_runs + self._dropped_texts:
            logger.warning(
                "More runs wait for the disk than the memory may hold: some are not recorded, or without "
                "texts. The console's Settings count them."
            )

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        if not self._waiting:
            self._write_long_ones(now)
        if now >= self._retain_at:
            self._retain_at = now + RETENTION_SECONDS
            self._quietly(lambda disk: disk.retain())
        if self._idle_at and now >= self._idle_at:
            # One portion at a time: a run that comes during it is not kept waiting.
            self._idle_at = now if self._quietly(lambda disk: disk.compress()) else 0.0

    def _write_long_ones(self, now: float) -> None:
        long_ones = self._long_ones()
        limit = (time.time() - LONG_SECONDS) * MICROSECONDS
        due = [
            document
            for document in long_ones
            if document.facts["started"] <= limit
            and now - self._written_at.get(document.facts["id"], -AGAIN_SECONDS) >= AGAIN_SECONDS
        ]
        mode = self.settings.mode()
        if (
            due
            and now >= self._try_at
            and self._on_disk([normalised(document, _keeps_texts(mode, document)) for document in due])
        ):
            self._written_at.update((document.facts["id"], now) for document in due)
        running = {document.facts["id"] for document in long_ones}
        self._written_at = {run_id: at for run_id, at in self._written_at.items() if run_id in running}

    def _quietly(self, work: Callable[[Disk], object]) -> bool:
        """Do some housekeeping; return what it returned. What fails now will work another time."""
        try:
            with self.disk() as disk:
                return bool(work(disk))
        except _disk_errors() as error:
            logger.debug("%s: %s", self.folder.path, error)
            return False

    def _end(self) -> None:
        """Write the rest, and what will never end as interrupted."""
        for flush in self._take_all():
            flush.done.release()
        if self.settings.mode() != "off":
            for document in self._ring.documents():
                if not document.finished:
                    ended = normalised(document, _keeps_texts(self.settings.mode(), document))
                    self._waiting.append(replace(ended, facts={**ended.facts, "status": "interrupted"}))
        self._on_disk(list(self._waiting))
        self._waiting.clear()
        self._close_disk()

    def _close_disk(self) -> None:
        with self._guard:
            if self._disk is not None:
                self._disk.close()

    # -- from outside ------------------------------------------------------------------------------------------------
    def flush(self) -> None:
        """Wait until what has come so far is written, or could not be."""
        flush = _Flush()
        if self._started and not self._closing:
            self._queue.put(flush)
            flush.done.acquire(timeout=FLUSH_SECONDS)

    def close(self) -> None:
        """Write what is left and end the thread. Runs that have not ended are marked as interrupted."""
        if self._closing:
            return
        self._closing = True
        if self._started:
            self._queue.put(None)
            self._stop.release()
            if self._ended.acquire(timeout=CLOSE_SECONDS):
                self._ended.release()
        else:
            # Reading alone may have opened it.
            self._close_disk()

    @contextlib.contextmanager
    def index(self) -> Iterator[sqlite3.Connection]:
        """Open the index for reading and writing while the block runs. Raises sqlite3.Error, OSError."""
        from Middleware.addons.records.store.disk import open_sound_index

        with contextlib.closing(open_sound_index(self.folder)) as database:
            yield database

    def keeps_texts(self, document: RunDocument) -> bool:
        """Return whether the texts of a run in memory are on disk too, or will be."""
        return _keeps_texts(self.settings.mode(), document)

    def dropped(self) -> dict[str, int]:
        """Return how many runs lost their texts on the way to the disk, and how many were lost."""
        return {"texts": self._dropped_texts, "runs": self._dropped_runs}

    def _note_damage(self) -> None:
        self._may_be_damaged = True

    # -- for others ----------------------------------------------------------------------------------------------------
    @property
    def reader(self) -> Reader:
        """What was written."""
        if self._reader is None:
            from Middleware.addons.records.store.index import Reader

            self._reader = Reader(self.folder.path, self._note_damage)
            # Runs of a server that crashed are marked before anybody sees them.
            if self._reader.exists():
                self._quietly(lambda disk: disk.open())
        return self._reader

    @contextlib.contextmanager
    def disk(self) -> Iterator[Disk]:
        """Give the block the files, to which no other code writes until it ends. Raises sqlite3.Error, OSError."""
        with self._guard:
            if self._may_be_damaged and self._disk is not None:
                # Opening looks at the whole file.
                self._may_be_damaged = False
                self._disk.close()
            if self._disk is None:
                # SQLite is loaded with the first run: an idle server does without.
                from Middleware.addons.records.store.disk import Disk

                self._disk = Disk(self.folder, self.settings.current)
            yield self._disk


def _is_busy(error: Exception) -> bool:
    import sqlite3

    from Middleware.utilities.sqlite import is_busy

    return isinstance(error, sqlite3.Error) and is_busy(error)


def _disk_errors() -> tuple[type[Exception], ...]:
    """Return what a disk that fails raises. An idle server has no need of SQLite."""
    import sqlite3

    return sqlite3.Error, OSError


def _is_of_disk(error: Exception) -> bool:
    """Return whether the disk has failed, and not the program, or a value that SQLite does not hold."""
    import sqlite3

    of_values = (sqlite3.InterfaceError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.IntegrityError)
    return isinstance(error, _disk_errors()) and not isinstance(error, of_values)


def _keeps_texts(mode: RecordMode, document: RunDocument) -> bool:
    return mode == "texts" and (not document.facts["private"] or document.encryption_key is not None)
