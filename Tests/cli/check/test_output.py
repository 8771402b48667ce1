"""How findings are printed."""
from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from Middleware.cli.check.findings import Finding, Summary, human_text, json_text, path_shown
from Middleware.utilities.terminal import wants_colour

BAD = Finding("error", "Users/ann.json", "port", 3, "it is bad", "good", "better", column=5)
WORSE = Finding("warning", "Users/ann.json", "", None, "it is odd", users=("ann", "bob"))
NOTE = Finding("note", "Workflows/a/B.json", "nodes[0]", 1, "so be it", column=1)


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
        f"{ann}:3:5: error: port: it is bad", "    Expected: good", "    Did you mean 'better'?",
        f"{ann}: warning: it is odd", "    With the settings of: ann, bob", "",
        f"{other}:1:1: note: nodes[0]: so be it", "",
        "Checked 12 files, 2 users in 0.3 s: 1 error, 1 warning, 1 note."]


def test_nothing(summary: Summary) -> None:
    assert human_text([], summary) == "Checked 12 files, 2 users in 0.3 s: nothing wrong found."


def test_colours(summary: Summary) -> None:
    assert "\033" not in human_text([BAD, WORSE, NOTE], summary)
    assert "\033[1;31merror\033[0m: port" in human_text([BAD], summary, colour=True)


@pytest.mark.parametrize(("stream", "environment", "wanted"), [
    (Terminal(), {}, True), (io.StringIO(), {}, False), (Terminal(), {"NO_COLOR": "1"}, False),
    (Terminal(), {"NO_COLOR": ""}, True), (Terminal(), {"TERM": "dumb"}, False)],
    ids=["terminal", "pipe", "NO_COLOR", "empty NO_COLOR", "dumb"])
@pytest.mark.skipif(os.name == "nt", reason="the console decides there")
def test_who_wants_colours(stream: io.StringIO, environment: dict[str, str], wanted: bool) -> None:
    assert wants_colour(stream, environment) is wanted


def test_json(summary: Summary) -> None:
    told = json.loads(json_text([BAD, WORSE], summary))
    assert (told["files"], told["users"], told["errors"], told["warnings"], told["notes"], told["online"]) == (
        12, ["ann", "bob"], 1, 1, 0, False)
    first, second = told["findings"]
    assert first == {"severity": "error", "file": "Users/ann.json", "line": 3, "column": 5, "jsonPath": "port",
                     "path": os.path.join(summary.root, "Users", "ann.json"), "message": "it is bad",
                     "expected": "good", "suggestion": "better", "users": []}
    assert (second["line"], second["users"]) == (None, ["ann", "bob"])


def test_paths(summary: Summary, tmp_path: Path) -> None:
    assert path_shown(str(tmp_path.parent / "other"), "a/b.json") == str(tmp_path.parent / "other" / "a" / "b.json")
    assert path_shown(summary.root, str(tmp_path.parent)) == str(tmp_path.parent)


def test_names_are_printable(summary: Summary) -> None:
    assert "\033" not in human_text([Finding("note", "Users/\033[2J.json", "", None, "x")], summary)
