"""What a keyword search understands, finds and ranks, and how long it may take."""

from __future__ import annotations

import itertools
import logging
import math
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.vector_memory import VectorMemories, keyword_search
from Middleware.utilities.discussions.vector_memory.keyword_search import phrases_of, split_query, usable_weights
from Middleware.utilities.discussions.vector_memory.schema import recency_score
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Tests.properties import examples
from Tests.tables import check_all
from Tests.utilities.discussions.vector_memory.lab import CIPHER, item, metadata, opened, texts


@pytest.fixture(scope="module", params=[NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def memories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorMemories]:
    with opened(tmp_path_factory.mktemp("memories") / "vector_memory.db", request.param) as database:
        database.store_chunk(
            [
                item("Somebody was running", entities=['Ann "A" Lee']),
                item("Ann-Lee met a cat"),
                item("war and peace"),
                item("tea or coffee"),
                item("do not open"),
                item("near by"),
            ],
            None,
        )
        database.store_chunk([item("the lion", topics=["zoo"])], None, True)
        database.store_chunk([item("the tiger", topics=["zoo"])], None, False)
        yield database


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("run", ["Somebody was running"]),
        ("Ann A Lee", ["Somebody was running"]),
        ("ann-lee", ["Ann-Lee met a cat"]),
        ("Ann Lee", ["Ann-Lee met a cat"]),
        (";;", []),
        ("  ", []),
        ("", []),
        ("***", []),
        ('"', []),
        ('***;cat;"', ["Ann-Lee met a cat"]),
        ("AND", ["war and peace"]),
        ("OR", ["tea or coffee"]),
        ("NOT", ["do not open"]),
        ("NEAR", ["near by"]),
        ("war AND coffee", []),
        ("title:lion", []),
        ("summary : cat", []),
        ("li*", []),
        ("^war", ["war and peace"]),
        ("{title}: cat", []),
        ("zoo", ["the lion"]),
        ("zoo;cat;zoo", ["Ann-Lee met a cat", "the lion"]),
        ("- cats\n- lions", ["Ann-Lee met a cat", "the lion"]),
        ("1. cat\n2) tea\n\n(3) lion", ["Ann-Lee met a cat", "tea or coffee", "the lion"]),
        ("cat\0", ["Ann-Lee met a cat"]),
        ("\ud800;cat", ["Ann-Lee met a cat"]),
        ("ca\nt;lion", ["the lion"]),
    ],
)
def test_what_is_found(memories: VectorMemories, query: str, expected: list[str]) -> None:
    assert sorted(texts(memories.keyword_search(query))) == sorted(expected)


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (-1, 0), (1, 1), (5, 2)])
def test_limit(memories: VectorMemories, limit: int, count: int) -> None:
    assert len(memories.keyword_search("lion;tiger", limit)) == count


PIECES = [
    "cat",
    "lion",
    "war",
    "and peace",
    "AND",
    "OR",
    "NOT",
    "NEAR(",
    "*",
    '"',
    "^",
    "(",
    ")",
    "{title}",
    ":",
    "+",
    "-",
    " ",
    " ",
    ";",
    "\0",
    "title",
    ",",
]


def holds(text: str, query: str) -> bool:
    """Whether one of the terms, as nothing but words, is in the text."""
    terms = [re.findall("[a-z]+", term.lower()) for term in query.split(";")]
    words = f" {' '.join(re.findall('[a-z]+', text.lower()))} "
    return any(f" {' '.join(term)} " in words for term in terms if term)


@examples(200)
@given(query=st.lists(st.sampled_from(PIECES)).map("".join))
def test_nothing_in_a_query_acts_as_an_operator(memories: VectorMemories, query: str) -> None:
    expected = [row["memory_text"] for row in memories.all_memories() if holds(row["memory_text"], query)]
    assert sorted(texts(memories.keyword_search(query, 100))) == sorted(expected)


@examples(150)
@given(query=st.text(alphabet=st.characters(exclude_categories=())))
def test_no_query_fails(memories: VectorMemories, query: str) -> None:
    assert "Ann-Lee met a cat" in texts(memories.keyword_search(f"cat;{query}", 100))


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        ("a; b ;;c", ["a", "b", "c"]),
        ("a\nb", ["a", "b"]),
        ("* a\n• b\n10. c", ["a", "b", "c"]),
        ("- a", ["- a"]),
        ("1. a; 2. b", ["1. a", "2. b"]),
        ("- a\n", ["- a"]),
        ("2001 odyssey\n3.5 km", ["2001 odyssey", "3.5 km"]),
    ],
)
def test_terms(query: str, terms: list[str]) -> None:
    assert split_query(query) == terms


