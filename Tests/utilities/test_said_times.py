"""When messages were sent: the forms of clients, and which source counts."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest

from Middleware.utilities.said_times import Calendar, Said, Source, Traces, calendar_of, said_times, time_in, zone_named
from Tests.tables import table

BERLIN = Calendar(ZoneInfo("Europe/Berlin"))
# 19 June 2026, 14:20 in Berlin.
JUNE = 1781871600
DAY = 86_400
NOW = float(JUNE + 30 * DAY)


@table(
    ("value", "meaning"),
    [
        (1781871600, "2026-06-19T14:20:00+02:00"),
        (1781871600.9, "2026-06-19T14:20:00+02:00"),
        (1781871600000, "2026-06-19T14:20:00+02:00"),
        (1781871600123456789, "2026-06-19T14:20:00+02:00"),
        ("1781871600", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19T12:20:00Z", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19T12:20:00.123456789Z", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19T08:20:00-04:00", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19T14:20", "2026-06-19T14:20:00+02:00"),
        (" 2026-06-19 14:20:00\n", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19", "2026-06-19T00:00:00+02:00"),
        ("June 19, 2026 2:20pm", "2026-06-19T14:20:00+02:00"),
        ("June 9, 2026 12:05am", "2026-06-09T00:05:00+02:00"),
        ("December 1, 2026 12:05 PM", "2026-12-01T12:05:00+01:00"),
        ("2026-06-19 @14h 20m 00s 000ms", "2026-06-19T14:20:00+02:00"),
        ("2026-6-9 @4h 2m 0s 7ms", "2026-06-09T04:02:00+02:00"),
        ("2026-06-19@14h20m00s", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19@14h20m00s123ms", "2026-06-19T14:20:00+02:00"),
        # Stamps in texts.
        ("(Friday, 2026-06-19 14:20:00)", "2026-06-19T14:20:00+02:00"),
        ("[19.06.2026 14:20]", "2026-06-19T14:20:00+02:00"),
        ("<19. Juni 2026, 14:20>", "2026-06-19T14:20:00+02:00"),
        ("5. M\u00e4rz 2026", "2026-03-05T00:00:00+01:00"),
        ("3rd of May 2026", "2026-05-03T00:00:00+02:00"),
        ("Fri, 19 Jun 2026 12:20:00 GMT", "2026-06-19T14:20:00+02:00"),
        ("Fri, 19 Jun 2026 08:20:00 -0400", "2026-06-19T14:20:00+02:00"),
        ("Fri Jun 19 2026 08:20:00 GMT-0400 (EDT)", "2026-06-19T14:20:00+02:00"),
        ("2026-06-19T08:20:00-04:00[America/New_York]", "2026-06-19T14:20:00+02:00"),
        ("Friday, June 19, 2026 at 2:20 PM", "2026-06-19T14:20:00+02:00"),
        ("19. Juni 2026 um 14:20 Uhr", "2026-06-19T14:20:00+02:00"),
        ("1781871600.25", "2026-06-19T14:20:00+02:00"),
        ("20260619", "2026-06-19T00:00:00+02:00"),
        ("19/06/2026", "2026-06-19T00:00:00+02:00"),
        ("6/19/2026, 2:20 PM", "2026-06-19T14:20:00+02:00"),
        ("5/5/2026", "2026-05-05T00:00:00+02:00"),
        # What is no date, or not a certain one.
        ("06/05/2026", None),
        ("19 Jun 2026 14:20 +9900", None),
        ("14:20", None),
        ("[Sent 2 days ago]", None),
        ("2026-02-30", None),
        ("2026-06-19 25:00", None),
        ("19 Foo 2026", None),
        ("", None),
        ("x" * 5000 + "2026-06-19", None),
        ("9" * 70, None),
        (0, None),
        (-5, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (True, None),
        (None, None),
        ({"seconds": 5}, None),
        ([JUNE], None),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_the_forms_of_clients(value: object, meaning: str | None) -> None:
    at = time_in(value, BERLIN)
    assert (at and datetime.fromtimestamp(at, BERLIN.zone).isoformat()) == meaning


@table(
    ("roles", "traces", "said"),
    [
        # A first request with a history: only its newest message, and what follows it, came with it.
        ("uaua", Traces(), [None, None, (NOW, 4), (NOW, 4)]),
        ("uau", Traces(), [None, None, (NOW, 4)]),
        ("uauaa", Traces(), [None, None, (NOW, 4), (NOW, 4), (NOW, 4)]),
        ("aa", Traces(), [None, None]),
        ("", Traces(), []),
        # The best source counts, and of several fields the first with a time.
        ("u", Traces({0: [JUNE]}, {0: "2026-06-20 10:00"}, {0: "(Sunday, 2026-06-21 10:00:00)"}), [(JUNE, 1)]),
        ("u", Traces({0: ["soon", JUNE]}, {0: "2026-06-20"}), [(JUNE, 1)]),
        ("u", Traces({0: ["soon"]}, {0: "2026-06-19 14:20"}), [(JUNE, 2)]),
        ("u", Traces({}, {0: "14:20"}), [(NOW, 4)]),
        ("au", Traces({}, {}, {0: "(Friday, 2026-06-19 12:20:00)"}), [(JUNE, 3), (NOW, 4)]),
        # Not possible: before 2000, more than a day ahead, more than a day before the message before it.
        ("au", Traces({0: [5], 1: [946684799]}), [None, (NOW, 4)]),
        ("au", Traces({0: [946684800], 1: [NOW + DAY]}), [(946684800, 1), (NOW + DAY, 1)]),
        ("au", Traces({0: [NOW + DAY + 1]}), [None, (NOW, 4)]),
        (
            "auau",
            Traces({0: [JUNE], 1: [JUNE - DAY], 2: [JUNE - DAY - 1]}),
            [(JUNE, 1), (JUNE - DAY, 1), None, (NOW, 4)],
        ),
        ("aau", Traces({0: [JUNE], 1: [JUNE - 9 * DAY]}, {1: "2026-06-20"}), [(JUNE, 1), (JUNE + 34800, 2), (NOW, 4)]),
        # Between messages of a day: that day. At its borders, and between days: unknown.
        ("auaau", Traces({0: [JUNE], 3: [JUNE + 60]}), [(JUNE, 1), (JUNE, 5), (JUNE, 5), (JUNE + 60, 1), (NOW, 4)]),
        ("aaau", Traces({0: [JUNE], 2: [JUNE + DAY]}), [(JUNE, 1), None, (JUNE + DAY, 1), (NOW, 4)]),
        ("aau", Traces({1: [NOW - 60]}), [None, (NOW - 60, 1), (NOW, 4)]),
        # Times that were stored when the conversation was, a second apart.
        (
            "auau",
            Traces(
                {},
                {},
                {
                    0: "(Friday, 2026-06-19 12:19:58)",
                    1: "(Friday, 2026-06-19 12:19:59)",
                    2: "(Friday, 2026-06-19 12:20:00)",
                },
            ),
            [None, None, (JUNE, 3), (NOW, 4)],
        ),
    ],
    ids=lambda value: repr(value)[:90],
)
def test_the_best_possible_source_counts(
    roles: str, traces: Traces, said: list[tuple[float, int] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stored times are of the server's time zone.
    monkeypatch.setattr("Middleware.utilities.said_times.SERVER", Calendar(UTC))
    names = [{"u": "user", "a": "assistant"}[letter] for letter in roles]
    expected = [Said(int(one[0]), one[1]) if one else Said() for one in said]
    assert said_times(names, traces, NOW, BERLIN) == expected
    assert said_times(names, traces, NOW, calendar_of("none")) == [Said()] * len(names)


def test_times_do_not_run_backwards_from_what_is_stored() -> None:
    traces = Traces({0: [JUNE], 1: [JUNE + 60]})
    roles = ["assistant", "assistant", "user"]
    assert said_times(roles, traces, NOW, BERLIN, after=JUNE + DAY)[0] == Said(JUNE, Source.FIELD)
    assert [said.at for said in said_times(roles, traces, NOW, BERLIN, after=JUNE + DAY + 30)] == [None, JUNE + 60, NOW]


@table(
    ("name", "zone", "dates", "logged"),
    [
        ("", None, True, False),
        ("Europe/Berlin", ZoneInfo("Europe/Berlin"), True, False),
        ("UTC", ZoneInfo("UTC"), True, False),
        ("none", None, False, False),
        ("None", None, False, False),
        ("Nowhere/Land", None, True, True),
        ("Europe", None, True, True),
        ("../../etc/localtime", None, True, True),
        ("/etc/localtime", None, True, True),
        ("a\0b", None, True, True),
        ("x" * 5000, None, True, True),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_time_zones(
    name: str, zone: tzinfo | None, dates: bool, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calendar_of.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [calendar_of(name), calendar_of(name)] == [Calendar(zone, dates)] * 2
    assert len(caplog.records) == logged
    assert (zone_named(name) is None) == (zone is None)


@table(
    ("at", "zone", "day"),
    [
        (datetime(2026, 3, 18, 23, 30, tzinfo=UTC), "Europe/Berlin", date(2026, 3, 19)),
        (datetime(2026, 3, 18, 23, 30, tzinfo=UTC), "America/New_York", date(2026, 3, 18)),
        # The hour that comes twice when the clock goes back.
        (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), "Europe/Berlin", date(2026, 10, 25)),
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), "Europe/Berlin", date(2026, 10, 25)),
        (datetime(2026, 10, 25, 23, 0, tzinfo=UTC), "Europe/Berlin", date(2026, 10, 26)),
        (datetime(2026, 3, 18, tzinfo=UTC), "none", None),
    ],
)
def test_days_are_those_of_the_time_zone(at: datetime, zone: str, day: date | None) -> None:
    assert calendar_of(zone).day(int(at.timestamp())) == day
    assert calendar_of(zone).day(None) is None
