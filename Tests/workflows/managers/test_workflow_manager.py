"""Loading and starting workflows: files, folders, messages at the start, nesting."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import ConfigurationError, ConfigValueError, EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.cancellation_service import cancellation_service
from Middleware.workflows.managers.workflow_manager import MAX_NESTING, WorkflowManager, is_blank
from Tests.stub_backend import Reply, StubBackend
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


def test_a_path_finder_takes_the_place_of_the_search(lab: EngineLab, tmp_path: Path) -> None:
    lab.workflow("Helper", [static("helped")])
    lab.workflow("Elsewhere", [child("Beside")], folder="other")
    lab.workflow("Beside", [static("beside")], folder="other")
    outside = tmp_path / "loose.json"
    outside.write_text(json.dumps([child("Helper")]), encoding="utf-8")
    asked: list[str] = []

    def find(name: str) -> str:
        asked.append(name)
        return str(outside if name == "Loose" else lab.root / "Workflows" / "other" / f"{name}.json")

    with request_scope(lab.request):
        assert WorkflowManager("Loose", path_finder_func=find).run_workflow([user("hi")], "r-1") == "helped"
        assert WorkflowManager("Elsewhere", path_finder_func=find).run_workflow([user("hi")], "r-1") == "beside"
        with pytest.raises(FileNotFoundError, match="Workflows/other/Gone.json"):
            WorkflowManager("Gone", path_finder_func=find).run_workflow([user("hi")], "r-1")
    assert asked == ["Loose", "Elsewhere", "Gone"]


def test_routing_variables_as_keyword_arguments(lab: EngineLab) -> None:
    lab.workflow("Main", [static("{category_list[1]} {categoriesSeparatedByOr}")])
    manager = WorkflowManager("Main", category_list=["A", "B"], categoriesSeparatedByOr="A or B")
    with request_scope(lab.request):
        assert manager.run_workflow([user("hi")], "r-1") == "B A or B"
    with pytest.raises(TypeError, match="categoryList"):
        WorkflowManager("Main", categoryList=["A"])


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
    lab.workflow(
        "Start", [child("Neighbour"), child("Both"), static("{agent1Output}, {agent2Output}")], folder="_shared/x"
    )
    lab.workflow("Neighbour", [child("Grandchild")], folder="_shared/x")
    lab.workflow("Grandchild", [static("beside")], folder="_shared/x")
    lab.workflow("Both", [static("beside")], folder="_shared/x")
    lab.workflow("Both", [static("home")])
    assert lab.run_named("Start", workflow_user_folder_override="_shared/x") == "beside, home"


def test_child_is_looked_for_beside_the_file_of_the_caller_last(lab: EngineLab) -> None:
    lab.workflow(
        "sub/P", [child("Q"), child("R"), child("deep/S"), static("{agent1Output}, {agent2Output}, {agent3Output}")]
    )
    for name in ("sub/Q", "R", "sub/R", "sub/deep/S"):
        lab.workflow(name, [static(name)])
    assert lab.run_named("sub/P") == "sub/Q, R, sub/deep/S"
    assert "".join(chunk["token"] for chunk in lab.run_named("sub/P", is_streaming=True)) == "sub/Q, R, sub/deep/S"


def test_child_beside_a_file_in_a_sub_folder_of_another_folder(lab: EngineLab) -> None:
    lab.workflow(
        "sub/P",
        [child("Home"), child("Base"), child("Own"), static("{agent1Output}, {agent2Output}, {agent3Output}")],
        folder="_shared/x",
    )
    for name, places in {
        "Home": ["tester", "_shared/x", "_shared/x/sub"],
        "Base": ["_shared/x", "_shared/x/sub"],
        "Own": ["_shared/x/sub"],
    }.items():
        for folder in places:
            lab.workflow(name, [static(folder)], folder=folder)
    assert lab.run_named("sub/P", workflow_user_folder_override="_shared/x") == "tester, _shared/x, _shared/x/sub"


def test_missing_child_names_every_folder(lab: EngineLab) -> None:
    lab.workflow("sub/P", [child("Gone")], folder="_shared/x")
    with pytest.raises(FileNotFoundError) as caught:
        lab.run_named("sub/P", workflow_user_folder_override="_shared/x")
    tried = ("Workflows/tester/Gone.json", "Workflows/_shared/x/Gone.json", "Workflows/_shared/x/sub/Gone.json")
    assert ", ".join(tried) in str(caught.value)


def test_a_folder_override_of_a_child_is_the_only_folder(lab: EngineLab) -> None:
    lab.workflow("sub/P", [child("Q", workflowUserFolderOverride="_common")])
    lab.workflow("sub/Q", [static("never")])
    with pytest.raises(FileNotFoundError, match="Workflows/_common/Q.json") as caught:
        lab.run_named("sub/P")
    assert "sub/Q.json" not in str(caught.value)


def test_the_check_of_a_workflow_knows_where_children_lie(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("sub/P", [child("Q")])
    lab.workflow("sub/Q", [static("x")])
    lab.run_named("sub/P")
    assert "does not exist" not in caplog.text


# -- messages ----------------------------------------------------------------------------------------------------------


def test_blank_messages_go_and_others_stay(lab: EngineLab) -> None:
    messages = [
        user("hi"),
        assistant(" \n"),
        assistant(""),
        assistant("", tool_calls=CALLS),
        {"role": "tool", "content": "", "tool_call_id": "c1"},
        {"role": "user", "content": "", "images": ["aW1n"]},
        assistant(None),
    ]
    kept = [messages[0], *messages[3:6]]
    lab.workflow("Main", [static("x")])
    WorkflowManager("Main").run_workflow(messages, "r")
    assert messages == kept


@pytest.mark.parametrize(
    ("message", "blank"),
    [
        ({"content": "x"}, False),
        ({"content": "  "}, True),
        ({"content": ""}, True),
        ({}, True),
        ({"content": "", "images": []}, True),
        ({"content": "", "images": ["x"]}, False),
    ],
)
def test_is_blank(message: dict[str, Any], blank: bool) -> None:
    assert is_blank(message) is blank


@pytest.mark.parametrize(
    ("text", "given", "expected", "left"),
    [
        ("x[DiscussionId]d1[/DiscussionId]y", None, "d1", "xy"),
        ("x[DiscussionId]../x[/DiscussionId]y", None, None, "xy"),
        ("x[DiscussionId]d1[/DiscussionId]y", "given", "given", "xy"),
        ("x[DiscussionId]d1[/DiscussionId]y", "", None, "xy"),
        ("xy", None, None, "xy"),
    ],
)
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


@pytest.mark.parametrize("given", [None, "d"])
def test_a_tag_that_a_node_inserts_selects_no_discussion(lab: EngineLab, given: str | None) -> None:
    """A description or a file in the conversation must not lead a child to data of another discussion."""
    lab.workflow("Main", [{"type": "Conditional"}, child("Child")])
    lab.workflow("Child", [static("x")])
    tagging = Probe(lambda context: context.messages.append(user("[DiscussionId]evil[/DiscussionId]note")))
    probe = Probe()
    list(start(lab, probes={"Conditional": tagging, "StaticResponse": probe}, discussion_id=given))
    assert probe.contexts[0].discussion_id == given
    assert probe.contexts[0].messages[-1] == user("note")


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


RECURSION = """
from Middleware.workflows.managers.workflow_manager import WorkflowManager
import uuid

