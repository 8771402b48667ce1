"""Single operations on the searchable memories of a conversation.

Each opens the database, runs one operation and closes it; several operations together use ``SearchableMemories``.
Reading creates nothing. Errors are logged, and the result is empty or None. Two errors are raised, because the caller
must not continue: DataKeyError (the data belongs to another API key) and EarlyTerminationException.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from Middleware.exceptions import DataKeyError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_folder import stored_discussion, used_discussions
from Middleware.utilities.discussions.vector_memory import schema
from Middleware.utilities.discussions.vector_memory.searchable import MemoryRow, SearchableMemories

logger = logging.getLogger(__name__)

T = TypeVar("T")


def initialize_vector_db(
    discussion_id: str, api_key_hash: str | None = None, *, encryption_key: bytes | None = None
) -> bool:
    """Create the database and its tables if they are missing; return whether they exist."""
    return _do(
        "prepare",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: memories.exists,
        False,
        write=True,
    )


def get_db_connection(
    discussion_id: str, api_key_hash: str | None = None, *, encryption_key: bytes | None = None
) -> sqlite3.Connection | None:
    """Return a connection to the existing database file, to be closed by the caller, or None.

    Rows are found by column name, ``recency_score(date)`` is known, and statements commit by themselves. Under a key,
    texts and vectors are tokens here.
    """
    if _state(discussion_id, api_key_hash, encryption_key) is None:
        return None
    try:
        folder = used_discussions().folder(discussion_id, api_key_hash, encryption_key)
        if folder is None or not os.path.isfile(folder.vector_database()):
            return None
        return schema.connect(folder.vector_database())
    except (sqlite3.Error, OSError) as error:
        logger.error("The memory database of discussion %s cannot be opened: %s", discussion_id, error)
        return None


def add_memory_to_vector_db(
    discussion_id: str,
    memory_text: str,
    metadata_json_str: str,
    api_key_hash: str | None = None,
    index_topics: bool = False,
    *,
    encryption_key: bytes | None = None,
) -> int | None:
    """Store one memory and index its words; returns its row id, or None with nothing stored."""
    return _do(
        "write",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: memories.store_chunk([(memory_text, metadata_json_str)], None, index_topics)[0],
        None,
        write=True,
    )


def search_memories_by_keyword(
    discussion_id: str,
    query: str,
    limit: int = 15,
    api_key_hash: str | None = None,
    bm25_weights: Sequence[float] | None = None,
    use_recency: bool = False,
    *,
    encryption_key: bytes | None = None,
    scope: CancelScope | None = None,
) -> list[MemoryRow]:
    """Return the memories that hold one of the phrases of ``query``, which ``;`` separates, best first."""
    return _do(
        "search",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: memories.keyword_search(query, limit, bm25_weights, use_recency),
        [],
        scope=scope,
    )


def get_vector_check_hash_history(
    discussion_id: str, limit: int = 10, api_key_hash: str | None = None, *, encryption_key: bytes | None = None
) -> list[str]:
    """Return hashes of the messages that were processed last, newest first."""
    return _do(
        "read",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: [message.hash for message in memories.logged_messages(limit)],
        [],
    )


def add_vector_check_hash(
    discussion_id: str, message_hash: str, api_key_hash: str | None = None, *, encryption_key: bytes | None = None
) -> None:
    """Log the hash of a message up to which the conversation was processed."""
    _do(
        "write",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: memories.log_hash(message_hash),
        None,
        write=True,
    )


def add_embeddings_to_db(
    discussion_id: str,
    embeddings: Sequence[tuple[int, bytes]],
    model: str,
    api_key_hash: str | None = None,
    *,
    encryption_key: bytes | None = None,
) -> int:
    """Store vectors, as blobs, for rows; returns how many."""
    return _do(
        "write",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: memories.add_embeddings(embeddings, model),
        0,
        write=True,
    )


def get_all_embeddings(
    discussion_id: str, model: str, api_key_hash: str | None = None, *, encryption_key: bytes | None = None
) -> list[tuple[int, bytes]]:
    """Return row ids and blobs of all vectors of a model."""
    return _do(
        "read", _state(discussion_id, api_key_hash, encryption_key), lambda memories: memories.embeddings(model), []
    )


def get_memories_without_embeddings(
    discussion_id: str,
    model: str,
    limit: int = 20,
    api_key_hash: str | None = None,
    *,
    encryption_key: bytes | None = None,
) -> list[MemoryRow]:
    """Return the oldest memories that have no vector of a model."""
    return _do(
        "read",
        _state(discussion_id, api_key_hash, encryption_key),
        lambda memories: memories.without_embeddings(model, limit),
        [],
    )


def get_memories_by_ids(
    discussion_id: str, ids: Sequence[int], api_key_hash: str | None = None, *, encryption_key: bytes | None = None
) -> list[MemoryRow]:
    """Return the memories with these ids, in their order; missing ones are left out."""
    return _do("read", _state(discussion_id, api_key_hash, encryption_key), lambda memories: memories.by_ids(ids), [])


def _state(discussion_id: str, key_hash: str | None, encryption_key: bytes | None) -> DiscussionState | None:
    try:
        return stored_discussion(discussion_id, key_hash, encryption_key)
    except (TypeError, ValueError) as error:
        logger.error("There is no memory database: %s", error)
        return None


def _do(
    what: str,
    state: DiscussionState | None,
    action: Callable[[SearchableMemories], T],
    otherwise: T,
    *,
    write: bool = False,
    scope: CancelScope | None = None,
) -> T:
    """Return the result of ``action``; ``otherwise``, with an error in the log, if it failed."""
    # The message of other errors may quote the text of a memory, which must not be logged.
    if state is None:
        return otherwise
    try:
        with state.memories(write=write, scope=scope) as memories:
            return action(memories)
    except DataKeyError:
        raise
    except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError) as error:
        logger.error(
            "Could not %s the memory database of discussion %s: %s: %s",
            what,
            state.discussion_id,
            type(error).__name__,
            error if isinstance(error, sqlite3.Error | OSError) else "unusable data",
        )
        return otherwise
