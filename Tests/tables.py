"""One test for a whole table: every row is checked, and all rows that fail are reported together."""
from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

import pytest

Row = TypeVar("Row")

# What a failing row says is cut here, so that a table that fails as a whole stays readable.
LONGEST = 2000


def check_all(rows: Collection[Row], check: Callable[[Row], object],
              name: Callable[[Row], object] = repr) -> None:
    """Call ``check`` with each row, and fail with the names and errors of all rows for which it raises.

    For rows that leave nothing behind. Rows that need fresh fixtures are parameters of the test instead.
    """
    assert rows, "a table without rows checks nothing"
    failures = []
    for row in rows:
        try:
            check(row)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(f"{name(row)}: {_place(error)}: {str(error)[:LONGEST] or type(error).__name__}")
    if failures:
        pytest.fail(f"{len(failures)} of {len(rows)} rows:\n" + "\n".join(failures), pytrace=False)


def _place(error: BaseException) -> str:
    """Return the innermost line of a test at which the check failed."""
    tests = Path(__file__).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if tests in Path(frame.filename).parents]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
