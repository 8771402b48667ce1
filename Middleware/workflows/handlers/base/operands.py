"""Variables as operands of an expression that a node reads: whatever their text has, it changes no operator."""

from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.templates.substitution import VALUE_BEGINS, VALUE_ENDS, without_values
from Middleware.workflows.handlers.base.network_keys import boolean
from Middleware.workflows.models.execution_context import ExecutionContext

# The character that stands for an operand in an expression.
OPERAND = VALUE_BEGINS

VALUE_SAFE = ConfigKey(
    "valueSafe",
    "bool",
    False,
    "Each variable is one operand, or a piece of a quoted one, whatever quotes, words or operators its text has.",
    in_new=True,
    capability="lets texts change the comparisons of a condition, or the operators of a calculation",
    guard="true",
)


def with_operands(context: ExecutionContext, key: ConfigKey) -> tuple[str, list[str] | None]:
    """Return a text key with ``OPERAND`` in place of each variable, and the texts of these in their order.

    Without ``valueSafe`` the text is filled in, and there are no operands (None). A text that a template has made in
    such a way that values cannot be distinguished from the rest is empty.
    """
    value = key.of(context.config)
    safe = boolean(context, VALUE_SAFE)
    if value in (None, ""):
        return "", None
    if not safe:
        return context.substitute(value), None
    text, operands = without_values(context.substitute_marked(str(value)))
    return ("", None) if VALUE_ENDS in text or text.count(OPERAND) != len(operands) else (text, operands)
