"""The searchable memories of a discussion that fit the history of a request, and those that do not.

A chunk of messages and the memories that were made of it are one piece: all of them are shown, or none. What a chunk
was made of is stored with the memories, so that a search leaves out what it must not find before it ranks anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from Middleware.exceptions import StoredDataError
from Middleware.services.memory.follow_state import FollowState, read_follow_state
from Middleware.services.memory.memory_documents import ELSEWHERE_FILE, MEMORIES_FILE
from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.services.memory.pieces import (
    CHUNKS,
    FILE_MEMORIES,
    Followed,
    StoredPiece,
    followed_as,
    pieces_in,
    stored_chunks,
    with_others,
)
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import read_content
from Middleware.utilities.discussions.vector_memory.searchable import Origin, SearchableMemories


class FollowedChunks(Followed):
    """The searchable memories of one discussion, chunk by chunk, as one request sees them.

    The texts of the pieces are blank: ``SearchableMemories.facts_of`` returns the memories of a chunk by its id.

    Attributes:
        memories: the database, as long as a pass has it open for writing.
    """

    kind = CHUNKS
    noun = ("stretch of searchable memories", "stretches of searchable memories")
    memories: SearchableMemories | None = None

    def _load(self) -> tuple[FollowState, list[StoredPiece], list[StoredPiece]]:
        follow = read_follow_state(self._state)
        keys = {key for one in self._all_keys for key in one.keys} | {one.last for one in follow.conversations}
        return follow, stored_chunks(self._state, keys, self.memories), []

    def _of_other_kinds(self) -> Iterable[tuple[str, Sequence[StoredPiece]]]:
        for name in (MEMORIES_FILE, ELSEWHERE_FILE):
            with contextlib.suppress(StoredDataError, OSError):
                yield FILE_MEMORIES, pieces_in(read_content(self._state, name) or [], self._state.display(name))

    @property
    def elsewhere(self) -> list[str]:
        """The ids of the chunks whose memories no reader shows, oldest first."""
        shown = {piece.keys.id for piece in self.shown if piece.keys}
        return [name for name in self._by_id if name not in shown]

    @contextlib.contextmanager
    def open_for(self, memories: SearchableMemories) -> Iterator[None]:
        """Read and write in a database that a pass has opened, from its present state on."""
        self.memories = memories
        try:
            self.refresh()
            yield
        finally:
            self.memories = None

    def origin(self, indexes: Sequence[int]) -> Origin:
        """Return what a new chunk is made of, of the messages with these indexes in the history."""
        later = (int(one.piece.id) for one in self.trail.placed if one.at and one.at[0] > indexes[0])
        return Origin(self.keys_of(indexes), next(later, None))

    def _store(self, shown: Sequence[StoredPiece], rest: Sequence[StoredPiece]) -> None:
        if self.memories is None:
            return
        kept = {piece.keys.id: piece.keys for piece in (*shown, *self._kept(rest)) if piece.keys}
        # The number of a chunk that is dropped may be given again.
        after = {name: keys.after if keys.after in kept else "" for name, keys in kept.items()}
        known = {piece.id: piece.after for stored in self._pieces if (piece := stored.keys)}
        changed = {name: before for name, before in after.items() if known[name] != before}
        self.memories.settle_chunks(changed, [name for name in known if name not in kept])


def followed_chunks(state: DiscussionState) -> FollowedChunks | None:
    """Return what ``followed`` returns, for searchable memories. Also raises sqlite3.Error."""
    return followed_as(state, FollowedChunks)


def chunks_elsewhere(state: DiscussionState, memories: SearchableMemories) -> list[str]:
    """Return the ids of the chunks whose memories a search must not find.

    Without a history, and where memories no longer follow edits, the newest trails of the conversations count. Raises
    what ``followed_chunks`` raises.
    """
    if not memories.has_chunks:
        return []
    found = followed_chunks(state)
    if found is not None:
        return found.elsewhere
    shown = set(newest_chunks(state, memories))
    return [piece.id for piece in memories.chunks() if piece.id not in shown]


def newest_chunks(state: DiscussionState, memories: SearchableMemories) -> list[str]:
    """Return the ids of the chunks that readers show who know no history, in order. Raises DataKeyError."""
    by_id = {piece.id: piece for piece in memories.chunks()}
    trails = [
        [by_id[name] for name in one.active.get(CHUNKS, ()) if name in by_id]
        for one in reversed(read_follow_state(state).conversations)
    ]
    # Which conversation is whose is not known, or the document with it cannot be read.
    if not any(trails):
        return list(by_id)
    return [piece.id for piece in with_others(trails[0], trails[1:], quiet_memory_settings())]
