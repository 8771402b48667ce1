"""``benchmarks/state_database.py``: its rows are measured, and one above its budget is reported."""

from __future__ import annotations

import sys

import pytest

from benchmarks import state_database
from benchmarks.state_database import Row

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform != "linux", reason="it reads what only Linux tells of processes"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("postgres")
def test_a_little_of_everything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert state_database.main(["--share", "0.01", "--only", "start,request,turn,stop,search,token"]) == 0
    said = capsys.readouterr().out
    # What does not depend on the load of the machine.
    counts = [
        int(line[state_database.NAME_WIDTH :].split()[0])
        for line in said.splitlines()
        if "statements" in line or "psycopg" in line
    ]
    assert counts == [0, 2, 0, 10, 0], said
    assert "stop on another worker, 2: worst" in said and "first search in 1000 memories" in said


@pytest.mark.usefixtures("postgres")
def test_a_row_above_its_budget_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row("slow", 3.1, 3),
        Row("as allowed", 3, 3),
        Row("fast", 1.8, 1.8, at_least=True),
        Row("unlimited", 99),
        Row("few", 1.7, 1.8, at_least=True),
    ]
    monkeypatch.setattr(state_database, "ROWS", {"some": lambda _: iter(rows)})
    for arguments, status in (["--check"], 1), ([], 0):
        assert state_database.main([*arguments, "--only", "some"]) == status
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines if line.endswith("OVER")] == ["slow", "few"]
        assert lines[-1].endswith("2 above its budget")
