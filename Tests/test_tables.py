from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from Tests.tables import check_all, table


def even(number: int) -> None:
    assert number % 2 == 0, f"{number} is odd"


def test_a_table_without_a_mistake_passes() -> None:
    check_all([2, 4], even)


def test_all_rows_that_fail_are_reported() -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        check_all([1, 2, 3], even, lambda number: f"row {number}")
    message = str(failure.value)
    assert message.startswith("2 of 3 rows:\nrow 1: test_tables.py:") and "row 3: " in message
    assert "1 is odd" in message and "row 2" not in message


@pytest.mark.parametrize("raised", [KeyError("k"), pytest.fail.Exception("f"), pytest.skip.Exception("s")])
def test_any_error_counts_and_the_next_rows_are_checked(raised: BaseException) -> None:
    checked = []

    def check(number: int) -> None:
        checked.append(number)
        if number == 1:
            raise raised

    with pytest.raises(pytest.fail.Exception, match="1 of 3 rows"):
        check_all([1, 2, 3], check)
    assert checked == [1, 2, 3]


def test_an_empty_table_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        check_all([], even)


# -- as a decorator ----------------------------------------------------------------------------------------------------


def failure_of(test: Callable[..., None]) -> str:
    with pytest.raises(pytest.fail.Exception) as failure:
        test()
    return str(failure.value)


def test_the_rows_that_fail_are_named_as_parameters_are() -> None:
    @table(("left", "right"), [(1, 1), (1, 2), pytest.param(3, 4, id="by id")])
    def same(left: int, right: int) -> None:
        assert left == right

    @table("word", ["a", "b"], ids=str.upper)
    def is_a(word: str) -> None:
        assert word == "a"

    @table("word", ["a", "b"], ids=["first", "second"])
    def is_a_again(word: str) -> None:
        assert word == "a"

    assert "\nsecond: " in failure_of(is_a_again)
    assert failure_of(same).startswith("2 of 3 rows:\n1, 2: test_tables.py:")
    assert "\nby id: " in failure_of(same)
    assert "\nB: " in failure_of(is_a)


def test_two_tables_make_every_pair() -> None:
    seen = []

    @table("one", [1, 2])
    @table("two", "ab")
    def pairs(one: int, two: str) -> None:
        seen.append((one, two))

    pairs()
    assert seen == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_a_name_that_the_test_does_not_take_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="takes no"):
        table("other", [1])(even)


@pytest.mark.parametrize("fixture", ["parametrised"])
@table("number", [1, 2])
def test_what_a_row_leaves_behind_is_gone_in_the_next(
    number: int,
    fixture: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert fixture == "parametrised"
    assert "TABLE_ROW" not in os.environ and not caplog.records
    assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TABLE_ROW", str(number))
    logging.warning("row")
    print("row")
    (tmp_path / "row").touch()


class Lab:
    """Counts the rows that it is prepared for."""

    def __init__(self) -> None:
        self.rows = 0

    def next_row(self) -> None:
        self.rows += 1


@pytest.fixture
def lab() -> Lab:
    return Lab()


@table("number", [1, 2, 3])
def test_a_fixture_is_prepared_for_each_row(lab: Lab, number: int) -> None:
    assert lab.rows == number
