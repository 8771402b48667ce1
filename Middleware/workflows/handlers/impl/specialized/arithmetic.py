"""ArithmeticProcessor: calculates with two numbers."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.utilities.arithmetic import calculate
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext


class ArithmeticProcessorHandler(BaseHandler):
    """The result as text; ``-1`` for an expression that cannot be calculated."""
    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "ArithmeticProcessor": (
            ConfigKey("expression", "str", "", "Number, operator (one of + - * /), number.", "full", required=True),)}

    def handle(self, context: ExecutionContext) -> object:
        return calculate(self.text(context, "expression"))
