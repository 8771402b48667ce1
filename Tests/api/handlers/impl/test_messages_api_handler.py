"""Anthropic's Messages API, from HTTP to HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount

from Middleware.llmapis import repeats
from Tests.api.api_lab import Answer, ApiLab, settled
from Tests.stub_backend import (
    RecordedRequest,
    Reply,
    StubBackend,
    chat_chunk,
    json_reply,
    sse_reply,
    status_reply,
)
from Tests.tables import check_all
from Tests.workflows.engine_lab import llm, reply_to, static, user

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
READ = {
    "name": "read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 60},
}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.default([llm(systemPrompt="{chat_system_prompt}", allowTools=True)])
        yield lab
    assert settled()


def ask(lab: ApiLab, *messages: Any, path: str = PATH, headers: Any = None, **fields: Any) -> Answer:
    """A message as Anthropic's packages send it."""
    return lab.post(
        {"model": "claude", "max_tokens": 1024, "messages": list(messages) or [user("hi")], **fields},
        path,
        headers=headers,
    )


def events(answer: Answer) -> list[Any]:
    """The events of a stream, each with its type as its name."""
    blocks = answer.data.decode().split("\n\n")
    assert blocks.pop() == "" and answer.headers["Content-Type"].startswith("text/event-stream")
    parsed = []
    for block in blocks:
        name, _, payload = block.partition("\ndata: ")
        parsed.append(json.loads(payload))
        assert name == f"event: {parsed[-1]['type']}"
    return parsed


def content(parsed: list[Any]) -> list[Any]:
    """The content that the events add up to."""
    blocks: list[Any] = []
    for event in parsed:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            kind, key = event["delta"]["type"], next(key for key in event["delta"] if key != "type")
            blocks[-1]["json" if kind == "input_json_delta" else key] = (
                blocks[-1].get("json" if kind == "input_json_delta" else key, "") + event["delta"][key]
            )
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(blocks[-1].pop("json", "") or "{}")
    return blocks


def both(lab: ApiLab, *messages: Any, **fields: Any) -> Any:
    """The whole answer, which must be what the stream adds up to."""
    whole = ask(lab, *messages, **fields).json
    parsed = events(ask(lab, *messages, stream=True, **fields))
    assert content(parsed) == whole["content"]
    delta = next(event for event in parsed if event["type"] == "message_delta")
    assert (delta["delta"]["stop_reason"], delta["usage"]) == (whole["stop_reason"], whole["usage"])
    return whole


def says(text: str | None = "", *calls: Any, finish: str = "stop", reasoning: str = "") -> Any:
    """A responder of the back-end, whole or streamed as it is asked."""

    def reply(request: RecordedRequest) -> Reply:
        thought = {"reasoning_content": reasoning} if reasoning else {}
        if not request.json.get("stream"):
            message = {"role": "assistant", "content": text, **thought, **({"tool_calls": calls} if calls else {})}
            return json_reply({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": USAGE})
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        deltas = [thought, {"content": text}, *({"tool_calls": [call]} for call in numbered)]
        return sse_reply(
            [
                *(chat_chunk(delta) for delta in deltas if delta),
                chat_chunk({}, finish),
                {"choices": [], "usage": USAGE},
                "[DONE]",
            ]
        )

    return reply


def error(answer: Answer, status: int) -> Any:
    """The error of a refusal in Anthropic's form."""
    assert answer.status == status and answer.headers["Content-Type"] == "application/json"
    body = answer.json
    assert body.keys() == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == f"req_{answer.headers['X-Request-Id'].replace('-', '')}"
    return body["error"]


# -- answers -----------------------------------------------------------------------------------------------------------
def test_whole_answer(lab: ApiLab) -> None:
    answer = ask(lab, user("Grüße 😀"), system="Be terse.")
    assert answer.status == 200
    message = answer.json
    Message.model_validate(message, strict=True)
    assert message["content"] == [{"type": "text", "text": "<Grüße 😀>"}]
    assert (message["model"], message["role"], message["stop_reason"], message["stop_sequence"]) == (
        "tester",
        "assistant",
        "end_turn",
        None,
    )
    assert message["id"] == f"msg_{answer.headers['X-Request-Id'].replace('-', '')}"
    assert [entry["content"] for entry in lab.backend.requests[0].json["messages"]] == ["Be terse.", "Grüße 😀"]


def test_paths(lab: ApiLab) -> None:
    for path in ("/messages", "/v1/messages/", "/v1/messages?beta=true"):
        assert ask(lab, path=path).json["content"][0]["text"] == "<hi>", path
        assert MessageTokensCount.model_validate(
            ask(lab, path=path.replace("messages", "messages/count_tokens")).json
        ).input_tokens, path


def test_a_checksum_in_the_system_prompt_does_not_reach_the_llm(lab: ApiLab) -> None:
    ask(lab, system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "A"}])
    assert lab.backend.requests[0].json["messages"][0] == {"role": "system", "content": "A"}


