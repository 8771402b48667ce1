"""What is done with the searchable memories of a discussion, wherever their rows are stored."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple, Self, TypedDict, TypeVar

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import writing
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussions.message_places import LoggedMessage, MessagePlace, place_from_text
from Middleware.utilities.discussions.vector_memory import schema
from Middleware.utilities.discussions.vector_memory.cache import RowsState, vectors_of
from Middleware.utilities.discussions.vector_memory.encrypted_index import StoredRow, index_of
from Middleware.utilities.discussions.vector_memory.keyword_search import KeywordSearch, phrases_of, usable_weights
from Middleware.utilities.discussions.vector_memory.schema import Codec, is_token
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, file_named
from Middleware.utilities.vector_math_utils import FLOAT_BYTES

T = TypeVar("T")

# SQLite's numbers end at 63 bits, more than memories ever get.
MOST_ROWS = 1 << 31
# Of memories with a word: one in more of them says next to nothing.
MOST_WITH_PHRASE = 2_000


class MemoryRow(TypedDict):
    """A row of the table ``memories``. Texts are in clear, except where it says "as stored": those may be tokens."""

    id: int
    discussion_id: str
    memory_text: str
    date_added: str
    metadata_json: str | None


@dataclass(frozen=True)
class NewMemory:
    """A memory to store; text and metadata as stored.

    Attributes:
        fields: the metadata in clear, for an index of words.
        with_topics: let ``topics`` of the metadata be found too.
    """

    memory_text: str | None
    metadata_json: str | None
    date_added: str
    fields: Mapping[str, object]
    with_topics: bool


@dataclass(frozen=True)
class Origin:
    """What a new chunk is made of.

    Attributes:
        keys: its sources, the key before them and the id of the chunk before it; its own id is not known yet.
        following: the entry in the log of the chunk behind it, if it fills a hole.
    """

    keys: Piece
    following: int | None = None


class ChunkRow(NamedTuple):
    """What a chunk was made of, as stored.

    Attributes:
        entry: its id in the log.
        keys: the key of the message before it, "" for none, and those of its messages.
        after: the id of the chunk before it, "" for none.
    """

    entry: int
    keys: Sequence[str]
    after: str


class NewVector(TypedDict):
    """A vector to store; ``vector`` as stored, ``dim``: how many numbers it has."""

    memory_id: int
    model: str
    dim: int
    vector: bytes | str


class SearchableMemories(ABC):
    """The memories of one discussion, for one pass: ``with state.memories() as memories: ...``.

    A subclass contains the statements of one kind of database. Memories come as dicts of all columns, in clear.

    All methods raise ``sqlite3.Error`` or OSError for a database that does not answer or is damaged; DataKeyError for
    data of another key, or of any key without one; and EarlyTerminationException when ``scope`` is cancelled while they
    wait. Each writing method is one transaction.
    """

    names = "memory", "memories"

    def __init__(self, discussion_id: str = "", cipher: Cipher = NO_CIPHER, scope: CancelScope | None = None) -> None:
        self.discussion_id = discussion_id
        self._cipher, self._codec, self._scope = cipher, Codec(cipher), scope
        self._left_out: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def cipher(self) -> Cipher:
        """What the memories are stored with: the given cipher, or that of another of its keys."""
        return self._cipher

    def _use_key_of(self, stored: object, file: str) -> None:
        """Use the key with which the newest text is stored, if it is encrypted; ``file``: its name in messages."""
        if is_token(stored):
            assert isinstance(stored, str)
            with file_named(file):
                # What is encrypted with another of the cipher's keys keeps that key.
                self._cipher = self._cipher.like(stored.encode("ascii"))
            self._codec = Codec(self._cipher)

    # -- the log of processed messages ---------------------------------------------------------------------------
    def logged_messages(self, limit: int = 10, with_origin: bool = True) -> list[LoggedMessage]:
        """Return the last messages of the chunks that were processed last, newest first.

        ``with_origin``: also those of the chunks that ``chunks`` returns.
        """
        return [
            LoggedMessage(message_hash, place_from_text(place))
            for message_hash, place in self._log_rows(row_limit(limit), with_origin)
        ]

    def log_hash(self, message_hash: str, place: MessagePlace | None = None, origin: Origin | None = None) -> None:
        """Log the last message of a processed chunk, with its position if that is known, and what it was made of."""
        self._transact(lambda: self._insert_hash(message_hash, place, origin, ()))

    def _insert_hash(
        self, message_hash: str, place: MessagePlace | None, origin: Origin | None, numbers: Sequence[int]
    ) -> None:
        text, following = None if place is None else json.dumps(place.as_json()), origin.following if origin else None
        entry = self._insert_log(message_hash, utc_now(), text, following)
        if origin is not None:
            self._create_chunks()
            hash_key = self._hash_key(make=True)
            keys = [schema.stored_key(key, hash_key) for key in (origin.keys.before, *origin.keys.sources)]
            self._insert_chunk(ChunkRow(entry, keys, origin.keys.after), numbers)

    # -- what chunks were made of --------------------------------------------------------------------------------
    def chunks(self, known: Iterable[str] = ()) -> list[Piece]:
        """Return the keys of the messages that each chunk was made of, oldest first; one without memories is included.

        The ``id`` of each is that of its entry in the log, as text, and ``made`` the same as a number. Chunks from
        before memories followed edits are missing.

        Args:
            known: keys of messages, such as those of a history. Of an encrypted discussion, only these come back as
                they are; any other is a hash, which is equal for equal keys.
        """
        rows, hash_key = self._chunk_rows(), self._hash_key()
        plain = {schema.stored_key(key, hash_key): key for key in known} if hash_key and rows else {}
        found = []
        for entry, stored, after in rows:
            before, *sources = [plain.get(key, key) for key in stored] if plain else stored
            found.append(Piece(str(entry), tuple(sources), before, after, entry))
        return found

    def stored_keys(self, keys: Iterable[str]) -> list[str]:
        """Return keys of messages as ``chunks`` returns them of messages that are not known."""
        hash_key = self._hash_key()
        return [schema.stored_key(key, hash_key) for key in keys]

    def chunks_of(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the chunk of each of these memories, as ``chunks`` names it; those without one are left out."""
        wanted = set(numbers)
        return {number: str(entry) for number, entry in self._members(None) if number in wanted}

    def facts_of(self, chunks: Iterable[str]) -> dict[str, list[MemoryRow]]:
        """Return the memories of each of these chunks, oldest first; an empty list for one without."""
        found: dict[str, list[MemoryRow]] = {name: [] for name in chunks}
        members = dict(self._members([int(name) for name in found]))
        for row in self.by_ids(sorted(members)):
            found[str(members[row["id"]])].append(row)
        return found

    def leave_out(self, chunks: Iterable[str]) -> None:
        """Let no later search find the memories of these chunks."""
        entries = [int(name) for name in chunks]
        self._left_out = frozenset(number for number, _ in self._members(entries)) if entries else frozenset()

    def settle_chunks(self, after: Mapping[str, str], dropped: Iterable[str]) -> None:
        """Store which chunk stands before each of some, and delete others with their memories."""
        gone = [int(name) for name in dropped]
        if after or gone:
            self._transact(lambda: self._change_chunks({int(name): after[name] for name in after}, gone))

    def _hash_key(self, make: bool = False) -> str:
        """Return the key of the hashes of keys; "" if these are stored as they are. ``make``: in a transaction."""
        stored = self._stored_hash_key()
        if not stored and make and (new := self._codec.new_hash_key()):
            self._insert_hash_key(self._codec.encode_text(new))
            return new
        return str(self._codec.decode_text(stored)) if stored else ""

    # -- chunks that failed --------------------------------------------------------------------------------------
    @abstractmethod
    def count_failure(self, chunk: str) -> int:
        """Count a failure of the chunk with this name and return how many there were in a row."""

    @abstractmethod
    def failures(self, chunk: str) -> int:
        """Return how many failures of this chunk there were in a row."""

    @abstractmethod
    def end_failures(self, chunk: str) -> None:
        """Count the failures of this chunk from 1 again."""

    # -- writing memories ----------------------------------------------------------------------------------------
    def store_chunk(
        self,
        items: Sequence[tuple[str, str]],
        message_hash: str | None,
        index_topics: bool = False,
        place: MessagePlace | None = None,
        origin: Origin | None = None,
    ) -> list[int]:
        """Store the memories of a chunk, log the chunk as processed, and return the rows' ids; all or nothing.

        Args:
            items: text and metadata (a JSON object, stored as it is) of each memory.
            message_hash: of the chunk; None logs nothing.
            index_topics: let ``topics`` of the metadata be found too.
            place: the position of the chunk's last message.
            origin: the messages of a chunk that follows edits.

        Raises ValueError for metadata that is not a JSON object.
        """
        encode = self._codec.encode_text
        ready = [
            NewMemory(encode(text), encode(metadata), utc_now(), schema.parse_metadata(metadata), index_topics)
            for text, metadata in items
        ]

        def store() -> list[int]:
            numbers = self._insert_memories(ready)
            if message_hash is not None:
                self._insert_hash(message_hash, place, origin, numbers)
            return numbers

        with writing("vector", [text for text, _ in items], len(items), message_hash):
            # The hash says that the messages of the chunk were in none that was stored before.
            return self._transact(store, compare=message_hash is not None)

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
        stored, stored_metadata = encode(text), encode(json.dumps(metadata, ensure_ascii=False))
        self._rewrite(lambda: self._update_memory(number, stored, stored_metadata))

    def delete(self, *numbers: int) -> None:
        """Delete memories with their words and their vectors."""

        def delete() -> None:
            for number in numbers:
                self._delete_memory(number)

        self._rewrite(delete)

    def delete_all(self) -> None:
        """Delete all memories and the log of processed messages, so that all messages count as new."""
        self._rewrite(self._delete_everything)

    # -- finding memories ----------------------------------------------------------------------------------------
    def keyword_search(
        self, query: str, limit: int = 15, bm25_weights: Sequence[float] | None = None, use_recency: bool = False
    ) -> list[MemoryRow]:
        """Return the memories that fit the terms of ``query`` best; see ``keyword_search``."""
        limit = row_limit(limit)
        search = KeywordSearch(phrases_of(query), limit, usable_weights(bm25_weights), use_recency, self._left_out)
        if not self.exists or not search.phrases or limit < 1:
            return []
        return self.by_ids(self._search(search))

    def ids_of(self, *phrases: str) -> list[int]:
        """Return the ids of memories with one of some FTS5 phrases, at most ``MOST_WITH_PHRASE``."""
        if not self.exists:
            return []
        return self._search(KeywordSearch(phrases, MOST_WITH_PHRASE, left_out=self._left_out))

    def _search(self, search: KeywordSearch) -> list[int]:
        numbers = self._search_stored_index(search)
        if numbers is not None:
            return numbers
        index = index_of(self.place, self._cipher)
        return index.search(search, self._rows_state, self._stored_rows, self._codec, self._scope)

    def nearest(self, vector: Sequence[float], model: str, limit: int) -> list[int]:
        """Return the ids of the memories whose vectors of ``model`` are most like ``vector``, best first."""
        if not self.exists:
            return []
        vectors = vectors_of(self.place, model, self._cipher).current(
            self._rows_state, lambda known: self.embeddings(model, False, known), self._scope
        )
        return vectors.nearest(vector, row_limit(limit), self._left_out)

    def by_ids(self, numbers: Sequence[int]) -> list[MemoryRow]:
        """Return the memories with these ids, in their order; missing ones are left out."""
        found = {row["id"]: row for row in self._rows_by_ids(numbers)}
        return [self._in_clear(found[number]) for number in numbers if number in found]

    def all_memories(self, limit: int = -1, offset: int = 0) -> Iterator[MemoryRow]:
        """Yield the memories, oldest first."""
        for row in self._rows(MOST_ROWS if limit < 0 else row_limit(limit), row_limit(offset)):
            yield self._in_clear(row)

    def dates(self) -> list[str]:
        """Return when the memories were added, as stored."""
        return [row["date_added"] for row in self._rows(MOST_ROWS, 0)]

    def newest(self, limit: int, before: int | None = None) -> list[MemoryRow]:
        """Return the newest memories, of those with an id below ``before``, newest first."""
        most = row_limit(limit)
        rows = self._newest_rows(most + len(self._left_out), MOST_ROWS if before is None else row_limit(before))
        return [self._in_clear(row) for row in rows if row["id"] not in self._left_out][:most]

    # -- vectors -------------------------------------------------------------------------------------------------
    def add_embeddings(self, embeddings: Sequence[tuple[int, bytes]], model: str) -> int:
        """Store or replace a model's vectors of rows, as 32-bit floats; return how many."""
        vectors = [
            NewVector(
                memory_id=number, model=model, dim=len(blob) // FLOAT_BYTES, vector=self._codec.encode_vector(blob)
            )
            for number, blob in embeddings
        ]
        self._transact(lambda: self._insert_vectors(vectors))
        return len(vectors)

    def embeddings(self, model: str, strays: bool = True, known: Collection[int] = ()) -> list[tuple[int, bytes]]:
        """Return row ids and vectors of one model.

        Args:
            strays: include those of deleted memories.
            known: leave out the vectors of these rows.
        """
        return [
            (number, self._codec.decode_vector(vector)) for number, vector in self._vector_rows(model, strays, known)
        ]

    def without_embeddings(self, model: str, limit: int = 20) -> list[MemoryRow]:
        """Return the oldest memories that have no vector of this model."""
        return [self._in_clear(row) for row in self._rows_without_vector(model, row_limit(limit))]

    # -- care ----------------------------------------------------------------------------------------------------
    def rebuild_index(self) -> int:
        """Rebuild the index of words from the memories; return how many there are."""
        self._rewrite(lambda: None)
        return self.counts()["memories"]

    def change_cipher(self, cipher: Cipher) -> None:
        """Store everything under another key, or in clear, in one transaction, and use that key from now on."""
        target = Codec(cipher)
        self._convert(target)
        self._cipher, self._codec = cipher, target

    def _in_clear(self, row: MemoryRow) -> MemoryRow:
        # There may be more columns, which a user or a tool has added.
        decode = self._codec.decode_text
        return {**row, "memory_text": decode(row["memory_text"]), "metadata_json": decode(row["metadata_json"])}

    # -- statements: the database --------------------------------------------------------------------------------
    @property
    @abstractmethod
    def place(self) -> str:
        """Where the rows are: the same for each object of one discussion, and for no other."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a place for memories, be it empty."""

    @abstractmethod
    def close(self) -> None:
        """End the use of the database. May be called twice."""

    @abstractmethod
    def _transact(self, action: Callable[[], T], compare: bool = False) -> T:
        """Return the result of ``action``, a transaction that adds rows; it may be tried more than once.

        Args:
            compare: raise StateConflictError if others have written since the log was read. A database whose writers
                cannot lose the lock on the discussion need not look.
        """

    @abstractmethod
    def _rewrite(self, action: Callable[[], None]) -> None:
        """Run ``action``, a transaction that changes rows; all indexes of words are rebuilt after it."""

    @abstractmethod
    def _convert(self, target: Codec) -> None:
        """Store all texts and vectors as ``target`` does, in one transaction."""

    # -- statements: reading. All return what is stored, and nothing where nothing exists. -------------------------
    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return the numbers of ``memories``, ``embeddings`` and ``hashes``."""

    @abstractmethod
    def processed_messages(self) -> list[tuple[str, str]]:
        """Return the log of processed messages, the oldest first: hashes and times."""

    @abstractmethod
    def count_without_embeddings(self, model: str) -> int:
        """Return the number of memories that have no vector of this model."""

    @abstractmethod
    def _log_rows(self, limit: int, with_origin: bool) -> list[tuple[str, str | None]]:
        """Return the hashes and places (JSON) of the log, newest first.

        ``with_origin``: also those of chunks of which it is stored what they were made of.
        """

    @property
    @abstractmethod
    def has_chunks(self) -> bool:
        """Whether it is known of any memory which messages it was made of."""

    @abstractmethod
    def _chunk_rows(self) -> list[ChunkRow]:
        """Return what the chunks were made of, by entry; those without it are left out."""

    @abstractmethod
    def _members(self, entries: Sequence[int] | None) -> list[tuple[int, int]]:
        """Return the memories of the chunks with these entries in the log (None: of all), each with its entry."""

    @abstractmethod
    def _stored_hash_key(self) -> str | None:
        """Return the key of the hashes of keys as it is stored; without one, the keys are stored as they are."""

    @abstractmethod
    def _rows_by_ids(self, numbers: Sequence[int]) -> Iterable[MemoryRow]:
        """Return the memories with these ids, in any order."""

    @abstractmethod
    def _rows(self, limit: int, offset: int) -> Iterable[MemoryRow]:
        """Return the memories by id."""

    @abstractmethod
    def _newest_rows(self, limit: int, before: int) -> Iterable[MemoryRow]:
        """Return the memories with an id below ``before``, the highest first."""

    @abstractmethod
    def _rows_without_vector(self, model: str, limit: int) -> Iterable[MemoryRow]:
        """Return the memories without a vector of this model, by id."""

    @abstractmethod
    def _vector_rows(self, model: str, strays: bool, known: Collection[int]) -> Iterable[tuple[int, object]]:
        """Return row ids and vectors of one model, by id; the arguments are those of ``embeddings``."""

    # -- statements: searching -----------------------------------------------------------------------------------
    @abstractmethod
    def _search_stored_index(self, search: KeywordSearch) -> list[int] | None:
        """Return what ``search_ids`` returns, from an index outside of the rows; None if there is no such index."""

    @abstractmethod
    def _rows_state(self) -> RowsState:
        """Return a state of the rows; what is read afterwards may be newer."""

    @abstractmethod
    def _stored_rows(self, after: int, limit: int) -> list[StoredRow]:
        """Return the memories with an id above ``after``, by id, for the index of words in memory."""

    # -- statements: writing, inside ``_transact`` or ``_rewrite`` -------------------------------------------------
    @abstractmethod
    def _insert_log(self, message_hash: str, timestamp: str, place: str | None, following: int | None) -> int:
        """Add to the log, with a time that is not before that of any other entry, and return the entry's id.

        ``following``: the entry of the chunk behind this one, whose time it then has.
        """

    @abstractmethod
    def _create_chunks(self) -> None:
        """Make the place for what chunks were made of."""

    @abstractmethod
    def _insert_chunk(self, row: ChunkRow, numbers: Sequence[int]) -> None:
        """Store what a chunk with these memories was made of."""

    @abstractmethod
    def _insert_hash_key(self, stored: str | None) -> None:
        """Store the key of the hashes of keys."""

    @abstractmethod
    def _change_chunks(self, after: Mapping[int, str], gone: Sequence[int]) -> None:
        """Replace the chunk before some, and delete others with their entries, memories and vectors."""

    @abstractmethod
    def _insert_memories(self, memories: Sequence[NewMemory]) -> list[int]:
        """Store the memories and return their ids. What is left of an earlier row with such an id goes."""

    @abstractmethod
    def _insert_vectors(self, vectors: Sequence[NewVector]) -> None:
        """Store the vectors, or replace those of the same memory and model."""

    @abstractmethod
    def _update_memory(self, number: int, text: str | None, metadata: str | None) -> None:
        """Replace text and metadata of a memory, and delete its vectors."""

    @abstractmethod
    def _delete_memory(self, number: int) -> None:
        """Delete a memory with its vectors."""

    @abstractmethod
    def _delete_everything(self) -> None:
        """Delete all memories, vectors and the log."""


def row_limit(number: int) -> int:
    return min(max(0, number), MOST_ROWS)


def utc_now() -> str:
    """Return the current time as it is stored: UTC, ISO 8601 with offset."""
    return datetime.now(UTC).isoformat()
