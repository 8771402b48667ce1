"""The check of the expressions of Conditional nodes: whether they can be read, with the position of the mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.node_checks import NodeView
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.keys.node import NODE
from Middleware.workflows.handlers.impl.specialized.conditional import (
    ConditionSyntaxError,
    parse_condition,
    skipped_characters,
)

_PLACEHOLDER = re.compile(r"\{[^\W\d][^{}]*\}")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")
_NOT = re.compile(r"\bNOT\b", re.IGNORECASE)
# What other languages have in place of the signs and words of a condition.
_FOREIGN = {"=": "==", "===": "==", "=>": ">=", "=<": "<=", "<>": "!=", "&": "AND", "&&": "AND", "|": "OR", "||": "OR"}
GRAMMAR = "comparisons with ==, !=, >, <, >= or <=, joined by AND or OR, with parentheses"


def check_condition(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the condition of a node cannot be read, or not as it is written."""
    text = view.node.get("condition")
    if view.runs_as != "Conditional" or not isinstance(text, str) or not text.strip():
        return
    # What a template gives is known only when the node runs.
    if NODE.flag(view.node, "jinja2") and ("{{" in text or "{%" in text):
        return
    # A word of the same length stands for the text that will be filled in.
    expression = _PLACEHOLDER.sub(lambda found: "x" * len(found.group()), text)
    skipped = [(start, signs) for start, signs in skipped_characters(expression) if "{" not in signs]
    try:
        parse_condition(expression)
    except ConditionSyntaxError as error:
        yield _unreadable(view, expression, skipped, error)
        return
    for start, signs in skipped[:1]:
        yield _at(
            view,
            start,
            view.finding(
                "warning",
                "condition",
                f"{quoted(signs)} is no part of a condition and is left out",
                expected=GRAMMAR,
                suggestion=_FOREIGN.get(signs, ""),
            ),
        )


def _unreadable(
    view: NodeView, expression: str, skipped: list[tuple[int, str]], error: ConditionSyntaxError
) -> Finding:
    always = "the condition cannot be read and counts as FALSE"
    negation = _NOT.search(_STRING.sub(lambda found: " " * len(found.group()), expression))
    # A character that fits nowhere explains what goes wrong after it, and what seems to be unfinished.
    if skipped:
        start, signs = skipped[0]
        cause = "there is no NOT" if signs == "!" else f"{quoted(signs)} is no part of a condition"
        return _at(
            view,
            start,
            view.finding(
                "error", "condition", f"{always}: {cause}", expected=GRAMMAR, suggestion=_FOREIGN.get(signs, "")
            ),
        )
    cause, start = str(error), error.position
    if negation is not None:
        cause, start = "there is no NOT; write the opposite comparison", negation.start()
    elif cause.startswith("something is left over") and expression[start] == ")":
        cause = "this parenthesis closes nothing"
    elif cause.startswith("something is left over"):
        cause = "a comparison, AND or OR is missing before this"
    return _at(view, start, view.finding("error", "condition", f"{always}: {cause}", expected=GRAMMAR))


def _at(view: NodeView, offset: int, finding: Finding) -> Finding:
    return replace(finding, offset=offset)
