"""The facts of searchable memories, chunk by chunk, as a history has them."""

from __future__ import annotations

from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair


def fact_line(fact: str) -> str:
    return f"- {' '.join(fact.splitlines())}"


def facts_on_path(state: DiscussionState) -> list[Pair] | None:
    """Return the facts of each chunk on the path of the current request, as lines; None if they do not follow it."""
    return None


def newest_facts(state: DiscussionState) -> list[Pair]:
    """Return the facts of each chunk of the newest trail."""
    return []
