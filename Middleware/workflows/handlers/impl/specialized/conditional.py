"""Conditional: judges an expression."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.specialized.conditions import evaluate_condition
from Middleware.workflows.models.execution_context import ExecutionContext


class ConditionalHandler(BaseHandler):
    """``TRUE`` or ``FALSE``; an expression that cannot be read is ``FALSE``."""
    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "Conditional": (ConfigKey("condition", "str", "", "The expression to judge.", "full"),)}

    def handle(self, context: ExecutionContext) -> object:
        return "TRUE" if evaluate_condition(self.text(context, "condition"), context.node_name) else "FALSE"
