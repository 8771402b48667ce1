"""When runs stamp messages and note the time of an answer, over real files and a scripted LLM."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.timestamp_service import PLACEHOLDER
from Middleware.utilities.discussion_state import SHORT
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import Reply, StubBackend
from Tests.workflows.engine_lab import EngineLab, Message, assistant, llm, reply_to, static, user

TAG = "[DiscussionId]k1[/DiscussionId]"
STAMP = r"\(\w+day, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\)"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    with StubBackend() as backend:
        lab = EngineLab(tmp_path / "Configs", monkeypatch, backend)
        backend.responder = lambda request: reply_to(request, "hello {you}")
        yield lab


def stamped(**more: Any) -> dict[str, Any]:
    return llm("", addDiscussionIdTimestampsForLLM=True, lastMessagesToSendInsteadOfPrompt=9, **more)


def turn(lab: EngineLab, nodes: list[dict[str, Any]], *messages: Message, stream: bool = False, **request: Any) -> str:
    """One request of its own; the answer."""
    lab.request = RequestContext(request_id="r-1", **request)
    conversation = [
        user(TAG + escape_braces(messages[0]["content"])),
        *({**message, "content": escape_braces(message["content"])} for message in messages[1:]),
    ]
    return lab.streamed(nodes, *conversation) if stream else str(lab.run(nodes, *conversation))


def times(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "D" / "k1" / "timestamps.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def h(text: str) -> str:
    return hash_content(escape_braces(text))


def sent(lab: EngineLab) -> list[str]:
    return [message["content"] for message in lab.backend.requests[-1].json["messages"]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_gets_its_time_when_it_comes_back(lab: EngineLab, tmp_path: Path, stream: bool) -> None:
    assert turn(lab, [stamped()], user("a"), stream=stream) == "hello {you}"
    noted = times(tmp_path)
    assert set(noted) == {h("a"), PLACEHOLDER}
    turn(lab, [stamped()], user("a"), assistant("hello {you}"), user("b"), stream=stream)
    assert times(tmp_path)[h("hello {you}")] == noted[PLACEHOLDER]
    assert set(times(tmp_path)) == {h("a"), h("hello {you}"), h("b"), PLACEHOLDER}


def test_a_cancelled_request_waits_for_no_other(lab: EngineLab, tmp_path: Path) -> None:
    scope, left = CancelScope(), threading.Event()

    def ask() -> None:
        with pytest.raises(EarlyTerminationException):
            turn(lab, [stamped()], user("a"), cancel_scope=scope)
        left.set()

    thread = threading.Thread(target=ask, daemon=True)
    with DiscussionFolder("k1").lock(SHORT):
        thread.start()
        assert not left.wait(0.3)
        scope.cancel("gone")
        assert left.wait(60)
    thread.join(60)
    assert times(tmp_path) == {} and not lab.backend.requests


@pytest.mark.parametrize("stream", [False, True])
def test_group_chats_commit_at_once(lab: EngineLab, tmp_path: Path, stream: bool) -> None:
    answer = turn(lab, [stamped(useGroupChatTimestampLogic=True)], user("a"), assistant("Emil:"), stream=stream)
    assert answer == "Emil: hello {you}"
    assert set(times(tmp_path)) == {h("a"), h("Emil: hello {you}")}


def test_the_committed_time_is_there_before_the_client_hears_the_end(lab: EngineLab, tmp_path: Path) -> None:
    seen: list[bool] = []
    lab.workflow("Main", [stamped(useGroupChatTimestampLogic=True, returnToUser=True), static("later")])
    with request_scope(RequestContext()):
        for chunk in WorkflowManager.run_custom_workflow("Main", "r", None, [user(TAG + "a")], is_streaming=True):
            if chunk.get("end"):
                seen.append(h("hello {you}") in times(tmp_path))
    assert seen == [True]


@pytest.mark.parametrize(
    ("api_type", "text"), [("openaichatcompletion", "Assistant: hello {you}"), ("openaicompletion", "hello {you}")]
)
def test_the_prefix_of_the_route_belongs_to_the_hash(lab: EngineLab, tmp_path: Path, api_type: str, text: str) -> None:
    lab.user(chatCompleteAddUserAssistant=True)
    turn(lab, [stamped(useGroupChatTimestampLogic=True)], user("User: a"), api_type=api_type)
    assert h(text) in times(tmp_path)


def test_models_see_stamps_and_memories_do_not(lab: EngineLab) -> None:
    turn(lab, [stamped(), llm("", lastMessagesToSendInsteadOfPrompt=9)], user("a {x}"), assistant("b"), user("c"))
    first, second = ([m["content"] for m in request.json["messages"]] for request in lab.backend.requests)
    assert [text.rpartition(") ")[2] for text in first] == ["a {x}", "b", "c"] == second
    assert all(text.startswith("(") for text in first)


def test_relative_stamps(lab: EngineLab) -> None:
    turn(lab, [stamped(useRelativeTimestamps=True)], user("a"))
    assert sent(lab) == ["[Sent less than a minute ago] a"]


def test_without_a_discussion_or_flag_there_are_no_files(lab: EngineLab, tmp_path: Path) -> None:
    lab.run([stamped()], user("a"))
    turn(lab, [llm("", lastMessagesToSendInsteadOfPrompt=9)], user("a"))
    assert sent(lab) == ["a"] and not (tmp_path / "D").exists()


def test_a_node_that_does_not_answer_notes_nothing(lab: EngineLab, tmp_path: Path) -> None:
    turn(lab, [stamped(), static("x")], user("a"))
    assert set(times(tmp_path)) == {h("a")}


def test_children_that_answer_nobody_stamp_nothing(lab: EngineLab, tmp_path: Path) -> None:
    lab.workflow("Child", [stamped()])
    turn(lab, [{"type": "CustomWorkflow", "workflowName": "Child"}, static("x")], user("a"))
    assert sent(lab) == ["a"] and set(times(tmp_path)) == {h("a")}  # but it is the first with such a node


@pytest.mark.parametrize("stream", [False, True])
def test_a_child_that_answers_notes_the_time_once(lab: EngineLab, tmp_path: Path, stream: bool) -> None:
    lab.workflow("Child", [stamped(useGroupChatTimestampLogic=True)])
    nodes = [
        {
            "type": "CustomWorkflow",
            "workflowName": "Child",
            "addDiscussionIdTimestampsForLLM": True,
            "useGroupChatTimestampLogic": True,
        }
    ]
    turn(lab, nodes, user("a"), stream=stream)
    assert set(times(tmp_path)) == {h("a"), h("hello {you}")}
    assert sent(lab)[0].count("(") == 1  # the child stamps the plain conversation, not its parent's copy


def test_history_is_resolved_once_in_a_request(lab: EngineLab, tmp_path: Path) -> None:
    """A later child would take the note of the answer that is being made for one of the last answer."""
    turn(lab, [stamped()], user("a"))
    lab.workflow("Child", [stamped()])
    nodes = [stamped(returnToUser=True), {"type": "CustomWorkflow", "workflowName": "Child"}]
    turn(lab, nodes, user("a"), assistant("hello {you}"), user("b"))
    assert PLACEHOLDER in times(tmp_path)


def test_a_part_of_a_conversation_resolves_nothing(lab: EngineLab, tmp_path: Path) -> None:
    lab.workflow("Child", [stamped()])
    chunks = {
        "type": "ConversationChunkProcessor",
        "id": "c",
        "workflowName": "Child",
        "chunkSize": 1,
        "lookbackMessages": 1,
        "cursorDirectory": str(tmp_path / "cursors"),
    }
    turn(lab, [chunks, static("x")], user("a"), assistant("b"), user("c"))
    assert len(lab.backend.requests) == 2 and times(tmp_path) == {}


def test_time_context(lab: EngineLab) -> None:
    assert turn(lab, [static("<{time_context_summary}>")], user("a")) == "<>"
    turn(lab, [stamped()], user("a"))
    assert turn(lab, [static("{time_context_summary}")], user("a")) == (
        "[Time Context: The conversation started less than a minute ago.]"
    )


def test_an_answer_of_a_tool_call_commits_nothing(lab: EngineLab, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    lab.backend.responder = lambda request: Reply(
        body={"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    )
    lab.request = RequestContext()
    lab.workflow("Main", [stamped(useGroupChatTimestampLogic=True, allowTools=True)])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    result = lab.run_named("Main", user(TAG + "a"), tools=tools)
    assert result["tool_calls"][0]["function"]["name"] == "f"
    assert set(times(tmp_path)) == {h("a")}


def test_keys_have_times_of_their_own(lab: EngineLab, tmp_path: Path) -> None:
    lab.user(encryptUsingApiKey=True)
    lab.run([stamped()], user(TAG + "a"), api_key="secretkey")
    path = tmp_path / "D" / "ad165b11320bc915" / "k1" / "timestamps.json"
    assert path.read_bytes().startswith(b"gAAAA") and times(tmp_path) == {}
