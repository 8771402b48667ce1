"""A whole database of searchable memories, row for row as it is stored, for moving it to another place."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple, Protocol

from Middleware.utilities import sqlite
from Middleware.utilities.discussions.vector_memory import conversion, schema
from Middleware.utilities.discussions.vector_memory.schema import Codec, is_token
from Middleware.utilities.discussions.vector_memory.store import VectorMemories
from Middleware.utilities.encryption_utils import TOKEN_START, Cipher
from Middleware.utilities.text_utils import storable

# Rows that are read at once, and vectors, which are larger.
BATCH, VECTORS = 5_000, 1_000
START = -1 << 63


class WholeMemory(NamedTuple):
    """A memory; ``with_topics``: its topics are searched; ``chunk``: the entry of the log that it belongs to."""

    id: int
    memory_text: str
    date_added: str
    metadata_json: str | None
    with_topics: bool
    chunk: int | None = None


class WholeVector(NamedTuple):
    """A vector; ``vector``: the characters of a token, if it is encrypted."""

    memory_id: int
    model: str
    dim: int
    vector: bytes


class WholeLogEntry(NamedTuple):
    """An entry of the log of processed messages.

    Attributes:
        sources: what its chunk was made of, as JSON: the key of the message before it, and those of its messages.
        follows: the id of the chunk before it.
    """

    id: int
    message_hash: str
    timestamp: str
    place: str | None
    sources: str | None = None
    follows: str | None = None


class WholeMemories(Protocol):
    """All rows, each kind in the order of its ids. Texts are as the state database can hold them."""

    def memories(self) -> Iterator[WholeMemory]: ...

    def vectors(self) -> Iterator[WholeVector]:
        """Return the vectors by id and model."""

    def log(self) -> Iterator[WholeLogEntry]: ...

    def hash_key(self) -> str | None:
        """Return the key of the hashes in ``sources`` as it is stored."""


class _AsStored(Cipher):
    """Passes on texts and tokens as they are."""

    def encrypt(self, data: bytes) -> bytes:
        return data

    def decrypt(self, data: bytes) -> bytes:
        return data


class DatabaseFile(VectorMemories):
    """The rows of an SQLite file, all of one moment."""

    def __init__(self, path: str) -> None:
        super().__init__(path, cipher=_AsStored())
        if self._database is not None:
            self._database.execute("BEGIN")

    def memories(self) -> Iterator[WholeMemory]:
        after, chunks = START, dict(self._members(None))
        while rows := self._stored_rows(after, BATCH):
            after = rows[-1].id
            for row in rows:
                yield WholeMemory(
                    row.id,
                    _text(row.memory_text) or "",
                    _text(row.date_added) or "",
                    _text(row.metadata_json),
                    row.with_topics,
                    chunks.get(row.id),
                )

    def vectors(self) -> Iterator[WholeVector]:
        after: tuple[int, str] = (START, "")
        while rows := self._all(
            "memory_embeddings",
            "SELECT memory_id, model, dim, vector FROM memory_embeddings "
            "WHERE (memory_id, model) > (?, ?) ORDER BY memory_id, model LIMIT ?",
            (*after, VECTORS),
        ):
            after = rows[-1][0], rows[-1][1]
            for number, model, size, vector in rows:
                stored = vector.encode("ascii") if isinstance(vector, str) else vector
                yield WholeVector(number, storable(model), size, stored)

    def log(self) -> Iterator[WholeLogEntry]:
        place = (
            "(SELECT place FROM vector_memory_hash_places WHERE log_id = l.id)"
            if "vector_memory_hash_places" in self._tables
            else "NULL"
        )
        chunks = {row.entry: (schema.keys_as_json(row.keys), row.after) for row in self._chunk_rows()}
        for row in self._all(
            "vector_memory_hash_log",
            f"SELECT id, message_hash, timestamp, {place} FROM vector_memory_hash_log l ORDER BY id",
        ):
            yield WholeLogEntry(
                row[0], _text(row[1]) or "", _text(row[2]) or "", _text(row[3]), *chunks.get(row[0], (None, None))
            )

    def hash_key(self) -> str | None:
        return self._stored_hash_key()


def write_file(path: str, discussion_id: str, rows: WholeMemories, mode: int) -> None:
    """Write a database with these rows and the index that belongs to them, in place of what is there.

    Raises sqlite3.Error and OSError.
    """
    with replacing(path, mode) as database, sqlite.transaction(database):
        schema.create_tables(database)
        encrypted = False
        for memory in rows.memories():
            encrypted = encrypted or is_token(memory.memory_text)
            database.execute("INSERT INTO memories VALUES (?, ?, ?, ?, ?)", (memory.id, discussion_id, *memory[1:4]))
            if memory.with_topics:
                database.execute("INSERT INTO memory_indexed_topics VALUES (?)", (memory.id,))
            if memory.chunk is not None:
                schema.create_chunk_tables(database)
                database.execute("INSERT INTO memory_chunks VALUES (?, ?)", (memory.id, memory.chunk))
        database.executemany("INSERT INTO memory_embeddings VALUES (?, ?, ?, ?)", map(_vector, rows.vectors()))
        for entry in rows.log():
            database.execute(
                "INSERT INTO vector_memory_hash_log VALUES (?, ?, ?, ?)",
                (entry.id, discussion_id, entry.message_hash, entry.timestamp),
            )
            if entry.place is not None:
                database.execute("INSERT INTO vector_memory_hash_places VALUES (?, ?)", (entry.id, entry.place))
            if entry.sources is not None:
                schema.create_chunk_tables(database)
                schema.insert_sources(database, entry.id, json.loads(entry.sources), entry.follows)
        if hash_key := rows.hash_key():
            schema.create_chunk_tables(database)
            database.execute("INSERT INTO vector_memory_sources (log_id, sources) VALUES (0, ?)", (hash_key,))
        # The index of an encrypted database exists only in memory.
        if not encrypted:
            conversion.write_index(database, Codec())


@contextmanager
def replacing(path: str, mode: int) -> Iterator[sqlite3.Connection]:
    """Make a database in the block that takes the place of a file at its end."""
    unfinished = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        with closing(schema.connect(unfinished, create=True, mode=mode)) as database:
            yield database
            sqlite.use_write_ahead_log(database)
        for ending in ("-wal", "-shm", "-journal"):
            _remove(path + ending)
        os.replace(unfinished, path)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            _remove(unfinished + ending)


def is_empty(rows: WholeMemories) -> bool:
    kinds: tuple[Iterable[object], ...] = (rows.memories(), rows.vectors(), rows.log())
    return not any(True for kind in kinds for _ in kind)


def _vector(row: WholeVector) -> tuple[int, str, int, bytes | str]:
    # A token is text in a file; nothing in clear is as long as one.
    token = len(row.vector) >= (row.dim + 1) * 4 and row.vector.startswith(TOKEN_START)
    return row.memory_id, row.model, row.dim, row.vector.decode("ascii") if token else row.vector


def _text(value: object) -> str | None:
    """Return a text as the state database can hold it. Others may have written anything into a file."""
    return None if value is None else storable(value if isinstance(value, str) else str(value))


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
