"""All flags that go together, on ``run_waitress.py``: ``--deep`` tries each of them alone, too."""

from __future__ import annotations

from Tests.doors.rows import TOGETHER, WAITRESS, Row
from Tests.doors.trying import Lab, check, every_row_in


@every_row_in(TOGETHER, by=[WAITRESS])
def test_every_call_is_answered_as_the_row_says(row: Row, by: str, shared_lab: Lab) -> None:
    check(row, by, shared_lab)
