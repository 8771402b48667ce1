"""How many examples a property test tries."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

from Tests.amounts import DEEP, USUAL_EXAMPLES


def examples(count: int, **more: Any) -> settings:
    """Return settings for a property that needs another number of examples than others where deep tests run."""
    return settings(max_examples=count if DEEP else min(count, USUAL_EXAMPLES), **more)
