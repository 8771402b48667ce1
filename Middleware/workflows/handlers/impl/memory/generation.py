"""QualityMemory, RecentMemory and ConversationMemory: memories are written, and what a workflow makes of them."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.services.memory_service import NO_MEMORIES, MemoryService
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.search_utils import CHUNK_BREAK
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.memory.node_values import helper_result, keys_of
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool

NOT_GENERATED = "No discussionId on this request; memories were not generated."
RECENT_WORKFLOW = "recentMemoryToolWorkflow"
CONVERSATION_WORKFLOW = "conversationMemoryToolWorkflow"


class QualityMemoryHandler(BaseHandler):
    """Writes the memories that are due; its output is empty."""
    # The workflows that the user's settings name may have nodes of any type.
    acts = "outside"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"QualityMemory": ()}

    def handle(self, context: ExecutionContext) -> object:
        if context.discussion_id:
            SlowButQualityRAGTool().handle_discussion_id_flow(context)
            return ""
        result = helper_result(context, RECENT_WORKFLOW)
        return NOT_GENERATED if result is None else result


class RecentMemoryHandler(BaseHandler):
    """Writes the memory files that are due, and gives what the user's workflow makes of them."""
    # The workflow that the user's file names may have nodes of any type.
    acts = "outside"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"RecentMemory": ()}

    def handle(self, context: ExecutionContext) -> object:
        if context.discussion_id:
            SlowButQualityRAGTool().handle_discussion_id_flow(context, force_file_memory=True)
        result = helper_result(context, RECENT_WORKFLOW)
        if result is not None:
            return result
        return MemoryService().get_recent_memories(raw_messages(context), context.discussion_id, **keys_of(context))


class ConversationMemoryHandler(BaseHandler):
    """What the user's workflow makes of the memories; all of them if there is no such workflow."""
    # The workflow that the user's file names may have nodes of any type.
    acts = "outside"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"ConversationMemory": ()}

    def handle(self, context: ExecutionContext) -> object:
        if not context.discussion_id:
            return NO_MEMORIES
        result = helper_result(context, CONVERSATION_WORKFLOW)
        if result is not None:
            return result
        return CHUNK_BREAK.join(MemoryService().get_current_memories(context.discussion_id, **keys_of(context)))
