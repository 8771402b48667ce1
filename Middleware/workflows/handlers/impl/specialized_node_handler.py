"""Nodes that need no LLM: router to one handler per node type."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from Middleware.utilities.conditions import evaluate_condition
from Middleware.utilities.streaming_utils import stream_static_content
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler, NodeKey
from Middleware.workflows.models.execution_context import ExecutionContext


class SpecializedNodeHandler(BaseHandler):
    """StaticResponse, StringConcatenator and Conditional."""

    KEYS: ClassVar[Mapping[str, tuple[NodeKey, ...]]] = {
        "StaticResponse": (NodeKey("content", "str", "", "The text.", "full"),),
        "StringConcatenator": (
            NodeKey("strings", "list", (), "The texts to join.", "full"),
            NodeKey("delimiter", "str", "", "What stands between them.")),
        "Conditional": (NodeKey("condition", "str", "", "The expression to judge.", "full"),),
    }

    def handle(self, context: ExecutionContext) -> Any:
        node_type = context.config["type"]
        if node_type == "Conditional":
            return "TRUE" if evaluate_condition(self.text(context, "condition")) else "FALSE"
        text = self.text(context, "content") if node_type == "StaticResponse" else self._joined(context)
        return stream_static_content(text, context.request.cancel_scope) if context.stream else text

    def _joined(self, context: ExecutionContext) -> str:
        strings = context.config.get("strings")
        if not isinstance(strings, list):
            return ""
        return str(self.value(context, "delimiter")).join(
            context.substitute(text) if isinstance(text, str) else str(text) for text in strings)
