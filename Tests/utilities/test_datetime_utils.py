"""Dates as text, in English and in local time."""

from datetime import datetime, timedelta

import pytest

from Middleware.utilities import datetime_utils as d

MOMENT = datetime(2025, 8, 4, 18, 30, 0)


def test_timestamp_round_trip():
    assert d.format_datetime_to_ts(MOMENT) == "(Monday, 2025-08-04 18:30:00)"
    assert d.parse_timestamp_string("(Monday, 2025-08-04 18:30:00)") == MOMENT
    assert d.parse_timestamp_string(" Friday, 2025-08-04 18:30:00) ") == MOMENT


def test_a_wrong_weekday_does_not_matter():
    assert d.parse_timestamp_string("(Monday, 2025-08-05 18:30:00)") == datetime(2025, 8, 5, 18, 30, 0)  # a Tuesday


def test_junk_is_not_moved():
    assert d.add_seconds_to_timestamp("junk", -1) == "junk"


@pytest.mark.parametrize(
    "text", ["", "(Someday, 2025-08-04 18:30:00)", "(Monday, 2025-13-04 18:30:00)", "Monday", None]
)
def test_no_timestamp(text):
    assert d.parse_timestamp_string(text) is None
    assert d.add_seconds_to_timestamp(text, 5) == text


def test_moving_a_timestamp():
    assert d.add_seconds_to_timestamp("(Monday, 2025-08-04 00:00:00)", -1) == "(Sunday, 2025-08-03 23:59:59)"


@pytest.mark.parametrize(
    "elapsed, text",
    [
        (timedelta(seconds=59), "less than a minute"),
        (timedelta(seconds=-90), "less than a minute"),
        (timedelta(seconds=5), "less than a minute"),
        (timedelta(seconds=61), "1 minute"),
        (timedelta(hours=2, minutes=15), "2 hours, 15 minutes"),
        (timedelta(days=1, minutes=3), "1 day, 3 minutes"),
        (timedelta(days=-3), "less than a minute"),
        (timedelta(minutes=1), "1 minute"),
        (timedelta(days=2, hours=1, minutes=3), "2 days, 1 hour, 3 minutes"),
        (timedelta(days=1, minutes=5), "1 day, 5 minutes"),
        (timedelta(hours=2), "2 hours"),
    ],
)
def test_elapsed(elapsed, text):
    assert d.format_relative_time_string(MOMENT, MOMENT + elapsed) == text


@pytest.mark.parametrize("hour, text", [(0, "12:30 AM"), (5, "5:30 AM"), (12, "12:30 PM"), (18, "6:30 PM")])
def test_twelve_hours(hour, text):
    assert d.time_12h(MOMENT.replace(hour=hour)) == text


def test_names_cover_the_year():
    assert [d.month_name(datetime(2026, month, 1))[:3] for month in range(1, 13)] == [
        "Jan",
        "Feb",
        "Mar",
        "Apr",
        "May",
        "Jun",
        "Jul",
        "Aug",
        "Sep",
        "Oct",
        "Nov",
        "Dec",
    ]
    assert d.weekday_name(datetime(2026, 11, 3)) == "Tuesday"


def test_relative_time_of_a_stored_one():
    assert d.format_relative_time_ago("(Monday, 2025-08-04 18:28:59)", MOMENT) == "[Sent 1 minute ago]"
    assert d.format_relative_time_ago("(Monday, 2025-08-04 18:29:55)", MOMENT) == "[Sent less than a minute ago]"
    assert d.format_relative_time_ago("junk", MOMENT) == ""


def test_present_and_past_in_stored_form():
    assert abs((d.parse_timestamp_string(d.current_timestamp()) - datetime.now()).total_seconds()) < 5
    assert d.subtract_minutes_from_timestamp("(Monday, 2025-08-04 18:30:00)", 31) == "(Monday, 2025-08-04 17:59:00)"
    assert d.subtract_minutes_from_timestamp("junk", 1) == "junk"
    assert d.add_seconds_to_timestamp("(Monday, 0001-01-01 00:00:00)", -1) == "(Monday, 0001-01-01 00:00:00)"
