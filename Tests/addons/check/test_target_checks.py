"""What nodes name: endpoints, presets, workflows, files."""

from __future__ import annotations

from typing import Any

import pytest

from Middleware.addons.check.workflow_check import check_workflow
from Tests.addons.check.checking import FakeLookups, brief, check, llm, only, static, workflow

CHILD = {"type": "CustomWorkflow", "workflowName": "C"}
RAG = {"type": "SlowButQualityRAG", "ragTarget": "x", "ragType": "y"}


@pytest.mark.parametrize("type_name", ["Standard", "ImageProcessor"])
def test_a_node_that_needs_an_endpoint(type_name: str) -> None:
    found = only(check({"type": type_name, "preset": "P"}))
    assert (found.severity, found.json_path) == ("error", "nodes[0]")
    assert "names no endpoint" in found.message


@pytest.mark.parametrize(
    "node",
    [
        llm(endpointName="missing"),
        static(endpointName="missing"),
        {**CHILD, "endpointName": "missing"},
        {
            "type": "ConditionalCustomWorkflow",
            "conditionalKey": "x",
            "conditionalWorkflows": {"x": "C"},
            "endpointName": "missing",
        },
    ],
)
def test_missing_endpoint(node: dict[str, Any]) -> None:
    found = only(check({**node, "preset": "P"}))
    assert (found.severity, found.json_path, found.suggestion) == ("error", "nodes[0].endpointName", "near")


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"preset": "missing"}, "nodes[0].preset"),
        ({"presetName": "missing"}, "nodes[0].presetName"),
        ({"preset": "missing", "presetName": "good"}, "nodes[0].preset"),
    ],
)
def test_missing_preset(keys: dict[str, Any], path: str) -> None:
    assert brief(check(llm(**keys))) == [("error", path)]


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"preset": "P"}, [("endpoint", "Main"), ("preset", "P", "Main")]),
        ({"preset": ""}, [("endpoint", "Main"), ("preset", None, "Main")]),
        ({"preset": None, "presetName": "Q"}, [("endpoint", "Main"), ("preset", None, "Main")]),
        ({"preset": "{p}"}, [("endpoint", "Main")]),
        ({"endpointName": "{e}", "preset": "P"}, []),
    ],
)
def test_what_is_looked_up(keys: dict[str, Any], asked: list[tuple[Any, ...]]) -> None:
    lookups = FakeLookups()
    assert check(llm(**keys), lookups=lookups, p="x", e="x") == []
    assert lookups.asked == asked


def test_preset_without_endpoint() -> None:
    assert brief(check(static(preset="P"))) == [("note", "nodes[0].preset")]


def test_endpoints_of_several_models() -> None:
    models = [{"endpointName": "Main"}, {"endpointName": "missing"}, {"endpointName": "{e}"}, {}]
    lookups = FakeLookups()
    registered = {**RAG, "multiModelList": models, "preset": "P"}
    found = check_workflow(workflow([registered], {"e": "x"}), lookups)
    assert brief(found) == [
        ("error", "nodes[0].multiModelList[1].endpointName"),
        ("error", "nodes[0].multiModelList[3]"),
    ]
    assert ("preset", "P", "Main") in lookups.asked


# -- children ----------------------------------------------------------------------------------------------------------


def test_missing_child() -> None:
    found = only(check({**CHILD, "workflowName": "missing"}))
    assert (found.severity, found.json_path, found.suggestion) == ("error", "nodes[0].workflowName", "near")


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({}, [("workflow", "C", None, "home")]),
        ({"workflowUserFolderOverride": "_common"}, [("workflow", "C", "_common", "home")]),
        ({"workflowUserFolderOverride": ""}, [("workflow", "C", None, "home")]),
        ({"workflowUserFolderOverride": "{f}"}, []),
        ({"workflowName": "{f}"}, []),
        (
            {"endpointName": "Main", "preset": "P"},
            [("endpoint", "Main"), ("preset", "P", "Main"), ("workflow", "C", None, "home")],
        ),
    ],
)
def test_where_children_are_looked_for(keys: dict[str, Any], asked: list[tuple[Any, ...]]) -> None:
    lookups = FakeLookups()
    check({**CHILD, **keys}, lookups=lookups)
    assert lookups.asked == asked


