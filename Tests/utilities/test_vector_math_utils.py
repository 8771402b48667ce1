"""Vectors as bytes, cosine and rank fusion, with numpy where it is installed and without it."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities import vector_math_utils as vectors

HAVE_NUMPY = vectors.numpy_or_none() is not None
ENGINES = ["python", "numpy"] if HAVE_NUMPY else ["python"]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "python":
        monkeypatch.setattr(vectors, "numpy_or_none", lambda: None)
    yield request.param


def test_blob_of_two_numbers() -> None:
    assert vectors.vector_to_blob([1.0, -2.0]).hex() == "0000803f000000c0"
    assert vectors.blob_to_vector(bytes.fromhex("0000803f000000c0")) == [1.0, -2.0]


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_blob_round_trip(numbers: list[float]) -> None:
    assert vectors.blob_to_vector(vectors.vector_to_blob(numbers)) == numbers


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 0], [1, 0], 1.0),
        ([1, 0], [-2, 0], -1.0),
        ([1, 0], [0, 3], 0.0),
        ([1, 0], [0, 0], 0.0),
        ([], [], 0.0),
        ([3, 4], [4, 3], 0.96),
        ([1e300, 1e300], [1e-300, 1e-300], 1.0),
        ([float("inf"), 1], [1, 1], 0.0),
    ],
)
def test_cosine(first: list[float], second: list[float], expected: float) -> None:
    assert vectors.cosine_similarity(first, second) == pytest.approx(expected)


def test_cosine_of_different_lengths_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert vectors.cosine_similarity([1, 2], [1]) == 0.0
    assert "2 and 1" in caplog.text


@given(
    st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), max_size=12),
    st.lists(st.floats(-10, 10), min_size=3, max_size=3),
)
def test_ranking_is_that_of_the_cosine(rows: list[list[float]], query: list[float]) -> None:
    candidates = [(number, vectors.vector_to_blob(row)) for number, row in enumerate(rows)]
    ranked = vectors.rank_by_cosine(query, candidates, 20)
    scores = [vectors.cosine_similarity(query, vectors.blob_to_vector(candidates[number][1])) for number in ranked]
    assert sorted(ranked) == list(range(len(rows)))
    assert all(first >= second - 1e-5 for first, second in itertools.pairwise(scores))


def test_ranking(engine: str) -> None:
    rows = {7: [0, 1], 8: [5, 0.1], 9: [-1, 0], 10: [0, 0], 11: [1, 2, 3], 12: [math.nan, 1]}
    candidates = [(number, vectors.vector_to_blob(row)) for number, row in rows.items()]
    assert vectors.rank_by_cosine([1, 0], candidates, 2) == [8, 7]
    assert vectors.rank_by_cosine([1, 0], candidates, 9) == [8, 7, 10, 12, 9]
    assert vectors.rank_by_cosine([1, 0], candidates, 0) == [] == vectors.rank_by_cosine([1, 0], [], 5)
    assert vectors.rank_by_cosine([0, 0], candidates, 2) == [7, 8]


@pytest.mark.parametrize("cut", range(7))
def test_vectors_that_come_later_rank_as_if_all_had_come_at_once(engine: str, cut: int) -> None:
    rows = {7: [0, 1], 8: [5, 0.1], 9: [-1, 0], 10: [5, 0.1], 11: [1, 2, 3], 12: [5, 0.1], 13: [3, 2, 1]}
    candidates = [(number, vectors.vector_to_blob(row)) for number, row in rows.items()]
    # Every third first, so that neither part has all of the lower numbers.
    mixed = candidates[::3] + candidates[1::3] + candidates[2::3]
    together = vectors.NormalisedVectors(candidates)
    parts = vectors.NormalisedVectors(mixed[:cut]).extended(mixed[cut : cut + 2]).extended(mixed[cut + 2 :])
    assert parts.ids == set(rows) and len(parts) == 7
    for query in ([1, 0], [0, 1], [1, 1, 1]):
        assert [parts.nearest(query, limit) for limit in (1, 9)] == [together.nearest(query, limit) for limit in (1, 9)]


def test_ranking_says_what_cannot_be_compared(caplog: pytest.LogCaptureFixture, engine: str) -> None:
    with caplog.at_level(logging.WARNING):
        assert vectors.rank_by_cosine([1, 0], [(1, vectors.vector_to_blob([1, 2, 3])), (2, b"abc")], 1) == []
    assert "2 of 2" in caplog.text


@pytest.mark.parametrize(
    ("lists", "expected"),
    [([[1, 2, 3], [3, 4]], [3, 1, 2, 4]), ([[1], [2]], [1, 2]), ([], []), ([[], [5]], [5]), ([[2, 1], [1, 2]], [2, 1])],
)
def test_fusion(lists: list[list[int]], expected: list[int]) -> None:
    assert vectors.reciprocal_rank_fusion(lists) == expected


@given(st.lists(st.lists(st.integers(0, 9), unique=True)), st.integers(1, 100))
def test_fusion_orders_all_items_by_their_sum(lists: list[list[int]], k: int) -> None:
    fused = vectors.reciprocal_rank_fusion(lists, k)
    sums = [sum(1 / (k + ranked.index(item) + 1) for ranked in lists if item in ranked) for item in fused]
    assert sorted(fused) == sorted({item for ranked in lists for item in ranked})
    assert all(first >= second - 1e-12 for first, second in itertools.pairwise(sums))
