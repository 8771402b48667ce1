"""``benchmarks/coverage_floor.py``: the figures of each room, and a floor that only rises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import coverage_floor


def summary(covered: int, statements: int, covered_branches: int, branches: int) -> dict[str, object]:
    return {
        "summary": {
            "covered_lines": covered,
            "num_statements": statements,
            "covered_branches": covered_branches,
            "num_branches": branches,
        }
    }


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(
        json.dumps(
            {
                "files": {
                    "Middleware/api/app.py": summary(80, 100, 10, 20),
                    "Middleware/api/requests/body.py": summary(99, 100, 9, 10),
                    "Middleware\\addons\\talk\\chat.py": summary(2, 3, 0, 0),
                    "Middleware/cli/start.py": summary(1, 2, 1, 2),
                }
            }
        ),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def record(tmp_path: Path, report: Path) -> Path:
    path = tmp_path / "coverage.json"
    assert coverage_floor.main(["--update", "--report", str(report)], path) == 0
    return path


def change(record: Path, room: str, kind: str, by: float) -> None:
    figures = json.loads(record.read_text(encoding="utf-8"))
    figures[room][kind] += by
    record.write_text(json.dumps(figures), encoding="utf-8")


def test_the_files_of_a_room_count_together(record: Path) -> None:
    assert json.loads(record.read_text(encoding="utf-8")) == {
        "addons/talk": {"lines": 66.6, "branches": 100.0},
        "api": {"lines": 89.5, "branches": 63.3},
        "cli": {"lines": 50.0, "branches": 50.0},
    }


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("lines", "api: 89.5 % of the lines, 90.0 % are recorded"),
        ("branches", "api: 63.3 % of the branches, 63.8 % are recorded"),
    ],
)
def test_less_than_recorded_fails_and_stays_recorded(
    kind: str, said: str, record: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(record, "api", kind, 0.2)  # within what threads decide
    assert coverage_floor.main(["--check", "--report", str(report)], record) == 0
    change(record, "api", kind, 0.3)
    higher = json.loads(record.read_text(encoding="utf-8"))
    capsys.readouterr()
    assert coverage_floor.main(["--check", "--report", str(report)], record) == 1
    assert said in capsys.readouterr().out
    assert coverage_floor.main(["--update", "--report", str(report)], record) == 0
    assert json.loads(record.read_text(encoding="utf-8")) == higher


def test_more_is_recorded_when_asked(record: Path, report: Path) -> None:
    before = record.read_text(encoding="utf-8")
    change(record, "api", "lines", -20)
    assert coverage_floor.main(["--check", "--report", str(report)], record) == 0
    assert coverage_floor.main(["--update", "--report", str(report)], record) == 0
    assert record.read_text(encoding="utf-8") == before


def test_a_room_without_a_row_fails_and_one_that_is_gone_does_not(
    record: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = json.loads(record.read_text(encoding="utf-8"))
    figures["addons/gone"] = figures.pop("addons/talk")
    record.write_text(json.dumps(figures), encoding="utf-8")
    assert coverage_floor.main(["--check", "--report", str(report)], record) == 1
    said = capsys.readouterr().out
    assert "addons/talk: no row in coverage.json" in said and "gone" not in said


def test_nothing_is_compared_where_tests_fail(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Path) -> None:
        raise coverage_floor.TestsFailed

    monkeypatch.setattr(coverage_floor, "run_quick_tests", fail)
    assert coverage_floor.main(["--check"], record) == 1
    assert "The quick tests do not pass" in capsys.readouterr().out
