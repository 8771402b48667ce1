"""How many examples a property test tries."""
from __future__ import annotations

from typing import Any

from hypothesis import settings


def most(count: int) -> int:
    """Return ``count``, or what the profile ``dev`` allows."""
    if settings.get_current_profile_name() != "dev":
        return count
    return min(count, settings.get_profile("dev").max_examples)


def examples(count: int, **more: Any) -> settings:
    """Return settings with this number of examples for a property that needs another one than the profile says."""
    return settings(max_examples=most(count), **more)
