"""From what a model or user wrote to the phrases that are searched for."""
from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence

logger = logging.getLogger(__name__)

MOST_TERMS = 60
LONGEST_TERM = 1000  # characters
_BULLET = re.compile(r"^(?:[-*+•–—]\s+|\(?\d{1,3}[.)]\s+)+")


def split_query(query: str) -> list[str]:
    """The terms of a query: separated by ``;``, or by line breaks where there is none; at most 60.

    Lines may be the items of a list; their bullets and numbers are no part of the terms.
    """
    parts = query.split(";")
    if len(parts) == 1:
        lines = [line.strip() for line in query.splitlines()]
        parts = [_BULLET.sub("", line) for line in lines] if len(lines) > 1 else lines
    terms = [part.strip() for part in parts if part.strip()]
    if len(terms) > MOST_TERMS:
        logger.warning("A memory search has %d terms; only the first %d are used", len(terms), MOST_TERMS)
    return terms[:MOST_TERMS]


def phrases_of(query: str) -> list[str]:
    """The terms as literal FTS5 phrases; nothing in them can act as an operator. Each once."""
    phrases = (_phrase(term) for term in split_query(query))
    return list(dict.fromkeys(phrase for phrase in phrases if phrase))


def _phrase(term: str) -> str:
    text = term[:LONGEST_TERM].replace("-", " ").replace("\0", " ").encode("utf-8", "replace").decode().strip()
    return '"{}"'.format(text.replace('"', '""')) if text else ""


def usable_weights(weights: object) -> list[float] | None:
    """Five real numbers, in the order of the index columns. Anything else counts as none, with a warning."""
    if weights is None:
        return None
    if isinstance(weights, Sequence) and not isinstance(weights, str | bytes) and len(weights) == 5:
        numbers = [_number(weight) for weight in weights]
        if None not in numbers:
            return numbers  # type: ignore[return-value]
    logger.warning("The weights of a memory search are not five numbers; they are ignored")
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
