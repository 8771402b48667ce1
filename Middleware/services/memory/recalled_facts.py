"""Searchable memories as results of a search in messages: the same formula, without neighbours."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from Middleware.services.memory.memory_store import SAID, SAID_FROM
from Middleware.utilities.discussions.message_index.ranking import BEGUN, NAMED, SATURATION, weight
from Middleware.utilities.discussions.message_index.terms import Query, Term
from Middleware.utilities.discussions.message_index.words import index_words, is_pair
from Middleware.utilities.discussions.vector_memory import MemoryRow, SearchableMemories, schema
from Middleware.utilities.relative_dates import language_of_message, spelled
from Middleware.utilities.said_times import Calendar
from Middleware.utilities.stop_words import words_of

# Facts that are read at most, of those that hold a term.
_MOST_READ = 60
# The newest memories that are read where no index of words helps.
_MOST_WITHOUT_INDEX = 2_000
_DAY = 86_400


@dataclass(frozen=True)
class Fact:
    """A memory that holds a term.

    Attributes:
        line: with its date; said: Unix seconds, None if unknown.
    """

    id: int
    text: str
    line: str
    said: float | None
    score: float


def ranked_facts(
    memories: SearchableMemories, query: Query, calendar: Calendar, near: Collection[int] = ()
) -> dict[int, Fact]:
    """Return the memories that fit best, by their ids, best first. Raises what the memories raise.

    ``near``: the ids of others that are wanted as well; without a term, their score is 0.
    """
    if not memories.exists:
        return {}
    total = memories.counts()["memories"]
    # The index of memories has no pairs of characters.
    rows = memories.newest(_MOST_WITHOUT_INDEX) if any(is_pair(term.words[0]) for term in query.terms) else []
    newest = {row["id"]: row["memory_text"].casefold() for row in rows}
    found = [(term, _ids(memories, term, newest)) for term in query.terms]
    rough: dict[int, float] = {}
    for _, ids in found:
        rarity = weight(total, len(ids))
        for number, much in ids.items():
            rough[number] = rough.get(number, 0.0) + rarity * much
    chosen = sorted(rough, key=lambda number: (-rough[number], number))[:_MOST_READ]
    rows = memories.by_ids([*chosen, *(number for number in near if number not in chosen)])
    average = sum(len(words_of(row["memory_text"])) for row in rows) / max(1, len(rows))
    facts = [_fact(row, query, found, total, average, calendar) for row in rows]
    return {fact.id: fact for fact in sorted(facts, key=lambda fact: (-fact.score, fact.id))}


def sources_of(memories: SearchableMemories, numbers: Collection[int]) -> dict[int, frozenset[str]]:
    """Return the keys, as stored, of the messages that memories were made of; those without any are left out."""
    if not numbers or not memories.has_chunks:
        return {}
    sources = {chunk.id: frozenset(chunk.sources) for chunk in memories.chunks()}
    return {number: sources[chunk] for number, chunk in memories.chunks_of(numbers).items() if sources.get(chunk)}


def _ids(memories: SearchableMemories, term: Term, newest: Mapping[int, str]) -> dict[int, float]:
    """Return the memories with a term, and how much of it is in them; ``newest``: where pairs are looked for."""
    if is_pair(term.words[0]):
        return {number: 1.0 for number, text in newest.items() if term.words[0] in text}
    begun = dict.fromkeys(memories.ids_of(f'"{term.beginning}" *'), BEGUN) if term.beginning else {}
    return begun | dict.fromkeys(memories.ids_of(*(f'"{word}"' for word in term.words)), 1.0)


def _fact(
    row: MemoryRow,
    query: Query,
    found: Sequence[tuple[Term, dict[int, float]]],
    total: int,
    average: float,
    calendar: Calendar,
) -> Fact:
    text = row["memory_text"]
    try:
        metadata = schema.parse_metadata(row["metadata_json"])
    # Edited by hand.
    except ValueError:
        metadata = {}
    said, until_day = _said(metadata, row["date_added"])
    day = calendar.day(int(said)) if said is not None else None
    length = math.sqrt(max(1.0, len(words_of(text)) / max(1.0, 1.5 * average)))
    dates = set(index_words(spelled(day, language_of_message([text])))) if day is not None else set()
    score = 0.0
    for term, ids in found:
        if not ids:
            continue
        much = ids.get(row["id"], 0.0) / length + bool(dates & set(term.words))
        score += weight(total, len(ids)) * much / (much + SATURATION)
    if query.named is not None and query.named in _names(metadata.get("entities")):
        score *= NAMED
    return Fact(row["id"], text, _line(text, day, not until_day), said, score)


def _said(metadata: dict[str, object], added: str) -> tuple[float | None, bool]:
    """Return the time of a memory, and whether that is known to the day."""
    newest, oldest = (_seconds(metadata.get(key)) for key in (SAID, SAID_FROM))
    # The writer stores both. One alone is what an LLM has written into the memory.
    if newest is None or oldest is None:
        return _seconds(added), False
    return newest, newest - oldest < _DAY


def _seconds(moment: object) -> float | None:
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _names(entities: object) -> Iterable[str]:
    return [name for name in entities if isinstance(name, str)] if isinstance(entities, list) else []


def _line(text: str, day: date | None, about: bool) -> str:
    line = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    mark = "about " if about else ""
    return f"[{mark}{spelled(day, language_of_message([text]))}] {line}" if day is not None else line
