"""The summaries that the context compactor keeps of one conversation, as files.

``context_compactor_old.json`` holds the summary of the old section with the hash of the section's last message, and
the boundary: where the section starts. ``context_compactor_oldest.json`` holds the summary of all that came before.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from Middleware.exceptions import UnreadableDataError
from Middleware.utilities.discussion_files import Pair, pairs_in, read_json, write_chunks_with_hashes
from Middleware.utilities.discussion_folder import DiscussionFolder

logger = logging.getLogger(__name__)

OLD_FILE = "context_compactor_old.json"
OLDEST_FILE = "context_compactor_oldest.json"
BOUNDARY = "__boundary__"


@dataclass(frozen=True)
class Boundary:
    """The first message of the old section. Older files tell no index."""

    stored_hash: str
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> Boundary:
        index, separator, stored_hash = text.partition(":")
        if not separator:
            return cls(text)
        return cls(stored_hash, int(index) if index.isascii() and index.isdigit() else None)

    def __str__(self) -> str:
        return self.stored_hash if self.index is None else f"{self.index}:{self.stored_hash}"


@dataclass(frozen=True)
class CompactorState:
    """What is stored.

    Attributes:
        old: the summary of the old section and the hash of its last message.
        oldest: the summary of what came before and the hash of the conversation's first message.
        readable: a file that cannot be read must not be written either.
    """

    old: Pair | None = None
    boundary: Boundary | None = None
    oldest: Pair | None = None
    readable: bool = True


class CompactorStore:
    """The files of one discussion. Who reads and then writes holds the folder's ``COMPACTOR`` lock."""

    def __init__(self, folder: DiscussionFolder) -> None:
        self.folder = folder

    def read(self) -> CompactorState:
        """What can be read; creates nothing. Raises DataKeyError for files of another API key.

        Old comes first, as it is written last: a run that ends meanwhile shows messages twice rather than not at all.
        """
        old, oldest = self._readable(OLD_FILE), self._readable(OLDEST_FILE)
        boundary = next((stored for text, stored in old or () if text == BOUNDARY), None)
        return CompactorState(
            old=next((pair for pair in old or () if pair[0] != BOUNDARY), None),
            boundary=None if boundary is None else Boundary.parse(boundary),
            oldest=oldest[0] if oldest else None, readable=old is not None and oldest is not None)

    def save(self, old: Pair, boundary: Boundary, oldest: Pair | None = None) -> None:
        """Replace the old section's summary, and that of what came before if there is a new one.

        The boundary is written last: an interruption makes the next run fold messages again, but never loses any.
        Raises UnreadableDataError, with nothing changed, if either file holds something else, and OSError.
        """
        for name in (OLD_FILE, OLDEST_FILE):
            self._pairs(name)
        if oldest is not None:
            self._write(OLDEST_FILE, [oldest])
        self._write(OLD_FILE, [old, (BOUNDARY, str(boundary))])

    def _readable(self, name: str) -> list[Pair] | None:
        """The entries of a file, none if there is no file; None, with an error in the log, if it cannot be read."""
        try:
            return self._pairs(name)
        except UnreadableDataError as error:
            logger.error("%s", error)
        except OSError as error:
            logger.error("%s cannot be read: %s", self.folder.display(name), error.strerror or type(error).__name__)
        return None

    def _pairs(self, name: str) -> list[Pair]:
        display = self.folder.display(name)
        content = read_json(self.folder.file(name), self.folder.cipher, display)
        return [] if content is None else pairs_in(content, display)

    def _write(self, name: str, pairs: Sequence[Pair]) -> None:
        if not os.path.isdir(self.folder.folder):
            self.folder.create()
        write_chunks_with_hashes(pairs, self.folder.file(name), overwrite=True,
                                 encryption_key=self.folder.encryption_key, mode=self.folder.file_mode)
