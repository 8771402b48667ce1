"""The tables of a message index, how values are stored, and the file that holds them.

Under a key, texts and vectors are tokens, keys of messages are keyed hashes, and the index of words is only in memory.
The statements of an index are written once, as SQLite has them; a state database translates them.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import sqlite
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory import conversion
from Middleware.utilities.discussions.vector_memory import schema as memory_schema
from Middleware.utilities.discussions.vector_memory.schema import Codec
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, is_token

WORDS = "messages_fts"
INDEX_TABLE = (
    "CREATE VIRTUAL TABLE messages_fts USING fts5(text, when_words, content='', detail='column', "
    "tokenize='porter unicode61 remove_diacritics 2')"
)
TABLES = (
    "CREATE TABLE messages (id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL, place REAL, key BLOB NOT NULL, "
    "key2 BLOB, role TEXT NOT NULL, speaker TEXT, text TEXT NOT NULL, words INTEGER NOT NULL, said INTEGER, "
    "said_from INTEGER NOT NULL, seen INTEGER NOT NULL, state INTEGER NOT NULL, when_words TEXT NOT NULL)",
    "CREATE INDEX messages_key ON messages(key)",
    "CREATE INDEX messages_key2 ON messages(key2) WHERE key2 IS NOT NULL",
    "CREATE INDEX messages_place ON messages(conversation, place)",
    "CREATE TABLE conversations (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, tentative INTEGER NOT NULL)",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB)",
    "CREATE TABLE message_embeddings (message_id INTEGER NOT NULL, model TEXT NOT NULL, vector BLOB NOT NULL, "
    "PRIMARY KEY (message_id, model))",
)
COLUMNS = "id, conversation, place, key, key2, role, speaker, text, words, said, said_from, seen, state, when_words"
COMPARED = "id, place, key, key2, role, speaker, said, said_from, state"
"""The columns of ``StoredRow``."""
# The states of a row.
ON_PATH, ELSEWHERE, PROVISIONAL, FORGOTTEN = 0, 1, 2, 3
HAS_TEXT = f"state <> {FORGOTTEN}"
SETTLED = "conversation NOT IN (SELECT id FROM conversations WHERE tentative)"
# Names in ``meta``: the numbers of ``Versions``; the key of the hashes, in hexadecimal digits, as a token under a key;
# the next id, if rows were dropped; and, with the number of a conversation behind it, what is kept of its requests.
VERSION, GENERATION, HASH_KEY, NEXT, CHAT = "version", "generation", "hash_key", "next", "chat:"
PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
KEY_BYTES = 8
# The parts of a long message stand so close to each other.
PART = 0.001
# Holds for the first part of a message alone.
FIRST_PART = (
    "NOT EXISTS (SELECT 1 FROM messages p WHERE p.conversation = messages.conversation AND p.key = messages.key "
    f"AND p.place < messages.place AND p.place > messages.place - {2 * PART})"
)
COUNT_STORED = f"SELECT count(*) FROM messages WHERE {HAS_TEXT} AND {FIRST_PART}"
COUNT_MESSAGES = COUNT_STORED.replace(HAS_TEXT, f"state IN ({ON_PATH}, {PROVISIONAL})")
# Rows that are converted at once: some megabytes.
_BATCH = 2_000
_START = -1 << 63
_FIRST_BITS = 40

INSERT_WORDS = "INSERT INTO messages_fts (rowid, text, when_words) VALUES (?, ?, ?)"
# Of an index without texts, entries are deleted by naming their words again.
DELETE_WORDS = "INSERT INTO messages_fts (messages_fts, rowid, text, when_words) VALUES ('delete', ?, ?, ?)"

# The rows that a search may find.
FOUND_ROWS = f"FROM messages WHERE {HAS_TEXT} AND {SETTLED}"


class Versions(NamedTuple):
    """Two numbers of an index: each write changes ``version``; one after which words that are kept in memory must be
    forgotten, such as a deletion by the user, also ``generation``."""

    version: int = -1
    generation: int = 0


class Statements(Protocol):
    """What runs the statements of an index."""

    def all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement reads."""

    def do(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Change the index by a statement, once with the values of each row."""


class FileStatements:
    """The statements of a file. They wait for others that write."""

    def __init__(self, database: sqlite3.Connection, scope: CancelScope | None, seconds: float) -> None:
        self._database, self._scope, self._seconds = database, scope, seconds

    def all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            return self._database.execute(statement, values).fetchall()

        return sqlite.when_free(read, self._scope, self._seconds)

    def do(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._database.executemany(statement, rows)


class MessageCodec(Codec):
    """Encodes texts and vectors as ``Codec`` does, and the keys of messages.

    A bare hash of a short message could be guessed, so that keys are hashed again, with a random key of the file.
    """

    def __init__(self, cipher: Cipher = NO_CIPHER, hash_key: bytes = b"") -> None:
        super().__init__(cipher)
        self.hash_key = hash_key

    def encode_key(self, key: bytes) -> bytes:
        """Return a key of ``KEY_BYTES`` bytes as it is stored."""
        return hmac.digest(self.hash_key, key, "sha256")[:KEY_BYTES] if self.hash_key else key

    def decode_vector(self, value: Any) -> bytes:
        # A state database has the bytes of tokens.
        token = isinstance(value, bytes) and self.active and is_token(value)
        return super().decode_vector(value.decode("ascii") if token else value)

    @classmethod
    def read(cls, cipher: Cipher, stored: str | None) -> MessageCodec:
        """Return the codec of an index, from the key of its hashes as it is stored. Raises DataKeyError."""
        if stored is None:
            return cls(cipher)
        token = stored.encode("ascii")
        # What is encrypted with another of the cipher's keys keeps that key.
        cipher = cipher.like(token)
        return cls(cipher, bytes.fromhex(cipher.decrypt(token).decode("ascii")))

    def under(self, cipher: Cipher) -> MessageCodec:
        """Return the codec for the same index under another key, or in clear.

        The key of the hashes stays, so that no key of a message changes, unless the index had no such key.
        """
        # What was in clear and is encrypted and decrypted keeps its hashes.
        return MessageCodec(cipher, self.hash_key or (secrets.token_bytes(32) if cipher.active else b""))

    @property
    def cipher(self) -> Cipher:
        return self._cipher

    @property
    def stored_hash_key(self) -> str:
        return self._cipher.encrypt(self.hash_key.hex().encode()).decode("ascii")


def connect(path: str, *, create: bool = False, mode: int | None = None) -> sqlite3.Connection:
    """Return a connection without implicit transactions. ``mode``: of a new file, and those that SQLite adds."""
    connection = memory_schema.connect(path, create=create, mode=mode)
    # Rows are many and wide; tuples are read twice as fast.
    connection.row_factory = None
    return connection


def connect_without_log(path: str) -> sqlite3.Connection:
    """Return a connection that only reads, and makes no files: for a folder in which nothing can be written.

    What an interrupted write has left in the log is not read.
    """
    address = f"{Path(os.path.abspath(path)).as_uri()}?immutable=1"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    memory_schema.prepare(connection)
    connection.row_factory = None
    return connection


def table_names(connection: sqlite3.Connection) -> frozenset[str]:
    """Return the names of the tables; none for a file that is not an index yet."""
    names = frozenset(row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    return names if "message_embeddings" in names else frozenset()


def create_tables(connection: sqlite3.Connection, cipher: Cipher) -> None:
    """Create the tables, with the index of words, or with the key for hashes if ``cipher`` is active."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchone():
        # Another process was quicker.
        return
    for statement in TABLES if cipher.active else (*TABLES, INDEX_TABLE):
        connection.execute(statement)
    begin_to_count(connection)
    if cipher.active:
        connection.execute(PUT_META, (HASH_KEY, MessageCodec().under(cipher).stored_hash_key))


def begin_to_count(connection: sqlite3.Connection) -> None:
    """Give a new file a version that no other file at its place has had."""
    connection.execute(PUT_META, (VERSION, secrets.randbits(_FIRST_BITS)))


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    sqlite.use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")


# -- another key -------------------------------------------------------------------------------------------------------


def encrypt(
    connection: sqlite3.Connection, names: Collection[str], cipher: Cipher, scope: CancelScope | None = None
) -> None:
    """Encrypt a file that is still in clear, or go on with what an interrupted encryption or deletion has left."""
    if cipher.active and WORDS in names:
        convert(connection, MessageCodec(), cipher, scope)
    else:
        conversion.forget_old_pages(connection, scope)


def convert(
    connection: sqlite3.Connection, source: MessageCodec, cipher: Cipher, scope: CancelScope | None = None
) -> None:
    """Store everything as tokens of ``cipher``, or in clear, in one transaction.

    Raises sqlite3.Error and DataKeyError; then nothing has changed.
    """
    connection.execute("PRAGMA secure_delete = ON")
    with sqlite.transaction(connection, scope):
        target = source.under(cipher)
        convert_rows(FileStatements(connection, scope, 0), source, target)
        # What is kept in memory of the file has its words in another place.
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = ?", (VERSION,))
        if cipher.active:
            connection.execute(f"DROP TABLE IF EXISTS {WORDS}")
            conversion.mark_old_pages(connection)
        else:
            rebuild_words(connection, target)
    if cipher.active:
        conversion.forget_old_pages(connection, scope)


def convert_rows(rows: Statements, source: MessageCodec, target: MessageCodec) -> None:
    """Store all rows, and the key of the hashes, as ``target`` does, inside a transaction. Raises DataKeyError."""

    def text(value: str | None) -> str | None:
        return target.encode_text(source.decode_text(value)) if value else value

    def key(value: bytes | None) -> bytes | None:
        return value if value is None or source.hash_key else target.encode_key(value)

    after: Sequence[object] = (_START,)
    columns = "key, key2, speaker, text, when_words, id"
    while some := rows.all(f"SELECT {columns} FROM messages WHERE id > ? ORDER BY id LIMIT ?", (*after, _BATCH)):
        rows.do(
            "UPDATE messages SET key = ?, key2 = ?, speaker = ?, text = ?, when_words = ? WHERE id = ?",
            [(key(row[0]), key(row[1]), text(row[2]), text(row[3]), text(row[4]), row[5]) for row in some],
        )
        after = some[-1][5:]
    facts = rows.all("SELECT value, name FROM meta WHERE name LIKE ?", (f"{CHAT}%",))
    rows.do("UPDATE meta SET value = ? WHERE name = ?", [(text(value), name) for value, name in facts])
    after = _START, ""
    while some := rows.all(
        "SELECT vector, message_id, model FROM message_embeddings WHERE (message_id, model) > (?, ?) "
        "ORDER BY message_id, model LIMIT ?",
        (*after, _BATCH),
    ):
        rows.do(
            "UPDATE message_embeddings SET vector = ? WHERE message_id = ? AND model = ?",
            [(target.encode_vector(source.decode_vector(row[0])), *row[1:]) for row in some],
        )
        after = some[-1][1:]
    if target.hash_key:
        rows.do(PUT_META, [(HASH_KEY, target.stored_hash_key)])


def rebuild_words(connection: sqlite3.Connection, codec: MessageCodec) -> None:
    """Make the index of words of a file in clear again."""
    connection.execute(f"DROP TABLE IF EXISTS {WORDS}")
    connection.execute(INDEX_TABLE)
    write_words(connection, codec)


def write_words(connection: sqlite3.Connection, codec: MessageCodec) -> None:
    """Fill the index of words, which is empty, from the rows."""
    rows = connection.execute(f"SELECT id, text, when_words {FOUND_ROWS}").fetchall()
    decode = codec.decode_text
    words = ((number, *(" ".join(index_words(decode(text))) for text in texts)) for number, *texts in rows)
    connection.executemany(INSERT_WORDS, words)
