"""The memories of a discussion in an SQLite file, read and written on one connection."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities import sqlite
from Middleware.utilities.discussions.vector_memory import conversion, schema
from Middleware.utilities.discussions.vector_memory.cache import RowsState, file_state
from Middleware.utilities.discussions.vector_memory.encrypted_index import StoredRow
from Middleware.utilities.discussions.vector_memory.keyword_search import KeywordSearch, search_present_ids
from Middleware.utilities.discussions.vector_memory.schema import Codec, is_token
from Middleware.utilities.discussions.vector_memory.searchable import (
    ChunkRow,
    MemoryRow,
    NewMemory,
    NewVector,
    SearchableMemories,
)
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, file_in_folder
from Middleware.utilities.once import BoundedCache, Once

T = TypeVar("T")

# In one statement; SQLite before 3.32 takes no more than 999.
_MOST_VALUES = 500
# Databases whose chunks stay in memory, about a megabyte for a thousand chunks.
_MOST_READ = 100


def chunk_failures() -> Once[tuple[str, str]]:
    """The number of failures in a row for each chunk, by place and name of the chunk."""
    return Once()


def _chunks_read() -> BoundedCache[str, tuple[Hashable, list[ChunkRow]]]:
    """What the chunks of a database were made of, by place, with the state of its file: each request reads it."""
    return BoundedCache(_MOST_READ)


class VectorMemories(SearchableMemories):
    """The memories in one SQLite file.

    Opened for reading, a missing database is one without memories, and nothing is created. Opened for writing
    (``write=True``), file and tables are made, and rows in clear become tokens if the cipher is active.
    """

    def __init__(
        self,
        path: str,
        discussion_id: str = "",
        *,
        write: bool = False,
        cipher: Cipher = NO_CIPHER,
        mode: int | None = None,
        scope: CancelScope | None = None,
    ) -> None:
        super().__init__(discussion_id, cipher, scope)
        self.path = path
        self._database: sqlite3.Connection | None = None
        self._tables: frozenset[str] = frozenset()
        if write or os.path.isfile(path):
            self._database = schema.connect(path, create=write, mode=mode)
            try:
                self._prepare(write)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
            self._tables = frozenset()

    @property
    def place(self) -> str:
        return os.path.realpath(self.path)

    @property
    def exists(self) -> bool:
        return "memories" in self._tables

    def _prepare(self, write: bool) -> None:
        database = self._db
        self._tables = sqlite.when_free(lambda: schema.table_names(database), self._scope)
        newest = self._one("memories", "SELECT memory_text FROM memories ORDER BY id DESC LIMIT 1")
        if newest is not None:
            self._use_key_of(newest[0], file_in_folder(self.path))
        if not write:
            return
        if self._codec.active:
            database.execute("PRAGMA secure_delete = ON")
        sqlite.use_write_ahead_log(database)
        if schema.ALL_NAMES - self._tables:
            with sqlite.transaction(database, self._scope):
                schema.create_tables(database)
                if self.exists and "memories_fts" not in self._tables:
                    conversion.write_index(database, self._codec)
            self._tables |= schema.ALL_NAMES
        if self._codec.active and conversion.has_clear_rows(database):
            conversion.convert(database, self._codec, self._codec, self._scope)
        else:
            conversion.forget_old_pages(database, self._scope)

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise sqlite3.ProgrammingError("the database is not open for writing")
        return self._database

    def _transact(self, action: Callable[[], T], compare: bool = False) -> T:
        # The lock on the discussion is a file of this machine, which its holder cannot lose.
        tables = self._tables
        try:
            with sqlite.transaction(self._db, self._scope):
                return action()
        except BaseException:
            self._tables = tables
            raise

    def _rewrite(self, action: Callable[[], None]) -> None:
        # What a user deletes must not stay readable in the file; deleted rows of the index would leave their words.
        self._db.execute("PRAGMA secure_delete = ON")
        with sqlite.transaction(self._db, self._scope):
            if not self._codec.active:
                conversion.remember_indexed_topics(self._db, self._codec)
            action()
            conversion.write_index(self._db, self._codec)
            conversion.mark_old_pages(self._db)
        conversion.forget_old_pages(self._db, self._scope)

    def _convert(self, target: Codec) -> None:
        conversion.convert(self._db, self._codec, target, self._scope)

    # A chunk is the business of one process while its messages come: after a restart it is counted from 1.
    def count_failure(self, chunk: str) -> int:
        return process().one(chunk_failures).count((self.place, chunk))

    def failures(self, chunk: str) -> int:
        return process().one(chunk_failures).noted((self.place, chunk))

    def end_failures(self, chunk: str) -> None:
        process().one(chunk_failures).over((self.place, chunk))

    # -- reading -------------------------------------------------------------------------------------------------
    def counts(self) -> dict[str, int]:
        tables = {"memories": "memories", "embeddings": "memory_embeddings", "hashes": "vector_memory_hash_log"}
        return {name: (self._one(table, f"SELECT count(*) FROM {table}") or (0,))[0] for name, table in tables.items()}

    def processed_messages(self) -> list[tuple[str, str]]:
        return [
            (row[0], row[1])
            for row in self._all(
                "vector_memory_hash_log", "SELECT message_hash, timestamp FROM vector_memory_hash_log ORDER BY id"
            )
        ]

    def _log_rows(self, limit: int, with_origin: bool) -> list[tuple[str, str | None]]:
        place = (
            "(SELECT place FROM vector_memory_hash_places WHERE log_id = l.id)"
            if "vector_memory_hash_places" in self._tables
            else "NULL"
        )
        without = "WHERE id NOT IN (SELECT log_id FROM vector_memory_sources) "
        without = "" if with_origin or not self.has_chunks else without
        rows = self._all(
            "vector_memory_hash_log",
            f"SELECT l.message_hash, {place} FROM vector_memory_hash_log l {without}"
            "ORDER BY l.timestamp DESC, l.id DESC LIMIT ?",
            (limit,),
        )
        return [(row[0], row[1]) for row in rows]

    @property
    def has_chunks(self) -> bool:
        return "memory_chunks" in self._tables

    def _chunk_rows(self) -> list[ChunkRow]:
        if not self.has_chunks:
            return []
        known, version = process().one(_chunks_read), file_state(self.path)
        found = known.get(self.place)
        if found is not None and found[0] == version:
            return found[1]
        stored = self._all(
            "vector_memory_sources",
            "SELECT log_id, sources, before, after FROM vector_memory_sources WHERE log_id > 0 ORDER BY log_id",
        )
        rows = [ChunkRow(row[0], [row[2], *json.loads(row[1])], row[3]) for row in stored]
        known.put(self.place, (version, rows))
        return rows

    def _members(self, entries: Sequence[int] | None) -> list[tuple[int, int]]:
        rows = self._all("memory_chunks", "SELECT memory_id, log_id FROM memory_chunks ORDER BY memory_id")
        wanted = None if entries is None else set(entries)
        return [(row[0], row[1]) for row in rows if wanted is None or row[1] in wanted]

    def _stored_hash_key(self) -> str | None:
        row = self._one("vector_memory_sources", "SELECT sources FROM vector_memory_sources WHERE log_id = 0")
        return row[0] if row else None

    def _rows_by_ids(self, numbers: Sequence[int]) -> Iterator[MemoryRow]:
        for start in range(0, len(numbers), _MOST_VALUES):
            some = tuple(numbers[start : start + _MOST_VALUES])
            marks = ", ".join("?" * len(some))
            yield from self._memories(f"SELECT * FROM memories WHERE id IN ({marks})", some)

    def _rows(self, limit: int, offset: int) -> Iterator[MemoryRow]:
        return self._memories("SELECT * FROM memories ORDER BY id LIMIT ? OFFSET ?", (limit, offset))

    def _newest_rows(self, limit: int, before: int) -> Iterator[MemoryRow]:
        return self._memories("SELECT * FROM memories WHERE id < ? ORDER BY id DESC LIMIT ?", (before, limit))

    def _rows_without_vector(self, model: str, limit: int) -> Iterator[MemoryRow]:
        return self._memories(f"SELECT m.* {self._missing} ORDER BY m.id LIMIT ?", (model, limit))

    def count_without_embeddings(self, model: str) -> int:
        return next((row[0] for row in self._all("memories", f"SELECT count(*) {self._missing}", (model,))), 0)

    @property
    def _missing(self) -> str:
        """The FROM clause for memories without a vector of the model that is the first value."""
        if "memory_embeddings" not in self._tables:
            return "FROM memories m WHERE ? IS NOT NULL"
        return (
            "FROM memories m WHERE NOT EXISTS "
            "(SELECT 1 FROM memory_embeddings e WHERE e.memory_id = m.id AND e.model = ?)"
        )

    def _vector_rows(self, model: str, strays: bool, known: Collection[int]) -> list[tuple[int, object]]:
        kept = "" if strays else "AND memory_id IN (SELECT id FROM memories) "
        rows = self._all(
            "memory_embeddings",
            f"SELECT memory_id, vector FROM memory_embeddings WHERE model = ? {kept}ORDER BY memory_id",
            (model,),
        )
        return [(row[0], row[1]) for row in rows if row[0] not in known]

    def _memories(self, statement: str, values: tuple[object, ...]) -> Iterator[MemoryRow]:
        return (cast(MemoryRow, dict(row)) for row in self._all("memories", statement, values))

    def _all(self, table: str, statement: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        if table not in self._tables:
            return []
        return sqlite.when_free(lambda: self._db.execute(statement, values).fetchall(), self._scope)

    def _one(self, table: str, statement: str) -> sqlite3.Row | None:
        return next(iter(self._all(table, statement)), None)

    # -- searching -----------------------------------------------------------------------------------------------
    def _search_stored_index(self, search: KeywordSearch) -> list[int] | None:
        if self._codec.active or "memories_fts" not in self._tables:
            return None
        return sqlite.when_free(lambda: search_present_ids(self._db, search, self._scope), self._scope)

    def _rows_state(self) -> RowsState:
        return RowsState(file_state(self.path))

    def _stored_rows(self, after: int, limit: int) -> list[StoredRow]:
        rows = self._all(
            "memories",
            "SELECT id, memory_text, metadata_json, date_added FROM memories WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        if not rows:
            return []
        between = after, rows[-1][0]
        topics = {
            row[0]
            for row in self._all(
                "memory_indexed_topics",
                "SELECT memory_id FROM memory_indexed_topics WHERE memory_id > ? AND memory_id <= ?",
                between,
            )
        }
        topics |= self._topics_of_clear_rows(between)
        return [StoredRow(row[0], row[1], row[2], row[3], row[0] in topics) for row in rows]

    def _topics_of_clear_rows(self, between: tuple[int, int]) -> set[int]:
        """Return the rows in clear whose topics are in the index on disk; none once all rows are encrypted."""
        if "memories_fts" not in self._tables:
            return set()
        rows = self._all(
            "memories_fts",
            "SELECT f.rowid, f.key_phrases, m.metadata_json FROM memories_fts f "
            "JOIN memories m ON m.id = f.rowid WHERE f.rowid > ? AND f.rowid <= ?",
            between,
        )
        return {row[0] for row in rows if not is_token(row[2]) and conversion.holds_topics(row[1], row[2])}

    # -- writing -------------------------------------------------------------------------------------------------
    def _insert_log(self, message_hash: str, timestamp: str, place: str | None, following: int | None) -> int:
        # A clock may have been set back, or been wrong; what comes later must count as newer all the same.
        row = self._db.execute(
            "INSERT INTO vector_memory_hash_log (discussion_id, message_hash, timestamp) SELECT ?, ?, "
            "coalesce((SELECT timestamp FROM vector_memory_hash_log WHERE id = ?), "
            "max(?, coalesce((SELECT max(timestamp) FROM vector_memory_hash_log), '')))",
            (self.discussion_id, message_hash, following, timestamp),
        )
        assert row.lastrowid is not None
        if place is not None:
            self._db.execute("INSERT OR REPLACE INTO vector_memory_hash_places VALUES (?, ?)", (row.lastrowid, place))
        return row.lastrowid

    def _create_chunks(self) -> None:
        schema.create_chunk_tables(self._db)
        self._tables |= schema.CHUNK_NAMES

    def _insert_chunk(self, row: ChunkRow, numbers: Sequence[int]) -> None:
        schema.insert_sources(self._db, row.entry, row.keys, row.after)
        self._db.executemany(
            "INSERT OR REPLACE INTO memory_chunks VALUES (?, ?)", [(number, row.entry) for number in numbers]
        )

    def _insert_hash_key(self, stored: str | None) -> None:
        self._db.execute("INSERT INTO vector_memory_sources (log_id, sources) VALUES (0, ?)", (stored,))

    def _change_chunks(self, after: Mapping[int, str], gone: Sequence[int]) -> None:
        self._db.executemany(
            "UPDATE vector_memory_sources SET after = ? WHERE log_id = ?", [(after[entry], entry) for entry in after]
        )
        for number, _ in self._members(gone) if gone else ():
            self._delete_memory(number)
        for statement in schema.FORGET_ENTRY:
            self._db.executemany(statement, [(entry,) for entry in gone])

    def _insert_memories(self, memories: Sequence[NewMemory]) -> list[int]:
        return [self._insert(memory) for memory in memories]

    def _insert(self, memory: NewMemory) -> int:
        row = self._db.execute(
            "INSERT INTO memories (discussion_id, memory_text, date_added, metadata_json) VALUES (?, ?, ?, ?)",
            (self.discussion_id, memory.memory_text, memory.date_added, memory.metadata_json),
        )
        number = row.lastrowid
        assert number is not None
        # SQLite uses the id of the newest row again once that row was deleted by hand.
        self._forget(number)
        if memory.with_topics:
            self._db.execute("INSERT OR IGNORE INTO memory_indexed_topics VALUES (?)", (number,))
        if not self._codec.active:
            columns = schema.index_row(memory.memory_text or "", memory.fields, memory.with_topics)
            self._db.execute(schema.INSERT_INDEX, (number, *columns))
        return number

    def _insert_vectors(self, vectors: Sequence[NewVector]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO memory_embeddings (memory_id, model, dim, vector) "
            "VALUES (:memory_id, :model, :dim, :vector)",
            vectors,
        )

    def _update_memory(self, number: int, text: str | None, metadata: str | None) -> None:
        self._db.execute(
            "UPDATE memories SET memory_text = ?, metadata_json = ? WHERE id = ?", (text, metadata, number)
        )
        self._db.execute("DELETE FROM memory_embeddings WHERE memory_id = ?", (number,))

    def _delete_memory(self, number: int) -> None:
        self._db.execute("DELETE FROM memories WHERE id = ?", (number,))
        self._forget(number)

    def _forget(self, number: int) -> None:
        """Delete all that belongs to the memory with an id."""
        for statement in schema.FORGET:
            self._db.execute(statement, (number,))
        if self.has_chunks:
            self._db.execute("DELETE FROM memory_chunks WHERE memory_id = ?", (number,))

    def _delete_everything(self) -> None:
        for table in sorted(self._tables - {"memories_fts"}):
            self._db.execute(f"DELETE FROM {table}")
