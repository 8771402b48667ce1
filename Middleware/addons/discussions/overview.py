"""An overview of each discussion, fast enough for thousands of them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from Middleware.addons.discussions import messages
from Middleware.addons.discussions.catalog import StoredDiscussion
from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.exceptions import DataKeyError, StoredDataError
from Middleware.services.memory.chunks import chunks_elsewhere
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys
from Middleware.services.memory.memory_store import MEMORIES_FILE, STATE_FILE, SUMMARY_FILE
from Middleware.utilities.encryption_utils import is_token


@dataclass
class Overview:
    """The amount and state of a discussion's data.

    Attributes:
        memories: the number of file memories; None if the file is encrypted or unreadable.
        summary, state_document: there is one, readable or not.
        searchable: the number of memories in the database that fit the conversation; None if it cannot be read.
        stored: the number of all memories in the database.
        vectors: for each embedding model, the number of memories with a vector.
        messages: how many messages are remembered word for word; None if their index cannot be read.
        encrypted: some data is encrypted, and the key was not given.
        damaged: some data cannot be read for another reason.
    """

    discussion: StoredDiscussion
    memories: int | None = None
    summary: bool = True
    searchable: int | None = None
    stored: int = 0
    vectors: dict[str, int] = field(default_factory=dict)
    messages: int | None = None
    state_document: bool = True
    encrypted: bool = False
    damaged: bool = False


def overview(discussion: StoredDiscussion, keys: DiscussionKeys = NO_KEYS) -> Overview:
    """Return the overview of a discussion. Faults in its files raise no error."""
    row, reader = Overview(discussion), Reader(discussion, keys)
    locked = reader.encryption_key is None
    with _faults_in(row):
        row.memories = len(reader.pairs(MEMORIES_FILE))
    with _faults_in(row):
        row.summary = bool(reader.pairs(SUMMARY_FILE))
    with _faults_in(row):
        path = discussion.data(STATE_FILE)
        row.state_document = any(file.size > 0 for file in discussion.files if file.path == path)
        # Decrypting every document would be too slow for a list.
        row.encrypted |= path is not None and locked and is_token(discussion.read(path))
    with _faults_in(row):
        found = reader.searchable()
        row.searchable = row.stored = found.memories
        row.vectors = found.vectors
        row.encrypted |= found.encrypted and locked
        if found.memories and not row.encrypted:
            row.searchable -= _elsewhere(reader)
    with _faults_in(row):
        row.messages, encrypted = messages.count(reader)
        row.encrypted |= encrypted and locked
    return row


def as_json(row: Overview) -> dict[str, Any]:
    """A row for other programs. Sizes in bytes, times in ISO 8601; null is what is not known."""
    last = row.discussion.last_change
    changed = None if last is None else datetime.fromtimestamp(last).astimezone()
    vectors = {model: {"with": count, "without": row.stored - count} for model, count in row.vectors.items()}
    return {
        "discussionId": row.discussion.discussion_id,
        "keyFolder": row.discussion.key_hash,
        "folders": list(row.discussion.folders),
        "memories": row.memories,
        "summary": row.summary,
        "searchableMemories": row.searchable,
        "messages": row.messages,
        "vectors": vectors,
        "stateDocument": row.state_document,
        "encrypted": row.encrypted,
        "damaged": row.damaged,
        "lastChange": changed.isoformat(timespec="seconds") if changed else None,
        "bytes": row.discussion.size,
    }


def _elsewhere(reader: Reader) -> int:
    """Return how many searchable memories do not fit the conversations as they are now."""
    with reader.memories() as memories:
        return sum(map(len, memories.facts_of(chunks_elsewhere(reader.state, memories)).values()))


@contextlib.contextmanager
def _faults_in(row: Overview) -> Iterator[None]:
    """Note in ``row`` that a part cannot be read."""
    try:
        yield
    except DataKeyError:
        row.encrypted = True
    except (StoredDataError, OSError, sqlite3.Error):
        row.damaged = True
