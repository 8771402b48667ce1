"""Placeholders in prompts for a child workflow: a name that neither workflow knows is a mistake if it is nearly one."""

from __future__ import annotations

from typing import Any

import pytest

from Tests.addons.check.checking import check, only


def override(text: str, **node: Any) -> dict[str, Any]:
    return {"type": "CustomWorkflow", "workflowName": "Child", "promptOverride": text, **node}


@pytest.mark.parametrize(
    ("name", "near"),
    [("moood", "mood"), ("chat_user_prompt_last_on", "chat_user_prompt_last_one"), ("mottos", "motto")],
)
def test_a_misspelt_name(name: str, near: str) -> None:
    found = only(check(override(f"Use {{{name}}}."), mood="calm"))
    assert (found.severity, found.json_path) == ("warning", "nodes[0].promptOverride")
    assert f"{{{name}}} is not a variable, neither here nor of the child workflow" in found.message
    assert found.suggestion == near


@pytest.mark.parametrize("text", ["{motto}", "{agent3Output}", "{agent9Output} {motto}", "{quite_different}"])
def test_what_the_child_may_know(text: str) -> None:
    assert only(check(override(text))).severity == "note"


@pytest.mark.parametrize(
    "node",
    [{"workflowName": "Other"}, {"workflowUserFolderOverride": "{folder}"}],
    ids=["not readable", "folder not known"],
)
def test_a_child_that_is_not_known(node: dict[str, Any]) -> None:
    assert only(check(override("{moood}", **node), mood="calm")).severity == "note"


def test_overrides_of_routes() -> None:
    found = only(
        check(
            {
                "type": "ConditionalCustomWorkflow",
                "conditionalKey": "a",
                "conditionalWorkflows": {"a": "Child", "Default": "Child"},
                "routeOverrides": {"a": {"systemPromptOverride": "{moood}"}},
            },
            mood="calm",
        )
    )
    assert (found.severity, found.suggestion) == ("warning", "mood")
    assert found.json_path == "nodes[0].routeOverrides.a.systemPromptOverride"
