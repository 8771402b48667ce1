"""Counts of pieces: whole numbers, or texts with variables that become one."""
from __future__ import annotations

from typing import Any

from Middleware.utilities.text_extraction import whole_number
from Middleware.workflows.models.execution_context import ExecutionContext


def resolved_count(context: ExecutionContext, value: object) -> Any:
    """The number that a text with a placeholder stands for; every other value, and a text that is none, unchanged."""
    if not isinstance(value, str) or "{" not in value:
        return value
    number = whole_number(context.substitute(value))
    return value if number is None else number


def is_count(value: object) -> bool:
    """Whether ``value`` is a whole number of at least 1; booleans are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
