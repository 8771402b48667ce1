"""Dates as text, in English and in local time."""
from datetime import datetime, timedelta

import pytest

from Middleware.utilities import datetime_utils as d

MOMENT = datetime(2025, 8, 4, 18, 30, 0)


def test_timestamp_round_trip():
    assert d.format_timestamp(MOMENT) == "(Monday, 2025-08-04 18:30:00)"
    assert d.parse_timestamp("(Monday, 2025-08-04 18:30:00)") == MOMENT
    assert d.parse_timestamp(" Friday, 2025-08-04 18:30:00) ") == MOMENT


@pytest.mark.parametrize("text", ["", "(Someday, 2025-08-04 18:30:00)", "(Monday, 2025-13-04 18:30:00)", "Monday",
                                  None])
def test_no_timestamp(text):
    assert d.parse_timestamp(text) is None
    assert d.add_seconds_to_timestamp(text, 5) == text


def test_moving_a_timestamp():
    assert d.add_seconds_to_timestamp("(Monday, 2025-08-04 00:00:00)", -1) == "(Sunday, 2025-08-03 23:59:59)"


@pytest.mark.parametrize("elapsed, text", [
    (timedelta(seconds=59), "less than a minute"), (timedelta(seconds=-90), "less than a minute"),
    (timedelta(minutes=1), "1 minute"), (timedelta(days=2, hours=1, minutes=3), "2 days, 1 hour, 3 minutes"),
    (timedelta(days=1, minutes=5), "1 day, 5 minutes"), (timedelta(hours=2), "2 hours")])
def test_elapsed(elapsed, text):
    assert d.elapsed_text(MOMENT, MOMENT + elapsed) == text


@pytest.mark.parametrize("hour, text", [(0, "12:30 AM"), (5, "5:30 AM"), (12, "12:30 PM"), (18, "6:30 PM")])
def test_twelve_hours(hour, text):
    assert d.time_12h(MOMENT.replace(hour=hour)) == text


def test_names_cover_the_year():
    assert [d.month_name(datetime(2026, month, 1))[:3] for month in range(1, 13)] == [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    assert d.weekday_name(datetime(2026, 11, 3)) == "Tuesday"
