"""How findings are printed."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from Middleware.addons.check.findings import Finding, Selection, Summary, human_text, in_order, json_text, path_shown
from Middleware.utilities.terminal import wants_colour
from Tests.tables import table
from Tests.windows import console_decides

BAD = Finding("error", "Users/ann.json", "port", 3, "it is bad", "good", "better", column=5)
WORSE = Finding("warning", "Users/ann.json", "", None, "it is odd", users=("ann", "bob"))
NOTE = Finding("note", "Workflows/a/B.json", "nodes[0]", 1, "so be it", column=1)
ADVICE = Finding("note", "Users/ann.json", "x", 1, "it is read again", is_advice=True)
FIRST = Finding("error", "Workflows/z/Z.json", "", 9, "it is missing")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Summary:
    monkeypatch.chdir(tmp_path)
    return Summary(str(tmp_path / "Configs"), 12, ["ann", "bob"], 0.26)


def test_by_file(summary: Summary) -> None:
    ann, other = os.path.join("Configs", "Users", "ann.json"), os.path.join("Configs", "Workflows", "a", "B.json")
    assert human_text([BAD, WORSE, NOTE], summary).split("\n") == [
        f"{ann}:3:5: error: port: it is bad",
        "    Expected: good",
        "    Did you mean 'better'?",
        f"{ann}: warning: it is odd",
        "    With the settings of: ann, bob",
        "",
        f"{other}:1:1: note: nodes[0]: so be it",
        "",
        "Checked 12 files, 2 users in 0.3 s: 1 error, 1 warning, 1 note.",
    ]


def test_order() -> None:
    last = replace(ADVICE, file="Workflows/a/B.json")
    assert in_order([last, ADVICE, NOTE, WORSE, FIRST, BAD]) == [BAD, FIRST, WORSE, NOTE, ADVICE, last]


READ_AGAIN = "about what servers read again: --notes prints"


@table(
    ("selection", "findings", "printed", "last"),
    [
        (
            Selection(),
            [FIRST, WORSE, NOTE, ADVICE],
            ["is missing", "is odd", "so be it"],
            f"1 note {READ_AGAIN} it.\nChecked 12 files, 2 users in 0.3 s: 1 error, 1 warning, 2 notes.",
        ),
        (Selection(), [ADVICE] * 3, [], f"3 notes {READ_AGAIN} them.\nChecked 12 files, 2 users in 0.3 s: 3 notes."),
        (
            Selection(advice=True),
            [FIRST, WORSE, NOTE, ADVICE],
            ["is missing", "is odd", "so be it", "is read again"],
            "\n\nChecked 12 files, 2 users in 0.3 s: 1 error, 1 warning, 2 notes.",
        ),
        (
            Selection(errors=True),
            [FIRST, BAD, WORSE, NOTE, ADVICE],
            ["is missing", "is bad"],
            "\n\nChecked 12 files, 2 users in 0.3 s: 2 errors, 1 warning, 2 notes.",
        ),
        (Selection(errors=True), [WORSE, ADVICE], [], "Checked 12 files, 2 users in 0.3 s: 1 warning, 1 note."),
    ],
)
def test_selection(
    selection: Selection, findings: list[Finding], printed: list[str], last: str, summary: Summary
) -> None:
    text = human_text(findings, summary, selection=selection)
    assert [
        message for message in ("is missing", "is bad", "is odd", "so be it", "is read again") if message in text
    ] == printed
    assert text.endswith(last)
    told = json.loads(json_text(findings, summary, selection))
    assert len(told["findings"]) == len(printed)
    assert (told["errors"], told["warnings"], told["notes"]) == tuple(
        sum(finding.severity == severity for finding in findings) for severity in ("error", "warning", "note")
    )


def test_nothing(summary: Summary) -> None:
    assert human_text([], summary) == "Checked 12 files, 2 users in 0.3 s: nothing wrong found."


def test_colours(summary: Summary) -> None:
    assert "\033" not in human_text([BAD, WORSE, NOTE], summary)
    assert "\033[1;31merror\033[0m: port" in human_text([BAD], summary, colour=True)


@pytest.mark.parametrize(
    ("stream", "environment", "wanted"),
    [
        pytest.param(Terminal(), {}, True, marks=console_decides),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        pytest.param(Terminal(), {"NO_COLOR": ""}, True, marks=console_decides),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
    ids=["terminal", "pipe", "NO_COLOR", "empty NO_COLOR", "dumb"],
)
def test_who_wants_colours(stream: io.StringIO, environment: dict[str, str], wanted: bool) -> None:
    assert wants_colour(stream, environment) is wanted


def test_json(summary: Summary) -> None:
    told = json.loads(json_text([BAD, WORSE], summary))
    assert (told["files"], told["users"], told["errors"], told["warnings"], told["notes"], told["online"]) == (
        12,
        ["ann", "bob"],
        1,
        1,
        0,
        False,
    )
    first, second = told["findings"]
    assert first == {
        "severity": "error",
        "file": "Users/ann.json",
        "line": 3,
        "column": 5,
        "jsonPath": "port",
        "path": os.path.join(summary.root, "Users", "ann.json"),
        "message": "it is bad",
        "expected": "good",
        "suggestion": "better",
        "users": [],
    }
    assert (second["line"], second["users"]) == (None, ["ann", "bob"])


def test_paths(summary: Summary, tmp_path: Path) -> None:
    assert path_shown(str(tmp_path.parent / "other"), "a/b.json") == str(tmp_path.parent / "other" / "a" / "b.json")
    assert path_shown(summary.root, str(tmp_path.parent)) == str(tmp_path.parent)


def test_names_are_printable(summary: Summary) -> None:
    assert "\033" not in human_text([Finding("note", "Users/\033[2J.json", "", None, "x")], summary)
