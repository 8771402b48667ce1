"""Who gets in where, on ``server.py``, the same server as ``run_waitress.py``: ``--deep`` tries all other rows."""

from __future__ import annotations

from Tests.doors.rows import FRESH, SERVER, TOGETHER, Row
from Tests.doors.trying import Lab, check, every_row_in


@every_row_in((FRESH,), TOGETHER, by=[SERVER])
def test_every_call_is_answered_as_the_row_says(row: Row, by: str, shared_lab: Lab) -> None:
    check(row, by, shared_lab)
