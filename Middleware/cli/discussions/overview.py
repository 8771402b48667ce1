"""An overview of each stored conversation, fast enough for thousands of them."""
from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass

from Middleware.cli.discussions.catalog import StoredDiscussion
from Middleware.cli.discussions.reading import Reader, looks_encrypted
from Middleware.cli.discussions.searchable import Searchable, survey
from Middleware.exceptions import DataKeyError, StoredDataError
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys
from Middleware.services.memory.memory_store import MEMORIES_FILE, STATE_FILE, SUMMARY_FILE


@dataclass(frozen=True)
class Overview:
    """The amount and state of a discussion's data.

    Attributes:
        memories: the number of file memories; None if the file is encrypted or unreadable.
        searchable: the number of memories in the database; None if it cannot be read.
        vectors: for each embedding model, the number of memories with a vector.
        encrypted: some data is encrypted, and the key was not given.
        damaged: some data cannot be read for another reason.
        last_change: seconds since 1970.
        size: bytes.
    """

    discussion: StoredDiscussion
    memories: int | None
    summary: bool
    searchable: int | None
    vectors: dict[str, int]
    state_document: bool
    encrypted: bool
    damaged: bool

    @property
    def last_change(self) -> float | None:
        return self.discussion.last_change

    @property
    def size(self) -> int:
        return self.discussion.size


def overview(discussion: StoredDiscussion, keys: DiscussionKeys = NO_KEYS) -> Overview:
    """Return the overview of a discussion. Faults in its files raise no error."""
    look = _Survey(Reader(discussion, keys))
    memories, summary = look.count(MEMORIES_FILE), look.count(SUMMARY_FILE)
    searchable, state = look.searchable(), look.has_text(STATE_FILE)
    return Overview(discussion, memories, summary is None or summary > 0,
                    None if searchable is None else searchable.memories, searchable.vectors if searchable else {},
                    state, look.encrypted, look.damaged)


class _Survey:
    """Reads the files of a discussion, and notes which data could not be read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.encrypted = self.damaged = False

    def count(self, name: str) -> int | None:
        try:
            return len(self._reader.pairs(name))
        except DataKeyError:
            self.encrypted = True
        except (StoredDataError, OSError):
            self.damaged = True
        return None

    def has_text(self, name: str) -> bool:
        path = self._reader.discussion.data(name)
        if path is None:
            return False
        try:
            # Decrypting every document would be too slow for a list.
            if self._reader.encryption_key is None and looks_encrypted(path):
                self.encrypted = True
            return os.path.getsize(path) > 0
        except OSError:
            self.damaged = True
            return True

    def searchable(self) -> Searchable | None:
        path = self._reader.discussion.database()
        if path is None:
            return Searchable()
        try:
            found = survey(path)
        except (sqlite3.Error, OSError):
            self.damaged = True
            return None
        self.encrypted |= found.encrypted and self._reader.encryption_key is None
        return found
