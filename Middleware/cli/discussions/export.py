"""Export all stored data of a conversation as one JSON object, unencrypted."""
from __future__ import annotations

import base64
import json
import os
import sqlite3
from datetime import UTC, datetime
from typing import Any

from Middleware.cli.discussions import searchable
from Middleware.cli.discussions.catalog import LOCK_FILES, SQLITE_SUFFIXES, StoredFile
from Middleware.cli.discussions.reading import Reader
from Middleware.exceptions import UnreadableDataError
from Middleware.services.memory.memory_store import BACKUP
from Middleware.utilities.conversations.discussion_folder import VECTOR_DATABASE
from Middleware.utilities.conversations.vector_memory import VectorMemories, schema

FORMAT = "wilmer-discussion"
VERSION = 1


def export(reader: Reader) -> dict[str, Any]:
    """Return the contents of the files, by their names, and the rows of the database.

    A file that is not valid JSON or UTF-8 is included as text and named in ``unreadable``. A damaged database is only
    named there. Raises DataKeyError for data without the key, and OSError.
    """
    discussion = reader.discussion
    files: dict[str, object] = {}
    unreadable: list[str] = []
    for file in discussion.files:
        name = _name_in_export(reader, file)
        # Of two folders, the server reads the first.
        if name and name not in files:
            files[name], problem = _content(reader, file)
            unreadable += [problem] if problem else []
    try:
        database = _database(reader, discussion.database())
    except sqlite3.Error as error:
        database, unreadable = None, [*unreadable, f"{discussion.display(VECTOR_DATABASE)}: {error}"]
    return {"format": FORMAT, "version": VERSION, "discussionId": discussion.discussion_id,
            "keyFolder": discussion.key_hash, "exportedAt": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": files, "vectorMemory": database, "unreadable": unreadable}


def _name_in_export(reader: Reader, file: StoredFile) -> str:
    """Return the name without that of the discussion; "" for locks, databases and temporary files."""
    discussion = reader.discussion
    outside = os.path.dirname(file.path) not in discussion.folders
    name = file.name[len(discussion.discussion_id) + 1:] if outside else file.name
    databases = {f"{VECTOR_DATABASE}{suffix}" for suffix in SQLITE_SUFFIXES}
    return "" if name in LOCK_FILES or name in databases or name.endswith(".tmp") else name


def _content(reader: Reader, file: StoredFile) -> tuple[Any, str]:
    """Return the content of a file, and a message if it is damaged."""
    try:
        if file.name.lower().removesuffix(BACKUP).endswith(".json"):
            return reader.json(file.path), ""
    except UnreadableDataError as error:
        return reader.text(file.path), str(error)
    return reader.text(file.path), ""


def _database(reader: Reader, path: str | None) -> dict[str, object] | None:
    if path is None:
        return None
    with VectorMemories(path, cipher=reader.cipher) as memories:
        rows = [{**row, "metadata": _metadata(row["metadata_json"])} for row in memories.all_memories()]
        vectors = [{"memoryId": number, "model": model, "float32": base64.b64encode(blob).decode("ascii")}
                   for model in searchable.models(path) for number, blob in memories.embeddings(model)]
    return {"memories": rows, "vectors": vectors, "processedMessages": searchable.hash_log(path)}


def _metadata(text: Any) -> dict[str, object] | None:
    try:
        return schema.parse_metadata(text)
    except (ValueError, json.JSONDecodeError):
        return None