def Invoke(log):
    with open(log, "a") as file:
        file.write("x")
    result = WorkflowManager.run_custom_workflow(
        "Main", REQUEST, None, [{"role": "user", "content": "again"}], is_streaming=STREAM)
    return "".join(chunk["token"] for chunk in result) if STREAM else result
"""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("request_id", ["'r-1'", "str(uuid.uuid4())"])
@pytest.mark.parametrize("in_request", [True, False])
def test_scripts_that_start_their_own_workflow_end_as_well(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, stream: bool, request_id: str, in_request: bool
) -> None:
    code = RECURSION.replace("REQUEST", request_id).replace("STREAM", str(stream))
    (lab.root / "again.py").write_text(code, encoding="utf-8")
    lab.workflow("Main", [child("Middle")])
    lab.workflow(
        "Middle", [{"type": "PythonModule", "module_path": str(lab.root / "again.py"), "args": [str(lab.root / "log")]}]
    )
    with request_scope(lab.request) if in_request else contextlib.nullcontext():
        result = WorkflowManager.run_custom_workflow("Main", "r-1", None, [user("hi")])
    assert result.startswith("Error: ")
    assert (lab.root / "log").read_text(encoding="utf-8") == "x" * 12  # in every second level of 25
    assert "nested more than 25 deep: tester/Main -> tester/Middle -> tester/Main" in caplog.text


def test_runs_beside_each_other_are_not_nested(lab: EngineLab) -> None:
    """A stream that nobody reads on leaves its node behind on the thread, but not for the next request."""
    lab.workflow("Main", [static("a b c")])
    left = []
    for number in range(MAX_NESTING + 5):
        lab.request = RequestContext(request_id=f"r-{number}")
        with request_scope(lab.request):
            left.append(start(lab, stream=True))
            assert next(left[-1])["token"] == "a"


def test_nesting_within_the_limit(lab: EngineLab) -> None:
    for depth in range(24):
        lab.workflow(f"W{depth}", [child(f"W{depth + 1}")])
    lab.workflow("W24", [static("bottom")])
    assert lab.run_named("W0") == "bottom"
    assert "".join(chunk["token"] for chunk in lab.run_named("W0", is_streaming=True)) == "bottom"


# -- without a request of the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_of_its_own_is_cancelled_by_its_id(lab: EngineLab, stream: bool) -> None:
    lab.backend.responder = lambda request: Reply(never=True)
    lab.workflow("Child", [llm("wait")])
    lab.workflow("Main", [child("Child"), llm("never")])
    errors: list[BaseException] = []

    def run() -> None:
        try:
            items = WorkflowManager.run_custom_workflow("Main", "own-1", None, [user("hi")], is_streaming=stream)
            list(items)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    lab.backend.wait_requests(1)
    cancellation_service.request_cancellation("own-1")
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(errors[0], EarlyTerminationException) and errors[0].is_cancellation
    assert lab.prompts == ["wait"]
    assert not cancellation_service.is_cancelled("own-1")  # the next run of that id is not cancelled
    lab.workflow("Main", [static("x")])
    assert WorkflowManager.run_custom_workflow("Main", "own-1", None, [user("hi")]) == "x"


def test_a_run_of_its_own_that_was_cancelled_before(lab: EngineLab) -> None:
    lab.workflow("Main", [static("x")])
    cancellation_service.request_cancellation("own-2")
    with pytest.raises(EarlyTerminationException, match="own-2"):
        WorkflowManager.run_custom_workflow("Main", "own-2", None, [user("hi")])
    assert not cancellation_service.is_cancelled("own-2")


def test_a_missing_workflow_leaves_nothing_of_its_run(lab: EngineLab) -> None:
    with pytest.raises(FileNotFoundError):
        WorkflowManager.run_custom_workflow("Gone", "own-3", None, [user("hi")])
    assert "own-3" not in cancellation_service._entries


def test_missing_child_fails_the_run(lab: EngineLab) -> None:
    lab.workflow("Main", [child("Gone"), llm("never")])
    with pytest.raises(FileNotFoundError, match="Gone"):
        lab.run_named("Main")
    assert lab.backend.requests == []


# -- workflows that the user's file names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("handle_conversation_memory_parser", "conversationMemoryToolWorkflow"),
        ("handle_recent_memory_parser", "recentMemoryToolWorkflow"),
        ("handle_full_chat_summary_parser", "chatSummaryToolWorkflow"),
        ("process_file_memories", "fileMemoryToolWorkflow"),
    ],
)
def test_workflows_of_the_user(lab: EngineLab, entry: str, key: str) -> None:
    run = getattr(WorkflowManager, entry)
    with pytest.raises(ConfigurationError, match=key):
        run("r-1", "d1", [user("hi")])
    lab.workflow("Mine", [static("{Discussion_Id}: {chat_user_prompt_last_one}")])
    lab.user(**{key: "Mine"})
    assert run("r-1", "d1", [user("hi")]) == "d1: hi"
