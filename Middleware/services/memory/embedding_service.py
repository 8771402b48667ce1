"""Vectors for memories and for search texts."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypedDict

from Middleware.exceptions import (
    BackendError,
    BackendLoopError,
    BackendResponseError,
    BackendStatusError,
    ConfigurationError,
    WilmerError,
)
from Middleware.exceptions.early_termination_exception import EarlyTerminationException
from Middleware.llmapis.backend_errors import log_text
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache, Once
from Middleware.utilities.vector_math_utils import vector_to_blob

logger = logging.getLogger(__name__)

EmbeddingService = EmbeddingApiService
"""The embedding model behind an endpoint."""

# Of an endpoint that was too slow, no vector is waited for during this time.
LATE_SECONDS = 60.0
# These statuses do not depend on the text that was sent, so no row is at fault.
PASSING_STATUSES = (401, 403, 404, 408, 429, 502, 503, 504)
# Errors that can be caused by a particular text.
_REFUSED = (BackendStatusError, BackendResponseError)


class TextRow(TypedDict):
    """A row as far as it is embedded."""

    id: int
    memory_text: str


class Embeddable(Protocol):
    """Rows with texts, such as ``SearchableMemories``, open for writing.

    Attributes:
        names: what one row is called in the log, and several.
    """

    names: tuple[str, str]

    @property
    def discussion_id(self) -> str: ...

    @property
    def place(self) -> str: ...

    def by_ids(self, numbers: Sequence[int]) -> Sequence[TextRow]:
        """Return the rows with these ids; those that need no vector are left out."""
        ...

    def without_embeddings(self, model: str, limit: int) -> Sequence[TextRow]:
        """Return the oldest rows that have no vector of this model."""
        ...

    def add_embeddings(self, embeddings: Sequence[tuple[int, bytes]], model: str) -> int: ...


def vector_of(
    text: str, endpoint_name: str, scope: CancelScope | None, seconds: float | None = None
) -> tuple[list[float], str] | None:
    """Return the vector of a search text, and its model; None for a cancelled request, or, with a line in the log,
    if there is no vector, be it for lack of time: ``seconds``. An endpoint that was too slow is not asked again for
    ``LATE_SECONDS``."""
    try:
        if seconds is not None and time.monotonic() < (process().one(_late).get(endpoint_name) or 0.0):
            return None
        with _limited(scope, seconds) as limited:
            service = EmbeddingService(endpoint_name, scope=limited)
            vectors = service.embed([text])
            late = limited is not scope and limited is not None and limited.cancelled
    except (BackendError, ConfigurationError) as error:
        logger.error("A memory search looks for keywords only, as the text has no embedding: %s", log_text(error))
        return None
    if vectors:
        return vectors[0], service.model_name
    if late and not (scope is not None and scope.cancelled):
        process().one(_late).put(endpoint_name, time.monotonic() + LATE_SECONDS)
        logger.error(
            "A memory search looks for keywords only, as the text has no embedding: endpoint '%s' has not answered "
            "within %g seconds",
            endpoint_name,
            seconds,
        )
    return None


def _late() -> BoundedCache[str, float]:
    """The endpoints that were too slow, with the time until which no search waits for them."""
    return BoundedCache(MAX_REMEMBERED)


@contextlib.contextmanager
def _limited(scope: CancelScope | None, seconds: float | None) -> Iterator[CancelScope | None]:
    """Yield a scope that is cancelled with ``scope``, and after so many seconds."""
    if seconds is None:
        yield scope
        return
    own = CancelScope()
    token = scope.add_callback(own.cancel) if scope is not None else 0
    timer = threading.Timer(seconds, own.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield own
    finally:
        timer.cancel()
        if scope is not None:
            scope.remove_callback(token)


def embed_new_rows(
    memories: Embeddable,
    row_ids: Sequence[int],
    endpoint_name: str,
    backfill: int = 20,
    scope: CancelScope | None = None,
) -> int:
    """Store vectors for new rows and for some of the oldest without one, in one call; return how many.

    Errors are only logged: the rows themselves are stored, and later calls add the missing vectors. A cancelled
    request stores nothing. Older rows that the endpoint rejects are not tried again by this process.

    Args:
        memories: open for writing.
        backfill: the number of older rows; 0 for none.
    """
    try:
        batch = _Batch(memories, EmbeddingService(endpoint_name, scope=scope))
        return batch.embed(row_ids, backfill)
    except EarlyTerminationException:
        raise
    # The memories are stored already, and a later call adds what is missing.
    except (WilmerError, sqlite3.Error, OSError, ValueError, OverflowError) as error:
        logger.error(
            "%s could not be embedded by endpoint '%s': %s",
            memories.names[1].capitalize(),
            endpoint_name,
            log_text(error),
        )
        return 0


class _Batch:
    """One call's rows of a database, and the endpoint that makes their vectors."""

    def __init__(self, memories: Embeddable, service: EmbeddingService) -> None:
        self._memories, self._service = memories, service

    def embed(self, row_ids: Sequence[int], backfill: int) -> int:
        """Embed rows. Raises the errors of the endpoint and the database, except those that only older rows cause."""
        new = self._memories.by_ids(row_ids)
        older = self._older(set(row_ids), backfill)
        try:
            return self._store([*new, *older])
        except _REFUSED as error:
            if not older:
                raise
            if not new:
                return self._halves(older, error)
            logger.warning(
                "Endpoint '%s' failed on a batch with older %s; the new ones are sent alone: %s",
                self._service.endpoint_name,
                self._memories.names[1],
                log_text(error),
            )
        done = self._store(new)
        # A cancelled request stores nothing.
        return done and done + self._in_parts(older)

    def _in_parts(self, rows: Sequence[TextRow]) -> int:
        """Store vectors for rows, except for those that the endpoint rejects; these are skipped from now on."""
        try:
            return self._store(rows)
        except _REFUSED as error:
            return self._halves(rows, error)

    def _halves(self, rows: Sequence[TextRow], error: BackendError) -> int:
        if error.status in PASSING_STATUSES or isinstance(error, BackendLoopError):
            raise error
        # An error names no row, so halves are tried until one row is left.
        if len(rows) > 1:
            middle = len(rows) // 2
            return self._in_parts(rows[:middle]) + self._in_parts(rows[middle:])
        logger.warning(
            "Discussion %s: endpoint '%s' cannot embed %s %d, which is found by keywords only: %s",
            self._memories.discussion_id,
            self._service.endpoint_name,
            self._memories.names[0],
            rows[0]["id"],
            log_text(error),
        )
        process().one(_rejected).first((self._memories.place, self._service.model_name, *_identity(rows[0])))
        return 0

    def _store(self, rows: Sequence[TextRow]) -> int:
        if not rows:
            return 0
        vectors = self._service.embed([row["memory_text"] for row in rows])
        if vectors is None:
            return 0
        blobs = [(row["id"], vector_to_blob(vector)) for row, vector in zip(rows, vectors, strict=True)]
        return self._memories.add_embeddings(blobs, self._service.model_name)

    def _older(self, new: set[int], count: int) -> list[TextRow]:
        """Return the oldest rows without a vector, except those that the endpoint rejected."""
        if not count:
            return []
        rejected = _rejected_rows(self._memories.place, self._service.model_name)
        # Rows that are left out below must not use up the count.
        rows = self._memories.without_embeddings(self._service.model_name, count + len(new) + len(rejected))
        return [row for row in rows if row["id"] not in new and _identity(row) not in rejected][:count]


def _identity(row: TextRow) -> tuple[int, str]:
    """Return the row's id and a digest of its text: a restarted conversation has other rows with the same ids."""
    return row["id"], hash_content(row["memory_text"])


def _rejected() -> Once[tuple[str, str, int, str]]:
    """The rows that an endpoint rejected: place, model, row and a digest of its text."""
    return Once(10_000)


def _rejected_rows(place: str, model: str) -> set[tuple[int, str]]:
    known = process().one(_rejected).keys()
    return {(row, digest) for where, name, row, digest in known if (where, name) == (place, model)}
