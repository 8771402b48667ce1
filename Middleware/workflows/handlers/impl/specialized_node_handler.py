"""Nodes that need no LLM and no tool: fixed texts, parts of texts, calculations and locks."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.exceptions.early_termination_exception import LOCKED
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config_utils import user_flag
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.json_data import type_name
from Middleware.utilities.text_utils import first_pieces, json_field, last_pieces, tagged_text
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.base.operands import OPERAND, VALUE_SAFE, with_operands
from Middleware.workflows.models.execution_context import ExecutionContext


class StaticResponseHandler(BaseHandler):
    """Returns a fixed text."""

    acts = "no"

    KEYS = {"StaticResponse": (ConfigKey("content", "str", "", "The text.", "full"),)}

    def handle(self, context: ExecutionContext) -> object:
        return self.static_text(context, self.text(context, "content"))


class StringConcatenatorHandler(BaseHandler):
    """Joins texts."""

    acts = "no"

    KEYS = {
        "StringConcatenator": (
            ConfigKey("strings", "list", (), "The texts to join.", "full"),
            ConfigKey("delimiter", "str", "", "The text between them."),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        return self.static_text(context, self._joined(context))

    def _joined(self, context: ExecutionContext) -> str:
        strings = self.value(context, "strings")
        if not isinstance(strings, list):
            return ""
        return str(self.value(context, "delimiter")).join(
            context.substitute(text) if isinstance(text, str) else str(text) for text in strings
        )


class TagTextExtractorHandler(BaseHandler):
    """Returns the trimmed text inside the first pair of tags."""

    acts = "no"

    KEYS = {
        "TagTextExtractor": (
            ConfigKey("tagToExtractFrom", "str", None, "The text with the tags.", "full", required=True),
            ConfigKey("fieldToExtract", "str", None, "Name of the tag, without brackets.", "full", required=True),
            ConfigKey("defaultText", "str", "", "The result if the tag is absent, not closed or blank inside.", "full"),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        if self.value(context, "tagToExtractFrom") is None or self.value(context, "fieldToExtract") is None:
            return ""
        inside = tagged_text(self.text(context, "tagToExtractFrom"), self.text(context, "fieldToExtract"))
        return inside or self.text(context, "defaultText")


class JsonExtractorHandler(BaseHandler):
    """Returns the field as a string; empty if the field is missing or the text is not a JSON object."""

    acts = "no"

    KEYS = {
        "JsonExtractor": (
            ConfigKey(
                "jsonToExtractFrom",
                "str",
                None,
                "The JSON object, alone or as one fenced block.",
                "full",
                required=True,
            ),
            ConfigKey("fieldToExtract", "str", None, "Name of one of its fields; not a path.", "full", required=True),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        return json_field(self.text(context, "jsonToExtractFrom"), self.text(context, "fieldToExtract"))


class DelimitedChunkerHandler(BaseHandler):
    """Returns the chosen pieces with their delimiters, or a text that names the problem if a key cannot be used."""

    acts = "no"

    KEYS = {
        "DelimitedChunker": (
            ConfigKey("content", "str", None, "The text.", "full", required=True),
            ConfigKey("delimiter", "str", None, "The text between its pieces.", "full", required=True, blank=True),
            ConfigKey(
                "mode",
                "str",
                None,
                "'head' (first pieces) or 'tail' (last pieces).",
                required=True,
                choices=("head", "tail"),
            ),
            ConfigKey("count", "int", None, "How many pieces to keep, at least 1.", "full", required=True, least=1),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        count = self.count(context, "count")
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


EXPRESSION = ConfigKey("expression", "str", "", "Number, operator (one of + - * /), number.", "full", required=True)

# A string like all results: workflows compare with it.
FAILED = "-1"

_NUMBER = r"-?\d+(?:\.\d+)?"
_EXPRESSION = re.compile(rf"({_NUMBER})\s*([-+*/])\s*({_NUMBER})", re.ASCII)
_SAFE_EXPRESSION = re.compile(rf"({_NUMBER}|{OPERAND})\s*([-+*/])\s*({_NUMBER}|{OPERAND})", re.ASCII)
_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def calculate(expression: str, operands: Sequence[str] | None = None) -> str:
    """Return the result in floating point, whole numbers without ``.0``; ``-1`` if there is no result.

    ``operands``: the texts that ``OPERAND`` stands for, one after the other; None: it stands for nothing.
    """
    if operands is not None:
        # First it must be an expression as its author wrote it, then one of two numbers.
        found = _SAFE_EXPRESSION.fullmatch(expression.strip())
        rest = iter(operands)
        expression = (
            " ".join(next(rest).strip() if part == OPERAND else part for part in found.groups()) if found else ""
        )
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        return FAILED
    left, sign, right = found.groups()
    try:
        result = _OPERATORS[sign](float(left), float(right))
    except ZeroDivisionError:
        return FAILED
    # So many digits are infinity in floating point.
    if not math.isfinite(result):
        return FAILED
    return str(int(result)) if result.is_integer() else repr(result)


class ArithmeticProcessorHandler(BaseHandler):
    """Returns the result as a string; ``-1`` for an expression that cannot be calculated."""

    acts = "no"

    KEYS = {
        "ArithmeticProcessor": (
            EXPRESSION,
            VALUE_SAFE,
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        return calculate(*with_operands(context, EXPRESSION))


class WorkflowLockHandler(BaseHandler):
    """Takes the lock until the end of this run, or ends the run if another run holds it."""

    # The nodes after the lock must not start before it is held.
    acts = "writes"
    barrier = True

    KEYS = {
        "WorkflowLock": (
            ConfigKey("workflowLockId", "str", None, "Name of the lock, one per user.", "full", required=True),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        lock_id = self.text(context, "workflowLockId")
        if not lock_id.strip():
            raise ConfigValueError(
                f"WorkflowLock node '{context.node_name}' needs a workflowLockId",
                json_path="workflowLockId",
                expected="the name of a lock",
            )
        if lock_id != self.value(context, "workflowLockId") and user_flag("encryptUsingApiKey"):
            # The values of variables may come from a conversation, and the id is stored.
            lock_id = hash_content(lock_id)
        if not get_locking_service().acquire(lock_id, context.workflow_id, scope=context.request.cancel_scope):
            raise EarlyTerminationException(
                f"The workflow lock of node '{context.node_name}' is held by another run", LOCKED
            )
        return ""
