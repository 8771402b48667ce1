"""What coding agents need, in each dialect that they speak: whole tool exchanges, liveness calls, titles, counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.requests.background_tasks import is_waiting_task
from Tests.api.api_lab import Answer, ApiLab
from Tests.api.responses_stream import heard
from Tests.api.running.test_background_requests import LIBRE_CHAT, OPENCODE_SYSTEM, OPENCODE_TITLE
from Tests.stub_backend import StubBackend, chat_stream_reply
from Tests.workflows.engine_lab import llm, static

Item = dict[str, Any]
# Calls and results of a conversation, with their ids.
Round = tuple[str, str]
USAGE = {"prompt_tokens": 82, "completion_tokens": 20, "total_tokens": 102}


@dataclass(frozen=True)
class Dialect:
    """How a dialect writes a conversation: system prompt, the user's messages, tool rounds, another message."""

    path: str

    def body(self, system: str, users: list[str], rounds: Sequence[Round] = (), last: str = "", **fields: Any) -> Item:
        raise NotImplementedError

    def ending(self, answer: Answer) -> tuple[list[tuple[str, str]], int, int]:
        """The calls of a stream with their ids, and the tokens read and written."""
        raise NotImplementedError


class Chat(Dialect):
    def body(self, system: str, users: list[str], rounds: Sequence[Round] = (), last: str = "", **fields: Any) -> Item:
        messages: list[Item] = [{"role": "system", "content": system}, *({"role": "user", "content": x} for x in users)]
        for name, call_id in rounds:
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": "done"},
            ]
        messages += [{"role": "user", "content": last}] if last else []
        return {"messages": messages, "stream_options": {"include_usage": True}, **fields}

    def ending(self, answer: Answer) -> tuple[list[tuple[str, str]], int, int]:
        deltas = [event["choices"][0]["delta"] for event in answer.events if event != "[DONE]" and event["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        usage = next(event["usage"] for event in answer.events if event != "[DONE]" and not event["choices"])
        return (
            [(call["function"]["name"], call["id"]) for call in calls],
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )


class Responses(Dialect):
    def body(self, system: str, users: list[str], rounds: Sequence[Round] = (), last: str = "", **fields: Any) -> Item:
        items: list[Item] = [{"role": "user", "content": [{"type": "input_text", "text": x}]} for x in users]
        for name, call_id in rounds:
            items += [
                {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"},
                {"type": "function_call_output", "call_id": call_id, "output": "done"},
            ]
        items += [{"role": "user", "content": last}] if last else []
        if "tools" in fields:
            fields["tools"] = [{"type": "function", **tool["function"]} for tool in fields["tools"]]
        return {"instructions": system, "input": items, **fields}

    def ending(self, answer: Answer) -> tuple[list[tuple[str, str]], int, int]:
        response = heard(answer.data).response
        calls = [(item["name"], item["call_id"]) for item in response["output"] if item["type"] == "function_call"]
        return calls, response["usage"]["input_tokens"], response["usage"]["output_tokens"]


class Messages(Dialect):
    def body(self, system: str, users: list[str], rounds: Sequence[Round] = (), last: str = "", **fields: Any) -> Item:
        # The packages put the user's messages in a row into one turn.
        turns: list[Item] = [{"role": "user", "content": [{"type": "text", "text": text} for text in users]}]
        for name, call_id in rounds:
            call = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "done"}
            turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        turns += [{"role": "user", "content": last}] if last else []
        if "tools" in fields:
            fields["tools"] = [
                {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
                for tool in fields["tools"]
            ]
        return {"system": system, "messages": turns, "max_tokens": 1000, **fields}

    def ending(self, answer: Answer) -> tuple[list[tuple[str, str]], int, int]:
        events = [json.loads(block.partition("data: ")[2]) for block in answer.data.decode().split("\n\n") if block]
        calls = [
            event["content_block"]
            for event in events
            if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use"
        ]
        usage = next(event["usage"] for event in events if event["type"] == "message_delta")
        return [(call["name"], call["id"]) for call in calls], usage["input_tokens"], usage["output_tokens"]


DIALECTS = {
    "chat": Chat("/v1/chat/completions"),
    "Responses": Responses("/v1/responses"),
    "Messages": Messages("/v1/messages"),
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("read", "wait")
]
ROUNDS = [("read", f"call_{number}") for number in range(13)]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)


@every_dialect
def test_no_result_without_its_call(lab: ApiLab, dialect: Dialect) -> None:
    windows: dict[str, Item] = {
        "21": {"lastMessagesToSendInsteadOfPrompt": 21},
        "20": {"lastMessagesToSendInsteadOfPrompt": 20},
        "blocks": {"lastMessagesToSendInsteadOfPrompt": 26, "messageBlockSize": 4},
        "clamped": {"lastMessagesToSendInsteadOfPrompt": 99, "clampPromptToContextWindow": True},
        "all": {"lastMessagesToSendInsteadOfPrompt": 99},
    }
    lab.endpoint("Main", {"maxContextTokenSize": 1100}, lab.backend.url)
    for name, window in windows.items():
        lab.default([llm(allowTools=True, systemPrompt="{chat_system_prompt}", maxResponseSizeInTokens=400, **window)])
        body = dialect.body("You are an agent.", ["Read it all."], ROUNDS, tools=TOOLS)
        assert lab.post(body, dialect.path).status == 200
        sent = lab.backend.requests[-1].json["messages"]
        assert [message["role"] for message in sent[:2]] == ["system", "user"], name
        calls = [call["id"] for message in sent for call in message.get("tool_calls") or ()]
        results = [message["tool_call_id"] for message in sent if message["role"] == "tool"]
        assert calls == results and calls[-1] == "call_12", name
        assert (len(calls) == 13) is (name == "all"), name


@every_dialect
def test_a_liveness_call_goes_to_the_client_and_its_return_is_removed(lab: ApiLab, dialect: Dialect) -> None:
    lab.user(livenessToolCall={"toolName": "wait", "arguments": {}})
    lab.default([llm(allowTools=True, injectLivenessToolCall=True, lastMessagesToSendInsteadOfPrompt=99)])
    answer = lab.post(dialect.body("You are an agent.", ["Go on."], tools=TOOLS, stream=True), dialect.path)
    ((name, call_id),), _, _ = dialect.ending(answer)
    assert name == "wait" and call_id.startswith("wilmer_liveness_")
    body = dialect.body("You are an agent.", ["Go on."], [(name, call_id)], last="And now?", tools=TOOLS)
    assert lab.post(body, dialect.path).status == 200
    sent = lab.backend.requests[-1].json["messages"]
    assert [message["content"] for message in sent] == ["Go on.", "And now?"]


@every_dialect
def test_titles_are_tasks_of_the_front_end(lab: ApiLab, dialect: Dialect) -> None:
    lab.user(backgroundTaskWorkflow="Small")
    lab.default([static("the long way")])
    lab.workflow("Small", [static("the short way")])
    for stream in (False, True):
        for system, users, own in (
            (OPENCODE_SYSTEM, [OPENCODE_TITLE, '"Read the notes"'], True),
            (OPENCODE_SYSTEM, ["Read the notes"], False),
            ("You are terse.", [LIBRE_CHAT["title"]], True),
        ):
            answer = lab.post(dialect.body(system, users, stream=stream), dialect.path)
            assert answer.status == 200 and (b"short" in answer.data) is own, (stream, users)


@every_dialect
def test_the_counts_of_a_stream_are_those_of_the_back_end(lab: ApiLab, dialect: Dialect) -> None:
    lab.backend.responder = lambda request: chat_stream_reply(["It ", "works."], usage=USAGE)
    answer = lab.post(dialect.body("You are an agent.", ["Does it?"], stream=True), dialect.path)
    assert dialect.ending(answer) == ([], 82, 20)


@every_dialect
def test_what_a_waiting_request_says_of_itself(dialect: Dialect) -> None:
    """Its body is looked at in any dialect before the user's settings are known."""
    title = [OPENCODE_TITLE, '"Read the notes"']
    for body, own in (
        (dialect.body(OPENCODE_SYSTEM, title, stream=True), True),
        (dialect.body("You are an agent.", title, stream=True), False),
        ({"input": LIBRE_CHAT["title"], "stream": True}, True),
        (
            {"input": [{"role": "developer", "content": OPENCODE_SYSTEM}, {"role": "user", "content": OPENCODE_TITLE}]},
            True,
        ),
    ):
        assert is_waiting_task({"wsgi.input": BytesIO(json.dumps(body).encode())}) is own
