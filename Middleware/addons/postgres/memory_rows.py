"""The searchable memories of a discussion in the state database: the statements for PostgreSQL.

Each write locks the row of the discussion, so that ids follow each other without gaps and a reader of rows with higher
ids misses none. ``memory_version`` counts the writes; ``index_generation`` those after which an index over the rows
must be rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from psycopg import errors

from Middleware.addons.postgres.database import Database, Row, StateConnection
from Middleware.exceptions import StateConflictError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussion_state import VECTOR_DATABASE
from Middleware.utilities.discussions.vector_memory import MemoryRow, SearchableMemories
from Middleware.utilities.discussions.vector_memory.cache import RowsState
from Middleware.utilities.discussions.vector_memory.encrypted_index import BATCH, StoredRow
from Middleware.utilities.discussions.vector_memory.keyword_search import KeywordSearch
from Middleware.utilities.discussions.vector_memory.schema import Codec, is_token, keys_as_json, stored_key
from Middleware.utilities.discussions.vector_memory.searchable import ChunkRow, NewMemory, NewVector
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.text_utils import storable

T = TypeVar("T")

# The smallest number that an id may be.
_START = -1 << 63
# Vectors have some kilobytes each, and a statement has to be answered within four seconds.
_VECTORS = 1_000
# Another write takes milliseconds; one that changes the key of all rows may take longer than a client waits.
_LOCK_MILLISECONDS = 2_000

_MEMORY = "id, memory_text, date_added, metadata_json"
_FIND = """\
SELECT d.id, d.memory_version, d.index_generation, d.source_key,
       (SELECT memory_text FROM wilmer.memories WHERE discussion = d.id ORDER BY id DESC LIMIT 1),
       (SELECT memory_text FROM wilmer.memories WHERE discussion = d.id ORDER BY id LIMIT 1)
FROM wilmer.discussions d WHERE d.space = %s AND d.key_hash = %s AND d.discussion_id = %s"""
CREATE = "INSERT INTO wilmer.discussions (space, key_hash, discussion_id) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
# Other transactions may add rows that refer to this one in the meantime, such as documents.
_LOCK = "SELECT memory_version, index_generation FROM wilmer.discussions WHERE id = %s FOR NO KEY UPDATE"
_COUNT_UP = (
    "UPDATE wilmer.discussions SET memory_version = memory_version + 1, index_generation = index_generation + "
    "%s WHERE id = %s"
)
_STATE = """\
SELECT memory_version, index_generation, (SELECT max(id) FROM wilmer.memories WHERE discussion = d.id)
FROM wilmer.discussions d WHERE id = %s"""
# Times are text as in a file; in other collations + and . would not stand in the order of their codes.
_LOG = """\
SELECT d.memory_version, l.message_hash, l.place FROM wilmer.discussions d LEFT JOIN LATERAL (
    SELECT * FROM wilmer.memory_hash_log WHERE discussion = d.id AND (%s OR sources IS NULL)
    ORDER BY timestamp COLLATE "C" DESC, id DESC LIMIT %s
) l ON true WHERE d.id = %s ORDER BY l.timestamp COLLATE "C" DESC, l.id DESC"""
_INSERT_LOG = """\
INSERT INTO wilmer.memory_hash_log (discussion, id, message_hash, timestamp, place)
SELECT %(discussion)s, coalesce(max(id), 0) + 1, %(hash)s,
       coalesce(max(timestamp) FILTER (WHERE id = %(following)s),
                greatest(%(time)s COLLATE "C", max(timestamp COLLATE "C"))), %(place)s
FROM wilmer.memory_hash_log WHERE discussion = %(discussion)s RETURNING id"""
_CHUNKS = """\
SELECT d.memory_version, l.id, l.sources, l.follows FROM wilmer.discussions d LEFT JOIN wilmer.memory_hash_log l
ON l.discussion = d.id AND l.sources IS NOT NULL WHERE d.id = %s ORDER BY l.id"""
_UPDATE_FOLLOWS = """\
UPDATE wilmer.memory_hash_log l SET follows = new.follows
FROM unnest(%s::bigint[], %s::text[]) AS new (id, follows) WHERE l.discussion = %s AND l.id = new.id"""
_UPDATE_SOURCES = """\
UPDATE wilmer.memory_hash_log l SET sources = new.sources
FROM unnest(%s::bigint[], %s::text[]) AS new (id, sources) WHERE l.discussion = %s AND l.id = new.id"""
# Vectors above the highest id belong to memories that were deleted by hand.
_INSERT_MEMORIES = """\
WITH newest AS (SELECT coalesce(max(id), 0) AS id FROM wilmer.memories WHERE discussion = %(discussion)s),
     strays AS (DELETE FROM wilmer.memory_embeddings
                WHERE discussion = %(discussion)s AND memory_id > (SELECT id FROM newest))
