"""``index.db``: one row for each run on disk, and the tables of the console that are not about runs."""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from Middleware.addons.records.folder import OWNER_ONLY
from Middleware.addons.records.model import Mark, RunFacts, StoredRun
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.viewers import Viewer
from Middleware.utilities import sqlite
from Middleware.utilities.text_utils import without_surrogates

logger = logging.getLogger(__name__)

INDEX_FILE = "index.db"
VERSION = 1
# A pinned run is in pinned.db, and so is one that was pinned once: retention removes it when it is too old.
PINNED, UNPINNED = 0, -1

TABLES = (
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

Value: TypeAlias = "str | int | bytes | None"


@dataclass(frozen=True)
class _Column:
    """A column of ``run``, the fact in it, and how that is written and read."""

    name: str
    fact: str
    write: Callable[[object], Value] | None = None
    read: Callable[[object], object] | None = None


# One for all rows: to make it takes longer than to use it.
_json_of = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _to_json(value: object) -> Value:
    return None if value is None else _json_of(value)


def _from_json(value: object) -> object:
    return None if value is None else json.loads(str(value))


def _to_blob(value: object) -> Value:
    return None if value is None else bytes.fromhex(str(value))


def _from_blob(value: object) -> object:
    return None if value is None else cast(bytes, value).hex()


def _names(value: object) -> object:
    return json.loads(str(value)) if value else []


COLUMNS = (
    _Column("id", "id"),
    _Column("kind", "kind"),
    _Column("origin", "origin", _to_json, _from_json),
    _Column("status", "status"),
    _Column("error_type", "error.type"),
    _Column("user", "user"),
    _Column("key_hash", "key_hash"),
    _Column("private", "private", None, bool),
    _Column("client", "client"),
    _Column("model", "model"),
    _Column("stream", "stream", None, bool),
    _Column("workflow", "workflow"),
    _Column("route", "route"),
    _Column("reason", "route.reason"),
    _Column("discussion", "discussion"),
    _Column("conversation", "conversation", _to_blob, _from_blob),
    _Column("started", "started"),
    _Column("queued", "queued"),
    _Column("first_token", "first_token"),
    _Column("answered", "answered"),
    _Column("ended", "ended"),
    _Column("nodes", "nodes"),
    _Column("calls", "calls"),
    _Column("endpoints", "endpoints", _to_json, _names),
    _Column("tokens_in", "usage.input_tokens"),
    _Column("tokens_out", "usage.output_tokens"),
    _Column("tokens_cached", "usage.cache_read.input_tokens"),
    _Column("estimated", "estimated", None, bool),
    _Column("question", "question"),
    _Column("answer", "answer"),
    _Column("error", "error"),
)
_NAMES = [column.name for column in COLUMNS]
_IN_ORDER = operator.itemgetter(*(column.fact for column in COLUMNS))
_WRITTEN = [(position, column.write) for position, column in enumerate(COLUMNS) if column.write is not None]
# Question, answer and error are the last columns.
_TEXTS = slice(-3, None)
_SELECT = f"SELECT {', '.join(_NAMES)}, n, segment, note FROM run"
_INSERT = f"INSERT INTO run ({', '.join(_NAMES)}, segment) VALUES ({', '.join('?' * (len(_NAMES) + 1))})"
_UPDATE = f"UPDATE run SET {', '.join(f'{name} = ?' for name in _NAMES)}, segment = ? WHERE n = ?"


class OtherVersionError(Exception):
    """The file has the tables of another version."""


# -- opening ----------------------------------------------------------------------------------------------------------


def open_index(path: str) -> sqlite3.Connection:
    """Return a connection for writing; the file and its tables are created. Raises sqlite3.Error, OSError.

    Raises OtherVersionError for a file of another version.
    """
    return _opened(path, TABLES, "auto_vacuum = INCREMENTAL")


def open_database(path: str, tables: Iterable[str]) -> sqlite3.Connection:
    """Return a connection for writing to a file with trees and texts. Raises as ``open_index``."""
    return _opened(path, tables, "auto_vacuum = NONE")


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
        # Another process may have made them meanwhile.
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
    with contextlib.closing(database):
        yield database


def has_tables(database: sqlite3.Connection) -> bool:
    """Return whether a file has its tables already: its writer creates it first, and then all of them at once."""
    return _version(database) != 0


# -- writing -----------------------------------------------------------------------------------------------------------

ShortTexts: TypeAlias = "tuple[str | None, str | None, str | None]"
"""Question, answer and error, as the row has them."""


def put_run(
    database: sqlite3.Connection, facts: RunFacts, texts: ShortTexts, segment: int, moved: Callable[[int, int], object]
) -> tuple[int, bool]:
    """Write the row of a run; return its ``n``, and whether it is a new one.

    ``moved`` is called with the segment and the ``n`` of a row that another file has the tree for.
    """
    values = list(_IN_ORDER(facts))
    for position, write in _WRITTEN:
        values[position] = write(values[position])
    values[_TEXTS] = texts
    try:
        return _put(database, values, segment, moved)
    except UnicodeEncodeError:
        # JSON can spell half a character, SQLite takes none.
        return _put(
            database,
            [without_surrogates(value) if isinstance(value, str) else value for value in values],
            segment,
            moved,
        )


def _put(
    database: sqlite3.Connection, values: Sequence[object], segment: int, moved: Callable[[int, int], object]
) -> tuple[int, bool]:
    try:
        return cast(int, database.execute(_INSERT, (*values, segment)).lastrowid), True
    except sqlite3.IntegrityError:
        # Nearly all runs are new, so nobody looks first: the row of one that was at work is there already.
        known = database.execute("SELECT n, segment FROM run WHERE id = ?", values[:1]).fetchone()
        if known is None:
            raise
    n, before = known
    if before not in (segment, PINNED, UNPINNED):
        moved(before, n)
    database.execute(_UPDATE, (*values, segment, n))
    return n, False


# -- reading -----------------------------------------------------------------------------------------------------------

Unseal: TypeAlias = "Callable[[str, str | None], Sequence[str | None]]"
"""Returns question, answer and error out of the sealed texts of a user's private run."""


def select(
    database: sqlite3.Connection,
    query: RunQuery,
    viewer: Viewer,
    without: Sequence[str],
    unseal: Unseal,
    limit: int = -1,
) -> Iterator[StoredRun]:
    """Yield the runs that fit, newest first."""
    condition, values = _condition(database, query, viewer, without, unseal)
    rows = database.execute(f"{_SELECT} WHERE {condition} ORDER BY started DESC, id DESC LIMIT ?", (*values, limit))
    return map(_run_of, rows)


def count(database: sqlite3.Connection, query: RunQuery, viewer: Viewer, without: Sequence[str], unseal: Unseal) -> int:
    """Return how many runs fit."""
    condition, values = _condition(database, query, viewer, without, unseal)
    return int(database.execute(f"SELECT count(*) FROM run WHERE {condition}", values).fetchone()[0])


def one(database: sqlite3.Connection, run_id: str) -> StoredRun | None:
    """Return a run by its id."""
    row = database.execute(f"{_SELECT} WHERE id = ?", (run_id,)).fetchone()
    return None if row is None else _run_of(row)


def marks(database: sqlite3.Connection, run_ids: Sequence[str]) -> dict[str, Mark]:
    """Return what was said about these runs."""
    rows = database.execute(
        "SELECT id, segment, note FROM run WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(run_ids)),)
    )
    return {run_id: Mark(segment == PINNED, note) for run_id, segment, note in rows}


def choices(database: sqlite3.Connection, viewer: Viewer) -> dict[str, list[str]]:
    """Return the names that occur in the viewer's runs, by the filter that they are for."""
    condition, values = _seen_by(viewer)
    # So many names are no list to choose from.
    found = {
        name: [
            row[0]
            for row in database.execute(
                f"SELECT DISTINCT {name} FROM run WHERE {name} IS NOT NULL AND {condition} LIMIT 200", values
            )
        ]
        for name in ("workflow", "user")
    }
    rows = database.execute(f"SELECT DISTINCT endpoints FROM run WHERE {condition} LIMIT 1000", values)
    return {**found, "endpoint": sorted({name for row in rows for name in cast("list[str]", _names(row[0]))})}


def _condition(
    database: sqlite3.Connection, query: RunQuery, viewer: Viewer, without: Sequence[str], unseal: Unseal
) -> tuple[str, list[Value]]:
    """Return the SQL of a query, and its values."""
    seen, values = _seen_by(viewer)
    parts = [seen]

    def add(part: str, *more: Value) -> None:
        parts.append(part)
        values.extend(more)

    if without:
        add("id NOT IN (SELECT value FROM json_each(?))", json.dumps(list(without)))
    if query.before is not None:
        add("started <= ? AND (started, id) < (?, ?)", query.before[0], *query.before)
    for column, words in (("status", query.status), ("kind", query.kind)):
        if words:
            add(f"{column} IN (SELECT value FROM json_each(?))", json.dumps(sorted(words)))
    for column, wanted in (("workflow", query.workflow), ("user", query.user), ("discussion", query.discussion)):
        if wanted is not None:
            add(f"{column} = ?", wanted)
    if query.endpoint is not None:
        add("instr(endpoints, ?)", json.dumps(query.endpoint, ensure_ascii=False))
    if query.since is not None:
        add("started >= ?", query.since)
    if query.until is not None:
        add("started < ?", query.until)
    if query.q and not query.all_texts:
        _add_search(database, query, viewer, unseal)
        columns = "id, route, reason, workflow, discussion, question, answer, error"
        add(f"found(private, user, key_hash, {columns})")
    return " AND ".join(parts), values


def _add_search(database: sqlite3.Connection, query: RunQuery, viewer: Viewer, unseal: Unseal) -> None:
    wanted = query.q.casefold()

    def found(private: int, user: str | None, key_hash: str | None, *texts: str | None) -> bool:
        if private:
            sealed, texts = texts[5], texts[:5]
            if sealed is not None and key_hash is not None and key_hash == viewer.key_hash:
                texts = (*texts, *unseal(sealed, user))
        # One text of all is quicker than one after the other. No query contains this character.
        return wanted in "\0".join(filter(None, texts)).casefold()

    database.create_function("found", -1, found, deterministic=True)


def _seen_by(viewer: Viewer) -> tuple[str, list[Value]]:
    """Return the SQL of ``Viewer.sees``."""
    if viewer.role == "operator":
        return "1", []
    own = "(key_hash IS NOT NULL AND key_hash = ?)"
    if viewer.role == "own":
        return own, [viewer.key_hash]
    if viewer.users is None:
        return "1", []
    return f"({own} OR user IN (SELECT value FROM json_each(?)))", [viewer.key_hash, json.dumps(sorted(viewer.users))]


def _run_of(row: Sequence[object]) -> StoredRun:
    values = dict(zip(_NAMES, row, strict=False))
    n, segment, note = cast("tuple[int, int, str | None]", tuple(row[len(_NAMES) :]))
    kept = values["question"] is not None
    sealed = None
    if values["private"]:
        sealed, values["question"] = cast("str | None", values["question"]), None
    facts = {
        column.fact: values[column.name] if column.read is None else column.read(values[column.name])
        for column in COLUMNS
    }
    # They stand in the tree, with the spans.
    facts["config"] = []
    return StoredRun(cast(RunFacts, facts), Mark(segment == PINNED, note), kept, n, segment, sealed)
