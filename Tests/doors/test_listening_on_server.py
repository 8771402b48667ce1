"""Who gets in where, on ``server.py``."""
from __future__ import annotations

from Tests.doors.rows import LISTENING, PAGES, SERVER, TOGETHER, Row
from Tests.doors.trying import Lab, check, every_row_in


@every_row_in(LISTENING, TOGETHER, PAGES, by=[SERVER])
def test_every_call_is_answered_as_the_row_says(row: Row, by: str, shared_lab: Lab) -> None:
    check(row, by, shared_lab)