def test_at_most_sixty_terms(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert split_query(";".join(map(str, range(61)))) == [str(number) for number in range(60)]
    assert "61" in caplog.text
    caplog.clear()
    assert len(split_query(";".join(map(str, range(60))))) == 60 and not caplog.records


def test_phrases_are_quoted() -> None:
    assert phrases_of('a "b"; c-d; c d; -') == ['"a ""b"""', '"c d"']


@pytest.mark.parametrize(
    ("weights", "usable"),
    [
        (None, None),
        ([1, 2], None),
        ([1, 2, 3, 4, True], None),
        ([1, 2, 3, 4, "5"], None),
        ("12345", None),
        (7, None),
        ([1, 2, 3, 4, math.nan], None),
        ([1, 2, 3, 4, 10**400], None),
        ((1, 2.5, 0, -1, 3), [1, 2.5, 0, -1, 3]),
    ],
)
def test_weights(weights: Any, usable: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert usable_weights(weights) == usable
    assert bool(caplog.records) == (usable is None and weights is not None)


@pytest.mark.parametrize(("weights", "first"), [([9, 1, 1, 1, 1], "in title"), ([1, 1, 9, 1, 1], "in entities")])
def test_weights_decide(tmp_path: Path, weights: list[float], first: str) -> None:
    with opened(tmp_path / "m.db") as memories:
        memories.store_chunk(
            [
                ("in title", metadata("x", title="mill")),
                ("in entities", metadata("x", entities=["mill"])),
                item("other"),
            ],
            None,
        )
        assert memories.keyword_search("mill", 5, weights)[0]["memory_text"] == first


@pytest.mark.parametrize(("age", "score"), [(0, 2.5), (100, 1.5518), (-5, 2.5), (9700, 1.0)])
def test_recency(age: float, score: float) -> None:
    date = datetime.now(UTC) - timedelta(days=age)
    assert recency_score(date.isoformat()) == pytest.approx(score, abs=1e-4)
    assert recency_score(date.replace(tzinfo=None).isoformat()) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("bad", ["bad", "", None, 5, b"2025"])
def test_recency_of_no_date(bad: Any) -> None:
    assert recency_score(bad) == 1.0


ODD_DATES = [
    "",
    "never",
    "2025-01-01",
    "20250101T120000Z",
    "2025-W01-1",
    "9999-12-31T23:00:00+00:00",
    "0001-01-01T00:00:00+14:00",
    "2025-01-01T00:30:00-23:59",
]


RANKINGS = list(itertools.product([1, 7, 64, 500], [None, [1, 2, 3, 4, 5], [-1, -1, -1, -1, -1]]))
"""Limits and weights."""


@pytest.mark.slow
@pytest.mark.parametrize("cipher", [NO_CIPHER, CIPHER], ids=["clear", "encrypted"])
def test_recency_ranks_like_the_product_of_all(tmp_path: Path, cipher: Cipher) -> None:
    with opened(tmp_path / "m.db", cipher) as memories:
        memories.store_chunk(
            [item(f"{'mill ' * (1 + number * 7 % 11)}{'stone ' * (number * 5 % 13)}") for number in range(400)], None
        )
        memories.store_chunk([item("nothing")] * 500, None)
        memories._db.executemany(
            "UPDATE memories SET date_added = ? WHERE id = ?",
            (((datetime.now(UTC) - timedelta(days=number * 37 % 401)).isoformat(), number) for number in range(900)),
        )
        memories._db.executemany(
            "UPDATE memories SET date_added = ? WHERE id = ?", zip(ODD_DATES, range(40, 400, 40), strict=False)
        )
        found = {}
        for row, (limit, weights) in enumerate(RANKINGS):
            found[row] = [hit["id"] for hit in memories.keyword_search("mill;stone", limit, weights, True)]
            assert len(memories.keyword_search("mill;stone", 1000, weights)) == 400
        memories.change_cipher(NO_CIPHER)
        exact = [_exact_ranking(memories, limit, weights) for limit, weights in RANKINGS]
    check_all(list(found), lambda row: _same(found[row], exact[row]), lambda row: str(RANKINGS[row]))


def _exact_ranking(memories: VectorMemories, limit: int, weights: list[int] | None) -> list[int]:
    arguments = "".join(f", {weight}" for weight in weights or ())
    return [
        row[0]
        for row in memories._db.execute(
            f"SELECT f.rowid FROM memories_fts f JOIN memories m ON m.id = f.rowid WHERE memories_fts MATCH ? "
            f"ORDER BY bm25(memories_fts{arguments}) * recency_score(m.date_added) LIMIT ?",
            ('"mill" OR "stone"', limit),
        )
    ]


def _same(found: list[int], exact: list[int]) -> None:
    assert found == exact


@pytest.mark.parametrize(
    "age",
    [lambda number: number, lambda number: 300 - number, lambda number: number * 37 % 301],
    ids=["newest first", "oldest first", "mixed"],
)
def test_recency_looks_at_all_rows_of_like_rank(tmp_path: Path, age: Any) -> None:
    with opened(tmp_path / "m.db") as memories:
        memories.store_chunk([item("mill")] * 300, None)
        memories._db.executemany(
            "UPDATE memories SET date_added = ? WHERE id = ?",
            (((datetime.now(UTC) - timedelta(days=age(number))).isoformat(), number) for number in range(1, 301)),
        )
        found = [row["id"] for row in memories.keyword_search("mill", 7, None, True)]
    assert found == sorted(range(1, 301), key=age)[:7]


# -- common phrases -----------------------------------------------------------------------------------------------


@pytest.fixture
def common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VectorMemories]:
    monkeypatch.setattr(keyword_search, "CPU_SECONDS", 0.0)  # any search is too long
    monkeypatch.setattr(keyword_search, "_STEPS", 100)
    monkeypatch.setattr(keyword_search, "NEWEST", 50)
    monkeypatch.setattr(keyword_search, "RARE_MATCHES", 100)
    with opened(tmp_path / "m.db") as memories:
        words = ["the mill rare" if number in (3, 4) else "the mill" for number in range(1, 2001)]
        memories.store_chunk([item(text) for text in words], None)
        yield memories


def test_rare_phrases_are_found_beside_common_ones(common: VectorMemories) -> None:
    found = [row["id"] for row in common.keyword_search("the;mill;rare", 5)]
    assert sorted(found[:2]) == [3, 4] and len(found) == 5 and min(found[2:]) > 1950


def test_phrases_that_nothing_holds_do_not_crowd_out_common_ones(common: VectorMemories) -> None:
    absent = ";".join(f"absent{number}" for number in range(58))
    assert len(common.keyword_search(f"{absent};the;mill", 5)) == 5


@pytest.mark.parametrize("recency", [False, True])
def test_only_common_phrases_find_the_newest(common: VectorMemories, recency: bool) -> None:
    found = [row["id"] for row in common.keyword_search("the;mill", 100, None, recency)]
    assert sorted(found) == list(range(1951, 2001))


@pytest.mark.parametrize("recency", [False, True])
def test_too_many_matches_are_not_all_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recency: bool) -> None:
    """What ``bm25`` has to count, in steps that nothing can interrupt, stays within the budget."""
    monkeypatch.setattr(keyword_search, "MOST_MATCHES", 2000)
    monkeypatch.setattr(keyword_search, "NEWEST", 20)
    with opened(tmp_path / "m.db") as memories:
        memories.store_chunk(
            [
                item(" ".join(f"w{number}" for number in range(60)) + (" rare" if row == 3 else ""))
                for row in range(500)
            ],
            None,
        )
        statements: list[str] = []
        memories._db.set_trace_callback(statements.append)
        found = [
            row["id"]
            for row in memories.keyword_search(
                ";".join(["rare", *(f"w{number}" for number in range(59))]), 10, None, recency
            )
        ]
    ranked = [statement.count('"w') * 500 for statement in statements if "bm25" in statement]
    assert found[0] == 4 and len(found) == 10 and min(found[1:]) > 480
    assert 1 <= len(ranked) <= 3 and sum(ranked) <= 2 * 2000


@pytest.mark.parametrize("recency", [False, True])
def test_a_budget_that_suffices_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recency: bool) -> None:
    query = ";".join(f"w{number}" for number in range(30))
    with opened(tmp_path / "m.db") as memories:
        memories.store_chunk(
            [item(" ".join(f"w{row * factor % 97}" for factor in range(1, 9))) for row in range(900)], None
        )
        exact = [row["id"] for row in memories.keyword_search(query, 50, None, recency)]
        monkeypatch.setattr(keyword_search, "MOST_MATCHES", 5000)  # all rows for all phrases would be 27,000
        assert [row["id"] for row in memories.keyword_search(query, 50, None, recency)] == exact and len(exact) == 50


def test_a_search_ends_with_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyword_search, "CPU_SECONDS", 60.0)
    monkeypatch.setattr(keyword_search, "WALL_SECONDS", 60.0)
    scope = CancelScope()
    words = [f"w{number}" for number in range(60)]
    with opened(tmp_path / "m.db", scope=scope) as memories:
        memories.store_chunk([item(" ".join(words))] * 4000, None)
        threading.Timer(0.02, scope.cancel).start()
        with pytest.raises(EarlyTerminationException):
            for _ in range(100):
                memories.keyword_search(";".join(words))
