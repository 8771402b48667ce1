"""What chat clients send in older and newer forms than the LLM knows, and what they get back."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.requests import ignored_fields
from Middleware.models.process import process
from Middleware.utilities.once import Once
from Tests.api.api_lab import CHAT, Answer, ApiLab, settled
from Tests.stub_backend import StubBackend, chat_chunk, json_reply, sse_reply
from Tests.tables import table
from Tests.workflows.engine_lab import user

Item = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
NONE: Item = {"type": "object", "properties": {}}
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def nested(name: str, **more: Any) -> Item:
    return {"type": "function", "function": {"name": name, **more}}


FIND = nested("find", description="Finds.", parameters=SCHEMA)
FLAT = {"type": "function", "name": "find", "description": "Finds.", "parameters": SCHEMA}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Patches."}}
FLAT_PATCH = {"type": "custom", "name": "patch", "description": "Patches."}
SENT_PATCH = nested("patch", description="Patches.", parameters=INPUT)
OLD = {"name": "find", "description": "Finds.", "parameters": SCHEMA}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        made = ApiLab(tmp_path, monkeypatch, backend)
        node = {"type": "Standard", "endpointName": "Main", "prompt": "", "systemPrompt": "{chat_system_prompt}"}
        made.default([{**node, "allowTools": True}])
        process().put(ignored_fields._logged, Once())
        yield made
        assert settled()


def call(name: str, arguments: str, call_id: str = "c1") -> Item:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answers(lab: ApiLab, *calls: Item, text: str = "", reason: str = "tool_calls") -> None:
    """Let the LLM answer with calls, of which streams have the arguments in pieces of three characters."""

    def respond(request: Any) -> Any:
        if not request.json["stream"]:
            message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
            return json_reply({"choices": [{"index": 0, "message": message, "finish_reason": reason}]})
        events = [chat_chunk({"content": text})] if text else []
        for index, made in enumerate(calls):
            arguments = made["function"]["arguments"]
            begun = {**made, "index": index, "function": {**made["function"], "arguments": arguments[:3]}}
            events.append(chat_chunk({"tool_calls": [begun]}))
            for start in range(3, len(arguments), 3):
                piece = {"index": index, "function": {"arguments": arguments[start : start + 3]}}
                events.append(chat_chunk({"tool_calls": [piece]}))
        return sse_reply([*events, chat_chunk({}, reason), "[DONE]"])

    lab.backend.responder = respond


def sent(lab: ApiLab) -> Item:
    return dict(lab.backend.requests[-1].json)


def message_of(answer: Answer) -> tuple[Item, str]:
    """The message of an answer, whole or streamed, and its finish reason. Fragments are joined as SDKs do."""
    assert answer.status == 200, answer.data
    if not answer.data.startswith(b"data: "):
        (choice,) = answer.json["choices"]
        return dict(choice["message"]), choice["finish_reason"]
    message: Item = {"content": ""}
    calls: dict[int, Item] = {}
    reasons = []
    for event in answer.events[:-1]:
        (choice,) = event["choices"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        delta = choice["delta"]
        message["role"] = delta.get("role", message.get("role"))
        message["content"] += delta.get("content") or ""
        if old := delta.get("function_call"):
            known = message.setdefault("function_call", {"name": "", "arguments": ""})
            known["name"] += old.get("name") or ""
            known["arguments"] += old.get("arguments") or ""
        for fragment in delta.get("tool_calls", ()):
            known = calls.setdefault(fragment["index"], {"function": {"name": "", "arguments": ""}})
            known.update({key: fragment[key] for key in ("id", "type", "custom") if key in fragment})
            function = fragment.get("function") or {}
            known["function"]["name"] += function.get("name") or ""
            known["function"]["arguments"] += function.get("arguments") or ""
            if "custom" in fragment:
                del known["function"]
    (reason,) = reasons
    if calls:
        assert list(calls) == list(range(len(calls)))
        message["tool_calls"] = list(calls.values())
    message["content"] = message["content"] or (None if calls or "function_call" in message else "")
    return message, reason


# -- what the LLM is offered -------------------------------------------------------------------------------------------
@table(
    ("fields", "tools", "choice"),
    [
        # As they are sent.
        ({"tools": [FIND], "tool_choice": "required"}, [FIND], "required"),
        ({"tools": [{**FIND, "strict": True, "x": 1}]}, [{**FIND, "strict": True, "x": 1}], None),
        ({"tools": [FIND], "tool_choice": nested("find")}, [FIND], nested("find")),
        (
            {"tools": [FIND], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            [FIND],
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        ),
        ({"tools": [], "tool_choice": "auto"}, None, "auto"),
        ({"tools": None}, None, None),
        # Flat.
        ({"tools": [FLAT]}, [FIND], None),
        ({"tools": [{**FLAT, "strict": None}], "tool_choice": "auto"}, [FIND], "auto"),
        ({"tools": [FLAT, nested("go")]}, [FIND, nested("go")], None),
        ({"tools": [{"type": "function", "name": "go"}]}, [nested("go", parameters=NONE)], None),
        ({"tools": [{"name": "find", "description": "Finds.", "input_schema": SCHEMA}]}, [FIND], None),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "find"}}, [FIND], nested("find")),
        ({"tools": [FIND], "tool_choice": {"type": "function", "name": "find"}}, [FIND], nested("find")),
        (
            {
                "tools": [FLAT, {"type": "function", "name": "go"}],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "find"}]},
            },
            [FIND],
            "required",
        ),
        (
            {
                "tools": ["x", None, FLAT],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["x", {"name": "find"}]},
            },
            [FIND],
            "auto",
        ),
        # Custom.
        ({"tools": [PATCH]}, [SENT_PATCH], None),
        ({"tools": [FLAT_PATCH]}, [SENT_PATCH], None),
        (
            {"tools": [PATCH], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}},
            [SENT_PATCH],
            nested("patch"),
        ),
        ({"tools": [FLAT_PATCH], "tool_choice": {"type": "custom", "name": "patch"}}, [SENT_PATCH], nested("patch")),
        (
            {
                "tools": [PATCH, FIND],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]},
                },
            },
            [SENT_PATCH],
            "auto",
        ),
        # Hosted.
        ({"tools": [{"type": "web_search_preview"}, FIND]}, [FIND], None),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, None, None),
        ({"tools": [FIND, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}, [FIND], None),
        # Functions, from before there were tools.
        ({"functions": [OLD]}, [FIND], None),
        ({"functions": [OLD], "function_call": "auto"}, [FIND], "auto"),
        ({"functions": [OLD], "function_call": "none"}, [FIND], "none"),
        ({"functions": [OLD], "function_call": {"name": "find"}}, [FIND], nested("find")),
        ({"functions": [OLD], "tools": []}, [FIND], None),
        ({"functions": [OLD], "tools": [nested("go")], "function_call": "none"}, [nested("go")], None),
        ({"functions": [], "function_call": "auto"}, None, None),
        ({"functions": None}, None, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_tools(lab: ApiLab, stream: bool, fields: Item, tools: Any, choice: Any) -> None:
    assert lab.chat(stream=stream, **fields).status == 200
    assert (sent(lab).get("tools"), sent(lab).get("tool_choice")) == (tools, choice)


def test_the_grammar_of_a_custom_tool_is_in_its_description(lab: ApiLab) -> None:
    grammar = {"syntax": "lark", "definition": "start: WORD"}
    for form in ({"type": "grammar", "grammar": grammar}, {"type": "grammar", **grammar}):
        for tool in ({"type": "custom", "custom": {**PATCH["custom"], "format": form}}, {**FLAT_PATCH, "format": form}):
            lab.chat(tools=[tool])
            description = sent(lab)["tools"][0]["function"]["description"]
            assert description == "Patches.\n\nThe input must follow this lark grammar:\nstart: WORD"


def test_one_warning_names_the_hosted_tools(lab: ApiLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.chat(tools=[{"type": "web_search"}, FIND, {"type": "code_interpreter"}])
    (line,) = [record.message for record in caplog.records if "web_search" in record.message]
    assert "code_interpreter" in line


# -- the history -------------------------------------------------------------------------------------------------------
def old_call(name: str, arguments: Any = '{"q":1}') -> Item:
    return {"role": "assistant", "function_call": {"name": name, "arguments": arguments}}


def result(name: str, content: str = "done") -> Item:
    return {"role": "function", "name": name, "content": content}


@table(
    ("messages", "ids"),
    [
        ([user("go"), old_call("f"), result("f")], ["call_fn_1", "call_fn_1"]),
        ([user("go"), {**old_call("f"), "content": None}, result("f")], ["call_fn_1", "call_fn_1"]),
        ([user("go"), {**old_call("f"), "content": "Well."}, result("f")], ["call_fn_1", "call_fn_1"]),
        ([user("go"), {**old_call("f"), "tool_calls": None}, result("f")], ["call_fn_1", "call_fn_1"]),
        ([user("go"), old_call("f"), result("unknown")], ["call_fn_1", "call_fn_1"]),
        ([user("go"), old_call("f"), {"role": "function", "content": "x"}], ["call_fn_1", "call_fn_1"]),
        (
            [user("go"), old_call("f"), result("f"), old_call("f"), result("f")],
            ["call_fn_1", "call_fn_1", "call_fn_3", "call_fn_3"],
        ),
        (
            [user("go"), old_call("f"), old_call("g"), result("g"), result("f")],
            ["call_fn_1", "call_fn_2", "call_fn_2", "call_fn_1"],
        ),
        (
            [user("go"), *map(old_call, "fgh"), *map(result, "fgh"), {"role": "assistant", "content": "so"}, user("x")],
            ["call_fn_1", "call_fn_2", "call_fn_3", "call_fn_1", "call_fn_2", "call_fn_3"],
        ),
        (
            [user("go"), {**old_call("f"), "content": "One."}, {**old_call("g"), "content": "Two."}, result("f")],
            ["call_fn_1", "call_fn_2", "call_fn_1"],
        ),
        (
            [user("go"), old_call("f"), old_call("f"), result("f", "one"), result("f", "two")],
            ["call_fn_1", "call_fn_2", "call_fn_1", "call_fn_2"],
        ),
    ],
)
def test_calls_of_functions_in_the_history(lab: ApiLab, messages: list[Item], ids: list[str]) -> None:
    lab.chat(*messages)
    found = []
    for message in sent(lab)["messages"]:
        found += [made["id"] for made in message.get("tool_calls", ())]
        assert not {"function_call"} & message.keys() and message["role"] != "function"
        if message["role"] == "tool":
            found.append(message["tool_call_id"])
    assert found == ids
    # Servers refuse a message with calls between another one and its results.
    roles = [message["role"] for message in sent(lab)["messages"] if message["role"] != "user"]
    assert all(pair != ("assistant", "assistant") for pair in itertools.pairwise(roles))


@table(
    ("made", "function"),
    [
        ({"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a b"}}, ("patch", '{"input": "a b"}')),
        ({"id": "c1", "type": "custom", "name": "patch", "input": "ä"}, ("patch", '{"input": "ä"}')),
        ({"id": "c1", "type": "custom", "custom": {"name": "patch"}}, ("patch", '{"input": ""}')),
        ({"call_id": "c1", "id": "fc", "type": "function_call", "name": "f", "arguments": "{}"}, ("f", "{}")),
        ({"id": "c1", "type": "function", "name": "f", "arguments": {"q": 1}}, ("f", '{"q": 1}')),
        ({"id": "c1", "name": "f"}, ("f", "{}")),
        (call("f", '{"q": 1}'), ("f", '{"q": 1}')),
    ],
)
def test_calls_in_other_forms_in_the_history(lab: ApiLab, made: Item, function: tuple[str, str]) -> None:
    done = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    lab.chat(user("go"), {"role": "assistant", "content": None, "tool_calls": [made]}, done)
    (got,) = sent(lab)["messages"][1]["tool_calls"]
    assert got == {
        "id": "c1",
        "type": "function",
        "function": {"name": function[0], "arguments": function[1]},
    }


@table("messages", [[{"role": "assistant"}], [{"role": "user", "function_call": {"name": "f"}}]])
def test_a_message_without_anything_is_refused(lab: ApiLab, messages: list[Item]) -> None:
    assert lab.chat(*messages).status == 400


# -- the answer --------------------------------------------------------------------------------------------------------
TWO = [call("find", '{"q": "x y"}'), call("go", "{}", "c2")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
class TestAnswers:
    def test_functions(self, lab: ApiLab, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
        for calls, warned in ((TWO[:1], 0), (TWO, 1)):
            caplog.clear()
            answers(lab, *calls, text="I look.")
            message, reason = message_of(lab.chat(stream=stream, functions=[OLD]))
            assert (message, reason) == (
                {"role": "assistant", "content": "I look.", "function_call": TWO[0]["function"]},
                "function_call",
            )
            assert len([record for record in caplog.records if "first call only" in record.message]) == warned

    def test_functions_that_are_not_called(self, lab: ApiLab, stream: bool) -> None:
        message, reason = message_of(lab.chat(stream=stream, functions=[OLD]))
        assert (message, reason) == ({"role": "assistant", "content": "<hi>"}, "stop")

    def test_a_call_that_is_cut_off(self, lab: ApiLab, stream: bool) -> None:
        answers(lab, call("find", '{"q": "x'), reason="length")
        for fields in ({"functions": [OLD]}, {"tools": [FIND]}):
            assert message_of(lab.chat(stream=stream, **fields))[1] == "length"

    def test_functions_beside_tools(self, lab: ApiLab, stream: bool) -> None:
        answers(lab, *TWO)
        message, reason = message_of(lab.chat(stream=stream, functions=[OLD], tools=[FIND]))
        assert (message["tool_calls"], reason) == (TWO, "tool_calls") and "function_call" not in message

    def test_flat_tools(self, lab: ApiLab, stream: bool) -> None:
        answers(lab, *TWO, text="Well.")
        message, reason = message_of(lab.chat(stream=stream, tools=[FLAT]))
        assert (message, reason) == ({"role": "assistant", "content": "Well.", "tool_calls": TWO}, "tool_calls")

    @pytest.mark.parametrize("tool", [PATCH, FLAT_PATCH], ids=["nested", "flat"])
    def test_custom_tools(self, lab: ApiLab, stream: bool, tool: Item) -> None:
        for arguments, given in (
            ('{"input": "a \\"b\\" ü"}', 'a "b" ü'),
            ("*** Begin Patch", "*** Begin Patch"),
            ('{"other": 1}', '{"other": 1}'),
            ('["x"]', '["x"]'),
        ):
            answers(lab, TWO[0], call("patch", arguments, "c2"), text="Well.")
            message, reason = message_of(lab.chat(stream=stream, tools=[tool, FIND]))
            custom = {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": given}}
            assert message == {"role": "assistant", "content": "Well.", "tool_calls": [TWO[0], custom]}
            assert reason == "tool_calls"

    @pytest.mark.parametrize("arguments", ['{"input": "x y z"}', "no object"])
    def test_a_custom_call_before_others(self, lab: ApiLab, stream: bool, arguments: str) -> None:
        answers(lab, call("patch", arguments, "c0"), *TWO, call("patch", '{"input": "end"}', "c3"))
        message, _ = message_of(lab.chat(stream=stream, tools=[PATCH, FIND, nested("go")]))
        inputs = [made.get("custom", {}).get("input") for made in message["tool_calls"]]
        assert inputs == ["no object" if arguments == "no object" else "x y z", None, None, "end"]
        assert [made["id"] for made in message["tool_calls"]] == ["c0", "c1", "c2", "c3"]
        assert message["tool_calls"][1] == TWO[0]

    def test_ids(self, lab: ApiLab, stream: bool) -> None:
        for path, prefix, body in (
            (CHAT, "chatcmpl-", {"messages": [user("hi")]}),
            ("/v1/completions", "cmpl-", {"prompt": "hi"}),
            ("/api/generate", "gen-", {"model": "m", "prompt": "hi"}),
        ):
            if prefix != "gen-" or not stream:
                found = [lab.post({**body, "stream": stream}, path) for _ in range(5)]
                ids = [(answer.events[0] if stream else answer.json)["id"] for answer in found]
                assert ids == [prefix + answer.headers["X-Request-Id"].replace("-", "") for answer in found]
                assert len({*ids}) == 5

    @pytest.mark.parametrize("given", ["text", "items"])
    def test_input(self, lab: ApiLab, stream: bool, given: str) -> None:
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
            {"type": "function_call", "call_id": "a", "name": "find", "arguments": '{"q": 1}'},
            {"type": "function_call_output", "call_id": "a", "output": "here"},
            {"type": "message", "role": "user", "content": "Sure?"},
        ]
        answers(lab, TWO[0], text="Well.")
        body = {"input": items if given == "items" else "Where?", "instructions": "Be brief.", "tools": [FLAT]}
        message, reason = message_of(lab.post({**body, "stream": stream}))
        assert (message["tool_calls"], reason) == (TWO[:1], "tool_calls")
        called = {"role": "assistant", "content": "", "tool_calls": [call("find", '{"q": 1}', "a")]}
        exchange = [called, {"role": "tool", "content": "here", "tool_call_id": "a"}, user("Sure?")]
        system = {"role": "system", "content": "Be brief."}
        assert sent(lab)["messages"] == [system, user("Where?"), *(exchange if given == "items" else [])]
        assert sent(lab)["tools"] == [FIND]

    def test_messages_count_more_than_input(self, lab: ApiLab, stream: bool) -> None:
        lab.post({"messages": [user("m")], "input": "i", "instructions": "x", "stream": stream})
        assert sent(lab)["messages"] == [user("m")]
        lab.post({"messages": None, "input": "i", "stream": stream})
        assert sent(lab)["messages"] == [user("i")]


@table("body", [{}, {"messages": None}, {"input": None}, {"messages": None, "input": None}, {"input": 5}])
def test_no_messages(lab: ApiLab, body: Item) -> None:
    assert lab.post(body).status == 400


# -- fields that would change the answer -------------------------------------------------------------------------------
TEXT, GENERATE = "/v1/completions", "/api/generate"


@table(
    ("path", "suffix", "status"),
    [
        (path, suffix, status)
        for path in (TEXT, GENERATE)
        for suffix, status in ((None, 200), ("", 200), (" \n", 200), ("}", 400), (" x", 400), (["x"], 400))
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_suffix(lab: ApiLab, stream: bool, path: str, suffix: Any, status: int) -> None:
    answer = lab.post({"model": "m", "prompt": "a", "suffix": suffix, "stream": stream}, path)
    assert answer.status == status
    if status == 400:
        assert "cannot insert: 'suffix' is not supported" in json.dumps(answer.json)


@table(
    ("field", "value"),
    [
        ("n", 3),
        ("n", 2.0),
        ("best_of", 2),
        ("logprobs", True),
        ("logprobs", 5),
        ("top_logprobs", 1),
        ("echo", True),
        ("logit_bias", {"50256": -100}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {"search_context_size": "low"}),
        ("audio", {"voice": "alloy"}),
        ("template", "{{ .Prompt }}"),
        ("context", [1, 2]),
        ("response_format", {"type": "json_object"}),
    ],
)
def test_a_field_without_effect_is_logged_once_for_a_user(
    lab: ApiLab, caplog: pytest.LogCaptureFixture, field: str, value: Any
) -> None:
    from Middleware.services import llm_dispatch_service

    caplog.set_level(logging.INFO)
    process().put(ignored_fields._logged, Once())
    process().put(llm_dispatch_service._noted_schemas, Once())
    for _ in range(3):
        assert lab.chat(**{field: value}).status == 200
    lines = [record for record in caplog.records if f"'{field}'" in record.message]
    assert [record.levelno for record in lines] == [logging.INFO]


@table(
    ("path", "fields"),
    [
        (CHAT, {"n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "modalities": ["text"], "audio": None}),
        (CHAT, {"n": None, "prediction": None, "web_search_options": None, "response_format": {"type": "text"}}),
        (CHAT, {"n": "3", "modalities": None, "n_best": 4}),
        (TEXT, {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "logit_bias": None, "suffix": ""}),
        (GENERATE, {"template": " ", "context": [], "format": "", "suffix": None}),
    ],
)
def test_defaults_are_not_logged(lab: ApiLab, caplog: pytest.LogCaptureFixture, path: str, fields: Item) -> None:
    caplog.set_level(logging.INFO)
    said = {"messages": [user("hi")]} if path == CHAT else {"prompt": "hi"}
    assert lab.post({"model": "m", **said, **fields}, path).status == 200
    assert not [
        record.message for record in caplog.records if "no effect" in record.message or "JSON" in record.message
    ]


def test_formats_of_ollama_are_logged_once(lab: ApiLab, caplog: pytest.LogCaptureFixture) -> None:
    from Middleware.services import llm_dispatch_service

    caplog.set_level(logging.INFO)
    process().put(llm_dispatch_service._noted_schemas, Once())
    for form in ("json", {"type": "object"}):
        lab.post({"model": "m", "prompt": "hi", "format": form}, GENERATE)
        lab.post({"model": "m", "messages": [user("hi")], "format": form}, "/api/chat")
    assert len([record for record in caplog.records if "'format'" in record.message]) == 1
