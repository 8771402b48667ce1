"""Nodes that give what is stored of a conversation, or what its newest messages say."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.services.memory_service import NO_STATE_DOCUMENT, MemoryService
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.conversations.discussion_files import if_readable
from Middleware.utilities.search_utils import CHUNK_BREAK
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.memory.node_values import keys_of
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages

TURNS = ConfigKey("maxTurnsToPull", "int", 0, "Messages to take if there is no discussion id.", "early", required=True)


class RecentMemorySummarizerHandler(BaseHandler):
    """The newest memories; without a discussion id, blocks of the newest messages."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"RecentMemorySummarizerTool": (
        TURNS,
        ConfigKey("maxSummaryChunksFromFile", "int", 0, "How many memories; 0: three, negative: all.", "early",
                  required=True),
        ConfigKey("lookbackStart", "int", 0, "Newest messages to leave out if there is no discussion id.", "early"),
        ConfigKey("customDelimiter", "str", None, "What stands between them, instead of --ChunkBreak--."))}

    def handle(self, context: ExecutionContext) -> object:
        turns, chunks, lookback = (self.number(context, name) for name in (
            "maxTurnsToPull", "maxSummaryChunksFromFile", "lookbackStart"))
        text = MemoryService().get_recent_memories(raw_messages(context), context.discussion_id, turns, chunks,
                                                   lookback, **keys_of(context))
        delimiter = self.value(context, "customDelimiter")
        return text if delimiter is None else text.replace(CHUNK_BREAK, str(delimiter))


class ChatSummaryMemoryGatheringHandler(BaseHandler):
    """The memories that are not yet in the summary; without a discussion id, blocks of the newest messages."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"ChatSummaryMemoryGatheringTool": (TURNS,)}

    def handle(self, context: ExecutionContext) -> object:
        return MemoryService().get_chat_summary_memories(
            raw_messages(context), context.discussion_id, self.number(context, "maxTurnsToPull"),
            **keys_of(context))


class CurrentMemoryHandler(BaseHandler):
    """All memories."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"GetCurrentMemoryFromFile": (
        ConfigKey("customDelimiter", "str", CHUNK_BREAK, "What stands between them."),)}

    def handle(self, context: ExecutionContext) -> object:
        memories = MemoryService().get_current_memories(context.discussion_id, **keys_of(context))
        return str(self.value(context, "customDelimiter")).join(memories)


class CurrentSummaryHandler(BaseHandler):
    """The summary."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"GetCurrentSummaryFromFile": ()}

    def handle(self, context: ExecutionContext) -> object:
        return MemoryService().get_current_summary(context.discussion_id, **keys_of(context))


class CurrentStateDocumentHandler(BaseHandler):
    """The document of the present state."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"GetCurrentStateDocument": ()}

    def handle(self, context: ExecutionContext) -> object:
        return if_readable(lambda: MemoryService().get_current_state_document(
            context.discussion_id, **keys_of(context)), NO_STATE_DOCUMENT)
