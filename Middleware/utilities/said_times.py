"""When messages were sent: what their fields, the stamps in their texts and stored times say, and which of it counts.

Sources of the forms: Open WebUI's ``timestamp`` is Unix seconds, those of other front-ends milliseconds; Ollama's
``created_at`` is ISO-8601; SillyTavern's ``send_date`` was ``2026-06-19 @14h 20m 00s 000ms``, then
``June 19, 2026 2:20pm``, and is ISO-8601 in newer versions.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from Middleware.utilities.datetime_utils import MONTHS
from Middleware.utilities.stop_words import folded

logger = logging.getLogger(__name__)

NO_DATES = "none"
DAY_SECONDS = 86_400
# Before this, no message was sent to a language model: such a time is a clock that was never set, or a year of a story.
EARLIEST = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp())
# Seconds of the year 5138; a higher number counts milliseconds, microseconds or nanoseconds.
_MOST_SECONDS, _MOST = 1e11, 1e30
# In characters: a longer value is not a time.
_LONGEST = 80
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# Of a front-end's history, so that each request reads only the new ones.
_KEPT = 20_000

_MONTHS = {folded(name)[:3]: number for number, name in enumerate(MONTHS, 1)} | {"mai": 5, "okt": 10, "dez": 12}
_CLOCK = (
    r"(?:(?:[T ,@]{1,4}|,? (?:at|um) )(?P<hour>\d{1,2}) ?[:h] ?"
    r"(?P<minute>\d{1,2})(?: ?[:m] ?(?P<second>\d{1,2})s?)?(?:[., ]?\d+(?:ms)?)?"
    r" ?(?:(?P<half>[ap])\.?m\b)?(?: ?(?:(?P<utc>GMT|UTC|Z)\b)?(?P<offset>[+-]\d{2}:?\d{2})?(?!\d))?)?"
)
_DAYS = tuple(
    re.compile(rf"(?<!\d){day}(?!\d){_CLOCK}", re.IGNORECASE)
    for day in (
        r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
        r"(?P<day>\d{1,2})(?:\.|st|nd|rd|th)? (?:of )?(?P<name>[^\W\d_]{3,9})\.?,? (?P<year>\d{4})",
        r"(?P<name>[^\W\d_]{3,9})\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,? (?P<year>\d{4})",
        r"(?P<day>\d{1,2})(?P<mark>[./-])(?P<month>\d{1,2})(?P=mark)(?P<year>\d{4})",
    )
)


class Source(IntEnum):
    """How a time is known, the best first."""

    FIELD = 1
    STAMP = 2
    STORED = 3
    ARRIVAL = 4
    UNKNOWN = 5


class Said(NamedTuple):
    """When a message was sent, in Unix seconds; None if that is unknown. A day may be known where a time is not."""

    at: int | None = None
    source: int = Source.UNKNOWN


@dataclass(frozen=True)
class Calendar:
    """The days of a user's time zone.

    Attributes:
        zone: None for that of the server.
        dates: False if nothing gets a date, because the world of the conversation has times of its own.
    """

    zone: tzinfo | None = None
    dates: bool = True

    def day(self, at: int | None) -> date | None:
        """Return the day of a time in Unix seconds; None without a time, and where nothing has dates."""
        return datetime.fromtimestamp(at, self.zone).date() if self.dates and at is not None else None

    def seconds(self, moment: datetime) -> int | None:
        """Return a time in Unix seconds, one without a time zone being of this one; None beyond the calendar."""
        try:
            local = moment if moment.tzinfo or self.zone is None else moment.replace(tzinfo=self.zone)
            return math.floor(local.timestamp())
        except (ValueError, OverflowError, OSError):
            return None


SERVER = Calendar()
"""Of the server, in which the times in ``timestamps.json`` are."""


def zone_named(name: str) -> tzinfo | None:
    """Return the time zone with an IANA name; None if this machine knows none of that name."""
    try:
        return ZoneInfo(name)
    # ZoneInfoNotFoundError is a KeyError; a name may be that of a folder, or no path at all.
    except (KeyError, ValueError, OSError):
        return None


@lru_cache(maxsize=64)
def calendar_of(name: str) -> Calendar:
    """Return the calendar of the setting ``timeZone``: an IANA name, "" or ``none``. Another name is logged once."""
    if name.casefold() == NO_DATES:
        return Calendar(dates=False)
    zone = zone_named(name) if name else None
    if name and zone is None:
        logger.warning("timeZone: the time zone %r is unknown; days are those of this server's time zone", name[:80])
    return Calendar(zone)


@lru_cache(maxsize=_KEPT)
def _moment(value: str) -> datetime | int | None:
    """Return a time in Unix seconds, or one of the user's time zone; None for what is not one."""
    text = value.strip("()[]<> \t\r\n")
    if _NUMBER.fullmatch(text) and (seconds := _seconds(float(text))) and seconds >= EARLIEST:
        return seconds
    moment = _written(text)
    return SERVER.seconds(moment) if moment is not None and moment.tzinfo else moment


def _seconds(number: float) -> int | None:
    """Return a number of seconds, or of smaller units, in seconds."""
    if not 0 < number < _MOST:
        return None
    while number >= _MOST_SECONDS:
        number /= 1000
    return int(number)


