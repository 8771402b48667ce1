"""OpenAI chat completions and the model list, from HTTP to HTTP."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from Tests.api.api_lab import CHAT, ApiLab, settled
from Tests.api.front_dialects import anthropic_message, openai_message
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, json_reply, sse_reply, status_reply
from Tests.workflows.engine_lab import llm, reply_to, static, until, user

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        yield ApiLab(tmp_path, monkeypatch, backend)
    assert settled()


# -- whole answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/v1/chat/completions/"])
def test_whole_answer(lab: ApiLab, path: str) -> None:
    answer = lab.chat(user("Grüße 😀"), path=path)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert len(answer.headers["X-Request-Id"]) == 36
    assert answer.text == "<Grüße 😀>"
    assert "Grüße 😀".encode() in answer.data
    assert answer.json["model"] == "tester"
    assert answer.json["choices"][0]["finish_reason"] == "stop"


def test_content_type_does_not_matter(lab: ApiLab) -> None:
    body = b'{"messages":[{"role":"user","content":"a"}]}'
    assert lab.post(body, content_type="text/plain").status == 200
    assert lab.post(body, content_type="application/x-www-form-urlencoded").status == 200


@pytest.mark.parametrize(
    ("stream", "streams"),
    [
        (None, False),
        (False, False),
        ("false", False),
        ("False", False),
        ("yes", False),
        (0, False),
        (True, True),
        ("True", True),
        (1, True),
    ],
)
def test_stream_values(lab: ApiLab, stream: Any, streams: bool) -> None:
    answer = lab.chat(stream=stream)
    assert answer.headers["Content-Type"].startswith("text/event-stream") is streams


def test_stream_defaults_to_false(lab: ApiLab) -> None:
    assert lab.chat().json["object"] == "chat.completion"


def test_braces_come_back(lab: ApiLab) -> None:
    assert lab.chat(user("{a}")).text == "<{a}>"
    assert lab.prompts == ["{a}"]


def test_empty_conversation_and_empty_workflow(lab: ApiLab) -> None:
    lab.default([])
    assert lab.chat().text == ""
    assert lab.chat(stream=True).streamed_text == ""
    lab.default([static("x")])
    assert lab.post({"messages": []}).text == "x"


def test_usage(lab: ApiLab) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    lab.backend.responder = lambda request: reply_to(request, "x", usage=usage)
    assert lab.chat().json["usage"] == usage
    lab.backend.responder = lambda request: reply_to(request, "hello world")
    assert lab.chat(user("hello world")).json["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
    }


@pytest.mark.parametrize("stream", [False, True])
def test_finish_reason_length(lab: ApiLab, stream: bool) -> None:
    lab.backend.responder = lambda request: reply_to(request, "x", finish_reason="length")
    answer = lab.chat(stream=stream)
    if stream:
        assert [event["choices"][0]["finish_reason"] for event in answer.events[:-1]][-1] == "length"
    else:
        assert answer.json["choices"][0]["finish_reason"] == "length"


def test_a_plain_message_costs_no_call_of_a_function(lab: ApiLab) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    lab.default([llm("", lastMessagesToSendInsteadOfPrompt=1000)])
    lab.backend.responder = lambda request: reply_to(request, "x", usage=usage)

    def calls(count: int) -> int:
        made: list[str] = []

        def note(frame: FrameType, event: str, _argument: object) -> None:
            if event == "call" and "Middleware" in frame.f_code.co_filename:
                made.append(frame.f_code.co_name)

        conversation = [{"role": ("user", "assistant")[turn % 2], "content": f"turn {turn}"} for turn in range(count)]
        sys.setprofile(note)
        try:
            lab.chat(*conversation)
        finally:
            sys.setprofile(None)
        assert lab.backend.requests[-1].json["messages"] == conversation
        return len(made)

    calls(10)
    assert calls(500) - calls(10) < 50


def test_tools_go_through(lab: ApiLab) -> None:
    lab.default([llm("", allowTools=True)])
    lab.backend.responder = lambda request: json_reply(
        {"choices": [{"message": {"content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = lab.chat(tools=tools, tool_choice="auto")
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"
    assert lab.backend.requests[0].json["tools"] == tools
    assert lab.backend.requests[0].json["tool_choice"] == "auto"


def test_tool_result_turns_are_kept(lab: ApiLab) -> None:
    lab.chat(
        user("q"),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    )
    sent = lab.backend.requests[0].json["messages"]
    assert sent[1]["tool_calls"] == [CALL]
    assert sent[2]["tool_call_id"] == "c1" and sent[2]["content"] == "42"


def test_other_fields_are_ignored(lab: ApiLab) -> None:
    lab.chat(temperature=1.9, max_tokens=3, stop=["x"], n=4, response_format={"type": "json_object"})
    assert lab.backend.requests[0].json.keys() == {"model", "messages", "max_tokens", "stream"}
    assert lab.backend.requests[0].json["max_tokens"] == 400


# -- streams -----------------------------------------------------------------------------------------------------------


def test_stream(lab: ApiLab) -> None:
    answer = lab.chat(user("one two"), stream=True)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-cache" and answer.headers["X-Accel-Buffering"] == "no"
    assert len(answer.headers["X-Request-Id"]) == 36
    *chunks, final, done = answer.events
    assert done == "[DONE]" and answer.data.endswith(b"data: [DONE]\n\n")
    assert final["choices"][0]["delta"] == {} and final["choices"][0]["finish_reason"] == "stop"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "<on"}
    assert answer.streamed_text == "<one two>"
    assert len({chunk["id"] for chunk in [*chunks, final]}) == 1
    assert all(chunk["model"] == "tester" and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("told", [None, {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}])
def test_include_usage(lab: ApiLab, told: dict[str, int] | None) -> None:
    lab.backend.responder = lambda request: reply_to(request, "hello world", usage=told)
    *chunks, closing, done = lab.chat(user("hello world"), stream=True, stream_options={"include_usage": True}).events
    assert done == "[DONE]"
    assert closing["choices"] == []
    assert closing["usage"] == (told or {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6})
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, "x", []])
def test_no_usage_unless_asked(lab: ApiLab, options: Any) -> None:
    assert b"usage" not in lab.chat(stream=True, stream_options=options).data


def test_a_token_that_says_done_does_not_end_the_stream(lab: ApiLab) -> None:
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": "[DONE]"}), chat_chunk({"content": " on"}), chat_chunk({}, "stop"), "[DONE]"]
    )
    answer = lab.chat(stream=True)
    assert answer.streamed_text == "[DONE] on"
    assert answer.events[-1] == "[DONE]"


def test_tool_fragment_with_finish_reason(lab: ApiLab) -> None:
    fragment = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": "so "}), chat_chunk({"tool_calls": [fragment]}, "tool_calls"), "[DONE]"]
    )
    *_, call, last, done = lab.chat(stream=True, tools=[{"type": "function", "function": {"name": "f"}}]).events
    assert done == "[DONE]"
    assert call["choices"][0]["delta"]["tool_calls"] == [{**fragment, "type": "function"}]
    assert [item["choices"][0]["finish_reason"] for item in (call, last)] == [None, "tool_calls"]


@pytest.mark.parametrize(
    "nodes",
    [
        [{"type": "Conditional", "condition": "1 == 1"}],
        [static("TRUE")],
        [static("no"), {"type": "StringConcatenator", "strings": ["TR", "UE"]}],
    ],
)
def test_any_node_streams(lab: ApiLab, nodes: list[dict[str, Any]]) -> None:
    lab.default(nodes)
    answer = lab.chat(stream=True)
    assert answer.streamed_text == "TRUE"
    assert [event["choices"][0]["finish_reason"] for event in answer.events[:-1]].count("stop") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_later_nodes_run_after_the_answer(lab: ApiLab, stream: bool) -> None:
    go_on, finished = threading.Event(), []

    def later(request: RecordedRequest) -> Reply:
        finished.append(go_on.wait(20))
        return reply_to(request, "x")

    lab.backend.responder = later
    lab.default([static("now", returnToUser=True), llm("later"), llm("even later {agent2Output}")])
    answer = lab.chat(stream=stream)
    assert finished == []
    go_on.set()
    assert (answer.streamed_text if stream else answer.text) == "now"
    assert until(lambda: len(lab.backend.requests) == 2)
    assert settled()
    assert lab.prompts == ["later", "even later x"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_later_node_leaves_the_answer(lab: ApiLab, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    lab.backend.responder = lambda request: status_reply(400)
    lab.default([static("now", returnToUser=True), llm("later")])
    answer = lab.chat(stream=stream)
    assert answer.status == 200
    assert (answer.streamed_text if stream else answer.text) == "now"
    assert settled()
    assert "failed after the answer" in caplog.text


# -- text completions --------------------------------------------------------------------------------------------------

COMPLETIONS = "/v1/completions"


def test_whole_completion(lab: ApiLab) -> None:
    answer = lab.post({"prompt": "a", "stream": False}, COMPLETIONS)
    body = answer.json
    assert body.pop("id") == f"cmpl-{answer.headers['X-Request-Id'].replace('-', '')}" and body.pop("created")
    assert body == {
        "object": "text_completion",
        "model": "tester",
        "system_fingerprint": "wmr_123456789",
        "choices": [{"text": "<a>", "index": 0, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def test_streamed_completion(lab: ApiLab) -> None:
    events = lab.post({"prompt": "abcd"}, COMPLETIONS).events
    assert events.pop() == "[DONE]"
    assert len({(event.pop("id"), event.pop("created")) for event in events}) == 1
    assert [event.pop("choices")[0] for event in events] == [
        {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}
        for text, reason in (("<ab", None), ("cd>", None), ("", "stop"))
    ]
    assert events == [{"object": "text_completion", "model": "tester", "system_fingerprint": "fp_44709d6fcb"}] * 3


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        ("plain text", [("user", "plain text")]),
        (["one"], [("user", "one")]),
        (
            "[Beg_Sys]S[Beg_User] Ann: hi [Beg_Assistant]Mira:",
            [("system", "S"), ("user", "Ann: hi"), ("assistant", "Mira:")],
        ),
    ],
)
def test_prompts(lab: ApiLab, prompt: Any, messages: list[tuple[str, str]]) -> None:
    lab.user(chatCompleteAddUserAssistant=True, chatCompletionAddMissingAssistantGenerator=True)
    lab.default([llm("", systemPrompt="{chat_system_prompt}")])
    lab.post({"prompt": prompt, "stream": False}, COMPLETIONS)
    sent = lab.backend.requests[0].json["messages"]
    assert [(message["role"], message["content"]) for message in sent] == messages


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": ""}, {"prompt": [""]}])
def test_empty_prompt(lab: ApiLab, body: dict[str, Any]) -> None:
    lab.default([static("x")])
    assert lab.post({**body, "stream": False}, COMPLETIONS).json["choices"][0]["text"] == "x"


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{not json", "Invalid JSON data"),
        ("null", "Invalid JSON data"),
        ("", "Invalid JSON data"),
        ("[1]", "The request body must be a JSON object."),
        ({}, "The 'messages' field is required."),
        ({"messages": "x"}, "The 'messages' field must be a list of objects."),
        ({"messages": ["x"]}, "The 'messages' field must be a list of objects."),
        ({"messages": None}, "The 'messages' field must be a list of objects."),
        ({"messages": [{"content": "x"}]}, "Each message must have a 'role' field."),
        ({"messages": [{"role": "user"}]}, "Each message must have 'content' or 'tool_calls'."),
        ({"messages": [user("x")], "model": 5}, "The 'model' field must be a text."),
        ({"messages": [user("x")], "model": ["a"]}, "The 'model' field must be a text."),
        (
            {"messages": [{"role": "user", "content": {"a": 1}}]},
            "messages[0].content: expected a text or a list of blocks, found an object.",
        ),
    ],
)
def test_bad_requests(lab: ApiLab, body: Any, text: str) -> None:
    answer = lab.post(body)
    assert (answer.status, openai_message(answer.json, 400)) == (400, text)
    assert answer.headers["Content-Type"] == "application/json"
    assert len(answer.headers["X-Request-Id"]) == 36


@pytest.mark.parametrize("stream", [False, True])
def test_backend_refuses(lab: ApiLab, stream: bool) -> None:
    lab.backend.responder = lambda request: status_reply(401, "bad key")
    answer = lab.chat(stream=stream)
    assert answer.status == 502
    assert answer.headers["Content-Type"] == "application/json"
    message = openai_message(answer.json, 502)
    assert "Main" in message and "_DefaultWorkflow" in message and "node 1" in message
    assert answer.headers["X-Request-Id"] in message
    assert "\n" not in message and str(lab.root) not in message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("write", "words"),
    [
        (
            ("Workflows/tester/_DefaultWorkflow", [{"type": "Standard", "endpointName": "Mein", "prompt": "x"}]),
            ["Endpoints/lab/Mein.json", "'Main'"],
        ),
        (("Workflows/tester/_DefaultWorkflow", [llm("x", preset="Gone")]), ["Gone", "Presets/OpenAiCompatibleApis"]),
        (("Workflows/tester/_DefaultWorkflow", {"nodes": "x"}), ["Workflows/tester/_DefaultWorkflow.json", "nodes"]),
        (
            ("Endpoints/lab/Main", {"endpoint": "http://127.0.0.1:1", "apiTypeConfigFileName": "Opneai"}),
            ["Opneai", "'OpenAI'"],
        ),
        (("Users/tester", {"routingConfig": "gone"}), ["Routing/gone.json"]),
        (("Users/tester", {"customWorkflowOverride": True}), ["customWorkflow", "Users/tester.json"]),
    ],
)
def test_broken_configuration(lab: ApiLab, stream: bool, write: tuple[str, Any], words: list[str]) -> None:
    lab.write(*write)
    answer = lab.chat(stream=stream)
    assert answer.status == 500
    message = openai_message(answer.json, 500)
    assert all(word in message for word in words), message
    assert str(lab.root) not in message


def test_missing_user_file(lab: ApiLab) -> None:
    lab.users("nobody")
    answer = lab.chat()
    assert answer.status == 500
    assert "Users/nobody.json" in openai_message(answer.json, 500)


def test_error_in_mid_stream(lab: ApiLab) -> None:
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": "so far"}), {"error": {"message": "out of memory"}}], delay=0.05
    )
    answer = lab.chat(stream=True)
    assert answer.status == 200
    assert answer.streamed_text == "so far"
    *_, error, done = answer.events
    assert done == "[DONE]"
    assert "out of memory" in openai_message(error, 502)


def test_error_in_the_same_block_as_tokens(lab: ApiLab) -> None:
    events = sse_reply([chat_chunk({"content": "so "}), chat_chunk({"content": "far"}), {"error": {"message": "oom"}}])
    assert events.pieces is not None
    lab.backend.responder = lambda request: Reply(pieces=[b"".join(events.pieces or ())], headers=events.headers)
    answer = lab.chat(stream=True)
    assert (answer.status, answer.streamed_text) == (200, "so far")
    assert "oom" in openai_message(answer.events[-2], 502)


# -- users, models, shared workflows -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "text", "name"),
    [
        ("greet", "shared", "tester:greet"),
        ("x:greet", "shared", "tester:greet"),
        ("bob:greet:latest", "shared", "tester:greet"),
        ("greet:latest", "shared", "tester:greet"),
        ("tester:_hidden", "hidden", "tester:_hidden"),
        ("single", "file", "tester:single"),
        ("gpt-4", "default", "tester"),
        ("", "default", "tester"),
        (None, "default", "tester"),
        ("x:../../y", "default", "tester"),
        ("bob:../greet", "default", "tester"),
        ("Greet", "default", "tester"),
    ],
)
def test_model_of_a_single_user(lab: ApiLab, model: Any, text: str, name: str) -> None:
    lab.default([static("default")])
    lab.shared("greet", "shared")
    lab.shared("_hidden", "hidden")
    lab.workflow("single", [static("file")], folder="_shared")
    for stream in (False, True):
        answer = lab.chat(model=model, stream=stream)
        assert (answer.streamed_text if stream else answer.text) == text
        assert (answer.events[0] if stream else answer.json)["model"] == name


@pytest.fixture
def two_users(lab: ApiLab) -> ApiLab:
    lab.users("alice", "bob")
    lab.user_file("alice", sharedWorkflowsSubDirectoryOverride="_alice", allowSharedWorkflows=True)
    lab.user_file("bob")
    lab.workflow("_DefaultWorkflow", [static("greeting")], folder="_alice/greet")
    for name in ("alice", "bob"):
        lab.workflow("_DefaultWorkflow", [static(f"{name}'s default")], folder=name)
    return lab


@pytest.mark.parametrize(
    ("model", "text", "name"),
    [
        ("alice:greet", "greeting", "alice:greet"),
        ("alice:greet:latest", "greeting", "alice:greet"),
        ("bob:nope", "bob's default", "bob"),
        ("bob:", "bob's default", "bob"),
        ("bob:greet", "bob's default", "bob"),
        ("bob", "bob's default", "bob"),
        ("alice:latest", "alice's default", "alice"),
    ],
)
def test_model_of_two_users(two_users: ApiLab, model: str, text: str, name: str) -> None:
    answer = two_users.chat(model=model)
    assert (answer.text, answer.json["model"]) == (text, name)


@pytest.mark.parametrize("model", ["greet", "gpt-4", "Alice", None, "", "carol:greet"])
def test_unknown_user(two_users: ApiLab, model: Any) -> None:
    answer = two_users.chat(model=model)
    assert answer.status == 400
    message = openai_message(answer.json, 400)
    assert "Multi-user mode is active" in message and "alice, bob" in message


def test_user_names_are_not_told_to_the_network(two_users: ApiLab) -> None:
    answer = two_users.post({"messages": [user("x")]}, environ_overrides={"REMOTE_ADDR": "10.0.0.9"})
    assert answer.status == 400
    message = openai_message(answer.json, 400)
    assert "Multi-user mode is active" in message and "alice" not in message


def test_no_user_sticks_to_the_thread(two_users: ApiLab) -> None:
    assert two_users.chat(model="alice:greet").status == 200
    assert two_users.chat(model="bob").text == "bob's default"
    assert two_users.chat().status == 400


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/"])
def test_models(lab: ApiLab, path: str) -> None:
    assert [entry["id"] for entry in lab.get(path).json["data"]] == ["tester"]
    lab.user(allowSharedWorkflows=True)
    assert [entry["id"] for entry in lab.get(path).json["data"]] == ["tester"]
    for name in ("b", "a", "_x"):
        lab.shared(name, "t")
    assert [entry["id"] for entry in lab.get(path).json["data"]] == ["tester:a", "tester:b"]
    lab.user(allowSharedWorkflows=False)
    assert [entry["id"] for entry in lab.get(path).json["data"]] == ["tester"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/v1/models/tester:a", "tester:a"),
        ("/models/tester:a", "tester:a"),
        ("/v1/models/tester:a/", "tester:a"),
        ("/v1/models/tester:a:latest", "tester:a"),
        ("/v1/models/tester", ""),
        ("/v1/models/meta/llama", ""),
    ],
)
def test_one_model(lab: ApiLab, path: str, found: str) -> None:
    lab.user(allowSharedWorkflows=True)
    lab.shared("a", "t")
    answer = lab.get(path)
    if found:
        assert answer.status == 200
        assert (answer.json["id"], answer.json["object"], answer.json["owned_by"]) == (found, "model", "Wilmer")
    else:
        assert answer.status == 404
        assert path.rpartition("/models/")[2] in openai_message(answer.json, 404, "model_not_found")


ANTHROPIC = {"anthropic-version": "2023-06-01"}


def anthropic_page(lab: ApiLab, query: str = "") -> tuple[list[str], bool]:
    """The names on a page of Anthropic's list, and whether there are more."""
    body = lab.get(f"/v1/models{query}", ANTHROPIC).json
    names = [entry["id"] for entry in body["data"]]
    assert body.keys() == {"data", "has_more", "first_id", "last_id"}
    assert (body["first_id"], body["last_id"]) == ((names[0], names[-1]) if names else (None, None))
    return names, body["has_more"]


