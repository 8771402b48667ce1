"""Dates as text. Day and month names are English whatever the locale of the machine."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_TIMESTAMP = re.compile(r"([A-Za-z]+), (\d{4})-(\d{1,2})-(\d{1,2}) (\d{1,2}):(\d{1,2}):(\d{1,2})", re.ASCII)
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


def month_name(moment: datetime) -> str:
    return MONTHS[moment.month - 1]


def weekday_name(moment: datetime) -> str:
    return WEEKDAYS[moment.weekday()]


def pretty_date(moment: datetime) -> str:
    """Return, for example, ``November 03, 2026``."""
    return f"{month_name(moment)} {moment.day:02d}, {moment.year}"


def time_12h(moment: datetime) -> str:
    """Return, for example, ``5:06 AM``."""
    return f"{moment.hour % 12 or 12}:{moment.minute:02d} {'AM' if moment.hour < 12 else 'PM'}"


def format_datetime_to_ts(moment: datetime) -> str:
    """Return a time in the form of stored message times: ``(Tuesday, 2026-11-03 17:06:09)``, local time."""
    return (
        f"({weekday_name(moment)}, {moment.year:04d}-{moment.month:02d}-{moment.day:02d} "
        f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d})"
    )


def current_timestamp() -> str:
    """Return the present time in stored form."""
    return format_datetime_to_ts(datetime.now())


def parse_timestamp_string(text: object) -> datetime | None:
    """Read a stored message time; None if it is not one. The weekday need not match the date."""
    match = _TIMESTAMP.fullmatch(text.strip("() ")) if isinstance(text, str) else None
    if match is None or match.group(1).capitalize() not in WEEKDAYS:
        return None
    try:
        return datetime(*map(int, match.groups()[1:]))  # type: ignore[arg-type]  # six numbers
    # A day that the month does not have, for example.
    except ValueError:
        return None


def add_seconds_to_timestamp(text: str, seconds: float) -> str:
    """Return a stored message time moved by ``seconds``; any other text is returned unchanged."""
    moment = parse_timestamp_string(text)
    try:
        return text if moment is None else format_datetime_to_ts(moment + timedelta(seconds=seconds))
    # ``datetime`` ends with the year 9999.
    except OverflowError:
        return text


def subtract_minutes_from_timestamp(text: str, minutes: float) -> str:
    """Return a stored message time moved back; any other text is returned unchanged."""
    return add_seconds_to_timestamp(text, -60 * minutes)


def format_relative_time_string(since: datetime | str, now: datetime | None = None) -> str:
    """Return the time since a moment in words: ``2 days, 1 hour``, or ``less than a minute`` (also for the future).

    ``since`` may be a stored message time; the result is empty for any other text. ``now`` is by default the present.
    """
    moment = parse_timestamp_string(since) if isinstance(since, str) else since
    if moment is None:
        return ""
    rest = int(((now or datetime.now()) - moment).total_seconds())
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size) if rest > 0 else (0, 0)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return ", ".join(parts) or "less than a minute"


def format_relative_time_ago(text: str, now: datetime | None = None) -> str:
    """Return ``[Sent 5 minutes ago]`` for a stored message time; empty for any other text."""
    elapsed = format_relative_time_string(text, now)
    return f"[Sent {elapsed} ago]" if elapsed else ""
