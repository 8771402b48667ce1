"""Blocks of text answered by several real HTTP back-ends side by side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendStatusError, ConfigNotFoundError, ConfigValueError, EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.parallel_llm_processing_tool import ParallelLlmProcessingTool
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import EngineLab, Message, assistant, last_text, user


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        for name in ("A", "B", "C"):
            lab.endpoint(name, {"modelNameToSendToAPI": name}, backend.url)
        yield lab


def config(*names: str, **more: Any) -> dict[str, Any]:
    return {"multiModelList": [{"endpointName": name} for name in names], **more}


def process(
    lab: EngineLab,
    settings: dict[str, Any],
    *chunks: str,
    prompt: str = "Sum up: [TextChunk]",
    system_prompt: str = "",
    delimiter: str = "|",
    context: ExecutionContext | None = None,
    messages: list[Message] | None = None,
) -> str:
    with request_scope(lab.request):
        tool = ParallelLlmProcessingTool(settings, context)
        return tool.process_prompt_chunks(list(chunks), prompt, system_prompt, messages or [user("hi")], delimiter)


def context_of(lab: EngineLab, settings: dict[str, Any], **fields: Any) -> ExecutionContext:
    return ExecutionContext(
        request_id="r-1",
        workflow_id="w",
        discussion_id="k1",
        config=settings,
        messages=[user("context")],
        stream=False,
        request=lab.request,
        workflow_variable_service=WorkflowVariableManager(),
        **fields,
    )


def by_model(**replies: Callable[[RecordedRequest], Reply]) -> Callable[[RecordedRequest], Reply]:
    return lambda request: replies[request.json["model"]](request)


def echo(request: RecordedRequest) -> Reply:
    return chat_reply(f"<{last_text(request)}>")


def slow_echo(request: RecordedRequest) -> Reply:
    return chat_reply(f"<{last_text(request)}>", header_delay=0.15)


def fail(request: RecordedRequest) -> Reply:
    return status_reply(400)


def models(lab: EngineLab) -> list[str]:
    return [request.json["model"] for request in lab.backend.requests]


# -- order and texts ---------------------------------------------------------------------------------------------------


def test_results_are_in_the_order_of_the_chunks(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: chat_reply(
        last_text(request)[-1], header_delay=0.2 if last_text(request).endswith("1") else 0
    )
    assert process(lab, config("A", "B"), "1", "2", "3", "4") == "1|2|3|4"


def test_no_delimiter_by_default(lab: EngineLab) -> None:
    with request_scope(lab.request):
        tool = ParallelLlmProcessingTool(config("A", "B"))
        assert tool.process_prompt_chunks(["x", "y"], "[TextChunk]", "", [user("hi")]) == "<x><y>"


def test_what_is_sent(lab: EngineLab) -> None:
    lab.endpoint("A", {"presetSamplers": {"temperature": 0.25}}, lab.backend.url)
    settings = config("A", preset="A", maxResponseSizeInTokens=77)
    process(lab, settings, "x", prompt="P [TextChunk] [DiscussionId]k[/DiscussionId]!", system_prompt="S [TextChunk]")
    body = lab.backend.requests[0].json
    assert body["messages"] == [{"role": "system", "content": "S x"}, user("P x !")]
    assert (body["stream"], body["max_tokens"], body["temperature"]) == (False, 77, 0.25)


def test_budget_by_default(lab: EngineLab) -> None:
    process(lab, config("A"), "x", system_prompt="")
    body = lab.backend.requests[0].json
    assert body["max_tokens"] == 400 and body["messages"] == [user("Sum up: x")]


def test_markers_inside_chunks_stay(lab: EngineLab) -> None:
    assert (
        process(lab, config("A"), "a [TextChunk] {b}", prompt="[TextChunk]+[TextChunk]")
        == "<a [TextChunk] {b}+a [TextChunk] {b}>"
    )


def test_blank_chunks_are_asked_of_nobody(lab: EngineLab) -> None:
    assert process(lab, config("A"), "", "x", " \n", prompt="[TextChunk]") == "|<x>|"
    assert len(lab.backend.requests) == 1


def test_nothing_to_do(lab: EngineLab) -> None:
    assert process(lab, config("A")) == "" and lab.backend.requests == []


def test_completion_back_end(lab: EngineLab) -> None:
    lab.write("ApiTypes/Text", {"type": "openAIV1Completion", "presetType": "Text", "samplerFieldMap": {}})
    template = {"apiTypeConfigFileName": "Text", "promptTemplate": "chatml", "modelNameToSendToAPI": "A"}
    lab.backend.responder = lambda request: Reply(body={"choices": [{"text": "seen"}]})
    for prompt_added, end in ((True, "<|im_start|>assistant"), (False, "")):
        lab.endpoint("A", {**template, "addGenerationPrompt": prompt_added}, lab.backend.url)
        assert process(lab, config("A"), "x", prompt="[TextChunk]?", system_prompt="S") == "seen"
        assert (
            lab.backend.requests[-1].json["prompt"].strip()
            == (f"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nx?<|im_end|>\n{end}").strip()
        )
    process(lab, config("A", blockGenerationPrompt=True), "x")
    assert not lab.backend.requests[-1].json["prompt"].strip().endswith("assistant")


def test_answers_are_cleaned_by_the_rules_of_their_endpoint(lab: EngineLab) -> None:
    for name in ("A", "B"):
        lab.endpoint(
            name,
            {
                "modelNameToSendToAPI": name,
                "removeCustomTextFromResponseStartEndpointWide": True,
                "responseStartTextToRemoveEndpointWide": [f"{name}:"],
            },
            lab.backend.url,
        )
    both = threading.Event()

    def reply(request: RecordedRequest) -> Reply:
        if len(lab.backend.requests) == 2:
            both.set()
        return chat_reply(f"{request.json['model']}:ok", held=both)

    lab.backend.responder = reply
    assert process(lab, config("A", "B"), "x", "y", "z") == "ok|ok|ok"
    assert set(models(lab)) == {"A", "B"}


# -- variables ---------------------------------------------------------------------------------------------------------


def test_variables_of_the_context(lab: EngineLab) -> None:
    settings = config("{agent1Input}", "{where}", preset="{agent2Output}")
    lab.endpoint("B", {"presetSamplers": {"temperature": 0.5}}, lab.backend.url)
    inputs = {"agent1Input": "A"}
    context = context_of(
        lab,
        settings,
        agent_inputs=inputs,
        agent_outputs={**inputs, "agent2Output": "B"},
        workflow_config={"where": "B"},
    )
    result = process(
        lab, settings, "{x}", prompt="{agent2Output} {chat_user_prompt_last_one} [TextChunk]", context=context
    )
    assert result == "<B hi {x}>" and lab.backend.requests[0].json["temperature"] == 0.5


def test_no_context_means_no_variables(lab: EngineLab) -> None:
    assert process(lab, config("A"), "x", prompt="{agent1Output} [TextChunk]") == "<{agent1Output} x>"


def test_conversation_variables_hold_no_system_messages(lab: EngineLab) -> None:
    messages = [{"role": "system", "content": "S1"}, user("u1"), {"role": "system", "content": "S2"}, assistant("a1")]
    context = context_of(lab, config("A"))
    prompt = "{chat_user_prompt_last_five}|{chat_system_prompt}|[TextChunk]"
    assert process(lab, config("A"), "x", prompt=prompt, context=context, messages=messages) == "<u1\na1|S1|x>"


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failing_endpoint_gives_its_chunk_to_another(lab: EngineLab) -> None:
    asked = threading.Event()
    lab.backend.responder = by_model(
        A=lambda request: (asked.set(), fail(request))[1],
        B=lambda request: chat_reply(f"<{last_text(request)}>", held=asked),
    )
    assert process(lab, config("A", "B"), "1", "2", "3", prompt="[TextChunk]") == "<1>|<2>|<3>"
    assert models(lab).count("A") == 1


def test_a_chunk_comes_back_to_a_worker_that_had_nothing_left(lab: EngineLab) -> None:
    lab.backend.responder = by_model(A=lambda request: status_reply(400, header_delay=0.3), B=echo)
    assert process(lab, config("A", "B"), "1", "2", prompt="[TextChunk]") == "<1>|<2>"


def test_one_chunk_and_a_failing_endpoint(lab: EngineLab) -> None:
    lab.backend.responder = by_model(
        A=lambda request: status_reply(400, header_delay=0.1), B=lambda request: chat_reply("ok", header_delay=0.1)
    )
    assert process(lab, config("A", "B"), "1") == "ok"


def test_a_chunk_that_fails_twice_stays_empty(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.backend.responder = lambda request: fail(request) if "bad" in last_text(request) else echo(request)
    with caplog.at_level(logging.ERROR):
        assert process(lab, config("A", "B", "C"), "1", "bad", "3", prompt="[TextChunk]") == "<1>||<3>"
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "Block 2" in caplog.text
    assert len([request for request in lab.backend.requests if "bad" in last_text(request)]) == 2


@pytest.mark.parametrize("chunks", [("1",), ("1", "2", "3")])
def test_all_endpoints_failing_raises(lab: EngineLab, chunks: tuple[str, ...]) -> None:
    lab.backend.responder = fail
    with pytest.raises(BackendStatusError):
        process(lab, config("A", "B"), *chunks)
    assert len(lab.backend.requests) == 2


def test_logs_hold_no_texts(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.backend.responder = by_model(A=fail, B=slow_echo)
    with caplog.at_level(logging.INFO):
        process(lab, config("A", "B"), "private words", "more private words")
    assert "'A' failed" in caplog.text and "private" not in caplog.text


# -- workers -----------------------------------------------------------------------------------------------------------


def most_at_a_time(lab: EngineLab, expected: int, *names: str) -> int:
    """How many calls run together over eight chunks: none is answered before ``expected`` have come."""
    lock, all_there, state = threading.Lock(), threading.Event(), [0, 0]

    def slow(request: RecordedRequest) -> Reply:
        with lock:
            state[0] += 1
            state[1] = max(state)
            if state[0] == expected:
                all_there.set()
        assert all_there.wait(60)
        time.sleep(0.05)  # one too many would come now
        with lock:
            state[0] -= 1
        return chat_reply("ok")

    lab.backend.responder = None
    lab.backend._next = lambda request: slow(request)  # type: ignore[method-assign]
    assert process(lab, config(*names), *"12345678") == "|".join(["ok"] * 8)
    return state[1]


@pytest.mark.parametrize(("names", "most"), [(("A",), 1), (("A", "A"), 2), (("A", "B", "C"), 3)])
def test_one_worker_for_each_entry(lab: EngineLab, names: tuple[str, ...], most: int) -> None:
    assert most_at_a_time(lab, most, *names) == most


def test_the_gate_of_the_endpoints_counts(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "endpoint")
    monkeypatch.setattr(instance.process().one(instance.Gate), "semaphore", None)
    instance.initialize_request_semaphore(1)
    assert most_at_a_time(lab, 1, "A", "B", "C") == 1


@pytest.mark.parametrize("with_context", [True, False])
def test_cancellation(lab: EngineLab, with_context: bool) -> None:
    lab.backend.responder = lambda request: Reply(never=True)
    threading.Thread(target=lambda: (lab.backend.wait_requests(2), lab.request.cancel_scope.cancel())).start()
    began = time.monotonic()
    with pytest.raises(EarlyTerminationException) as caught:
        process(lab, config("A", "B"), *"12345", context=context_of(lab, config("A", "B")) if with_context else None)
    assert caught.value.is_cancellation and time.monotonic() - began < 60
    assert len(lab.backend.requests) == 2
    assert all(request.wait_ended() and request.client_left for request in lab.backend.requests)


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "place"),
    [
        (None, "multiModelList"),
        ([], "multiModelList"),
        ("A", "multiModelList"),
        ([{}], "multiModelList[0].endpointName"),
        ([{"endpointName": "A"}, "B"], "multiModelList[1].endpointName"),
        ([{"endpointName": " "}], "multiModelList[0].endpointName"),
    ],
)
def test_unusable_lists(lab: EngineLab, models: Any, place: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        ParallelLlmProcessingTool({"multiModelList": models})
    assert caught.value.json_path == place


def test_workers_work_for_the_requests_user(lab: EngineLab) -> None:
    lab.write(
        "Users/other",
        {
            "endpointConfigsSubDirectory": "lab",
            "chatPromptTemplateName": "chatml",
            "userWideWorkflowVariables": {"who": "other"},
        },
    )
    lab.request.user = "other"
    context = context_of(lab, config("A", "B"))
    assert process(lab, config("A", "B"), "1", "2", prompt="{who}[TextChunk]", context=context) == "<other1>|<other2>"


def test_unknown_endpoint(lab: EngineLab) -> None:
    with pytest.raises(ConfigNotFoundError, match="Nope"):
        ParallelLlmProcessingTool(config("A", "Nope"))
