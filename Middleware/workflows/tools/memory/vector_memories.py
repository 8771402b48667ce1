"""Searchable memories, made by an LLM or a workflow from the new messages of a conversation."""
from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cached_property

from Middleware.models.messages import Message
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.conversations.discussion_folder import DiscussionFolder
from Middleware.utilities.conversations.message_places import LoggedMessage
from Middleware.utilities.conversations.vector_memory import VectorMemories
from Middleware.utilities.hashing_utils import hash_messages
from Middleware.utilities.text_utils import messages_to_text_block, restore_braces, rough_estimate_token_length
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import folder_of, raw_messages
from Middleware.workflows.tools.memory.new_messages import Chunk, chunks_of, indexes_by_hash, reached
from Middleware.workflows.tools.memory.shared import memory_lock
from Middleware.workflows.tools.memory.vector_chunk_writer import ChunkWriter, Pair

logger = logging.getLogger(__name__)

# How many logged hashes are looked up among the messages: enough that one of them survives edits by the client.
KNOWN_HASHES = 10


class VectorMemoryPass:
    """One pass over a conversation that stores the memories of its new messages, if these are enough."""

    def __init__(self, context: ExecutionContext, settings: MemorySettings, folder: DiscussionFolder) -> None:
        self._context, self._settings, self._folder = context, settings, folder
        self._messages = [message for message in raw_messages(context) if message.get("role") != "system"]

    def run(self) -> None:
        """Store the memories of new messages, chunk by chunk; the rest is retried next time.

        Problems with the LLM, a workflow or the database are logged. Raises EarlyTerminationException, and DataKeyError
        if the stored memories are of another API key; memories stored before that stay.
        """
        with _database_problems_logged(self._folder), _opened(self._context, self._folder) as memories:
            if not self._due(memories):
                return
            with memory_lock(self._context, self._folder, self._settings) as ours:
                if ours:
                    self._work(memories)

    def _work(self, memories: VectorMemories) -> None:
        # Another request may have stored some of them while this one waited.
        new = self._due(memories, warn=True)
        if new:
            chunks = chunks_of(self._messages, self._hashes, new.start, new.stop, self._settings.vector_chunk_size)
            after = self._hashes[new.start - 1] if new.start else ""
            ChunkWriter(self._context, self._settings, self._folder, memories).write(chunks, after)

    def _due(self, memories: VectorMemories, warn: bool = False) -> range:
        """Return the positions of the new messages; none if they are not enough yet."""
        if len(self._messages) <= self._settings.lookback:
            return range(0)
        logged = memories.logged_messages(KNOWN_HASHES)
        new = new_messages(self._hashes, logged, self._settings.lookback)
        if warn and logged and new.start == 0:
            logger.warning("Discussion %s: none of the messages with memories is known any more, so all are new",
                           self._folder.discussion_id)
        return new if self._are_enough(self._of(new)) else range(0)

    def _are_enough(self, messages: Sequence[Message]) -> bool:
        if not messages:
            return False
        tokens = rough_estimate_token_length(restore_braces(messages_to_text_block(messages)))
        return len(messages) >= self._settings.vector_chunk_messages or tokens >= self._settings.vector_chunk_size

    def _of(self, positions: range) -> list[Message]:
        return self._messages[positions.start:positions.stop]

    @cached_property
    def _hashes(self) -> list[str]:
        return hash_messages(self._messages)


def new_messages(hashes: Sequence[str], logged: Sequence[LoggedMessage], lookback: int) -> range:
    """Return the positions of the messages after the newest processed one, without the newest ``lookback``.

    Args:
        hashes: of all messages, oldest first.
        logged: messages that ended processed chunks, newest first. Of equal messages the one at the logged position
            counts; if the position was not recorded, the last that is not among the newest.

    All are new if no logged message is there; none is if the newest logged one is now among the newest
    ``lookback``, as happens when messages before it are deleted.
    """
    end = max(0, len(hashes) - max(0, lookback))
    where = indexes_by_hash(hashes)
    for number, message in enumerate(logged):
        index = reached(where.get(message.hash, []), hashes, message.place, end)
        if index is not None and (index < end or number == 0):
            return range(min(index + 1, end), end)
    return range(end)


def generate_and_store(pairs: Sequence[Pair], settings: MemorySettings, context: ExecutionContext) -> int:
    """Store the memories in chunks ``(text, hash of the last message)``; return how many.

    Raises what ``VectorMemoryPass.run`` raises. 0 for a conversation without an id.
    """
    folder = folder_of(context)
    if folder is None:
        return 0
    stored = 0
    with _database_problems_logged(folder), memory_lock(context, folder, settings) as ours:
        if ours:
            with _opened(context, folder) as memories:
                writer = ChunkWriter(context, settings, folder, memories)
                try:
                    writer.write([Chunk(text, message_hash) for text, message_hash in pairs])
                finally:
                    stored = writer.stored
    return stored


# -- database ----------------------------------------------------------------------------------------------------------

def _opened(context: ExecutionContext, folder: DiscussionFolder) -> VectorMemories:
    return VectorMemories.of(folder, write=True, scope=context.request.cancel_scope)


@contextlib.contextmanager
def _database_problems_logged(folder: DiscussionFolder) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        logger.error("Discussion %s: the searchable memories could not be stored: %s", folder.discussion_id, reason)
