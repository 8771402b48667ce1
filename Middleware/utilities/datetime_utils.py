"""Dates as text. Day and month names are English whatever the locale of the machine."""
from __future__ import annotations

import re
from datetime import datetime, timedelta

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_TIMESTAMP = re.compile(r"([A-Za-z]+), (\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}:\d{1,2})")
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


def month_name(moment: datetime) -> str:
    return MONTHS[moment.month - 1]


def weekday_name(moment: datetime) -> str:
    return WEEKDAYS[moment.weekday()]


def pretty_date(moment: datetime) -> str:
    """For example ``November 03, 2026``."""
    return f"{month_name(moment)} {moment.day:02d}, {moment.year}"


def time_12h(moment: datetime) -> str:
    """For example ``5:06 AM``."""
    return f"{moment.hour % 12 or 12}:{moment.minute:02d} {'AM' if moment.hour < 12 else 'PM'}"


def format_timestamp(moment: datetime) -> str:
    """The form in which message times are stored: ``(Tuesday, 2026-11-03 17:06:09)``, local time."""
    return (f"({weekday_name(moment)}, {moment.year:04d}-{moment.month:02d}-{moment.day:02d} "
            f"{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d})")


def parse_timestamp(text: str) -> datetime | None:
    """Read a stored message time; None if it is not one. The weekday need not match the date."""
    match = _TIMESTAMP.fullmatch(text.strip("() ")) if isinstance(text, str) else None
    if match is None or match.group(1).capitalize() not in WEEKDAYS:
        return None
    try:
        return datetime.strptime(match.group(2), "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def add_seconds_to_timestamp(text: str, seconds: float) -> str:
    """A stored message time moved by ``seconds``; text that is none is returned as it is."""
    moment = parse_timestamp(text)
    return text if moment is None else format_timestamp(moment + timedelta(seconds=seconds))


def elapsed_text(since: datetime, now: datetime) -> str:
    """The time between two moments in words: ``2 days, 1 hour`` or ``less than a minute`` (also for the future)."""
    rest = int((now - since).total_seconds())
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size) if rest > 0 else (0, 0)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return ", ".join(parts) or "less than a minute"
