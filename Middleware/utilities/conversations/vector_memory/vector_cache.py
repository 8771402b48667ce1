"""The vectors of a database, unpacked and of length 1, so that a search costs one multiplication for each."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.utilities.conversations.vector_memory.cache import LatestUsed, turn
from Middleware.utilities.encryption_utils import Cipher
from Middleware.utilities.vector_math_utils import NormalisedVectors

MOST_SETS = 8  # databases and models whose vectors stay in memory


class CachedVectors:
    """The vectors of one model in one file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: Hashable = None
        self._vectors: NormalisedVectors | None = None

    def nearest(self, query: Sequence[float], limit: int, state: Hashable,
                load: Callable[[], list[tuple[int, bytes]]], scope: CancelScope | None = None) -> list[int]:
        """Ids of the vectors most like ``query``; they are loaded only when ``state`` differs from last time.

        Raises EarlyTerminationException when ``scope`` is cancelled while another thread loads them.
        """
        with turn(self._lock, scope):
            if self._vectors is None or state != self._state:
                self._vectors = NormalisedVectors(load())
                self._state = state
            vectors = self._vectors
        return vectors.nearest(query, limit)


def _sets() -> LatestUsed[CachedVectors]:
    return LatestUsed(MOST_SETS)


def vectors_of(path: str, model: str, cipher: Cipher) -> CachedVectors:
    return process().one(_sets).get((os.path.realpath(path), model, cipher.mark), CachedVectors)
