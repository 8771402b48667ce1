"""The files of the store: ``index.db``, with a row for each run and the tables of the console that are not about runs,
and the files with trees and texts: segments, of which whole files are removed, and that of pinned runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from Middleware.addons.records.console_folder import OWNER_ONLY
from Middleware.addons.records.model import ConfigVersion, RunDocument
from Middleware.addons.records.repeated_lists import KnownLists
from Middleware.addons.records.store.packing import (
    PLAIN,
    SEALED,
    THOROUGH,
    ZIPPED,
    Numbers,
    kept_ids,
    texts_by_span,
    tree,
    unzipped,
    with_numbers,
    zipped,
)
from Middleware.exceptions import WilmerError
from Middleware.utilities import sqlite
from Middleware.utilities.encryption_utils import cipher_for
from Middleware.utilities.files.file_access import process_lock
from Middleware.utilities.json_data import to_stored_json

INDEX_FILE = "index.db"
VERSION = 1
# A pinned run is in pinned.db, and so is one that was pinned once: retention removes it when it is too old.
PINNED, UNPINNED = 0, -1
PINNED_FILE = "pinned.db"
_SEGMENT = re.compile(r"seg-(\d{6,})\.db")
HASH_BYTES = 16
# What is remembered of texts that were written, so that a message of a long conversation is found without its hash.
MOST_KNOWN, MOST_KNOWN_BYTES = 20_000, 8 * 1024 * 1024
# A log of a transaction with more texts would grow beyond 8 MB.
TRANSACTION_BYTES = 2 * 1024 * 1024
# Trees are compressed when the server is idle: that takes longer than all else that is done to write a run. Only huge
# ones are compressed at once.
IDLE_ZIP_ABOVE, TREE_ZIP_ABOVE = 512, 256 * 1024
IDLE_TREES = 200
INDEX_TABLES = (
    "CREATE TABLE run (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, segment INTEGER NOT NULL, kind TEXT NOT NULL, "
    "origin TEXT, status TEXT NOT NULL, error_type TEXT, user TEXT, key_hash TEXT, private INTEGER NOT NULL, "
    "client TEXT, model TEXT, stream INTEGER, workflow TEXT, route TEXT, reason TEXT, discussion TEXT, "
    "conversation BLOB, started INTEGER NOT NULL, queued INTEGER, first_token INTEGER, answered INTEGER, "
    "ended INTEGER, nodes INTEGER, calls INTEGER, endpoints TEXT, tokens_in INTEGER, tokens_out INTEGER, "
    "tokens_cached INTEGER, estimated INTEGER, question TEXT, answer TEXT, error TEXT, note TEXT)",
    "CREATE INDEX run_started ON run(started)",
    "CREATE INDEX run_conversation ON run(conversation, n)",
    "CREATE TABLE config (hash BLOB PRIMARY KEY, path TEXT NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE session (hash BLOB PRIMARY KEY, created INTEGER, used INTEGER, label TEXT)",
    "CREATE TABLE change (n INTEGER PRIMARY KEY, at INTEGER, session TEXT, path TEXT, what TEXT, backup TEXT)",
    # The codes of sign-in links that were used, until they would have expired.
    "CREATE TABLE spent (nonce BLOB PRIMARY KEY, until INTEGER)",
)
SEGMENT_TABLES = (
    "CREATE TABLE tree (n INTEGER PRIMARY KEY, coding INTEGER NOT NULL, body BLOB NOT NULL)",
    "CREATE TABLE text (id INTEGER PRIMARY KEY, hash BLOB UNIQUE, coding INTEGER NOT NULL, body BLOB NOT NULL)",
)


class DamagedError(WilmerError):
    """A file has other content than was written. The text names the file."""


class OtherVersionError(WilmerError):
    """The file has the tables of another version."""


# What reading a file may raise that is not as it was written.
UNREADABLE = (sqlite3.Error, DamagedError, zlib.error, ValueError, LookupError, TypeError, AttributeError)


# -- names and removal -------------------------------------------------------------------------------------------------


def segment_name(number: int) -> str:
    """Return the name of the file with a run's tree, by the segment of its row."""
    return f"seg-{number:06}.db" if number > 0 else PINNED_FILE


