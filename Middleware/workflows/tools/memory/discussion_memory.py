"""The stored memories and summary of a discussion, as prompts show them."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import NO_SUMMARY, RECENT_MEMORIES
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import CHAT_SUMMARY, FULL_MEMORY_FILE, MEMORY_FILE
from Middleware.workflows.tools.discussion_context import folder_of

MEMORY_SEPARATOR = "\n--------------\n"
NO_MEMORIES = "No preceding memories to show"


@dataclass(frozen=True)
class DiscussionMemory:
    """The stored memories of a discussion, oldest first, and its summary."""

    memories: tuple[str, ...] = ()
    summary: str = NO_SUMMARY

    def followed_by(self, memory: str) -> DiscussionMemory:
        return dataclasses.replace(self, memories=(*self.memories, memory)) if memory.strip() else self

    @property
    def recent(self) -> str:
        return joined_memories(self.memories[-RECENT_MEMORIES:])

    @property
    def full(self) -> str:
        return joined_memories(self.memories)

    @property
    def markers(self) -> dict[str, str]:
        return {MEMORY_FILE: self.recent.strip(), FULL_MEMORY_FILE: self.full.strip(),
                CHAT_SUMMARY: self.summary.strip()}


def load_discussion_memory(context: ExecutionContext) -> DiscussionMemory:
    """Return the stored data of the node's discussion; empty without a discussion id. Raises DataKeyError and OSError.
    """
    folder = folder_of(context)
    return DiscussionMemory() if folder is None else stored_memory(MemoryStore(folder))


def stored_memory(store: MemoryStore) -> DiscussionMemory:
    """Return the stored data of a discussion. Raises DataKeyError and OSError."""
    summary = store.summary()
    return DiscussionMemory(tuple(text for text, _ in store.memories()), summary[0] if summary else NO_SUMMARY)


def counted(memories: int) -> str:
    return f"{memories} {'memory' if memories == 1 else 'memories'}"


def joined_memories(memories: Sequence[str]) -> str:
    return MEMORY_SEPARATOR.join(memories) or NO_MEMORIES
