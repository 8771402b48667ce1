"""The tables of a memory database, and what of a memory goes into its index of words."""
from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping

from Middleware.utilities.text_utils import without_surrogates

INDEX_TABLE = ("CREATE VIRTUAL TABLE IF NOT EXISTS memories_fts USING fts5(title, summary, entities, key_phrases, "
               "memory_text_unweighted, tokenize='porter')")
INSERT_INDEX = ("INSERT INTO memories_fts (rowid, title, summary, entities, key_phrases, memory_text_unweighted) "
                "VALUES (?, ?, ?, ?, ?, ?)")
EMBEDDINGS_TABLE = ("CREATE TABLE IF NOT EXISTS memory_embeddings (memory_id INTEGER NOT NULL, model TEXT NOT NULL, "
                    "dim INTEGER NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (memory_id, model))")
TOPICS_TABLE = "CREATE TABLE IF NOT EXISTS memory_indexed_topics (memory_id INTEGER PRIMARY KEY)"
"""Which memories have their topics in the index: an index that is not on the disk cannot tell when it is remade."""
PLACES_TABLE = ("CREATE TABLE IF NOT EXISTS vector_memory_hash_places (log_id INTEGER PRIMARY KEY, "
                "place TEXT NOT NULL)")
"""Where the logged messages stood, as JSON: their hashes alone do not tell equal messages apart."""

FORGET = ("DELETE FROM memories_fts WHERE rowid = ?", "DELETE FROM memory_embeddings WHERE memory_id = ?",
          "DELETE FROM memory_indexed_topics WHERE memory_id = ?")
"""All that belongs to the memory with an id."""

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

MOST_INDEXED = 100_000  # characters of one column; a model may write anything
_DEEPEST = 20


def table_names(connection: sqlite3.Connection) -> frozenset[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return ALL_NAMES & {row[0] for row in rows}


def create_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES:
        connection.execute(statement)


def parse_metadata(text: str | None) -> dict[str, object]:
    """The object that a memory's metadata holds. Raises ValueError if it is none."""
    try:
        metadata = json.loads(text)  # type: ignore[arg-type]
    except (TypeError, RecursionError) as error:
        raise ValueError("the metadata of a memory is not JSON") from error
    if not isinstance(metadata, dict):
        raise ValueError("the metadata of a memory is not a JSON object")
    return metadata


def index_row(memory_text: str, metadata: Mapping[str, object], with_topics: bool) -> tuple[str, ...]:
    """The five columns of the index, of whatever the metadata holds."""
    phrases = index_text(metadata.get("key_phrases"))
    if with_topics:
        phrases = f"{phrases} {index_text(metadata.get('topics'))}"
    return (index_text(metadata.get("title")), index_text(metadata.get("summary")),
            index_text(metadata.get("entities")), phrases[:2 * MOST_INDEXED],
            without_surrogates(memory_text)[:MOST_INDEXED])


def index_text(value: object) -> str:
    """Strings as they are, lists as their items without ``"``, joined by spaces; nothing for null."""
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
