"""Inspect the database of a conversation's searchable memories without a key: counts, logs and faults."""
from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from Middleware.utilities import sqlite
from Middleware.utilities.conversations.vector_memory import schema
from Middleware.utilities.conversations.vector_memory.schema import is_token, sql_is_clear
from Middleware.utilities.vector_math_utils import FLOAT_BYTES

_HASH = re.compile("[0-9a-f]{64}")
_CLEAR = sql_is_clear("memory_text")


@dataclass(frozen=True)
class Searchable:
    """The contents of a database.

    Attributes:
        vectors: for each embedding model, the number of memories with a vector.
        encrypted: the newest memory is encrypted.
    """

    memories: int = 0
    vectors: dict[str, int] = field(default_factory=dict)
    encrypted: bool = False


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[sqlite3.Connection, frozenset[str]]]:
    """Yield a connection and the names of the existing tables. Raises sqlite3.Error, also for other files."""
    with closing(schema.connect(path)) as database:
        yield database, sqlite.when_free(lambda: schema.table_names(database))


def survey(path: str) -> Searchable:
    """Return the number of memories and vectors. Raises sqlite3.Error."""
    with opened(path) as (database, tables):
        if "memories" not in tables:
            return Searchable()
        count = database.execute("SELECT count(*) FROM memories").fetchone()[0]
        newest = database.execute("SELECT memory_text FROM memories ORDER BY id DESC LIMIT 1").fetchone()
        vectors = {}
        if "memory_embeddings" in tables:
            vectors = dict(database.execute("SELECT model, count(*) FROM memory_embeddings WHERE memory_id IN "
                                            "(SELECT id FROM memories) GROUP BY model ORDER BY model").fetchall())
    return Searchable(count, vectors, newest is not None and is_token(newest[0]))


def hash_log(path: str) -> list[dict[str, object]]:
    """Return the hashes of processed messages with their times, oldest first. Raises sqlite3.Error."""
    with opened(path) as (database, tables):
        if "vector_memory_hash_log" not in tables:
            return []
        rows = database.execute("SELECT message_hash, timestamp FROM vector_memory_hash_log ORDER BY id")
        return [{"hash": row["message_hash"], "timestamp": row["timestamp"]} for row in rows]


def models(path: str) -> list[str]:
    """Return the names of the embedding models that made vectors, sorted. Raises sqlite3.Error."""
    with opened(path) as (database, tables):
        if "memory_embeddings" not in tables:
            return []
        return [row[0] for row in database.execute("SELECT DISTINCT model FROM memory_embeddings ORDER BY model")]


# -- faults ------------------------------------------------------------------------------------------------------------

def faults(path: str) -> list[str]:
    """Return the faults of the database as sentences. Raises sqlite3.Error if it cannot be read at all."""
    with opened(path) as (database, tables):
        broken = [row[0] for row in database.execute("PRAGMA quick_check(5)") if row[0] != "ok"]
        if broken or "memories" not in tables:
            return [f"the database is damaged: {text}" for text in broken] or ["it has no table 'memories'"]
        missing = [f"it has no table '{name}'; rebuild-index makes it"
                   for name in sorted(schema.NAMES - tables - {"memory_embeddings", "memory_indexed_topics"})]
        checks: tuple[Callable[[sqlite3.Connection, frozenset[str]], Iterator[str]], ...] = (
            _index_faults, _vector_faults, _log_faults)
        return missing + [text for check in checks for text in check(database, tables)]


def _index_faults(database: sqlite3.Connection, tables: frozenset[str]) -> Iterator[str]:
    if "memories_fts" not in tables:
        return
    lost = _count(database, f"FROM memories WHERE {_CLEAR} AND id NOT IN (SELECT rowid FROM memories_fts)")
    if lost:
        yield f"{lost} of the memories are not in the index of words, so no search finds them; rebuild-index adds them"
    stray = _count(database, "FROM memories_fts WHERE rowid NOT IN (SELECT id FROM memories)")
    if stray:
        yield f"the index of words has {stray} rows without a memory; rebuild-index removes them"


def _vector_faults(database: sqlite3.Connection, tables: frozenset[str]) -> Iterator[str]:
    if "memory_embeddings" not in tables:
        return
    stray = _count(database, "FROM memory_embeddings WHERE memory_id NOT IN (SELECT id FROM memories)")
    if stray:
        yield f"{stray} vectors belong to no memory"
    odd = _count(database, "FROM memory_embeddings WHERE typeof(vector) = 'blob' AND "
                           f"length(vector) <> dim * {FLOAT_BYTES}")
    if odd:
        yield f"{odd} vectors do not have their recorded length"


def _log_faults(database: sqlite3.Connection, tables: frozenset[str]) -> Iterator[str]:
    if "vector_memory_hash_log" not in tables:
        return
    rows = database.execute("SELECT id, message_hash, timestamp FROM vector_memory_hash_log ORDER BY id").fetchall()
    for row in rows:
        if not isinstance(row["message_hash"], str) or not _HASH.fullmatch(row["message_hash"]):
            yield f"entry {row['id']} of the log of processed messages is not a hash"
        if not _is_date(row["timestamp"]):
            yield f"entry {row['id']} of the log of processed messages has no time"


def _is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _count(database: sqlite3.Connection, rest: str) -> int:
    number: int = database.execute(f"SELECT count(*) {rest}").fetchone()[0]
    return number
