"""ArithmeticProcessor: calculates with two numbers."""
from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext

FAILED = "-1"

_NUMBER = r"(-?\d+(?:\.\d+)?)"
_EXPRESSION = re.compile(rf"{_NUMBER}\s*([-+*/])\s*{_NUMBER}", re.ASCII)
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def calculate(expression: str) -> str:
    """Return the result in floating point, whole numbers without ``.0``; ``-1`` if there is no result."""
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        return FAILED
    left, sign, right = found.groups()
    try:
        result = _OPERATORS[sign](float(left), float(right))
    except ZeroDivisionError:
        return FAILED
    if not math.isfinite(result):
        return FAILED
    return str(int(result)) if result.is_integer() else repr(result)


class ArithmeticProcessorHandler(BaseHandler):
    """Returns the result as a string; ``-1`` for an expression that cannot be calculated."""

    acts = "no"
    pure = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "ArithmeticProcessor": (
            ConfigKey("expression", "str", "", "Number, operator (one of + - * /), number.", "full", required=True),)}

    def handle(self, context: ExecutionContext) -> object:
        return calculate(self.text(context, "expression"))
