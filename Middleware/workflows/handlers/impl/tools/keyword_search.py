"""The keyword search nodes: what a conversation, or its memories, say about some words."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from Middleware.services.memory_blocks import read_memory_blocks
from Middleware.utilities.search_utils import search_conversation, search_memories
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler, NodeKey
from Middleware.workflows.models.execution_context import ExecutionContext

NO_KEYWORDS = "No keywords specified in Keyword Search node"

SEARCH_KEYS: tuple[NodeKey, ...] = (
    NodeKey("keywords", "str", None, "The words to look for.", "full", required=True),
    NodeKey("searchTarget", "str", "CurrentConversation", "CurrentConversation or RecentMemories."),
    NodeKey("lookbackStartTurn", "int", 0, "Search only the newest messages, this many; 0: all but the newest one.",
            "early"))


class KeywordSearchHandler(BaseHandler):
    """Blocks of text that hold any of the words; which texts are searched is up to ``searchTarget`` alone.

    Attributes:
        memory_blocks: gives the memories of a discussion id, oldest first.
    """

    KEYS: ClassVar[Mapping[str, tuple[NodeKey, ...]]] = {
        "ConversationalKeywordSearchPerformerTool": SEARCH_KEYS, "MemoryKeywordSearchPerformerTool": SEARCH_KEYS}

    memory_blocks: Callable[..., Sequence[str]] = staticmethod(read_memory_blocks)

    def handle(self, context: ExecutionContext) -> Any:
        if self.value(context, "keywords") is None:
            return NO_KEYWORDS
        keywords = self.text(context, "keywords")
        messages = context.run.messages if context.run else context.messages  # those without time stamps
        target = self.value(context, "searchTarget")
        if target == "CurrentConversation":
            return search_conversation(messages, keywords, self.value(context, "lookbackStartTurn"))
        if target == "RecentMemories" and context.discussion_id:
            blocks = self.memory_blocks(context.discussion_id, encryption_key=context.encryption_key,
                                        api_key_hash=context.api_key_hash)
            return search_memories(blocks, messages, keywords)
        return ""
