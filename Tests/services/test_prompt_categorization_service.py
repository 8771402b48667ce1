"""Choosing a workflow by category."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigurationError
from Middleware.services.prompt_categorization_service import (
    PromptCategorizationService,
    category_variables,
    match_category,
    route_header,
)
from Tests.llmapis.lab import Lab
from Tests.tables import table

ROUTING = {
    "RECIPES": {"description": "cooking and food", "workflow": "Cook"},
    "OTHER": {"description": "anything else", "workflow": "Chat"},
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path, monkeypatch)
    lab.user(routingConfig="routes", categorizationWorkflow="Categorize")
    lab.write("Routing/routes", ROUTING)
    return lab


class Model:
    """Answers the categorization workflow with the given results, the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, workflow: str, variables: Mapping[str, Any]) -> Any:
        self.calls.append((workflow, variables))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def chosen(*answers: Any) -> tuple[str, str]:
    return PromptCategorizationService(Model(*answers)).choose_workflow()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("RECIPES", ("RECIPES", "Cook")),
        ("**recipes**.", ("RECIPES", "Cook")),
        ("I think: Other!", ("OTHER", "Chat")),
        ("NOTRECIPES", ("RECIPES", "Cook")),
        ("other recipes", ("OTHER", "Chat")),
        ("", ("UNKNOWN", "_DefaultWorkflow")),
        ("   ", ("UNKNOWN", "_DefaultWorkflow")),
        (None, ("UNKNOWN", "_DefaultWorkflow")),
        ("no idea", ("UNKNOWN", "_DefaultWorkflow")),
        ({"content": "recipes", "tool_calls": []}, ("RECIPES", "Cook")),
        ({"content": None}, ("UNKNOWN", "_DefaultWorkflow")),
    ],
)
def test_answers(lab: Lab, answer: Any, result: tuple[str, str]) -> None:
    assert chosen(answer) == result


def test_a_category_may_be_called_unknown(lab: Lab) -> None:
    lab.write("Routing/routes", {**ROUTING, "UNKNOWN": {"description": "d", "workflow": "Puzzled"}})
    assert chosen("no idea") == ("UNKNOWN", "Puzzled")
    assert chosen(None) == ("UNKNOWN", "Puzzled")


@pytest.mark.parametrize(("setting", "calls"), [(None, 1), (0, 1), (-2, 1), ("3", 3), (2, 2), ("x", 1)])
def test_attempts(lab: Lab, setting: Any, calls: int) -> None:
    lab.user(
        routingConfig="routes",
        categorizationWorkflow="Categorize",
        **({} if setting is None else {"maxCategorizationAttempts": setting}),
    )
    model = Model("nothing")
    assert PromptCategorizationService(model).choose_workflow() == ("UNKNOWN", "_DefaultWorkflow")
    assert len(model.calls) == calls


def test_a_match_ends_the_attempts(lab: Lab) -> None:
    lab.user(routingConfig="routes", categorizationWorkflow="Categorize", maxCategorizationAttempts=5)
    model = Model("nothing", "recipes", "other")
    assert PromptCategorizationService(model).choose_workflow() == ("RECIPES", "Cook")
    assert [workflow for workflow, _ in model.calls] == ["Categorize", "Categorize"]


def test_variables() -> None:
    assert category_variables(ROUTING) == {
        "category_list": ["RECIPES", "OTHER"],
        "category_descriptions": ["cooking and food", "anything else"],
        "category_colon_descriptions": "RECIPES: cooking and food; OTHER: anything else",
        "category_colon_descriptions_newline_bulletpoint": "\n- RECIPES: cooking and food\n- OTHER: anything else",
        "categoriesSeparatedByOr": "RECIPES or OTHER",
        "categoryNameBulletpoints": "\n- RECIPES\n- OTHER",
    }