def test_the_end_of_an_answer(lab: ApiLab) -> None:
    rows = [
        (says("Hi", finish="length"), "max_tokens"),
        (says("Hi", finish="content_filter"), "refusal"),
        (says("Hi", CALL), "tool_use"),
        (says("Hi", finish="tool_calls"), "end_turn"),
        (says(""), "end_turn"),
    ]

    def check(row: Any) -> None:
        lab.backend.responder = row[0]
        message = both(lab, tools=[READ])
        assert message["stop_reason"] == row[1]
        assert message["usage"]["input_tokens"] == 40 and message["usage"]["cache_read_input_tokens"] == 60
        assert message["usage"]["output_tokens"] == 7

    check_all(rows, check, lambda row: row[1])
    assert both(lab)["content"] == []


def test_no_tokens_allowed(lab: ApiLab) -> None:
    """Clients fill caches with it; nobody is asked."""
    message = ask(lab, max_tokens=0).json
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens") and message["usage"]["input_tokens"] > 0
    parsed = events(ask(lab, max_tokens=0, stream=True))
    assert [event["type"] for event in parsed] == ["message_start", "message_delta", "message_stop"]
    assert parsed[1]["delta"]["stop_reason"] == "max_tokens"
    assert lab.backend.requests == []


def test_thinking_if_the_client_asks_and_the_user_allows_it(lab: ApiLab) -> None:
    lab.backend.responder = says("Hi", reasoning="Hm.")
    wanted = {"type": "enabled", "budget_tokens": 1024}
    assert [block["type"] for block in both(lab, thinking=wanted)["content"]] == ["text"]
    lab.user(sendReasoningToClient=True)
    assert [block["type"] for block in both(lab)["content"]] == ["text"]
    thinking, text = both(lab, thinking=wanted)["content"]
    assert (thinking["thinking"], text["text"]) == ("Hm.", "Hi") and thinking["signature"].startswith("wilmer-")
    assert both(lab, thinking={**wanted, "display": "omitted"})["content"][0] == {**thinking, "thinking": ""}
    back = {"role": "assistant", "content": [thinking, text]}
    ask(lab, user("hi"), back, user("again"))
    assert [entry["content"] for entry in lab.backend.requests[-1].json["messages"]] == ["hi", "Hi", "again"]


