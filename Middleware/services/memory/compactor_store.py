"""The summaries that the context compactor keeps of one discussion, as files.

``context_compactor_old.json`` holds the summary of the old section with the hash of the section's last message, and
the boundary: where the section starts. ``context_compactor_oldest.json`` holds the summary of all that came before.
The boundary moves back when a conversation gets shorter; ``context_compactor_folded.json``, which may be missing, says
how far that summary reaches nevertheless. ``context_compactor_blocks.json`` is that of a compactor that follows edits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from Middleware.exceptions import StoredDataError, UnreadableDataError
from Middleware.models.run_step import writing
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import (
    Pair,
    logged_as_conflict,
    pairs_as_json,
    read_object,
    read_pairs,
    write_content,
)

logger = logging.getLogger(__name__)

OLD_FILE = "context_compactor_old.json"
OLDEST_FILE = "context_compactor_oldest.json"
FOLDED_FILE = "context_compactor_folded.json"
BLOCKS_FILE = "context_compactor_blocks.json"
BOUNDARY = "__boundary__"


@dataclass(frozen=True)
class Boundary:
    """The first message of the old section. Older files contain no index."""

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
class FoldedMessages:
    """The number of messages in the oldest summary.

    Attributes:
        index: the number of messages, so that this is the index of the first one that is not in the summary.
        stored_hash: the hash of the last of these messages.
        previous_hash: the hash of the message before that one, "" for none; a single message may occur repeatedly.
        summary_hash: the hash of the summary's text, because the values are valid for that summary only.
    """

    index: int
    stored_hash: str
    previous_hash: str
    summary_hash: str

    @classmethod
    def parse(cls, content: dict[str, object]) -> FoldedMessages | None:
        """Return the content of a file; None if it is invalid."""
        index = content.get("index")
        hashes = [content.get(key) for key in ("hash", "previousHash", "summaryHash")]
        # For isinstance, true would be an int.
        if type(index) is not int or index < 1 or not all(isinstance(text, str) for text in hashes):
            return None
        return cls(index, *map(str, hashes))

    def as_json(self) -> dict[str, object]:
        return {
            "index": self.index,
            "hash": self.stored_hash,
            "previousHash": self.previous_hash,
            "summaryHash": self.summary_hash,
        }


@dataclass(frozen=True)
class CompactorState:
    """The stored summaries.

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
    """The documents of one discussion. A caller that reads and then writes holds the ``COMPACTOR`` lock."""

    def __init__(self, state: DiscussionState) -> None:
        self.state = state

    def read(self) -> CompactorState:
        """Return all files that can be read; create none. Raises DataKeyError for files of another API key.

        The old section is read first because it is written last: after an interruption messages are shown twice and
        not lost.
        """
        with self.state.together(OLD_FILE, OLDEST_FILE):
            old, oldest = self._readable(OLD_FILE), self._readable(OLDEST_FILE)
        boundary = next((stored for text, stored in old or () if text == BOUNDARY), None)
        return CompactorState(
            old=next((pair for pair in old or () if pair[0] != BOUNDARY), None),
            boundary=None if boundary is None else Boundary.parse(boundary),
            oldest=oldest[0] if oldest else None,
            readable=old is not None and oldest is not None,
        )

    def folded(self) -> FoldedMessages | None:
        """Return the extent of the oldest summary, if known. The file is optional: an unusable one is ignored."""
        try:
            return FoldedMessages.parse(read_object(self.state, FOLDED_FILE))
        except (StoredDataError, OSError) as error:
            if not logged_as_conflict(error):
                logger.warning("%s is not used: %s", self.state.display(FOLDED_FILE), _reason(error))
        return None

    def save(
        self, old: Pair, boundary: Boundary, oldest: Pair | None = None, folded: FoldedMessages | None = None
    ) -> None:
        """Replace the old section's summary, and that of what came before if there is a new one.

        ``folded`` is written after its summary and before the boundary, the last file: at worst, an interruption
        makes the next run fold messages again, but none are lost. Raises UnreadableDataError, without a change, if the
        file of a summary has other content, and OSError.
        """
        texts = [old[0]] if oldest is None else [old[0], oldest[0]]
        with self.state.together(OLD_FILE, OLDEST_FILE, FOLDED_FILE), writing("compactor", texts, len(texts), old[1]):
            # Both files are checked before the first one is written.
            for name in (OLD_FILE, OLDEST_FILE):
                read_pairs(self.state, name)
            if oldest is not None:
                write_content(self.state, OLDEST_FILE, pairs_as_json([oldest]))
            if folded is not None:
                self._note(folded)
            write_content(self.state, OLD_FILE, pairs_as_json([old, (BOUNDARY, str(boundary))]))

    def _readable(self, name: str) -> list[Pair] | None:
        """Return the entries of a file, none without a file; None, with a logged error, if it cannot be read."""
        try:
            return read_pairs(self.state, name) or []
        except UnreadableDataError as error:
            logger.error("%s", error)
        except OSError as error:
            if not logged_as_conflict(error):
                logger.error("%s cannot be read: %s", self.state.display(name), _reason(error))
        return None

    def _note(self, folded: FoldedMessages) -> None:
        """Write the file about the oldest summary, unless it has other content; a failure is only logged."""
        try:
            if FoldedMessages.parse(read_object(self.state, FOLDED_FILE)) != folded:
                write_content(self.state, FOLDED_FILE, folded.as_json())
        except (StoredDataError, OSError) as error:
            if not logged_as_conflict(error):
                logger.warning("%s is not written: %s", self.state.display(FOLDED_FILE), _reason(error))


def _reason(error: Exception) -> str:
    """Return the reason for the log. The text of a system error would contain the whole path."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
