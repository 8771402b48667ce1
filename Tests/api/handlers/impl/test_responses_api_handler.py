"""OpenAI's Responses API, from HTTP to HTTP: what the LLM gets, and what the client gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.answers import answer as answer_module
from Middleware.llmapis import repeats
from Middleware.models.process import process
from Middleware.services.llm_dispatch_service import _noted_schemas
from Middleware.services.response_store import get_response_store
from Middleware.utilities.http import connect
from Middleware.utilities.once import Once
from Tests.api.api_lab import CHAT, Answer, ApiLab, after_heartbeats, pause, settled
from Tests.api.responses_stream import Heard, heard
from Tests.backend_dialects import Answer as BackendAnswer
from Tests.backend_dialects import speak
from Tests.patience import PATIENCE
from Tests.stub_backend import (
    AFTER_PIECES,
    RecordedRequest,
    Reply,
    StubBackend,
    chat_chunk,
    json_reply,
    sse_reply,
    status_reply,
)
from Tests.tables import table
from Tests.workflows.engine_lab import llm, reply_to, static, until

PATH = "/v1/responses"
FIND = {"type": "function", "name": "find", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch"}
CRM = {"type": "namespace", "name": "crm", "tools": [FIND]}
IMAGE = "data:image/png;base64,QUJD"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.default(
            [
                llm(
                    "",
                    allowTools=True,
                    acceptImages=True,
                    lastMessagesToSendInsteadOfPrompt=50,
                    systemPrompt="{chat_system_prompt}",
                )
            ]
        )
        yield lab
    assert settled()


def ask(lab: ApiLab, given: Any = "Hi", path: str = PATH, **fields: Any) -> Answer:
    return lab.post({"input": given, **fields}, path)


def stream(lab: ApiLab, given: Any = "Hi", **fields: Any) -> Heard:
    answer = ask(lab, given, stream=True, **fields)
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["X-Accel-Buffering"] == "no"
    return heard(answer.data)


def sent(lab: ApiLab) -> Any:
    return lab.backend.requests[-1].json


def calls(*made: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"index": number, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (call_id, name, arguments) in enumerate(made)
    ]


def calling(*made: tuple[str, str, str], text: str = "", finish: str = "tool_calls") -> Any:
    """A back-end that says a text and makes calls."""

    def reply(request: RecordedRequest) -> Reply:
        if not request.json.get("stream"):
            message = {"role": "assistant", "content": text or None, "tool_calls": calls(*made) or None}
            return json_reply({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})
        chunks = [chat_chunk({"content": text})] if text else []
        chunks += [chat_chunk({"tool_calls": calls(*made)})] if made else []
        return sse_reply([*chunks, chat_chunk({}, finish), "[DONE]"])

    return reply


def both(lab: ApiLab, given: Any = "Hi", **fields: Any) -> list[Any]:
    """The answer as a whole, and the last object of its stream."""
    return [ask(lab, given, **fields).json, stream(lab, given, **fields).response]


# -- whole answers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [PATH, "/responses", "/v1/responses/"])
def test_a_whole_answer(lab: ApiLab, path: str) -> None:
    answer = ask(lab, "Grüße", path)
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
    response = answer.json
    (item,) = response["output"]
    assert re.fullmatch(r"resp_[0-9a-f]{32}", response["id"]) and re.fullmatch(r"msg_[0-9a-f]+", item["id"])
    assert response["id"][5:] == answer.headers["X-Request-Id"].replace("-", "")
    assert (response["status"], response["model"], response["store"]) == ("completed", "tester", True)
    assert (item["role"], item["status"], item["content"][0]["text"]) == ("assistant", "completed", "<Grüße>")
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0


def test_what_comes_back_and_what_the_llm_gets(lab: ApiLab) -> None:
    fields = {
        "instructions": "Be terse.",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
        "store": False,
        "user": "u",
        "prompt_cache_key": "k",
        "temperature": 1.9,
        "top_p": 0.1,
        "truncation": "auto",
        "include": ["x"],
    }
    response = ask(lab, **fields).json
    assert sent(lab)["messages"] == [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}]
    ignored = {"truncation", "include"}
    assert {name: response[name] for name in fields.keys() - ignored} == {
        name: value for name, value in fields.items() if name not in ignored
    }
    assert sent(lab).keys() == {"model", "messages", "max_tokens", "stream"} and sent(lab)["max_tokens"] == 400


def test_images_and_options_of_the_user(lab: ApiLab) -> None:
    ask(
        lab,
        [
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": IMAGE}, {"type": "input_text", "text": "What?"}],
            }
        ],
    )
    assert [part["type"] for part in sent(lab)["messages"][0]["content"]] == ["text", "image_url"]
    lab.user(chatCompleteAddUserAssistant=True)
    ask(lab)
    assert sent(lab)["messages"] == [{"role": "user", "content": "User: Hi"}]


@table(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": 5}, "input", None),
        ({"input": ["x"]}, "input[0]", None),
        ({"input": "x", "background": True}, "background", "unsupported_parameter"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", None),
        (
            {"input": "x", "previous_response_id": f"resp_{'0' * 32}"},
            "previous_response_id",
            "previous_response_not_found",
        ),
        (b"{oops", None, None),
    ],
)
def test_errors_of_clients(lab: ApiLab, body: Any, param: str | None, code: str | None) -> None:
    for more in ({}, {"stream": True}):
        for path in (PATH, f"{PATH}/input_tokens"):
            answer = lab.post(body if isinstance(body, bytes) else {**body, **more}, path)
            error = answer.json["error"]
            assert (answer.status, error["param"], error["code"]) == (400, param, code)
            assert error["type"] == "invalid_request_error" and error["message"]
    assert lab.backend.requests == []


@table(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("tool_calls", "completed", None),
    ],
)
def test_the_end_of_an_answer(lab: ApiLab, finish: str, status: str, reason: str | None) -> None:
    lab.backend.responder = lambda request: reply_to(request, "x", finish_reason=finish)
    for response in both(lab):
        assert response["status"] == response["output"][0]["status"] == status
        assert response["incomplete_details"] == ({"reason": reason} if reason else None)


@table("sends", [True, False])
def test_reasoning_is_the_users_choice(lab: ApiLab, sends: bool) -> None:
    lab.user(sendReasoningToClient=sends)

    lab.backend.responder = lambda request: speak(request, BackendAnswer(("Yes",), reasoning=("Hm.",)))
    for response in both(lab):
        assert [item["type"] for item in response["output"]] == ["reasoning"] * sends + ["message"]
        assert not sends or response["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm."}]


def test_an_empty_answer(lab: ApiLab) -> None:
    lab.default([static("")])
    for response in both(lab):
        assert (response["status"], response["output"]) == ("completed", [])


@table(
    ("path", "field", "body"),
    [
        (PATH, "text.format", {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
        (
            CHAT,
            "response_format",
            {"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_object"}},
        ),
    ],
)
def test_a_schema_of_the_client_is_not_passed_on(
    lab: ApiLab, caplog: pytest.LogCaptureFixture, path: str, field: str, body: dict[str, Any]
) -> None:
    caplog.set_level("INFO")
    process().put(_noted_schemas, Once())
    lab.default([llm("first"), llm("", title="Speaker", returnToUser=True), llm("after")])
    assert lab.post(body, path).status == 200 and settled()
    assert sent(lab).keys() == {"model", "messages", "max_tokens", "stream"}
    (told,) = [record.message for record in caplog.records if "structuredOutputFile" in record.message]
    assert "'Speaker'" in told and f"'{field}'" in told
    caplog.clear()
    lab.post(body, path)
    lab.post({**body, "text": {}, "response_format": {"type": "text"}}, path)
    assert "structuredOutputFile" not in caplog.text


# -- tools -------------------------------------------------------------------------------------------------------------
def test_a_round_trip_of_two_calls(lab: ApiLab) -> None:
    lab.backend.responder = calling(("a", "find", '{"q":1}'), ("b", "find", '{"q":2}'), text="I look.")
    question = {"role": "user", "content": "Where?"}
    for response in both(lab, [question], tools=[FIND]):
        assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
        assert [item.get("call_id") for item in response["output"]] == [None, "a", "b"]
        outputs = [
            {"type": "function_call_output", "call_id": "b", "output": "two"},
            {
                "type": "function_call_output",
                "call_id": "a",
                "output": [{"type": "input_text", "text": "one"}, {"type": "input_image", "image_url": IMAGE}],
            },
        ]
        ask(lab, [question, *response["output"], *outputs], tools=[FIND])
        _, turn, two, one, image = sent(lab)["messages"]
        assert turn["content"] == "I look."
        assert [call["function"]["arguments"] for call in turn["tool_calls"]] == ['{"q":1}', '{"q":2}']
        assert [call["id"] for call in turn["tool_calls"]] == ["a", "b"]
        assert [(message["tool_call_id"], message["content"]) for message in (two, one)] == [("b", "two"), ("a", "one")]
        assert image["role"] == "user" and image["content"][-1]["type"] == "image_url"


@table("finish", ["stop", "tool_calls"])
def test_calls_count_whatever_the_finish_reason_says(lab: ApiLab, finish: str) -> None:
    lab.backend.responder = calling(("", "find", ""), finish=finish)
    for response in both(lab, tools=[FIND]):
        (item,) = response["output"]
        assert (response["status"], item["arguments"], item["status"]) == ("completed", "{}", "completed")
        assert item["call_id"].startswith("call_")


@table(
    ("tool", "called", "arguments", "item"),
    [
        (PATCH, "patch", '{"input": "*** Begin"}', {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"}),
        (CRM, "crm__find", "{}", {"type": "function_call", "name": "find", "namespace": "crm", "arguments": "{}"}),
        (FIND, "FIND", "{}", {"type": "function_call", "name": "find", "arguments": "{}"}),
        (FIND, "gone", "{}", {"type": "function_call", "name": "gone", "arguments": "{}"}),
    ],
)
def test_the_way_back_of_each_tool(lab: ApiLab, tool: Any, called: str, arguments: str, item: dict[str, Any]) -> None:
    lab.backend.responder = calling(("c1", called, arguments))
    for response in both(lab, tools=[tool]):
        (told,) = response["output"]
        assert told.items() >= item.items()
        ask(lab, [told, {"type": f"{told['type']}_output", "call_id": "c1", "output": "ok"}], tools=[tool])
        (call,) = sent(lab)["messages"][0]["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == (
            called if called != "FIND" else "find",
            arguments,
        )


def test_what_is_offered(lab: ApiLab) -> None:
    tools = [{"type": "web_search"}, FIND, PATCH]
    for choice, names, passed in (
        (None, ["find", "patch"], None),
        ("none", [], None),
        ("required", ["find", "patch"], "required"),
        ({"type": "custom", "name": "patch"}, ["find", "patch"], {"type": "function", "function": {"name": "patch"}}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "find"}]}, ["find"], "auto"),
    ):
        response = ask(lab, tools=tools, tool_choice=choice).json
        assert [tool["function"]["name"] for tool in sent(lab).get("tools", [])] == names
        assert sent(lab).get("tool_choice") == passed
        assert (response["tools"], response["tool_choice"]) == (tools, choice or "auto")


def test_tools_that_the_client_has_searched_for(lab: ApiLab) -> None:
    lab.backend.responder = calling(("c2", "crm__find", "{}"))
    search = {"type": "tool_search", "execution": "client"}
    response = ask(
        lab,
        [
            {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"q": "x"}},
            {"type": "tool_search_output", "call_id": "c1", "tools": [CRM]},
        ],
        tools=[search],
    ).json
    assert [tool["function"]["name"] for tool in sent(lab)["tools"]] == ["tool_search", "crm__find"]
    assert response["output"][0]["namespace"] == "crm"


def test_the_liveness_call(lab: ApiLab) -> None:
    lab.user(livenessToolCall={"toolName": "ping", "arguments": {"a": 1}})
    lab.default([llm("", allowTools=True, injectLivenessToolCall=True, lastMessagesToSendInsteadOfPrompt=50)])
    question = {"role": "user", "content": "Hi"}
    told = stream(lab, [question], tools=[FIND]).response["output"]
    assert [item["type"] for item in told] == ["message", "function_call"]
    assert told[1]["call_id"].startswith("wilmer_liveness_")
    assert (told[1]["name"], told[1]["arguments"]) == ("ping", '{"a": 1}')
    done = {"type": "function_call_output", "call_id": told[1]["call_id"], "output": "ok"}
    ask(lab, [question, *told, done, {"role": "user", "content": "And?"}], tools=[FIND])
    assert sent(lab)["messages"] == [
        question,
        {"role": "assistant", "content": "<Hi>"},
        {"role": "user", "content": "And?"},
    ]


# -- streams -----------------------------------------------------------------------------------------------------------
def test_a_stream(lab: ApiLab) -> None:
    result = stream(lab, "Grüße 😀 aus der Ferne")
    assert result.texts_in_order == ["<Grüße 😀 aus der Ferne>"]
    assert result.types.count("output_text.delta") > 5 and result.types[-1] == "completed"


def test_calls_whose_fragments_alternate(lab: ApiLab) -> None:
    def piece(index: int, arguments: str) -> dict[str, Any]:
        return chat_chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})

    started = chat_chunk({"tool_calls": calls(("a", "find", ""), ("b", "find", ""))})
    lab.backend.responder = lambda request: sse_reply(
        [
            chat_chunk({"content": "So"}),
            started,
            piece(0, '{"a"'),
            piece(1, '{"b"'),
            piece(0, ":1}"),
            piece(1, ":2}"),
            chat_chunk({}, "tool_calls"),
            "[DONE]",
        ]
    )
    result = stream(lab, tools=[FIND])
    assert result.texts_in_order == ["So", '{"a":1}', '{"b":2}']
    assert [item.get("call_id") for item in result.response["output"]] == [None, "a", "b"]


def test_silence(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(answer_module, "LOOK_SECONDS", 0.05)
    pause(monkeypatch, 0.1)
    first, second = after_heartbeats(monkeypatch), after_heartbeats(monkeypatch, having=b"Once")
    events = [chat_chunk({"content": "Once"}), chat_chunk({"content": " upon"}), chat_chunk({}, "stop"), "[DONE]"]
    lab.backend.responder = lambda request: (
        sse_reply(events, held=second, held_piece=1) if first.wait(PATIENCE) else status_reply(500)
    )
    result = stream(lab)
    assert result.texts_in_order == ["Once upon"]
    first = result.types.index("output_item.added")
    assert result.types[:3] == ["created", "in_progress", "in_progress"] and {*result.types[3:first]} <= {"in_progress"}
    later = [event["response"] for event in result.events[first:] if event["type"] == "response.in_progress"]
    assert {response["output"][0]["content"][0]["text"] for response in later} == {"Once"}


def test_nothing_of_a_request_that_ended_stays_under_way(lab: ApiLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_ATTEMPTS", 1)
    asked = {"input": "Hi", "stream": True}

    def under_way() -> int:
        return len(get_response_store()._running)

    response = lab.client.post(PATH, json=asked)
    left = response.iter_encoded()
    next(left)
    assert under_way() == 1
    response.close()
    assert until(lambda: under_way() == 0)
    lab.backend.responder = lambda request: status_reply(500)
    assert ask(lab).status == 502
    assert stream(lab).types[-1] == "failed"
    monkeypatch.setattr("Middleware.api.api_helpers.MAX_MESSAGES", 0)
    assert ask(lab).status == 413
    assert until(lambda: under_way() == 0)


# -- failures ----------------------------------------------------------------------------------------------------------
TOO_LONG = "This model's maximum context length is 8192 tokens, your prompt is too long"


@table(
    ("reply", "code", "status", "lasting"),
    [
        (status_reply(500), "server_error", 502, False),
        (status_reply(400), "invalid_prompt", 502, True),
        (status_reply(404), "invalid_prompt", 502, True),
        (status_reply(400, TOO_LONG), "context_length_exceeded", 502, True),
        (status_reply(429), "rate_limit_exceeded", 502, False),
        (status_reply(402), "insufficient_quota", 502, False),
    ],
)
def test_failures(
    lab: ApiLab, monkeypatch: pytest.MonkeyPatch, reply: Reply, code: str, status: int, lasting: bool
) -> None:
    monkeypatch.setattr(repeats, "MOST_ATTEMPTS", 1)
    lab.backend.responder = lambda request: reply
    result = stream(lab)
    assert result.types == ["created", "in_progress", "failed"]
    assert result.response["error"]["code"] == code and "'Main'" in result.response["error"]["message"]
    assert result.response["usage"] is None
    answer = ask(lab)
    assert (answer.status, answer.json["error"]["type"]) == (status, "server_error")
    assert answer.headers.get("x-should-retry") == ("false" if lasting else None)


def test_an_llm_that_dies(lab: ApiLab) -> None:
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": token}) for token in "abcde"], drop=AFTER_PIECES
    )
    result = stream(lab)
    assert result.texts_in_order == ["abcde"] and result.types[-2:] == ["output_item.done", "failed"]
    assert result.response["output"][0]["status"] == "incomplete"
    assert result.response["error"]["code"] == "server_error"


def test_a_mistake_in_the_configuration_is_lasting(lab: ApiLab) -> None:
    lab.default([llm("", endpointName="Gone")])
    result = stream(lab)
    assert result.response["error"]["code"] == "invalid_prompt" and "Gone" in result.response["error"]["message"]
    assert ask(lab).headers["x-should-retry"] == "false"


# -- counting ----------------------------------------------------------------------------------------------------------
def test_input_tokens(lab: ApiLab) -> None:
    counts = [
        ask(lab, given, f"{PATH}/input_tokens", **fields).json
        for given, fields in (
            ("Hi", {}),
            ("Hi, how are you today?", {}),
            ("Hi, how are you today?", {"instructions": "Be terse."}),
            ("Hi, how are you today?", {"instructions": "Be terse.", "tools": [FIND]}),
        )
    ]
    assert {count["object"] for count in counts} == {"response.input_tokens"}
    numbers = [count["input_tokens"] for count in counts]
    assert numbers[0] > 0 and numbers == sorted(set(numbers))
    assert lab.backend.requests == [] and until(settled)
