"""How findings read, and where in a file they are."""
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.cli.check.findings import MAX_LISTED, Finding, child, quoted, report, shortened
from Middleware.cli.check.lines import LineFinder
from Tests.cli.check.checking import FakeLookups, check, llm, static

TEXT = """{
  "p": "a\\"b]",
  "nodes": [
    {"type": "x"},
    {
      "two words": [1,
        "a", {"k": 5}],
      "content": {}
    }
  ]
}"""


def finding(**changes: Any) -> Finding:
    values: dict[str, Any] = {"severity": "error", "file": "Workflows/a/B.json", "json_path": "nodes[1].x", "line": 4,
                              "message": "it is bad"}
    return Finding(**{**values, **changes})


def test_a_finding_reads_like_a_sentence() -> None:
    assert str(finding()) == "error    nodes[1].x (line 4): it is bad"
    assert str(finding(severity="note", line=None, json_path="", expected="good", suggestion="y")) == (
        "note     the file: it is bad. Expected: good. Did you mean 'y'?")


def test_report() -> None:
    assert report([]) == ""
    text = report([finding(), finding(file="Workflows/C.json"), finding(message="worse")])
    assert text.splitlines() == [
        "Workflow a/B: 2 things to look at", "  error    nodes[1].x (line 4): it is bad",
        "  error    nodes[1].x (line 4): worse", "Workflow C: 1 thing to look at",
        "  error    nodes[1].x (line 4): it is bad"]


def test_a_long_report_is_cut() -> None:
    lines = report([finding()] * (MAX_LISTED + 3)).splitlines()
    assert len(lines) == MAX_LISTED + 2
    assert lines[-1] == "  ... and 3 more"


@pytest.mark.parametrize(("value", "keys", "shown"), [
    ("x", (), "'x'"), (5, (), "5"), (True, (), "true"), (None, (), "null"), ({}, (), "an object"), ([], (), "a list"),
    ("x", ("apiKey",), "***REDACTED***"), ("x", ("a", "Authorization"), "***REDACTED***"),
    ("http://tom:pw@h/?token=5", (), "'http://h/?token=***REDACTED***'"), ("a\nb\ud800", (), "'a b '")])
def test_quoted(value: Any, keys: tuple[str, ...], shown: str) -> None:
    assert quoted(value, *keys) == shown


@given(st.text(), st.integers(4, 90))
def test_shortened(text: str, limit: int) -> None:
    line = shortened(text, limit)
    assert len(line) <= limit
    assert line.isprintable()


@pytest.mark.parametrize(("path", "line"), [
    ("p", 2), ("nodes", 3), ("nodes[0]", 4), ("nodes[0].type", 4), ("nodes[1]", 5), ('nodes[1]["two words"]', 6),
    ('nodes[1]["two words"][0]', 6), ('nodes[1]["two words"][1]', 7), ('nodes[1]["two words"][2].k', 7),
    ("nodes[1].content", 8), ("nodes[1].absent", 5), ("elsewhere", 1), ("", 1)])
def test_lines(path: str, line: int) -> None:
    finder = LineFinder(TEXT)
    assert finder.line(path) == line
    assert not finder.is_list


def test_lines_of_a_list_file() -> None:
    finder = LineFinder('\ufeff[\n{"a": 1},\n{"a": 2}]')
    assert (finder.is_list, finder.line("nodes[1].a"), finder.line("nodes[0]")) == (True, 3, 2)


@given(st.text(alphabet='{}[],:"\\a1 \n'))
def test_lines_of_anything(text: str) -> None:
    line = LineFinder(text).line("nodes[0].a")
    assert line is None or 1 <= line <= text.count("\n") + 1


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.dictionaries(st.text(max_size=60), JSON), st.sampled_from([None, 1]))
def test_lines_of_json(value: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    finder = LineFinder(text)
    for key, entry in value.items():
        start = json.dumps(key) + ": " + json.dumps(entry, indent=indent).split("\n")[0]
        line = finder.line(child("", key))
        assert line is not None
        assert start.strip() in text.split("\n")[line - 1]


def test_findings_have_lines() -> None:
    nodes = [static(), llm("{zebra}")]
    source = json.dumps({"nodes": nodes}, indent=1)
    found = check(*nodes, lookups=FakeLookups(source=source))
    assert [(one.line, one.json_path) for one in found] == [(10, "nodes[1].prompt")]
    found = check(*nodes, lookups=FakeLookups(source=json.dumps(nodes, indent=1)))
    assert [(one.line, one.json_path) for one in found] == [(9, "[1].prompt")]
    assert [one.line for one in check(*nodes)] == [None]
