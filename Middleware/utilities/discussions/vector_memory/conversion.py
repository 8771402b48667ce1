"""Change how a whole database is stored: in clear, as tokens, or as tokens of another key.

Nothing in clear may stay behind where tokens are wanted, and nothing at all of what was deleted by hand.
``secure_delete`` blanks what is overwritten or freed; the index of words is dropped and rebuilt, because deleting its
rows leaves their words in its segments; pages that were freed by others before are dropped by VACUUM, at a later write
if the database is being read just then; and the write-ahead log, which holds old pages, is cut to nothing.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterable

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.vector_memory import schema
from Middleware.utilities.discussions.vector_memory.schema import Codec, is_token, sql_is_clear
from Middleware.utilities.sqlite import set_pragma, transaction, when_free

logger = logging.getLogger(__name__)

# The file's user_version from its encryption, or a deletion by hand, until VACUUM has dropped old pages ...
_HOLDS_OLD_PAGES = 1
# ... and from then on until the write-ahead log was emptied: the next write continues what was interrupted.
_HOLDS_OLD_LOG = 2
# How long a write waits for that. Readers block it, and the next write tries again.
_LOG_SECONDS = 1.0


def has_clear_rows(database: sqlite3.Connection) -> bool:
    """Return whether anything in the file is not encrypted; read no more of a row than needed."""
    checks = (
        "SELECT 1 FROM memories_fts LIMIT 1",
        f"SELECT 1 FROM memories WHERE {sql_is_clear('memory_text')} OR {sql_is_clear('metadata_json')} LIMIT 1",
        "SELECT 1 FROM memory_embeddings WHERE typeof(vector) <> 'text' LIMIT 1",
    )
    if any(database.execute(check).fetchone() for check in checks):
        return True
    return _has_chunks(database) and not is_token(_hash_key(database)) and bool(_sources(database))


def _has_chunks(database: sqlite3.Connection) -> bool:
    return not schema.CHUNK_NAMES - schema.table_names(database)


def _hash_key(database: sqlite3.Connection) -> str | None:
    row = database.execute("SELECT sources FROM vector_memory_sources WHERE log_id = 0").fetchone()
    return None if row is None else row[0]


def _sources(database: sqlite3.Connection) -> list[sqlite3.Row]:
    return database.execute("SELECT log_id, sources, before FROM vector_memory_sources WHERE log_id > 0").fetchall()


def convert(database: sqlite3.Connection, source: Codec, target: Codec, scope: CancelScope | None = None) -> None:
    """Store everything as ``target`` does, in one transaction. Raises sqlite3.Error, DataKeyError: nothing changed."""
    database.execute("PRAGMA secure_delete = ON")
    with transaction(database, scope):
        schema.create_tables(database)
        remember_indexed_topics(database, source)
        _convert_memories(database, source, target)
        _convert_vectors(database, source, target)
        if _has_chunks(database):
            _convert_sources(database, source, target)
        write_index(database, target)
        if target.active:
            mark_old_pages(database)
    if target.active:
        forget_old_pages(database, scope)


def remember_indexed_topics(database: sqlite3.Connection, codec: Codec) -> None:
    """Note which rows of the index on disk hold their topics, before that index goes."""
    rows = database.execute(
        "SELECT f.rowid, f.key_phrases, m.metadata_json FROM memories_fts f JOIN memories m ON m.id = f.rowid"
    ).fetchall()
    numbers = [row[0] for row in rows if holds_topics(row[1], codec.decode_text(row[2]))]
    database.executemany("INSERT OR IGNORE INTO memory_indexed_topics VALUES (?)", [(number,) for number in numbers])


def holds_topics(indexed: str, metadata_json: str) -> bool:
    """Return whether the indexed key phrases of a memory include its topics."""
    try:
        metadata = schema.parse_metadata(metadata_json)
    except ValueError:
        return False
    with_topics = schema.index_row("", metadata, True)[3]
    return indexed == with_topics and with_topics.strip() != schema.index_row("", metadata, False)[3].strip()


def write_index(database: sqlite3.Connection, codec: Codec) -> None:
    """Rebuild the index on disk from the rows; it stays empty if they are encrypted."""
    database.execute("DROP TABLE IF EXISTS memories_fts")
    database.execute(schema.INDEX_TABLE)
    if codec.active:
        return
    rows = database.execute(
        "SELECT m.id, m.memory_text, m.metadata_json, t.memory_id FROM memories m "
        "LEFT JOIN memory_indexed_topics t ON t.memory_id = m.id"
    )
    database.executemany(schema.INSERT_INDEX, _index_rows(rows, codec))


def _index_rows(rows: Iterable[sqlite3.Row], codec: Codec) -> Iterable[tuple[object, ...]]:
    for number, text, metadata_json, with_topics in rows:
        try:
            metadata = schema.parse_metadata(codec.decode_text(metadata_json))
        except ValueError:
            metadata = {}
        yield number, *schema.index_row(codec.decode_text(text), metadata, with_topics is not None)


def _convert_memories(database: sqlite3.Connection, source: Codec, target: Codec) -> None:
    rows = database.execute("SELECT id, memory_text, metadata_json FROM memories").fetchall()
    database.executemany(
        "UPDATE memories SET memory_text = ?, metadata_json = ? WHERE id = ?",
        (
            (
                target.encode_text(source.decode_text(row["memory_text"])),
                target.encode_text(source.decode_text(row["metadata_json"])),
                row["id"],
            )
            for row in rows
        ),
    )


def _convert_vectors(database: sqlite3.Connection, source: Codec, target: Codec) -> None:
    rows = database.execute("SELECT memory_id, model, vector FROM memory_embeddings").fetchall()
    database.executemany(
        "UPDATE memory_embeddings SET vector = ? WHERE memory_id = ? AND model = ?",
        ((target.encode_vector(source.decode_vector(row["vector"])), row["memory_id"], row["model"]) for row in rows),
    )


def _convert_sources(database: sqlite3.Connection, source: Codec, target: Codec) -> None:
    """Store the key of the hashes as ``target`` does; without one, make it and the hashes."""
    known = _hash_key(database)
    hash_key = source.decode_text(known) if known else target.new_hash_key()
    if not known and hash_key:
        rows = [
            (
                schema.keys_as_json(schema.stored_key(key, hash_key) for key in json.loads(row[1])),
                schema.stored_key(row[2], hash_key),
                row[0],
            )
            for row in _sources(database)
        ]
        database.executemany("UPDATE vector_memory_sources SET sources = ?, before = ? WHERE log_id = ?", rows)
    if hash_key:
        database.execute(
            "INSERT OR REPLACE INTO vector_memory_sources (log_id, sources) VALUES (0, ?)",
            (target.encode_text(hash_key),),
        )


def mark_old_pages(database: sqlite3.Connection) -> None:
    """Let ``forget_old_pages`` have something to do, now or at a later write."""
    database.execute(f"PRAGMA user_version = {_HOLDS_OLD_PAGES}")


def forget_old_pages(database: sqlite3.Connection, scope: CancelScope | None = None) -> None:
    """Drop the pages that were freed while texts to be forgotten were in them, unless that is done or others use the
    file."""
    left = database.execute("PRAGMA user_version").fetchone()[0]
    try:
        if left == _HOLDS_OLD_PAGES:
            when_free(lambda: database.execute("VACUUM"), scope)
            left = _HOLDS_OLD_LOG
            set_pragma(database, f"user_version = {left}", scope)
        if left == _HOLDS_OLD_LOG and _log_is_emptied(database, scope):
            set_pragma(database, "user_version = 0", scope)
    except sqlite3.Error as error:
        logger.warning(
            "Pages of a memory database that hold what was deleted or encrypted could not be dropped; it is tried "
            "again at its next write: %s",
            error,
        )


def _log_is_emptied(database: sqlite3.Connection, scope: CancelScope | None) -> bool:
    """Cut the log of old pages to nothing, unless others read or write at this moment."""
    deadline = time.monotonic() + _LOG_SECONDS
    while when_free(lambda: database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone(), scope)[0]:
        if scope is not None and scope.cancelled:
            return False
        if time.monotonic() >= deadline:
            logger.warning(
                "Others use the log of a memory database that holds what was deleted or encrypted; emptying it is "
                "tried again at its next write"
            )
            return False
        # Some kinds of busy are answered at once.
        time.sleep(0.005)
    return True
