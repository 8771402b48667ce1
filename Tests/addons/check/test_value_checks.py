"""Nodes that choose a workflow by a value: what the check says about keys that do not cover the value."""

from __future__ import annotations

from typing import Any

from Tests.addons.check.checking import FakeLookups, Node, brief, check, llm, only, static, workflow
from Tests.addons.check.config_tree import GENERAL, TreeLab, nodes
from Tests.addons.check.config_tree import llm as tree_llm
from Tests.tables import table

CONDITION = {"type": "Conditional", "condition": "{agent1Input} == 1", "valueSafe": True, "title": "Is it one?"}
SAID_BY_LLM = "what the LLM of node 1 writes, which may be any text, and there is no 'Default'"
CHILDREN = {
    "Yes": workflow([static("x"), {"type": "Conditional", "returnToUser": True}, static("later")]),
    "Model": workflow([llm()]),
    "Circle": workflow([{"type": "CustomWorkflow", "workflowName": "Circle"}]),
}


def fork(*keys: str, key: str = "{agent1Output}", **more: Any) -> Node:
    return {
        "type": "ConditionalCustomWorkflow",
        "conditionalKey": key,
        "conditionalWorkflows": dict.fromkeys(keys, "Some"),
        **more,
    }


def jinja(text: str) -> Node:
    return static(text, jinja2=True)


@table(
    "node, keys, severity, text",
    [
        (
            CONDITION,
            ("Yes", "No"),
            "error",
            "the value is the output of node 1 'Is it one?', which is 'TRUE' or 'FALSE'; "
            "there is no key 'TRUE' or 'FALSE' (the keys are 'Yes', 'No') and no 'Default', so that no request "
            "can pass this "
            "node. Expected: the keys 'TRUE' and 'FALSE', or 'Default' for every other value.",
        ),
        (CONDITION, ("true",), "warning", "there is no key 'FALSE' and no 'Default', so that the request fails then"),
        (CONDITION, ("Default", "Yes"), "warning", "the workflow of 'Yes' never runs"),
        (CONDITION, ("TRUE", "FALSE", "MAYBE"), "warning", "the workflow of 'MAYBE' never runs"),
        (llm(), ("CODE", "OTHER"), "warning", SAID_BY_LLM),
        (static("{agent1Input}"), ("a",), "", ""),
        (static("code"), ("CODE",), "", ""),
        (static("code"), ("Chat",), "error", "which is 'code'"),
        (static("{mode}"), ("fast",), "", ""),
        (static("{mode}"), ("slow",), "error", "which is 'fast'"),
        # A variable in the text of a variable is filled in, and no further one.
        (static("{one}"), ("slow",), "error", "which is 'fast'"),
        (static("{two}"), ("slow",), "", ""),
        (jinja("{{ 'A' if x else 'B' }}"), ("A", "B"), "", ""),
        (jinja("{{ 'A' if x else 'B' if y else 'C' }}\n"), ("A", "B"), "warning", "there is no key 'C' and"),
        (jinja("{% if x %}A{% elif y %}B{% endif %}"), ("A", "B"), "warning", "there is no key an empty text and"),
        (jinja("{% if x %}A{% else %}{{ y }}{% endif %}"), ("A",), "", ""),
        (jinja("{{ x in y }}"), ("true", "false"), "", ""),
        (jinja("{{ {'a': 'b'}.get(x, 'c') }}"), ("b",), "", ""),
        (jinja("{{ broken"), ("b",), "other", ""),
        ({"type": "PythonModule", "module_path": "x.py"}, ("b",), "", ""),
        ({"type": "CustomWorkflow", "workflowName": "Yes"}, ("Yes", "No"), "error", "of node 1, which is 'TRUE'"),
        ({"type": "CustomWorkflow", "workflowName": "Model"}, ("A",), "warning", SAID_BY_LLM),
        ({"type": "CustomWorkflow", "workflowName": "Circle"}, ("A",), "", ""),
        ({"type": "CustomWorkflow", "workflowName": "{agent1Input}"}, ("A",), "", ""),
        (fork("TRUE", UseDefaultContentInsteadOfWorkflow="", key="x"), ("a",), "other", ""),
    ],
)
def test_the_keys_cover_the_value(node: Node, keys: tuple[str, ...], severity: str, text: str) -> None:
    lookups = FakeLookups(children=CHILDREN)
    found = [
        finding
        for finding in check(node, fork(*keys), lookups=lookups, mode="fast", one="{mode}", two="{one}")
        if "nodes[1]" in finding.json_path
    ]
    if severity in ("", "other"):
        assert found == []
    else:
        assert only(found).severity == severity
        assert text in only(found).text


@table("key", ["{{ agent1Output }}", "{{ agent1Output | trim | upper }}", "{{ agent1Output.strip().lower() }}"])
def test_a_template_that_only_trims_the_value(key: str) -> None:
    assert brief(check(CONDITION, fork("Yes", key=key, jinja2=True))) == [("error", "nodes[1].conditionalWorkflows")]


@table("more", [{"UseDefaultContentInsteadOfWorkflow": ""}, {"conditionalWorkflows": {"a": "A", " default ": "B"}}])
def test_a_fallback(more: Node) -> None:
    assert check(llm(), fork("a") | more) == []


def test_an_entry_without_workflow_is_no_fallback() -> None:
    found = only(check(llm(), fork() | {"conditionalWorkflows": {"a": "A", "Default": ""}}))
    assert found.json_path == "nodes[1].conditionalWorkflows"


def test_keys_that_are_no_categories_of_the_routing(tree: TreeLab) -> None:
    choice = fork("CODE", "OTHR", "Default") | {
        "conditionalWorkflows": dict.fromkeys(("CODE", "OTHR", "Default"), "Coding")
    }
    found = only(tree.check(nodes(tree_llm(prompt="Which of {categoriesSeparatedByOr}?"), choice)))
    assert (found.file, found.line, found.severity) == (GENERAL, 16, "warning")
    assert found.text == (
        "node 2: 'OTHR' is not a category of the routing 'routes', among which the LLM chooses. "
        "Expected: CODE, OTHER, UNKNOWN. Did you mean 'OTHER'?"
    )
