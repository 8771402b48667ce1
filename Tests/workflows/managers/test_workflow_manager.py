"""Loading and starting workflows: files, folders, messages at the start, nesting."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common.constants import VALID_NODE_TYPES
from Middleware.exceptions import ConfigurationError, ConfigValueError
from Middleware.workflows.managers.workflow_manager import WorkflowManager, build_registry, is_blank
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, Probe, Recorder, assistant, llm, start, static, user

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def child(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "CustomWorkflow", "workflowName": name, **more}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


# -- files -------------------------------------------------------------------------------------------------------------

def test_list_file(lab: EngineLab) -> None:
    lab.write("Workflows/tester/Old", [static("legacy")])
    assert lab.run_named("Old") == "legacy"


@pytest.mark.parametrize("content", [{"a": 1}, {"nodes": []}, []])
def test_file_without_nodes(lab: EngineLab, content: Any) -> None:
    lab.write("Workflows/tester/Empty", content)
    assert lab.run_named("Empty") is None
    assert list(lab.run_named("Empty", is_streaming=True)) == []


def test_file_with_bom_and_umlauts(lab: EngineLab) -> None:
    lab.workflow("Main", [])
    text = json.dumps({"gruß": "schön", "nodes": [static("{gruß}")]}, ensure_ascii=False)
    (lab.root / "Workflows" / "tester" / "Main.json").write_text(text, encoding="utf-8-sig")
    lab.user()
    assert lab.run_named("Main") == "schön"


def test_missing_file_names_every_path_tried(lab: EngineLab) -> None:
    lab.user(workflowConfigsSubDirectoryOverride="coding")
    with pytest.raises(FileNotFoundError) as caught:
        lab.run_named("Gone")
    assert "Workflows/_overrides/coding/Gone.json" in str(caught.value)
    assert "Workflows/coding/Gone.json" in str(caught.value)


def test_malformed_file(lab: EngineLab) -> None:
    lab.workflow("Main", [])
    (lab.root / "Workflows" / "tester" / "Main.json").write_text('{"nodes": [\n  {"a" 1}]}', encoding="utf-8")
    lab.user()
    with pytest.raises(json.JSONDecodeError, match=r"Workflows/tester/Main.json, line 2"):
        lab.run_named("Main")


@pytest.mark.parametrize("name", ["../Users/tester", "/etc/passwd", "a/../../b", "C:/x"])
def test_names_stay_inside(lab: EngineLab, name: str) -> None:
    with pytest.raises(ConfigurationError):
        lab.run_named(name)


def test_folders(lab: EngineLab) -> None:
    lab.workflow("A", [static("mine")])
    lab.workflow("A", [static("common")], folder="_common")
    lab.workflow("sub/A", [static("deep")])
    assert lab.run_named("A") == "mine"
    assert lab.run_named("A", workflow_user_folder_override="_common") == "common"
    assert lab.run_named("sub/A") == "deep"
    with pytest.raises(FileNotFoundError):
        lab.run_named("sub/A", workflow_user_folder_override="_common")


def test_overrides_folder_wins_per_file(lab: EngineLab) -> None:
    lab.user(workflowConfigsSubDirectoryOverride="coding")
    lab.workflow("A", [static("new A")], folder="_overrides/coding")
    lab.workflow("A", [static("old A")], folder="coding")
    lab.workflow("B", [static("old B")], folder="coding")
    assert (lab.run_named("A"), lab.run_named("B")) == ("new A", "old B")


def test_child_is_looked_for_at_home_then_beside_the_caller(lab: EngineLab) -> None:
    lab.workflow("Start", [child("Neighbour"), child("Both"), static("{agent1Output}, {agent2Output}")],
                 folder="_shared/x")
    lab.workflow("Neighbour", [child("Grandchild")], folder="_shared/x")
    lab.workflow("Grandchild", [static("beside")], folder="_shared/x")
    lab.workflow("Both", [static("beside")], folder="_shared/x")
    lab.workflow("Both", [static("home")])
    assert lab.run_named("Start", workflow_user_folder_override="_shared/x") == "beside, home"


# -- messages ----------------------------------------------------------------------------------------------------------

def test_blank_messages_go_and_others_stay(lab: EngineLab) -> None:
    messages = [
        user("hi"), assistant(" \n"), assistant(""), assistant("", tool_calls=CALLS),
        {"role": "tool", "content": "", "tool_call_id": "c1"}, {"role": "user", "content": "", "images": ["aW1n"]},
        assistant(None)]
    kept = [messages[0], *messages[3:6]]
    lab.workflow("Main", [static("x")])
    WorkflowManager("Main").run_workflow(messages, "r")
    assert messages == kept


@pytest.mark.parametrize(("message", "blank"), [
    ({"content": "x"}, False), ({"content": "  "}, True), ({"content": ""}, True), ({}, True),
    ({"content": "", "images": []}, True), ({"content": "", "images": ["x"]}, False)])
def test_is_blank(message: dict[str, Any], blank: bool) -> None:
    assert is_blank(message) is blank


@pytest.mark.parametrize(("text", "given", "expected", "left"), [
    ("x[DiscussionId]d1[/DiscussionId]y", None, "d1", "xy"),
    ("x[DiscussionId]../x[/DiscussionId]y", None, None, "xy"),
    ("x[DiscussionId]d1[/DiscussionId]y", "given", "given", "xy"),
    ("x[DiscussionId]d1[/DiscussionId]y", "", None, "xy"),
    ("xy", None, None, "xy"),
])
def test_discussion_id(lab: EngineLab, text: str, given: str | None, expected: str | None, left: str) -> None:
    probe = Probe()
    lab.workflow("Main", [static("x")])
    list(start(lab, "Main", user(text), probes={"StaticResponse": probe}, discussion_id=given))
    assert probe.contexts[0].discussion_id == expected
    assert probe.contexts[0].messages == [user(left)]


def test_children_share_the_conversation(lab: EngineLab) -> None:
    lab.workflow("Child", [static("x")])
    lab.workflow("Main", [child("Child"), {"type": "Conditional"}])
    probe = Probe(lambda context: context.messages.append(user("from child")))
    after = Probe()
    list(start(lab, probes={"StaticResponse": probe, "Conditional": after}, discussion_id="d"))
    assert probe.contexts[0].messages is after.contexts[0].messages
    assert probe.contexts[0].discussion_id == "d"
    assert after.contexts[0].messages[-1] == user("from child")


# -- runs --------------------------------------------------------------------------------------------------------------

def test_every_run_has_its_own_id(lab: EngineLab) -> None:
    recorder = Recorder()
    lab.workflow("Child", [static("x")])
    lab.workflow("Main", [child("Child"), child("Child")])
    list(start(lab, listener=recorder))
    list(start(lab, listener=recorder))
    assert len(set(recorder.workflow_ids)) == len(recorder.workflow_ids) == 6


def test_endless_nesting_ends_with_the_chain(lab: EngineLab) -> None:
    lab.workflow("Main", [child("Main")])
    with pytest.raises(ConfigValueError, match="nested more than 25 deep.*tester/Main -> tester/Main"):
        lab.run_named("Main")


def test_nesting_within_the_limit(lab: EngineLab) -> None:
    for depth in range(24):
        lab.workflow(f"W{depth}", [child(f"W{depth + 1}")])
    lab.workflow("W24", [static("bottom")])
    assert lab.run_named("W0") == "bottom"
    assert "".join(chunk["token"] for chunk in lab.run_named("W0", is_streaming=True)) == "bottom"


def test_missing_child_fails_the_run(lab: EngineLab) -> None:
    lab.workflow("Main", [child("Gone"), llm("never")])
    with pytest.raises(FileNotFoundError, match="Gone"):
        lab.run_named("Main")
    assert lab.backend.requests == []


def test_registry() -> None:
    registry = build_registry()
    assert set(registry) <= set(VALID_NODE_TYPES)
    assert {"Standard", "CustomWorkflow", "ConditionalCustomWorkflow", "StaticResponse", "Conditional",
            "StringConcatenator"} <= set(registry)
    assert all(node_type in handler.KEYS for node_type, handler in registry.items())
