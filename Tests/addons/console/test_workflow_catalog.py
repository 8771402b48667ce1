"""The workflows as they are connected, of the shipped configuration and of a small one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from Middleware.addons.console.workflow_catalog import Child, WorkflowCatalog, WorkflowSummary, WorkflowUse
from Middleware.common import instance_global_variables as instance
from Tests.llmapis.lab import Lab

CONFIGS = Path(__file__).resolve().parents[3] / "Public" / "Configs"
USERS = sorted(file.stem for file in (CONFIGS / "Users").glob("*.json"))


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, WorkflowSummary]:
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(CONFIGS))
    monkeypatch.setattr(instance, "USERS", USERS)
    return {listed.path: listed for listed in WorkflowCatalog().workflows()}


def test_every_shipped_workflow_is_there_as_it_is(shipped: dict[str, WorkflowSummary]) -> None:
    files = {
        file.relative_to(CONFIGS).as_posix(): json.loads(file.read_text("utf-8"))
        for file in (CONFIGS / "Workflows").rglob("*.json")
        if not file.name.endswith(".test.json")
    }
    workflows = {path: content for path, content in files.items() if "nodes" in content}
    assert workflows.keys() <= shipped.keys() <= files.keys()
    for path, content in workflows.items():
        assert shipped[path].nodes == len(content["nodes"]) and not shipped[path].problem


def test_each_line_is_that_of_its_node(shipped: dict[str, WorkflowSummary]) -> None:
    catalog = WorkflowCatalog()
    for path, listed in shipped.items():
        found = catalog.workflow(path.removeprefix("Workflows/").removesuffix(".json"))
        assert found is not None and found.summary == listed and len(found.nodes) == listed.nodes
        lines = (CONFIGS / path).read_text("utf-8").splitlines()
        nodes = json.loads("\n".join(lines)).get("nodes", [])
        for node, written in zip(found.nodes, nodes, strict=True):
            assert node.line is not None
            # The node is what can be read from there.
            rest = "\n".join(lines[node.line - 1 :])
            assert json.JSONDecoder().raw_decode(rest[rest.index("{") :])[0] == written


def test_what_leads_to_the_workflows_of_the_demo(shipped: dict[str, WorkflowSummary]) -> None:
    coding, general = shipped["Workflows/demo/Coding.json"], shipped["Workflows/demo/General.json"]
    assert coding.users == general.users == ["demo"] and coding.endpoints == ["Demo-LLM"]
    assert WorkflowUse("category", "CODING", "Routing/demo.json") in coding.used_by
    assert (
        WorkflowUse("workflow", "demo/_DefaultWorkflow", "Workflows/demo/_DefaultWorkflow.json", 1) in general.used_by
    )
    assert shipped["Workflows/demo/_DefaultWorkflow.json"].children == ["Workflows/demo/General.json"]
    assert WorkflowUse("default", "demo") in shipped["Workflows/demo/_DefaultWorkflow.json"].used_by


def test_users_see_their_own(shipped: dict[str, WorkflowSummary]) -> None:
    listed = WorkflowCatalog(["demo", "nobody"]).workflows()
    assert {one.path for one in listed} == {path for path, one in shipped.items() if "demo" in one.users}
    assert WorkflowCatalog(["demo"]).workflow("chat-ui/_DefaultWorkflow") is None
    assert WorkflowCatalog().workflow("demo/Nothing") is None


def test_settings_of_a_user_who_is_not_served_are_no_workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = json.loads(
        (
            CONFIGS
            / "Workflows"
            / "_example_game_bot_with_file_memory"
            / "_DiscussionId-MemoryFile-Workflow-Settings.json"
        ).read_text("utf-8")
    )
    for path, content in {
        "Users/ann": {},
        "Users/bob": {"discussionIdMemoryFileWorkflowSettings": "_Memory"},
        "Workflows/bob/_Memory": settings,
        "Workflows/bob/Empty": {"nodes": []},
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{path}.json").write_text(json.dumps(content), "utf-8")
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(instance, "USERS", ["ann"])
    assert [one.path for one in WorkflowCatalog().workflows()] == ["Workflows/bob/Empty.json"]


def test_a_small_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    lab.write("Endpoints/lab/Main", {})
    lab.write(
        "Workflows/tester/Main",
        {
            "said": "{agent1Output}!",
            "nodes": [
                {"title": "One", "type": "Standard", "endpointName": "Main", "preset": "Fast", "prompt": "a"},
                {
                    "title": "Two",
                    "type": "CustomWorkflow",
                    "workflowName": "Part",
                    "scoped_variables": ["{agent1Output}"],
                },
                {
                    "agentName": "Three",
                    "type": "Standard",
                    "endpointName": "Main",
                    "returnToUser": True,
                    "prompt": "{agent2Output} {said} {agent9Output}",
                    "endpointNam": "x",
                },
                {"type": "StaticResponse", "content": "{agent3Output}"},
            ],
        },
    )
    lab.write("Workflows/tester/Part", {"nodes": [{"type": "StaticResponse", "content": "x"}]})
    lab.write("Workflows/tester/Broken", {"nodes": 1})
    lab.write("Workflows/tester/_DefaultWorkflow", {"nodes": [{"type": "CustomWorkflow", "workflowName": "Main"}]})
    found = WorkflowCatalog().workflow("tester/Main")
    assert found is not None
    one, two, three, four = found.nodes
    assert (one.title, one.type, one.endpoints, one.preset, one.uses) == ("One", "Standard", ["Main"], "Fast", [])
    assert two.children == [Child("Part", "Workflows/tester/Part.json")] and two.uses == [1]
    assert (three.title, three.responder, three.uses) == ("Three", True, [1, 2])
    assert (four.after_answer, four.uses) == (True, [3])
    assert any("endpointNam" in finding.text for finding in three.findings)
    assert any(finding.severity == "error" and finding.line for finding in three.findings)
    broken = WorkflowCatalog().workflow("tester/Broken")
    assert broken is not None and broken.summary.problem and not broken.nodes
