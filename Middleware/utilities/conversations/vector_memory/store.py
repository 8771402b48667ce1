"""The memories of a conversation, read and written on one connection."""
from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TypedDict, cast

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import writing
from Middleware.utilities import sqlite
from Middleware.utilities.conversations.message_places import LoggedMessage, MessagePlace, place_from_text
from Middleware.utilities.conversations.vector_memory import conversion, schema
from Middleware.utilities.conversations.vector_memory.cache import file_state, vectors_of
from Middleware.utilities.conversations.vector_memory.encrypted_index import StoredRow, index_of
from Middleware.utilities.conversations.vector_memory.keyword_search import (
    KeywordSearch,
    phrases_of,
    search_present_ids,
    usable_weights,
)
from Middleware.utilities.conversations.vector_memory.schema import Codec, is_token
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, file_in_folder, file_named
from Middleware.utilities.vector_math_utils import FLOAT_BYTES

# In one statement; SQLite before 3.32 takes no more than 999.
_MOST_VALUES = 500
# SQLite's numbers end at 63 bits, and nobody has that many memories.
_MOST_ROWS = 1 << 31


class MemoryRow(TypedDict):
    """A row of the table ``memories``, in clear."""

    id: int
    discussion_id: str
    memory_text: str
    date_added: str
    metadata_json: str | None