@pytest.mark.parametrize(
    ("table", "content", "paths"),
    [
        ({"A": "missing", "B": "C"}, None, ["nodes[0].conditionalWorkflows.A"]),
        ({"A": "C", "Default": "missing"}, None, ["nodes[0].conditionalWorkflows.Default"]),
        ({"A": "C", "Default": "missing"}, "", []),
        ({"A": ""}, None, []),
        ({"two words": "missing"}, None, ['nodes[0].conditionalWorkflows["two words"]']),
    ],
)
def test_children_by_value(table: dict[str, str], content: str | None, paths: list[str]) -> None:
    node = {
        "type": "ConditionalCustomWorkflow",
        "conditionalKey": "{agent1Input}",
        "conditionalWorkflows": table,
        "UseDefaultContentInsteadOfWorkflow": content,
    }
    assert brief(check(node)) == [("error", path) for path in paths]


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "path"),
    [
        (llm(structuredOutputFile="missing"), "nodes[0].structuredOutputFile"),
        ({"type": "PythonModule", "module_path": "missing.py"}, "nodes[0].module_path"),
        (static(server="missing"), None),
        ({"type": "PythonModule", "module_path": "missing/{Discussion_Id}.py"}, None),
        ({"type": "GetCustomFile", "filepath": "missing.txt"}, None),
    ],
)
def test_files(node: dict[str, Any], path: str | None) -> None:
    assert brief(check(node)) == ([("error", path)] if path else [])


# -- nodes among each other --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "places"),
    [
        ([llm("x", allowTools=True)], []),
        ([static(), llm("x", allowTools="true")], []),
        ([llm("x", allowTools=True), static()], ["nodes[0].allowTools"]),
        ([llm("x", allowTools=True, returnToUser=True), static()], []),
        ([static(returnToUser="true"), llm("x", allowTools="True")], ["nodes[1].allowTools"]),
        ([llm("x", allowTools=False), llm("x", allowTools="false"), llm("x", allowTools=None), static()], []),
        ([llm("x", allowTools=True, is_responder=False), static(is_responder=False)], ["nodes[0].allowTools"]),
    ],
)
def test_tools_on_a_node_that_does_not_answer(nodes: list[dict[str, Any]], places: list[str]) -> None:
    found = check(*nodes)
    assert brief(found) == [("warning", place) for place in places]
    assert all("tool" in finding.message for finding in found)


def test_several_responders() -> None:
    nodes = [
        static(),
        static(returnToUser=True),
        static(is_responder=True),
        static(returnToUser="true"),
        static(is_responder=False, returnToUser=True),
    ]
    found = only(check(*nodes))
    assert (found.severity, found.json_path) == ("warning", "nodes[2]")
    assert "node 2 does" in found.message
    assert "3, 4" in found.message


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("First", ""),
        (1, ""),
        (3, "not an earlier one"),
        ("Third", "not an earlier one"),
        (2, "not an earlier one"),
        (4, "names no node"),
        (0, "names no node"),
        (True, "names no node"),
        (None, "names no node"),
        (-1, "names no node"),
    ],
)
def test_depends_on(entry: Any, message: str) -> None:
    found = check(static(title="First"), static(dependsOn=[entry]), static(agentName="Third"), parallelNodes=True)
    assert [message in finding.message for finding in found] == ([True] if message else [])
    assert all(brief(found)[0] == ("warning", "nodes[1].dependsOn[0]") for _ in found)


def test_depends_on_suggests_a_title() -> None:
    assert only(check(static(title="Load notes"), static(dependsOn=["load note"]))).suggestion == "Load notes"


def test_parallel_nodes_is_nothing_to_look_at() -> None:
    assert check(static(), static("{agent1Output}"), parallelNodes=True) == []


def test_no_nodes() -> None:
    assert brief(check()) == [("warning", "nodes")]
    found = only(check(Nodes=[]))
    assert (found.severity, found.json_path, found.suggestion) == ("error", "Nodes", "nodes")


@pytest.mark.parametrize(
    ("node", "key"),
    [
        ({"type": "GetCustomFile", "filepath": "outside/x"}, "filepath"),
        ({"type": "SaveCustomFile", "filepath": "outside/x", "content": "x"}, "filepath"),
        (
            {"type": "ConversationChunkProcessor", "id": "a", "workflowName": "C", "cursorDirectory": "outside"},
            "cursorDirectory",
        ),
        (
            {
                "type": "ConversationChunkProcessor",
                "id": "a",
                "workflowName": "C",
                "cursorDirectory": "in",
                "returnFile": "outside/{Discussion_Id}",
            },
            "returnFile",
        ),
        ({"type": "GetCustomFile", "filepath": "in/x"}, None),
    ],
)
def test_paths_outside_of_the_allowed_directories(node: dict[str, Any], key: str | None) -> None:
    found = [(severity, path) for severity, path in brief(check(node)) if path.endswith(key or "filepath")]
    assert found == ([("error", f"nodes[0].{key}")] if key else [])
