"""A database of memories: how it is opened, its tables, its index of words, and how values are stored.

Texts and vectors are stored in clear, or as the tokens of a key.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import math
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from Middleware.exceptions import DataKeyError
from Middleware.utilities import encryption_utils, sqlite
from Middleware.utilities.conversations.message_keys import KEY_DIGITS
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Middleware.utilities.text_utils import without_surrogates

INDEX_TABLE = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS memories_fts USING fts5(title, summary, entities, key_phrases, "
    "memory_text_unweighted, tokenize='porter')"
)
INSERT_INDEX = (
    "INSERT INTO memories_fts (rowid, title, summary, entities, key_phrases, memory_text_unweighted) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
EMBEDDINGS_TABLE = (
    "CREATE TABLE IF NOT EXISTS memory_embeddings (memory_id INTEGER NOT NULL, model TEXT NOT NULL, "
    "dim INTEGER NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (memory_id, model))"
)
TOPICS_TABLE = "CREATE TABLE IF NOT EXISTS memory_indexed_topics (memory_id INTEGER PRIMARY KEY)"
"""Which memories have their topics in the index: an index that is not on the disk cannot tell when it is remade."""
PLACES_TABLE = "CREATE TABLE IF NOT EXISTS vector_memory_hash_places (log_id INTEGER PRIMARY KEY, place TEXT NOT NULL)"
"""Where the logged messages stood, as JSON: their hashes alone do not tell equal messages apart."""

CHUNK_TABLES = (
    "CREATE TABLE IF NOT EXISTS vector_memory_sources (log_id INTEGER PRIMARY KEY, sources TEXT, before TEXT, "
    "after TEXT)",
    "CREATE TABLE IF NOT EXISTS memory_chunks (memory_id INTEGER PRIMARY KEY, log_id INTEGER)",
)
"""Which messages the memories of a chunk were made of, and which chunk each is of. Only those that follow edits have
them. If keys are stored as keyed hashes, the key of these stands under the id 0."""
CHUNK_NAMES = frozenset({"vector_memory_sources", "memory_chunks"})

FORGET = (
    "DELETE FROM memories_fts WHERE rowid = ?",
    "DELETE FROM memory_embeddings WHERE memory_id = ?",
    "DELETE FROM memory_indexed_topics WHERE memory_id = ?",
)
"""What belongs to the memory with an id."""
FORGET_ENTRY = (
    "DELETE FROM vector_memory_hash_log WHERE id = ?",
    "DELETE FROM vector_memory_hash_places WHERE log_id = ?",
    "DELETE FROM vector_memory_sources WHERE log_id = ?",
)
"""What belongs to the entry of the log with an id."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS memories (id INTEGER PRIMARY KEY, discussion_id TEXT NOT NULL, "
    "memory_text TEXT NOT NULL, date_added TEXT NOT NULL, metadata_json TEXT)",
    INDEX_TABLE,
    "CREATE TABLE IF NOT EXISTS vector_memory_hash_log (id INTEGER PRIMARY KEY AUTOINCREMENT, "
    "discussion_id TEXT NOT NULL, message_hash TEXT NOT NULL, timestamp DATETIME NOT NULL)",
    EMBEDDINGS_TABLE,
    TOPICS_TABLE,
    PLACES_TABLE,
)
NAMES = frozenset({"memories", "memories_fts", "vector_memory_hash_log", "memory_embeddings", "memory_indexed_topics"})
ALL_NAMES = NAMES | {"vector_memory_hash_places"}
"""With the table that databases made before do not have until they are written to."""

# Characters of one column: models write metadata of any length, and every search reads the index.
MOST_INDEXED = 100_000
# Metadata may be nested deeper than Python's stack.
_DEEPEST = 20

_TOKEN_START = encryption_utils.TOKEN_START.decode("ascii")
RECENCY_BONUS = 1.5


def table_names(connection: sqlite3.Connection) -> frozenset[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return (ALL_NAMES | CHUNK_NAMES) & {row[0] for row in rows}


def create_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES:
        connection.execute(statement)


def create_chunk_tables(connection: sqlite3.Connection) -> None:
    for statement in CHUNK_TABLES:
        connection.execute(statement)


def insert_sources(connection: sqlite3.Connection, entry: int, keys: Sequence[str], after: str | None) -> None:
    """Store what a chunk was made of: the key of the message before it, and those of its messages."""
    values = entry, keys_as_json(keys[1:]), keys[0], after
    connection.execute("INSERT INTO vector_memory_sources VALUES (?, ?, ?, ?)", values)


def parse_metadata(text: str | None) -> dict[str, object]:
    """Return the object in a memory's metadata. Raises ValueError for other metadata."""
    try:
        metadata = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, RecursionError) as error:
        raise ValueError("the metadata of a memory is not JSON") from error
    if not isinstance(metadata, dict):
        raise ValueError("the metadata of a memory is not a JSON object")
    return metadata


