"""VectorMemorySearch: what the database of a conversation's memories says about some words."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from Middleware.services.memory_service import MemoryService
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.memory.node_values import keys_of
from Middleware.workflows.models.execution_context import ExecutionContext

logger = logging.getLogger(__name__)

NO_DISCUSSION = "Cannot perform VectorMemorySearch without a discussionId."
DEFAULT_LIMIT = 5


class VectorMemorySearchHandler(BaseHandler):
    """The memories that fit best, best first."""
    acts = "reads"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"VectorMemorySearch": (
        ConfigKey("input", "str", "", "Words or phrases to look for, ; between them.", "full"),
        ConfigKey("limit", "int", DEFAULT_LIMIT, "Most memories to give.", "early"),
        ConfigKey("bm25Weights", "list", None, "Five numbers: how much title, summary, entities, key phrases and text "
                  "of a memory count."),
        ConfigKey("useRecencyScoring", "bool", False, "Newer memories come sooner."),
        ConfigKey("includeDates", "bool", False, "Each memory starts with its date."),
        ConfigKey("searchMode", "str", "keyword", "Whether words count, meaning, or both.",
                  choices=("keyword", "semantic", "hybrid")),
        ConfigKey("semanticQuery", "str", "", "What to look for by meaning, if not the words of input.", "full"),
        ConfigKey("embeddingEndpointName", "str", "", "Endpoint whose vectors are compared.", names="endpoint"),
        ConfigKey("useEntityExpansion", "bool", False, "Also look for who and what the found memories name."))}

    def handle(self, context: ExecutionContext) -> Any:
        if not context.discussion_id:
            return NO_DISCUSSION
        return MemoryService().search_vector_memories(
            context.discussion_id, self.text(context, "input"),
            max(0, self.number(context, "limit")),
            bm25_weights=self._weights(context), use_recency=self.value(context, "useRecencyScoring"),
            include_dates=self.value(context, "includeDates"), search_mode=str(self.value(context, "searchMode")),
            semantic_query=self.text(context, "semanticQuery"),
            embedding_endpoint_name=str(self.value(context, "embeddingEndpointName")),
            use_entity_expansion=self.value(context, "useEntityExpansion"), request_id=context.request_id,
            **keys_of(context))

    def _weights(self, context: ExecutionContext) -> list[Any] | None:
        weights = self.value(context, "bm25Weights")
        if isinstance(weights, (list, tuple)):
            return list(weights)
        if weights is not None:
            logger.warning("Node '%s': 'bm25Weights' is no list of five numbers and is not used", context.node_name)
        return None