def test_models_in_the_shape_of_anthropic(lab: ApiLab) -> None:
    lab.user(allowSharedWorkflows=True, contextLengthForClients=5000)
    for name in "abcd":
        lab.shared(name, "text")
    [first, *_] = lab.get("/models", ANTHROPIC).json["data"]
    assert first == {
        "type": "model",
        "id": "tester:a",
        "display_name": "tester:a",
        "lifecycle": "active",
        "created_at": "2024-11-23T00:00:00Z",
        "max_input_tokens": 5000,
        "max_tokens": 5000,
    }
    assert lab.get("/v1/models/tester:a:latest", ANTHROPIC).json == first
    everything = [f"tester:{name}" for name in "abcd"]
    for query, names, more in (
        ("", everything, False),
        ("?limit=3", everything[:3], True),
        ("?limit=1", everything[:1], True),
        ("?limit=1&after_id=tester:a", everything[1:2], True),
        ("?after_id=tester:c", everything[3:], False),
        ("?after_id=tester:d", [], False),
        ("?before_id=tester:c", everything[:2], False),
        ("?limit=1&before_id=tester:c", everything[1:2], True),
        ("?before_id=tester:a", [], False),
    ):
        assert anthropic_page(lab, query) == (names, more), query
    for query in ("?limit=0", "?limit=1001", "?limit=x", "?after_id=tester", "?before_id=nope"):
        answer = lab.get(f"/v1/models{query}", ANTHROPIC)
        word = query.partition("=")[0][1:]
        assert answer.status == 400 and f"'{word}'" in anthropic_message(answer.json, 400), query
    answer = lab.get("/v1/models/nope", ANTHROPIC)
    assert answer.status == 404 and "'nope'" in anthropic_message(answer.json, 404)
    assert "object" in lab.get("/v1/models").json