def test_tools_there_and_back(lab: ApiLab) -> None:
    lab.backend.responder = says("I look.", CALL, {**CALL, "id": "functions.read:1"}, finish="tool_calls")
    message = both_but_ids(lab, tools=[READ], tool_choice={"type": "any"})
    first, second = message["content"][1:]
    assert first == {"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}}
    assert re.fullmatch(r"toolu_[0-9a-f]{24}", second["id"])
    sent = lab.backend.requests[0].json
    assert sent["tools"][0]["function"]["parameters"] == READ["input_schema"] and sent["tool_choice"] == "required"
    results = [
        {"type": "tool_result", "tool_use_id": first["id"], "content": "A"},
        {"type": "tool_result", "tool_use_id": second["id"], "content": "no", "is_error": True},
        {"type": "text", "text": "Go on."},
    ]
    ask(
        lab,
        user("hi"),
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": results},
        tools=[READ],
    )
    _, turn, *rest = lab.backend.requests[-1].json["messages"]
    assert turn["content"] == "I look." and [call["id"] for call in turn["tool_calls"]] == [first["id"], second["id"]]
    assert [(entry["role"], entry["content"], entry.get("tool_call_id")) for entry in rest] == [
        ("tool", "A", first["id"]),
        ("tool", "Error: no", second["id"]),
        ("user", "Go on.", None),
    ]


def both_but_ids(lab: ApiLab, **fields: Any) -> Any:
    """As ``both``, for calls whose ids are made anew."""
    whole = ask(lab, **fields).json
    streamed = content(events(ask(lab, stream=True, **fields)))
    assert [{**block, "id": ""} for block in streamed] == [{**block, "id": ""} for block in whole["content"]]
    return whole


def test_names_of_tools_in_another_case(lab: ApiLab) -> None:
    lab.backend.responder = says("", {**CALL, "function": {"name": "READ", "arguments": "{oops"}})
    (block,) = ask(lab, tools=[READ]).json["content"]
    assert (block["name"], block["input"]) == ("read", {})


def test_the_choice_of_no_tool(lab: ApiLab) -> None:
    ask(lab, tools=[READ], tool_choice={"type": "none"})
    assert not lab.backend.requests[0].json.keys() & {"tools", "tool_choice"}


def test_liveness_call(lab: ApiLab) -> None:
    lab.user(livenessToolCall={"toolName": "read", "arguments": {"path": "[Wilmer]"}})
    lab.backend.responder = says("")
    parsed = events(ask(lab, stream=True, tools=[READ]))
    (block,) = content(parsed)
    assert block["id"].startswith("wilmer_liveness_") and parsed[-2]["delta"]["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
    ask(lab, user("hi"), {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}, user("on"))
    assert [entry["content"] for entry in lab.backend.requests[-1].json["messages"]] == ["hi", "on"]


def test_discussion_tag_in_the_system_prompt(lab: ApiLab) -> None:
    ask(lab, system="Be [DiscussionId]d1[/DiscussionId]terse.")
    assert lab.backend.requests[0].json["messages"][0]["content"] == "Be terse."


# -- failures ----------------------------------------------------------------------------------------------------------
def test_refusals(lab: ApiLab) -> None:
    rows: list[Any] = [
        b"{oops",
        {},
        {"messages": 5},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [], "model": 5},
        {"messages": [], "tool_choice": {"type": "tool", "name": "none"}},
        {"messages": [], "container": "c"},
    ]

    def check(body: Any) -> None:
        for path in (PATH, "/messages", COUNT):
            assert error(lab.post(body, path), 400)["type"] == "invalid_request_error"

    check_all(rows, check)
    found = error(lab.post({"messages": [], "thread": {"id": "t"}}, PATH), 400)
    assert found["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert lab.backend.requests == []


def test_failures_of_the_back_end(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a failure that the same request would meet again says so."""
    # A stream that is tried again for longer than a second has begun by then.
    monkeypatch.setattr(repeats, "MOST_ATTEMPTS", 1)
    rows = [(400, "false"), (401, "false"), (404, "false"), (500, None), (429, None)]

    def check(row: tuple[int, str | None]) -> None:
        for stream in (False, True):
            lab.backend.responder = lambda request: status_reply(row[0], "no such model")
            answer = ask(lab, stream=stream)
            assert error(answer, 502)["type"] == "api_error" and "Main" in answer.json["error"]["message"]
            assert answer.headers.get("x-should-retry") == row[1]

    check_all(rows, check)


def test_a_failure_in_mid_stream_ends_the_stream(lab: ApiLab) -> None:
    lab.backend.responder = lambda request: sse_reply([chat_chunk({"content": "Once"}), {"error": {"message": "oom"}}])
    *before, last = events(ask(lab, stream=True))
    assert last["error"]["type"] == "api_error" and "Main" in last["error"]["message"]
    assert last["request_id"].startswith("req_")
    assert [event["type"] for event in before] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
    ]


# -- counting ----------------------------------------------------------------------------------------------------------
def test_count_grows_with_text_and_tools(lab: ApiLab) -> None:
    def count(*messages: Any, **fields: Any) -> int:
        answer = lab.post({"messages": list(messages), **fields}, COUNT)
        return MessageTokensCount.model_validate(answer.json, strict=True).input_tokens

    assert count() == 1
    counts = [
        count(user("hello")),
        count(user("hello there, how are you")),
        count(user("hello there, how are you"), system="Be terse."),
        count(user("hello there, how are you"), system="Be terse.", tools=[READ]),
    ]
    assert counts == sorted(set(counts))
    deferred = {"tools": [READ, {**READ, "name": "late", "defer_loading": True}]}
    assert count(user("hello"), **deferred) == count(user("hello"), tools=[READ])
    assert lab.backend.requests == []


def test_users(lab: ApiLab) -> None:
    lab.users("ann", "tom")
    for name in ("ann", "tom"):
        lab.user_file(name)
        lab.workflow("_DefaultWorkflow", [static(name)], folder=name)
    for path in (PATH, COUNT):
        assert "ann, tom" in error(lab.post({"messages": [user("hi")]}, path), 400)["message"]
        assert lab.post({"model": "tom", "messages": [user("hi")]}, path).status == 200
    answer = ask(lab, model="tom")
    assert (answer.json["content"][0]["text"], answer.json["model"]) == ("tom", "tom")


def test_the_workflow_answers(lab: ApiLab) -> None:
    lab.default([llm("first"), static("said")])
    assert both(lab)["content"] == [{"type": "text", "text": "said"}]
    lab.backend.responder = lambda request: reply_to(request, "x")
    assert ask(lab, stream=True).status == 200
