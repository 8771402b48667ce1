"""How often a test repeats what it does: seldom in each run, many times when deep tests run."""

from __future__ import annotations

import os

# .ci/run --deep sets it for the tests whose amounts are named here.
DEEP = bool(os.environ.get("WILMER_DEEP"))
# Of each property of a test by Hypothesis.
USUAL_EXAMPLES, DEEP_EXAMPLES = 30, 200


def amount(usual: int, deep: int) -> int:
    """Return how often something is done: the statement is the same, and with ``deep`` it is tried more often."""
    return deep if DEEP else usual
