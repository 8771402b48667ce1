"""Vectors of the messages of a discussion, so that ``Recall`` finds them by their meaning as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext
from Middleware.services.memory.embedding_service import TextRow, embed_new_rows
from Middleware.services.memory.remembering import Remembered, opened_for_writing, warning
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow
from Middleware.utilities.discussions.message_index.message_tables import FORGOTTEN

# "Yes, of course." has no meaning of its own.
LEAST_WORDS = 4
# Texts in one call: servers that take fewer refuse it, and get halves of it.
_MOST_AT_ONCE = 128


class EmbeddableMessages:
    """The rows of an index, as ``Embeddable``."""

    names = "message", "messages"

    def __init__(self, index: MessageIndex, discussion_id: str) -> None:
        self._index, self.discussion_id, self.place = index, discussion_id, index.path

    def by_ids(self, numbers: Sequence[int]) -> list[TextRow]:
        rows = self._index.rows(numbers)
        return _texts(row for row in rows if row.words >= LEAST_WORDS and row.state != FORGOTTEN)

    def without_embeddings(self, model: str, limit: int) -> list[TextRow]:
        return _texts(self._index.without_vectors(model, LEAST_WORDS, limit))

    def add_embeddings(self, embeddings: Sequence[tuple[int, bytes]], model: str) -> int:
        self._index.add_vectors(embeddings, model)
        return len(embeddings)


def _texts(rows: Iterable[MessageRow]) -> list[TextRow]:
    return [{"id": row.id, "memory_text": row.text} for row in rows]


def embed_messages(request: RequestContext, remembered: Remembered) -> None:
    """Store vectors of the messages that a request and its answer have brought, and of some older ones."""
    filled, speech, scope = remembered.filled, remembered.speech, request.cancel_scope
    if filled is None or scope.cancelled:
        return
    with (
        contextlib.suppress(EarlyTerminationException),
        warning(speech.state),
        opened_for_writing(speech.state, request) as index,
    ):
        if index is None:
            return
        messages = EmbeddableMessages(index, speech.state.discussion_id)
        for endpoint in remembered.endpoints:
            for some, older in _batches(filled.new, speech.settings.backfill):
                if not embed_new_rows(messages, some, endpoint, older, scope):
                    break


def _batches(new: Sequence[int], older: int) -> Iterator[tuple[Sequence[int], int]]:
    """Yield the new rows in parts, each with the number of older ones that are embedded with it: with the last part."""
    starts = range(0, max(1, len(new)), _MOST_AT_ONCE)
    for start in starts:
        yield new[start : start + _MOST_AT_ONCE], older if start == starts[-1] else 0
