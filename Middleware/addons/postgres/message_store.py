"""The messages of a discussion in the state database: the statements of an index, translated for PostgreSQL.

Each write locks the row of the discussion, as those of searchable memories do. There is no index of words in the
database: each worker keeps one in memory. It reads the rows that were written since, by ``version``; all of them, if
rows were dropped; and begins again when ``message_generation`` was counted up.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from Middleware.addons.postgres.database import Database, Row, StateConnection
from Middleware.addons.postgres.memory_rows import CREATE, locked
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussion_state import MESSAGE_INDEX
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.message_tables import (
    HASH_KEY,
    SETTLED,
    MessageCodec,
    Statements,
    Versions,
    convert_rows,
)
from Middleware.utilities.discussions.message_index.order import Order
from Middleware.utilities.discussions.vector_memory.schema import is_token
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.text_utils import storable

# The tables of a file; of those whose rows are replaced, the primary key and the other columns.
_TABLES = {
    "messages": ("messages", "", ()),
    "conversations": ("message_conversations", "id", ("used", "tentative")),
    "meta": ("message_meta", "name", ("value",)),
    "message_embeddings": ("message_embeddings", "message_id, model", ("vector",)),
}
MESSAGE_TABLES = tuple(table for table, _, _ in _TABLES.values())
_NAME = "|".join(_TABLES)
_INSERT = re.compile(rf"INSERT( OR REPLACE)? INTO ({_NAME}) (VALUES \(|SELECT )(.*)")
_UPDATE = re.compile(rf"UPDATE ({_NAME}) SET (.*) WHERE (.*)")
_DELETE = re.compile(rf"DELETE FROM ({_NAME}) WHERE (.*)")
# What follows a table is its other name, or a keyword.
_READ = re.compile(rf"\b(FROM|JOIN) ({_NAME})\b(?= ([a-z])|)")
_OWN = "discussion = %(discussion)s"

_FIND = "SELECT id, message_version FROM wilmer.discussions WHERE space = %s AND key_hash = %s AND discussion_id = %s"
_VERSIONS = "SELECT message_version, message_generation FROM wilmer.discussions WHERE id = %s"
_COUNT = (
    "UPDATE wilmer.discussions SET message_version = message_version + 1, message_generation = message_generation + "
    "%s WHERE id = %s"
)
_NO_VERSIONS = Versions()
_MARKS = f"SELECT count(*), coalesce(sum(id), 0)::bigint FROM messages WHERE {SETTLED}"


@cache
def translated(statement: str) -> str:
    """Return a statement of an index as PostgreSQL runs it, for the rows of one discussion."""
    if found := _INSERT.fullmatch(statement):
        replace, name, values, rest = found.groups()
        table, key, columns = _TABLES[name]
        version = "%(version)s, " if name == "messages" else ""
        news = ", ".join(f"{column} = excluded.{column}" for column in columns)
        conflict = f" ON CONFLICT (discussion, {key}) DO UPDATE SET {news}" if replace else ""
        rest = _READ.sub(_of_discussion, rest)
        return _numbered(f"INSERT INTO wilmer.{table} {values}%(discussion)s, {version}{rest}{conflict}")
    if found := _UPDATE.fullmatch(statement):
        version = "version = %(version)s, " if found[1] == "messages" else ""
        table = _TABLES[found[1]][0]
        return _numbered(f"UPDATE wilmer.{table} SET {version}{found[2]} WHERE {_OWN} AND ({found[3]})")
    if found := _DELETE.fullmatch(statement):
        return _numbered(f"DELETE FROM wilmer.{_TABLES[found[1]][0]} WHERE {_OWN} AND ({found[2]})")
    return _numbered(_READ.sub(_of_discussion, statement))


def _of_discussion(found: re.Match[str]) -> str:
    name = "" if found[3] else f" AS {found[2]}"
    return f"{found[1]} (SELECT * FROM wilmer.{_TABLES[found[2]][0]} WHERE {_OWN}){name}"


def _numbered(statement: str) -> str:
    first, *others = statement.split("?")
    return first + "".join(f"%({number})s{part}" for number, part in enumerate(others))


class DiscussionStatements:
    """Runs the statements of an index for one discussion. Changes are sent together.

    Args:
        read: returns the rows of a statement.
        connection: of a transaction; None: nothing is changed.
        before: the versions that are counted up by the transaction.
    """

    def __init__(
        self,
        read: Callable[[str, Mapping[str, object]], list[Row]],
        discussion: int,
        connection: StateConnection | None = None,
        before: Versions = _NO_VERSIONS,
    ) -> None:
        self._read, self._connection, self._before = read, connection, before
        self._own = {"discussion": discussion, "version": before.version + 1}
        self._statement, self._changes = "", list[dict[str, object]]()

    @classmethod
    def reading(cls, connection: StateConnection, discussion: int) -> DiscussionStatements:
        return cls(lambda statement, values: connection.execute(statement, values).fetchall(), discussion)

    @classmethod
    def locking(cls, connection: StateConnection, discussion: int) -> DiscussionStatements:
        """Lock the row of a discussion until the transaction ends. Raises StateConflictError."""
        before = Versions(*locked(connection, f"{_VERSIONS} FOR NO KEY UPDATE", discussion))
        return cls(cls.reading(connection, discussion)._read, discussion, connection, before)

    @property
    def before(self) -> Versions:
        return self._before

    def all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        self.flush()
        return self._read(translated(statement), self._named(values))

    def do(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        if statement != self._statement:
            self.flush()
            self._statement = statement
        self._changes += map(self._named, rows)

    def flush(self) -> None:
        """Send the changes that were not sent yet."""
        changes, self._changes = self._changes, []
        if changes:
            assert self._connection is not None, "only inside a transaction"
            with self._connection.cursor() as cursor:
                cursor.executemany(translated(self._statement), changes)

    def end(self, *, forgetting: bool) -> None:
        """Send what is left, and count up; ``forgetting``: the words in the memory of workers are no longer true."""
        self.flush()
        assert self._connection is not None, "only inside a transaction"
        self._connection.execute(_COUNT, (int(forgetting), self._own["discussion"]))

    def convert(self, source: MessageCodec, cipher: Cipher) -> None:
        """Store everything as tokens of ``cipher``, or in clear. Raises DataKeyError."""
        convert_rows(self, source, source.under(cipher))
        self.end(forgetting=True)

    def _named(self, values: Sequence[object]) -> dict[str, object]:
        texts = (storable(value) if isinstance(value, str) else value for value in values)
        return {**self._own, **{str(number): value for number, value in enumerate(texts)}}


class PostgresMessages(MessageIndex):
    """The messages of a discussion in the state database.

    Opened for reading, a missing discussion is one without messages, and nothing is created. Opened for writing, its
    row is made, and rows in clear become tokens if the cipher is active. Methods raise StateUnavailableError, and
    StateConflictError if another worker holds the row of the discussion for too long, or has removed it.
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
        self._state_database, self._name = database, (space, key_hash, discussion_id)
        self._number = 0
        super().__init__(f"{discussion_id}/{MESSAGE_INDEX}", write=write, cipher=cipher, scope=scope)

    def _open(self, write: bool) -> None:
        database, scope = self._state_database, self._scope
        found = database.read(_FIND, self._name, scope)
        if not found and write:
            database.run(lambda connection: connection.execute(CREATE, self._name), again=True, scope=scope)
            found = database.read(_FIND, self._name, scope)
        for number, version in found:
            # There is a row for documents and memories, too.
            if not (write or version):
                continue
            self._number = number
            self._rows = DiscussionStatements(partial(database.read, scope=scope), number)
            self._use_key()
            if write and self.cipher.active and self._is_clear():
                self.change_cipher(self.cipher)

    def _is_clear(self) -> bool:
        return not is_token(self._meta(HASH_KEY))

    @property
    def _place(self) -> str:
        # Another discussion with the same name, after it was removed, begins to count again.
        return "\0".join((self._state_database.place, *self._name, str(self._number)))

    def _versions(self) -> Versions:
        if self._versions_now is not None:
            return self._versions_now
        rows = self._state_database.read(_VERSIONS, (self._number,), self._scope)
        return Versions(*rows[0]) if rows else Versions()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Statements]:
        outside = self._rows
        with self._state_database.transaction(self._scope) as connection:
            self._rows = rows = DiscussionStatements.locking(connection, self._number)
            self._versions_now = rows.before
            try:
                yield rows
            finally:
                self._rows, self._versions_now = outside, None

    def _count(self, rows: Statements, after: Versions) -> None:
        assert isinstance(rows, DiscussionStatements)
        rows.end(forgetting=after.generation > rows.before.generation)

    def change_cipher(self, cipher: Cipher) -> None:
        with self._state_database.transaction(self._scope) as connection:
            DiscussionStatements.locking(connection, self._number).convert(self._codec, cipher)
        self._codec = MessageCodec(cipher)
        self._use_key()

    def _renew(self, order: Order) -> None:
        # Rows that are still to be read have other words in another generation, but the same places.
        if order.versions.version >= 0:
            self._put(order, f"version > ? AND {SETTLED}", order.versions.version)
            if self.all(_MARKS) == [order.marks]:
                return
        super()._renew(order)
