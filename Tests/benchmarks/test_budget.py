"""``benchmarks/budget.py``: what it measures is the same each time, and what grows is found and named."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from benchmarks import budget
from Tests.integration.prelude import launcher_after
from Tests.workflows.engine_lab import until

ROW = "nonstream"

# Each request makes the calls in question when it has been answered.
ADDED_CALLS = """
from Middleware.workflows import events
finish = events.RequestLine.request_finished
def added_by_a_test(): pass
def request_finished(self, *arguments):
    for _ in range(100):
        added_by_a_test()
    return finish(self, *arguments)
events.RequestLine.request_finished = request_finished
"""


@pytest.mark.slow
@pytest.mark.deep
def test_measures_the_same_twice_and_names_a_call_that_was_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = threading.enumerate()
    assert budget.main(["--update", "--only", ROW], tmp_path) == 0
    # The second measurement differs from the first by less than what would be recorded.
    recorded = table(tmp_path).read_text(encoding="utf-8")
    assert budget.main(["--update", "--only", ROW], tmp_path) == 0
    assert table(tmp_path).read_text(encoding="utf-8") == recorded
    capsys.readouterr()

    changed = launcher_after(tmp_path, budget.SERVER, *ADDED_CALLS.splitlines())
    assert budget.main(["--check", "--only", ROW], tmp_path, changed) == 1
    said = capsys.readouterr().out
    assert f"GROWN:\n{ROW}: Python calls for one request" in said
    # A thread of the back-end that went on would slow down all tests that follow.
    assert until(lambda: not {thread for thread in threading.enumerate() if thread not in before})
    assert "0 -> 100" in said and "added_by_a_test" in said


@pytest.mark.parametrize("figure", [budget.CALLS, budget.ALLOCATIONS])
@pytest.mark.parametrize("row", ["responses", "messages"])
def test_a_token_costs_hardly_more_in_the_newer_dialects(row: str, figure: str) -> None:
    """By what is recorded: at most 1.15 times a token of a chat."""
    for path in budget.TABLES.iterdir():
        costs = budget.Table.load(path).costs
        assert sum(costs[row][figure].values()) <= 1.15 * sum(costs["flat"][figure].values()), path.name


def test_growth_beyond_the_tolerance_is_reported() -> None:
    before: budget.Costs = {ROW: {budget.CALLS: {"a.py:kept": 900, "a.py:gone": 100}}}
    # 2 % are allowed.
    assert budget.compare(before, {ROW: {budget.CALLS: {"a.py:kept": 920, "a.py:gone": 100}}}) == ([], [])
    grown, shrunk = budget.compare(before, {ROW: {budget.CALLS: {"a.py:kept": 900, "a.py:new": 121}}})
    assert (grown, shrunk) == (
        [
            "nonstream: Python calls for one request: 1000 before, 1021 after (+2.1%)",
            "        +121  0 -> 121  a.py:new",
            "        -100  100 -> 0  a.py:gone",
        ],
        [],
    )
    grown, shrunk = budget.compare(before, {ROW: {budget.CALLS: {"a.py:kept": 900}}})
    assert not grown and "1000 before, 900 after (-10.0%)" in shrunk[0]


def test_a_figure_of_nothing_may_not_grow() -> None:
    grown, _ = budget.compare({ROW: {budget.FILE_OPENS: {}}}, {ROW: {budget.FILE_OPENS: {"some.json": 1, "others": 0}}})
    assert grown == ["nonstream: file opens for one request: 0 before, 1 after", "          +1  0 -> 1  some.json"]


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    made = budget.Table(tmp_path / "made.json")
    made.record(
        {
            ROW: {budget.CALLS: {"a.py:f": 3, "others": 40}, budget.FILE_OPENS: {}},
            "flat": {budget.CALLS: {"a.py:f": 0.25}},
        }
    )
    made.save()
    assert budget.Table.load(made.path).costs == made.costs


def test_differences_within_the_noise_are_not_recorded(tmp_path: Path) -> None:
    made = budget.Table(tmp_path / "made.json")
    made.record({ROW: {budget.CALLS: {"a.py:f": 1000}}})
    made.record({ROW: {budget.CALLS: {"a.py:f": 991}}})
    assert made.costs[ROW][budget.CALLS] == {"a.py:f": 1000}
    made.record({ROW: {budget.CALLS: {"a.py:f": 985}}})
    assert made.costs[ROW][budget.CALLS] == {"a.py:f": 985}


def test_without_a_table_the_check_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "measure", lambda rows, script: {row: {budget.CALLS: {"f": 1}} for row in rows})
    assert budget.main(["--check"], tmp_path) == 0
    assert "nothing was compared" in capsys.readouterr().out


def test_a_table_with_a_conflict_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "measure", lambda rows, script: {row: {budget.CALLS: {"f": 1}} for row in rows})
    table(tmp_path).write_text('{"figures": {\n<<<<<<< HEAD\n', encoding="utf-8")
    assert budget.main(["--check"], tmp_path) == 1
    # The other rows would be lost.
    assert budget.main(["--update", "--only", ROW], tmp_path) == 1
    assert "--update" in capsys.readouterr().out
    assert budget.main(["--update"], tmp_path) == 0
    assert json.loads(table(tmp_path).read_text(encoding="utf-8"))["figures"][f"{ROW}: {budget.CALLS}"] == 1


def table(folder: Path) -> Path:
    return budget.table_path(folder)


def test_what_has_grown_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def costs(calls: float) -> dict[str, dict[str, budget.Parts]]:
        return {"nonstream": {budget.CALLS: {"all": calls}}}

    for second, wanted in ((100.0, 100.0), (104.0, 103.0)):
        readings = iter((costs(103.0), costs(second)))
        monkeypatch.setattr(budget, "measure", lambda rows, script, readings=readings: next(readings))
        assert budget._measured_twice_if_grown(["nonstream"], "", costs(100.0)) == costs(wanted)
    monkeypatch.setattr(budget, "measure", lambda rows, script: costs(101.0))
    assert budget._measured_twice_if_grown(["nonstream"], "", costs(100.0)) == costs(101.0)
