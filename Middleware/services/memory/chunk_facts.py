"""The facts of searchable memories, chunk by chunk, as a history has them."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from Middleware.services.memory.chunks import followed_chunks, newest_chunks
from Middleware.utilities.discussion_state import VECTOR_DATABASE, DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.utilities.discussions.vector_memory import MemoryRow, SearchableMemories

logger = logging.getLogger(__name__)

# Memories from before they followed edits belong to no chunk; so many count as one.
_WITHOUT_CHUNK = 10


def fact_line(fact: str) -> str:
    return f"- {' '.join(fact.splitlines())}"


def facts_on_path(state: DiscussionState) -> list[Pair] | None:
    """Return the facts of each chunk on the path of the current request, as lines; None if they do not follow it.

    Those that belong to no chunk come first. A chunk without facts is left out. The second text of each is the chunk's
    id. None as well if the database cannot be read. Raises DataKeyError and OSError.
    """
    with _faults_logged(state):
        found = followed_chunks(state)
        if found is not None:
            with state.memories() as memories:
                return _facts(memories, [piece.keys.id for piece in found.shown if piece.keys])
    return None


def newest_facts(state: DiscussionState) -> list[Pair]:
    """Return the facts of each chunk of the newest trail; none if the database cannot be read."""
    with _faults_logged(state), state.memories() as memories:
        return _facts(memories, newest_chunks(state, memories))
    return []


@contextlib.contextmanager
def _faults_logged(state: DiscussionState) -> Iterator[None]:
    """End a block at a fault of the database, with a line in the log."""
    try:
        yield
    except sqlite3.Error as error:
        logger.error("%s cannot be read: %s", state.display(VECTOR_DATABASE), error)


def _facts(memories: SearchableMemories, names: Sequence[str]) -> list[Pair]:
    rows = list(memories.all_memories())
    known = memories.chunks_of(row["id"] for row in rows)
    by_chunk: dict[str, list[MemoryRow]] = {name: [] for name in names}
    loose: list[MemoryRow] = []
    for row in rows:
        group = by_chunk.get(known[row["id"]]) if row["id"] in known else loose
        if group is not None:
            group.append(row)
    groups = [("", loose[start : start + _WITHOUT_CHUNK]) for start in range(0, len(loose), _WITHOUT_CHUNK)]
    return [(_lines(group), name) for name, group in (*groups, *by_chunk.items()) if group]


def _lines(rows: Iterable[MemoryRow]) -> str:
    return "\n".join(fact_line(row["memory_text"]) for row in rows)