def lock_name(number: int) -> str:
    """Return the name of the file that is locked as long as a process writes to a segment."""
    return f"seg-{number:06}.lock"


def segment_numbers(folder: str) -> list[int]:
    """Return the numbers of all segments, the oldest first. Raises OSError."""
    return sorted(int(match[1]) for match in map(_SEGMENT.fullmatch, os.listdir(folder)) if match)


def is_written(folder: str, number: int) -> bool:
    """Return whether a living process writes to a segment."""
    path = os.path.join(folder, lock_name(number))
    if not os.path.exists(path):
        return False
    try:
        with process_lock(path, timeout=0):
            return False
    # PermissionError: a process of another account, which only Windows and network file systems report like this.
    except (TimeoutError, OSError):
        return True


def new_segment(folder: str, database: sqlite3.Connection) -> int:
    """Reserve a number, by a file that is not there yet. Call it in a transaction on the index. Raises OSError."""
    most = database.execute("SELECT max(segment) FROM run").fetchone()[0] or 0
    number = max([most, 0, *segment_numbers(folder)]) + 1
    os.close(os.open(os.path.join(folder, segment_name(number)), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    return number


def remove_database(path: str) -> int:
    """Remove a file with what SQLite keeps next to it; return the bytes that are free now. Raises OSError."""
    freed = 0
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            size = os.stat(name).st_size
            os.unlink(name)
            freed += size
    return freed


def size_of(path: str) -> int:
    """Return the bytes of a file and of what SQLite keeps next to it."""
    size = 0
    for name in (path, f"{path}-wal"):
        with contextlib.suppress(OSError):
            size += os.stat(name).st_size
    return size


# -- opening -----------------------------------------------------------------------------------------------------------


def open_index(path: str) -> sqlite3.Connection:
    """Return a connection for writing; the file and its tables are created. Raises sqlite3.Error, OSError.

    Raises OtherVersionError for a file of another version.
    """
    return _opened(path, INDEX_TABLES, "auto_vacuum = INCREMENTAL")


def open_segment(path: str) -> sqlite3.Connection:
    """Return a connection for writing to a file with trees and texts. Raises as ``open_index``."""
    return _opened(path, SEGMENT_TABLES, "auto_vacuum = NONE")


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raise the error of a damaged file where SQLite quotes bytes of one in a message that Python cannot decode."""
    try:
        yield
    except UnicodeDecodeError as error:
        damaged = sqlite3.DatabaseError("its schema is damaged")
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damaged from error


@_readable()
def _opened(path: str, tables: Iterable[str], first: str) -> sqlite3.Connection:
    # SQLite would create the file with the umask's bits, readable by others.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, OWNER_ONLY))
    database = sqlite3.connect(path, timeout=sqlite.SLICE_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # It takes effect only while the file is empty, and the write-ahead log writes a header.
        sqlite.set_pragma(database, first)
        sqlite.use_write_ahead_log(database)
        # In pages of 4 KB: a log of 2 MB is written back.
        for setting in (
            "synchronous = NORMAL",
            "secure_delete = ON",
            "wal_autocheckpoint = 512",
            f"journal_size_limit = {4 * 1024 * 1024}",
        ):
            sqlite.set_pragma(database, setting)
        _create(database, tables)
    except BaseException:
        database.close()
        raise
    return database


def _create(database: sqlite3.Connection, tables: Iterable[str]) -> None:
    if _version(database) == VERSION:
        return
    with sqlite.transaction(database):
        version = _version(database)
        # Another process may have made them in the meantime.
        if version == VERSION:
            return
        if version or database.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise OtherVersionError(f"version {version}")
        for statement in tables:
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {VERSION}")


def _version(database: sqlite3.Connection) -> int:
    return int(sqlite.when_free(lambda: database.execute("PRAGMA user_version").fetchone())[0])


@contextlib.contextmanager
def reading(path: str) -> Iterator[sqlite3.Connection]:
    """Open a file for reading while the block runs. Raises sqlite3.Error."""
    address = f"{Path(path).absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(
        address, timeout=sqlite.BUSY_SECONDS, isolation_level=None, uri=True, check_same_thread=False
    )
    # A damaged text is shown as far as it can be read.
    database.text_factory = partial(str, encoding="utf-8", errors="replace")
    with contextlib.closing(database), _readable():
        yield database


def has_tables(database: sqlite3.Connection) -> bool:
    """Return whether a file has its tables already: its writer creates it first, and then all of them at once."""
    return _version(database) != 0


def truncate_log(database: sqlite3.Connection) -> None:
    """Write the write-ahead log back, and leave nothing in it."""
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


# -- trees and texts: writing ------------------------------------------------------------------------------------------


class SegmentWriter:
    """A file with trees and texts that one thread writes to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.database = open_segment(path)
        self._id = os.stat(path).st_ino
        self._known: dict[object, int] = {}
        self.lists, self.characters = KnownLists[Numbers](), 0
        self._known_bytes = self._new_bytes = 0
        # The versions of configuration files of the run before, which runs of one second share, and their number.
        self._config: tuple[list[ConfigVersion], int] | None = None

    def is_there(self) -> bool:
        """Return whether the file still has its name: users may delete the folder while the server runs."""
        try:
            return os.stat(self.path).st_ino == self._id
        except OSError:
            return False

    def put(self, n: int, document: RunDocument, with_texts: bool) -> None:
        """Write a run, or replace what was written of it. Commits now and then, and leaves a transaction open."""
        self._begin()
        self.characters = document.size
        sealed = None
        if with_texts and document.facts["private"]:
            sealed = self._seal(document)
        body = tree(
            document,
            self if with_texts and sealed is None else None,
            sealed,
            self._config_number(document.facts["config"]),
        )
        coding, data = zipped(body, TREE_ZIP_ABOVE)
        self.database.execute("INSERT OR REPLACE INTO tree (n, coding, body) VALUES (?, ?, ?)", (n, coding, data))
        self._count(len(data))

    def _config_number(self, config: list[ConfigVersion]) -> int | None:
        if not config:
            return None
        if self._config is None or self._config[0] is not config:
            data = to_stored_json(config)
            self._config = config, self((bytes, data), lambda: data)
        return self._config[1]

    def _seal(self, document: RunDocument) -> int:
        """Write all texts of a private run as one, encrypted."""
        assert document.encryption_key is not None
        token = cipher_for(document.encryption_key).encrypt(zlib.compress(texts_by_span(document)))
        self._count(len(token))
        done = self.database.execute(
            "INSERT INTO text (hash, coding, body) VALUES (NULL, ?, ?)", (ZIPPED | SEALED, token)
        )
        return int(done.lastrowid or 0)

    def __call__(self, key: object, data: Callable[[], bytes]) -> int:
        """Write a text, unless it is there already; return its number. See ``TextStore``."""
        known = self._known.get(key)
        if known is not None:
            return known
        body = data()
        number = self._text(body)
        # Larger texts are rarely sent twice, and would fill the map.
        if len(body) <= MOST_KNOWN_BYTES // 64:
            if len(self._known) >= MOST_KNOWN or self._known_bytes > MOST_KNOWN_BYTES:
                self.forget_known()
            self._known[key] = number
            self._known_bytes += len(body)
        return number

    def _text(self, body: bytes) -> int:
        digest = hashlib.blake2b(body, digest_size=HASH_BYTES).digest()
        row = self.database.execute("SELECT id FROM text WHERE hash = ?", (digest,)).fetchone()
        if row is not None:
            return int(row[0])
        coding, data = zipped(body)
        self._count(len(data))
        done = self.database.execute("INSERT INTO text (hash, coding, body) VALUES (?, ?, ?)", (digest, coding, data))
        return int(done.lastrowid or 0)

    def _count(self, size: int) -> None:
        """Commit what is too much for one transaction. Texts without a tree do no harm, should the next one fail."""
        self._new_bytes += size
        if self._new_bytes > TRANSACTION_BYTES:
            self.commit()
            self._begin()

    def _begin(self) -> None:
        if not self.database.in_transaction:
            sqlite.when_free(lambda: self.database.execute("BEGIN IMMEDIATE"))

    def commit(self) -> None:
        """Write what was put."""
        if self.database.in_transaction:
            sqlite.when_free(lambda: self.database.execute("COMMIT"))
        self._new_bytes = 0

    def roll_back(self) -> None:
        """Drop what was put since the last commit."""
        with contextlib.suppress(sqlite3.Error):
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
        self.forget_known()
        self._new_bytes = 0

    def forget_known(self) -> None:
        """Forget which texts are in the file: some may have been removed."""
        self._known.clear()
        self._known_bytes = 0
        self.lists.clear()
        self._config = None

    def compress_trees(self, after: int) -> int | None:
        """Compress some trees with numbers above ``after``; return the last one, None when there are no more."""
        rows = self.database.execute(
            "SELECT n, body FROM tree WHERE n > ? AND coding = ? AND length(body) > ? ORDER BY n LIMIT ?",
            (after, PLAIN, IDLE_ZIP_ABOVE, IDLE_TREES),
        ).fetchall()
        with sqlite.transaction(self.database):
            for n, body in rows:
                coding, data = zipped(body, IDLE_ZIP_ABOVE, THOROUGH)
                self.database.execute("UPDATE tree SET coding = ?, body = ? WHERE n = ?", (coding, data, n))
        return rows[-1][0] if rows else None

    def close(self) -> None:
        """Write the log back and close the file."""
        with contextlib.suppress(sqlite3.Error):
            truncate_log(self.database)
        self.database.close()


# -- trees and texts: reading and removing -----------------------------------------------------------------------------


def load_tree(database: sqlite3.Connection, n: int) -> bytes:
    """Return the tree of a run. Raises DamagedError, sqlite3.Error."""
    row = database.execute("SELECT coding, body FROM tree WHERE n = ?", (n,)).fetchone()
    if row is None:
        raise DamagedError(f"it has no run {n}")
    return unzipped(*row)


def load_text(database: sqlite3.Connection, number: int) -> bytes:
    """Return a text; one that is encrypted as it is. Raises DamagedError, sqlite3.Error."""
    row = database.execute("SELECT coding, body FROM text WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise DamagedError(f"it has no text {number}")
    coding, body = row
    return bytes(body) if coding & SEALED else unzipped(coding, body)


def forget_runs(database: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Remove trees, and the texts that no other tree of the file refers to. Raises sqlite3.Error, ValueError."""
    with sqlite.transaction(database):
        unused: set[int] = set()
        for n in numbers:
            with contextlib.suppress(DamagedError):
                unused |= kept_ids(load_tree(database, n))
            database.execute("DELETE FROM tree WHERE n = ?", (n,))
        if unused:
            for coding, body in database.execute("SELECT coding, body FROM tree"):
                unused -= kept_ids(unzipped(coding, body))
        database.executemany("DELETE FROM text WHERE id = ?", [(number,) for number in unused])
    # The log still has the pages as they were.
    with contextlib.suppress(sqlite3.Error):
        truncate_log(database)


def copy_run(source: str, n: int, target: sqlite3.Connection) -> None:
    """Copy a run with its texts, as they are, to another file. Raises sqlite3.Error, DamagedError."""
    with reading(source) as database, sqlite.transaction(target):
        body = load_tree(database, n)
        numbers = {number: _copied(database, target, number) for number in kept_ids(body)}
        coding, data = zipped(with_numbers(body, numbers), IDLE_ZIP_ABOVE, THOROUGH)
        target.execute("INSERT OR REPLACE INTO tree (n, coding, body) VALUES (?, ?, ?)", (n, coding, data))


def _copied(database: sqlite3.Connection, target: sqlite3.Connection, number: int) -> int:
    row = database.execute("SELECT hash, coding, body FROM text WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise DamagedError(f"it has no text {number}")
    known = target.execute("SELECT id FROM text WHERE hash = ?", row[:1]).fetchone()
    if known is not None:
        return int(known[0])
    return int(target.execute("INSERT INTO text (hash, coding, body) VALUES (?, ?, ?)", row).lastrowid or 0)
