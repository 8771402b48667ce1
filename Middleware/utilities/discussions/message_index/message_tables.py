"""The file of a message index: how it is opened, its tables, and how values are stored.

Under a key, texts and vectors are tokens, keys of messages are keyed hashes, and the index of words is only in memory.
"""

from __future__ import annotations

import hmac
import secrets
import sqlite3
from collections.abc import Collection

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import sqlite
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory import conversion
from Middleware.utilities.discussions.vector_memory import schema as memory_schema
from Middleware.utilities.discussions.vector_memory.schema import Codec
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher

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
COMPARED = "id, place, key, key2, role, speaker, said, said_from, state"
"""The columns of ``StoredRow``."""
# The states of a row.
ON_PATH, ELSEWHERE, PROVISIONAL, FORGOTTEN = 0, 1, 2, 3
HAS_TEXT = f"state <> {FORGOTTEN}"
SETTLED = "conversation NOT IN (SELECT id FROM conversations WHERE tentative)"
# Names in ``meta``: a number that each write changes; the key of the hashes, as a token; the next id, if rows were
# dropped; and, with the number of a conversation behind it, what is kept of its requests.
VERSION, HASH_KEY, NEXT, CHAT = "version", "hash_key", "next", "chat:"
KEY_BYTES = 8
# A long message has several rows, whose places differ by less than one.
COUNT_MESSAGES = (
    f"SELECT count(DISTINCT conversation || ' ' || CAST(place AS INTEGER)) FROM messages WHERE state <> {FORGOTTEN}"
)

INSERT_WORDS = "INSERT INTO messages_fts (rowid, text, when_words) VALUES (?, ?, ?)"
# Of an index without texts, entries are deleted by naming their words again.
DELETE_WORDS = "INSERT INTO messages_fts (messages_fts, rowid, text, when_words) VALUES ('delete', ?, ?, ?)"

# The rows that a search may find.
FOUND_ROWS = f"FROM messages WHERE {HAS_TEXT} AND {SETTLED}"


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


def connect(path: str, *, create: bool = False, mode: int | None = None) -> sqlite3.Connection:
    """Return a connection without implicit transactions. ``mode``: of a new file, and those that SQLite adds."""
    connection = memory_schema.connect(path, create=create, mode=mode)
    # Rows are many and wide; tuples are read twice as fast.
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
    if cipher.active:
        connection.execute("INSERT INTO meta VALUES (?, ?)", (HASH_KEY, cipher.encrypt(secrets.token_bytes(32))))


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

    The key of the hashes stays, so that no key of a message changes, unless the file had none. Raises sqlite3.Error and
    DataKeyError; then nothing has changed.
    """
    connection.execute("PRAGMA secure_delete = ON")
    with sqlite.transaction(connection, scope):
        # A file that was in clear and is encrypted and decrypted keeps its hashes.
        target = MessageCodec(cipher, source.hash_key or (secrets.token_bytes(32) if cipher.active else b""))
        _convert_rows(connection, source, target)
        if target.hash_key:
            stored = HASH_KEY, cipher.encrypt(target.hash_key)
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", stored)
        # What is kept in memory of the file has its words in another place.
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = ?", (VERSION,))
        if cipher.active:
            connection.execute(f"DROP TABLE IF EXISTS {WORDS}")
            conversion.mark_old_pages(connection)
        else:
            rebuild_words(connection, target)
    if cipher.active:
        conversion.forget_old_pages(connection, scope)


def _convert_rows(connection: sqlite3.Connection, source: MessageCodec, target: MessageCodec) -> None:
    def text(value: str | None) -> str | None:
        return target.encode_text(source.decode_text(value)) if value else value

    def key(value: bytes | None) -> bytes | None:
        return value if value is None or source.hash_key else target.encode_key(value)

    rows = connection.execute("SELECT key, key2, speaker, text, when_words, id FROM messages").fetchall()
    connection.executemany(
        "UPDATE messages SET key = ?, key2 = ?, speaker = ?, text = ?, when_words = ? WHERE id = ?",
        ((key(row[0]), key(row[1]), text(row[2]), text(row[3]), text(row[4]), row[5]) for row in rows),
    )
    facts = connection.execute("SELECT value, name FROM meta WHERE name LIKE ?", (f"{CHAT}%",)).fetchall()
    connection.executemany("UPDATE meta SET value = ? WHERE name = ?", ((text(value), name) for value, name in facts))
    vectors = connection.execute("SELECT vector, message_id, model FROM message_embeddings").fetchall()
    connection.executemany(
        "UPDATE message_embeddings SET vector = ? WHERE message_id = ? AND model = ?",
        ((target.encode_vector(source.decode_vector(row[0])), *row[1:]) for row in vectors),
    )


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
