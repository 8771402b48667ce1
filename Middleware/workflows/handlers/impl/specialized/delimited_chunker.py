"""DelimitedChunker: the first or last pieces of a text."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.json_data import type_name
from Middleware.utilities.text_extraction import first_pieces, last_pieces
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.specialized.counts import resolved_count
from Middleware.workflows.models.execution_context import ExecutionContext


class DelimitedChunkerHandler(BaseHandler):
    """Returns the chosen pieces with their delimiters, or a text that names the problem if a key cannot be used."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "DelimitedChunker": (
            ConfigKey("content", "str", None, "The text.", "full", required=True),
            ConfigKey("delimiter", "str", None, "The text between its pieces.", "full", required=True, blank=True),
            ConfigKey("mode", "str", None, "'head' (first pieces) or 'tail' (last pieces).", required=True,
                      choices=("head", "tail")),
            ConfigKey("count", "int", None, "How many pieces to keep, at least 1.", "full", required=True,
                      least=1))}

    def handle(self, context: ExecutionContext) -> object:
        count = resolved_count(context, self.value(context, "count"))
        problem = self._problem(context, count)
        if problem:
            return problem
        content, delimiter = self.text(context, "content"), self.text(context, "delimiter")
        if not content:
            return ""
        if not delimiter:
            return "Invalid delimiter: must resolve to a non-empty string"
        keep = first_pieces if self.value(context, "mode") == "head" else last_pieces
        return keep(content, delimiter, count)

    def _problem(self, context: ExecutionContext, count: object) -> str:
        for name in ("content", "delimiter", "mode", "count"):
            if self.value(context, name) is None:
                return f"No {name} specified"
        if not isinstance(count, int) or isinstance(count, bool):
            return f"Invalid count: must be an integer, got {type_name(count)}"
        if count < 1:
            return f"Invalid count: must be >= 1, got {count}"
        mode = self.value(context, "mode")
        return "" if mode in ("head", "tail") else f"Invalid mode: must be 'head' or 'tail', got '{mode}'"
