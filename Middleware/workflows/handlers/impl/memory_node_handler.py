"""Nodes that write, read and search what is remembered of a conversation."""
from __future__ import annotations

from Middleware.workflows.handlers.base.base_workflow_node_handler import FamilyHandler
from Middleware.workflows.handlers.impl.memory.chat_summary import (
    ChatSummarySummarizerHandler,
    FullChatSummaryHandler,
    WriteCurrentSummaryHandler,
)
from Middleware.workflows.handlers.impl.memory.generation import (
    ConversationMemoryHandler,
    QualityMemoryHandler,
    RecentMemoryHandler,
)
from Middleware.workflows.handlers.impl.memory.stored_texts import (
    ChatSummaryMemoryGatheringHandler,
    CurrentMemoryHandler,
    CurrentStateDocumentHandler,
    CurrentSummaryHandler,
    RecentMemorySummarizerHandler,
)
from Middleware.workflows.handlers.impl.memory.vector_search import VectorMemorySearchHandler


class MemoryNodeHandler(FamilyHandler):
    """Router to one handler per memory node."""

    NODES = (QualityMemoryHandler, RecentMemoryHandler, RecentMemorySummarizerHandler,
             ChatSummaryMemoryGatheringHandler, ConversationMemoryHandler, CurrentMemoryHandler,
             CurrentSummaryHandler, FullChatSummaryHandler, ChatSummarySummarizerHandler, WriteCurrentSummaryHandler,
             VectorMemorySearchHandler, CurrentStateDocumentHandler)
