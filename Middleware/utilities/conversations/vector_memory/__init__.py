"""The memories of a conversation that can be searched, in one SQLite file for each conversation or elsewhere."""

from __future__ import annotations

from Middleware.utilities.conversations.vector_memory.searchable import MemoryRow, SearchableMemories
from Middleware.utilities.conversations.vector_memory.store import VectorMemories

__all__ = ["MemoryRow", "SearchableMemories", "VectorMemories"]
