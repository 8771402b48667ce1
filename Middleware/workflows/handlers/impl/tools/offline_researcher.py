"""The offline researcher nodes: questions that a local service answers from its books."""
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey, number_from
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.base.network_keys import MAX_SECONDS
from Middleware.workflows.handlers.impl.tools.offline_wikipedia import PROMPT_TO_SEARCH, prompt_to_search
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.offline_researcher_api_tool import OfflineResearcherApiClient

logger = logging.getLogger(__name__)

MODES = {"OfflineResearcherApiQuickSearch": "quick", "OfflineResearcherApiDeepResearch": "deep"}


def _keys(seconds: int) -> tuple[ConfigKey, ...]:
    return (PROMPT_TO_SEARCH,
            ConfigKey("maxIterations", "int", None, "How many rounds the service may search."),
            ConfigKey("timeoutSeconds", "number", seconds, "Longest silence of the service, in seconds."),
            ConfigKey("includeSources", "bool", False, "Put a list of sources under the answer."))


class OfflineResearcherHandler(BaseHandler):
    """A text, whatever the service says."""
    # No node changes the books, so that the order does not matter.
    acts = "reads"
    pure = True
    reaches_outside = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "OfflineResearcherApiQuickSearch": _keys(240),
        "OfflineResearcherApiDeepResearch": _keys(600)}

    def handle(self, context: ExecutionContext) -> object:
        query = prompt_to_search(self, context)
        return OfflineResearcherApiClient(context.request.cancel_scope).search(
            query, MODES[context.node_type], timeout=self._timeout(context),
            max_iterations=self._max_iterations(context), include_sources=self.value(context, "includeSources"))

    def _timeout(self, context: ExecutionContext) -> float:
        number = number_from(self.value(context, "timeoutSeconds"), whole=False)
        if number is not None and number > 0:
            return min(number, MAX_SECONDS)
        default = self.table(context)["timeoutSeconds"].default
        _warn(context, "timeoutSeconds", "a positive number", f"using {default}")
        return float(default)

    def _max_iterations(self, context: ExecutionContext) -> int | None:
        value = self.value(context, "maxIterations")
        number = None if value is None else number_from(value, whole=False)
        if value is not None and number is None:
            _warn(context, "maxIterations", "a number", "leaving it to the service")
        return None if number is None else int(number)


def _warn(context: ExecutionContext, key: str, expected: str, instead: str) -> None:
    logger.warning("Node '%s': '%s' is not %s: %r; %s", context.node_name, key, expected, context.config.get(key),
                   instead)
