"""The commands of the pages: of a person, an engine, an init system, another WSGI server."""

from __future__ import annotations

from Tests.doors.rows import PAGES, WAITRESS, Row
from Tests.doors.trying import Lab, check, every_row_in


@every_row_in(PAGES, by={WAITRESS, *(row.by for row in PAGES)})
def test_every_call_is_answered_as_the_row_says(row: Row, by: str, shared_lab: Lab) -> None:
    check(row, by, shared_lab)