def index_row(memory_text: str, metadata: Mapping[str, object], with_topics: bool) -> tuple[str, ...]:
    """Return the five columns of the index, whatever the metadata contains."""
    phrases = index_text(metadata.get("key_phrases"))
    if with_topics:
        phrases = f"{phrases} {index_text(metadata.get('topics'))}"
    return (
        index_text(metadata.get("title")),
        index_text(metadata.get("summary")),
        index_text(metadata.get("entities")),
        phrases[: 2 * MOST_INDEXED],
        without_surrogates(memory_text)[:MOST_INDEXED],
    )


def index_text(value: object) -> str:
    """Return strings unchanged, the items of lists without ``"`` joined by spaces, and "" for null."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        text = " ".join(_words(value)).replace('"', "")
    return without_surrogates(text[:MOST_INDEXED])


def _words(value: object, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST or value is None:
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _words(item, depth + 1)
    else:
        yield str(value)


def recency_score(date: object, now: datetime | None = None) -> float:
    """Return 2.5 for a date that is now or to come, falling towards 1.0 with age; 1.0 for an invalid date."""
    try:
        moment = datetime.fromisoformat(date)  # type: ignore[arg-type]
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        days = ((now or datetime.now(UTC)) - moment).total_seconds() / 86400
    except (TypeError, ValueError, OverflowError):
        return 1.0
    return 1.0 + RECENCY_BONUS * math.exp(-0.01 * max(0.0, days))


def connect(path: str, *, create: bool = False, mode: int | None = None) -> sqlite3.Connection:
    """Return a connection without implicit transactions whose rows are found by column name.

    Args:
        create: create a missing file; otherwise it raises ``sqlite3.OperationalError``.
        mode: permission bits of a new file, and of the files that SQLite creates next to it.
    """
    if create:
        # SQLite would create the file with the umask's bits, readable by others.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666 if mode is None else mode))
    elif not os.path.isfile(path):
        raise sqlite3.OperationalError("there is no such database")
    connection = sqlite3.connect(
        os.path.abspath(path), timeout=sqlite.SLICE_SECONDS, isolation_level=None, check_same_thread=False
    )
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Set row names and the function ``recency_score``, and keep temporary data off the disk."""
    connection.row_factory = sqlite3.Row
    connection.create_function("recency_score", 1, recency_score)
    connection.execute("PRAGMA temp_store = MEMORY")


def is_token(value: object) -> bool:
    """Return whether a stored value is encrypted with any key."""
    return (
        isinstance(value, str)
        and value.startswith(_TOKEN_START)
        and value.isascii()
        and encryption_utils.is_token(value.encode("ascii"))
    )


def sql_is_clear(column: str) -> str:
    """Return an SQL expression that is true for texts that are not encrypted, and false for null.

    It tests what SQLite can test fast, and errs only for texts without any space.
    """
    body = f"rtrim({column}, '=')"
    size = f"(length({column}) / 4 * 3 - length({column}) + length({body}))"
    return (
        f"({column} IS NOT NULL AND (substr({column}, 1, {len(_TOKEN_START)}) <> '{_TOKEN_START}' "
        f"OR length({column}) < 100 OR length({column}) % 4 <> 0 OR {size} % 16 <> 9 "
        f"OR {body} GLOB '*[^A-Za-z0-9_-]*'))"
    )


# The keys of a history are wanted with each request; 2,000 hashes take 4 ms.
@functools.lru_cache(maxsize=50_000)
def stored_key(key: str, hash_key: str) -> str:
    """Return the key of a message as it is stored. A bare hash of a short message could be guessed."""
    return hmac.digest(bytes.fromhex(hash_key), key.encode(), "sha256").hex()[:KEY_DIGITS] if key and hash_key else key


def keys_as_json(keys: Iterable[str]) -> str:
    return json.dumps(list(keys), separators=(",", ":"))


class Codec:
    """Encodes values for storage and decodes them. Tokens are text, those of vectors too.

    Values in clear are decoded with any cipher. A token of another key, or any token without a key, raises
    DataKeyError.
    """

    def __init__(self, cipher: Cipher = NO_CIPHER) -> None:
        self._cipher = cipher
        self.active = cipher.active

    def encode_text(self, text: str | None) -> str | None:
        if text is None:
            return None
        return self._cipher.encrypt(without_surrogates(text).encode()).decode("utf-8")

    def decode_text(self, value: Any) -> Any:
        return self._plain(value).decode("utf-8") if is_token(value) else value

    def new_hash_key(self) -> str:
        """Return a random key for the hashes of keys of messages; "" in clear. It is stored as a text is."""
        return secrets.token_hex(32) if self.active else ""

    def encode_vector(self, vector: bytes) -> bytes | str:
        return self._cipher.encrypt(vector).decode("ascii") if self.active else vector

    def decode_vector(self, value: Any) -> bytes:
        if isinstance(value, str) and not is_token(value):
            raise DataKeyError("a stored vector cannot be read")
        return self._plain(value) if isinstance(value, str) else bytes(value)

    def _plain(self, token: str) -> bytes:
        return self._cipher.decrypt(token.encode("ascii"))
