"""Read one discussion: its files, its database, and all of it for an export.

Faults are raised as errors, not logged.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from Middleware.addons.discussions.catalog import (
    DATABASE_FILES,
    LOCK_FILES,
    DiscussionWithoutFiles,
    StoredDiscussion,
    StoredFile,
)
from Middleware.exceptions import ConfigSyntaxError, UnreadableDataError
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys
from Middleware.services.memory.memory_store import STATE_FILE
from Middleware.services.memory.pieces import StoredPiece, pieces_in
from Middleware.utilities import sqlite
from Middleware.utilities.config.json_source import decode_text, parse_json
from Middleware.utilities.discussion_state import BACKUP, MESSAGE_INDEX, VECTOR_DATABASE, DiscussionState, Searchable
from Middleware.utilities.discussions.discussion_files import Pair, pairs_in, texts_in
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.vector_memory import SearchableMemories, VectorMemories, schema
from Middleware.utilities.encryption_utils import Cipher, cipher_for, is_token

ENCRYPTED = "encrypted (needs --api-key)"
WRONG_KEY = "encrypted for another API key or user"
SWITCHED_OFF = "encrypted, but encryptUsingApiKey of this user is off"
FORMAT = "wilmer-discussion"
VERSION = 1


@dataclass(frozen=True)
class Reader:
    """The contents of a discussion's files; ``keys`` apply only to the files in their folder.

    Methods raise DataKeyError for files of another key, or of any key if none was given; UnreadableDataError for
    files with unexpected content; OSError.
    """

    discussion: StoredDiscussion
    keys: DiscussionKeys = NO_KEYS

    @property
    def encryption_key(self) -> bytes | None:
        return self.keys.encryption_key if self.discussion.key_hash == self.keys.key_hash else None

    @property
    def has_key(self) -> bool:
        """Return whether an API key was given, and the discussion belongs to that key."""
        return self.keys.key_hash is not None and self.discussion.key_hash == self.keys.key_hash

    @property
    def why_locked(self) -> str:
        """Return the reason why data cannot be decrypted."""
        if not self.has_key:
            return ENCRYPTED
        return WRONG_KEY if self.encryption_key else SWITCHED_OFF

    @property
    def cipher(self) -> Cipher:
        return cipher_for(self.encryption_key)

    @property
    def state(self) -> DiscussionState:
        return stored_discussion(self.discussion.discussion_id, self.discussion.key_hash, self.encryption_key)

    def pairs(self, name: str) -> list[Pair]:
        """Return the texts and hashes in the file ``name``; none if there is no such file."""
        path = self.discussion.data(name)
        return [] if path is None else pairs_in(self.json(path, name), self.discussion.display(name))

    def pieces(self, name: str) -> list[StoredPiece]:
        """Return the memories in the file ``name``, with the keys of their messages; none if there is no such file."""
        path = self.discussion.data(name)
        return [] if path is None else pieces_in(self.json(path, name), self.discussion.display(name))

    def object(self, name: str) -> dict[str, object]:
        """Return the object in the file ``name``; empty if there is no such file."""
        path = self.discussion.data(name)
        return {} if path is None else texts_in(self.json(path, name), self.discussion.display(name))

    def state_document(self) -> str:
        path = self.discussion.data(STATE_FILE)
        return "" if path is None else self.text(path)

    def json(self, path: str, name: str = "") -> Any:
        display = self.discussion.display(name or os.path.basename(path))
        try:
            return parse_json(self.bytes(path), display)
        # The parser is that of configuration files; here it reads stored data.
        except ConfigSyntaxError as error:
            raise UnreadableDataError(str(error)) from None

    def text(self, path: str) -> str:
        return decode_text(self.bytes(path), self.discussion.display(os.path.basename(path)))

    def bytes(self, path: str) -> bytes:
        """Return the content of a file, decrypted if it is encrypted."""
        data = self.discussion.read(path)
        # Files written while encryption was off are in clear.
        return self.cipher.decrypt(data) if is_token(data) else data

    def memories(self) -> SearchableMemories:
        """Open the searchable memories for reading. Raises DataKeyError, sqlite3.Error, OSError."""
        path = self.discussion.database()
        return VectorMemories(path, cipher=self.cipher) if path else self.state.memories()

    @contextlib.contextmanager
    def messages(self, *, write: bool = False) -> Iterator[MessageIndex | None]:
        """Open the index of messages, or None. Raises DataKeyError, sqlite3.Error, OSError."""
        with self.state.messages(write=write) as index:
            yield index if index.exists else None

    def searchable(self) -> Searchable:
        """Return how many searchable memories there are. Raises sqlite3.Error."""
        if isinstance(self.discussion, DiscussionWithoutFiles):
            return self.discussion.searchable
        path = self.discussion.database()
        return survey(path) if path else Searchable()


# -- database ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[sqlite3.Connection, frozenset[str]]]:
    """Yield a connection and the names of the existing tables. Raises sqlite3.Error, also for other files."""
    with closing(schema.connect(path)) as database:
        yield database, sqlite.when_free(lambda: schema.table_names(database))


def survey(path: str) -> Searchable:
    """Return the number of memories and vectors. Raises sqlite3.Error."""
    with opened(path) as (database, tables):
        if "memories" not in tables:
            return Searchable()
        count = database.execute("SELECT count(*) FROM memories").fetchone()[0]
        newest = database.execute("SELECT memory_text FROM memories ORDER BY id DESC LIMIT 1").fetchone()
        vectors = {}
        if "memory_embeddings" in tables:
            vectors = dict(
                database.execute(
                    "SELECT model, count(*) FROM memory_embeddings WHERE memory_id IN "
                    "(SELECT id FROM memories) GROUP BY model ORDER BY model"
                ).fetchall()
            )
    return Searchable(count, vectors, newest is not None and schema.is_token(newest[0]))


def metadata_of(text: Any) -> dict[str, object] | None:
    """Return the metadata of a searchable memory; None if they are not a JSON object."""
    try:
        return schema.parse_metadata(text)
    except ValueError:
        return None


# -- export ------------------------------------------------------------------------------------------------------------


def export(reader: Reader) -> dict[str, Any]:
    """Return the contents of the files, by their names, the rows of the database, and the messages, if any are stored.

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
        database = _database(reader)
    except sqlite3.Error as error:
        database, unreadable = None, [*unreadable, f"{discussion.display(VECTOR_DATABASE)}: {error}"]
    try:
        with reader.messages() as index:
            rows = [row._asdict() for _, one in index.all_messages() for row in one] if index is not None else None
    except sqlite3.Error as error:
        rows, unreadable = None, [*unreadable, f"{discussion.display(MESSAGE_INDEX)}: {error}"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "discussionId": discussion.discussion_id,
        "keyFolder": discussion.key_hash,
        "exportedAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": files,
        "vectorMemory": database,
        **({} if rows is None else {"messages": rows}),
        "unreadable": unreadable,
    }


