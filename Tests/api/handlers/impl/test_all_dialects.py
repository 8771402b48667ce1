"""What holds for chat and text, OpenAI and Ollama, streamed and whole."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import EarlyTerminationException
from Middleware.workflows.handlers.impl.specialized_node_handler import StaticResponseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.api.api_lab import Answer, ApiLab, after_heartbeats, pause, settled
from Tests.api.front_dialects import FRONTS, OLLAMA_CHAT, OLLAMA_TEXT, OPENAI_CHAT, OPENAI_TEXT, Front
from Tests.llmapis.queue_lab import one_slot_for_calls, taken
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, json_reply, sse_reply, status_reply
from Tests.tables import table
from Tests.workflows.engine_lab import llm, reply_to, static

THINK = {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>", "openingTagGracePeriod": 50}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CHATS = [front for front in FRONTS if front.chat]


@pytest.fixture(params=FRONTS, ids=str)
def front(request: pytest.FixtureRequest) -> Front:
    found: Front = request.param
    return found


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)
        assert settled()  # while the back-end still answers the nodes that follow an answer


def ask(lab: ApiLab, front: Front, text: str = "hi", headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return lab.post(front.body(text, **fields), front.path, headers=headers)


def say(lab: ApiLab, text: str, **options: Any) -> None:
    """Make the back-end say ``text``: whole, or in pieces of three characters."""
    lab.backend.responder = lambda request: reply_to(request, text, **options)


def events(*items: Any, **options: Any) -> Any:
    return lambda request: sse_reply([*items, "[DONE]"], **options)


def test_a_call_that_gets_no_slot_says_when_to_come_back(
    lab: ApiLab, front: Front, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_slot_for_calls(monkeypatch):
        monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 0.01)
        running = taken()
        answer = ask(lab, front, stream=stream)
        running.end()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert "no slot for an LLM call" in front.error(answer.json, 503)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_answer(lab: ApiLab, front: Front, stream: bool) -> None:
    answer = ask(lab, front, "Grüße {a} 😀", stream=stream)
    assert answer.status == 200
    assert front.answer(answer.data, stream) == "<Grüße {a} 😀>"
    assert "😀".encode() in answer.data
    assert lab.prompts == ["Grüße {a} 😀"]
    assert len(answer.headers["X-Request-Id"]) == 36
    if stream:
        assert front.finishes(answer.data) == ["stop"]
        assert answer.headers["Content-Type"] == (
            "application/x-ndjson" if front.ollama else "text/event-stream; charset=utf-8"
        )
        assert answer.headers["Cache-Control"] == "no-cache" and answer.headers["X-Accel-Buffering"] == "no"
    else:
        assert front.finish(answer.json) == "stop"
        assert answer.headers["Content-Type"] == "application/json"


@table(
    ("value", "streams"),
    [(None, False), (False, False), ("false", False), ("False", False), ("yes", False), (True, True), ("TRUE", True)],
)
def test_stream_values(lab: ApiLab, front: Front, value: Any, streams: bool) -> None:
    lab.default([static("x")])
    assert ask(lab, front, stream=value).headers["Content-Type"].startswith("application/json") is not streams


def test_stream_defaults(lab: ApiLab, front: Front) -> None:
    lab.default([static("x")])
    whole = ask(lab, front).headers["Content-Type"] == "application/json"
    assert whole is (front is OPENAI_CHAT)


@pytest.mark.parametrize("headers", [{"Accept": "application/json"}, {"User-Agent": "node-fetch"}])
@pytest.mark.parametrize(("stream", "whole"), [({}, True), ({"stream": True}, False)])
def test_text_completions_of_clients_that_only_read_whole_answers(
    lab: ApiLab, headers: dict[str, str], stream: dict[str, bool], whole: bool
) -> None:
    lab.default([static("x")])
    answer = lab.post({"model": "m", "prompt": "hi", **stream}, "/v1/completions", headers=headers)
    assert (answer.headers["Content-Type"] == "application/json") is whole


@pytest.mark.parametrize("suffix", ["", "/"])
def test_trailing_slash_and_content_type(lab: ApiLab, front: Front, suffix: str) -> None:
    lab.default([static("x")])
    answer = lab.post(front.body(stream=False), front.path + suffix, content_type="text/plain")
    assert (answer.status, front.text(answer.json)) == (200, "x")


@table(("reason", "told"), [("length", "length"), ("stop", "stop"), (None, "stop")])
def test_finish_reason(lab: ApiLab, front: Front, stream: bool, reason: str | None, told: str) -> None:
    say(lab, "x", finish_reason=reason)
    data = ask(lab, front, stream=stream)
    assert (front.finishes(data.data) if stream else [front.finish(data.json)]) == [told]


def test_literal_done_does_not_end_a_stream(lab: ApiLab, front: Front) -> None:
    lab.backend.responder = events(
        chat_chunk({"content": "[DONE]"}),
        chat_chunk({"content": '"done":true'}),
        chat_chunk({"content": "\n\ndata: x"}),
        chat_chunk({}, "stop"),
    )
    assert front.streamed(ask(lab, front, stream=True).data) == '[DONE]"done":true\n\ndata: x'


def test_back_end_that_starts_with_null_and_ends_without_text(lab: ApiLab, front: Front) -> None:
    lab.backend.responder = events(
        chat_chunk({"role": "assistant", "content": None}), chat_chunk({"content": "a"}), chat_chunk({}, "stop")
    )
    assert front.streamed(ask(lab, front, stream=True).data) == "a"


@table(
    "nodes",
    [
        [static("TRUE")],
        [{"type": "Conditional", "condition": "1 == 1"}],
        [static("x"), {"type": "CustomWorkflow", "workflowName": "Child"}],
    ],
)
def test_any_node_can_answer(lab: ApiLab, front: Front, stream: bool, nodes: list[dict[str, Any]]) -> None:
    lab.workflow("Child", [llm("c"), static("TRUE")])
    lab.default(nodes)
    answer = ask(lab, front, stream=stream)
    assert front.answer(answer.data, stream) == "TRUE"
    if stream:
        assert front.finishes(answer.data) == ["stop"]


def test_empty_workflow_is_an_empty_answer(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.default([])
    answer = ask(lab, front, stream=stream)
    assert (answer.status, front.answer(answer.data, stream)) == (200, "")
    if stream:
        assert front.finishes(answer.data) == ["stop"]


def test_later_nodes_run_after_the_answer(lab: ApiLab, front: Front, stream: bool) -> None:
    gate = threading.Event()
    lab.backend.responder = lambda request: reply_to(request, str(gate.wait(60)))
    lab.default([static("now", returnToUser=True), llm("later"), llm("even later {agent2Output}")])
    assert front.answer(ask(lab, front, stream=stream).data, stream) == "now"
    gate.set()  # only now can the second node end
    assert settled()
    assert lab.prompts == ["later", "even later True"]


@table(
    ("model", "name"),
    [
        ("bob:fast:latest", "tester:fast"),
        ("fast", "tester:fast"),
        ("tester:latest", "tester"),
        ("gpt-4", "tester"),
        ("bob:../fast", "tester"),
    ],
)
def test_model_names(lab: ApiLab, front: Front, stream: bool, model: str, name: str) -> None:
    lab.default([static("default")])
    lab.shared("fast", "shared")
    answer = ask(lab, front, model=model, stream=stream)
    assert front.answer(answer.data, stream) == ("shared" if ":" in name else "default")
    for item in front.items(answer.data) if stream else [answer.json]:
        assert item["model"] == name


def test_unknown_user(lab: ApiLab, front: Front) -> None:
    lab.users("ann", "bob")
    lab.user_file("ann")
    lab.user_file("bob")
    lab.workflow("_DefaultWorkflow", [static("bob's")], folder="bob")
    answer = ask(lab, front, model="fast")
    assert answer.status == 400
    message = front.error(answer.json, 400)
    assert "Multi-user mode is active" in message and "ann, bob" in message
    answer = ask(lab, front, model="bob:nope", stream=False)
    assert (answer.json["model"], front.text(answer.json)) == ("bob", "bob's")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.9, "max_tokens": 3, "stop": ["x"], "n": 2, "response_format": {"type": "json_object"}},
        {
            "options": {"num_ctx": 9},
            "format": "json",
            "keep_alive": -1,
            "raw": True,
            "template": "t",
            "context": [1],
            "suffix": " ",
            "images": [],
        },
        {"tools": [], "options": {}, "format": "", "images": [], "logprobs": None, "seed": None},
    ],
)
def test_other_fields_are_ignored(lab: ApiLab, front: Front, fields: dict[str, Any]) -> None:
    answer = ask(lab, front, stream=False, **fields)
    assert front.text(answer.json) == "<hi>"
    assert lab.backend.requests[0].json.keys() == {"model", "messages", "max_tokens", "stream"}
    assert lab.backend.requests[0].json["messages"][-1] == {"role": "user", "content": "hi"}


def test_discussion_tag_is_removed(lab: ApiLab, front: Front) -> None:
    lab.default([llm("{chat_user_prompt_last_one}|{Discussion_Id}")])
    answer = ask(lab, front, "x[DiscussionId]d1[/DiscussionId]y", stream=False)
    assert front.text(answer.json) == "<xy|d1>"


def test_lone_surrogates_become_replacement_characters(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.backend.responder = lambda request: (
        Reply(
            pieces=[
                b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
                b'data: {"choices":[{"delta":{"content":"\\ude00b\\ud83d"},"finish_reason":"stop"}]}\n\n',
            ],
            headers={"Content-Type": "text/event-stream"},
        )
        if request.json["stream"]
        else Reply(body=b'{"choices":[{"message":{"content":"a\\ud83d\\ude00b\\ud83d"}}]}')
    )
    assert front.answer(ask(lab, front, stream=stream).data, stream) == "a😀b\ufffd"


# -- cost --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [None, {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}])
def test_token_counts(lab: ApiLab, front: Front, stream: bool, told: dict[str, int] | None) -> None:
    say(lab, "hello world", usage=told, header_delay=0.05)
    answer = ask(lab, front, "hello world", stream=stream, stream_options={"include_usage": True})
    last = front.items(answer.data)[-1] if stream else answer.json
    expected = told or {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    if not front.ollama or (front is OLLAMA_TEXT and not stream):
        assert last["usage"] == expected
    if front.ollama:
        assert (last["prompt_eval_count"], last["eval_count"]) == (
            expected["prompt_tokens"],
            expected["completion_tokens"],
        )
        assert 50_000_000 <= last["total_duration"] < 5_000_000_000
        assert last["prompt_eval_duration"] + last["eval_duration"] + last["load_duration"] <= last["total_duration"]


@pytest.mark.parametrize("front", [OPENAI_CHAT, OPENAI_TEXT], ids=str)
def test_usage_chunk(lab: ApiLab, front: Front) -> None:
    *chunks, closing = front.items(ask(lab, front, stream=True, stream_options={"include_usage": True}).data)
    assert closing["choices"] == [] and closing["usage"]["total_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks)
    assert b"usage" not in ask(lab, front, stream=True).data


def test_fingerprint_of_the_back_end(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.backend.responder = lambda request: (
        sse_reply(
            [
                chat_chunk({"role": "assistant", "content": ""}, system_fingerprint="b77"),
                chat_chunk({"content": "a"}, system_fingerprint="b77"),
                chat_chunk({"content": "b"}, system_fingerprint="b77"),
                chat_chunk({}, "stop"),
                "[DONE]",
            ]
        )
        if request.json["stream"]
        else json_reply({"system_fingerprint": "b77", "choices": [{"message": {"content": "ab"}}]})
    )
    answer = ask(lab, front, stream=stream, stream_options={"include_usage": True})
    assert front.answer(answer.data, stream) == "ab"
    found = {item.get("system_fingerprint") for item in (front.items(answer.data) if stream else [answer.json])}
    assert found == {None if front.ollama else "b77"}
    say(lab, "ab")
    answer = ask(lab, front, stream=stream)
    found = {item.get("system_fingerprint") for item in (front.items(answer.data) if stream else [answer.json])}
    assert found == {None if front.ollama else "fp_44709d6fcb" if stream else "wmr_123456789"}


# -- tool calls --------------------------------------------------------------------------------------------------------


def test_tool_calls(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.default([llm("", allowTools=True)])
    fragments = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    lab.backend.responder = lambda request: (
        sse_reply(
            [
                chat_chunk({"content": "so"}),
                *[chat_chunk({"tool_calls": [fragment]}) for fragment in fragments],
                chat_chunk({}, "tool_calls"),
                "[DONE]",
            ]
        )
        if request.json["stream"]
        else json_reply(
            {"choices": [{"message": {"content": "so", "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}
        )
    )
    answer = ask(lab, front, stream=stream, tools=TOOLS)
    native = [{"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}]
    assert front.answer(answer.data, stream) == "so"
    assert front.calls(answer.data, stream) == (
        [] if not front.chat else native if front.ollama else fragments if stream else [CALL]
    )
    reasons = front.finishes(answer.data) if stream else [front.finish(answer.json)]
    assert reasons == ["tool_calls" if front is OPENAI_CHAT else "stop"]
    assert ("tools" in lab.backend.requests[0].json) is front.chat
    if front is OLLAMA_CHAT and stream:
        text, calls, last = front.items(answer.data)
        assert [bool(item["message"].get("tool_calls")) for item in (text, calls, last)] == [False, True, False]
        assert (calls["done"], calls["message"]["content"], last["done"]) == (False, "", True)


@pytest.mark.parametrize(
    "said, arguments, written",
    [
        ("so", '{"a":"\u00fc"}', 'so\n\n{"name": "f", "arguments": {"a": "\u00fc"}}'),
        (None, "", '{"name": "f", "arguments": {}}'),
        ("", '{"a"', '{"name": "f", "arguments": "{\\"a\\""}'),
        ("<think>no</think>", "{}", '{"name": "f", "arguments": {}}'),
    ],
)
def test_a_tool_call_becomes_text_for_a_client_that_has_sent_no_tools(
    lab: ApiLab,
    front: Front,
    stream: bool,
    said: str | None,
    arguments: str,
    written: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab.endpoint("Main", THINK, lab.backend.url)
    lab.default([llm("", title="Answer")])
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    first = {"index": 0, **call, "function": {"name": "f", "arguments": arguments[:2]}}
    rest = {"index": 0, "function": {"arguments": arguments[2:]}}
    lab.backend.responder = lambda request: (
        sse_reply(
            [
                chat_chunk({"content": said}),
                chat_chunk({"tool_calls": [first]}),
                chat_chunk({"tool_calls": [rest]}),
                chat_chunk({}, "tool_calls"),
                "[DONE]",
            ]
        )
        if request.json["stream"]
        else json_reply(
            {"choices": [{"message": {"content": said, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
        )
    )
    answer = ask(lab, front, stream=stream)
    assert front.answer(answer.data, stream) == written
    assert b"tool_calls" not in answer.data
    assert (front.finishes(answer.data) if stream else [front.finish(answer.json)]) == ["stop"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "Node 'Answer': its model called a tool, but the client has sent none; the client gets the call as text."
    ]


def test_tool_calls_alone(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.default([llm("", allowTools=True)])
    fragment = {"index": 0, **CALL}
    lab.backend.responder = lambda request: (
        sse_reply([chat_chunk({"tool_calls": [fragment]}, "tool_calls"), "[DONE]"])
        if request.json["stream"]
        else json_reply(
            {"choices": [{"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}
        )
    )
    answer = ask(lab, front, stream=stream, tools=TOOLS)
    assert front.answer(answer.data, stream) == ""
    assert len(front.calls(answer.data, stream)) == (1 if front.chat else 0)
    if stream:
        assert front.finishes(answer.data) == ["tool_calls" if front is OPENAI_CHAT else "stop"]
        # The calls, and then the end, which is known only behind them.
        assert len(front.items(answer.data)) == (2 if front.chat else 1)
    elif front is OPENAI_CHAT:
        assert answer.json["choices"][0]["message"]["content"] is None
    if front is OLLAMA_CHAT:
        last = front.items(answer.data)[-1] if stream else answer.json
        assert (last["message"]["content"], last["done"], last["done_reason"]) == ("", True, "stop")


def test_empty_list_of_calls_is_ordinary_text(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.default([llm("", allowTools=True)])
    lab.backend.responder = lambda request: (
        sse_reply([chat_chunk({"content": "hi", "tool_calls": []}), chat_chunk({}, "stop"), "[DONE]"])
        if request.json["stream"]
        else json_reply({"choices": [{"message": {"content": "hi", "tool_calls": []}}]})
    )
    answer = ask(lab, front, stream=stream, tools=TOOLS)
    assert front.answer(answer.data, stream) == "hi"
    assert front.calls(answer.data, stream) == []


def test_held_text_goes_before_the_call(lab: ApiLab) -> None:
    """A possible opening tag is still undecided when the call comes."""
    lab.endpoint("Main", THINK, lab.backend.url)
    lab.default([llm("", allowTools=True)])
    lab.backend.responder = events(
        chat_chunk({"content": "look <th"}),
        chat_chunk({"tool_calls": [{"index": 0, **CALL}]}),
        chat_chunk({}, "tool_calls"),
    )
    items = OPENAI_CHAT.items(ask(lab, OPENAI_CHAT, stream=True, tools=TOOLS).data)
    deltas = [item["choices"][0]["delta"] for item in items]
    call = next(index for index, delta in enumerate(deltas) if "tool_calls" in delta)
    assert "".join(delta.get("content", "") for delta in deltas[: call + 1]) == "look <th"
    assert "".join(delta.get("content", "") for delta in deltas[call + 1 :]) == ""


LIVENESS = {"livenessToolCall": {"toolName": " ping ", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    ("text", "node", "injected"),
    [("done", {"injectLivenessToolCall": True}, True), ("done", {}, False), (" ", {}, True)],
)
def test_liveness_call(lab: ApiLab, front: Front, text: str, node: dict[str, Any], injected: bool) -> None:
    lab.user(**LIVENESS)
    lab.default([llm("", **node)])
    say(lab, text)
    answer = ask(lab, front, stream=True)
    assert front.streamed(answer.data).strip() == text.strip()
    calls = front.calls(answer.data, True)
    if not injected or not front.chat:
        assert calls == [] and front.finishes(answer.data) == ["stop"]
    elif front.ollama:
        (call,) = calls
        assert call.pop("id").startswith("wilmer_liveness_")
        assert call == {"function": {"index": 0, "name": "ping", "arguments": {"a": 1}}}
        assert front.finishes(answer.data) == ["stop"]
    else:
        (call,) = calls
        assert call["id"].startswith("wilmer_liveness_") and len(call["id"]) == len("wilmer_liveness_") + 8
        assert call["function"] == {"name": "ping", "arguments": '{"a": 1}'}
        assert front.finishes(answer.data) == ["tool_calls"]


TOOL_CHOICE = {
    "role": "system",
    "content": "Hey. Your task is to choose and return the correct tool(s) from the list "
    "of available tools based on the query. Query: x",
}


@pytest.mark.parametrize("front", CHATS, ids=str)
def test_question_for_tools_is_answered_at_once(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.user(interceptOpenWebUIToolRequests=True)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "system", "content": ["y"]},
        TOOL_CHOICE,
    ]
    answer = lab.post({"model": "any:latest", "messages": messages, "stream": stream}, front.path)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert lab.backend.requests == []
    body = answer.json
    if front.ollama:
        assert (body["model"], body["message"]) == ("any:latest", {"role": "assistant", "content": ""})
        assert (body["done"], body["done_reason"]) == (True, "stop")
        assert [
            body[key]
            for key in (
                "total_duration",
                "load_duration",
                "prompt_eval_count",
                "prompt_eval_duration",
                "eval_count",
                "eval_duration",
            )
        ] == [0] * 6
    else:
        assert body["id"] == f"chatcmpl-opnwui-tool-{body['created']}"
        assert body["choices"][0]["message"] == {"role": "assistant", "content": None, "tool_calls": []}
        assert body["choices"][0]["finish_reason"] == "tool_calls"
    lab.user()
    assert front.text(lab.post({"model": "m", "messages": messages, "stream": False}, front.path).json)
    assert len(lab.backend.requests) == 1


# -- reasoning ---------------------------------------------------------------------------------------------------------


def separate(request: RecordedRequest) -> Reply:
    """A back-end that delivers the thoughts apart from the text."""
    if request.json["stream"]:
        return sse_reply(
            [
                chat_chunk({"reasoning_content": "po"}),
                chat_chunk({"reasoning_content": "nder"}),
                chat_chunk({"content": "Yes"}),
                chat_chunk({}, "stop"),
                "[DONE]",
            ]
        )
    return json_reply({"choices": [{"message": {"content": "Yes", "reasoning_content": "ponder"}}]})


def said(text: str) -> Any:
    return lambda request: reply_to(request, text)


CLOSING = {**THINK, "expectOnlyClosingThinkTag": True}
REASONING = {
    "apart": ({}, separate, "Yes", "ponder"),
    "in tags": (THINK, said("<think>ponder</think>\n\nYes"), "Yes", "ponder"),
    "capital tags": (THINK, said("<THINK>\nponder\n</Think>Yes"), "Yes", "ponder"),
    "after some text": (THINK, said("Well, <think>ponder</think>Yes"), "Well, Yes", "ponder"),
    "closing tag only": (CLOSING, said("ponder</think>Yes"), "Yes", "ponder"),
    "unterminated": (THINK, said("<think>ponder"), "<think>ponder", ""),
    "too late": (THINK, said("x" * 51 + "<think>a</think>b"), "x" * 51 + "<think>a</think>b", ""),
    "tags kept": ({}, said("<think>ponder</think>Yes"), "<think>ponder</think>Yes", ""),
    "second block": (THINK, said("<think>ponder</think>m<think>b</think>"), "m<think>b</think>", "ponder"),
    "nothing": (THINK, said("Yes"), "Yes", ""),
    "only thoughts": (THINK, said("<think>ponder</think>"), "", "ponder"),
}


EACH_CASE = table("case", REASONING.values(), ids=list(REASONING))


@EACH_CASE
@pytest.mark.parametrize("nested", [False, True], ids=["responder", "nested"])
def test_reasoning(lab: ApiLab, front: Front, stream: bool, nested: bool, case: tuple[Any, ...]) -> None:
    endpoint, lab.backend.responder, text, thought = case
    lab.user(sendReasoningToClient=True)
    lab.endpoint("Main", endpoint, lab.backend.url)
    if nested:
        lab.workflow("Child", [llm("not shown"), llm("", returnToUser=True), llm("not shown either")])
        lab.default(
            [llm("hidden"), {"type": "CustomWorkflow", "workflowName": "Child", "returnToUser": True}, llm("after")]
        )
    answer = ask(lab, front, stream=stream)
    assert front.answer(answer.data, stream) == text
    assert front.reasoning(answer.data, stream) == (thought if front.chat else "")
    if stream:
        assert front.finishes(answer.data) == ["stop"]


@EACH_CASE
def test_no_reasoning_unless_wanted(lab: ApiLab, front: Front, stream: bool, case: tuple[Any, ...]) -> None:
    endpoint, lab.backend.responder, text, _ = case
    lab.endpoint("Main", endpoint, lab.backend.url)
    answer = ask(lab, front, stream=stream)
    assert front.answer(answer.data, stream) == text
    assert b"reasoning" not in answer.data and b"thinking" not in answer.data
    assert "ponder" in text or b"ponder" not in answer.data


def test_reasoning_comes_before_the_text(lab: ApiLab) -> None:
    lab.user(sendReasoningToClient=True)
    lab.backend.responder = separate
    deltas = [item["choices"][0]["delta"] for item in OPENAI_CHAT.items(ask(lab, OPENAI_CHAT, stream=True).data)]
    assert deltas == [
        {"role": "assistant", "reasoning_content": "po"},
        {"reasoning_content": "nder"},
        {"content": "Yes"},
        {},
    ]


# -- errors ------------------------------------------------------------------------------------------------------------


@table(
    "data",
    [
        "{oops",
        "null",
        "",
        '"x',
        b"\xff\xfe{",
        "[" * 100_000,
        '{"n": NaN}',
        '{"n": [-Infinity]}',
        '{"n": 1e999, "m": NaN}',
        b"\0\0",
        b"{}\0{}",
        b"\xef\xbb\xbf",
    ],
)
def test_bodies_that_are_not_json(lab: ApiLab, front: Front, data: Any) -> None:
    answer = lab.post(data, front.path, content_type="text/plain")
    assert (answer.status, front.error(answer.json, 400)) == (400, "Invalid JSON data")
    assert len(answer.headers["X-Request-Id"]) == 36


@table("number", ["1e400000", "-1e999", "9" * 5000, "[1, {}, 1e999]", '{"x": 1e400}'])
def test_numbers_beyond_all_count_only_in_a_field_that_is_used(lab: ApiLab, front: Front, number: str) -> None:
    good = json.dumps(front.body(stream=False))[:-1]
    for field in ("max_tokens", "max_completion_tokens", "options", "n", "seed", "later"):
        answer = lab.post(f'{good}, "{field}": {number}}}', front.path)
        assert answer.status == 200, (field, answer.data)
    used = "messages" if front.chat else "prompt"
    answer = lab.post(f'{{"model": "m", "{used}": {number}}}', front.path)
    assert answer.status == 400
    error = f"The '{used}' field has a number that is too large."
    assert error in str(answer.json)


@table("end", [b"\0", b"\0\0\r\n\0", b"\xef\xbb\xbf", b"\n\0 \xef\xbb\xbf"])
@table("start", [b"", b"\xef\xbb\xbf"])
def test_a_nul_or_a_bom_around_the_body_is_blank(lab: ApiLab, front: Front, start: bytes, end: bytes) -> None:
    answer = lab.post(start + json.dumps(front.body(stream=False)).encode() + end, front.path)
    assert answer.status == 200 and front.text(answer.json)


@table("data", ["[]", "5", '"text"', "true", "[1e999]", b"5\0"])
def test_bodies_that_are_no_object(lab: ApiLab, front: Front, data: str) -> None:
    answer = lab.post(data, front.path)
    assert answer.status == 400 and front.error(answer.json, 400)


MESSAGES = "The 'messages' field is required."
BOTH = "Both 'model' and 'messages' fields are required."
MODEL = "The 'model' field is required."
ROLE = "Each message must have a 'role' field."
CONTENT = "Each message must have 'content' or 'tool_calls'."
LIST = "The 'messages' field must be a list of objects."


@table(
    ("front", "body", "text"),
    [
        (OPENAI_CHAT, {}, MESSAGES),
        (OPENAI_CHAT, {"model": "m"}, MESSAGES),
        (OLLAMA_CHAT, {}, BOTH),
        (OLLAMA_CHAT, {"messages": []}, BOTH),
        (OLLAMA_CHAT, {"model": "m", "keep_alive": " " * 4096}, BOTH),
        (OLLAMA_TEXT, {}, MODEL),
        (OLLAMA_TEXT, {"prompt": "x"}, MODEL),
        (OLLAMA_TEXT, {"model": "", "prompt": "x"}, MODEL),
        (OLLAMA_TEXT, {"model": None, "prompt": "x"}, MODEL),
        *[
            (chat, {"model": "m", "messages": messages}, text)
            for chat in CHATS
            for messages, text in (
                ([{"content": "x"}], ROLE),
                ([{"role": "user"}], CONTENT),
                *([] if chat is OLLAMA_CHAT else [(None, LIST)]),
                ("x", LIST),
                (["x"], LIST),
                ({"role": "user"}, LIST),
                (
                    [{"role": "user", "content": {"a": 1}}],
                    "messages[0].content: expected a text or a list of blocks, found an object.",
                ),
            )
        ],
    ],
)
@table("users", [["tester"], ["tester", "bob"]], ids=["single", "multi"])
def test_bad_requests(lab: ApiLab, front: Front, body: Any, text: str, users: list[str]) -> None:
    lab.users(*users)
    if len(users) > 1 and body.get("model"):
        body = {**body, "model": "tester"}
    answer = lab.post(body, front.path)
    assert (answer.status, front.error(answer.json, 400)) == (400, text)
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("front", "prompt"),
    [
        (OPENAI_TEXT, ["a", "b"]),
        (OPENAI_TEXT, []),
        (OPENAI_TEXT, [[1, 2]]),
        (OPENAI_TEXT, [5]),
        (OPENAI_TEXT, 5),
        (OPENAI_TEXT, {"a": 1}),
        (OLLAMA_TEXT, ["a"]),
        (OLLAMA_TEXT, 5),
    ],
)
def test_prompts_that_are_no_text(lab: ApiLab, front: Front, prompt: Any) -> None:
    answer = lab.post(front.body(prompt=prompt), front.path)
    assert answer.status == 400
    assert "'prompt'" in front.error(answer.json, 400)


@table("model", [5, ["m"], {"a": 1}, True])
def test_model_must_be_a_text(lab: ApiLab, front: Front, model: Any) -> None:
    answer = ask(lab, front, model=model)
    assert (answer.status, front.error(answer.json, 400)) == (400, "The 'model' field must be a text.")


def public(lab: ApiLab, message: str) -> bool:
    """Whether a message is fit for clients: one line, neither paths nor traces of the program."""
    return (
        "\n" not in message
        and str(lab.root) not in message
        and "Traceback" not in message
        and ".py" not in message
        and "sk-secret" not in message
    )


@table(
    ("reply", "words"),
    [
        (status_reply(401, "bad key"), "bad key"),
        (Reply(body=b"<html>", headers={"Content-Type": "text/html"}), "Main"),
        (Reply(drop="before_status"), "Main"),
        (status_reply(400, "no\nsuch\nmodel"), "no such model"),
    ],
)
def test_back_end_fails_before_the_first_byte(
    lab: ApiLab, front: Front, stream: bool, reply: Reply, words: str
) -> None:
    lab.endpoint("Main", {"apiKey": "sk-secret"}, lab.backend.url)
    lab.backend.responder = lambda request: reply
    answer = ask(lab, front, stream=stream)
    assert (answer.status, answer.headers["Content-Type"]) == (502, "application/json")
    message = front.error(answer.json, 502)
    assert words in message and "_DefaultWorkflow" in message and public(lab, message)
    assert answer.headers["X-Request-Id"] in message


def test_a_failure_that_would_come_again_must_not_be_repeated(lab: ApiLab, front: Front, stream: bool) -> None:
    for status, lasting in (
        (400, True),
        (401, True),
        (404, True),
        (422, True),
        (408, False),
        (429, False),
        (500, False),
        (503, False),
    ):
        lab.backend.responder = lambda request, status=status: status_reply(  # type: ignore[misc]
            status, headers={"Retry-After": "0"}
        )
        answer = ask(lab, front, stream=stream)
        assert (answer.status, answer.headers.get("x-should-retry")) == (502, "false" if lasting else None), status


def test_nobody_listens(lab: ApiLab, front: Front, stream: bool) -> None:
    lab.endpoint("Main", {}, "http://127.0.0.1:1")
    answer = ask(lab, front, stream=stream)
    assert answer.status == 502 and "x-should-retry" not in answer.headers
    assert "Main" in front.error(answer.json, 502)


@table(
    "write",
    [
        ("Workflows/tester/_DefaultWorkflow", {"nodes": "x"}),
        ("Workflows/tester/_DefaultWorkflow", [llm("x", preset="P")]),
        ("Users/tester", {"routingConfig": "gone"}),
        ("Endpoints/lab/Main", {"endpoint": 5}),
    ],
)
def test_broken_configuration(lab: ApiLab, front: Front, stream: bool, write: tuple[str, Any]) -> None:
    lab.write(*write)
    answer = ask(lab, front, stream=stream)
    assert (answer.status, answer.headers["x-should-retry"]) == (500, "false")
    message = front.error(answer.json, 500)
    assert public(lab, message) and answer.headers["X-Request-Id"] in message


def test_a_bug_tells_the_client_nothing(
    lab: ApiLab, front: Front, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"internal words at {lab.root}")

    monkeypatch.setattr("Middleware.api.handlers.base.base_api_handler.start_user_prompt", bug)
    answer = ask(lab, front, stream=stream)
    assert answer.status == 500
    message = front.error(answer.json, 500)
    assert "internal words" not in message and public(lab, message)
    assert answer.headers["X-Request-Id"] in message


@pytest.mark.parametrize(
    "reply",
    [
        sse_reply([chat_chunk({"content": "so far"}), {"error": {"message": "out of\nmemory"}}], delay=0.05),
        sse_reply([chat_chunk({"content": "so far"})], drop="after_pieces", delay=0.05),
    ],
    ids=["error", "drop"],
)
def test_failure_in_mid_stream(lab: ApiLab, front: Front, reply: Reply) -> None:
    lab.backend.responder = lambda request: reply
    answer = ask(lab, front, stream=True)
    assert answer.status == 200
    *chunks, error = front.items(answer.data)
    assert "".join(front.text(chunk) for chunk in chunks) == "so far"
    message = front.error(error, 502)
    assert public(lab, message) and answer.headers["X-Request-Id"] in message
    assert not any(front.finish(chunk) for chunk in chunks)


def test_failure_after_a_heartbeat(lab: ApiLab, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(monkeypatch, 60.0, 0.05)
    beaten = after_heartbeats(monkeypatch)
    lab.backend.responder = lambda request: status_reply(400, "late", held=beaten)
    answer = ask(lab, front, stream=True)
    assert answer.status == 200
    (beat, error) = front.items(answer.data)
    assert "late" in front.error(error, 502)
    if front.ollama:
        assert (beat["model"], beat["done"], front.text(beat)) == ("tester", False, "")
        assert beat["request_id"] == answer.headers["X-Request-Id"] and beat["created_at"].endswith("Z")
    else:
        assert front.text(beat) == "" and front.finish(beat) is None


@pytest.mark.parametrize("stream", [False], ids=["whole"])
def test_the_log_has_the_bug_and_not_the_words(
    lab: ApiLab, front: Front, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        ask(lab, front, "walrus words", stream=stream, headers={"Authorization": "Bearer secretkey"})
        lab.backend.responder = lambda request: status_reply(400, "bad")
        ask(lab, front, "walrus words", stream=stream)
        assert settled()
    assert "failed before the answer" in caplog.text
    assert "walrus" not in caplog.text and "secretkey" not in caplog.text


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A node that ends its run, as one does that wants a lock which another run has."""
    answer = StaticResponseHandler.handle

    def handle(self: StaticResponseHandler, context: ExecutionContext) -> Any:
        if context.config["content"] == "held":
            raise EarlyTerminationException("the lock is held by another run")
        return answer(self, context)

    monkeypatch.setattr(StaticResponseHandler, "handle", handle)
    return static("held")


