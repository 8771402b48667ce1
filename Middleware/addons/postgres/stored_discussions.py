"""Whole discussions in the state database, for moving them in and out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from Middleware.addons.postgres.database import Row, StateConnection
from Middleware.addons.postgres.documents import FIRST_VERSION
from Middleware.addons.postgres.memory_rows import CREATE, convert_rows
from Middleware.addons.postgres.message_store import MESSAGE_TABLES, DiscussionStatements
from Middleware.utilities.discussions.message_index.message_tables import HASH_KEY, MessageCodec
from Middleware.utilities.discussions.message_index.whole_index import Rows, stored_rows, write_rows
from Middleware.utilities.discussions.vector_memory.schema import Codec
from Middleware.utilities.discussions.vector_memory.whole import (
    BATCH,
    START,
    VECTORS,
    WholeLogEntry,
    WholeMemories,
    WholeMemory,
    WholeVector,
)
from Middleware.utilities.encryption_utils import Cipher

T = TypeVar("T")

_FIND = "SELECT id FROM wilmer.discussions WHERE space = %s AND key_hash = %s AND discussion_id = %s"
# Workers that know a document ask whether its version is still the same.
_WRITE_DOCUMENT = f"""\
INSERT INTO wilmer.documents (discussion, name, content, version) VALUES (%s, %s, %s, {FIRST_VERSION})
ON CONFLICT (discussion, name) DO UPDATE SET content = excluded.content, version = documents.version + 1,
                                             changed_at = now()
