"""Databases for tests of the memories: the present layout, and that of old installations."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, cipher_for, derive_encryption_key

KEY = derive_encryption_key("secretkey", "tester")
CIPHER = cipher_for(KEY)
OTHER = cipher_for(derive_encryption_key("other"))
OLD_SCHEMA = """
CREATE TABLE memories (id INTEGER PRIMARY KEY, discussion_id TEXT NOT NULL, memory_text TEXT NOT NULL,
                       date_added TEXT NOT NULL, metadata_json TEXT);
CREATE VIRTUAL TABLE memories_fts USING fts5(title, summary, entities, key_phrases, memory_text_unweighted,
                                             tokenize='porter');
CREATE TABLE vector_memory_hash_log (id INTEGER PRIMARY KEY AUTOINCREMENT, discussion_id TEXT NOT NULL,
                                     message_hash TEXT NOT NULL, timestamp DATETIME NOT NULL);
"""


def metadata(summary: str, **fields: Any) -> str:
    return json.dumps({"title": "", "summary": summary, "entities": [], "key_phrases": [], **fields})


def item(summary: str, **fields: Any) -> tuple[str, str]:
    return summary, metadata(summary, **fields)


def opened(path: Path, cipher: Cipher = NO_CIPHER, *, write: bool = True, **options: Any) -> VectorMemories:
    return VectorMemories(str(path), "chat", write=write, cipher=cipher, **options)


def old_database(path: Path, *texts: str, topics: str = "") -> None:
    database = sqlite3.connect(path)
    database.executescript(OLD_SCHEMA)
    for text in texts:
        fields = metadata(text, topics=[topics] if topics else [])
        row = database.execute(
            "INSERT INTO memories (discussion_id, memory_text, date_added, metadata_json) "
            "VALUES ('chat', ?, '2025-01-01T00:00:00+00:00', ?)",
            (text, fields),
        )
        database.execute(
            "INSERT INTO memories_fts (rowid, title, summary, entities, key_phrases, "
            "memory_text_unweighted) VALUES (?, '', ?, '', ?, ?)",
            (row.lastrowid, text, f" {topics}" if topics else "", text),
        )
    database.execute(
        "INSERT INTO vector_memory_hash_log (discussion_id, message_hash, timestamp) "
        "VALUES ('chat', 'old', '2025-01-01T00:00:00+00:00')"
    )
    database.commit()
    database.close()


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["memory_text"] for row in rows]


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


def log_hashes(memories: VectorMemories, limit: int = 10) -> list[str]:
    return [message.hash for message in memories.logged_messages(limit)]