def _written(text: str) -> datetime | None:
    """Return the time that a text begins with or contains."""
    try:
        return datetime.fromisoformat(text)
    # One of the other forms.
    except ValueError:
        pass
    for found in filter(None, (form.search(text) for form in _DAYS)):
        try:
            return _read(found.groupdict())
        # A month, a day or an hour that there is not.
        except ValueError:
            return None
    return None


def _read(parts: Mapping[str, str | None]) -> datetime:
    """Return the time in the parts of a match. Raises ValueError if no time, or more than one, has these numbers."""
    year, month, day = (int(parts.get(name) or 0) for name in ("year", "month", "day"))
    name, mark = parts.get("name"), parts.get("mark")
    if name:
        month = _MONTHS.get(folded(name)[:3], 0)
    # The first of two numbers is the month in America, and the day elsewhere.
    if mark and mark != "." and month != day:
        if month <= 12 and day <= 12:
            raise ValueError("ambiguous")
        month, day = (day, month) if month > 12 else (month, day)
    hour, minute, second = (int(parts.get(part) or 0) for part in ("hour", "minute", "second"))
    if half := parts.get("half"):
        hour = hour % 12 + (12 if half in "pP" else 0)
    zone = parts.get("offset") or ("+0000" if parts.get("utc") else "")
    offset = datetime.strptime(zone, "%z").tzinfo if zone else None
    return datetime(year, month, day, hour, minute, second, tzinfo=offset)


def time_in(value: object, calendar: Calendar) -> int | None:
    """Return the time in Unix seconds that a value of a client, or a stamp, means; None if it holds no date."""
    if isinstance(value, str):
        moment = _moment(value) if len(value) <= _LONGEST else None
        return calendar.seconds(moment) if isinstance(moment, datetime) else moment
    return _seconds(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Traces:
    """What is known of the times of messages, by their index; most messages have none of it.

    Attributes:
        fields: the values of the client's fields, the best first.
        stamps: the time stamps before texts.
        stored: the times in ``timestamps.json``, as text.
    """

    fields: Mapping[int, Sequence[object]] = field(default_factory=dict)
    stamps: Mapping[int, str] = field(default_factory=dict)
    stored: Mapping[int, str] = field(default_factory=dict)


def day_of(said: object) -> date | None:
    """Return the day of a stored time in ISO-8601, in the time zone that it was written in; None for anything else."""
    try:
        return datetime.fromisoformat(said).date() if isinstance(said, str) else None
    except ValueError:
        return None


def said_times(
    roles: Sequence[str], traces: Traces, arrival: float, calendar: Calendar, after: int | None = None
) -> list[Said]:
    """Return when each message of a history was sent.

    The best source counts whose time is possible: not before 2000, not more than a day ahead, and not more than a day
    before a message before it. The newest message of the user, and what follows it, came with the request. A message
    between two of the same day has that day.

    Args:
        roles: those of all messages.
        arrival: when the request came, in Unix seconds.
        after: the time of the message before the first one, if that is known.
    """
    times = [Said()] * len(roles)
    if not calendar.dates:
        return times
    newest = next((index for index in reversed(range(len(roles))) if roles[index] == "user"), len(roles))
    stored = _known(traces.stored)
    earliest, latest = max(EARLIEST, (after or 0) - DAY_SECONDS), arrival + DAY_SECONDS
    for index in sorted({*traces.fields, *traces.stamps, *stored, *range(newest, len(roles))}):
        arrived = arrival if index >= newest else None
        for at, source in _sources(traces, stored.get(index), index, arrived, calendar):
            if at is not None and earliest <= at <= latest:
                times[index] = Said(at, source)
                earliest = max(earliest, at - DAY_SECONDS)
                break
    _give_days(times, calendar)
    return times


def _sources(
    traces: Traces, stored: int | None, index: int, arrived: float | None, calendar: Calendar
) -> Iterator[tuple[int | None, Source]]:
    for value in traces.fields.get(index, ()):
        yield time_in(value, calendar), Source.FIELD
    if index in traces.stamps:
        yield time_in(traces.stamps[index], calendar), Source.STAMP
    yield stored, Source.STORED
    if arrived is not None:
        yield int(arrived), Source.ARRIVAL


def _known(stored: Mapping[int, str]) -> dict[int, int]:
    """Return stored times, which are of the server's time zone, but those a second before that of the next message.

    When a conversation is stored for the first time, all but its newest message get such times.
    """
    times = {index: at for index, text in stored.items() if (at := time_in(text, SERVER)) is not None}
    return {index: at for index, at in times.items() if times.get(index + 1) != at + 1}


def _give_days(times: list[Said], calendar: Calendar) -> None:
    """Give what stands between two messages of a day the time of the first, as a time of that day."""
    known = [index for index, said in enumerate(times) if said.at is not None]
    for before, behind in itertools.pairwise(known):
        if behind - before > 1 and calendar.day(times[before].at) == calendar.day(times[behind].at):
            times[before + 1 : behind] = [Said(times[before].at)] * (behind - before - 1)
