"""Vectors for memories and for what they are searched with."""
from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.exceptions import BackendStatusError, WilmerError
from Middleware.exceptions.early_termination_exception import EarlyTerminationException
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.vector_math_utils import vector_to_blob
from Middleware.utilities.vector_memory import VectorMemories

logger = logging.getLogger(__name__)

EmbeddingService = EmbeddingApiService
"""The embedding model behind an endpoint, for those who ask more than once or need its name first."""


@dataclass(frozen=True)
class Embeddings:
    """Vectors, and the model that made them; those of different models cannot be compared."""

    model: str
    vectors: list[list[float]]


def embed_texts(endpoint_name: str, texts: Sequence[str], *, scope: CancelScope | None = None) -> Embeddings | None:
    """One vector for each text, in order; None if the request was cancelled.

    Args:
        scope: stop switch; None: that of the current request.

    Raises BackendError and ConfigurationError.
    """
    service = EmbeddingService(endpoint_name, scope=scope)
    vectors = service.embed(texts)
    return None if vectors is None else Embeddings(service.model_name, vectors)


def embed_new_rows(memories: VectorMemories, row_ids: Sequence[int], endpoint_name: str, backfill_size: Any = 20,
                   scope: CancelScope | None = None) -> int:
    """Store vectors for new memories and for some of the oldest without one, made in one call; returns how many.

    Errors are logged and nothing more: the memories themselves are stored, and later calls fill the gap. A cancelled
    request stores nothing.

    Args:
        memories: open for writing.
        backfill_size: how many older rows; 0 for none.
    """
    try:
        service = EmbeddingService(endpoint_name, scope=scope)
        new = memories.by_ids(row_ids)
        older = _older_rows(memories, service.model_name, set(row_ids), _batch_size(backfill_size))
        return _embed_rows(memories, service, new, older)
    except EarlyTerminationException:
        raise
    except (WilmerError, sqlite3.Error, OSError, ValueError, OverflowError) as error:
        logger.error("Memories could not be embedded by endpoint '%s': %s", endpoint_name, error)
        return 0


def _embed_rows(memories: VectorMemories, service: EmbeddingService, new: list[dict[str, Any]],
                older: list[dict[str, Any]]) -> int:
    rows = new + older
    if not rows:
        return 0
    try:
        vectors = service.embed([row["memory_text"] for row in rows])
    except BackendStatusError as error:
        if not (new and older and error.status is not None and 400 <= error.status < 500):
            raise
        logger.warning("Endpoint '%s' refused a batch with older memories (%s); the new ones are sent alone",
                       service.endpoint_name, error)
        return _embed_rows(memories, service, new, [])
    if vectors is None:
        return 0
    blobs = [(row["id"], vector_to_blob(vector)) for row, vector in zip(rows, vectors, strict=True)]
    return memories.add_embeddings(blobs, service.model_name)


def _older_rows(memories: VectorMemories, model: str, new: set[int], count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    rows = memories.without_embeddings(model, count + len(new))
    return [row for row in rows if row["id"] not in new][:count]


def _batch_size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return max(0, value)
    logger.warning("The number of older memories to embed is no whole number; none are")
    return 0
