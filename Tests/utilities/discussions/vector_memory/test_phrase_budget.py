"""How a budget of matches is shared out among the phrases of a search, and that counting them stays within it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.discussions.vector_memory import schema
from Middleware.utilities.discussions.vector_memory.keyword_search import share_out
from Tests.properties import examples

ROWS = 600
LEVELS = [0, 1, 2, 5, 20, 60, 200, 599, 600]  # matches of the words w0, w1, ...


class Counting:
    """A database that adds up the matches that were read to count them."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.read = self.counts = 0

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        rows = self._database.execute(statement, values).fetchall()
        if "MATCH" in statement:
            self.read += rows[0][0]
            self.counts += 1
            assert rows[0][0] <= values[-1]
        return _Result(rows)


class _Result:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchone(self) -> Any:
        return self._rows[0]


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:", isolation_level=None)
    schema.prepare(database)
    schema.create_tables(database)
    for row in range(1, ROWS + 1):
        words = " ".join(f"w{level}x{copy}" for level, most in enumerate(LEVELS) if row <= most for copy in range(8))
        database.execute("INSERT INTO memories VALUES (?, 'chat', '', '', '{}')", (row,))
        database.execute(schema.INSERT_INDEX, (row, "", "", "", "", words))
    yield database
    database.close()


def words(counts: Sequence[int]) -> list[str]:
    """A phrase of its own for each, with that many matches."""
    copies: dict[int, itertools.count[int]] = {}
    return [f'"w{LEVELS.index(count)}x{next(copies.setdefault(count, itertools.count()))}"' for count in counts]


def shared(database: Any, counts: Sequence[int], budget: int) -> tuple[list[int], list[int]]:
    """The matches of the rare and of the common phrases."""
    phrases = words(counts)
    known = dict(zip(phrases, counts, strict=True))
    rare, common = share_out(database, phrases, budget)
    return sorted(known[text] for text in rare), sorted(known[text] for text in common)


@pytest.mark.parametrize(
    ("counts", "budget", "rare", "common"),
    [
        ([600, 600], 1200, [600, 600], []),
        ([600, 600], 1199, [], [600, 600]),
        ([600, 5, 0], 650, [5], [600]),
        ([200, 60, 5, 0], 800, [5, 60, 200], []),
        ([200, 60, 5, 0], 799, [5, 60], [200]),
        ([600, 600, 5], 650, [5], [600, 600]),
        ([600, 599, 60, 20, 5, 0, 0], 300, [5, 20], [60, 599, 600]),
        ([600, 599, 60, 20, 5, 0, 0], 420, [5, 20, 60], [599, 600]),
        ([1] * 8, 8, [1] * 8, []),
        ([2] * 8, 8, [], [2] * 8),
        ([600] * 8, 0, [], [600] * 8),
        ([0, 0], 5, [], []),
        ([], 5, [], []),
    ],
)
def test_shares(
    database: sqlite3.Connection, counts: list[int], budget: int, rare: list[int], common: list[int]
) -> None:
    assert shared(database, counts, budget) == (rare, common)


@examples(150)
@given(
    levels=st.lists(st.sampled_from(LEVELS), max_size=60).filter(
        lambda levels: all(levels.count(level) <= 8 for level in LEVELS)
    ),
    budget=st.integers(0, 6000),
)
def test_no_more_than_the_budget_is_read_or_ranked(
    database: sqlite3.Connection, levels: list[int], budget: int
) -> None:
    counting = Counting(database)
    rare, common = shared(counting, levels, budget)
    assert counting.read <= budget + len(levels)
    assert sum(rare) <= budget
    assert [count for count in sorted(rare + common) if count] == sorted(count for count in levels if count)
    assert not rare or not common or max(rare) <= min(common)


def test_a_small_memory_is_not_counted(database: sqlite3.Connection) -> None:
    counting = Counting(database)
    phrases = words([600, 5, 20])
    assert sorted(share_out(counting, phrases, 1800)[0]) == sorted(phrases)  # type: ignore[arg-type]
    assert counting.read == 0


def test_nothing_is_counted_twice(database: sqlite3.Connection) -> None:
    counting = Counting(database)
    assert shared(counting, [600, 600, 200, 1], 1300) == ([1, 200], [600, 600])
    assert counting.counts == 4 and counting.read == 1 + 200 + 2 * 326


def test_the_longest_common_phrases_come_first(database: sqlite3.Connection) -> None:
    phrases = ['"w8x1"', '"w8x1 w8x2"', '"w8x1 w8x2 w8x3"', '"w1x0"']
    rare, common = share_out(database, phrases, 100)
    assert rare == ['"w1x0"'] and common == phrases[2::-1]


def test_no_memories() -> None:
    with sqlite3.connect(":memory:") as empty:
        schema.create_tables(empty)
        assert share_out(empty, ['"a"'], 10) == (['"a"'], [])
    empty.close()
