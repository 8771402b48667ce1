"""The index of words in memory over rows of any origin: which rows it reads, and when it is made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.vector_memory import encrypted_index
from Middleware.utilities.discussions.vector_memory.cache import RowsState
from Middleware.utilities.discussions.vector_memory.encrypted_index import EncryptedIndex, StoredRow
from Middleware.utilities.discussions.vector_memory.keyword_search import KeywordSearch
from Middleware.utilities.discussions.vector_memory.schema import Codec
from Tests.utilities.discussions.vector_memory.lab import metadata


def row(number: int, text: str = "mill") -> StoredRow:
    return StoredRow(number, text, metadata(text), "2025-01-01T00:00:00+00:00", False)


class Rows:
    """Rows with the queries that an index asks of them; ``generation``: None for rows that anybody may change."""

    def __init__(self, generation: int | None, *rows: StoredRow) -> None:
        self.rows, self.generation, self.asked = list(rows), generation, list[int]()
        self.index = EncryptedIndex()

    def state(self) -> RowsState:
        return RowsState(tuple(self.rows), self.generation)

    def read(self, after: int, limit: int) -> list[StoredRow]:
        self.asked.append(after)
        return [row for row in self.rows if row.id > after][:limit]

    def found(self, word: str = "mill", scope: CancelScope | None = None) -> list[int]:
        self.asked.clear()
        numbers = self.index.search(KeywordSearch([f'"{word}"'], 100), self.state, self.read, Codec(), scope)
        return sorted(numbers)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_index, "BATCH", 3)


@pytest.mark.parametrize("generation", [None, 0])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7])
def test_rows_are_read_in_batches(generation: int | None, count: int) -> None:
    rows = Rows(generation, *map(row, range(10, 10 + count)))
    assert rows.found() == list(range(10, 10 + count))
    assert rows.asked[1:] == list(range(12, 10 + count, 3))
    assert rows.found() == list(range(10, 10 + count)) and rows.asked == []


def test_only_newer_rows_are_read_as_long_as_the_generation_stays() -> None:
    rows = Rows(4, *map(row, range(1, 8)))
    rows.found()
    rows.rows += [row(8), row(9)]
    assert rows.found() == list(range(1, 10)) and rows.asked == [7]


def test_another_generation_makes_the_index_anew() -> None:
    rows = Rows(4, *map(row, range(1, 8)))
    rows.found()
    rows.rows, rows.generation = [row(2, "bridge"), row(7)], 5
    assert rows.found() == [7] and rows.found("bridge") == [2]


@pytest.mark.parametrize("changed", [0, 4, 6])
def test_rows_that_anybody_may_change_are_compared(changed: int) -> None:
    rows = Rows(None, *map(row, range(7)))
    rows.found()
    rows.rows[changed] = row(changed, "bridge")
    assert rows.found("bridge") == [changed] and len(rows.found()) == 6
    rows.rows[changed] = replace(rows.rows[changed], with_topics=True)
    assert len(rows.found()) == 6
    del rows.rows[changed]
    assert rows.found("bridge") == [] and len(rows.found()) == 6
    rows.rows.insert(changed, row(changed))
    assert len(rows.found()) == 7


@pytest.mark.parametrize("generation", [None, 0])
def test_what_a_cancelled_search_has_indexed_stays(generation: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, added = CancelScope(), []
    add = EncryptedIndex._add

    def counted(self: EncryptedIndex, new: StoredRow, codec: Codec) -> None:
        add(self, new, codec)
        added.append(new.id)
        if new.id == 4:
            scope.cancel()

    monkeypatch.setattr(EncryptedIndex, "_add", counted)
    rows = Rows(generation, *map(row, range(1, 8)))
    with pytest.raises(EarlyTerminationException):
        rows.found(scope=scope)
    assert added == [1, 2, 3, 4]
    assert rows.found() == list(range(1, 8)) and added == list(range(1, 8))
