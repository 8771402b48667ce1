"""The index of a discussion's messages in an SQLite file, read and written on one connection."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities import sqlite
from Middleware.utilities.discussions.message_index import message_tables as tables
from Middleware.utilities.discussions.message_index.message_tables import ON_PATH, MessageCodec
from Middleware.utilities.discussions.message_index.order import Entry, Order
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory.cache import LatestUsed, held
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher

# Indexes whose order stays in memory: one of 10,000 messages takes some 5 MB.
MOST_ORDERS = 8
# In one statement; SQLite before 3.32 takes no more than 999.
_MOST_VALUES = 500
_ROW = "id, conversation, place, role, speaker, text, words, said, said_from, state, when_words"


class NewMessage(NamedTuple):
    """A message to store, in clear.

    Attributes:
        place: orders the rows of a conversation.
        key, key2: 8 bytes each, by which the message is recognised with or without its speaker.
        said: Unix seconds, None if unknown; said_from: how that is known.
        seen: Unix seconds of the newest request that held it.
        when_words: the date and the meaning of relative dates, which are searched as well.
    """

    conversation: int
    place: float
    key: bytes
    role: str
    text: str
    key2: bytes | None = None
    speaker: str | None = None
    said: int | None = None
    said_from: int = 5
    seen: int = 0
    state: int = ON_PATH
    when_words: str = ""


class MessageRow(NamedTuple):
    """A stored message, in clear."""

    id: int
    conversation: int
    place: float
    role: str
    speaker: str | None
    text: str
    words: int
    said: int | None
    said_from: int
    state: int
    when_words: str


@dataclass(frozen=True)
class Term:
    """What is looked for: one of ``words``, or, at less, a word that begins with ``beginning``."""

    words: tuple[str, ...]
    beginning: str = ""


class Occurrences(NamedTuple):
    """The ids of the rows with a term: with one of its words, with its beginning alone, and in their dates."""

    full: list[int]
    begun: list[int]
    dated: list[int]

    @property
    def rows(self) -> int:
        """The number of rows whose text holds the term; if none does, of those whose date does."""
        return len(self.full) + len(self.begun) or len(self.dated)


class MessageIndex:
    """The index of one discussion, for one request: ``with MessageIndex(path, write=True) as index: ...``.

    Opened for reading, a missing file is an index without messages, and nothing is created. All methods raise
    ``sqlite3.Error`` and OSError; DataKeyError for data of another key; and EarlyTerminationException when ``scope`` is
    cancelled while they wait.
    """

    def __init__(
        self,
        path: str,
        *,
        write: bool = False,
        cipher: Cipher = NO_CIPHER,
        mode: int | None = None,
        scope: CancelScope | None = None,
    ) -> None:
        self.path, self._cipher, self._scope = path, cipher, scope
        self._database: sqlite3.Connection | None = None
        self._codec = MessageCodec(cipher)
        if write or os.path.isfile(path):
            self._database = tables.connect(path, create=write, mode=mode)
            try:
                self._prepare(write)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the use of the file. May be called twice."""
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def exists(self) -> bool:
        return self._database is not None

    def _prepare(self, write: bool) -> None:
        known = sqlite.when_free(lambda: tables.has_tables(self._db), self._scope)
        if write:
            tables.use_write_ahead_log(self._db)
            if not known:
                with sqlite.transaction(self._db, self._scope):
                    tables.create_tables(self._db, indexed=not self._cipher.active)
        elif not known:
            self.close()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise sqlite3.ProgrammingError("the message index is not open for writing")
        return self._database

    def all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a statement; none without a file."""
        if self._database is None:
            return []
        database = self._database
        return sqlite.when_free(lambda: database.execute(statement, values).fetchall(), self._scope)

    # -- writing -------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def writing(self) -> Iterator[Writing]:
        """Run the block as one transaction. What is kept in memory of the file follows when it is stored."""
        with sqlite.transaction(self._db, self._scope):
            version = self._version()
            writing = Writing(self._db, self._codec)
            yield writing
            if writing.changed:
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (tables.VERSION, version + 1))
        if writing.changed:
            order = self._kept_order()
            with held(order.lock, self._scope):
                if order.version == version:
                    for change in writing.changes:
                        change(order)
                    order.version = version + 1

    def _version(self) -> int:
        found = self._db.execute("SELECT value FROM meta WHERE name = ?", (tables.VERSION,)).fetchone()
        return int(found[0]) if found else 0

    # -- what is kept in memory ----------------------------------------------------------------------------------
    def _kept_order(self) -> Order:
        return process().one(_orders).get_or_make((os.path.realpath(self.path), self._cipher.mark), Order)

    @contextlib.contextmanager
    def order(self) -> Iterator[Order]:
        """Hold the rows in their order, as they are in the file now."""
        order = self._kept_order()
        with held(order.lock, self._scope):
            if self._database is None:
                order.clear()
            elif order.version != (version := sqlite.when_free(self._version, self._scope)):
                order.clear()
                self._load(order)
                order.version = version
            order.lay()
            yield order

    def _load(self, order: Order) -> None:
        decode = self._codec.decode_text
        for number, conversation, place, role, speaker, words, said, state in self.all(
            "SELECT id, conversation, place, role, speaker, words, said, state FROM messages WHERE conversation NOT IN "
            "(SELECT id FROM conversations WHERE tentative) ORDER BY conversation, place, id"
        ):
            order.put(number, conversation, Entry(place, role, decode(speaker), words, said, state))  # type: ignore[arg-type]

    # -- reading -------------------------------------------------------------------------------------------------
    def rows(self, numbers: Sequence[int]) -> list[MessageRow]:
        """Return the messages with these ids, in their order; missing ones are left out."""
        found: dict[int, MessageRow] = {}
        for start in range(0, len(numbers), _MOST_VALUES):
            some = tuple(numbers[start : start + _MOST_VALUES])
            marks = ", ".join("?" * len(some))
            for row in self.all(f"SELECT {_ROW} FROM messages WHERE id IN ({marks})", some):
                found[row[0]] = self._in_clear(row)  # type: ignore[index]
        return [found[number] for number in numbers if number in found]

    def _in_clear(self, row: tuple[object, ...]) -> MessageRow:
        read = MessageRow(*row)  # type: ignore[arg-type]
        if not self._codec.active:
            return read
        decode = self._codec.decode_text
        return read._replace(speaker=decode(read.speaker), text=decode(read.text), when_words=decode(read.when_words))

    def occurrences(self, term: Term) -> Occurrences:
        """Return where a term occurs, among all rows in the index of words."""
        words = " OR ".join(f'"{word}"' for word in term.words)
        full = self._matches(f"{{text}} : ({words})")
        begun: list[int] = []
        if term.beginning:
            known = set(full)
            begun = [row for row in self._matches(f'{{text}} : "{term.beginning}" *') if row not in known]
        return Occurrences(full, begun, self._matches(f"{{when_words}} : ({words})"))

    def count(self, term: Term) -> int:
        """Return the number of rows whose text holds one of the words."""
        words = " OR ".join(f'"{word}"' for word in term.words)
        found = self.all("SELECT count(*) FROM messages_fts WHERE messages_fts MATCH ?", (f"{{text}} : ({words})",))
        return int(found[0][0]) if found else 0  # type: ignore[call-overload]

    def _matches(self, query: str) -> list[int]:
        return [row[0] for row in self.all("SELECT rowid FROM messages_fts WHERE messages_fts MATCH ?", (query,))]  # type: ignore[misc]


class Writing:
    """The changes of one transaction; ``changes`` make the same ones to what is kept in memory."""

    def __init__(self, database: sqlite3.Connection, codec: MessageCodec) -> None:
        self._database, self._codec = database, codec
        self.changes: list[Callable[[Order], object]] = []
        self.changed = False

    def add(self, message: NewMessage, *, indexed: bool = True) -> int:
        """Store a message and return its id; ``indexed``: a search may find it."""
        words = index_words(message.text)
        encode, encode_key = self._codec.encode_text, self._codec.encode_key
        row = self._database.execute(
            "INSERT INTO messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                message.conversation,
                message.place,
                encode_key(message.key),
                encode_key(message.key2) if message.key2 is not None else None,
                message.role,
                encode(message.speaker),
                encode(message.text),
                len(words),
                message.said,
                message.said_from,
                message.seen,
                message.state,
                encode(message.when_words),
            ),
        )
        number = row.lastrowid
        assert number is not None
        self.changed = True
        if indexed:
            if not self._codec.active:
                values = (number, " ".join(words), " ".join(index_words(message.when_words)))
                self._database.execute(tables.INSERT_WORDS, values)
            entry = Entry(message.place, message.role, message.speaker, len(words), message.said, message.state)
            self.changes.append(lambda order: order.put(number, message.conversation, entry))
        return number

    def set_state(self, numbers: Iterable[int], state: int) -> None:
        for number in numbers:
            self.changed = True
            self._database.execute("UPDATE messages SET state = ? WHERE id = ?", (state, number))
            self.changes.append(lambda order, number=number: order.set_state(number, state))  # type: ignore[misc]


def _orders() -> LatestUsed[Order]:
    return LatestUsed(MOST_ORDERS)