def _name_in_export(reader: Reader, file: StoredFile) -> str:
    """Return the name without that of the discussion; "" for locks, databases and temporary files."""
    name = reader.discussion.name_of(file)
    return "" if name in LOCK_FILES or name in DATABASE_FILES or name.endswith(".tmp") else name


def _content(reader: Reader, file: StoredFile) -> tuple[Any, str]:
    """Return the content of a file, and a message if it is damaged."""
    try:
        if file.name.lower().removesuffix(BACKUP).endswith(".json"):
            return reader.json(file.path), ""
    except UnreadableDataError as error:
        return reader.text(file.path), str(error)
    return reader.text(file.path), ""


def _database(reader: Reader) -> dict[str, object] | None:
    if not reader.discussion.has_memories:
        return None
    with reader.memories() as memories:
        rows = [{**row, "metadata": metadata_of(row["metadata_json"])} for row in memories.all_memories()]
        vectors = [
            {"memoryId": number, "model": model, "float32": base64.b64encode(blob).decode("ascii")}
            for model in reader.searchable().vectors
            for number, blob in memories.embeddings(model)
        ]
        processed = [{"hash": message, "timestamp": time} for message, time in memories.processed_messages()]
    return {"memories": rows, "vectors": vectors, "processedMessages": processed}
