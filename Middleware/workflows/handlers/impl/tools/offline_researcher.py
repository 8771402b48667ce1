"""The offline researcher nodes: questions that a local service answers from its books."""
from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import ClassVar

from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler, NodeKey
from Middleware.workflows.handlers.base.network_keys import MAX_SECONDS
from Middleware.workflows.handlers.impl.tools.offline_wikipedia import PROMPT_TO_SEARCH, prompt_to_search
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.offline_researcher_api_tool import OfflineResearcherApiClient

logger = logging.getLogger(__name__)

MODES = {"OfflineResearcherApiQuickSearch": "quick", "OfflineResearcherApiDeepResearch": "deep"}


def _keys(seconds: int) -> tuple[NodeKey, ...]:
    return (PROMPT_TO_SEARCH,
            NodeKey("maxIterations", "int", None, "How many rounds the service may search."),
            NodeKey("timeoutSeconds", "number", seconds, "Longest silence of the service, in seconds."),
            NodeKey("includeSources", "bool", False, "Put a list of sources under the answer."))


class OfflineResearcherHandler(BaseHandler):
    """A text, whatever the service says."""
    # No node changes the books, so that the order does not matter.
    acts = "reads"
    pure = True
    reaches_outside = True

    KEYS: ClassVar[Mapping[str, tuple[NodeKey, ...]]] = {
        "OfflineResearcherApiQuickSearch": _keys(240),
        "OfflineResearcherApiDeepResearch": _keys(600)}

    def handle(self, context: ExecutionContext) -> object:
        query = prompt_to_search(self, context)
        return OfflineResearcherApiClient(context.request.cancel_scope).search(
            query, MODES[context.config["type"]], timeout=self._timeout(context),
            max_iterations=self._max_iterations(context), include_sources=self.value(context, "includeSources"))

    def _timeout(self, context: ExecutionContext) -> float:
        number = _number(self.value(context, "timeoutSeconds"))
        if number is not None and number > 0:
            return min(number, MAX_SECONDS)
        default = self.key(context.config["type"], "timeoutSeconds").default
        _warn(context, "timeoutSeconds", "a positive number", f"using {default}")
        return float(default)

    def _max_iterations(self, context: ExecutionContext) -> int | None:
        value = self.value(context, "maxIterations")
        number = None if value is None else _number(value)
        if value is not None and number is None:
            _warn(context, "maxIterations", "a number", "leaving it to the service")
        return None if number is None else int(number)


def _number(value: object) -> float | None:
    """A finite number, also one written as text; None for anything else."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _warn(context: ExecutionContext, key: str, expected: str, instead: str) -> None:
    logger.warning("Node '%s': '%s' is not %s: %r; %s", context.node_name, key, expected, context.config.get(key),
                   instead)
