"""The Standard node: one prompt to one LLM."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from Middleware.exceptions import ConfigValueError
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.utilities.text_utils import as_flag
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler, NodeKey
from Middleware.workflows.models.execution_context import ExecutionContext

logger = logging.getLogger(__name__)

PROMPT_KEYS: tuple[NodeKey, ...] = (
    NodeKey("systemPrompt", "str", "", "System prompt.", "full"),
    NodeKey("prompt", "str", "", "The prompt; empty: the conversation is sent instead.", "full"),
    NodeKey("lastMessagesToSendInsteadOfPrompt", "int", 5, "How many messages are sent without a prompt.", "early"),
    NodeKey("lastMessagesToSendInsteadOfPromptMaxTokenSize", "int", None, "Their token cap.", "early"),
    NodeKey("addUserTurnTemplate", "bool", False, "Wrap the prompt as a user turn (completion back-ends)."),
    NodeKey("addOpenEndedAssistantTurnTemplate", "bool", False, "Put an assistant prefix before the prompt."),
    NodeKey("forceGenerationPromptIfEndpointAllows", "bool", False, "End the prompt with an assistant prefix."),
    NodeKey("blockGenerationPrompt", "bool", False, "Never end the prompt with an assistant prefix."),
    NodeKey("nMessagesToIncludeInVariable", "int", 5, "Size of the _n_messages variables.", "early"),
    NodeKey("estimatedTokensToIncludeInVariable", "int", 2048, "Size of the token limit variables.", "early"),
    NodeKey("minMessagesInVariable", "int", 5, "Least messages of the min_n variables.", "early"),
    NodeKey("maxEstimatedTokensInVariable", "int", 2048, "Token cap of the min_n variables.", "early"),
    NodeKey("addUserAssistantTags", "bool", False, "Prefix messages in variables with their role."),
    NodeKey("includeToolCallsInConversation", "bool", False, "Show tool calls in variables as text."),
    NodeKey("acceptImages", "bool", False, "Send images along."),
    NodeKey("maxImagesToSend", "int", 0, "At most this many images; 0: all.", "early"),
    NodeKey("allowTools", "bool", False, "Pass the client's tools on."),
    NodeKey("structuredOutputFile", "str", None, "JSON schema in StructuredOutputs that the answer must follow.",
            names="structured-output"),
    NodeKey("lowercaseToolCallFunctionNames", "bool", False, "Lower-case function names of tool calls."),
    NodeKey("removeCustomTextFromResponseStart", "bool", False, "Remove a text from the start of the answer."),
    NodeKey("responseStartTextToRemove", "any", None, "The text, or a list of texts, to remove."),
    NodeKey("mergeConsecutiveAssistantMessages", "bool", False, "Join adjacent assistant messages."),
    NodeKey("mergeConsecutiveAssistantMessagesDelimiter", "str", "\n", "What stands between them."),
    NodeKey("insertUserTurnBetweenAssistantMessages", "bool", False, "Insert a user turn between them."),
    NodeKey("insertedUserTurnText", "str", "Continue.", "Text of that user turn."),
    NodeKey("appendNativeToolExchange", "bool", False, "Deliver the trailing tool exchange as messages."),
    NodeKey("clampPromptToContextWindow", "bool", None, "Keep the prompt within the endpoint's window."),
    NodeKey("addDiscussionIdTimestampsForLLM", "bool", False, "Stamp messages with their time."),
    NodeKey("useRelativeTimestamps", "bool", False, "Stamps say how long ago."),
    NodeKey("useGroupChatTimestampLogic", "bool", False, "Start the answer with the speaker's name."),
    NodeKey("injectLivenessToolCall", "bool", False, "Add the configured liveness tool call."),
)


class StandardNodeHandler(BaseHandler):
    """Sends the node's prompt, or the conversation, to the node's endpoint."""
    # An LLM call changes nothing: tool calls are carried out by the client.
    acts = "no"
    pure = True
    needs_endpoint = True

    KEYS: ClassVar[Mapping[str, tuple[NodeKey, ...]]] = {"Standard": PROMPT_KEYS}

    def handle(self, context: ExecutionContext) -> object:
        if context.llm_handler is None or context.llm_handler.llm is None:
            raise ConfigValueError(f"node '{context.node_name}' calls an LLM but names no endpoint",
                                   json_path="endpointName", expected="the name of a file in Endpoints")
        _warn_of_tools(context)
        accept_images = as_flag(context.config.get("acceptImages"))
        limit = context.config.get("maxImagesToSend") or 0
        return LLMDispatchService.dispatch(
            context, llm_takes_images=accept_images,
            max_images=limit if accept_images and isinstance(limit, int) else 0)


def _warn_of_tools(context: ExecutionContext) -> None:
    """A tool call of a node that does not answer the client becomes the node's output, and nobody carries it out."""
    answers = context.is_responder and (context.run is None or context.run.non_responder is None)
    if context.tools and not answers and as_flag(context.config.get("allowTools")):
        logger.warning("Node '%s' gives its model the tools of the request (allowTools) but does not answer the "
                       "client, so no tool call of it is carried out.", context.node_name)
