"""Conditional: evaluates an expression.

    expr    := andExpr { OR andExpr }
    andExpr := unit { AND unit }
    unit    := "(" expr ")" | operand [ cmp operand ]

Characters that do not fit a token are skipped; there is no NOT. With ``valueSafe``, the expression is parsed before its
variables are filled in.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.sensitive_logging_utils import sensitive_log
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.base.operands import OPERAND, VALUE_SAFE, with_operands
from Middleware.workflows.models.execution_context import ExecutionContext, note_branch

logger = logging.getLogger(__name__)


CONDITION = ConfigKey("condition", "str", "", "The expression to evaluate.", "full")


class ConditionalHandler(BaseHandler):
    """Returns ``TRUE`` or ``FALSE``; ``FALSE`` for a malformed expression."""

    acts = "no"

    KEYS = {"Conditional": (CONDITION, VALUE_SAFE)}

    def handle(self, context: ExecutionContext) -> object:
        condition, operands = with_operands(context, CONDITION)
        result = "TRUE" if evaluate_condition(condition, context.node_name, operands) else "FALSE"
        note_branch(context, result, filled_in(condition, operands))
        return result


Value = bool | float | str

_TOKEN = re.compile(
    r"""(?P<text>'[^']*'|"[^"]*")|(?P<compare>==|!=|>=|<=|>|<)|(?P<paren>[()])|(?P<number>-?\d+(?:\.\d+)?)"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*)""",
    re.ASCII,
)
# A lone minus sign would be skipped, and the number behind it be another one than its author meant.
_SAFE_TOKEN = re.compile(rf"{_TOKEN.pattern}|(?P<minus>-{OPERAND})|(?P<value>{OPERAND})", re.ASCII)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}

# Deeper parentheses would end in a RecursionError.
_MAX_DEPTH = 200


@dataclass(frozen=True)
class _Token:
    # operand, compare, (, ), AND or OR
    kind: str
    start: int
    value: Value = ""


class ConditionSyntaxError(ConfigValueError):
    """The expression does not follow the grammar. The text does not quote it.

    ``position``: the index in the expression where the mistake shows.
    """

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


def evaluate_condition(expression: str, node_name: str = "N/A", operands: Sequence[str] | None = None) -> bool:
    """Return whether ``expression`` holds. An empty one does not, nor does a malformed one, which is logged.

    ``operands``: the texts that ``OPERAND`` stands for, one after the other; None: it stands for nothing.
    """
    if not expression.strip():
        return False
    try:
        return parse_condition(expression, operands)
    except ConditionSyntaxError as error:
        logger.warning("Node '%s': the condition counts as FALSE because it cannot be read: %s", node_name, error)
        filled = filled_in(expression, operands)
        sensitive_log(logger, logging.DEBUG, "The condition of node '%s' was: %s", node_name, filled)
        return False


def parse_condition(expression: str, operands: Sequence[str] | None = None) -> bool:
    """Like ``evaluate_condition``, but raises ``ConditionSyntaxError``."""
    pattern = _TOKEN if operands is None else _SAFE_TOKEN
    rest = iter(operands or ())
    tokens = [_token(found, rest) for found in pattern.finditer(expression)]
    parser = _Parser(tokens, len(expression), booleans_have_order=operands is None)
    value = parser.expression(0)
    if parser.position != len(parser.tokens):
        raise ConditionSyntaxError(f"something is left over after part {parser.position}", parser.offset)
    return value


def skipped_characters(expression: str) -> list[tuple[int, str]]:
    """Return what the parser skips because it fits no token: the index and the characters, without white space."""
    rest = _SAFE_TOKEN.sub(lambda found: " " * len(found.group()), expression)
    return [(found.start(), found.group()) for found in re.finditer(r"\S+", rest)]


def filled_in(expression: str, operands: Sequence[str] | None) -> str:
    """Return the expression with its operands, for a log."""
    return _with(expression, iter(operands)) if operands is not None else expression


def _with(text: str, operands: Iterator[str]) -> str:
    return re.sub(OPERAND, lambda found: next(operands), text)


def _token(found: re.Match[str], operands: Iterator[str]) -> _Token:
    text, start = found.group(), found.start()
    if found.lastgroup == "text":
        return _Token("operand", start, _with(text[1:-1], operands) if found.re is _SAFE_TOKEN else text[1:-1])
    if found.lastgroup == "minus":
        raise ConditionSyntaxError("a variable cannot have a minus sign in front of it", start)
    if found.lastgroup == "value":
        return _Token("operand", start, _of_operand(next(operands).strip()))
    if found.lastgroup == "compare":
        return _Token("compare", start, text)
    if found.lastgroup == "paren":
        return _Token(text, start)
    upper = text.upper()
    if upper in ("AND", "OR"):
        return _Token(upper, start)
    if upper in ("TRUE", "FALSE"):
        return _Token("operand", start, upper == "TRUE")
    # Without operands, the words inf and nan are numbers, as for Python.
    if found.lastgroup == "word" and found.re is _SAFE_TOKEN:
        return _Token("operand", start, text)
    try:
        return _Token("operand", start, float(text))
    except ValueError:
        return _Token("operand", start, text)


def _of_operand(text: str) -> Value:
    """Return the value of a whole operand: a number or a boolean if that is all there is, otherwise the text."""
    found = _SAFE_TOKEN.fullmatch(text)
    if found is None or found.lastgroup not in ("number", "word"):
        return text
    token = _token(found, iter(()))
    return token.value if token.kind == "operand" else text


class _Parser:
    def __init__(self, tokens: list[_Token], length: int, booleans_have_order: bool) -> None:
        self.tokens, self._length = tokens, length
        # Only numbers have an order. Without operands, booleans count as 1 and 0.
        self._unordered: tuple[type, ...] = (str,) if booleans_have_order else (str, bool)
        self.position = 0

    @property
    def offset(self) -> int:
        """The index of the next token in the expression; the end without one."""
        return self.tokens[self.position].start if self.position < len(self.tokens) else self._length

    def expression(self, depth: int) -> bool:
        value = self._conjunction(depth)
        # The right side is parsed whatever the left side is, so that a mistake in it is always found.
        while self._accept("OR"):
            value = self._conjunction(depth) or value
        return value

    def _conjunction(self, depth: int) -> bool:
        value = self._unit(depth)
        while self._accept("AND"):
            value = self._unit(depth) and value
        return value

    def _unit(self, depth: int) -> bool:
        if depth > _MAX_DEPTH:
            raise ConditionSyntaxError("too many nested parentheses", self.offset)
        opened = self._accept("(")
        if opened:
            value = self.expression(depth + 1)
            if not self._accept(")"):
                raise ConditionSyntaxError("a parenthesis is not closed", opened.start)
            return value
        left = self._operand()
        compare = self._accept("compare")
        return self._compare(left, str(compare.value), self._operand()) if compare else bool(left)

    def _compare(self, left: Value, sign: str, right: Value) -> bool:
        # In Python, too, a string never equals a number or a boolean.
        if sign in ("==", "!="):
            return (left == right) == (sign == "==")
        return (
            not isinstance(left, self._unordered)
            and not isinstance(right, self._unordered)
            and _ORDER[sign](left, right)
        )

    def _operand(self) -> Value:
        token = self._accept("operand")
        if token is None:
            raise ConditionSyntaxError("a value is missing", self.offset)
        return token.value

    def _accept(self, kind: str) -> _Token | None:
        if self.position < len(self.tokens) and self.tokens[self.position].kind == kind:
            self.position += 1
            return self.tokens[self.position - 1]
        return None
