"""The index of words in memory, for databases without one in the file, which are those with encrypted rows."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.discussions.vector_memory import schema
from Middleware.utilities.discussions.vector_memory.cache import LatestUsed, RowsState, held, raise_if_cancelled
from Middleware.utilities.discussions.vector_memory.keyword_search import KeywordSearch, search_ids
from Middleware.utilities.discussions.vector_memory.schema import Codec
from Middleware.utilities.encryption_utils import Cipher

# Databases whose index stays in memory: making it again takes 1.1 s for 20,000 memories.
MOST_INDEXES = 8

# Rows that are read at once: some megabytes, and a database across a network answers within its time limit.
BATCH = 5_000

# The id before the first one; those that were written by hand may be negative.
_START = -1 << 63


@dataclass(frozen=True)
class StoredRow:
    """A memory as it is stored, and whether its topics are searched."""

    id: int
    memory_text: object
    metadata_json: object
    date_added: str
    with_topics: bool


ReadRows = Callable[[int, int], Sequence[StoredRow]]
"""Returns the rows with an id above the first number, by id, at most as many as the second."""


class EncryptedIndex:
    """Finds rows by words like an index on disk. Memories that were added to the rows are added at the next search."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._state: RowsState | None = None
        # Of rows that may be changed in any way: a hash of each that is indexed.
        self._known: dict[int, int] = {}
        # Of rows that are only added: the last that is indexed, and their generation.
        self._newest = _START
        self._generation: Hashable | None = None

    def __del__(self) -> None:
        # No search is under way any more.
        if self._database is not None:
            self._database.close()

    def search(
        self,
        search: KeywordSearch,
        state: Callable[[], RowsState],
        rows: ReadRows,
        codec: Codec,
        scope: CancelScope | None = None,
    ) -> list[int]:
        """Return what ``search_ids`` returns; read rows only if their state differs from last time."""
        with held(self._lock, scope):
            # Taken before the rows are read, so that what is written during the read is noticed next time.
            found = state()
            if self._database is None or found != self._state:
                self._refresh(found.generation, rows, codec, scope)
                self._state = found
            assert self._database is not None
            return search_ids(self._database, search, scope)

    def _refresh(self, generation: Hashable | None, rows: ReadRows, codec: Codec, scope: CancelScope | None) -> None:
        if self._database is None or generation != self._generation:
            self._start_again(generation)
        if not self._catch_up(rows, codec, scope):
            self._start_again(generation)
            self._catch_up(rows, codec, scope)

    def _catch_up(self, rows: ReadRows, codec: Codec, scope: CancelScope | None) -> bool:
        """Index the rows that are not indexed; return False, too early, if others were changed or deleted."""
        unseen = len(self._known)
        after = self._newest if self._generation is not None else _START
        try:
            while batch := rows(after, BATCH):
                for row in batch:
                    mark = hash(row) if self._generation is None else 0
                    known = self._known.get(row.id)
                    if known is None:
                        raise_if_cancelled(scope)
                        self._add(row, codec)
                        self._note(row.id, mark)
                    elif known == mark:
                        unseen -= 1
                    else:
                        return False
                if len(batch) < BATCH:
                    break
                raise_if_cancelled(scope)
                after = batch[-1].id
            return unseen == 0
        finally:
            assert self._database is not None
            if self._database.in_transaction:
                # What is indexed stays, even if the request was cancelled before the rest.
                self._database.execute("COMMIT")

    def _note(self, number: int, mark: int) -> None:
        if self._generation is None:
            self._known[number] = mark
        self._newest = number

    def _start_again(self, generation: Hashable | None) -> None:
        if self._database is not None:
            self._database.close()
        self._known, self._newest, self._generation, self._state = {}, _START, generation, None
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


def index_of(place: str, cipher: Cipher) -> EncryptedIndex:
    """Return the index of the memories at a place, for the holders of their key only."""
    return process().one(_indexes).get_or_make((place, cipher.mark), EncryptedIndex)
