"""Mistakes of newcomers that the check once did not see, or did not name well, each with the one message about it.

``test_check_names_it_once`` makes each of them. Further rows are further tuples in ``NEWCOMERS``.
"""
from __future__ import annotations

from Tests.integration.configuration_mistakes import CHAT, Mistake

TEMPLATE_NODE = ('"type": "StaticResponse",\n      "jinja2": true,\n'
                 '      "content": "{% if agent1Output %}{{ agent2Output }}{% endif %}"')
UNREADABLE = "the condition cannot be read and counts as FALSE"


def condition(name: str, text: str, *says: str, at: str, nearest: str = "") -> Mistake:
    """A row whose condition cannot be read."""
    return Mistake(f"condition-{name}", CHAT, TEMPLATE_NODE, f'"type": "Conditional",\n      "condition": "{text}"',
                   (UNREADABLE, *says), nearest, at=at)


CONDITIONS = (
    condition("one-equals-sign", "{agent1Output} = yes", "'=' is no part of a condition", nearest="==", at="} |= yes"),
    condition("not", "({agent1Output} NOT", "there is no NOT", at="} |NOT"),
    condition("open-parenthesis", "({agent1Output} == yes", "a parenthesis is not closed", at='"|({agent1Output} =='),
    condition("no-comparison", "{agent1Output} yes", "a comparison, AND or OR is missing before this", at="} |yes"),
)

NEWCOMERS = (*CONDITIONS,)
