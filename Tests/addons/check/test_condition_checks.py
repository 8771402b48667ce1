"""Conditions that cannot be read, with the position of the mistake in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from Middleware.utilities.config.json_source import JsonSource
from Tests.addons.check.checking import FakeLookups, check
from Tests.tables import table

STATIC = {"type": "StaticResponse", "content": "x"}


@table(
    ("condition", "severity", "caret", "says", "near"),
    [
        ("{agent1Output} = yes", "error", "=", "'=' is not part of a condition", "=="),
        ("({agent1Output} = yes AND TRUE", "error", "=", "'=' is not part of a condition", "=="),
        ("{agent1Output} && TRUE", "error", "&&", "'&&' is not part of a condition", "AND"),
        ("!{agent1Output}", "warning", "!", "'!' is not part of a condition and is left out", ""),
        ("({agent1Output} NOT", "error", "NOT", "there is no NOT", ""),
        ("NOT TRUE", "error", "NOT", "there is no NOT", ""),
        ("({agent1Output} == yes", "error", "(", "a parenthesis is not closed", ""),
        ("{agent1Output} == yes)", "error", ")", "this parenthesis closes nothing", ""),
        ("{agent1Output} ==", "error", '"', "a value is missing", ""),
        ("AND TRUE", "error", "AND", "a value is missing", ""),
        ("{agent1Output} yes", "error", "yes", "a comparison, AND or OR is missing", ""),
        ('"\u00e4\n\u4f60" == "x" == 5', "error", "== 5", "a comparison, AND or OR is missing", ""),
        ("{agent1Output} == 'yes", "warning", "'", "is not part of a condition and is left out", ""),
    ],
)
def test_mistakes(condition: str, severity: str, caret: str, says: str, near: str) -> None:
    nodes = [STATIC, {"type": "Conditional", "condition": condition}]
    for ascii_only in (True, False):
        source = json.dumps({"nodes": nodes}, indent=2, ensure_ascii=ascii_only)
        (found,) = check(*nodes, lookups=FakeLookups(source=source))
        assert (found.severity, found.json_path, found.suggestion) == (severity, "nodes[1].condition", near)
        assert says in found.message
        assert found.line is not None and found.column is not None
        line = source.split("\n")[found.line - 1]
        assert line[found.column - 1 :].startswith(caret)
        assert line.index("condition") < found.column


@table(
    "condition",
    [
        "{agent1Output} == yes",
        "'{agent1Output}' == 'it is' OR ({agent1Output} >= 5 AND TRUE)",
        "",
        "  ",
        "{agent1Output}",
        "{agent1Output[0]} != -1.5",
    ],
)
def test_no_mistakes(condition: str) -> None:
    assert check(STATIC, {"type": "Conditional", "condition": condition}) == []


def test_templates_are_not_parsed() -> None:
    template = "{{ agent1Output }} {% if 1 %}= 5{% endif %}"
    assert check(STATIC, {"type": "Conditional", "jinja2": True, "condition": template}) == []


@pytest.mark.parametrize(
    ("text", "path", "index", "column"),
    [
        ('{"a": "bcd"}', "a", 2, 10),
        ('{"a" :  "b\\ncd"}', "a", 2, 13),
        ('{"a": ["x", "bcd"]}', "a[1]", 0, 14),
        ('{"a": "\\ud83d\\ude00b"}', "a", 1, 20),
        ('{"a": 5}', "a", 3, 2),
        ('{"a": "b"}', "a", 9, 9),
    ],
)
def test_positions_in_strings(text: str, path: str, index: int, column: int, tmp_path: Path) -> None:
    assert JsonSource(text).position_in(path, index) == (1, column)