INSERT INTO wilmer.memories (discussion, id, memory_text, date_added, metadata_json, with_topics)
SELECT %(discussion)s, newest.id + new.number, new.text, new.date, new.metadata, new.topics
FROM newest, unnest(%(texts)s::text[], %(dates)s::text[], %(metadata)s::text[], %(topics)s::boolean[])
     WITH ORDINALITY AS new (text, date, metadata, topics, number)
RETURNING id"""
_INSERT_VECTORS = """\
INSERT INTO wilmer.memory_embeddings (discussion, memory_id, model, dim, vector)
SELECT %s, new.* FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::bytea[]) AS new
ON CONFLICT (discussion, memory_id, model) DO UPDATE SET dim = excluded.dim, vector = excluded.vector"""
_PRESENT_VECTORS = """\
SELECT EXISTS (SELECT FROM wilmer.memory_embeddings e JOIN unnest(%s::bigint[], %s::text[]) AS new (id, model)
               ON e.memory_id = new.id AND e.model = new.model WHERE e.discussion = %s)"""
_SET_HASH_KEY = "UPDATE wilmer.discussions SET source_key = %s WHERE id = %s"
_COUNT_FAILURE = """\
INSERT INTO wilmer.chunk_failures (discussion, place, count) VALUES (%s, %s, 1)
ON CONFLICT (discussion, place) DO UPDATE SET count = chunk_failures.count + 1, changed_at = now() RETURNING count"""
_WITHOUT_VECTOR = """\
FROM wilmer.memories m WHERE discussion = %s AND NOT EXISTS (
    SELECT FROM wilmer.memory_embeddings e WHERE e.discussion = m.discussion AND e.memory_id = m.id AND e.model = %s)"""
_OF_A_MEMORY = "EXISTS (SELECT FROM wilmer.memories m WHERE m.discussion = e.discussion AND m.id = e.memory_id)"


@dataclass(frozen=True)
class _Discussion:
    """The row of the discussion as it was read: its id, and how often its memories were written and remade."""

    id: int
    version: int
    generation: int


class PostgresMemories(SearchableMemories):
    """The memories of a discussion in the state database.

    Opened for reading, a missing discussion is one without memories, and nothing is created. Opened for writing, its
    row is made, and memories in clear become tokens if the cipher is active.

    No connection is held between two methods. A chunk is refused with StateConflictError if another worker has written
    since the log was read: the worker of another request has then worked on the same messages. Every write is refused
    if the rows were changed, perhaps to another key.
    """

    def __init__(
        self,
        database: Database,
        space: str,
        key_hash: str,
        discussion_id: str,
        *,
        write: bool = False,
        cipher: Cipher = NO_CIPHER,
        scope: CancelScope | None = None,
    ) -> None:
        super().__init__(discussion_id, cipher, scope)
        self._database, self._name = database, (space, key_hash, discussion_id)
        # While a transaction runs, its connection.
        self._connection: StateConnection | None = None
        self._generation_step = 0
        self._discussion: _Discussion | None = None
        self._has_chunks = False
        self._open(write)

    def _open(self, write: bool) -> None:
        rows = self._database.read(_FIND, self._name, self._scope)
        if not rows and write:
            self._database.run(lambda connection: connection.execute(CREATE, self._name), again=True, scope=self._scope)
            rows = self._database.read(_FIND, self._name, self._scope)
        for number, version, generation, source_key, newest, oldest in rows:
            self._discussion = _Discussion(number, version, generation)
            self._has_chunks = source_key is not None
            self._use_key_of(newest, f"{self.discussion_id}/{VECTOR_DATABASE}")
            # Once the first row is a token all are: they were converted together.
            if write and self._codec.active and oldest is not None and not is_token(oldest):
                self._convert(self._codec)

    def close(self) -> None:
        """There is nothing to close: the connections belong to the worker."""

    @property
    def place(self) -> str:
        return "\0".join((self._database.place, *self._name))

    @property
    def exists(self) -> bool:
        return self._discussion is not None

    @property
    def _row(self) -> _Discussion:
        if self._discussion is None:
            raise StateConflictError("there are no memories to write to")
        return self._discussion

    # -- transactions ----------------------------------------------------------------------------------------------
    def _transact(self, action: Callable[[], T], compare: bool = False) -> T:
        return self._write(action, compare, 0)

    def _rewrite(self, action: Callable[[], None]) -> None:
        self._write(action, False, 1)

    def _write(self, action: Callable[[], T], compare: bool, generation_step: int) -> T:
        known = self._row

        def work(connection: StateConnection) -> tuple[T, _Discussion]:
            with connection.transaction():
                found = _Discussion(known.id, *locked(connection, _LOCK, known.id))
                if found.generation != known.generation or (compare and found.version != known.version):
                    raise StateConflictError("another worker has changed the memories in the meantime")
                self._connection, self._generation_step = connection, generation_step
                try:
                    result = action()
                finally:
                    self._connection = None
                connection.execute(_COUNT_UP, (self._generation_step, known.id))
            return result, found

        # It compares what it has read: what was committed without word of it is not done twice.
        result, found = self._database.run(work, again=True, scope=self._scope)
        # What others wrote in between must still be noticed by the next chunk.
        version = known.version + (found.version == known.version)
        self._discussion = _Discussion(known.id, version, known.generation + self._generation_step)
        return result

    @property
    def _transaction(self) -> StateConnection:
        assert self._connection is not None, "only inside a transaction"
        return self._connection

    def _convert(self, target: Codec) -> None:
        self._rewrite(lambda: convert_rows(self._transaction, self._row.id, self._codec, target))

    # -- chunks that failed ----------------------------------------------------------------------------------------
    def count_failure(self, chunk: str) -> int:
        count: int = self._database.write(_COUNT_FAILURE, (self._row.id, storable(chunk)), self._scope)[0][0]
        return count

    def failures(self, chunk: str) -> int:
        rows = self._read(
            "SELECT count FROM wilmer.chunk_failures WHERE discussion = %s AND place = %s", (), storable(chunk)
        )
        return rows[0][0] if rows else 0

    def end_failures(self, chunk: str) -> None:
        self._database.write(
            "DELETE FROM wilmer.chunk_failures WHERE discussion = %s AND place = %s",
            (self._row.id, storable(chunk)),
            self._scope,
        )

    # -- reading ---------------------------------------------------------------------------------------------------
    def counts(self) -> dict[str, int]:
        tables = {"memories": "memories", "embeddings": "memory_embeddings", "hashes": "memory_hash_log"}
        counts = ", ".join(
            f"(SELECT count(*) FROM wilmer.{table} WHERE discussion = d.id)" for table in tables.values()
        )
        rows = self._read(f"SELECT {counts} FROM wilmer.discussions d WHERE id = %s", ())
        return dict(zip(tables, rows[0] if rows else (0, 0, 0), strict=True))

    def count_without_embeddings(self, model: str) -> int:
        return next((row[0] for row in self._read(f"SELECT count(*) {_WITHOUT_VECTOR}", (), storable(model))), 0)

    def processed_messages(self) -> list[tuple[str, str]]:
        return [
            (row[0], row[1])
            for row in self._read(
                "SELECT message_hash, timestamp FROM wilmer.memory_hash_log WHERE discussion = %s ORDER BY id", ()
            )
        ]

    def _log_rows(self, limit: int, with_origin: bool) -> list[tuple[str, str | None]]:
        rows = self._read(_LOG, (with_origin, limit))
        self._rest_on(rows)
        return [(row[1], row[2]) for row in rows if row[1] is not None]

    def _rest_on(self, rows: Sequence[Row]) -> None:
        # What is written from now on rests on these rows, the first column of which is the version.
        if rows and self._discussion is not None:
            self._discussion = _Discussion(self._discussion.id, rows[0][0], self._discussion.generation)

    @property
    def has_chunks(self) -> bool:
        return self._has_chunks

    def _chunk_rows(self) -> list[ChunkRow]:
        rows = self._read(_CHUNKS, ())
        self._rest_on(rows)
        return [ChunkRow(row[1], json.loads(row[2]), row[3] or "") for row in rows if row[1] is not None]

    def _members(self, entries: Sequence[int] | None) -> list[tuple[int, int]]:
        rows = self._read(
            "SELECT id, chunk FROM wilmer.memories WHERE discussion = %s AND chunk IS NOT NULL "
            "AND (%s::bigint[] IS NULL OR chunk = ANY(%s::bigint[])) ORDER BY id",
            (),
            entries,
            entries,
        )
        return [(row[0], row[1]) for row in rows]

    def _stored_hash_key(self) -> str | None:
        rows = self._read("SELECT source_key FROM wilmer.discussions WHERE id = %s", ())
        return rows[0][0] if rows else None

    def _rows_by_ids(self, numbers: Sequence[int]) -> Iterator[MemoryRow]:
        return self._memories("WHERE discussion = %s AND id = ANY(%s)", (), list(numbers))

    def _rows(self, limit: int, offset: int) -> Iterator[MemoryRow]:
        # The first batch is found by counting, the others by the id of the last row.
        after = _START
        while limit > 0:
            rows = list(
                self._memories(
                    "WHERE discussion = %s AND id > %s ORDER BY id LIMIT %s OFFSET %s",
                    (),
                    after,
                    min(limit, BATCH),
                    offset,
                )
            )
            yield from rows
            if len(rows) < BATCH:
                return
            after, limit, offset = rows[-1]["id"], limit - len(rows), 0

    def _newest_rows(self, limit: int, before: int) -> Iterator[MemoryRow]:
        return self._memories("WHERE discussion = %s AND id < %s ORDER BY id DESC LIMIT %s", (), before, limit)

    def _rows_without_vector(self, model: str, limit: int) -> Iterator[MemoryRow]:
        rows = self._read(f"SELECT {_MEMORY} {_WITHOUT_VECTOR} ORDER BY id LIMIT %s", (), storable(model), limit)
        return map(self._memory, rows)

    def _vector_rows(self, model: str, strays: bool, known: Collection[int]) -> Iterator[tuple[int, object]]:
        kept = "" if strays else f" AND {_OF_A_MEMORY}"
        rows = self._read(
            "SELECT memory_id FROM wilmer.memory_embeddings e WHERE discussion = %s AND model = %s"
            f"{kept} ORDER BY memory_id",
            (),
            storable(model),
        )
        wanted = [row[0] for row in rows if row[0] not in known]
        for start in range(0, len(wanted), _VECTORS):
            some = wanted[start : start + _VECTORS]
            for number, size, vector in self._read(
                "SELECT memory_id, dim, vector FROM wilmer.memory_embeddings WHERE discussion = %s AND model = %s "
                "AND memory_id = ANY(%s) ORDER BY memory_id",
                (),
                storable(model),
                some,
                binary=True,
            ):
                yield number, _vector(size, vector)

    def _memories(self, rest: str, before: tuple[object, ...], *values: object) -> Iterator[MemoryRow]:
        return map(self._memory, self._read(f"SELECT {_MEMORY} FROM wilmer.memories {rest}", before, *values))

    def _memory(self, row: Row) -> MemoryRow:
        return {
            "id": row[0],
            "discussion_id": self.discussion_id,
            "memory_text": row[1],
            "date_added": row[2],
            "metadata_json": row[3],
        }

    def _read(self, statement: str, before: tuple[object, ...], *values: object, binary: bool = False) -> list[Row]:
        """Return the rows of a statement whose values are ``before``, the number of the discussion, and ``values``."""
        if self._discussion is None:
            return []
        parameters = (*before, self._discussion.id, *values)
        if self._connection is not None:
            # A transaction reads what it has written itself, and needs no second connection.
            return self._connection.execute(statement, parameters, binary=binary).fetchall()

        def read(connection: StateConnection) -> list[Row]:
            return connection.execute(statement, parameters, binary=binary).fetchall()

        return self._database.run(read, again=True, scope=self._scope)

    # -- searching -------------------------------------------------------------------------------------------------
    def _search_stored_index(self, search: KeywordSearch) -> list[int] | None:
        return None

    def _rows_state(self) -> RowsState:
        # A discussion that was deleted, and perhaps began again, is not one of the known generations.
        for version, generation, newest in self._read(_STATE, ()):
            return RowsState((version, newest), (self._row.id, generation))
        return RowsState(None, (self._row.id, -1))

    def _stored_rows(self, after: int, limit: int) -> list[StoredRow]:
        rows = self._read(
            "SELECT id, memory_text, metadata_json, date_added, with_topics FROM wilmer.memories "
            "WHERE discussion = %s AND id > %s ORDER BY id LIMIT %s",
            (),
            after,
            limit,
        )
        return [StoredRow(*row) for row in rows]

    # -- writing ---------------------------------------------------------------------------------------------------
    def _insert_log(self, message_hash: str, timestamp: str, place: str | None, following: int | None) -> int:
        values = {"hash": storable(message_hash), "time": timestamp, "place": _text(place), "following": following}
        row = self._transaction.execute(_INSERT_LOG, {"discussion": self._row.id, **values}).fetchone()
        assert row is not None
        return int(row[0])

    def _create_chunks(self) -> None:
        # The columns are there. A discussion without chunks has no key, one in clear an empty one.
        self._transaction.execute(
            "UPDATE wilmer.discussions SET source_key = coalesce(source_key, '') WHERE id = %s", (self._row.id,)
        )
        self._has_chunks = True

    def _insert_chunk(self, row: ChunkRow, numbers: Sequence[int]) -> None:
        self._transaction.execute(
            "UPDATE wilmer.memory_hash_log SET sources = %s, follows = %s WHERE discussion = %s AND id = %s",
            (keys_as_json(row.keys), row.after, self._row.id, row.entry),
        )
        self._transaction.execute(
            "UPDATE wilmer.memories SET chunk = %s WHERE discussion = %s AND id = ANY(%s)",
            (row.entry, self._row.id, list(numbers)),
        )

    def _insert_hash_key(self, stored: str | None) -> None:
        self._transaction.execute(_SET_HASH_KEY, (stored, self._row.id))

    def _change_chunks(self, after: Mapping[int, str], gone: Sequence[int]) -> None:
        self._transaction.execute(_UPDATE_FOLLOWS, (list(after), list(after.values()), self._row.id))
        if not gone:
            return
        # Workers that keep an index have these memories in it.
        self._generation_step = 1
        rows = self._transaction.execute(
            "DELETE FROM wilmer.memories WHERE discussion = %s AND chunk = ANY(%s) RETURNING id",
            (self._row.id, list(gone)),
        )
        for row in rows.fetchall():
            self._forget_vectors(row[0])
        self._transaction.execute(
            "DELETE FROM wilmer.memory_hash_log WHERE discussion = %s AND id = ANY(%s)", (self._row.id, list(gone))
        )

    def _insert_memories(self, memories: Sequence[NewMemory]) -> list[int]:
        if not memories:
            return []
        rows = self._transaction.execute(
            _INSERT_MEMORIES,
            {
                "discussion": self._row.id,
                "texts": [_text(memory.memory_text) for memory in memories],
                "dates": [memory.date_added for memory in memories],
                "metadata": [_text(memory.metadata_json) for memory in memories],
                "topics": [memory.with_topics for memory in memories],
            },
        )
        return sorted(row[0] for row in rows)

    def _insert_vectors(self, vectors: Sequence[NewVector]) -> None:
        # One statement cannot replace a row twice; the last vector of a memory counts.
        different = {(vector["memory_id"], storable(vector["model"])): vector for vector in vectors}
        if not different:
            return
        numbers, models = ([name[part] for name in different] for part in (0, 1))
        replaces = self._transaction.execute(_PRESENT_VECTORS, (numbers, models, self._row.id)).fetchone()
        assert replaces is not None
        if replaces[0]:
            # Workers that keep vectors read only those that are new to them.
            self._generation_step = 1
        self._transaction.execute(
            _INSERT_VECTORS,
            (
                self._row.id,
                numbers,
                models,
                [vector["dim"] for vector in different.values()],
                [_bytes(vector["vector"]) for vector in different.values()],
            ),
        )

    def _update_memory(self, number: int, text: str | None, metadata: str | None) -> None:
        self._transaction.execute(
            "UPDATE wilmer.memories SET memory_text = %s, metadata_json = %s WHERE discussion = %s AND id = %s",
            (_text(text), _text(metadata), self._row.id, number),
        )
        self._forget_vectors(number)

    def _delete_memory(self, number: int) -> None:
        self._transaction.execute(
            "DELETE FROM wilmer.memories WHERE discussion = %s AND id = %s", (self._row.id, number)
        )
        self._forget_vectors(number)

    def _forget_vectors(self, number: int) -> None:
        self._transaction.execute(
            "DELETE FROM wilmer.memory_embeddings WHERE discussion = %s AND memory_id = %s", (self._row.id, number)
        )

    def _delete_everything(self) -> None:
        for table in ("memories", "memory_embeddings", "memory_hash_log"):
            self._transaction.execute(f"DELETE FROM wilmer.{table} WHERE discussion = %s", (self._row.id,))
        self._insert_hash_key(None)


def convert_rows(connection: StateConnection, discussion: int, source: Codec, target: Codec) -> None:
    """Store the memories of a discussion as ``target`` does, inside a transaction. Raises DataKeyError.

    The caller counts the generation of the index up.
    """
    _convert_sources(connection, discussion, source, target)
    after = _START
    while rows := connection.execute(
        "SELECT id, memory_text, metadata_json FROM wilmer.memories WHERE discussion = %s AND id > %s "
        "ORDER BY id LIMIT %s",
        (discussion, after, BATCH),
    ).fetchall():
        after = rows[-1][0]
        texts, metadata = (
            [_text(target.encode_text(source.decode_text(row[column]))) for row in rows] for column in (1, 2)
        )
        connection.execute(
            "UPDATE wilmer.memories m SET memory_text = new.text, metadata_json = new.metadata "
            "FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS new (id, text, metadata) "
            "WHERE m.discussion = %s AND m.id = new.id",
            ([row[0] for row in rows], texts, metadata, discussion),
        )
    last = _START, ""
    while rows := connection.execute(
        "SELECT memory_id, model, dim, vector FROM wilmer.memory_embeddings WHERE discussion = %s AND "
        "(memory_id, model) > (%s, %s) ORDER BY memory_id, model LIMIT %s",
        (discussion, *last, _VECTORS),
        binary=True,
    ).fetchall():
        last = rows[-1][0], rows[-1][1]
        vectors = [_bytes(target.encode_vector(source.decode_vector(_vector(row[2], row[3])))) for row in rows]
        connection.execute(
            "UPDATE wilmer.memory_embeddings e SET vector = new.vector "
            "FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) AS new (id, model, vector) "
            "WHERE e.discussion = %s AND e.memory_id = new.id AND e.model = new.model",
            ([row[0] for row in rows], [row[1] for row in rows], vectors, discussion),
        )


def locked(connection: StateConnection, statement: str, number: int) -> Row:
    """Return what a statement reads that locks the row of a discussion until the transaction ends.

    Raises StateConflictError.
    """
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (str(_LOCK_MILLISECONDS),))
    try:
        row = connection.execute(statement, (number,)).fetchone()
    except errors.LockNotAvailable:
        raise StateConflictError("another worker is changing all the memories just now") from None
    if row is None:
        raise StateConflictError("the discussion was deleted in the meantime")
    return row


def _text(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _bytes(vector: bytes | str) -> bytes:
    return vector.encode("ascii") if isinstance(vector, str) else vector


def _vector(size: int, stored: bytes) -> bytes | str:
    """Return a vector as a file has it, where tokens are texts: nothing in clear is as long as a token."""
    return stored if len(stored) < (size + 1) * 4 else stored.decode("ascii")


def _convert_sources(connection: StateConnection, discussion: int, source: Codec, target: Codec) -> None:
    """Store the key of the hashes of keys as ``target`` does; without one, make it and the hashes."""
    row = connection.execute("SELECT source_key FROM wilmer.discussions WHERE id = %s", (discussion,)).fetchone()
    stored = row[0] if row else None
    hash_key = source.decode_text(stored) if stored else target.new_hash_key()
    if not hash_key:
        return
    connection.execute(_SET_HASH_KEY, (target.encode_text(hash_key), discussion))
    if not stored:
        rows = connection.execute(
            "SELECT id, sources FROM wilmer.memory_hash_log WHERE discussion = %s AND sources IS NOT NULL",
            (discussion,),
        ).fetchall()
        hashed = [keys_as_json(stored_key(key, hash_key) for key in json.loads(row[1])) for row in rows]
        connection.execute(_UPDATE_SOURCES, ([row[0] for row in rows], hashed, discussion))
