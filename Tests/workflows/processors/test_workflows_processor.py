"""The loop over the nodes: who answers, what the others see, how values become streams, what is cleaned."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.answers.answer import FinishedAnswer
from Middleware.exceptions import BackendStatusError, ConfigNotFoundError, ConfigValueError
from Middleware.models.request_context import request_scope
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.models.execution_context import NodeExecutionInfo
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, json_reply, sse_reply, status_reply
from Tests.workflows.engine_lab import EngineLab, Probe, Recorder, assistant, llm, reply_to, start, static, user

CALL = {"id": "c1", "type": "function", "function": {"name": "Find", "arguments": "{}"}}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


# -- who answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "answer"),
    [
        ([static("A"), static("B")], "B"),
        ([static("A", returnToUser=True), static("B"), static("C")], "A"),
        ([static("A", is_responder=False, returnToUser=True), static("B")], "B"),
        ([static("A", is_responder=True), static("B")], "A"),
        ([static("A", isResponder=True), static("B")], "B"),
        ([static("A"), static("B", returnToUser=True), static("C", returnToUser=True)], "B"),
        ([static("A", returnToUser="false"), static("B")], "B"),
        ([static("A", returnToUser="true"), static("B")], "A"),
        ([static("A", is_responder="False", returnToUser=True), static("B")], "B"),
    ],
)
def test_responder(lab: EngineLab, nodes: list[dict[str, Any]], answer: str) -> None:
    assert lab.run(nodes) == answer
    assert lab.streamed(nodes) == answer


def test_nodes_after_the_responder_run_and_see_its_output(lab: EngineLab) -> None:
    assert lab.run([llm("a", returnToUser=True), llm("b {agent1Output}"), llm("c {agent2Output}")]) == "<a>"
    assert lab.prompts == ["a", "b <a>", "c <b <a>>"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_there_before_later_nodes_run(lab: EngineLab, stream: bool) -> None:
    lab.workflow("Main", [static("now", returnToUser=True), llm("later")])
    with request_scope(lab.request):
        items = start(lab, stream=stream)
        got = next(items)
        assert (got["token"] if stream else got) == "now"
        assert lab.backend.requests == []
        while stream and "end" not in got:
            got = next(items)
        assert lab.request.background_nodes
        assert lab.backend.requests == []
        assert list(items) == []
    assert lab.prompts == ["later"]


def test_only_the_responder_streams(lab: EngineLab) -> None:
    assert lab.streamed([llm("a"), llm("b {agent1Output}", returnToUser=True), llm("c {agent2Output}")]) == "<b <a>>"
    assert [request.json["stream"] for request in lab.backend.requests] == [False, True, False]
    assert lab.prompts[2] == "c <b <a>>"


def test_no_nodes_no_output(lab: EngineLab) -> None:
    assert lab.run([]) is None
    assert lab.chunks([]) == []


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_type", ["Sandard", 5, ["Standard"], None])
def test_unknown_type_runs_as_standard(lab: EngineLab, node_type: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert lab.run([llm("x", type=node_type)]) == "<x>"
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.levelno == logging.WARNING and "Standard" in warning.getMessage()


def test_absent_type_is_standard(lab: EngineLab) -> None:
    assert lab.run([{"endpointName": "Main", "prompt": "x"}]) == "<x>"


# -- preparation -------------------------------------------------------------------------------------------------------


def test_outputs_are_numbered_by_position(lab: EngineLab) -> None:
    assert (
        lab.run([static("one"), static("{agent1Output} two"), static("{agent1Output}|{agent2Output}")]) == "one|one two"
    )


def test_node_config_is_its_own(lab: EngineLab) -> None:
    """A node that changes its config must not change the file for the next request."""
    probe = Probe(lambda context: context.config.update(content="changed") or context.config["content"])
    lab.workflow("Main", [static("fresh")])
    for _ in range(2):
        with request_scope(lab.request):
            list(start(lab, probes={"StaticResponse": probe}))
    assert lab.run_named("Main") == "fresh"


def test_context_of_a_node(lab: EngineLab) -> None:
    probe = Probe()
    lab.workflow("Main", [static("x"), {"type": "Conditional", "title": "T"}], tone="dry")
    with request_scope(lab.request):
        list(
            start(
                lab,
                probes={"Conditional": probe},
                discussion_id="d1",
                api_key="k-secret",
                scoped_inputs=("in",),
                tools=[{"type": "function"}],
                tool_choice="auto",
                stream=True,
            )
        )
    (context,) = probe.contexts
    assert (context.request_id, context.discussion_id) == ("r-1", "d1")
    assert context.stream and context.is_responder
    assert context.workflow_config == {"tone": "dry"}
    assert context.agent_inputs == {"agent1Input": "in"}
    assert context.agent_outputs == {"agent1Input": "in", "agent1Output": "x"}
    assert (context.api_key, context.tools, context.tool_choice) == ("k-secret", [{"type": "function"}], "auto")
    assert context.node_name == "T"
    assert "k-secret" not in repr(context)


@pytest.mark.parametrize(
    ("node", "non_responder", "expected"),
    [
        ({}, None, False),
        ({}, True, True),
        ({"blockGenerationPrompt": True}, True, False),
        ({"blockGenerationPrompt": "true"}, True, False),
        ({"blockGenerationPrompt": "false"}, True, True),
        ({"forceGenerationPromptIfEndpointAllows": "false", "addUserTurnTemplate": "False"}, None, False),
        ({"forceGenerationPromptIfEndpointAllows": True}, None, True),
        ({"addUserTurnTemplate": True}, None, True),
        ({"addUserTurnTemplate": True, "blockGenerationPrompt": True}, None, False),
    ],
)
def test_generation_prompt_flag_of_the_responder(
    lab: EngineLab, node: dict[str, Any], non_responder: bool | None, expected: bool
) -> None:
    lab.endpoint("Main", {"addGenerationPrompt": True}, lab.backend.url)
    probe = Probe()
    lab.workflow("Main", [llm("x", **node)])
    list(start(lab, probes={"Standard": probe}, non_responder=non_responder))
    handler = probe.contexts[0].llm_handler
    assert handler is not None and handler.add_generation_prompt is expected


def test_generation_prompt_is_off_before_the_responder(lab: EngineLab) -> None:
    lab.endpoint("Main", {"addGenerationPrompt": True}, lab.backend.url)
    probe = Probe()
    lab.workflow("Main", [llm("x"), llm("y")])
    list(start(lab, probes={"Standard": probe}, non_responder=True))
    assert [
        context.llm_handler.add_generation_prompt
        for context in probe.contexts  # type: ignore[union-attr]
    ] == [False, True]


def test_overrides_go_to_the_first_node_with_a_prompt_key(lab: EngineLab) -> None:
    nodes = [static("x"), llm("old", systemPrompt="old"), llm("kept", systemPrompt="kept")]
    lab.run(nodes, first_node_system_prompt_override="S", first_node_prompt_override="P")
    first, second = (request.json["messages"] for request in lab.backend.requests)
    assert first == [{"role": "system", "content": "S"}, user("P")]
    assert second == [{"role": "system", "content": "kept"}, user("kept")]


def test_override_of_one_prompt_leaves_the_other(lab: EngineLab) -> None:
    lab.run([llm("P", systemPrompt="S")], first_node_prompt_override="new")
    assert lab.backend.requests[0].json["messages"] == [{"role": "system", "content": "S"}, user("new")]


def test_endpoint_and_preset_names_are_substituted_early(lab: EngineLab) -> None:
    lab.endpoint("Fast", {"modelNameToSendToAPI": "fast-model"}, lab.backend.url)
    lab.preset("OpenAiCompatibleApis", "warm", {"temperature": 0.9})
    lab.workflow(
        "Main",
        [llm("x", endpointName="{which}", preset="{agent1Input}", maxResponseSizeInTokens="{size}")],
        which="Fast",
        size=77,
    )
    assert lab.run_named("Main", scoped_inputs=["warm"]) == "<x>"
    body = lab.backend.requests[0].json
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("fast-model", 0.9, 77)


def test_unknown_endpoint_names_file_and_neighbour(lab: EngineLab) -> None:
    with pytest.raises(ConfigNotFoundError, match="Main") as caught:
        lab.run([llm("x", endpointName="Mian")])
    assert "Mian" in str(caught.value)
    assert caught.value.location == "workflow 'Main', node 1 'N/A'"  # type: ignore[attr-defined]


# -- cleaning ----------------------------------------------------------------------------------------------------------

THINKING = {
    "removeThinking": True,
    "startThinkTag": "<think>",
    "endThinkTag": "</think>",
    "trimBeginningAndEndLineBreaks": True,
}


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_cleaned_with_endpoint_and_node_rules(lab: EngineLab, stream: bool) -> None:
    lab.endpoint("Main", THINKING, lab.backend.url)
    lab.backend.responder = lambda request: reply_to(request, "<think>no</think>\nOut: fine \n")
    nodes = [llm("a"), llm("{agent1Output}", removeCustomTextFromResponseStart=True, responseStartTextToRemove="Out:")]
    assert (lab.streamed(nodes) if stream else lab.run(nodes)) == "fine"
    assert lab.prompts == ["a", "Out: fine"]


@pytest.mark.parametrize("stream", [False, True])
def test_cleaning_follows_the_endpoint_that_answered(lab: EngineLab, stream: bool) -> None:
    lab.endpoint("Main", {"backupEndpointName": "Second"}, lab.backend.url)
    lab.endpoint("Second", {**THINKING, "modelNameToSendToAPI": "second"}, lab.backend.url)
    lab.backend.responder = lambda request: (
        reply_to(request, "<think>no</think> fine \n") if request.json["model"] == "second" else status_reply(500)
    )
    nodes = [llm("a", returnToUser=True)]
    assert (lab.streamed(nodes) if stream else lab.run(nodes)) == "fine"
    assert lab.request.endpoint == "Second"


def test_the_endpoint_of_a_call_under_way_is_known(lab: EngineLab) -> None:
    """Also that of a backup."""
    lab.endpoint("Main", {"backupEndpointName": "Second"}, lab.backend.url)
    lab.endpoint("Second", {"modelNameToSendToAPI": "second"}, lab.backend.url)
    seen = []

    def answer(request: RecordedRequest) -> Reply:
        seen.append(lab.request.endpoint)
        return reply_to(request, "fine") if request.json["model"] == "second" else status_reply(500)

    lab.backend.responder = answer
    lab.run([llm("a", returnToUser=True)])
    assert seen == ["Main", "Second"]


def test_nodes_without_endpoint_are_verbatim(lab: EngineLab) -> None:
    text = "  <think>a</think> b \n"
    assert lab.run([static(text)]) == text
    assert lab.streamed([static(text)]) == text
    assert lab.run([static(text), static("{agent1Output}")]) == text


def test_group_chat_name(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: reply_to(request, "hello")
    nodes = [llm("x", useGroupChatTimestampLogic=True)]
    messages = user("hi"), assistant("Old Tom:")
    assert lab.run(nodes, *messages) == lab.streamed(nodes, *messages) == "Old Tom: hello"
    lab.backend.responder = lambda request: reply_to(request, "Old Tom: hello")
    assert lab.run(nodes, *messages) == lab.streamed(nodes, *messages) == "Old Tom: hello"


def test_group_chat_name_with_braces(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: reply_to(request, "hello")
    message = assistant(escape_braces("{{char}}:"))
    nodes = [llm("x", useGroupChatTimestampLogic=True)]
    assert lab.run(nodes, user("hi"), message) == lab.streamed(nodes, user("hi"), message) == "{{char}}: hello"


@pytest.mark.parametrize("flag", ["false", "False", "", 0, None])
def test_group_chat_name_switched_off(lab: EngineLab, flag: Any) -> None:
    lab.backend.responder = lambda request: reply_to(request, "hello")
    nodes = [llm("x", useGroupChatTimestampLogic=flag)]
    messages = user("hi"), assistant("Old Tom:")
    assert lab.run(nodes, *messages) == lab.streamed(nodes, *messages) == "hello"


# -- values and tool calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node_type", "hint"),
    [
        ("StaticRespons", "'StaticRespons' (did you mean 'StaticResponse'?) and ran as Standard"),
        (None, "None and ran as Standard"),
        (["a"], "['a'] and ran as Standard"),
    ],
)
def test_the_failure_of_a_node_with_an_unknown_type_speaks_of_the_type(
    lab: EngineLab, node_type: Any, hint: str
) -> None:
    with pytest.raises(ConfigValueError) as caught:
        lab.run([static("x"), {"title": "greet", "type": node_type, "content": "hi"}])
    place = caught.value.location  # type: ignore[attr-defined]
    assert place == f"workflow 'Main', node 2 'greet', which has the unknown type {hint}"


@pytest.mark.parametrize(("value", "text"), [("plain  text\n", "plain  text\n"), (None, ""), ("", ""), (7, "7")])
def test_any_value_streams(lab: EngineLab, value: Any, text: str) -> None:
    lab.workflow("Main", [static("x")])
    chunks = list(start(lab, probes={"StaticResponse": Probe(value)}, stream=True))
    assert "".join(chunk["token"] for chunk in chunks) == text
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
    assert "end" in chunks[-1]


def test_streamed_static_text_tokens(lab: EngineLab) -> None:
    chunks = lab.chunks([static("hi  there\n")])
    assert [chunk["token"] for chunk in chunks if chunk["token"]] == ["hi", "  ", "there", "\n"]


def test_streaming_conditional(lab: EngineLab) -> None:
    chunks = lab.chunks([{"type": "Conditional", "condition": "1 == 1"}])
    assert "".join(chunk["token"] for chunk in chunks) == "TRUE"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]


def tool_reply() -> Any:
    return json_reply(
        {
            "choices": [
                {"message": {"role": "assistant", "content": "", "tool_calls": [CALL]}, "finish_reason": "tool_calls"}
            ]
        }
    )


@pytest.mark.parametrize("lower", [False, True])
def test_tool_calls_of_the_responder(lab: EngineLab, lower: bool) -> None:
    lab.backend.responder = lambda request: tool_reply()
    result = lab.run(
        [llm("", allowTools=True, lowercaseToolCallFunctionNames=lower)],
        tools=[{"type": "function", "function": {"name": "Find"}}],
    )
    assert result["tool_calls"][0]["function"]["name"] == ("find" if lower else "Find")
    assert result["finish_reason"] == "tool_calls"
    assert lab.backend.requests[0].json["tools"][0]["function"]["name"] == "Find"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"content": "done", "tool_calls": []}, "done"),
        ({"content": "done", "tool_calls": None}, "done"),
        ({"tool_calls": []}, ""),
        ({"content": None, "tool_calls": [None, "x"]}, ""),
        ({"content": 5, "tool_calls": []}, "5"),
        ({"tool_calls": "no list"}, "{'tool_calls': 'no list'}"),
        ({"tool_calls": {"a": 1}}, "{'tool_calls': {'a': 1}}"),
    ],
)
def test_a_dict_without_usable_tool_calls_says_the_same_in_both_modes(lab: EngineLab, value: Any, text: str) -> None:
    lab.workflow("Main", [static("x")])
    (whole,) = start(lab, probes={"StaticResponse": Probe(value)})
    chunks = list(start(lab, probes={"StaticResponse": Probe(value)}, stream=True))
    assert "".join(chunk["token"] for chunk in chunks) == text
    assert not any(chunk.get("tool_calls") for chunk in chunks)
    assert FinishedAnswer.of(whole, lab.request, []).text == text
    assert FinishedAnswer.of(whole, lab.request, []).tool_calls is None


@pytest.mark.parametrize("stream", [False, True])
def test_entries_that_are_no_tool_calls_do_not_reach_the_client(lab: EngineLab, stream: bool) -> None:
    lab.workflow("Main", [static("x")])
    answer = {"content": None, "tool_calls": [None, "x", CALL], "finish_reason": "tool_calls"}
    item, *_ = start(lab, probes={"StaticResponse": Probe(answer)}, stream=stream)
    assert item["tool_calls"] == [{"index": 0, **CALL} if stream else CALL]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", ""),
        (" \n", ""),
        ("hello", "Old Tom: hello"),
        ("Old Tom: hello", "Old Tom: hello"),
        ("<think>hm</think>", ""),
        ("<think>hm</think> hello", "Old Tom: hello"),
    ],
)
def test_group_chat_name_of_an_answer_with_tool_calls(lab: EngineLab, content: str, text: str) -> None:
    lab.endpoint(
        "Main", {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}, lab.backend.url
    )

    def answer(request: RecordedRequest) -> Reply:
        if request.json.get("stream"):
            return sse_reply(
                [
                    *(chat_chunk({"content": letter}) for letter in content),
                    chat_chunk({"tool_calls": [{"index": 0, **CALL}]}),
                    chat_chunk({}, "tool_calls"),
                    "[DONE]",
                ]
            )
        return json_reply(
            {
                "choices": [
                    {
                        "message": {"role": "assistant", "content": content, "tool_calls": [CALL]},
                        "finish_reason": "tool_calls",
                    }
                ]
            }
        )

    lab.backend.responder = answer
    nodes = [llm("x", useGroupChatTimestampLogic=True, allowTools=True)]
    messages = user("hi"), assistant("Old Tom:")
    assert lab.run(nodes, *messages)["content"] == text
    assert lab.streamed(nodes, *messages) == text


@pytest.mark.parametrize(
    ("reason", "said"),
    [("tool_calls", "tool_calls"), ("length", "length"), (None, "tool_calls"), (5, "tool_calls"), ("", "tool_calls")],
)
def test_a_tool_call_dict_ends_with_a_chunk_of_its_own(lab: EngineLab, reason: Any, said: str) -> None:
    lab.workflow("Main", [static("x")])
    answer = {"content": "wait", "tool_calls": [CALL], "finish_reason": reason}
    chunks = [
        chunk
        for chunk in start(lab, probes={"StaticResponse": Probe(answer)}, stream=True)
        if chunk["token"] or chunk.get("tool_calls") or chunk["finish_reason"]
    ]
    assert [(chunk["token"], "tool_calls" in chunk, chunk["finish_reason"]) for chunk in chunks] == [
        ("wait", False, None),
        ("", True, None),
        ("", False, said),
    ]


def test_tool_call_dict_streams(lab: EngineLab) -> None:
    lab.workflow("Main", [static("x")])
    answer = {"content": "wait", "tool_calls": [CALL], "finish_reason": "tool_calls"}
    chunks = list(start(lab, probes={"StaticResponse": Probe(answer)}, stream=True))
    assert "".join(chunk["token"] for chunk in chunks) == "wait"
    (calls,) = [chunk["tool_calls"] for chunk in chunks if "tool_calls" in chunk]
    assert calls == [{"index": 0, **CALL}]
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["tool_calls"]


# -- failures ----------------------------------------------------------------------------------------------------------


def failing(request: Any) -> Any:
    return status_reply(400) if "boom" in str(request.json["messages"]) else reply_to(request, "ok")


def test_failure_before_the_answer_names_the_place(lab: EngineLab) -> None:
    lab.backend.responder = failing
    with pytest.raises(BackendStatusError) as caught:
        lab.run([llm("fine"), llm("boom", title="Ask")])
    assert caught.value.location == "workflow 'Main', node 2 'Ask'"  # type: ignore[attr-defined]


def test_the_place_in_a_workflow_whose_name_every_folder_has(lab: EngineLab) -> None:
    lab.backend.responder = failing
    lab.workflow("_DefaultWorkflow", [llm("boom", title="Ask")])
    with pytest.raises(BackendStatusError) as caught:
        lab.run_named("_DefaultWorkflow")
    place = caught.value.location  # type: ignore[attr-defined]
    assert place.startswith("workflow '") and place.endswith("/_DefaultWorkflow', node 1 'Ask'")


@pytest.mark.parametrize("stream", [False, True])
def test_failure_after_the_answer_ends_that_run_only(
    lab: EngineLab, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lab.backend.responder = failing
    nodes = [llm("fine", returnToUser=True), llm("boom"), llm("never")]
    assert (lab.streamed(nodes) if stream else lab.run(nodes)) == "ok"
    assert lab.prompts == ["fine", "boom"]
    assert "failed after the answer" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_failure_after_a_childs_answer_spares_the_parent(lab: EngineLab, stream: bool) -> None:
    lab.backend.responder = failing
    lab.workflow("Child", [llm("fine", returnToUser=True), llm("boom"), llm("never")])
    nodes = [{"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}, llm("parent goes on")]
    assert (lab.streamed(nodes) if stream else lab.run(nodes)) == "ok"
    assert lab.prompts == ["fine", "boom", "parent goes on"]


def test_error_in_mid_stream_reaches_the_caller(lab: EngineLab) -> None:
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": "so far"}), {"error": {"message": "out of memory"}}], delay=0.05
    )
    lab.workflow("Main", [llm("x", returnToUser=True), llm("never")])
    got = []
    with request_scope(lab.request), pytest.raises(Exception, match="out of memory"):
        for chunk in start(lab, stream=True):
            got.append(chunk["token"])
    assert "".join(got) == "so far"
    assert len(lab.backend.requests) == 1


# -- outcome and summary -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_usage_and_finish_reason_of_the_responder(lab: EngineLab, stream: bool) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    lab.backend.responder = lambda request: reply_to(request, "x", finish_reason="length", usage=usage)
    nodes = [llm("before"), llm("x", returnToUser=True), llm("after")]
    if stream:
        chunks = lab.chunks(nodes)
        assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["length"]
    else:
        lab.run(nodes)
    assert lab.request.outcome.usage == usage
    assert lab.request.outcome.finish_reason == "length"


def test_execution_info(lab: EngineLab) -> None:
    lab.endpoint("Main", {}, lab.backend.url.replace("://", "://user:secret@"))
    lab.workflow("Child", [static("x")])
    lab.workflow(
        "Main",
        [
            llm("x", title="Ask", agentName="not this"),
            static("y", agentName="Say"),
            {"type": "CustomWorkflow", "workflowName": "Child", "title": "Sub"},
            {
                "type": "ConditionalCustomWorkflow",
                "title": "Fork",
                "conditionalKey": "a",
                "conditionalWorkflows": {"a": "Child", "b": "B", "c": "C"},
            },
            {
                "type": "ConditionalCustomWorkflow",
                "title": "Fork",
                "conditionalKey": "a",
                "conditionalWorkflows": {"a": "Child", "b": "B", "c": "C", "Default": "D"},
            },
        ],
    )
    recorder = Recorder()
    list(start(lab, listener=recorder))
    infos = [info for record in recorder.finished if record.run.workflow_name == "Main" for info in record.nodes]
    texts = [str(info).rpartition(" || ")[0] for info in infos]
    assert texts == [
        f"Node 1: Standard || 'Ask' || Main || {lab.backend.url}",
        "Node 2: StaticResponse || 'Say' || N/A || N/A",
        "Node 3: CustomWorkflow || 'Sub -> Child' || N/A || N/A",
        "Node 4: ConditionalCustomWorkflow || 'Fork -> [Child, B, C]' || N/A || N/A",
        "Node 5: ConditionalCustomWorkflow || 'Fork -> [Child, B, +2 more]' || N/A || N/A",
    ]


def test_summary_names_the_endpoint_that_answered(lab: EngineLab) -> None:
    lab.endpoint("Main", {"backupEndpointName": "Second"})
    lab.endpoint("Second", {}, lab.backend.url)
    recorder = Recorder()
    lab.workflow("Main", [llm("x"), llm("y", returnToUser=True)])
    list(start(lab, listener=recorder))
    assert [(info.endpoint_name, info.endpoint_url) for info in recorder.infos] == [("Second", lab.backend.url)] * 2


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pass@127.0.0.1:1/v1", "http://127.0.0.1:1/v1"),
        ("http://127.0.0.1:1/v1?api_key=hunter2&mode=x", "http://127.0.0.1:1/v1?api_key=***REDACTED***&mode=x"),
        ("http://127.0.0.1:1?KEY=hunter2", "http://127.0.0.1:1?KEY=***REDACTED***"),
        ("http://127.0.0.1:1/a@b", "http://127.0.0.1:1/a@b"),
    ],
)
def test_summary_shows_no_secrets(lab: EngineLab, url: str, shown: str) -> None:
    lab.endpoint("Main", {}, url)
    recorder = Recorder()
    lab.workflow("Main", [llm("x")])
    list(start(lab, listener=recorder, probes={"Standard": Probe()}))
    assert str(recorder.infos[0]).startswith(f"Node 1: Standard || 'N/A' || Main || {shown} || ")


@pytest.mark.parametrize("url", ["user:hunter2@127.0.0.1:1/v1", "127.0.0.1:1/v1?token=hunter2"])
def test_an_address_without_scheme_is_refused_unseen(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    caplog.set_level(logging.DEBUG)
    lab.endpoint("Main", {}, url)
    with pytest.raises(ConfigValueError, match="no usable URL") as caught:
        lab.run([llm("x")])
    assert "hunter2" not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.0, "1 second"), (0.5, "0.50 seconds"), (182.44, "182.4 seconds"), (3.4, "3.4 seconds")]
)
def test_format_time(seconds: float, text: str) -> None:
    assert NodeExecutionInfo(1, "Standard", "n", "", "", seconds).format_time() == text
    assert (
        str(NodeExecutionInfo(2, "Standard", "Answer", "Desk-LLM", "http://10.1.1.5:8080", seconds))
        == f"Node 2: Standard || 'Answer' || Desk-LLM || http://10.1.1.5:8080 || {text}"
    )


def test_odd_conditional_workflows_do_not_break_the_summary(lab: EngineLab) -> None:
    assert (
        lab.run(
            [
                {
                    "type": "ConditionalCustomWorkflow",
                    "conditionalWorkflows": ["x"],
                    "UseDefaultContentInsteadOfWorkflow": "fine",
                }
            ]
        )
        == "fine"
    )


# -- what a node costs -------------------------------------------------------------------------------------------------


def test_python_calls_of_a_node_that_only_joins_texts(lab: EngineLab) -> None:
    """Every node of every workflow pays them, so a change that adds some is a decision."""

    def calls(count: int) -> int:
        nodes = [
            {"type": "StringConcatenator", "strings": ["a", f"{{agent{index}Output}}" if index else "b"]}
            for index in range(count)
        ]
        made = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event == "call"

        lab.run(nodes)
        sys.setprofile(note)
        try:
            lab.run(nodes)
        finally:
            sys.setprofile(None)
        return made

    assert (calls(24) - calls(4)) / 20 < 80
