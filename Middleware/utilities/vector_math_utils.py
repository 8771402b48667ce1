"""Vectors as bytes, their similarity, and the fusion of ranked lists. It is faster if numpy is installed."""

from __future__ import annotations

import functools
import heapq
import importlib
import itertools
import logging
import math
import operator
from array import array
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Hashable)

# Vectors are stored as 32-bit floats: half the size, and precise enough for a ranking.
FLOAT_BYTES = 4


@functools.lru_cache(maxsize=1)
def numpy_or_none() -> Any:
    # It takes long to load, and without it the ranking is only slower.
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def vector_to_blob(vector: Iterable[float]) -> bytes:
    """Return 32-bit floats in the machine's byte order; numbers out of range become infinite. Raises TypeError."""
    return array("f", vector).tobytes()


def blob_to_vector(blob: bytes) -> list[float]:
    """Return the numbers of a blob. Raises ValueError if its length is not a multiple of four."""
    numbers = array("f")
    numbers.frombytes(blob)
    return numbers.tolist()


def cosine_similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return a number from -1 to 1; 0.0 for a vector of zeros and, with a warning, for different lengths."""
    if len(first) != len(second):
        logger.warning("Vectors of %d and %d numbers cannot be compared", len(first), len(second))
        return 0.0
    one, other = _normalised(first), _normalised(second)
    return math.fsum(map(operator.mul, one, other)) if one and other else 0.0


def rank_by_cosine(query: Sequence[float], candidates: Iterable[tuple[int, bytes]], n: int) -> list[int]:
    """Return the ids of the ``n`` blobs most similar to ``query``, best first; ties in the given order."""
    return NormalisedVectors(candidates).nearest(query, n)


def reciprocal_rank_fusion(lists: Iterable[Iterable[T]], k: int = 60, weights: Iterable[float] = ()) -> list[T]:
    """Return all items, best first, by the sum of ``1 / (k + rank)`` over the lists; ties by first appearance.

    ``weights``: how much each list counts; 1 for those that have none.
    """
    scores: dict[T, float] = {}
    for ranked, weight in zip(lists, itertools.chain(weights, itertools.repeat(1.0)), strict=False):
        for rank, item in enumerate(ranked, start=1):
            scores[item] = scores.get(item, 0.0) + weight / (k + rank)
    return sorted(scores, key=lambda item: -scores[item])


def _normalised(vector: Sequence[float]) -> list[float]:
    """Return the vector scaled to length 1; empty if that is impossible."""
    # Scaled by the largest number first, as the square of a number may overflow or become 0.
    largest = max(map(abs, vector), default=0.0)
    if not largest or not math.isfinite(largest):
        return []
    scaled = [number / largest for number in vector]
    length = math.sqrt(math.fsum(number * number for number in scaled))
    return [number / length for number in scaled] if math.isfinite(length) else []


class NormalisedVectors:
    """Vectors prepared for many comparisons, with queries of the same length only. Thread-safe, as nothing changes."""

    def __init__(self, candidates: Iterable[tuple[int, bytes]]) -> None:
        self._ids: list[int] = []
        # Of each vector: its place among vectors of equal scores. None: that in which it was given.
        self._places: list[int] | None = None
        by_size: dict[int, list[tuple[int, bytes]]] = {}
        for index, (number, blob) in enumerate(candidates):
            self._ids.append(number)
            by_size.setdefault(len(blob), []).append((index, blob))
        self._rows = {
            size // FLOAT_BYTES: ([index for index, _ in rows], _matrix([blob for _, blob in rows], size))
            for size, rows in by_size.items()
            if size and size % FLOAT_BYTES == 0
        }

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self._ids)

    def extended(self, candidates: Iterable[tuple[int, bytes]]) -> NormalisedVectors:
        """Return these vectors and others, as if all had been given in the order of their ids."""
        more = NormalisedVectors(candidates)
        if not more._ids:
            return self
        count = len(self._ids)
        both = NormalisedVectors(())
        both._ids = self._ids + more._ids
        both._rows = dict(self._rows)
        for size, (indexes, matrix) in more._rows.items():
            moved = [index + count for index in indexes]
            known = self._rows.get(size)
            both._rows[size] = (known[0] + moved, _joined(known[1], matrix)) if known else (moved, matrix)
        both._places = [0] * len(both._ids)
        for place, index in enumerate(sorted(range(len(both._ids)), key=both._ids.__getitem__)):
            both._places[index] = place
        return both

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, query: Sequence[float], limit: int, left_out: Collection[int] = ()) -> list[int]:
        """Return the ids of the ``limit`` most similar vectors, best first; ties in the given order.

        ``left_out``: ids that are not returned.
        """
        if limit < 1 or not self._ids:
            return []
        scores = self._scores(query)
        places = self._places or range(len(self._ids))
        wanted = [index for index in scores if self._ids[index] not in left_out] if left_out else scores
        best = heapq.nlargest(limit, wanted, key=lambda index: (scores[index], -places[index]))
        return [self._ids[index] for index in best]

    def similarities(self, query: Sequence[float]) -> dict[int, float]:
        """Return for each id how similar its vector is to ``query``, from -1 to 1."""
        return {self._ids[index]: score for index, score in self._scores(query).items()}

    def _scores(self, query: Sequence[float]) -> dict[int, float]:
        """Return the similarity of each vector of the query's length, by its index."""
        indexes, matrix = self._rows.get(len(query), ([], None))
        if len(indexes) < len(self._ids):
            logger.warning(
                "%d of %d stored vectors do not have the %d numbers of the query",
                len(self._ids) - len(indexes),
                len(self._ids),
                len(query),
            )
        direction = _normalised(query)
        scores = dict.fromkeys(indexes, 0.0)
        if direction and matrix is not None:
            scores.update(zip(indexes, _products(matrix, direction), strict=True))
        return scores


def _matrix(blobs: list[bytes], size: int) -> Any:
    """Return vectors of equal size, each normalised: rows of a numpy array, or a list of arrays."""
    numpy = numpy_or_none()
    if numpy is None:
        return [array("f", _normalised(blob_to_vector(blob)) or [0.0] * (size // FLOAT_BYTES)) for blob in blobs]
    rows = numpy.frombuffer(b"".join(blobs), dtype=numpy.float32).reshape(len(blobs), -1).copy()
    rows[~numpy.isfinite(rows).all(axis=1)] = 0.0
    largest = numpy.abs(rows).max(axis=1, keepdims=True)
    rows /= numpy.where(largest > 0.0, largest, 1.0)
    lengths = numpy.linalg.norm(rows, axis=1, keepdims=True)
    rows /= numpy.where(lengths > 0.0, lengths, 1.0)
    return rows


def _joined(first: Any, second: Any) -> Any:
    numpy = numpy_or_none()
    return first + second if numpy is None or isinstance(first, list) else numpy.concatenate((first, second))


def _products(matrix: Any, direction: list[float]) -> list[float]:
    numpy = numpy_or_none()
    if numpy is None or isinstance(matrix, list):
        return [sum(map(operator.mul, row, direction)) for row in matrix]
    products: list[float] = (matrix @ numpy.asarray(direction, dtype=numpy.float32)).tolist()
    return products
