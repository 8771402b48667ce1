"""The keyword search nodes: what a conversation, or its memories, say about some words."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import NODE, SEARCH_KEYS
from Middleware.utilities.search_utils import search_conversation, search_memories
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import folder_of, raw_messages

NO_KEYWORDS = "No keywords specified in Keyword Search node"


class MemoryKeywordSearchHandler(BaseHandler):
    """Blocks of text that hold any of the words; which texts are searched is up to ``searchTarget`` alone."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"MemoryKeywordSearchPerformerTool": SEARCH_KEYS}

    def handle(self, context: ExecutionContext) -> object:
        if self.value(context, "keywords") is None:
            return NO_KEYWORDS
        keywords = self.text(context, "keywords")
        messages, folder = raw_messages(context), folder_of(context)
        target = self.value(context, "searchTarget")
        if target == "CurrentConversation":
            return search_conversation(messages, keywords, self.value(context, "lookbackStartTurn"))
        if target == "RecentMemories" and folder is not None:
            return search_memories([text for text, _ in MemoryStore(folder).read_memories()], messages, keywords)
        return ""


class ConversationKeywordSearchHandler(MemoryKeywordSearchHandler):
    """Blocks of text that hold any of the words; which texts are searched is up to ``searchTarget`` alone."""
    # Memories, which searchTarget may choose, are written by other nodes.
    acts = "reads"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"ConversationalKeywordSearchPerformerTool": SEARCH_KEYS}

    @classmethod
    def is_pure(cls, node: Mapping[str, object]) -> bool:
        return (NODE.value(node, "searchTarget") or "CurrentConversation") == "CurrentConversation"
