"""The memories of a discussion that fit the history of a request, and those that do not.

What is shown is decided at reading: a memory is a text with the keys of the messages that it was made of, and it is
shown while they stand in the history of the request. ``memories.json`` has the memories of the newest trail in order,
for readers that know no history, and ``memories_elsewhere.json`` the others, which come back with their messages.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

from Middleware.exceptions import StoredDataError
from Middleware.models.messages import Message, VisionNote
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.services.memory.folds import summary_folds
from Middleware.services.memory.follow_state import Conversation, FollowState, read_follow_state, write_follow_state
from Middleware.services.memory.memory_documents import ANCHORS_FILE, ELSEWHERE_FILE, MEMORIES_FILE
from Middleware.services.memory.memory_settings import SHOW, MemorySettings, quiet_memory_settings
from Middleware.utilities.conversations.message_keys import injected, path_messages, without
from Middleware.utilities.conversations.path import conversation_of, is_tentative, known_keys
from Middleware.utilities.conversations.trail import Piece, Trail, among_others, trail_of
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, pairs_in, read_content, read_object, write_content
from Middleware.utilities.discussions.message_places import MessagePlace, find_place, place_from_json
from Middleware.utilities.hashing_utils import hash_messages, recognition_keys
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import counted

if TYPE_CHECKING:
    # It opens databases, which most servers need not.
    from Middleware.utilities.discussions.vector_memory.searchable import SearchableMemories

T = TypeVar("T")
FILE_MEMORIES, CHUNKS = "file", "searchable"
_KEYS = ("text_block", "hash", "id", "sources", "before", "after", "made")
# A client rewrites all messages, where most of them are holes in as many passes in a row.
MOST_REWRITTEN = 3
_PIECES_OF_A_LONG_TRAIL = 4
# Documents whose parsed content is kept, and bytes of all of them.
_MOST_PARSED, _PARSED_BYTES = 100, 32_000_000
# Fewer messages do not say which conversation it is.
_FEWEST = 4


@dataclass(frozen=True)
class StoredPiece:
    """A memory, or of searchable memories a chunk.

    Attributes:
        hash: of the last message that it covers.
        keys: those of its messages; None in data of older versions, and of users who wrote it by hand.
        more: other keys of the entry, which are kept.
    """

    text: str
    hash: str
    keys: Piece | None = None
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def pair(self) -> Pair:
        return self.text, self.hash

    def as_json(self) -> dict[str, object]:
        content: dict[str, object] = {"text_block": self.text, "hash": self.hash}
        if self.keys is not None:
            keys = self.keys
            content |= {"id": keys.id, "sources": list(keys.sources), "before": keys.before}
            content |= {"after": keys.after, "made": keys.made}
        return {**content, **self.more}


def pieces_in(content: object, display: str) -> list[StoredPiece]:
    """Return the memories of a parsed list. Raises UnreadableDataError for anything else."""
    pairs = pairs_in(content, display)
    assert isinstance(content, list)
    return [
        StoredPiece(text, stored, _keys_in(entry), {key: entry[key] for key in entry if key not in _KEYS})
        for (text, stored), entry in zip(pairs, content, strict=True)
    ]


def _keys_in(entry: Mapping[str, object]) -> Piece | None:
    name, sources, made = entry.get("id"), entry.get("sources"), entry.get("made")
    before, after = entry.get("before"), entry.get("after")
    if not isinstance(name, str) or not isinstance(sources, list) or not sources:
        return None
    if not all(isinstance(source, str) for source in sources):
        return None
    return Piece(
        name,
        tuple(sources),
        before if isinstance(before, str) else "",
        after if isinstance(after, str) else "",
        made if type(made) is int else 0,
    )


def _parsed() -> BoundedCache[str, tuple[bytes, object]]:
    return BoundedCache(_MOST_PARSED, lambda entry: len(entry[0]), _PARSED_BYTES)


def read_parsed(state: DiscussionState, name: str, parse: Callable[[object], T]) -> T:
    """Return the parsed content of a document, which is kept, so it must not be changed; that of None without one.

    Raises UnreadableDataError, DataKeyError and OSError.
    """
    stored = state.read(name)
    # What is encrypted on the disk does not stay in memory as a text.
    is_kept = stored is not None and not state.cipher.active
    known, place = process().one(_parsed), f"{state.place}/{name}"
    found = known.get(place) if is_kept else None
    if found is not None and found[0] == stored:
        return cast(T, found[1])
    content = parse(read_content(state, name))
    if is_kept and stored is not None:
        known.put(place, (stored, content))
    return content


class Followed(ABC):
    """The memories of one kind of one discussion, as one request sees them.

    Args:
        messages: the history of the request, as the outermost workflow got it.

    Attributes:
        kind: names it among those of a conversation.
        noun: what one of them and several are called in the log.
    """

    kind = ""
    noun = ("memory", "memories")

    def __init__(self, state: DiscussionState, messages: Sequence[Message], settings: MemorySettings) -> None:
        self._state, self._settings = state, settings
        # The messages of the request, without system messages, and where they stand in it.
        self._indexes = [
            index
            for index, one in enumerate(messages)
            if one.get("role") != "system" and not isinstance(one, VisionNote)
        ]
        self._all = [messages[index] for index in self._indexes]
        self._all_keys = path_messages(self._all)
        self._found: Conversation | None = None
        self.refresh()
        self._newest_then = frozenset(piece.id for piece in self._newest_own)

    def refresh(self) -> None:
        """Read what is stored. Raises UnreadableDataError, DataKeyError and OSError."""
        self._follow, listed, self._elsewhere = self._load()
        mine = self._found.number if self._found else self._number(listed)
        conversation = self._follow.find(mine)
        tails = conversation.tails if conversation else ()
        self._left_out = injected(self._all_keys, tails)
        self.history = without(self._all_keys, self._left_out)
        self.messages = [one for index, one in enumerate(self._all) if index not in self._left_out]
        self.is_tentative = conversation is None and is_tentative(self.history)
        self._conversation = self._found = conversation or self._found or Conversation(self._follow.new_number())
        self._listed = self._adopted(listed)
        self._forget_derived()

    def _forget_derived(self) -> None:
        """Let what follows from the stored pieces be made again, after these have changed."""
        for name in ("trail", "_by_id"):
            self.__dict__.pop(name, None)

    # -- what is shown ---------------------------------------------------------------------------------------------

    @cached_property
    def trail(self) -> Trail:
        """The trail of the history, with tombstones."""
        gone = [Piece(f"deleted {number}", keys, tombstone=True) for number, keys in enumerate(self._tombstones)]
        pieces = sorted((piece.keys for piece in self._pieces if piece.keys), key=lambda piece: piece.made)
        return trail_of(self.history, [*gone, *pieces], self._conversation.window(self.kind))

    @property
    def _tombstones(self) -> Sequence[tuple[str, ...]]:
        """The sources of what must not be made again."""
        return ()

    @property
    def shown(self) -> list[StoredPiece]:
        """The memories that readers show, in order."""
        by_id = self._by_id
        unknown = [piece for piece in self._listed if piece.keys is None]
        own = self._newest_own if self._is_rewritten else self.trail.pieces
        others = [one for one in self._follow.conversations if one.number != self._conversation.number]
        trails = (self._known(one.active.get(self.kind, ())) for one in others)
        shown = with_others(own, trails, self._settings)
        return [*unknown, *(by_id[piece.id] for piece in shown)]

    @property
    def about(self) -> str:
        """How many of the pieces fit the history, as it is shown in a run."""
        holes = counted(len(self.trail.holes(self.trail.end)), "hole")
        return f"{len(self.trail.pieces)} of {counted(len(self._by_id), 'piece')} on the path, {holes}"

    def left_out(self) -> list[Piece]:
        """Return the pieces of the newest trail of which a message is missing in the history.

        Those that a later request has made of its newer messages since this one began do not count.
        """
        there = {key for message in self.history for key in message.keys}
        lost = self._newest_then.difference(piece.id for piece in self.trail.pieces)
        return [piece for piece in self._newest_own if piece.id in lost and not there.issuperset(piece.sources)]

    @property
    def discussion_id(self) -> str:
        return self._state.discussion_id

    @property
    def places(self) -> list[int]:
        """The indexes of the messages of the history among those of the request, without system messages."""
        return [index for index in range(len(self._all)) if index not in self._left_out]

    @property
    def _is_rewritten(self) -> bool:
        return self._conversation.rewritten.get(self.kind, 0) >= MOST_REWRITTEN

    @property
    def _newest_own(self) -> list[Piece]:
        return list(self._known(self._conversation.active.get(self.kind, ())))

    def _known(self, names: Iterable[str]) -> Iterator[Piece]:
        by_id = self._by_id
        for name in names:
            stored = by_id.get(name)
            if stored is not None and stored.keys is not None:
                yield stored.keys

    @property
    def _pieces(self) -> list[StoredPiece]:
        return [*self._elsewhere, *self._listed]

    @cached_property
    def _by_id(self) -> dict[str, StoredPiece]:
        # After a crash between the two files a piece is in both, and the second one is newer.
        return {piece.keys.id: piece for piece in self._pieces if piece.keys}

    # -- what is read ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _load(self) -> tuple[FollowState, list[StoredPiece], list[StoredPiece]]:
        """Return what is stored of the conversations, of the newest trail, and elsewhere."""

    def _of_other_kinds(self) -> Iterable[tuple[str, Sequence[StoredPiece]]]:
        """Return the other kinds, with what is stored of them. What cannot be read is left out."""
        return ()

    def _adopted(self, listed: list[StoredPiece]) -> list[StoredPiece]:
        """Return the listed memories, with the keys of those that are stored without."""
        return listed

    def _number(self, listed: Sequence[StoredPiece]) -> int | None:
        number = self._number_by(self.kind, (*self._elsewhere, *listed))
        if number is not None or not self._follow.conversations:
            return number
        found = (self._number_by(kind, pieces) for kind, pieces in self._of_other_kinds())
        return next((number for number in found if number is not None), None)

    def _number_by(self, kind: str, pieces: Iterable[StoredPiece]) -> int | None:
        by_id = {piece.keys.id: piece.keys for piece in pieces if piece.keys}
        active = {name for one in self._follow.conversations for name in one.active.get(kind, ())}
        others = [piece.sources for name, piece in by_id.items() if name not in active]
        known = (
            known_keys(one.number, one.used, one.first, self._keys_of(one, kind, by_id), others)
            for one in self._follow.conversations
        )
        return conversation_of(self._all_keys, known)

    def _keys_of(self, one: Conversation, kind: str, by_id: Mapping[str, Piece]) -> list[str]:
        """Return the keys of the messages of a conversation, in order, as far as its pieces of a kind name them."""
        return [key for name in one.active.get(kind, ()) if name in by_id for key in by_id[name].sources]

    def knows(self, span: range) -> bool:
        """Return whether a memory was made of just these texts."""
        sources = tuple(self.history[index].key for index in span)
        return any(piece.keys is not None and piece.keys.sources == sources for piece in self._pieces)

    # -- what is written -------------------------------------------------------------------------------------------

    def keys_of(self, indexes: Sequence[int]) -> Piece:
        """Return the keys of a memory that is made of the messages with these indexes, still without an id."""
        earlier = [one.piece for one in self.trail.placed if one.at and one.at[0] < indexes[0]]
        hidden = [one.piece for one in self.trail.placed if not one.at]
        return Piece(
            "",
            tuple(self.history[index].key for index in indexes),
            self.history[indexes[0] - 1].key if indexes[0] else self._conversation.last,
            next((piece.id for piece in reversed([*hidden, *earlier])), ""),
        )

    def add(self, indexes: Sequence[int], text: str, stored_hash: str, more: Mapping[str, object]) -> None:
        """Store a memory of the messages with these indexes in the history; a blank one is a tombstone.

        ``more``: other keys of its entry.
        """
        keys = self.keys_of(indexes)
        if text:
            made = max(int(time.time() * 1000), *(piece.keys.made + 1 for piece in self._pieces if piece.keys), 0)
            keys = replace(keys, id=_new_id(keys.sources, text, self._by_id), made=made)
            self._listed.append(StoredPiece(text, stored_hash, keys, dict(more)))
        else:
            self._follow = self._follow.with_tombstone(keys.sources)
        self._forget_derived()

    @abstractmethod
    def _store(self, shown: Sequence[StoredPiece], rest: Sequence[StoredPiece]) -> None:
        """Store which memories are shown, and the others."""

    def settle(self, rewritten: int | None = None) -> None:
        """Store which memories fit the history. Raises OSError and DataKeyError.

        ``rewritten``: how many passes in a row have found most of it rewritten; None leaves the number alone.
        """
        if self.is_tentative or (len(self.history) <= _FEWEST and not self.shown):
            return
        shown = self._linked(self.shown)
        names = {piece.keys.id for piece in shown if piece.keys}
        rest = {name: piece for name, piece in self._by_id.items() if name not in names}
        self._remember_conversation(rewritten)
        self._store(shown, list(rest.values()))
        self.refresh()

    def _linked(self, pieces: Iterable[StoredPiece]) -> list[StoredPiece]:
        """Return memories, those of the trail with the id of the one before."""
        after: dict[str, str] = {}
        for one, following in zip([None, *self.trail.placed], self.trail.placed, strict=False):
            after[following.piece.id] = one.piece.id if one else following.piece.after
        return [_after(piece, after) for piece in pieces]

    def _seen(self) -> Conversation:
        """Return the conversation after this request."""
        one = self._conversation
        changed = replace(one.seen(self._all_keys, self.history, int(time.time() * 1000)), length=len(self.history))
        if self._is_rewritten:
            return changed
        names = tuple(placed.piece.id for placed in self.trail.placed if not placed.piece.tombstone)
        return replace(changed, active={**one.active, self.kind: names})

    def _remember_conversation(self, rewritten: int | None) -> None:
        changed, known = self._seen(), self._follow.find(self._conversation.number)
        if rewritten is not None:
            changed = replace(changed, rewritten={**changed.rewritten, self.kind: rewritten})
        stored = read_follow_state(self._state)
        if replace(changed, used=0) != replace(known or Conversation(0), used=0) or stored != self._follow:
            self._follow = self._follow.with_conversation(changed)
            write_follow_state(self._state, self._follow)

    def _kept(self, rest: Sequence[StoredPiece]) -> list[StoredPiece]:
        """Return the memories that are kept elsewhere: all of other conversations, and the newest of the others."""
        active = {name for one in self._follow.conversations for name in one.active.get(self.kind, ())}
        loose = [piece for piece in rest if piece.keys and piece.keys.id not in active]
        dropped = {id(piece) for piece in loose[: max(0, len(loose) - self._settings.keep_elsewhere)]}
        return [piece for piece in rest if id(piece) not in dropped]

    # -- rewritten histories ---------------------------------------------------------------------------------------

    def rewritten_with(self, end: int, covered: Collection[int] = ()) -> int:
        """Return how many passes in a row, with this one, have found most of the history rewritten.

        ``covered``: the messages that have memories without keys.
        A branch is shorter, and a return has no holes, so only a client that changes all messages does that.
        """
        one = self._conversation
        known = one.rewritten.get(self.kind, 0)
        holes = sum(index not in covered for hole in self.trail.holes(end) for index in hole)
        is_storm = (
            2 * holes > end
            and len(self.history) >= one.length
            and len(one.active.get(self.kind, ())) >= _PIECES_OF_A_LONG_TRAIL
        )
        return known + 1 if is_storm else 0


class FollowedFiles(Followed):
    """The file memories of one discussion, as one request sees them."""

    kind = FILE_MEMORIES

    def _load(self) -> tuple[FollowState, list[StoredPiece], list[StoredPiece]]:
        with self._state.together(MEMORIES_FILE, ELSEWHERE_FILE, ANCHORS_FILE):
            return read_follow_state(self._state), self._read(MEMORIES_FILE), self._read(ELSEWHERE_FILE)

    @property
    def _tombstones(self) -> Sequence[tuple[str, ...]]:
        return self._follow.tombstones

    @property
    def without_keys(self) -> tuple[list[str], list[str]]:
        """The hashes of the memories without keys, and of those listed before the first of them."""
        hashes = [piece.hash for piece in self._listed if piece.keys is None]
        before = itertools.takewhile(lambda piece: piece.keys is not None, self._listed)
        return hashes, [piece.hash for piece in before]

    def _of_other_kinds(self) -> Iterable[tuple[str, Sequence[StoredPiece]]]:
        import sqlite3  # here, since most servers need no database before a request

        with contextlib.suppress(sqlite3.Error, StoredDataError, OSError):
            yield CHUNKS, stored_chunks(self._state, [key for one in self._all_keys for key in one.keys])

    @property
    def pairs(self) -> list[Pair]:
        return [piece.pair for piece in self.shown]

    def shown_before(self, index: int) -> list[Pair]:
        """Return the memories that are shown before a message of the history."""
        later = {placed.piece.id for placed in self.trail.placed if placed.at and placed.at[0] >= index}
        return [piece.pair for piece in self.shown if piece.keys is None or piece.keys.id not in later]

    def _read(self, name: str) -> list[StoredPiece]:
        display = self._state.display(name)
        return list(read_parsed(self._state, name, lambda found: [] if found is None else pieces_in(found, display)))

    def _adopted(self, listed: list[StoredPiece]) -> list[StoredPiece]:
        """Return the listed memories: those without keys with the messages between two places, if both are known."""
        if all(piece.keys for piece in listed):
            return listed
        anchors = self._anchors()
        hashes, keys = hash_messages(self._all), recognition_keys(self._all)
        reached = [_place(piece.hash, place_from_json(anchors.get(piece.hash)), hashes, keys) for piece in listed]
        found: list[StoredPiece] = []
        start: int | None = 0
        for piece, at in zip(listed, reached, strict=True):
            sources = [] if piece.keys or at is None or start is None else self._all_keys[start : at + 1]
            if sources:
                name = _new_id([one.key for one in sources], piece.text, {one.keys.id for one in found if one.keys})
                before = self._all_keys[start - 1].key if start else ""
                piece = replace(piece, keys=Piece(name, tuple(one.key for one in sources), before))
            found.append(piece)
            start = None if at is None else at + 1
        return found

    def _anchors(self) -> Mapping[str, object]:
        try:
            return read_object(self._state, ANCHORS_FILE)
        except (StoredDataError, OSError):
            # It may be missing: then these memories are always shown.
            return {}

    # -- what is written -------------------------------------------------------------------------------------------

    def join(self, start: int, end: int, text: str) -> bool:
        """Store a memory in place of the shown ones from ``start`` to before ``end``, which are kept elsewhere.

        Return whether that could be done: not with memories of other conversations, or of before.
        """
        batch = self.shown[start:end]
        at = {placed.piece.id: placed.at for placed in self.trail.placed}
        indexes = [index for piece in batch for index in (at.get(piece.keys.id, ()) if piece.keys else ())]
        if not all(piece.keys and at.get(piece.keys.id) for piece in batch):
            return False
        more = {**batch[-1].more, **{key: value for key, value in batch[0].more.items() if key == "said_from"}}
        self.add(indexes, text, batch[-1].hash, more)
        self.settle()
        return True

    def _store(self, shown: Sequence[StoredPiece], rest: Sequence[StoredPiece]) -> None:
        summary_folds(self._state).keep()
        self._replace(ELSEWHERE_FILE, self._kept(rest))
        self._replace(MEMORIES_FILE, shown)

    def _replace(self, name: str, pieces: Sequence[StoredPiece]) -> None:
        content = [piece.as_json() for piece in pieces]
        before = read_content(self._state, name)
        if content != (before or []):
            write_content(self._state, name, content)


def with_others(own: Sequence[Piece], others: Iterable[Iterable[Piece]], settings: MemorySettings) -> list[Piece]:
    """Return a trail; where the settings want those of other conversations, with their pieces among its own."""
    if settings.other_chats != SHOW:
        return list(own)
    seen = {piece.id for piece in own}
    found = {piece.id: piece for trail in others for piece in trail}
    return among_others(own, [piece for name, piece in found.items() if name not in seen])


def stored_chunks(
    state: DiscussionState, keys: Iterable[str], memories: SearchableMemories | None = None
) -> list[StoredPiece]:
    with contextlib.ExitStack() as stack:
        found = memories or stack.enter_context(state.memories())
        return [StoredPiece("", "", piece) for piece in found.chunks(keys)]


def _after(piece: StoredPiece, after: Mapping[str, str]) -> StoredPiece:
    if piece.keys is None or piece.keys.id not in after:
        return piece
    return replace(piece, keys=replace(piece.keys, after=after[piece.keys.id]))


def _place(stored: str, place: MessagePlace | None, hashes: Sequence[str], keys: Sequence[str]) -> int | None:
    if place is None:
        return None
    found = [
        index for index, pair in enumerate(zip(hashes, keys, strict=True)) if stored == pair[0] or place.key == pair[1]
    ]
    return find_place(found, keys, place) if found else None


def _new_id(sources: Iterable[str], text: str, taken: Iterable[str]) -> str:
    """Return the first 16 digits of the hash of sources and text; of the same once more, those of another one."""
    known, content = set(taken), "\n".join((*sources, text))
    while (name := hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]) in known:
        content += "\n"
    return name


K = TypeVar("K", bound=Followed)


def followed(state: DiscussionState) -> FollowedFiles | None:
    """Return what the current request sees of a discussion; None if memories do not follow, or no history is known.

    It is made once for each request. Raises UnreadableDataError, DataKeyError and OSError.
    """
    return followed_as(state, FollowedFiles)


def followed_as(state: DiscussionState, kind: type[K]) -> K | None:
    """Return what the current request sees of the memories of a kind of a discussion; see ``followed``."""
    request = current_request()
    if request is None or not request.history:
        return None
    place = f"{kind.kind} {state.place}"
    found = request.followed.get(place)
    if found is None:
        settings = quiet_memory_settings()
        found = kind(state, request.history, settings) if settings.follow_edits else False
        request.followed[place] = found
    return found if isinstance(found, kind) else None
