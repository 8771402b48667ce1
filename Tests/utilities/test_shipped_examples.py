"""What the shipped users are offered beside their own set-up: other routes, and texts that workflows read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PUBLIC = Path(__file__).resolve().parents[2] / "Public"
CONFIGS = PUBLIC / "Configs"
OPTIONAL = {"about-you.md"}


def load(name: str) -> Any:
    return json.loads((CONFIGS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["_defaultCategoriesConfig", "_exampleCustomCategoriesConfig"])
def test_the_router_has_a_workflow_for_every_route_of_both_routing_files(name: str) -> None:
    routes = {category: route for category, route in load(f"Routing/{name}.json").items() if category != "$schema"}
    assert {"WIKI", "GENERAL"} <= set(routes)
    for route in routes.values():
        assert (CONFIGS / "Workflows" / "_simple_router_no_memory" / f"{route['workflow']}.json").is_file()


@pytest.mark.parametrize("user", ["_example_assistant_with_vector_memory", "_example_game_bot_with_file_memory"])
def test_the_texts_that_a_user_names_are_shipped(user: str) -> None:
    paths = [Path(path) for path in load(f"Users/{user}.json")["userWideWorkflowVariables"].values()]
    assert len(paths) >= 2
    for path in paths:
        assert path.parts[:2] == ("WorkflowFiles", user)
        assert (PUBLIC / path).is_file() is (path.name not in OPTIONAL)
    readme = (PUBLIC / "WorkflowFiles" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{user}/{path.name}`" in readme for path in paths)
