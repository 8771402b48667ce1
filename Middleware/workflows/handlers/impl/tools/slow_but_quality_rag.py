"""SlowButQualityRAG: applies a prompt to every block of a text."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import MANY_LLM_KEYS, PROMPT_KEYS
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool

logger = logging.getLogger(__name__)

NO_TARGET = "No rag target specified in Slow But Quality RAG node"
NO_TYPE = "No rag type specified in Slow But Quality RAG node"
SHARED_KEYS = frozenset({
    "systemPrompt", "prompt", "blockGenerationPrompt", "nMessagesToIncludeInVariable",
    "estimatedTokensToIncludeInVariable", "minMessagesInVariable", "maxEstimatedTokensInVariable",
    "addUserAssistantTags", "includeToolCallsInConversation", "removeCustomTextFromResponseStart",
    "responseStartTextToRemove", "clampPromptToContextWindow", "addDiscussionIdTimestampsForLLM",
    "useRelativeTimestamps", "useGroupChatTimestampLogic"})


class SlowButQualityRAGHandler(BaseHandler):
    """The answers for the blocks of ``ragTarget``, one behind the other."""
    # Prompts change nothing, but the workflow of fileMemoryWorkflowName may have nodes of any type. The answer for each
    # block is cleaned on arrival.
    acts = "outside"
    cleans_itself = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"SlowButQualityRAG": (
        ConfigKey("ragTarget", "str", None, "The text; --ChunkBreak-- stands between its blocks.", "full",
                  required=True),
        ConfigKey("ragType", "str", None, "Must be present; its value has no effect.", required=True),
        *(key for key in PROMPT_KEYS if key.name in SHARED_KEYS),
        *MANY_LLM_KEYS,
        ConfigKey("chunksPerMemory", "int", 3, "Accepted without effect.", "early", inert=True))}

    def handle(self, context: ExecutionContext) -> object:
        for name, complaint in (("ragTarget", NO_TARGET), ("ragType", NO_TYPE)):
            if self.value(context, name) is None:
                return complaint
        if not context.discussion_id:
            logger.info("Node '%s' asks nothing and gives an empty text: the conversation has no discussion id",
                        context.node_name)
            return ""
        return SlowButQualityRAGTool().perform_rag_on_conversation_chunk(
            str(self.value(context, "systemPrompt")), str(self.value(context, "prompt")),
            self.text(context, "ragTarget"), context)
