"""Texts of nodes: outputs, placeholders, braces, Jinja2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from Tests.addons.check.checking import FakeLookups, brief, check, llm, only, static
from Tests.tables import table

PATH = "nodes[1].content"


def second(
    text: Any, *later: dict[str, Any], lookups: FakeLookups | None = None, jinja: bool = False, **variables: Any
) -> Any:
    """Findings about a text of the second of at least two nodes."""
    more = {"jinja2": True} if jinja else {}
    return check(static(), static(text, **more), *later, lookups=lookups, **variables)


# -- outputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{agent2Output}", "of this node itself"),
        ("{agent3Output}", "node 3 runs after"),
        ("{agent4Output}", "no node 4"),
        ("{agent3Output[key]}", "node 3 runs after"),
        ("{agent3Output:>5}", "node 3 runs after"),
        ("{agent1Output} {agent3Output}", "node 3 runs after"),
    ],
)
def test_output_that_is_not_there(text: str, reason: str) -> None:
    found = only(second(text, static()))
    assert (found.severity, found.json_path) == ("error", PATH)
    assert reason in found.message
    assert "nothing in this text is filled in" in found.message


@pytest.mark.parametrize(
    "text",
    ["{agent1Output}", "{agent1Output[key]}", "{agent9Input}", "agent7Output", "{{agent1Output}}", "", "no braces"],
)
def test_good_outputs(text: str) -> None:
    assert second(text) == []


def test_output_in_jinja_is_empty() -> None:
    found = only(second("{% if agent3Output %}a{% endif %}{{ agent1Output }}", static(), jinja=True))
    assert (found.severity, found.json_path) == ("warning", PATH)
    assert "node 3 runs after" in found.message


def test_a_variable_may_have_the_name_of_an_output() -> None:
    assert second("{agent9Output}", agent9Output="x") == []


def test_output_in_a_list_and_an_early_key() -> None:
    assert brief(check({"type": "StringConcatenator", "strings": ["a", "{agent1Output}"]})) == [
        ("error", "nodes[0].strings[1]")
    ]
    assert brief(check(llm("x", endpointName="{agent1Output}"))) == [("error", "nodes[0].endpointName")]


# -- placeholders ------------------------------------------------------------------------------------------------------


def test_unknown_placeholder() -> None:
    found = only(second("{chat_user_prompt_last_on} {todays_date_iso}"))
    assert (found.severity, found.json_path, found.suggestion) == ("warning", PATH, "chat_user_prompt_last_one")
    assert "nothing in this text is filled in" in found.message


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Tone", "tone"),
        ("agent1Ouput", "agent1Output"),
        ("agent01Output", "agent1Output"),
        ("mottoo", "motto"),
        (" tone ", "tone"),
        ("zebra", ""),
    ],
)
def test_nearest_placeholder(name: str, near: str) -> None:
    found = only(second(f"{{{name}}}", lookups=FakeLookups({"motto": "x"}), tone="dry"))
    assert found.suggestion == near


@pytest.mark.parametrize(
    "name", ["tone", "motto", "messages", "category_list", "Discussion_Id", "templated_system_prompt", "agent4Input"]
)
def test_known_placeholders(name: str) -> None:
    assert second(f"{{{name}}}", lookups=FakeLookups({"motto": "x"}), tone="dry") == []


@pytest.mark.parametrize(
    "name",
    [
        "current_chat_summary",
        "userInput",
        "lastUserMessage",
        "userName",
        "currentDate",
        "current_username",
        "llm_responder_output",
    ],
)
def test_examples_that_are_no_variables(name: str) -> None:
    assert "although examples use it" in only(second(f"{{{name}}}")).message
    assert second(f"{{{name}}}", **{name: "x"}) == []


def test_each_unknown_name_is_told() -> None:
    assert len(second("{zebra} {zebra} {yak}")) == 2


def test_partial_substitution_leaves_the_rest_alone() -> None:
    assert "it is left as written" in only(second("{zebra}", lookups=FakeLookups(partly=True))).message


def test_placeholder_inside_a_variable_of_the_file() -> None:
    found = only(second("{p}", p="/d/{Discusion_Id}"))
    assert (found.severity, found.json_path, found.suggestion) == ("warning", "p", "Discussion_Id")
    assert second("x", p="/d/{Discusion_Id}") == []
    assert second("{p}", p='{"a": 1} {% x %}') == []


def test_early_keys_know_less() -> None:
    found = only(check(llm("x", preset="{chat_system_prompt}")))
    assert (found.severity, found.json_path) == ("warning", "nodes[0].preset")
    assert "Discussion_Id" in found.expected
    assert check(llm("x", preset="{a}-{Discussion_Id}-{agent2Input}"), a="x") == []
    assert only(check(llm("x", preset="{a"))).severity == "warning"


def test_keys_without_variables() -> None:
    node = {"type": "CustomWorkflow", "workflowName": "{name}"}
    found = only(check(node, name="C"))
    assert (found.severity, found.json_path) == ("warning", "nodes[0].workflowName")
    assert "variables do not work here" in found.message
    assert check({"type": "StringConcatenator", "strings": [], "delimiter": "{", "title": "{name}"}, name="C") == []


@pytest.mark.parametrize("key", ["promptOverride", "firstNodeSystemPromptOverride"])
def test_a_child_may_know_what_its_parent_does_not(key: str) -> None:
    found = only(check({"type": "CustomWorkflow", "workflowName": "C", key: "{agent3Output} {mood}"}))
    assert (found.severity, found.json_path) == ("note", f"nodes[0].{key}")


# -- braces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"a": 1}', "{}", "a { b", "a } b", "{0}", "body { color: red }", "{a!x}", "{a.}"])
def test_braces_of_a_text_are_a_note(text: str) -> None:
    found = only(second(text))
    assert (found.severity, found.json_path) == ("note", PATH)
    assert "nothing in this text is filled in" in found.message


@pytest.mark.parametrize("text", ['Use {agent1Output} as {"a": 1}', "{agent1Output} {}"])
def test_braces_that_keep_a_variable_from_being_filled_in(text: str) -> None:
    found = only(second(text))
    assert found.severity == "warning"
    assert "{agent1Output}" in found.message
    assert only(second(text, lookups=FakeLookups(partly=True))).severity == "note"


@pytest.mark.parametrize("text", ["{{ agent1Output }}", "{% if agent1Output %}a{% endif %}"])
def test_jinja_in_a_node_without_jinja(text: str) -> None:
    found = only(second(text))
    assert found.severity == "warning"
    assert '"jinja2": true' in found.message


@pytest.mark.parametrize("text", ["{{x}}", "{{}}", '{{"a": 1}}', "{{ char }}"])
def test_doubled_braces_are_text(text: str) -> None:
    assert second(text) == []


# -- Jinja2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\n{% if %}", 2), ("{{ x", 1), ("a\nb\n{{ x | nope }}", 3), ("{% if x is nope %}a{% endif %}", 1)],
)
def test_jinja_errors(text: str, line: int) -> None:
    found = only(second(text, jinja=True))
    assert (found.severity, found.json_path) == ("error", PATH)
    assert f"line {line} of this text" in found.message


@pytest.mark.parametrize(
    "text",
    [
        "{{ agent1Output.x | tojson }}",
        "{% for m in messages %}{{ m.role }}{{ loop.index }}{% endfor %}",
        "{a} {",
        "x",
        "{{ zebra }}",
        "{% if zebra is defined %}a{% endif %}",
        "{{ range(3) }}",
        "{% set t = 1 %}{{ t }}",
        "{{ 'x' * 1000000000000 }}",
    ],
)
def test_good_jinja(text: str) -> None:
    assert second(text, jinja=True) == []


@table(
    ("text", "names", "column"),
    [
        ("See {agent1Output}.", "{agent1Output}", 5),
        ("{motto}", "{motto}", 1),
        ("{% if agent1Output %}{todays_date_pretty}{% endif %}", "{todays_date_pretty}", 22),
        ("{{ agent1Output }} {# {motto} #} {agent1Output} {motto} {agent1Output}", "{agent1Output}, {motto}", 34),
        ("{% raw %}{motto}{% endraw %}{motto}", "{motto}", 29),
        ('{"a": "{agent2Input}"}', "{agent2Input}", 8),
    ],
)
def test_single_braces_in_a_template(text: str, names: str, column: int) -> None:
    source = json.dumps({"nodes": [static(), static(text, jinja2=True)], "motto": "x"}, indent=1)
    found = only(second(text, jinja=True, lookups=FakeLookups(source=source), motto="x"))
    assert (found.severity, found.json_path) == ("warning", PATH)
    assert found.message.startswith(f'node 2: {names} stays as written: with "jinja2": true the text is a Jinja2')
    assert found.suggestion == "{" + names.partition(",")[0] + "}"
    line = source.splitlines()[found.line - 1]
    assert line[found.column - 1 :].startswith(names.partition(",")[0])


@table(
    "text",
    [
        "{{ agent1Output }}",
        "{{agent1Output}}",
        "{% raw %}{agent1Output}{% endraw %}",
        "{%- raw -%}{motto}{%- endraw -%}",
        "{# {agent1Output} #}",
        "{% set a = '{motto}' %}{{ a }}",
        "{{ '{motto}' }}",
        "{unknown} {agent3Output} { motto }",
        "{color: red}",
        "{'a': 1}",
    ],
)
def test_what_a_template_may_hold(text: str) -> None:
    assert second(text, jinja=True, motto="x") == []


def test_single_braces_for_a_child() -> None:
    """A child that is no template fills in what its parent's template leaves as written."""
    node = {"type": "CustomWorkflow", "workflowName": "Child", "jinja2": True, "promptOverride": "Say {agent1Output}."}
    assert brief(check(static(), node)) == []


def test_misspelt_name_in_jinja() -> None:
    found = only(second("{{ agent1Ouput }}", jinja=True))
    assert (found.severity, found.suggestion) == ("warning", "agent1Output")


@pytest.mark.parametrize("text", ["{{ " + "9" * 5000 + " }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}"])
def test_jinja_that_no_parser_takes(text: str) -> None:
    assert only(second(text, jinja=True)).json_path == PATH
