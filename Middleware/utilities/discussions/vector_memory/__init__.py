"""The memories of a discussion that can be searched, in one SQLite file for each discussion or elsewhere."""

from __future__ import annotations

from Middleware.utilities.discussions.vector_memory.searchable import MemoryRow, SearchableMemories
from Middleware.utilities.discussions.vector_memory.store import VectorMemories

__all__ = ["MemoryRow", "SearchableMemories", "VectorMemories"]
