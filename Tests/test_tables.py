from __future__ import annotations

import pytest

from Tests.tables import check_all


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


def test_any_error_counts_and_the_next_rows_are_checked() -> None:
    checked = []

    def check(number: int) -> None:
        checked.append(number)
        if number == 1:
            raise KeyError("missing")
        if number == 2:
            with pytest.raises(ValueError):
                pass

    with pytest.raises(pytest.fail.Exception, match="2 of 3 rows"):
        check_all([1, 2, 3], check)
    assert checked == [1, 2, 3]


def test_an_empty_table_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        check_all([], even)
