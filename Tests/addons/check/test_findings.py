"""How findings read, and where in a file they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.addons.check.findings import MAX_LISTED, Finding, report
from Middleware.utilities.config.check import quoted, shortened
from Tests.addons.check.checking import FakeLookups, check, llm, static


def finding(**changes: Any) -> Finding:
    values: dict[str, Any] = {
        "severity": "error",
        "file": "Workflows/a/B.json",
        "json_path": "nodes[1].x",
        "line": 4,
        "message": "it is bad",
    }
    return Finding(**{**values, **changes})


def test_a_finding_reads_like_a_sentence() -> None:
    assert str(finding()) == "error    nodes[1].x (line 4): it is bad"
    assert str(finding(severity="note", line=None, json_path="", expected="good", suggestion="y")) == (
        "note     the file: it is bad. Expected: good. Did you mean 'y'?"
    )


def test_report() -> None:
    assert report([]) == ""
    text = report([finding(), finding(file="Workflows/C.json"), finding(message="worse")])
    assert text.splitlines() == [
        "Workflow a/B: 2 things to look at",
        "  error    nodes[1].x (line 4): it is bad",
        "  error    nodes[1].x (line 4): worse",
        "Workflow C: 1 thing to look at",
        "  error    nodes[1].x (line 4): it is bad",
    ]


def test_a_long_report_is_cut() -> None:
    lines = report([finding()] * (MAX_LISTED + 3)).splitlines()
    assert len(lines) == MAX_LISTED + 2
    assert lines[-1] == "  ... and 3 more"


@pytest.mark.parametrize(
    ("value", "keys", "shown"),
    [
        ("x", (), "'x'"),
        (5, (), "5"),
        (True, (), "true"),
        (None, (), "null"),
        ({}, (), "an object"),
        ([], (), "a list"),
        ("x", ("apiKey",), "***REDACTED***"),
        ("x", ("a", "Authorization"), "***REDACTED***"),
        ("http://tom:pw@h/?token=5", (), "'http://h/?token=***REDACTED***'"),
        ("a\nb\ud800", (), "'a b '"),
        ("{a}", ("conditionalKey",), "'{a}'"),
        ("abc", ("nodes", "x-api-key"), "***REDACTED***"),
    ],
)
def test_quoted(value: Any, keys: tuple[str, ...], shown: str) -> None:
    assert quoted(value, *keys) == shown


@given(st.text(), st.integers(4, 90))
def test_shortened(text: str, limit: int) -> None:
    line = shortened(text, limit)
    assert len(line) <= limit
    assert line.isprintable()


def test_findings_have_lines() -> None:
    nodes = [static(), llm("{zebra}")]
    source = json.dumps({"nodes": nodes}, indent=1)
    found = check(*nodes, lookups=FakeLookups(source=source))
    assert [(one.line, one.json_path) for one in found] == [(10, "nodes[1].prompt")]
    found = check(*nodes, lookups=FakeLookups(source=json.dumps(nodes, indent=1)))
    assert [(one.line, one.json_path) for one in found] == [(9, "[1].prompt")]
    assert [one.line for one in check(*nodes)] == [None]
