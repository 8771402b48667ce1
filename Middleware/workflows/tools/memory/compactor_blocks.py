"""The blocks of a compactor that follows edits, and the summaries that were made of them and of Old.

A block is the record of some messages, which is shown while they stand in the history of the request. Oldest is made of
the blocks on its path; Old is kept with what it was made of. So what was made once comes back without an LLM call.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from Middleware.models.messages import Message
from Middleware.services.memory.compactor_store import BLOCKS_FILE
from Middleware.services.memory.folds import chain
from Middleware.services.memory.follow_state import Conversation, FollowState, follow_state_as_json, follow_state_in
from Middleware.services.memory.memory_settings import HIDE, quiet_memory_settings
from Middleware.services.memory.pieces import Followed, StoredPiece, pieces_in, read_parsed
from Middleware.utilities.conversations.path import kept_greeting
from Middleware.utilities.conversations.trail import Piece, Placed, Trail, WindowFacts, trail_of
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import texts_in
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.text_utils import estimate_message, message_text, newest_within
from Middleware.workflows.tools.memory.context_compaction import Sections

MOST_KEPT = 200
# Holes are smaller, except in a summary of an older version, of all messages before Old.
LARGEST_HOLE = 2


class Kept(NamedTuple):
    """A summary and what it was made of: keys of messages from the beginning of Old on, or texts of blocks.

    Attributes:
        covers: the chain of all that the model saw (``chain``).
        seen: how many these were.
        summed: how many of them are in the summary; of Old, the model may see the messages behind it as well.
    """

    text: str
    covers: str
    seen: int
    summed: int


class _Stored(NamedTuple):
    blocks: Sequence[StoredPiece]
    olds: Sequence[Kept]
    folds: Sequence[Kept]
    follow: FollowState


class Blocks(Followed):
    """What is stored for one discussion, as one request sees it.

    Args:
        messages: all messages of the request, as the outermost workflow got them.
        sections: those without following, as indexes of these messages.
        earlier: returns the Oldest that was made without blocks, and how many messages it covers.

    Attributes:
        left, recent, end: the indexes in the history of the first message that has not left Old, of the first of
            Recent, and of the first that belongs to no section.
    """

    kind = "blocks"

    def __init__(
        self,
        state: DiscussionState,
        messages: Sequence[Message],
        sections: Sections,
        earlier: Callable[[], tuple[str, int]],
    ) -> None:
        self._sections, self._earlier = sections, earlier
        self._read_as: _Stored | None = None
        self._olds: list[Kept] = []
        self._folds: list[Kept] = []
        super().__init__(state, messages, replace(quiet_memory_settings(), other_chats=HIDE))

    def refresh(self) -> None:
        self._is_changed = False
        super().refresh()
        at, cut = self._at, self._sections
        self.left, self.recent, self.end = (bisect.bisect_left(at, one) for one in (cut.old, cut.recent, cut.end))

    def is_up_to_date(self) -> bool:
        """Return True after what is stored was read again, if it has changed. Raises like ``refresh``."""
        if self._document() is not self._read_as:
            self.refresh()
        return True

    def _document(self) -> _Stored | None:
        display = self._state.display(BLOCKS_FILE)
        return read_parsed(self._state, BLOCKS_FILE, lambda content: _parsed(content, display))

    @property
    def _at(self) -> list[int]:
        """The indexes of the messages of the history among those of the request."""
        return [self._indexes[index] for index in self.places]

    def index_of(self, place: int) -> int:
        """Return the index among those of the request of a message of the history, or of where that ends."""
        at = self._at
        return at[place] if place < len(at) else self._sections.end

    # -- what is shown ---------------------------------------------------------------------------------------------

    @cached_property
    def trail(self) -> Trail:
        """The blocks that fit the history, without those of messages that have not left Old (yet, or again)."""
        by_id = {name: piece.keys for name, piece in self._by_id.items() if piece.keys}
        pieces = sorted(by_id.values(), key=lambda piece: piece.made)
        gap = kept_greeting(self.history, self._keys_of(self._conversation, self.kind, by_id))
        kept = gap.kept if gap else 0
        window = self._window(kept)
        while True:
            trail = trail_of(self.history[kept:], pieces, window)
            late = {placed.piece.id for placed in trail.placed if placed.at and placed.at[-1] + kept >= self.left}
            if not late:
                placed = [Placed(piece, tuple(index + kept for index in at)) for piece, at in trail.placed]
                return Trail(placed, trail.passed + kept)
            pieces = [piece for piece in pieces if piece.id not in late]

    def _window(self, kept: int) -> WindowFacts:
        """Return what is known of the window; between it and the newest block before it may be messages without one."""
        window = self._conversation.seen(self._all_keys, self.history, 0).window(self.kind)
        newest = list(self._known(window.newest))
        if not window.last and not kept:
            return window
        last = window.last
        ends = [index + (last == piece.sources[-1]) for index, piece in enumerate(newest) if last in piece.sources]
        hidden = newest[: len(newest) if kept or not ends else ends[-1]]
        return replace(window, last=hidden[-1].sources[-1] if hidden else "")

    def _keys_of(self, one: Conversation, kind: str, by_id: Mapping[str, Piece]) -> list[str]:
        """Return the keys of a conversation: of the newest messages as well, which have no block yet."""
        known = super()._keys_of(one, kind, by_id)
        have_blocks = set(known)
        return [*known, *(key for tail in one.tails[:1] for key in reversed(tail.keys) if key not in have_blocks)]

    def texts(self, others: Iterable[tuple[int, str]] = ()) -> list[str]:
        """Return the texts of the blocks, in order; ``others``: more of them, each with its first message."""
        by_id = self._by_id
        placed = [(one.at[0] if one.at else -1, by_id[one.piece.id].text) for one in self.trail.placed]
        return [text for _, text in sorted([*placed, *others], key=lambda one: one[0])]

    def missing(self, size: int) -> list[range]:
        """Return the messages that need blocks, in order: holes, and behind the last block all that fill one.

        ``size``: of a full block, in estimated tokens.
        """
        trail, whole = self.trail, range(self.trail.end, len(self.history))
        holes = [part for hole in trail.holes(trail.end) for part in self._parts(hole, LARGEST_HOLE * size)]
        return [*holes, *itertools.takewhile(lambda part: part.stop <= self.left, self._parts(whole, size))]

    def _parts(self, span: range, size: int) -> Iterator[range]:
        """Yield as few parts as possible, each of at most ``size`` tokens or one message."""
        start = span.start
        while start < span.stop:
            rest = self.messages[start : span.stop]
            stop = start + max(1, len(rest) - newest_within(rest[::-1], size, estimate_message))
            yield range(start, stop)
            start = stop

    def old(self, start: int) -> tuple[str, bool]:
        """Return the valid summary of most messages from ``start`` on, and whether those are all up to Recent."""
        hashes = chain(message.key for message in self.history[start : self.end])
        best: Kept | None = None
        for one in self._olds:
            is_valid = one.seen < len(hashes) and one.covers == hashes[one.seen] and one.summed <= self.recent - start
            if is_valid and (best is None or one.summed >= best.summed):
                best = one
        if best is None:
            return "", False
        self._olds = _newest(self._olds, best)
        return best.text, best.summed == self.recent - start

    def fold(self, texts: Sequence[str]) -> str:
        """Return the summary that was made of just these texts; "" if none was."""
        covers = chain(texts)[-1]
        found = next((one for one in self._folds if one.covers == covers), None)
        if found is None:
            return ""
        self._folds = _newest(self._folds, found)
        return found.text

    def planned(self, missing: Sequence[range], most: int) -> list[range]:
        """Return the first of the stretches, of which ``most`` need a call."""
        needed = (index for index, span in enumerate(missing) if not self.known_block(span))
        return list(missing[: next(itertools.islice(needed, most, None), None)])

    def known_block(self, span: range) -> str:
        """Return the text that was made of messages with the same keys; "" if none was."""
        sources = self._sources(span)
        return next((piece.text for piece in self._pieces if piece.keys and piece.keys.sources == sources), "")

    def _sources(self, span: range) -> tuple[str, ...]:
        return tuple(message.key for message in self.history[span.start : span.stop])

    # -- what is stored --------------------------------------------------------------------------------------------

    def keep_block(self, span: range, text: str) -> None:
        self._is_changed = True
        self.add(span, text, hash_content(message_text(self.messages[span.stop - 1])), {})

    def keep_old(self, start: int, text: str, sees_recent: bool) -> None:
        """Add a summary of the messages from ``start`` to Recent; ``sees_recent``: the model saw those of Recent."""
        self._is_changed = True
        seen = (self.end if sees_recent else self.recent) - start
        covers = chain(self._sources(range(start, start + seen)))[-1]
        self._olds = _newest(self._olds, Kept(text, covers, seen, self.recent - start))

    def keep_fold(self, texts: Sequence[str], text: str) -> None:
        self._is_changed = True
        self._folds = _newest(self._folds, Kept(text, chain(texts)[-1], len(texts), len(texts)))

    def store(self) -> None:
        """Store everything, if there is anything new. Raises OSError and DataKeyError."""
        seen, known = self._seen(), self._follow.find(self._conversation.number)
        if not self._is_changed and known is not None and _is_same(known, seen):
            return
        self._follow, self._conversation = self._follow.with_conversation(seen), seen
        names = {piece.id for piece in self.trail.pieces}
        blocks = [(piece, piece.keys.id in names) for piece in self._linked(self._pieces) if piece.keys]
        self._store(
            [piece for piece, is_shown in blocks if is_shown], [piece for piece, is_shown in blocks if not is_shown]
        )

    def _store(self, shown: Sequence[StoredPiece], rest: Sequence[StoredPiece]) -> None:
        content = {
            "blocks": [piece.as_json() for piece in (*self._kept(rest), *shown)],
            "old": [one._asdict() for one in self._olds],
            "oldest": [one._asdict() for one in self._folds],
            **follow_state_as_json(self._follow),
        }
        # Without indents, which would take most of the time.
        self._state.write(BLOCKS_FILE, json.dumps(content).encode("ascii"))
        self._is_changed = False

    @property
    def is_stored(self) -> bool:
        """Whether there is anything of the conversation yet."""
        return bool(self._pieces or self._olds) or self._follow.find(self._conversation.number) is not None

    def _load(self) -> tuple[FollowState, list[StoredPiece], list[StoredPiece]]:
        self._read_as = self._document()
        found = self._read_as or _Stored((), (), (), FollowState())
        self._olds, self._folds = list(found.olds), list(found.folds)
        return found.follow, list(found.blocks), []

    def _adopted(self, listed: list[StoredPiece]) -> list[StoredPiece]:
        """Return the blocks; in a discussion without blocks, the Oldest of before counts as the first one."""
        text, covered = self._earlier() if self._read_as is None else ("", 0)
        sources = self._sources(range(bisect.bisect_left(self._at, covered)))
        if not text.strip() or not sources:
            return listed
        self.keep_fold([text], text)
        return [StoredPiece(text, "", Piece("earlier", sources))]


def _parsed(content: object, display: str) -> _Stored | None:
    """Raises UnreadableDataError for other content; a summary that is damaged is made again."""
    if content is None:
        return None
    found = texts_in(content, display)
    blocks = [piece for piece in pieces_in(found.get("blocks", []), display) if piece.keys]
    return _Stored(blocks, _kept_in(found.get("old")), _kept_in(found.get("oldest")), follow_state_in(found))


def _kept_in(entries: object) -> list[Kept]:
    found = []
    for entry in entries if isinstance(entries, list) else ():
        text, covers, seen, summed = (entry.get(key) for key in Kept._fields) if isinstance(entry, dict) else [None] * 4
        if isinstance(text, str) and isinstance(covers, str) and type(seen) is int and type(summed) is int:
            found.append(Kept(text, covers, seen, summed))
    return found


def _newest(kept: Sequence[Kept], used: Kept) -> list[Kept]:
    return [*(one for one in kept if one != used), used][-MOST_KEPT:]


def _is_same(known: Conversation, seen: Conversation) -> bool:
    """Return whether nothing has changed but the newest messages, which no section has yet."""
    return replace(known, used=0, tails=()) == replace(seen, used=0, tails=())
