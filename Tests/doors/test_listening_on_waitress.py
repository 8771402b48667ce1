"""Who gets in where, on ``run_waitress.py``."""

from __future__ import annotations

from Tests.doors.rows import LISTENING, WAITRESS, Row
from Tests.doors.trying import Lab, check, every_row_in


@every_row_in(LISTENING, by=[WAITRESS])
def test_every_call_is_answered_as_the_row_says(row: Row, by: str, shared_lab: Lab) -> None:
    check(row, by, shared_lab)
