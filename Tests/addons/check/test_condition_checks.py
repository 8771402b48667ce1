"""Conditions that cannot be read, with the position of the mistake in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from Middleware.utilities.config.json_source import JsonSource
from Tests.addons.check.checking import FakeLookups, Node, check
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


@table(
    ("condition", "caret", "says"),
    [
        ("{agent1Output}{agent1Output} == 5", "{agent1Output} == 5", "a comparison, AND or OR is missing"),
        ("-{agent1Output} < 5", "-", "a variable cannot have a minus sign in front of it"),
        ("x{agent1Output} == y", "{", "a comparison, AND or OR is missing"),
        ("{agent1Output} = yes", "=", "'=' is not part of a condition"),
    ],
)
def test_mistakes_with_operands(condition: str, caret: str, says: str) -> None:
    nodes = [STATIC, {"type": "Conditional", "condition": condition, "valueSafe": True}]
    source = json.dumps({"nodes": nodes}, indent=2)
    (found,) = check(*nodes, lookups=FakeLookups(source=source))
    assert found.severity == "error" and says in found.message
    assert found.line is not None and found.column is not None
    assert source.split("\n")[found.line - 1][found.column - 1 :].startswith(caret)


LLM = {"type": "Standard", "endpointName": "Main", "prompt": ""}
ON_TEXT = "'{agent1Output}' == 'x'"
VARIABLES = {"role": "x", "through": "a {chat_user_prompt_last_one}", "circle": "{other}", "other": "{circle}{other}"}


@table(
    ("first", "condition", "more", "noted"),
    [
        (LLM, ON_TEXT, {}, "agent1Output"),
        (LLM, ON_TEXT, {"valueSafe": False}, "agent1Output"),
        (LLM, ON_TEXT, {"valueSafe": "false"}, "agent1Output"),
        (LLM, ON_TEXT, {"valueSafe": True}, ""),
        (LLM, ON_TEXT, {"valueSafe": "true"}, ""),
        ({"type": "WebFetch", "url": "http://a/"}, ON_TEXT, {}, "agent1Output"),
        ({"type": "PythonModule", "module_path": "x.py"}, ON_TEXT, {}, "agent1Output"),
        ({"type": "GetCustomFile", "filepath": "x"}, ON_TEXT, {}, "agent1Output"),
        ({"type": "StaticResponse", "content": "{chat_user_prompt_last_one}"}, ON_TEXT, {}, "agent1Output"),
        ({"type": "StringConcatenator", "strings": ["a", "{agent1Input}"]}, ON_TEXT, {}, "agent1Output"),
        (STATIC, ON_TEXT, {}, ""),
        ({"type": "ArithmeticProcessor", "expression": "1 + 1"}, ON_TEXT, {}, ""),
        ({"type": "Conditional", "condition": "TRUE"}, "{agent1Output} == TRUE", {}, ""),
        (STATIC, "'{chat_user_prompt_last_one}' == 'x'", {}, "chat_user_prompt_last_one"),
        (STATIC, "'{templated_user_prompt_last_two}' == 'x'", {}, "templated_user_prompt_last_two"),
        (STATIC, "'{chat_system_prompt}' == 'x'", {}, "chat_system_prompt"),
        (STATIC, "'{Discussion_Id}' == 'x'", {}, "Discussion_Id"),
        (STATIC, "{agent1Input} == 1", {}, "agent1Input"),
        (STATIC, "'{through}' == 'x'", {}, "through"),
        (STATIC, "'{role}' == 'x'", {}, ""),
        (STATIC, "'{circle}' == 'x'", {}, ""),
        (STATIC, "'{other}' == 'x'", {}, ""),
        (STATIC, "'{circle}{through}' == 'x'", {}, "through"),
        (STATIC, "'{current_day_of_week}' == 'Monday'", {}, ""),
        (LLM, "'{{ agent1Output }}' == 'x'", {"jinja2": True}, "agent1Output"),
        (LLM, "{% if agent1Output == 'x' %}TRUE{% endif %}", {"jinja2": True}, ""),
    ],
)
def test_a_condition_that_a_text_can_change(first: Node, condition: str, more: Node, noted: str) -> None:
    node = {"type": "Conditional", "condition": condition, **more}
    found = [one for one in check(first, node, **VARIABLES) if one.json_path == "nodes[1].condition"]
    assert [one.severity for one in found] == (["note"] if noted else [])
    assert not noted or (found[0].text.count(f"{{{noted}}} is the text of") == 1 and "valueSafe" in found[0].expected)


@table(
    ("args", "more", "paths"),
    [
        (["{agent1Output}"], {}, ["nodes[1].args[0]"]),
        (["-s", "{agent1Output}", "https://a.example"], {"blockOptionInjection": "false"}, ["nodes[1].args[1]"]),
        (["{agent1Output}"], {"blockOptionInjection": True}, []),
        (["--data-raw", "{agent1Output}", "https://a.example"], {}, []),
        (["--url", "{agent1Output}"], {}, []),
        (["https://a.example/{agent1Output}"], {}, []),
        (["{host}/{agent1Output}"], {}, []),
    ],
)
def test_arguments_of_curl_that_a_text_begins(args: list[str], more: Node, paths: list[str]) -> None:
    found = check(LLM, {"type": "CurlCommand", "args": args, **more}, host="https://a.example")
    assert [one.json_path for one in found if one.severity == "note"] == paths


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
