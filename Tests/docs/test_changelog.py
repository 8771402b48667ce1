"""Each entry of the changelog has a version and a date, and the newest is the version that the program prints."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date

from Middleware.common.constants import VERSION
from Tests.integration.launcher import PROJECT

_ENTRY = re.compile(r"## (\d+)\.(\d+)\.(\d+) \((\d{4}-\d{2}-\d{2})\)")
CHANGELOG = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
ENTRIES = [line for line in CHANGELOG.splitlines() if line.startswith("## ")]


def test_entries_have_a_version_and_a_date_newest_first() -> None:
    versions, dates = [], []
    for line in ENTRIES:
        found = _ENTRY.fullmatch(line)
        assert found, f"{line!r} is not '## VERSION (YEAR-MONTH-DAY)'"
        *version, day = found.groups()
        versions.append([int(number) for number in version])
        dates.append(date.fromisoformat(day))

    assert versions == sorted(versions, reverse=True) and dates == sorted(dates, reverse=True)


def test_the_newest_entry_is_the_version_of_the_program() -> None:
    assert ENTRIES[0].split()[1] == VERSION


def test_each_entry_says_what_changed_for_the_configuration() -> None:
    for entry in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        assert entry.count("### What changed for your configuration") == 1, entry.splitlines()[0]


def test_nothing_is_said_twice() -> None:
    items = re.findall(r"(?ms)^\* (.*?)(?=^\S|^$|\Z)", CHANGELOG)
    sentences = [sentence for item in items for sentence in re.split(r"(?<=[.:;]) ", " ".join(item.split()))]
    assert [one for one, count in Counter(sentences).items() if count > 1] == []
    assert len(sentences) > 2 * len(items) > 100
