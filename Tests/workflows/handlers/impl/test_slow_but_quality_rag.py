"""The SlowButQualityRAG node against a real HTTP back-end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendStatusError, EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.workflows.handlers.impl.tool_node_handler import SlowButQualityRAGHandler
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.stub_backend import Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import EngineLab, Probe, static, user

NONE = "No preceding memories to show"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def rag(target: Any = "x--ChunkBreak--y", **more: Any) -> dict[str, Any]:
    return {
        "type": "SlowButQualityRAG",
        "ragType": "CurrentConversation",
        "ragTarget": target,
        "endpointName": "Main",
        "prompt": "[TextChunk]",
        **more,
    }


def run(
    lab: EngineLab,
    *nodes: dict[str, Any],
    discussion_id: str | None = "k1",
    stream: bool = False,
    probe: Any = None,
    **variables: Any,
) -> Any:
    lab.workflow("Main", list(nodes), **variables)
    manager = WorkflowManager("Main", listeners=[])
    manager.node_handlers["SlowButQualityRAG"] = probe or SlowButQualityRAGHandler()
    with request_scope(lab.request):
        results = list(manager.start(lab.request, [user("hi")], discussion_id=discussion_id or "", stream=stream))
    return "".join(chunk["token"] for chunk in results) if stream else results[-1]


def without(node: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != key}


@pytest.mark.parametrize("stream", [False, True])
def test_two_blocks_two_calls(lab: EngineLab, stream: bool) -> None:
    assert run(lab, rag(), stream=stream) == "<x><y>"
    assert [request.json["stream"] for request in lab.backend.requests] == [False, False]


def test_without_discussion_id(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert run(lab, rag(title="Read each"), discussion_id=None) == "" and lab.backend.requests == []
    assert "Node 'Read each' makes no call and returns an empty text: the conversation has no" in caplog.text


@pytest.mark.parametrize("discussion_id", ["k1", None])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ragTarget", "No rag target specified in Slow But Quality RAG node"),
        ("ragType", "No rag type specified in Slow But Quality RAG node"),
    ],
)
def test_missing_keys(lab: EngineLab, key: str, text: str, discussion_id: str | None) -> None:
    assert run(lab, without(rag(), key), discussion_id=discussion_id) == text
    assert run(lab, rag(**{key: None}) if key == "ragType" else rag(None), discussion_id=discussion_id) == text
    assert lab.backend.requests == []


def test_target_comes_from_variables(lab: EngineLab) -> None:
    node = rag("{agent1Output}", prompt="{agent2Output} [TextChunk]")
    assert run(lab, static("a {b}--ChunkBreak--c"), static("P"), node) == "<P a {b}><P c>"


@pytest.mark.parametrize("target", ["", " \n", "--ChunkBreak-- "])
def test_blank_blocks_are_asked_of_nobody(lab: EngineLab, target: str) -> None:
    assert run(lab, rag(target)) == "" and lab.backend.requests == []


def test_endpoint_preset_and_budget_take_variables(lab: EngineLab) -> None:
    lab.endpoint("Desk-Main", {"presetSamplers": {"temperature": 0.5}}, lab.backend.url)
    node = rag("x", endpointName="{where}-Main", preset="{where}-Main", maxResponseSizeInTokens="{size}")
    assert run(lab, node, where="Desk", size=33) == "<x>"
    body = lab.backend.requests[0].json
    assert (body["max_tokens"], body["temperature"]) == (33, 0.5)


def test_markers(lab: EngineLab) -> None:
    run(lab, rag("a--ChunkBreak--b", prompt="[Memory_file]#[Full_Memory_file]#[TextChunk]"))
    first = f"{NONE}#{NONE}#a"
    assert lab.prompts == [first, f"<{first}>#<{first}>#b"]


@pytest.mark.parametrize(
    ("endpoint", "node", "opened"),
    [
        ({"addGenerationPrompt": True}, {}, True),
        ({"addGenerationPrompt": True}, {"blockGenerationPrompt": True}, False),
        ({}, {}, False),
    ],
)
def test_completion_back_end(lab: EngineLab, endpoint: dict[str, Any], node: dict[str, Any], opened: bool) -> None:
    lab.write("ApiTypes/Text", {"type": "openAIV1Completion", "presetType": "Text", "samplerFieldMap": {}})
    lab.endpoint("Main", {"apiTypeConfigFileName": "Text", "promptTemplate": "chatml", **endpoint}, lab.backend.url)
    lab.backend.responder = lambda request: Reply(body={"choices": [{"text": "seen"}]})
    assert run(lab, rag("x", systemPrompt="S", **node), static("{agent1Output}")) == "seen"
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nx<|im_end|>"
    assert lab.backend.requests[0].json["prompt"].strip() == text + ("\n<|im_start|>assistant" if opened else "")


def test_answers_are_cleaned_one_by_one(lab: EngineLab) -> None:
    """Once: ``handle`` is called directly, so that no cleaning of the engine helps."""
    lab.endpoint(
        "Main",
        {"removeCustomTextFromResponseStartEndpointWide": True, "responseStartTextToRemoveEndpointWide": ["A:"]},
        lab.backend.url,
    )
    lab.backend.responder = lambda request: chat_reply("A:A:ok ")
    raw: list[Any] = []
    run(lab, rag(), probe=Probe(lambda context: raw.append(SlowButQualityRAGHandler().handle(context)) or ""))
    assert raw == ["A:ok A:ok "]


def test_errors_of_the_llm_are_raised(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: status_reply(400)
    with pytest.raises(BackendStatusError):
        run(lab, rag())
    assert len(lab.backend.requests) == 1


def test_cancellation(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: Reply(never=True)
    threading.Thread(target=lambda: (lab.backend.wait_requests(1), lab.request.cancel_scope.cancel())).start()
    with pytest.raises(EarlyTerminationException):
        run(lab, rag())
    assert lab.backend.requests[0].wait_ended() and len(lab.backend.requests) == 1


# -- others that answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_workflow_instead_of_the_prompt(lab: EngineLab, stream: bool) -> None:
    lab.workflow(
        "Memo",
        [static("({agent1Input}|{agent2Input}|{agent3Input}|{agent4Input})", returnToUser=True), static("later")],
    )
    node = rag("a{--ChunkBreak--b", fileMemoryWorkflowName="Memo")
    summary = "There is not yet a summary file"
    first = f"(a{{|{NONE}|{NONE}|{summary})"
    assert run(lab, without(node, "endpointName"), stream=stream) == f"{first}(b|{first}|{first}|{summary})"
    assert lab.backend.requests == [] and not lab.request.background_nodes


def test_several_llms(lab: EngineLab) -> None:
    lab.endpoint("Broken", {"modelNameToSendToAPI": "broken"}, lab.backend.url)
    answer = lab.backend.responder
    assert answer is not None
    lab.backend.responder = lambda request: status_reply(400) if request.json["model"] == "broken" else answer(request)
    models = [{"endpointName": "Broken", "maxContextTokenSize": 9}, {"endpointName": "{good}"}]
    node = rag(
        "1--ChunkBreak--2--ChunkBreak--3", multiModelList=models, endpointName="Main", fileMemoryWorkflowName="Nope"
    )
    assert run(lab, node, good="Main") == "<1><2><3>"


@pytest.mark.parametrize("models", [[], None, "Main"])
def test_a_list_without_entries_does_not_count(lab: EngineLab, models: Any) -> None:
    assert run(lab, rag("x", multiModelList=models)) == "<x>"