class VectorMemories:
    """The memories of one conversation, for one pass: ``with state.memories() as memories: ...``.

    Opened for reading, a missing database is one without memories, and nothing is created. Opened for writing
    (``write=True``), file and tables are made, and rows in clear become tokens if the cipher is active. Memories come
    as dicts of all columns, in clear.

    All methods raise ``sqlite3.Error``; DataKeyError for data of another key, or of any key without one; and
    EarlyTerminationException when ``scope`` is cancelled while they wait. Each writing method is one transaction.
    """

    def __init__(self, path: str, discussion_id: str = "", *, write: bool = False, cipher: Cipher = NO_CIPHER,
                 mode: int | None = None, scope: CancelScope | None = None) -> None:
        self.path, self.discussion_id = path, discussion_id
        self._cipher, self._codec, self._scope = cipher, Codec(cipher), scope
        self._database: sqlite3.Connection | None = None
        self._tables: frozenset[str] = frozenset()
        if write or os.path.isfile(path):
            self._database = schema.connect(path, create=write, mode=mode)
            try:
                self._prepare(write)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> VectorMemories:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
            self._tables = frozenset()

    @property
    def exists(self) -> bool:
        """Whether the database and its table of memories exist."""
        return "memories" in self._tables

    @property
    def cipher(self) -> Cipher:
        """What the memories are stored with: the given cipher, or that of another of its keys."""
        return self._cipher

    def _prepare(self, write: bool) -> None:
        database = self._db
        self._tables = sqlite.when_free(lambda: schema.table_names(database), self._scope)
        self._check_key()
        if not write:
            return
        if self._codec.active:
            database.execute("PRAGMA secure_delete = ON")
        sqlite.use_write_ahead_log(database)
        if self._tables != schema.ALL_NAMES:
            with sqlite.transaction(database, self._scope):
                schema.create_tables(database)
                if self.exists and "memories_fts" not in self._tables:
                    conversion.write_index(database, self._codec)
            self._tables = schema.ALL_NAMES
        if self._codec.active:
            if conversion.has_clear_rows(database):
                conversion.convert(database, self._codec, self._codec, self._scope)
            else:
                conversion.forget_old_pages(database, self._scope)

    def _check_key(self) -> None:
        newest = self._one("memories", "SELECT memory_text FROM memories ORDER BY id DESC LIMIT 1")
        if newest is not None and is_token(newest[0]):
            with file_named(file_in_folder(self.path)):
                # What is encrypted with another of the cipher's keys keeps that key.
                self._cipher = self._cipher.like(newest[0].encode("ascii"))
            self._codec = Codec(self._cipher)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise sqlite3.ProgrammingError("the database is not open for writing")
        return self._database

    # -- the log of processed messages ---------------------------------------------------------------------------
    def logged_messages(self, limit: int = 10) -> list[LoggedMessage]:
        """Return the last messages of the chunks that were processed last, newest first."""
        place = ("(SELECT place FROM vector_memory_hash_places WHERE log_id = l.id)"
                 if "vector_memory_hash_places" in self._tables else "NULL")
        rows = self._all("vector_memory_hash_log", f"SELECT l.message_hash, {place} FROM vector_memory_hash_log l "
                         "ORDER BY l.timestamp DESC, l.id DESC LIMIT ?", (_row_limit(limit),))
        return [LoggedMessage(row[0], place_from_text(row[1])) for row in rows]

    def log_hash(self, message_hash: str, place: MessagePlace | None = None) -> None:
        """Log the last message of a processed chunk, with its position if that is known."""
        with sqlite.transaction(self._db, self._scope):
            self._insert_hash(message_hash, place)

    def _insert_hash(self, message_hash: str, place: MessagePlace | None) -> None:
        # A clock may have been set back, or been wrong; what comes later must count as newer all the same.
        row = self._db.execute("INSERT INTO vector_memory_hash_log (discussion_id, message_hash, timestamp) SELECT "
                               "?, ?, max(?, coalesce((SELECT max(timestamp) FROM vector_memory_hash_log), ''))",
                               (self.discussion_id, message_hash, _utc_now()))
        if place is not None:
            self._db.execute("INSERT OR REPLACE INTO vector_memory_hash_places VALUES (?, ?)",
                             (row.lastrowid, json.dumps(place.as_json())))

    # -- writing memories ----------------------------------------------------------------------------------------
    def store_chunk(self, items: Sequence[tuple[str, str]], message_hash: str | None,
                    index_topics: bool = False, place: MessagePlace | None = None) -> list[int]:
        """Store the memories of a chunk, log the chunk as processed, and return the rows' ids; all or nothing.

        Args:
            items: text and metadata (a JSON object, stored as it is) of each memory.
            message_hash: of the chunk; None logs nothing.
            index_topics: let ``topics`` of the metadata be found too.
            place: the position of the chunk's last message.

        Raises ValueError for metadata that is not a JSON object.
        """
        ready = [(text, metadata, schema.parse_metadata(metadata)) for text, metadata in items]
        with writing("vector", [text for text, _ in items], len(items), message_hash), \
                sqlite.transaction(self._db, self._scope):
            numbers = [self._insert(text, metadata, parsed, index_topics) for text, metadata, parsed in ready]
            if message_hash is not None:
                self._insert_hash(message_hash, place)
        return numbers

    def _insert(self, text: str, metadata: str, parsed: dict[str, object], index_topics: bool) -> int:
        encode = self._codec.encode_text
        row = self._db.execute(
            "INSERT INTO memories (discussion_id, memory_text, date_added, metadata_json) VALUES (?, ?, ?, ?)",
            (self.discussion_id, encode(text), _utc_now(), encode(metadata)))
        number = row.lastrowid
        assert number is not None
        # SQLite uses the id of the newest row again once that row was deleted by hand.
        for statement in schema.FORGET:
            self._db.execute(statement, (number,))
        if index_topics:
            self._db.execute("INSERT OR IGNORE INTO memory_indexed_topics VALUES (?)", (number,))
        if not self._codec.active:
            self._db.execute(schema.INSERT_INDEX, (number, *schema.index_row(text, parsed, index_topics)))
        return number

    # -- changing memories by hand -------------------------------------------------------------------------------
    # The log of processed messages stays as it is, so that nothing is written twice.
    def change_text(self, number: int, text: str) -> None:
        """Replace the text of a memory, also in its metadata. Its vectors go; a later pass makes new ones."""
        row = next(iter(self.by_ids([number])))
        try:
            metadata = {**schema.parse_metadata(row["metadata_json"]), "summary": text}
        # The text is found without its metadata, too.
        except ValueError:
            metadata = {"summary": text}
        encode = self._codec.encode_text
        with self._index_remade():
            self._db.execute("UPDATE memories SET memory_text = ?, metadata_json = ? WHERE id = ?",
                             (encode(text), encode(json.dumps(metadata, ensure_ascii=False)), number))
            self._db.execute("DELETE FROM memory_embeddings WHERE memory_id = ?", (number,))

    def delete(self, number: int) -> None:
        """Delete a memory with its words and its vectors."""
        with self._index_remade():
            self._db.execute("DELETE FROM memories WHERE id = ?", (number,))
            for statement in schema.FORGET:
                self._db.execute(statement, (number,))

    def delete_all(self) -> None:
        """Delete all memories and the log of processed messages, so that all messages count as new."""
        with self._index_remade():
            for table in ("memories", "memory_embeddings", "memory_indexed_topics", "vector_memory_hash_log",
                          "vector_memory_hash_places"):
                self._db.execute(f"DELETE FROM {table}")

    @contextlib.contextmanager
    def _index_remade(self) -> Iterator[None]:
        """Hold a transaction after which the index of words is that of the memories."""
        # What a user deletes must not stay readable in the file; deleted rows of the index would leave their words.
        self._db.execute("PRAGMA secure_delete = ON")
        with sqlite.transaction(self._db, self._scope):
            if not self._codec.active:
                conversion.remember_indexed_topics(self._db, self._codec)
            yield
            conversion.write_index(self._db, self._codec)

    # -- finding memories ----------------------------------------------------------------------------------------
    def keyword_search(self, query: str, limit: int = 15, bm25_weights: Sequence[float] | None = None,
                       use_recency: bool = False) -> list[MemoryRow]:
        """Return the memories that fit the terms of ``query`` best; see ``keyword_search``."""
        limit = _row_limit(limit)
        search = KeywordSearch(phrases_of(query), limit, usable_weights(bm25_weights), use_recency)
        if not self.exists or not search.phrases or limit < 1:
            return []
        if self._codec.active or "memories_fts" not in self._tables:
            numbers = index_of(self.path, self._cipher).search(search, file_state(self.path), self._stored_rows,
                                                               self._codec, self._scope)
        else:
            numbers = sqlite.when_free(lambda: search_present_ids(self._db, search, self._scope), self._scope)
        return self.by_ids(numbers)

    def nearest(self, vector: Sequence[float], model: str, limit: int) -> list[int]:
        """Return the ids of the memories whose vectors of ``model`` are most like ``vector``, best first."""
        if not self.exists or "memory_embeddings" not in self._tables:
            return []
        return vectors_of(self.path, model, self._cipher).nearest(
            vector, _row_limit(limit), file_state(self.path), lambda: self.embeddings(model, False), self._scope)

    def by_ids(self, numbers: Sequence[int]) -> list[MemoryRow]:
        """Return the memories with these ids, in their order; missing ones are left out."""
        found: dict[int, sqlite3.Row] = {}
        for start in range(0, len(numbers), _MOST_VALUES):
            some = tuple(numbers[start:start + _MOST_VALUES])
            marks = ", ".join("?" * len(some))
            found |= {row["id"]: row for row in self._all("memories", f"SELECT * FROM memories WHERE id IN ({marks})",
                                                          some)}
        return [self._in_clear(found[number]) for number in numbers if number in found]

    def all_memories(self, limit: int = -1, offset: int = 0) -> Iterator[MemoryRow]:
        """Yield the memories, oldest first."""
        for row in self._all("memories", "SELECT * FROM memories ORDER BY id LIMIT ? OFFSET ?",
                             (-1 if limit < 0 else _row_limit(limit), _row_limit(offset))):
            yield self._in_clear(row)

    def newest(self, limit: int, before: int | None = None) -> list[MemoryRow]:
        """Return the newest memories, of those with an id below ``before``, newest first."""
        rows = self._all("memories", "SELECT * FROM memories WHERE id < ? ORDER BY id DESC LIMIT ?",
                         (_MOST_ROWS if before is None else _row_limit(before), _row_limit(limit)))
        return [self._in_clear(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """Return the numbers of ``memories``, ``embeddings`` and ``hashes``."""
        tables = {"memories": "memories", "embeddings": "memory_embeddings", "hashes": "vector_memory_hash_log"}
        return {name: (self._one(table, f"SELECT count(*) FROM {table}") or (0,))[0]
                for name, table in tables.items()}

    # -- vectors -------------------------------------------------------------------------------------------------
    def add_embeddings(self, embeddings: Sequence[tuple[int, bytes]], model: str) -> int:
        """Store or replace a model's vectors of rows, as 32-bit floats; return how many."""
        rows = [(number, model, len(blob) // FLOAT_BYTES, self._codec.encode_vector(blob))
                for number, blob in embeddings]
        with sqlite.transaction(self._db, self._scope):
            self._db.executemany("INSERT OR REPLACE INTO memory_embeddings (memory_id, model, dim, vector) "
                                 "VALUES (?, ?, ?, ?)", rows)
        return len(rows)

    def embeddings(self, model: str, strays: bool = True) -> list[tuple[int, bytes]]:
        """Return row ids and vectors of one model; ``strays`` includes those of deleted memories."""
        kept = "" if strays else "AND memory_id IN (SELECT id FROM memories) "
        rows = self._all("memory_embeddings", "SELECT memory_id, vector FROM memory_embeddings WHERE model = ? "
                         f"{kept}ORDER BY memory_id", (model,))
        return [(row[0], self._codec.decode_vector(row[1])) for row in rows]

    def without_embeddings(self, model: str, limit: int = 20) -> list[MemoryRow]:
        """Return the oldest memories that have no vector of this model."""
        rows = self._all("memories", f"SELECT m.* {self._missing} ORDER BY m.id LIMIT ?",
                         (model, _row_limit(limit)))
        return [self._in_clear(row) for row in rows]

    def count_without_embeddings(self, model: str) -> int:
        return next((row[0] for row in self._all("memories", f"SELECT count(*) {self._missing}", (model,))), 0)

    @property
    def _missing(self) -> str:
        """The FROM clause for memories without a vector of the model that is the first value."""
        if "memory_embeddings" not in self._tables:
            return "FROM memories m WHERE ? IS NOT NULL"
        return ("FROM memories m WHERE NOT EXISTS "
                "(SELECT 1 FROM memory_embeddings e WHERE e.memory_id = m.id AND e.model = ?)")

    # -- care ----------------------------------------------------------------------------------------------------
    def rebuild_index(self) -> int:
        """Rebuild the index of words from the memories; return how many there are."""
        with self._index_remade():
            pass
        return self.counts()["memories"]

    def change_cipher(self, cipher: Cipher) -> None:
        """Store everything under another key, or in clear, in one transaction, and use that key from now on."""
        target = Codec(cipher)
        conversion.convert(self._db, self._codec, target, self._scope)
        self._cipher, self._codec = cipher, target

    # -- reading -------------------------------------------------------------------------------------------------
    def _all(self, table: str, statement: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        if table not in self._tables:
            return []
        return sqlite.when_free(lambda: self._db.execute(statement, values).fetchall(), self._scope)

    def _one(self, table: str, statement: str) -> sqlite3.Row | None:
        return next(iter(self._all(table, statement)), None)

    def _in_clear(self, row: sqlite3.Row) -> MemoryRow:
        return cast(MemoryRow, {
            name: self._codec.decode_text(row[name]) if name in ("memory_text", "metadata_json") else row[name]
            for name in row.keys()})  # noqa: SIM118 - a Row iterates over its values

    def _stored_rows(self) -> list[StoredRow]:
        topics = {row[0] for row in self._all("memory_indexed_topics", "SELECT memory_id FROM memory_indexed_topics")}
        rows = self._all("memories", "SELECT id, memory_text, metadata_json, date_added FROM memories ORDER BY id")
        topics |= self._topics_of_clear_rows()
        return [StoredRow(row[0], row[1], row[2], row[3], row[0] in topics) for row in rows]

    def _topics_of_clear_rows(self) -> set[int]:
        """Return the rows in clear whose topics are in the index on disk; none once all rows are encrypted."""
        if "memories_fts" not in self._tables:
            return set()
        rows = self._all("memories_fts", "SELECT f.rowid, f.key_phrases, m.metadata_json FROM memories_fts f "
                         "JOIN memories m ON m.id = f.rowid")
        return {row[0] for row in rows if not is_token(row[2]) and conversion.holds_topics(row[1], row[2])}


def _row_limit(number: int) -> int:
    return min(max(0, number), _MOST_ROWS)


def _utc_now() -> str:
    """Return the current time as it is stored: UTC, ISO 8601 with offset."""
    return datetime.now(UTC).isoformat()