@table(
    ("answer", "categories", "expected"),
    [
        ("CODE_REVIEW", ["CODE", "CODE_REVIEW"], "CODE_REVIEW"),
        ("CODE_REVIEWS", ["CODE", "CODE_REVIEW"], "CODE"),
        ("a code review please", ["CODING", "Code Review"], "Code Review"),
        ("codes", ["Code Review"], None),
        ("code - review", ["Code Review"], "Code Review"),
        ("first second", ["SECOND", "FIRST"], "FIRST"),
        ("x", [], None),
        ("größe", ["GRÖSSE", "Größe"], "GRÖSSE"),
        ("Code Review", ["CODE", "Code Review"], "Code Review"),
        ("code then code review", ["CODE", "Code Review"], "CODE"),
        ("my_code", ["CODE", "MY_CODE"], "MY_CODE"),
        ("NOTRECIPES recipes", ["NOT", "RECIPES"], "RECIPES"),
        ("xrecipesx", ["RECIPES", "RECIPE"], "RECIPES"),
        ("a-b", ["AB"], "AB"),
        ("**RECIPES**:\n* because", ["RECIPES"], "RECIPES"),
        ("...", ["---"], None),
    ],
)
def test_matching(answer: str, categories: list[str], expected: str | None) -> None:
    assert match_category(answer, categories) == expected


@pytest.mark.parametrize(
    "routing",
    [
        {"A": {"description": "d"}},
        {"A": {"workflow": "w"}},
        {"A": "w"},
        ["A"],
        {"A": {"description": 1, "workflow": "w"}},
    ],
)
def test_broken_routing_files_fail(lab: Lab, routing: Any) -> None:
    lab.write("Routing/routes", routing)
    with pytest.raises(ConfigurationError, match="Routing/routes.json"):
        chosen("A")


def test_missing_and_malformed_routing_file(lab: Lab) -> None:
    (lab.root / "Routing" / "routes.json").write_text("{", encoding="utf-8")
    lab.user(routingConfig="routes", categorizationWorkflow="Categorize")
    with pytest.raises(ConfigurationError, match="Routing/routes.json, line 1"):
        chosen("A")
    lab.user(routingConfig="gone")
    with pytest.raises(FileNotFoundError, match="gone"):
        chosen("A")


@pytest.mark.parametrize("settings", [{}, {"routingConfig": ""}, {"routingConfig": None}])
def test_no_routing_at_all(lab: Lab, settings: dict[str, Any]) -> None:
    lab.user(**settings)
    model = Model("RECIPES")
    assert PromptCategorizationService(model).choose_workflow() == ("", "_DefaultWorkflow")
    assert model.calls == []


def test_no_categorization_workflow(lab: Lab) -> None:
    lab.user(routingConfig="routes")
    model = Model("OTHER")
    assert PromptCategorizationService(model).choose_workflow() == ("OTHER", "Chat")
    assert model.calls[0][0] == "_DefaultWorkflow"


def test_the_verdict_is_logged_without_the_answer(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.user(routingConfig="routes", categorizationWorkflow="Categorize", maxCategorizationAttempts=3)
    with caplog.at_level(logging.INFO):
        chosen("my secret diary", "recipes")
    assert "Category RECIPES" in caplog.text and "2 of 3" in caplog.text and "diary" not in caplog.text
    with caplog.at_level(logging.INFO):
        chosen("my secret diary")
    warning = caplog.records[-1].getMessage()
    assert caplog.records[-1].levelno == logging.WARNING and "diary" not in caplog.text
    assert all(word in warning for word in ("Categorize", "RECIPES, OTHER", "3"))
    caplog.clear()
    with caplog.at_level(logging.INFO):
        chosen("recipes")
    assert caplog.text == ""  # who runs the workflow tells of the choice


def test_a_failing_categorization_fails_the_request(lab: Lab) -> None:
    def broken(workflow: str, variables: Mapping[str, Any]) -> Any:
        raise ConnectionError("no LLM")

    with pytest.raises(ConnectionError):
        PromptCategorizationService(broken).choose_workflow()


@pytest.mark.parametrize(
    ("route", "value"),
    [
        ("RECIPES -> Cook", "RECIPES -> Cook"),
        ("", ""),
        ("a\r\nSet-Cookie: x -> b", "a Set-Cookie: x -> b"),
        ("\u6599\u7406 -> Koch\u00e4pfel", "?? -> Koch\u00e4pfel"),
        ("a\x00\x7f\x85b", "a b"),
        ("x" * 500, "x" * 200),
    ],
)
def test_the_route_as_a_header(route: str, value: str) -> None:
    assert route_header(route) == value
