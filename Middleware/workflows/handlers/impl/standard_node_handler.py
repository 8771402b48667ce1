"""The Standard node: one prompt to one LLM."""

from __future__ import annotations

import logging

from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.utilities.config.keys.node import CHOICE_KEYS, NODE, PROMPT_KEYS
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext

logger = logging.getLogger(__name__)


class StandardNodeHandler(BaseHandler):
    """Sends the node's prompt, or the conversation, to the node's endpoint."""

    # An LLM call has no side effects: the client runs the tool calls.
    acts = "no"
    needs_endpoint = True

    KEYS = {"Standard": (*PROMPT_KEYS, *CHOICE_KEYS)}

    def handle(self, context: ExecutionContext) -> object:
        self.check_endpoint(context)
        _warn_of_tools(context)
        accept_images = NODE.flag(context.config, "acceptImages")
        limit = NODE.value(context.config, "maxImagesToSend")
        return LLMDispatchService.dispatch(
            context, llm_takes_images=accept_images, max_images=limit if accept_images and isinstance(limit, int) else 0
        )


def _warn_of_tools(context: ExecutionContext) -> None:
    """Warn of a tool call of a node that does not answer the client: it becomes the node's output and is never run."""
    answers = context.is_responder and (context.run is None or context.run.non_responder is None)
    if context.tools and not answers and NODE.flag(context.config, "allowTools"):
        logger.warning(
            "Node '%s' gives its model the tools of the request (allowTools) but does not answer the "
            "client, so no tool call of it is carried out.",
            context.node_name,
        )
