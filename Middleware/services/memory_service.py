"""The memories of a conversation, as texts for prompts.

With a discussion id the texts come from the conversation's files, without one from the given messages. Only an empty
file of memories is ever created. Files of another API key raise DataKeyError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from Middleware.models.messages import Message
from Middleware.models.run_step import Step, reading
from Middleware.services.memory.memory_search import VectorSearch, search_memories_fully
from Middleware.services.memory.memory_store import SAID, MemoryStore
from Middleware.utilities.discussions.discussion_files import Pair, if_readable
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.utilities.relative_dates import language_of_message, spelled
from Middleware.utilities.said_times import day_of
from Middleware.utilities.search_utils import BLOCK_TOKENS, CHUNK_BREAK
from Middleware.utilities.text_utils import clear_out_user_assistant_from_chunks, get_message_chunks, restore_braces

SUMMARY_SEPARATOR = "\n------------\n"
NOTHING_GENERATED = "No memories have been generated yet"
NOTHING_TO_GRAB = "There are no memories to grab yet"
NO_MEMORIES = "There are not yet any memories"
NO_SUMMARY = "There is not yet a summary file"
NO_STATE_DOCUMENT = "No state document has been created yet"
NO_SEARCH_WITHOUT_ID = "Cannot search vector memories without a discussionId."
RECENT_MEMORIES = 3


class MemoryService:
    """Reads the memories, the summary and the state document.

    ``api_key_hash`` and ``encryption_key`` are those of the client's API key; both are None without one.
    """

    # -- memories --------------------------------------------------------------------------------------------------
    def get_recent_memories(
        self,
        messages: Sequence[Message],
        discussion_id: str | None,
        max_turns_to_search: int = 0,
        max_summary_chunks_from_file: int = 0,
        lookback_start: int = 0,
        *,
        encryption_key: bytes | None = None,
        api_key_hash: str | None = None,
        include_dates: bool = False,
    ) -> str:
        """Return the newest memories, joined by ``--ChunkBreak--``.

        With an id those are ``max_summary_chunks_from_file`` memories (0: three, negative: all); without one, blocks
        of the ``max_turns_to_search`` messages that end ``lookback_start`` before the newest.

        ``include_dates``: each memory whose messages have a date begins with it.
        """
        if not discussion_id:
            return CHUNK_BREAK.join(recent_message_blocks(messages, max_turns_to_search, lookback_start))
        store = _store(discussion_id, encryption_key, api_key_hash)
        texts = _texts(_read(store, MemoryStore.read_memories))
        if include_dates and texts:
            # Memories of another moment, or that cannot be read any more, have no dates.
            days = itertools.chain(store.said(), itertools.repeat({}))
            texts = [_dated(text, said) for text, said in zip(texts, days, strict=False)]
        if max_summary_chunks_from_file >= 0:
            texts = texts[-(max_summary_chunks_from_file or RECENT_MEMORIES) :]
        return CHUNK_BREAK.join(texts) if texts else NOTHING_GENERATED

    def get_chat_summary_memories(
        self,
        messages: Sequence[Message],
        discussion_id: str | None,
        max_turns_to_search: int = 0,
        *,
        encryption_key: bytes | None = None,
        api_key_hash: str | None = None,
    ) -> str:
        """Return the memories that are not yet in the summary, oldest first; without an id, blocks of new messages."""
        if not discussion_id:
            return SUMMARY_SEPARATOR.join(recent_message_blocks(messages, max_turns_to_search))
        return SUMMARY_SEPARATOR.join(
            _texts(
                self.get_latest_memory_chunks_with_hashes_since_last_summary(
                    discussion_id, encryption_key=encryption_key, api_key_hash=api_key_hash
                )
            )
        )

    def get_current_memories(
        self, discussion_id: str | None, *, encryption_key: bytes | None = None, api_key_hash: str | None = None
    ) -> list[str]:
        """Return all memories, oldest first; without any, a text that says so."""
        if not discussion_id:
            return [NO_MEMORIES]
        store = _store(discussion_id, encryption_key, api_key_hash)
        return _texts(_read(store, MemoryStore.read_memories)) or [NO_MEMORIES]

    # -- summary ---------------------------------------------------------------------------------------------------
    def get_current_summary(
        self, discussion_id: str | None, *, encryption_key: bytes | None = None, api_key_hash: str | None = None
    ) -> str:
        if not discussion_id:
            return NO_SUMMARY
        with reading("summary") as step:
            store = _store(discussion_id, encryption_key, api_key_hash)
            summary = store.summary()
            step.attributes["found"] = int(summary is not None)
            _note_trail(step, store)
        return summary[0] if summary is not None else NO_SUMMARY

    @staticmethod
    def find_how_many_new_memories_since_last_summary(
        summary_pairs: Sequence[Pair], memory_pairs: Sequence[Pair]
    ) -> int:
        """Return how many memories are newer than the summary; -1 without memories, or if it refers to none of them."""
        if not memory_pairs:
            return -1
        if not summary_pairs:
            return len(memory_pairs)
        hashes = [stored for _, stored in reversed(memory_pairs)]
        last = summary_pairs[-1][1]
        return hashes.index(last) if last in hashes else -1

    def get_latest_memory_chunks_with_hashes_since_last_summary(
        self, discussion_id: str | None, *, encryption_key: bytes | None = None, api_key_hash: str | None = None
    ) -> list[Pair]:
        """Return the memories that are not in the summary; all of them if it refers to none of them."""
        if not discussion_id:
            return []
        return _read(_store(discussion_id, encryption_key, api_key_hash), unsummarized)

    # -- other -----------------------------------------------------------------------------------------------------
    def get_current_state_document(
        self, discussion_id: str | None, *, encryption_key: bytes | None = None, api_key_hash: str | None = None
    ) -> str:
        if not discussion_id:
            return NO_STATE_DOCUMENT
        with reading("state") as step:
            text = _store(discussion_id, encryption_key, api_key_hash).state_document()
            step.attributes["found"] = int(bool(text.strip()))
        return text if text.strip() else NO_STATE_DOCUMENT

    def search_vector_memories(
        self,
        discussion_id: str | None,
        keywords: str,
        limit: int = 5,
        api_key_hash: str | None = None,
        bm25_weights: Sequence[float] | None = None,
        use_recency: bool = False,
        include_dates: bool = False,
        search_mode: str = "keyword",
        semantic_query: str = "",
        embedding_endpoint_name: str | None = None,
        use_entity_expansion: bool = False,
        request_id: str | None = None,
        *,
        encryption_key: bytes | None = None,
    ) -> str:
        """Return the best matches in the database; see ``VectorSearch`` for the arguments."""
        if not discussion_id:
            return NO_SEARCH_WITHOUT_ID
        return search_memories_fully(
            stored_discussion(discussion_id, api_key_hash, encryption_key),
            VectorSearch(
                keywords=keywords,
                limit=limit,
                bm25_weights=bm25_weights,
                use_recency=use_recency,
                include_dates=include_dates,
                mode=search_mode,
                semantic_query=semantic_query or "",
                embedding_endpoint=embedding_endpoint_name or "",
                use_entity_expansion=use_entity_expansion,
                request_id=request_id,
            ),
        )


def recent_message_blocks(messages: Sequence[Message], max_turns: int, lookback: int = 0) -> list[str]:
    """Return blocks of text of the ``max_turns`` messages that end ``lookback`` before the newest.

    If there are no such messages, return a text that says so.
    """
    end = max(0, len(messages) - max(0, lookback))
    chosen = messages[max(0, end - max_turns) : end] if max_turns > 0 else []
    if len(messages) <= 1 or not chosen:
        return [NOTHING_TO_GRAB]
    blocks = [block for block in get_message_chunks(chosen, 0, BLOCK_TOKENS) if block]
    return [restore_braces(block) for block in clear_out_user_assistant_from_chunks(blocks)]


def unsummarized(store: MemoryStore) -> list[Pair]:
    """Return the memories that are not in the summary, oldest first; all of them if it refers to none."""
    return new_and_covered(store)[0]


def new_and_covered(store: MemoryStore) -> tuple[list[Pair], int]:
    """Return the memories that are not in the summary, oldest first, and how many others there are.

    The summary has none of them if it refers to none.
    """
    with store.together():
        memories = store.read_memories()
        fold = if_readable(store.fold, None)
        if fold is not None:
            return list(fold.missing), len(memories) - len(fold.missing)
        count = _lag(store, memories)
    covered = 0 if count < 0 else len(memories) - count
    return memories[covered:], covered


def summary_lag(store: MemoryStore) -> int:
    """Return how many memories are newer than the summary; -1 without memories, or if it refers to none of them."""
    return _lag(store, store.memories())


def valid_position(memories: Sequence[Pair], summary: Pair | None, place: int | None) -> int | None:
    """``place``, the stored number of memories in the summary, if it still fits the memories; else None."""
    if summary is None or place is None or not 0 < place <= len(memories):
        return None
    return place if memories[place - 1][1] == summary[1] else None


def _lag(store: MemoryStore, memories: Sequence[Pair]) -> int:
    fold = if_readable(store.fold, None)
    if fold is not None:
        return len(fold.missing) if memories else -1
    summary = store.summary()
    place = valid_position(memories, summary, store.summary_position())
    if place is not None:
        return len(memories) - place
    return MemoryService.find_how_many_new_memories_since_last_summary([summary] if summary else [], memories)


def _store(discussion_id: str, encryption_key: bytes | None, api_key_hash: str | None) -> MemoryStore:
    return MemoryStore(stored_discussion(discussion_id, api_key_hash, encryption_key))


def _read(store: MemoryStore, read: Callable[[MemoryStore], list[Pair]]) -> list[Pair]:
    """Return memories that a node reads."""
    with reading("file") as step:
        pairs = read(store)
        step.attributes["found"] = len(pairs)
        _note_trail(step, store)
    return pairs


def _note_trail(step: Step, store: MemoryStore) -> None:
    if trail := store.trail():
        step.attributes["trail"] = trail


def _dated(text: str, said: Mapping[str, str]) -> str:
    """Return a memory behind the day on which the newest of its messages was sent, in its language."""
    day = day_of(said.get(SAID))
    return text if day is None else f"[{spelled(day, language_of_message([text]))}] {text}"


def _texts(pairs: Sequence[Pair]) -> list[str]:
    return [text for text, _ in pairs]
