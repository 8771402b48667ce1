"""The memories of a conversation that can be searched: one SQLite file for each conversation."""
from __future__ import annotations

from Middleware.utilities.conversations.vector_memory.store import VectorMemories

__all__ = ["VectorMemories"]