def test_the_context_length_in_every_list_is_that_of_the_user(two_users: ApiLab) -> None:
    two_users.user_file("bob", contextLengthForClients=9000)
    lengths = {"alice:greet": 32768, "bob": 9000}
    entries = two_users.get("/v1/models").json["data"]
    assert {entry["id"]: entry["context_length"] for entry in entries} == lengths
    assert all(entry["meta"] == {"n_ctx": lengths[entry["id"]]} for entry in entries)
    loaded = two_users.get("/api/ps").json["models"]
    assert {entry["name"]: entry["context_length"] for entry in loaded} == lengths
    for name, length in lengths.items():
        shown = two_users.post({"model": name}, "/api/show").json
        assert shown["model_info"]["wilmer.context_length"] == length


def test_models_of_two_users(two_users: ApiLab) -> None:
    assert [entry["id"] for entry in two_users.get("/v1/models").json["data"]] == ["alice:greet", "bob"]
    (two_users.root / "Users" / "bob.json").write_text("{", encoding="utf-8")
    two_users.user_file("alice", sharedWorkflowsSubDirectoryOverride="_alice", allowSharedWorkflows=True)
    assert [entry["id"] for entry in two_users.get("/v1/models").json["data"]] == ["alice:greet", "bob"]


def test_discussion_tag_is_removed(lab: ApiLab) -> None:
    lab.default([llm("{chat_user_prompt_last_one}|{Discussion_Id}")])
    for tag, seen in (("d1", "xy|d1"), ("../evil", "xy|"), ("C:x", "xy|"), ("", "xy|")):
        assert lab.chat(user(f"x[DiscussionId]{tag}[/DiscussionId]y")).text == f"<{seen}>"


