"""Changes by hand in a discussion: a memory, the summary or the state document, one at a time, or all again.

They go through the server's own locks and writers. Hashes stay, so that no message is remembered twice. After a change,
the file as it was before is in its ``.bak``; after a deletion, no backup contains an earlier version of anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.exceptions import WilmerError
from Middleware.services.memory.chunk_facts import newest_facts
from Middleware.services.memory.compactor_store import BLOCKS_FILE, OLD_FILE, OLDEST_FILE
from Middleware.services.memory.folds import Folds, Version, chain, document_folds, summary_folds, text_hash
from Middleware.services.memory.follow_state import bury
from Middleware.services.memory.memory_documents import ANCHORS_FILE, ELSEWHERE_FILE, FOLLOW_FILE, MEMORIES_FILE
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory.pieces import StoredPiece, pieces_in
from Middleware.services.memory_service import valid_position
from Middleware.services.vision_cache import VisionResponses
from Middleware.utilities.discussion_state import COMPACTOR, MEMORIES
from Middleware.utilities.discussions.discussion_files import (
    Pair,
    read_content,
    read_object,
    read_pairs,
    write_content,
)
from Middleware.utilities.discussions.vector_memory import SearchableMemories
from Middleware.utilities.text_utils import restore_braces

# Seconds. A pass of the server holds the lock for as long as its LLM calls take; too long for a page to wait.
LOCK_SECONDS = 2.0
Kind = Literal["memory", "searchable", "summary", "state", "message"]
_KEY = re.compile(f"({'|'.join(get_args(Kind))})-([0-9]{{1,9}})-([0-9a-f]{{8}})")


class NoSuchMemoryError(WilmerError, LookupError):
    """There is no such memory, or it has been changed in the meantime; the message says which."""


class DiscussionBusyError(WilmerError):
    """The server writes memories of this discussion at this moment. Nothing was changed."""


@dataclass(frozen=True)
class MemoryKey:
    """Names one text of a discussion as it was when it was shown.

    Attributes:
        number: of a memory from 1, of a searchable memory or a message its id, else 0.
        version: of the text, so that a change by another is noticed.
    """

    kind: Kind
    number: int
    version: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.number}-{self.version}"

    @staticmethod
    def of(kind: Kind, number: int, text: str) -> MemoryKey:
        return MemoryKey(kind, number, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8])

    @staticmethod
    def parse(text: str) -> MemoryKey:
        """Return the key that was written as ``text``. Raises NoSuchMemoryError."""
        found = _KEY.fullmatch(text)
        if found is None:
            raise NoSuchMemoryError(f"'{text[:60]}' is not the key of a memory; a list of memories shows them.")
        return MemoryKey(cast(Kind, found[1]), int(found[2]), found[3])


class DiscussionEditor:
    """Changes the texts of one discussion.

    Its methods raise NoSuchMemoryError, DiscussionBusyError, DataKeyError for data of a key that is not at hand,
    UnreadableDataError, sqlite3.Error and OSError; then nothing has changed.
    """

    def __init__(self, reader: Reader) -> None:
        self._state = reader.state
        self._store = MemoryStore(self._state)
        self._has_database = reader.discussion.has_memories

    def change(self, key: MemoryKey, text: str, forget: bool = False) -> MemoryKey:
        """Replace a text and return its new key. Raises ValueError for a blank one.

        ``forget``: the earlier wording does not stay in a backup either.
        """
        if not text.strip():
            raise ValueError("The text must not be blank; to remove it, delete it.")
        if key.kind == "message":
            raise ValueError("A message is changed in the front-end; here it can be deleted.")
        with self._lock():
            if key.kind == "memory":
                pairs = self._memories(key)
                pairs[key.number - 1] = (text, pairs[key.number - 1][1])
                self._store.replace_memories(pairs, forget)
            elif key.kind == "searchable":
                with self._database(key) as memories:
                    memories.change_text(key.number, text)
            elif key.kind == "summary":
                self._store.save_summary(text, self._summary(key)[1], forget=forget)
            else:
                self._state_document(key)
                self._store.save_state_document(text, forget)
        return MemoryKey.of(key.kind, key.number, text)

    def delete(self, key: MemoryKey) -> None:
        """Delete a memory. Raises ValueError for the summary and the state document, which are one text each."""
        if key.kind not in ("memory", "searchable"):
            raise ValueError(
                "The summary and the state document can be changed, or be written again with all memories."
            )
        with self._lock():
            if key.kind == "memory":
                pairs = self._memories(key)
                self._bury(key.number - 1)
                self._delete_memory(pairs, key.number - 1)
            else:
                with self._database(key) as memories:
                    memories.delete(key.number)

    def forget(self, names: Collection[str], numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Delete memories, and what was made of them: the summaries and state documents that may hold them.

        Args:
            names: the ids of memories of the file, shown ones or not.
            numbers: of searchable memories.
            texts: those of the messages that are forgotten; the descriptions of images in them go as well.
        """
        with self._lock():
            summaries, documents = self._summaries_without(names), self._documents_without(numbers)
            for name in names:
                pieces = self._pieces(MEMORIES_FILE)
                index = next((place for place, one in enumerate(pieces) if one.keys and one.keys.id == name), None)
                if index is not None:
                    self._bury(index)
                    self._delete_memory([one.pair for one in pieces], index)
            elsewhere = self._pieces(ELSEWHERE_FILE)
            gone = [one.keys for one in elsewhere if one.keys and one.keys.id in names]
            for keys in gone:
                bury(self._state, keys.sources)
            if gone:
                rest = [one.as_json() for one in elsewhere if one.keys not in gone]
                write_content(self._state, ELSEWHERE_FILE, rest)
            if numbers:
                with self._state.memories(write=True) as memories:
                    memories.delete(*numbers)
            if summaries is not None:
                self._store.replace_summaries(summaries)
            if documents is not None:
                self._store.replace_documents(documents)
            self._forget_blocks(names)
            VisionResponses(self._state).forget(texts)

    def _forget_blocks(self, names: Collection[str]) -> None:
        """Delete these blocks of the compactor, and its summaries, as any of them may contain the messages."""
        content = read_object(self._state, BLOCKS_FILE)
        blocks = content.get("blocks")
        if not isinstance(blocks, list):
            return
        with self._state.lock(COMPACTOR, timeout=LOCK_SECONDS):
            kept = [block for block in blocks if block.get("id") not in names]
            write_content(self._state, BLOCKS_FILE, {**content, "blocks": kept, "old": [], "oldest": []})
            for name in (OLD_FILE, OLDEST_FILE):
                if read_pairs(self._state, name):
                    write_content(self._state, name, [])

    def delete_all(self) -> None:
        """Delete all that the next message writes again; the files as they were stay in their backups.

        Times of messages, descriptions of images and the compacted conversation stay.
        """
        with self._lock():
            self._store.require_readable()
            if self._has_database:
                with self._state.memories(write=True) as memories:
                    memories.delete_all()
            self._store.delete_state_document()
            # The pointers first: left behind, they could refer to a new memory.
            if self._store.condensation_hash():
                self._store.save_condensation_hash("")
            self._store.save_summary_position(None)
            self._store.delete_summary()
            if read_pairs(self._state, MEMORIES_FILE) is not None:
                self._store.replace_memories([])
            for name, nothing in ((ELSEWHERE_FILE, []), (ANCHORS_FILE, {}), (FOLLOW_FILE, {})):
                if self._state.read(name) is not None:
                    write_content(self._state, name, nothing)

    # -- what a key names ------------------------------------------------------------------------------------------
    def _memories(self, key: MemoryKey) -> list[Pair]:
        """Return the memories, among which the one with this key is."""
        pairs = read_pairs(self._state, MEMORIES_FILE) or []
        _require(key, pairs[key.number - 1][0] if 0 < key.number <= len(pairs) else None)
        return pairs

    @contextlib.contextmanager
    def _database(self, key: MemoryKey) -> Iterator[SearchableMemories]:
        if not self._has_database:
            _require(key, None)
        with self._state.memories(write=True) as memories:
            _require(key, next((row["memory_text"] for row in memories.by_ids([key.number])), None))
            yield memories

    def _summary(self, key: MemoryKey) -> Pair:
        self._store.require_readable()
        summary = self._store.summary()
        _require(key, summary[0] if summary else None)
        assert summary is not None
        return summary

    def _state_document(self, key: MemoryKey) -> None:
        _require(key, self._store.state_document() or None)

    # -- deleting a memory -----------------------------------------------------------------------------------------
    def _delete_memory(self, pairs: list[Pair], index: int) -> None:
        """Delete a memory of the file in such a way that its messages still count as remembered.

        The newest memory says up to where they do: its hash goes to the one before it. The only memory stays as a blank
        text with its hash.
        """
        gone = pairs[index][1]
        if index + 1 < len(pairs):
            after = [*pairs[:index], *pairs[index + 1 :]]
            self._move_pointers(pairs, index, index, pairs[index - 1][1] if index else "")
        elif index:
            after = [*pairs[: index - 1], (pairs[index - 1][0], gone)]
            self._move_pointers(pairs, index, index - 1, gone)
        else:
            after = [("", gone)]
        # An earlier wording may have been in any of them. The memory goes last, so that a crash leaves too much.
        self._store.forget_earlier_versions()
        self._store.replace_memories(after, forget=True)

    def _pieces(self, name: str) -> list[StoredPiece]:
        content = read_content(self._state, name)
        return [] if content is None else pieces_in(content, self._state.display(name))

    def _summaries_without(self, names: Collection[str]) -> list[Version] | None:
        pieces = self._pieces(MEMORIES_FILE)
        gone = [one.text for one in (*pieces, *self._pieces(ELSEWHERE_FILE)) if one.keys and one.keys.id in names]
        return _versions_without(summary_folds(self._state), [one.text for one in pieces], gone)

    def _documents_without(self, numbers: Collection[int]) -> list[Version] | None:
        if not numbers:
            return None
        facts = newest_facts(self._state)
        with self._state.memories() as memories:
            chunks = set(memories.chunks_of(numbers).values())
        # Of chunks that are elsewhere, no version of the newest trail has anything.
        gone = [lines for lines, chunk in facts if chunk in chunks] or [""]
        return _versions_without(document_folds(self._state, lambda: facts), [lines for lines, _ in facts], gone)

    def _bury(self, index: int) -> None:
        """Keep the memory from being made again of the same messages."""
        known = self._pieces(MEMORIES_FILE)[index].keys
        if known is not None:
            bury(self._state, known.sources)

    def _move_pointers(self, pairs: list[Pair], index: int, renamed: int, new: str) -> None:
        """Let condensation and summary refer to memories that stay; like Condensation, before the memories are written.

        Args:
            index: of the memory that goes.
            renamed: of the memory whose hash goes; what refers to it refers to the hash ``new`` from now on.
        """
        old = pairs[renamed][1]
        summary = self._store.summary()
        place = valid_position(pairs, summary, self._store.summary_position())
        # Another memory may have an equal hash, which stays.
        if self._store.condensation_hash() == old and [stored for _, stored in pairs].count(old) == 1:
            self._store.save_condensation_hash(new)
        if summary is not None and summary[0].strip() and summary[1] == old and place in (None, renamed + 1):
            self._store.save_summary(summary[0], new)
        if place is not None:
            self._store.save_summary_position(place - (place > index) or None)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            with self._state.lock(MEMORIES, timeout=LOCK_SECONDS):
                yield
        except TimeoutError:
            raise DiscussionBusyError(
                "The server is writing memories of this discussion right now. Nothing was "
                "changed; try again in a moment."
            ) from None


def _require(key: MemoryKey, text: str | None) -> None:
    if text is None:
        raise NoSuchMemoryError("It is no longer there; nothing was changed.")
    if MemoryKey.of(key.kind, key.number, restore_braces(text)).version != key.version:
        raise NoSuchMemoryError("It has been changed in the meantime; nothing was changed now. Load the page again.")


def _versions_without(folds: Folds, texts: Sequence[str], gone: Collection[str]) -> list[Version] | None:
    """Return the versions that cannot hold anything of memories with the texts ``gone``, and those that a user wrote.

    None if that are all. ``texts``: of the memories that the newest version was made of, in order.
    """
    hashes = {text_hash(text) for text in gone}
    clean = set(chain(itertools.takewhile(lambda text: text_hash(text) not in hashes, texts)))
    versions = folds.versions()[0] if hashes else []
    kept = [
        one
        for one in versions
        if one.pinned or (one.added and not hashes.intersection(one.added)) or (one.count > 0 and one.covers in clean)
    ]
    return kept if len(kept) < len(versions) else None
