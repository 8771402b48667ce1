"""The file of a message index: how it is opened, its tables, and how values are stored.

Under a key, texts and vectors are tokens, keys of messages are keyed hashes, and the index of words is only in memory.
"""

from __future__ import annotations

import hmac
import secrets
import sqlite3

from Middleware.utilities import sqlite
from Middleware.utilities.discussions.vector_memory import schema as memory_schema
from Middleware.utilities.discussions.vector_memory.schema import Codec
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher

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
# The states of a row.
ON_PATH, ELSEWHERE, PROVISIONAL, FORGOTTEN = 0, 1, 2, 3
# The entries of ``meta``: a number that each write changes, and the key of the hashes, as a token.
VERSION, HASH_KEY = "version", "hash_key"
KEY_BYTES = 8

INSERT_WORDS = "INSERT INTO messages_fts (rowid, text, when_words) VALUES (?, ?, ?)"
# Of a contentless index, entries are deleted by naming their words again.
DELETE_WORDS = "INSERT INTO messages_fts (messages_fts, rowid, text, when_words) VALUES ('delete', ?, ?, ?)"


class MessageCodec(Codec):
    """Encodes texts and vectors as ``Codec`` does, and the keys of messages.

    A bare hash of a short message could be guessed, so that keys are hashed again, with a random key of the file.
    """

    def __init__(self, cipher: Cipher = NO_CIPHER, hash_key: bytes = b"") -> None:
        super().__init__(cipher)
        self._hash_key = hash_key

    def encode_key(self, key: bytes) -> bytes:
        """Return a key of ``KEY_BYTES`` bytes as it is stored."""
        return hmac.digest(self._hash_key, key, "sha256")[:KEY_BYTES] if self._hash_key else key


def connect(path: str, *, create: bool = False, mode: int | None = None) -> sqlite3.Connection:
    """Return a connection without implicit transactions. ``mode``: of a new file, and those that SQLite adds."""
    connection = memory_schema.connect(path, create=create, mode=mode)
    # Rows are many and wide; tuples are read twice as fast.
    connection.row_factory = None
    return connection


def has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchone() is not None


def create_tables(connection: sqlite3.Connection, *, indexed: bool) -> None:
    """Create the tables, with the index of words if the file has one."""
    for statement in TABLES:
        connection.execute(statement)
    if indexed:
        connection.execute(INDEX_TABLE)


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    sqlite.use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")


def new_hash_key() -> bytes:
    return secrets.token_bytes(32)
