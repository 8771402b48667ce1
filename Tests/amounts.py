"""How often a test repeats what it does: seldom in each run, many times when deep tests run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

Row = TypeVar("Row")

# .ci/run --deep sets it for the tests whose amounts are named here.
DEEP = bool(os.environ.get("WILMER_DEEP"))
# Of each property of a test by Hypothesis.
USUAL_EXAMPLES, DEEP_EXAMPLES = 30, 200


def amount(usual: Row, deep: Row) -> Row:
    """Return how often something is done: the statement is the same, and with ``deep`` it is tried more often."""
    return deep if DEEP else usual


def alternate(rows: Iterable[Row], count: int, first: int = 0) -> list[Row]:
    """Return every ``count``-th row, beginning with number ``first``; with ``deep`` all of them.

    For the rows of several tests, each of which then has some of them, and for rows that are combinations.
    """
    return list(rows) if DEEP else list(rows)[first::count]
