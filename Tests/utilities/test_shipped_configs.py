"""The shipped configuration: every file parses, and every name that a shipped file mentions exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2] / "Public" / "Configs"
FILES = sorted(ROOT.rglob("*.json"))
USERS = sorted(path for path in (ROOT / "Users").glob("*.json") if not path.name.startswith("_"))
FIRST_NODE_TYPES = {
    *("Standard", "StaticResponse", "Conditional", "StringConcatenator", "CustomWorkflow", "ConditionalCustomWorkflow"),
}


def load(path: Path) -> Any:
    """Reads strict JSON: no repeated keys, no NaN."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(items) == len(dict(items)), f"{path}: repeated key"
        return dict(items)

    def constant(name: str) -> Any:
        raise AssertionError(f"{path}: {name}")

    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=pairs, parse_constant=constant)


def has(path: Path) -> bool:
    """Whether the file exists in exactly this spelling, which Windows and macOS would not tell."""
    return path.parent.is_dir() and path.name in {entry.name for entry in path.parent.iterdir()}


def identify(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_every_file_is_a_json_object(path: Path) -> None:
    assert isinstance(load(path), dict)


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_every_file_is_written_the_same_way(path: Path) -> None:
    """UTF-8, two spaces, a line feed at the end; a short list may stand on one line."""
    text = path.read_bytes().decode("utf-8")
    assert text.endswith("}\n") and not text.endswith("\n\n")
    assert "\r" not in text and "\t" not in text and not text.startswith("\ufeff")
    levels = [len(line) - len(line.lstrip(" ")) for line in text.splitlines()]
    assert all(level % 2 == 0 for level in levels)
    assert levels.count(0) == 2, "the outer braces stand alone on their lines"


def test_the_active_user_exists() -> None:
    assert has(ROOT / "Users" / f"{load(ROOT / 'Users' / '_current-user.json')['currentUser']}.json")


class User:
    """A shipped user with the folders that its names are looked up in."""

    def __init__(self, path: Path) -> None:
        self.data = load(path)
        self.workflows = ROOT / "Workflows" / (self.data.get("workflowConfigsSubDirectoryOverride") or path.stem)
        self.endpoints = ROOT / "Endpoints" / (self.data.get("endpointConfigsSubDirectory") or "")
        self.presets = self.data.get("presetConfigsSubDirectoryOverride") or path.stem

    def preset_exists(self, endpoint: dict[str, Any], name: str) -> bool:
        donor = self.endpoints / f"{name}.json"
        if has(donor) and load(donor).get("presetSamplers"):
            return True
        folder = ROOT / "Presets" / load(ROOT / "ApiTypes" / f"{endpoint['apiTypeConfigFileName']}.json")["presetType"]
        return has(folder / self.presets / f"{name}.json") or has(folder / f"{name}.json")

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path in sorted(self.workflows.glob("*.json")):
            for node in load(path)["nodes"]:
                yield path.stem, node


@pytest.fixture(params=USERS, ids=identify)
def user(request: pytest.FixtureRequest) -> User:
    return User(request.param)


def test_a_user_routes_to_workflows_that_exist(user: User) -> None:
    routing = load(ROOT / "Routing" / f"{user.data['routingConfig']}.json")
    assert len(routing) >= 3
    for category, route in routing.items():
        assert re.fullmatch(r"[A-Z]+", category)
        assert route["description"]
        assert has(user.workflows / f"{route['workflow']}.json")
    assert has(user.workflows / f"{user.data['categorizationWorkflow']}.json")
    assert has(user.workflows / f"{user.data['backgroundTaskWorkflow']}.json")
    assert has(user.workflows / "_DefaultWorkflow.json")
    assert has(ROOT / "PromptTemplates" / f"{user.data['chatPromptTemplateName']}.json")


def test_nodes_name_what_exists(user: User) -> None:
    seen = 0
    for workflow, node in user.nodes():
        seen += 1
        where = f"{workflow}: {node['title']}"
        assert node["type"] in FIRST_NODE_TYPES, where
        if node["type"] == "Standard":
            endpoint = user.endpoints / f"{node['endpointName']}.json"
            assert has(endpoint), where
            assert user.preset_exists(load(endpoint), node["preset"]), where
        children = [*node.get("conditionalWorkflows", {}).values(), *filter(None, [node.get("workflowName")])]
        folder = node.get("workflowUserFolderOverride")
        for child in children:
            assert has((ROOT / "Workflows" / folder if folder else user.workflows) / f"{child}.json"), where
    assert seen


def test_every_route_has_one_responder_and_one_route_has_three_nodes(user: User) -> None:
    counts = {}
    for route in load(ROOT / "Routing" / f"{user.data['routingConfig']}.json").values():
        nodes = load(user.workflows / f"{route['workflow']}.json")["nodes"]
        counts[route["workflow"]] = len(nodes)
        assert [bool(node.get("returnToUser")) for node in nodes] == [False] * (len(nodes) - 1) + [True]
    assert max(counts.values()) >= 3


def test_prompts_use_only_known_variables(user: User) -> None:
    known = {"category_colon_descriptions_newline_bulletpoint", "chat_system_prompt", "chat_user_prompt_last_three"}
    known |= {"chat_user_prompt_last_five", "current_day_of_week", "todays_date_pretty"}
    for path in sorted(user.workflows.glob("*.json")):
        for index, node in enumerate(load(path)["nodes"]):
            outputs = {f"agent{number}Output" for number in range(1, index + 1)}
            used = set(re.findall(r"\{(\w*)", node.get("systemPrompt", "") + node.get("prompt", "")))
            assert used <= known | outputs, f"{path.stem}: {node['title']}"
