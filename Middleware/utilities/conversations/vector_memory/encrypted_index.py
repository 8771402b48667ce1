"""The index of words of an encrypted database. It exists only in memory; the index in the file stays empty."""
from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.conversations.vector_memory import schema
from Middleware.utilities.conversations.vector_memory.cache import LatestUsed, raise_if_cancelled, turn
from Middleware.utilities.conversations.vector_memory.keyword_search import KeywordSearch, search_ids
from Middleware.utilities.conversations.vector_memory.schema import Codec
from Middleware.utilities.encryption_utils import Cipher

# Databases whose index stays in memory: making it again takes 1.1 s for 20,000 memories.
MOST_INDEXES = 8


@dataclass(frozen=True)
class StoredRow:
    """A memory as it is stored, and whether its topics are searched."""

    id: int
    memory_text: object
    metadata_json: object
    date_added: str
    with_topics: bool


class EncryptedIndex:
    """Finds rows by words like the index on disk. Memories that were added to the file are added at the next search."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._known: dict[int, int] = {}
        self._state: Hashable = None

    def __del__(self) -> None:
        # Nobody searches any more.
        if self._database is not None:
            self._database.close()

    def search(self, search: KeywordSearch, state: Hashable, rows: Callable[[], Iterable[StoredRow]], codec: Codec,
               scope: CancelScope | None = None) -> list[int]:
        """Return what ``search_ids`` returns.

        Args:
            state: of the file, taken before; the rows are read only when it differs from last time.
        """
        with turn(self._lock, scope):
            if self._database is None or state != self._state:
                self._refresh(list(rows()), codec, scope)
                self._state = state
            assert self._database is not None
            return search_ids(self._database, search, scope)

    def _refresh(self, rows: list[StoredRow], codec: Codec, scope: CancelScope | None) -> None:
        prints = {row.id: hash(row) for row in rows}
        if self._database is None or any(prints.get(number) != value for number, value in self._known.items()):
            self._start_anew()
        try:
            for row in rows:
                if row.id not in self._known:
                    raise_if_cancelled(scope)
                    self._add(row, codec)
                    self._known[row.id] = prints[row.id]
        finally:
            assert self._database is not None
            if self._database.in_transaction:
                # What is indexed stays, even if the request was cancelled before the rest.
                self._database.execute("COMMIT")

    def _start_anew(self) -> None:
        if self._database is not None:
            self._database.close()
        self._known, self._state = {}, None
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        schema.prepare(database)
        database.execute("CREATE TABLE memories (id INTEGER PRIMARY KEY, date_added TEXT)")
        # The index holds words only; the texts stay encrypted.
        database.execute(schema.INDEX_TABLE.replace("tokenize=", "content='', tokenize="))
        self._database = database

    def _add(self, row: StoredRow, codec: Codec) -> None:
        assert self._database is not None
        if not self._database.in_transaction:
            self._database.execute("BEGIN")
        try:
            metadata = schema.parse_metadata(codec.decode_text(row.metadata_json))
        # Edited by hand.
        except ValueError:
            metadata = {}
        columns = schema.index_row(codec.decode_text(row.memory_text), metadata, row.with_topics)
        self._database.execute("INSERT INTO memories VALUES (?, ?)", (row.id, row.date_added))
        self._database.execute(schema.INSERT_INDEX, (row.id, *columns))


def _indexes() -> LatestUsed[EncryptedIndex]:
    return LatestUsed(MOST_INDEXES)


def index_of(path: str, cipher: Cipher) -> EncryptedIndex:
    """Return the index of a file, for the holders of its key only."""
    return process().one(_indexes).get((os.path.realpath(path), cipher.mark), EncryptedIndex)