def test_lock_before_the_answer_makes_it_empty(lab: ApiLab, front: Front, stream: bool, held: dict[str, Any]) -> None:
    lab.default([held, llm("never")])
    answer = ask(lab, front, stream=stream)
    assert (answer.status, front.answer(answer.data, stream)) == (200, "")
    assert (front.finishes(answer.data) if stream else [front.finish(answer.json)]) == ["stop"]
    assert lab.backend.requests == []


def test_lock_after_the_answer_leaves_it(
    lab: ApiLab, front: Front, stream: bool, held: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    lab.default([llm("", returnToUser=True), held, llm("never")])
    answer = ask(lab, front, stream=stream)
    assert (answer.status, front.answer(answer.data, stream)) == (200, "<hi>")
    assert (front.finishes(answer.data) if stream else [front.finish(answer.json)]) == ["stop"]
    assert settled() and lab.prompts == ["hi"]
    assert "Traceback" not in caplog.text


# -- odd requests ------------------------------------------------------------------------------------------------------


@table("front", CHATS, ids=str)
@table("calls", [["x"], {"a": 1}, "x", [None], 5])
def test_tool_calls_that_are_none(lab: ApiLab, front: Front, calls: Any, stream: bool) -> None:
    lab.default([static("{chat_user_prompt_last_two}", includeToolCallsInConversation=True)])
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": calls},
        {"role": "user", "content": "c"},
    ]
    answer = lab.post({**front.body("x"), "messages": messages, "stream": stream}, front.path)
    assert answer.status == 200
    assert (front.streamed(answer.data) if stream else front.text(answer.json)) == "b\nc"


def test_code_of_a_request_can_ask_for_its_id(lab: ApiLab, tmp_path: Path, front: Front, stream: bool) -> None:
    script = tmp_path / "whoami.py"
    script.write_text("from flask import g\ndef Invoke():\n    return g.current_request_id\n", "utf-8")
    lab.default([{"type": "PythonModule", "module_path": str(script)}])
    answer = ask(lab, front, stream=stream)
    assert front.answer(answer.data, stream) == answer.headers["X-Request-Id"]