# -- privacy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "headers"),
    [({"redactLogOutput": True}, {}), ({"encryptUsingApiKey": True}, {"Authorization": "Bearer secretkey"})],
)
@pytest.mark.parametrize("stream", [False, True])
def test_redacted_requests_leave_no_words_in_the_log(
    lab: ApiLab, caplog: pytest.LogCaptureFixture, stream: bool, settings: dict[str, Any], headers: dict[str, str]
) -> None:
    lab.user(**settings)
    lab.default([llm("{chat_user_prompt_last_one} {nope"), llm("", returnToUser=True)])
    with caplog.at_level(logging.DEBUG):
        assert lab.chat(user("walrus words"), stream=stream, headers=headers).status == 200
        lab.backend.responder = lambda request: Reply(status=400, body={"error": "no"})
        lab.chat(user("walrus words"), stream=stream, headers=headers)
        assert settled()
    assert caplog.records
    assert "walrus" not in caplog.text
    assert "secretkey" not in caplog.text


def test_redacted_conditions(lab: ApiLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.user(redactLogOutput=True)
    lab.default([{"type": "Conditional", "condition": "{chat_user_prompt_last_one} =="}])
    with caplog.at_level(logging.DEBUG):
        assert lab.chat(user("walrus words")).text == "FALSE"
    assert "walrus" not in caplog.text


def test_conversations_are_not_logged_at_info(lab: ApiLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        lab.chat(user("walrus words"), headers={"Authorization": "Bearer secretkey"})
        assert settled()
    assert "walrus" not in caplog.text and "secretkey" not in caplog.text
    assert "route _DefaultWorkflow, endpoint Main" in caplog.text


@pytest.mark.parametrize(
    ("model", "remark"),
    [
        ("greet", ""),
        ("tester:greet", ""),
        ("tester:latest", ""),
        (None, ""),
        ("gpt-4", ", as there is no model 'gpt-4'"),
        ("tester:grete", ", as there is no model 'tester:grete'; the nearest is 'tester:greet'"),
        ("gret", ", as there is no model 'gret'; the nearest is 'tester:greet'"),
        ("testre:greeet", ", as there is no model 'testre:greeet'; the nearest is 'tester:greet'"),
        ("tester:zzzzz", ", as there is no model 'tester:zzzzz'"),
        ("x" * 90, f", as there is no model '{'x' * 60}'"),
        ("a\nb", r", as there is no model 'a\\nb'"),
    ],
)
def test_the_log_says_who_answers_for_a_model_that_does_not_exist(
    lab: ApiLab, caplog: pytest.LogCaptureFixture, model: str | None, remark: str
) -> None:
    lab.shared("greet", "Hello.")
    lab.user_file("tester", allowSharedWorkflows=True)
    with caplog.at_level(logging.INFO):
        assert lab.chat(model=model).status == 200
        assert settled()
    line = next(record.getMessage() for record in caplog.records if " runs as " in record.getMessage())
    assert re.fullmatch(r"Request \S+ runs as \w+(:greet)?" + remark, line), line
    ended = next(record.getMessage() for record in caplog.records if ", done after " in record.getMessage())
    assert (remark.removeprefix(", as ") in ended) == ("nearest" in remark or not remark), ended
