"""The index of a discussion's messages, in an SQLite file or, in the classes that inherit, in another place."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, NamedTuple, Self

from Middleware.exceptions import DataKeyError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities import sqlite
from Middleware.utilities.conversations.message_keys import PathMessage
from Middleware.utilities.conversations.path import Known, Place
from Middleware.utilities.discussions.message_index import message_tables as tables
from Middleware.utilities.discussions.message_index.alignment import Keys, StoredRow, Unit, units_of
from Middleware.utilities.discussions.message_index.message_tables import (
    COMPARED,
    FIRST_PART,
    ON_PATH,
    PART,
    PROVISIONAL,
    SETTLED,
    FileStatements,
    MessageCodec,
    Statements,
    Versions,
)
from Middleware.utilities.discussions.message_index.order import Entry, Order
from Middleware.utilities.discussions.message_index.row_writing import ChatFacts, Writing
from Middleware.utilities.discussions.message_index.terms import Term
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory import conversion
from Middleware.utilities.discussions.vector_memory.cache import (
    LatestUsed,
    RowsState,
    held,
    raise_if_cancelled,
    vectors_of,
)
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, file_in_folder, file_named, warn_of_clear_data

# Indexes whose order stays in memory: one of 10,000 messages takes some 5 MB.
MOST_ORDERS = 8
# In one statement; SQLite before 3.32 takes no more than 999.
_MOST_VALUES = 400
# Rows between two looks whether the request is still wanted.
_BATCH = 500
# How long a request waits while another process writes. The next request stores what this one has not.
BUSY_SECONDS = 2.0
# Reading makes files next to a database with a log, too.
_CANNOT_WRITE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_ROW = "id, conversation, place, role, speaker, text, words, said, said_from, state, when_words"
_FIRST_PLACE = -1e300
_SHOWN = f"state IN ({ON_PATH}, {PROVISIONAL})"
_FIRST = f"conversation = ? AND {_SHOWN} AND {FIRST_PART}"


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


class Occurrences(NamedTuple):
    """The ids of the rows with a term: with one of its words, with its beginning alone, and in their dates."""

    full: list[int]
    begun: list[int]
    dated: list[int]

    @property
    def rows(self) -> int:
        """The number of rows whose text holds the term; if none does, of those whose date does."""
        return len(self.full) + len(self.begun) or len(self.dated)


class Survey(NamedTuple):
    """How many rows there are, the forgotten ones being counted for themselves.

    Attributes:
        first, last: when the oldest and the newest was sent, in Unix seconds; None if no time is known.
        tentative: those of conversations that have just begun, which no search finds yet.
    """

    rows: int
    first: int | None
    last: int | None
    without_time: int
    elsewhere: int
    provisional: int
    tentative: int
    forgotten: int


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
        self.path, self._mode, self._scope = path, mode, scope
        self._database: sqlite3.Connection | None = None
        # None: there is no index.
        self._rows: Statements | None = None
        self._codec = MessageCodec(cipher)
        # Where the words are looked for: in the file, or, of rows without an index there, in memory.
        self._words: sqlite3.Connection | None = None
        self._in_file = False
        # Within a transaction, those at its beginning.
        self._versions_now: Versions | None = None
        try:
            self._open(write)
            if self.exists and cipher.active and self._is_clear() and not write:
                warn_of_clear_data()
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
        """End the use of the index. May be called twice."""
        self._rows = self._words = None
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def exists(self) -> bool:
        return self._rows is not None

    def all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none without an index."""
        return self._rows.all(statement, values) if self._rows is not None else []

    @property
    def cipher(self) -> Cipher:
        """What the rows are stored with: the given cipher, or that of another of its keys."""
        return self._codec.cipher

    # -- the file ------------------------------------------------------------------------------------------------
    def _open(self, write: bool) -> None:
        if not write and not os.path.isfile(self.path):
            return
        self._database = database = tables.connect(self.path, create=write, mode=self._mode)
        try:
            known = sqlite.when_free(lambda: tables.table_names(database), self._scope, BUSY_SECONDS)
        except sqlite3.OperationalError as error:
            if write or sqlite.error_code(error) not in _CANNOT_WRITE:
                raise
            database.close()
            self._database = database = tables.connect_without_log(self.path)
            known = tables.table_names(database)
        if write:
            tables.use_write_ahead_log(database)
            if not known:
                with sqlite.transaction(database, self._scope, BUSY_SECONDS):
                    tables.create_tables(database, self.cipher)
                known = tables.table_names(database)
        if not known:
            self.close()
            return
        self._rows = FileStatements(database, self._scope, BUSY_SECONDS)
        self._use_key()
        if write:
            tables.encrypt(database, known, self.cipher, self._scope)
            self._use_key()
            known = tables.table_names(database)
        self._in_file = tables.WORDS in known
        self._words = database if self._in_file else None

    def _is_clear(self) -> bool:
        return self._in_file

    def _use_key(self) -> None:
        with file_named(file_in_folder(self.path)):
            self._codec = MessageCodec.read(self.cipher, self._meta(tables.HASH_KEY))

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise sqlite3.ProgrammingError("the message index is not open for writing")
        return self._database

    def _meta(self, name: str) -> Any:
        found = self.all("SELECT value FROM meta WHERE name = ?", (name,))
        return found[0][0] if found else None

    def _versions(self) -> Versions:
        """Return the present versions. Within a transaction, they are those at its beginning."""
        if self._versions_now is not None:
            return self._versions_now
        names = tables.VERSION, tables.GENERATION
        found = dict(self.all("SELECT name, value FROM meta WHERE name IN (?, ?)", names))
        return Versions(*(int(found.get(name, 0)) for name in names))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Statements]:
        """Run the block as one transaction. At its end, ``_count`` was called if anything was changed."""
        with sqlite.transaction(self._db, self._scope, BUSY_SECONDS):
            yield FileStatements(self._db, self._scope, 0)

    def _count(self, rows: Statements, after: Versions) -> None:
        """Store the versions."""
        pairs = zip((tables.VERSION, tables.GENERATION), after, strict=True)
        rows.do(tables.PUT_META, [pair for pair in pairs if pair != (tables.GENERATION, 0)])

    def change_cipher(self, cipher: Cipher) -> None:
        """Store everything under another key, or in clear, and use that key from now on."""
        tables.convert(self._db, self._codec, cipher, self._scope)
        self._codec = MessageCodec(cipher)
        self._use_key()
        self._in_file = not cipher.active
        self._words = self._db if self._in_file else None

    # -- writing -------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def writing(self) -> Iterator[Writing]:
        """Run the block as one transaction. What is kept in memory of the index follows when it is stored."""
        with self._transaction() as rows:
            before = after = self._versions()
            self._versions_now = before
            try:
                writing = Writing(rows, self._codec, in_file=self._in_file)
                yield writing
            finally:
                self._versions_now = None
            if writing.changed:
                after = Versions(before.version + 1, before.generation + writing.erased)
                self._count(rows, after)
        order = self._kept_order()
        with held(order.lock, self._scope):
            if writing.changed and order.versions == before:
                for change in writing.changes:
                    change(order)
                order.versions = after
            order.recent = after, writing.recent

    def forget(self, numbers: Collection[int]) -> None:
        """Empty the texts of rows for good, in such a way that no page of the file keeps them."""
        with self.writing() as writing:
            present = (self.units(some) for some in _batches(list(numbers), _MOST_VALUES))
            writing.forget(number for units in present for unit in units for number in unit.ids)
            writing.leave_no_traces()
            if self._database is not None:
                conversion.mark_old_pages(self._database)
        if self._database is not None:
            conversion.forget_old_pages(self._database, self._scope)

    def rebuild_index(self) -> int:
        """Make the index of words again, also that in memory; return how many rows a search may find."""
        with self.writing() as writing:
            writing.changed = writing.erased = True
            if self._in_file:
                tables.rebuild_words(self._db, self._codec)
        return int(self.all(f"SELECT count(*) {tables.FOUND_ROWS}")[0][0])

    # -- what is kept in memory ----------------------------------------------------------------------------------
    def _kept_order(self) -> Order:
        return process().one(_orders).get_or_make((self._place, self.cipher.mark), Order)

    @cached_property
    def _place(self) -> str:
        return os.path.realpath(self.path)

    def recent(self) -> Any:
        """Return what the last writing has left as ``recent``, if nothing was written since; else None."""
        found = self._kept_order().recent
        return found[1] if found is not None and found[0] == self._versions() else None

    @contextlib.contextmanager
    def order(self) -> Iterator[Order]:
        """Hold the rows in their order, as they are in the index now."""
        order = self._kept_order()
        with held(order.lock, self._scope):
            if not self.exists:
                order.clear()
            elif order.versions != (versions := self._versions()):
                if order.versions.generation != versions.generation:
                    order.forget_words()
                self._renew(order)
                if not self._in_file:
                    self._load_words(order)
                order.versions = versions
            if self.exists and not self._in_file:
                self._words = order.index
            order.lay()
            yield order

    def _renew(self, order: Order) -> None:
        """Read the rows again, as far as they were written since they were read last."""
        order.clear()
        self._put(order, SETTLED)

    def _put(self, order: Order, where: str, *values: object) -> None:
        decode = self._codec.decode_text
        columns = "id, conversation, place, role, speaker, words, said, state"
        rows = self.all(f"SELECT {columns} FROM messages WHERE {where} ORDER BY conversation, place, id", values)
        for count, (number, conversation, place, role, speaker, words, said, state) in enumerate(rows):
            if count % _BATCH == 0:
                raise_if_cancelled(self._scope)
            order.put(number, conversation, Entry(place, role, decode(speaker), words, said, state))

    def _load_words(self, order: Order) -> None:
        """Index the words of rows in memory, as far as they are not."""
        decode = self._codec.decode_text
        missing = order.without_words()
        with order.adding() if missing else contextlib.nullcontext():
            for some in _batches(missing, _MOST_VALUES):
                raise_if_cancelled(self._scope)
                where = f"id IN ({', '.join('?' * len(some))})"
                for number, *texts in self.all(f"SELECT id, text, when_words FROM messages WHERE {where}", some):
                    words, dates = (" ".join(index_words(decode(text))) for text in texts)
                    if number in order.indexed:
                        # Its time has changed in another process.
                        order.drop_words(number, words, order.indexed[number][1])
                    order.add_words(number, words, dates, order.entry(number).said)

    # -- conversations -------------------------------------------------------------------------------------------
    def keys(self, messages: Iterable[PathMessage]) -> list[Keys]:
        """Return the keys of messages as they are stored."""
        encode = self._codec.encode_key
        return [tuple(encode(bytes.fromhex(key)) for key in message.keys) for message in messages]

    def keys_of(self, units: Iterable[Unit], history: Sequence[PathMessage]) -> list[str]:
        """Return for each unit the key that a message of ``history`` has; "" if none has it."""
        names = self._names(history)
        rows = (unit.rows[0] for unit in units)
        return [names.get(row.key) or names.get(row.key2 or b"") or "" for row in rows]

    def _names(self, history: Iterable[PathMessage]) -> dict[bytes, str]:
        encode = self._codec.encode_key
        return {encode(bytes.fromhex(key)): key for message in history for key in message.keys}

    def known(self, history: Sequence[PathMessage]) -> list[Known]:
        """Return the conversations in which a message of ``history`` stands, as far as they concern it."""
        names = self._names(history)
        chats = defaultdict[int, dict[str, list[Place]]](lambda: defaultdict(list))
        for some in _batches(list(names), _MOST_VALUES):
            marks = ", ".join("?" * len(some))
            where = f"key IN ({marks}) OR key2 IN ({marks})"
            for conversation, at, state, key, key2 in self.all(
                f"SELECT conversation, place, state, key, key2 FROM messages WHERE {where}", (*some, *some)
            ):
                for name in {names[stored] for stored in (key, key2) if stored in names}:
                    chats[conversation][name].append(Place(at, state in (ON_PATH, PROVISIONAL)))
        return [self._known(number, places, history) for number, places in chats.items()]

    def _known(self, number: int, places: dict[str, list[Place]], history: Sequence[PathMessage]) -> Known:
        used = self.all("SELECT used FROM conversations WHERE id = ?", (number,))
        # More than twice the history is as good as any more.
        count = f"SELECT count(*) FROM (SELECT 1 FROM messages WHERE {_FIRST} LIMIT ?) AS counted"
        length = self.all(count, (number, 2 * len(history) + 1))[0][0]
        first = self.keys_of(self.path_units(number, limit=4), history)
        return Known(number, used[0][0] if used else 0, first, length, {key: _whole(at) for key, at in places.items()})

    def is_tentative(self, number: int) -> bool:
        found = self.all("SELECT tentative FROM conversations WHERE id = ?", (number,))
        return bool(found and found[0][0])

    def chat_facts(self, number: int) -> ChatFacts:
        return ChatFacts.read(self._codec.decode_text(self._meta(f"{tables.CHAT}{number}")))

    def stretch(self, number: int, place: float) -> list[Unit]:
        """Return all rows of a conversation from a place on, in order."""
        return self._units("conversation = ? AND place >= ? ORDER BY place, id", (number, place))

    def place_before(self, number: int, place: float) -> float | None:
        """Return the place of the last row of a conversation before a place, whatever its state; None without one."""
        found = self.all("SELECT max(place) FROM messages WHERE conversation = ? AND place < ?", (number, place))
        return None if not found else found[0][0]

    def path_units(
        self, number: int, *, start: float | None = None, before: float | None = None, limit: int
    ) -> list[Unit]:
        """Return messages on the path: the first ones, those from ``start`` on, or the last ones before a place."""
        where = f"conversation = ? AND {_SHOWN} AND place "
        end = f"(SELECT place FROM messages WHERE {_FIRST} AND place "
        if before is not None:
            end += "< ? ORDER BY place DESC LIMIT 1 OFFSET ?)"
            values = (number, before, number, before, limit - 1, _FIRST_PLACE)
            return self._units(f"{where} < ? AND place >= coalesce({end}, ?) ORDER BY place, id", values)
        least = start if start is not None else _FIRST_PLACE
        end += ">= ? ORDER BY place LIMIT 1 OFFSET ?)"
        values = (number, least, number, least, limit, -_FIRST_PLACE)
        return self._units(f"{where} >= ? AND place < coalesce({end}, ?) ORDER BY place, id", values)

    def units(self, numbers: Sequence[int]) -> list[Unit]:
        """Return the rows with these ids, as messages."""
        marks = ", ".join("?" * len(numbers))
        return self._units(f"id IN ({marks}) ORDER BY place, id", numbers) if numbers else []

    def _units(self, where: str, values: Sequence[object]) -> list[Unit]:
        return units_of(StoredRow(*row) for row in self.all(f"SELECT {COMPARED} FROM messages WHERE {where}", values))

    # -- reading -------------------------------------------------------------------------------------------------
    def rows(self, numbers: Sequence[int]) -> list[MessageRow]:
        """Return the messages with these ids, in their order; missing ones are left out."""
        found: dict[int, MessageRow] = {}
        for some in _batches(numbers, _MOST_VALUES):
            marks = ", ".join("?" * len(some))
            for row in self.all(f"SELECT {_ROW} FROM messages WHERE id IN ({marks})", some):
                found[row[0]] = self._in_clear(MessageRow(*row))
        return [found[number] for number in numbers if number in found]

    def _in_clear(self, row: MessageRow) -> MessageRow:
        if not self._codec.active:
            return row
        decode = self._codec.decode_text
        return row._replace(speaker=decode(row.speaker), text=decode(row.text), when_words=decode(row.when_words))

    def all_messages(self) -> Iterator[tuple[Unit, list[MessageRow]]]:
        """Yield all messages that are not forgotten, each with its rows, in the order of the conversations."""
        for (number,) in self.all("SELECT DISTINCT conversation FROM messages ORDER BY conversation"):
            units = [unit for unit in self.stretch(number, _FIRST_PLACE) if unit.rows[0].state != tables.FORGOTTEN]
            rows = {row.id: row for row in self.rows([one for unit in units for one in unit.ids])}
            # Others may drop rows in the meantime.
            yield from ((unit, [rows[one] for one in unit.ids]) for unit in units if rows.keys() >= set(unit.ids))

    def stored_key(self, key: str) -> bytes:
        """Return a key of a message, 16 hexadecimal digits, as it is stored; b"" for another text."""
        try:
            return self._codec.encode_key(bytes.fromhex(key))
        # Edited by hand.
        except ValueError:
            return b""

    def known_by(self, key: str) -> list[MessageRow]:
        """Return the rows with a key, 16 hexadecimal digits."""
        stored = self.stored_key(key)
        found = self.all("SELECT id FROM messages WHERE key = ? OR key2 = ? ORDER BY id", (stored, stored))
        return self.rows([row[0] for row in found])

    def undecodable(self) -> list[int]:
        """Return the ids of the rows whose tokens do not decrypt."""
        numbers = [row[0] for row in self.all("SELECT id FROM messages ORDER BY id")]
        return [number for some in _batches(numbers, _BATCH) for number in self._lost(some)]

    def _lost(self, numbers: Sequence[int]) -> list[int]:
        try:
            self.rows(numbers)
        except DataKeyError:
            half = len(numbers) // 2
            return [*self._lost(numbers[:half]), *self._lost(numbers[half:])] if half else list(numbers)
        return []

    def newest(self, limit: int, behind: int | None = None) -> list[MessageRow]:
        """Return rows that are not forgotten, the newest conversation first, and in each the newest message.

        ``behind``: only those that follow the row with this id.
        """
        order = "c.used, m.conversation, m.place, m.id"
        source = "FROM messages m JOIN conversations c ON c.id = m.conversation WHERE"
        where, values = f"m.state <> {tables.FORGOTTEN}", list[object]()
        if behind is not None:
            where += f" AND ({order}) < (SELECT {order} {source} m.id = ?)"
            values.append(behind)
        descending = ", ".join(f"{column} DESC" for column in order.split(", "))
        found = self.all(f"SELECT m.id {source} {where} ORDER BY {descending} LIMIT ?", (*values, limit))
        return self.rows([row[0] for row in found])

    def survey(self) -> Survey:
        """Return how many rows there are, without reading a text."""
        found = self.all(
            "SELECT m.state, c.tentative, count(*), count(m.said), min(m.said), max(m.said) FROM messages m "
            "JOIN conversations c ON c.id = m.conversation GROUP BY m.state, c.tentative"
        )
        kept = [row for row in found if row[0] != tables.FORGOTTEN]
        rows = sum(row[2] for row in kept)
        times = [time for row in kept for time in row[4:] if time is not None]
        return Survey(
            rows,
            min(times, default=None),
            max(times, default=None),
            rows - sum(row[3] for row in kept),
            sum(row[2] for row in kept if row[0] == tables.ELSEWHERE),
            sum(row[2] for row in kept if row[0] == PROVISIONAL),
            sum(row[2] for row in kept if row[1]),
            sum(row[2] for row in found) - rows,
        )

    # -- vectors -------------------------------------------------------------------------------------------------
    def without_vectors(self, model: str, words: int, limit: int) -> list[MessageRow]:
        """Return the oldest messages of at least so many words that have no vector of this model."""
        found = self.all(
            f"SELECT id {tables.FOUND_ROWS} AND words >= ? AND NOT EXISTS "
            "(SELECT 1 FROM message_embeddings WHERE message_id = messages.id AND model = ?) ORDER BY id LIMIT ?",
            (words, model, limit),
        )
        return self.rows([number for (number,) in found])

    def add_vectors(self, vectors: Sequence[tuple[int, bytes]], model: str) -> None:
        """Store or replace a model's vectors of messages, as 32-bit floats."""
        with self.writing() as writing:
            writing.recent = self.recent()
            writing.add_vectors(vectors, model)

    def similarities(self, vector: Sequence[float], model: str) -> dict[int, float]:
        """Return for each message with a vector of this model how similar that is, from -1 to 1."""
        if not self.exists:
            return {}
        vectors = vectors_of(self._place, model, self.cipher)
        return vectors.current(self._rows_state, lambda known: self._vectors(model, known), self._scope).similarities(
            vector
        )

    def _rows_state(self) -> RowsState:
        # Ids are not used again, and vectors of deleted messages do no harm: only another file begins again.
        first = tuple(self.all("SELECT id, key, seen FROM messages ORDER BY id LIMIT 1"))
        return RowsState((first, self._versions()), first)

    def _vectors(self, model: str, known: Collection[int]) -> list[tuple[int, bytes]]:
        """Return the vectors of a model but those of the given messages."""
        numbers = self.all("SELECT message_id FROM message_embeddings WHERE model = ?", (model,))
        found: list[tuple[int, bytes]] = []
        for some in _batches([number for (number,) in numbers if number not in known], _MOST_VALUES):
            raise_if_cancelled(self._scope)
            where = f"model = ? AND message_id IN ({', '.join('?' * len(some))})"
            rows = self.all(f"SELECT message_id, vector FROM message_embeddings WHERE {where}", (model, *some))
            found += [(number, self._codec.decode_vector(blob)) for number, blob in rows]
        return found

    # -- searching, inside ``order`` -----------------------------------------------------------------------------
    def message_count(self, *, stored: bool = False) -> int:
        """Return the number of messages of the conversations as they are now; ``stored``: of all that are stored."""
        statement = tables.COUNT_STORED if stored else tables.COUNT_MESSAGES
        return int(next(iter(self.all(statement)), (0,))[0])

    def occurrences(self, term: Term) -> Occurrences:
        """Return where a term occurs, among all rows in the index of words."""
        words = _any_of(term)
        full = self._matches(f"{{text}} : ({words})")
        begun: list[int] = []
        if term.beginning:
            known = set(full)
            begun = [row for row in self._matches(f'{{text}} : "{term.beginning}" *') if row not in known]
        return Occurrences(full, begun, self._matches(f"{{when_words}} : ({words})"))

    def count(self, term: Term) -> int:
        """Return the number of rows whose text holds one of the words."""
        return int(self._search("count(*)", f"{{text}} : ({_any_of(term)})")[0][0]) if self._words is not None else 0

    def _matches(self, query: str) -> list[int]:
        return [row[0] for row in self._search("rowid", query)]

    def _search(self, what: str, query: str) -> list[tuple[Any, ...]]:
        if self._words is None:
            return []
        statement = f"SELECT {what} FROM messages_fts WHERE messages_fts MATCH ?"
        return FileStatements(self._words, self._scope, BUSY_SECONDS).all(statement, (query,))


def _any_of(term: Term) -> str:
    return " OR ".join(f'"{word}"' for word in term.words)


def _whole(places: Iterable[Place]) -> list[Place]:
    """Return the places in order, of a long message that of its first part alone."""
    found = sorted(places)
    return found[:1] + [at for before, at in itertools.pairwise(found) if at.at - before.at >= 2 * PART]


def _batches(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _orders() -> LatestUsed[Order]:
    return LatestUsed(MOST_ORDERS)
