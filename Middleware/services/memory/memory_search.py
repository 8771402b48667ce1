"""The full search in a conversation's memories: by keywords, by meaning, or both, and by the names in the results."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.exceptions import StateUnavailableError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.models.run_step import reading
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.memory.chunks import chunks_elsewhere, followed_chunks
from Middleware.services.memory.embedding_service import vector_of
from Middleware.services.memory.memory_settings import HYBRID, KEYWORD, SEMANTIC
from Middleware.services.memory.memory_store import SAID, SAID_FROM
from Middleware.utilities.discussion_state import VECTOR_DATABASE, DiscussionState
from Middleware.utilities.discussions.vector_memory import MemoryRow, SearchableMemories
from Middleware.utilities.discussions.vector_memory.keyword_search import split_query
from Middleware.utilities.once import Once
from Middleware.utilities.said_times import day_of
from Middleware.utilities.vector_math_utils import reciprocal_rank_fusion

logger = logging.getLogger(__name__)

NOTHING_FOUND = "No relevant memories found in the vector database for the given keywords."
SEPARATOR = "\n\n---\n\n"
# Names of later results have little to do with the query, and a query with more terms gets slow.
NAMING_ROWS = 10
MOST_NAMES = 60


@dataclass(frozen=True)
class VectorSearch:
    """The arguments of a search.

    Attributes:
        keywords: words or phrases, ``;`` between them.
        limit: the maximum number of memories.
        bm25_weights: weights of title, summary, entities, key phrases and text; None for equal weights.
        use_recency: rank newer memories higher.
        include_dates: each text starts with its date.
        mode: ``keyword``, ``semantic`` or ``hybrid``; anything else counts as the first.
        semantic_query: the text for the search by meaning; "" for the keywords.
        embedding_endpoint: the endpoint whose vectors are compared.
        use_entity_expansion: also search for the entities in the results, and reserve a third of the result for these.
        request_id: the request whose cancellation ends the search, if there is no current one.
    """

    keywords: str
    limit: int = 5
    bm25_weights: Sequence[float] | None = None
    use_recency: bool = False
    include_dates: bool = False
    mode: str = KEYWORD
    semantic_query: str = ""
    embedding_endpoint: str = ""
    use_entity_expansion: bool = False
    request_id: str | None = None


def fallback_notices() -> Once[str]:
    """The databases whose missing vectors were reported."""
    return Once()


def search_memories_fully(state: DiscussionState, search: VectorSearch) -> str:
    """Return the texts of the best matches, or a text that says that there was no match. Creates nothing.

    Raises DataKeyError for data of another API key, and EarlyTerminationException for a cancelled request.
    """
    scope = _scope(search.request_id)
    rows: list[MemoryRow] = []
    try:
        with reading("vector") as step, state.memories(scope=scope) as memories:
            memories.leave_out(chunks_elsewhere(state, memories))
            rows = search_memories(memories, search, scope)
            step.attributes["found"] = len(rows)
            if (found := followed_chunks(state)) is not None:
                step.attributes["trail"] = found.about
    # A damaged database must not end the conversation.
    except sqlite3.Error as error:
        logger.error(
            "%s cannot be searched: %s. Run the command 'memory check' for details.",
            state.display(VECTOR_DATABASE),
            error,
        )
    # The conversation goes on without its memories until the database is back.
    except StateUnavailableError as error:
        logger.warning("%s cannot be searched: %s", state.display(VECTOR_DATABASE), error)
    else:
        logger.info(
            "Discussion %s: %d memories found for %d search terms",
            state.discussion_id,
            len(rows),
            len(split_query(search.keywords)),
        )
    return SEPARATOR.join(_text(row, search.include_dates) for row in rows) or NOTHING_FOUND


def search_memories(
    memories: SearchableMemories, search: VectorSearch, scope: CancelScope | None = None
) -> list[MemoryRow]:
    """Return the best matches, best first. Also raises sqlite3.Error."""
    return _Search(search, memories, scope).rows() if search.limit > 0 else []


class _Search:
    """One search on an open database."""

    def __init__(self, search: VectorSearch, memories: SearchableMemories, scope: CancelScope | None) -> None:
        self._search, self._memories, self._scope = search, memories, scope

    def rows(self) -> list[MemoryRow]:
        rows = self._base()
        return self._expanded(rows) if self._search.use_entity_expansion else rows

    def _base(self) -> list[MemoryRow]:
        mode = self._mode()
        found = [] if mode == SEMANTIC else self._by_keywords(self._search.keywords, self._search.limit)
        near = [] if mode == KEYWORD else self._nearest()
        # Without vectors, keywords find more than nothing.
        if mode == SEMANTIC and not near:
            return self._by_keywords(self._search.keywords, self._search.limit)
        if not near:
            return found
        ranked = reciprocal_rank_fusion([[row["id"] for row in found], near])
        return self._memories.by_ids(ranked[: self._search.limit])

    def _mode(self) -> str:
        mode = self._search.mode.strip().lower()
        if mode not in (KEYWORD, SEMANTIC, HYBRID):
            logger.warning(
                "A memory search has the unknown mode '%s'; it looks for keywords. Known: %s",
                mode,
                ", ".join((KEYWORD, SEMANTIC, HYBRID)),
            )
            return KEYWORD
        if mode != KEYWORD and not self._search.embedding_endpoint.strip():
            logger.error(
                "A memory search has the mode '%s', but no endpoint for embeddings; it looks for keywords", mode
            )
            return KEYWORD
        return mode

    def _by_keywords(self, keywords: str, limit: int) -> list[MemoryRow]:
        return self._memories.keyword_search(keywords, limit, self._search.bm25_weights, self._search.use_recency)

    # -- by meaning ------------------------------------------------------------------------------------------------
    def _nearest(self) -> list[int]:
        """Return the ids of the memories nearest in meaning; none, with a logged error, without an embedding."""
        text = self._search.semantic_query.strip() or self._search.keywords.replace(";", " ").strip()
        if not text:
            return []
        found = vector_of(text, self._search.embedding_endpoint, self._scope)
        if found is None:
            return []
        vector, model = found
        self._warn_of_missing_vectors(model)
        return self._memories.nearest(vector, model, self._search.limit)

    def _warn_of_missing_vectors(self, model: str) -> None:
        if self._memories.place in process().one(fallback_notices):
            return
        missing = self._memories.count_without_embeddings(model)
        if missing and process().one(fallback_notices).first(self._memories.place):
            logger.warning(
                "Discussion %s: %d memories have no vector of model '%s' and are found by keywords only",
                self._memories.discussion_id,
                missing,
                model,
            )

    # -- along names -----------------------------------------------------------------------------------------------
    def _expanded(self, base: list[MemoryRow]) -> list[MemoryRow]:
        limit = self._search.limit
        names = _new_names(base[:NAMING_ROWS], self._search.keywords)
        if not names:
            return base
        known = {row["id"] for row in base}
        # The limit includes the known rows, so that they do not displace new ones.
        found = self._by_keywords(";".join(names), limit + len(base))
        novel = [row for row in found if row["id"] not in known]
        reserved = min(max(1, limit // 3), len(novel), max(0, limit - 1))
        return [*base[: limit - reserved], *novel][:limit]


def _new_names(rows: Iterable[MemoryRow], keywords: str) -> list[str]:
    """Return the distinct entities of the rows that are not terms of the query, in order."""
    taken = {term.casefold() for term in split_query(keywords)}
    names: list[str] = []
    for name in _entities(rows):
        if name.casefold() not in taken and len(names) < MOST_NAMES:
            taken.add(name.casefold())
            names.append(name)
    return names


def _entities(rows: Iterable[MemoryRow]) -> Iterator[str]:
    for row in rows:
        entities = _metadata(row).get("entities")
        for entity in entities if isinstance(entities, list) else []:
            if isinstance(entity, str) and (name := entity.replace(";", " ").strip()):
                yield name


def _text(row: MemoryRow, with_date: bool) -> str:
    text = str(row["memory_text"])
    return f"[{_day(row)}] {text}" if with_date else text


def _day(row: MemoryRow) -> str:
    """Return the day on which the newest message of a memory was sent, else that on which it was stored."""
    metadata = _metadata(row)
    # The writer stores both. One alone is what an LLM has written into the memory.
    said = day_of(metadata.get(SAID)) if SAID_FROM in metadata else None
    return str(said or str(row["date_added"])[:10])


def _metadata(row: MemoryRow) -> Mapping[str, object]:
    try:
        metadata = json.loads(row["metadata_json"] or "{}")
    # The database may have been written by another program.
    except (TypeError, ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _scope(request_id: str | None) -> CancelScope | None:
    # A script may search for a request that runs elsewhere.
    request = current_request()
    if request is not None:
        return request.cancel_scope
    return get_cancellation_service().scope_for(request_id) if request_id else None