WHERE documents.content <> excluded.content"""
_CHANGED = """\
UPDATE wilmer.discussions SET memory_version = memory_version + 1, index_generation = index_generation + 1
WHERE id = %s"""

_SET_HASH_KEY = """\
UPDATE wilmer.discussions SET source_key = coalesce(%s, (
    SELECT '' FROM wilmer.memory_hash_log WHERE discussion = %s AND sources IS NOT NULL LIMIT 1)) WHERE id = %s"""
_GIVE = """\
UPDATE wilmer.discussions d SET key_hash = %s WHERE id = %s AND NOT EXISTS (
    SELECT FROM wilmer.discussions o
    WHERE o.space = d.space AND o.discussion_id = d.discussion_id AND o.key_hash = %s AND o.id <> d.id)"""


class DiscussionName(NamedTuple):
    """What a discussion is called in the database; ``key_hash``: "" without a key."""

    space: str
    key_hash: str
    discussion_id: str


def discussion_names(connection: StateConnection) -> list[DiscussionName]:
    """Return all discussions in which anything is stored, in order."""
    rows = connection.execute(
        "SELECT space, key_hash, discussion_id FROM wilmer.discussions d WHERE "
        + " OR ".join(
            f"EXISTS (SELECT FROM wilmer.{table} WHERE discussion = d.id)"
            for table in ("documents", "memories", "memory_embeddings", "memory_hash_log", "messages")
        )
        + " ORDER BY space, key_hash, discussion_id"
    ).fetchall()
    return [DiscussionName(*row) for row in rows]


def claim(connection: StateConnection, name: DiscussionName) -> StoredRows:
    """Return the discussion, made if need be, with its row locked until the transaction ends."""
    connection.execute(CREATE, name)
    rows = connection.execute(f"{_FIND} FOR NO KEY UPDATE", name).fetchall()
    return StoredRows(connection, rows[0][0])


def find(connection: StateConnection, name: DiscussionName) -> StoredRows | None:
    """Return the discussion, or None."""
    row = connection.execute(_FIND, name).fetchone()
    return None if row is None else StoredRows(connection, row[0])


class StoredRows:
    """What is stored of one discussion. Read it in one transaction, so that all is of one moment."""

    def __init__(self, connection: StateConnection, number: int) -> None:
        self._connection, self._number = connection, number

    def document_names(self) -> list[str]:
        rows = self._rows("SELECT name FROM wilmer.documents WHERE discussion = %s ORDER BY name")
        return [row[0] for row in rows]

    def document(self, name: str) -> bytes:
        content: bytes = self._rows("SELECT content FROM wilmer.documents WHERE discussion = %s AND name = %s", name)[
            0
        ][0]
        return content

    def memories(self) -> Iterator[WholeMemory]:
        after = START
        while rows := self._rows(
            "SELECT id, memory_text, date_added, metadata_json, with_topics, chunk FROM wilmer.memories "
            "WHERE discussion = %s AND id > %s ORDER BY id LIMIT %s",
            after,
            BATCH,
        ):
            after = rows[-1][0]
            yield from map(WholeMemory._make, rows)

    def vectors(self) -> Iterator[WholeVector]:
        after = START, ""
        while rows := self._rows(
            "SELECT memory_id, model, dim, vector FROM wilmer.memory_embeddings "
            'WHERE discussion = %s AND (memory_id, model COLLATE "C") > (%s, %s) '
            'ORDER BY memory_id, model COLLATE "C" LIMIT %s',
            *after,
            VECTORS,
        ):
            after = rows[-1][0], rows[-1][1]
            yield from map(WholeVector._make, rows)

    def log(self) -> Iterator[WholeLogEntry]:
        after = START
        while rows := self._rows(
            "SELECT id, message_hash, timestamp, place, sources, follows FROM wilmer.memory_hash_log "
            "WHERE discussion = %s AND id > %s ORDER BY id LIMIT %s",
            after,
            BATCH,
        ):
            after = rows[-1][0]
            yield from map(WholeLogEntry._make, rows)

    def hash_key(self) -> str | None:
        key: str | None = self._rows("SELECT source_key FROM wilmer.discussions WHERE id = %s")[0][0]
        return key or None

    def _rows(self, statement: str, *values: object) -> list[Row]:
        return self._connection.execute(statement, (self._number, *values), binary=True).fetchall()

    def newest_text(self) -> str | None:
        """Return the newest memory as it is stored."""
        rows = self._rows("SELECT memory_text FROM wilmer.memories WHERE discussion = %s ORDER BY id DESC LIMIT 1")
        return rows[0][0] if rows else None

    def messages(self) -> Rows:
        """Return the rows of the message index."""
        return stored_rows(DiscussionStatements.reading(self._connection, self._number))

    def message_hash_key(self) -> str | None:
        """Return the key of the hashes of messages as it is stored."""
        rows = self._rows("SELECT value FROM wilmer.message_meta WHERE discussion = %s AND name = %s", HASH_KEY)
        return rows[0][0] if rows else None

    # -- writing, inside a transaction ---------------------------------------------------------------------------------
    def convert_memories(self, source: Codec, target: Codec) -> None:
        """Store the searchable memories as ``target`` does. Raises DataKeyError."""
        convert_rows(self._connection, self._number, source, target)
        self._connection.execute(_CHANGED, (self._number,))

    def convert_messages(self, source: MessageCodec, target: Cipher) -> None:
        """Store the messages under the key of ``target``. Raises DataKeyError."""
        DiscussionStatements.locking(self._connection, self._number).convert(source, target)

    def give_to(self, key_hash: str) -> bool:
        """Give the discussion to another key; return False if that has one with this id."""
        return bool(self._connection.execute(_GIVE, (key_hash, self._number, key_hash)).rowcount)

    def keep_documents(self, names: Sequence[str]) -> None:
        """Delete all documents but these."""
        self._connection.execute(
            "DELETE FROM wilmer.documents WHERE discussion = %s AND name <> ALL(%s::text[])",
            (self._number, list(names)),
        )

    def write_document(self, name: str, content: bytes) -> None:
        self._connection.execute(_WRITE_DOCUMENT, (self._number, name, content))

    def write_memories(self, rows: WholeMemories) -> None:
        """Replace all rows of searchable memories."""
        for table in ("memories", "memory_embeddings", "memory_hash_log", "chunk_failures"):
            self._connection.execute(f"DELETE FROM wilmer.{table} WHERE discussion = %s", (self._number,))
        self._insert(
            "memories (discussion, id, memory_text, date_added, metadata_json, with_topics, chunk)",
            7,
            rows.memories(),
            BATCH,
        )
        self._insert("memory_embeddings (discussion, memory_id, model, dim, vector)", 5, rows.vectors(), VECTORS)
        self._insert(
            "memory_hash_log (discussion, id, message_hash, timestamp, place, sources, follows)", 7, rows.log(), BATCH
        )
        self._connection.execute(_SET_HASH_KEY, (rows.hash_key(), self._number, self._number))
        self._connection.execute(_CHANGED, (self._number,))

    def write_messages(self, rows: Rows) -> None:
        """Replace all rows of the message index."""
        statements = DiscussionStatements.locking(self._connection, self._number)
        for table in MESSAGE_TABLES:
            self._connection.execute(f"DELETE FROM wilmer.{table} WHERE discussion = %s", (self._number,))
        write_rows(statements, rows)
        statements.end(forgetting=True)

    def _insert(self, table: str, columns: int, rows: Iterator[tuple[object, ...]], size: int) -> None:
        marks = ", ".join(["%s"] * columns)
        with self._connection.cursor() as cursor:
            for some in _batches(rows, size):
                cursor.executemany(
                    f"INSERT INTO wilmer.{table} VALUES ({marks})", [(self._number, *row) for row in some]
                )


def _batches(rows: Iterator[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
