"""Servers that name what they refuse: what is asked once more, remembered, logged, and said of what remains."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from Middleware.exceptions import BackendError
from Middleware.llmapis import refusals
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.llmapis.refusals import fitting_ids
from Middleware.models.process import Process
from Tests.backend_dialects import Answer, speak
from Tests.llmapis.lab import CLAUDE, OLLAMA, OPEN_AI, Lab
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_chunk, json_reply, sse_reply
from Tests.tables import table

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
CALL = {"id": "call_abc", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
EXCHANGE = [
    *HI,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_abc", "content": "noon"},
]
RAW = {  # A preset in the server's own names.
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "stop": ["END"],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.1,
    "chat_template_kwargs": {"a": 1},
    "reasoning_effort": "low",
    "parallel_tool_calls": True,
}


@pytest.fixture
def lab(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path, monkeypatch)
    made.write("ApiTypes/OllamaApiChat", OLLAMA)
    made.write("ApiTypes/Claude", {**CLAUDE, "maxNewTokensPropertyName": "max_tokens", "streamPropertyName": "stream"})
    made.write("ApiTypes/OpenAI", {**OPEN_AI, "requestUsageInStreams": True})
    for kind in ("OpenAiCompatibleApis", "OllamaApiChat", "ClaudeMessages"):
        made.preset(kind, "raw", RAW if kind != "OllamaApiChat" else {"think": True, "temperature": 0.5})
    return made


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())


def ask(
    lab: Lab, backend: StubBackend, stream: bool = False, messages: Any = HI, preset: str | None = "raw", **call: Any
) -> str:
    """Ask endpoint E, whose file is as the test has written it; return the text."""
    service = LlmApiService("E", preset, 300, stream)
    answer = service.get_response_from_llm(conversation=messages, **call)
    if stream:
        return "".join(chunk["token"] for chunk in answer)
    return answer if isinstance(answer, str) else str(answer["content"])


Says = Callable[[dict[str, Any]], Any]


def refusing(backend: StubBackend, *rules: tuple[Callable[[dict[str, Any]], object], Any, int]) -> None:
    """Let the server refuse what the first fitting rule says; its text may be a body or a message."""

    def respond(request: RecordedRequest) -> Reply:
        for is_refused, said, status in rules:
            if is_refused(request.json):
                return json_reply(said if isinstance(said, (dict, list)) else {"error": {"message": said}}, status)
        return speak(request, Answer(("Hello",)))

    backend.responder = respond


def has(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda body: name in body


def extra(*names: str, path: tuple[str, ...] = ("body",), kind: str = "extra_forbidden") -> dict[str, Any]:
    entries = [
        {"type": kind, "loc": [*path, name], "msg": "Extra inputs are not permitted", "input": 1} for name in names
    ]
    return {"detail": entries}


# Sentences of servers as they send them, and others of the same kinds.
SENTENCES: list[tuple[str, Any, int]] = [
    # OpenAI
    ("temperature", "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default is.", 400),
    (
        "reasoning_effort",
        "Unsupported value: 'reasoning_effort' does not support 'low'. Supported values are: 'high'",
        400,
    ),
    ("top_k", "Unrecognized request argument supplied: top_k", 400),
    ("top_k", {"error": {"message": "Invalid.", "param": "top_k", "code": "unsupported_parameter"}}, 400),
    ("frequency_penalty", "Unrecognized request arguments supplied: frequency_penalty", 400),
    # Anthropic
    ("top_k", "top_k: Extra inputs are not permitted", 400),
    ("temperature", "`temperature` is deprecated for this model.", 400),
    ("temperature", "`temperature` may only be set to 1 when thinking is enabled.", 400),
    # Mistral, FastAPI, pydantic with names of forms
    ("top_k", extra("top_k"), 422),
    ("top_k", {"object": "error", "message": extra("top_k"), "type": "invalid_request_error"}, 422),
    ("top_k", extra("top_k", path=("body", "ChatCompletionRequest")), 422),
    ("top_k", extra("top_k", path=()), 422),
    ("top_k", extra("top_k", kind="value_error.extra"), 422),
    ("temperature", {"detail": [{"loc": ["body", "temperature"], "msg": "Input should be less than 0.5"}]}, 422),
    ("top_k", json.dumps(extra("top_k")), 400),
    # Google
    ("top_k", 'Invalid JSON payload received. Unknown name "top_k": Cannot find field.', 400),
    # serde
    ("top_k", "unknown field `top_k`, expected one of `messages`, `model`, `temperature`, `stop` at line 1", 422),
    # xAI, Groq, Kimi, Fireworks, LiteLLM
    ("presence_penalty", {"code": "x", "error": "Argument not supported on this model: presencePenalty"}, 400),
    ("presence_penalty", "Model grok-4 does not support parameter presencePenalty.", 400),
    ("top_k", "property 'top_k' is unsupported", 400),
    ("temperature", "invalid temperature: only 1 is allowed for this model", 400),
    ("top_k", "Extra inputs are not permitted, field: 'top_k', value: 40", 400),
    ("top_k", "litellm.UnsupportedParamsError: x does not support parameters: {'top_k': 40}, for model=y.", 400),
    ("top_k", {"errors": [{"detail": "The parameter `top_k` isn't known: unknown parameter"}]}, 400),
    # Others: bare names, each kind of list, plain text
    ("temperature", "temperature is not supported with this model", 400),
    ("temperature", "This model does not support temperature.", 400),
    ("stop", "stop is deprecated", 400),
    ("top_k", "Malformed input request: #: extraneous key [top_k] is not permitted", 400),
    ("top_k", "Unsupported parameter(s): top_k", 400),
    ("presence_penalty", "invalid presence_penalty: only 0 is allowed for this model", 400),
    ("top_k", "[{'type': 'extra_forbidden', 'loc': ('body', 'top_k'), 'msg': 'Extra inputs are not permitted'}]", 400),
    ("top_k", "Unknown name \"topK\" at 'generation_config': Cannot find field", 400),
    ("top_k", "Unknown key top_k", 400),
    ("reasoning_effort", "Thinking level is not supported for this model.", 400),
    ("reasoning_effort", "reasoning is not supported", 400),
    ("top_k", {"errors": [{"field": "top_k", "message": "is not allowed"}]}, 400),
    ("top_k", {"errors": {"top_k": ["Unknown field."]}}, 400),
    ("top_k", {"top_k": ["This field is not allowed."]}, 400),
    ("top_k", {"detail": {"loc": ["body", "top_k"], "msg": "extra fields not permitted"}}, 422),
    ("top_k", {"detail": "Unknown field: top_k"}, 422),
    ("top_k", {"message": "{'error': {'message': \"Unexpected keyword argument 'top_k'\"}}"}, 400),
    ("top_k", {"error": {"innererror": {"code": "BadRequest", "message": "UNSUPPORTED PARAMETER: `top_k`"}}}, 400),
    ("stop", "'stop' is not supported with this model.", 400),
    ("stop", "Stop sequences are not supported", 400),
    ("stop", "This model does not support stop words.", 400),
    ("stop", "Unsupported feature: stop strings", 400),
    ("stop", "stop-sequence is not allowed for model m", 400),
    ("presence_penalty", "Presence penalty is not supported", 400),
    ("frequency_penalty", "The model does not support frequency penalties; unknown: frequency penalty", 400),
    ("top_k", "Top-k is not supported by this provider", 400),
    ("top_k", "top_k is not allowed here", 400),
    ("chat_template_kwargs", "Additional properties are not allowed ('chat_template_kwargs' was unexpected)", 400),
    ("parallel_tool_calls", "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.", 400),
    ("reasoning_effort", '"llama3.2" does not support thinking', 400),
    ("top_p", "`temperature` and `top_p` cannot both be specified for this model. Please use only one.", 400),
    ("top_p", "Setting both temperature and top_p is not supported.", 400),
    ("top_p", "Please set either top_p or temperature.", 400),
    ("top_p", "temperature and top_p are mutually exclusive", 400),
    ("top_k", {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(extra("top_k"))}}}, 400),
]


@table("name, said, status", SENTENCES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_field_is_left_out(
    lab: Lab, backend: StubBackend, caplog: pytest.LogCaptureFixture, stream: bool, name: str, said: Any, status: int
) -> None:
    caplog.set_level(logging.INFO)
    lab.endpoint("E", {}, backend.url)
    first = len(backend.requests)
    refusing(backend, (has(name), said, status))
    assert ask(lab, backend, stream) == "Hello"
    assert ask(lab, backend, stream) == "Hello"
    refused, again, later = (request.json for request in backend.requests[first:])
    assert again == later == {key: value for key, value in refused.items() if key != name}
    lines = [record for record in caplog.records if "the server refuses" in record.message]
    assert [record.levelname for record in lines] == ["WARNING" if name == "stop" else "INFO"]
    assert lines[0].message.startswith(
        f"Endpoint 'E' (Endpoints/lab/E.json): the server refuses '{name}'; it is left out"
    )
    assert f"Remove '{name}' from Presets/OpenAiCompatibleApis/tester/raw.json." in lines[0].message


@table(
    "name, said, status",
    [
        ("mirostat", {"error": "unknown option: mirostat"}, 400),
        ("top_k", {"error": "options.top_k is not supported by this model"}, 404),
        ("top_k", extra("top_k", path=("body", "options")), 422),
        ("top_k", {"error": 'unknown field "topK" in options'}, 400),
        ("temperature", {"error": 'option "temperature" must be of type integer'}, 400),
        ("top_p", {"error": "temperature and top_p cannot both be set"}, 400),
        ("stop", {"error": "`stop` is not supported"}, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_option_that_a_server_like_ollama_refuses(
    lab: Lab, backend: StubBackend, caplog: pytest.LogCaptureFixture, stream: bool, name: str, said: Any, status: int
) -> None:
    caplog.set_level(logging.INFO)
    options = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "mirostat": 1, "stop": ["END"], "num_ctx": 4096}
    lab.preset("OllamaApiChat", "raw", {"think": True, **options})
    lab.endpoint("E", {"apiTypeConfigFileName": "OllamaApiChat"}, backend.url)
    first = len(backend.requests)
    refusing(backend, (lambda body: name in body["options"], said, status))
    assert ask(lab, backend, stream) == ask(lab, backend, stream) == "Hello"
    refused, again, later = (request.json for request in backend.requests[first:])
    less = {key: value for key, value in refused["options"].items() if key != name}
    assert again == later == {**refused, "options": less} and less.keys() >= {"num_ctx"}
    assert f"Remove '{name}' from Presets/OllamaApiChat/tester/raw.json." in caplog.text


# What is not left out, whatever the server says of it.
NEVER: list[tuple[Any, int]] = [
    ("Unsupported value: 'messages[0].role' does not support 'system' with this model.", 400),
    ("Unsupported parameter: 'model'", 400),
    ("tools[0].function.name: Extra inputs are not permitted", 400),
    ("Invalid schema: 'response_format' is not supported", 400),
    ({"error": {"message": "max_tokens is too large: 99.", "param": "max_tokens"}}, 400),
    ("'max_tokens' is not supported", 400),
    ("'stream' is not supported", 400),
    ("Max tokens is not supported", 400),
    ("Unsupported: the request must not stop in a tool call", 400),
    ("unsupported parameter: 'top_k'", 500),
    ("unsupported parameter: 'top_k'", 404),
    (
        {
            "detail": [
                {"type": "missing", "loc": ["body", "messages"], "msg": "Field required", "input": "unknown top_k"}
            ]
        },
        422,
    ),
    (extra("role", path=("body", "messages", "0")), 422),
    (extra("top_k", path=("body", "messages")), 422),
    ("`max_tokens` must be greater than `thinking.budget_tokens`", 400),
    ("unknown field `bogus`, expected one of `top_k`, `temperature`", 422),
    ("The prompt has 9000 tokens, which is not supported; the limit is 8192.", 400),
    ({"error": {"message": "Model m is not supported", "request": {"temperature": 0.7, "stop": ["END"]}}}, 400),
    ("Unsupported image format", 400),
    ("", 400),
    ({}, 400),
    ([], 422),
    ({"detail": [{"loc": ["body", "top_k", "value"], "type": "extra_forbidden", "msg": "x"}]}, 422),
]


@table("said, status", NEVER)
def test_other_errors_are_asked_once(lab: Lab, backend: StubBackend, said: Any, status: int, short: None) -> None:
    lab.endpoint("E", {"backupEndpointName": ""}, backend.url)
    first = len(backend.requests)
    refusing(backend, (lambda body: True, said, status))
    with pytest.raises(BackendError):
        ask(lab, backend)
    assert len(backend.requests) - first == (3 if status == 500 else 1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.llmapis.repeats.WAITS", (0.01, 0.01))


@pytest.mark.parametrize("stream", [False, True])
def test_the_limit_under_its_other_name(
    lab: Lab, backend: StubBackend, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lab.endpoint("E", {"presetSamplers": {"temperature": 0.7}}, backend.url)
    refusing(
        backend,
        (
            has("max_tokens"),
            "Unsupported parameter: 'max_tokens' is not supported here. Use 'max_completion_tokens' instead.",
            400,
        ),
    )
    assert ask(lab, backend, stream, preset=None) == ask(lab, backend, stream, preset=None) == "Hello"
    sent = [request.json for request in backend.requests]
    assert [body.get("max_tokens") for body in sent] == [300, None, None]
    assert [body.get("max_completion_tokens") for body in sent] == [None, 300, 300]
    assert (
        "it is sent as 'max_completion_tokens' until the next start. It is maxNewTokensPropertyName in "
        "ApiTypes/OpenAI.json, with the value of" in caplog.text
    )
    # An edited file is asked for again.
    lab.endpoint("E", {"presetSamplers": {"temperature": 0.6}}, backend.url)
    assert ask(lab, backend, stream, preset=None) == "Hello"
    assert len(backend.requests) == 5


@table(
    "field, said, sent",
    [
        ("max_completion_tokens", extra("max_completion_tokens"), {"max_tokens": 300}),
        (
            "max_completion_tokens",
            "unknown field `max_completion_tokens`, did you mean `max_tokens`?",
            {"max_tokens": 300},
        ),
        # A server that wants neither.
        ("max_completion_tokens", "max_completion_tokens is too large: 300", None),
    ],
)
def test_the_newer_limit_at_an_older_server(
    lab: Lab, backend: StubBackend, field: str, said: Any, sent: dict[str, int] | None
) -> None:
    lab.write("ApiTypes/OpenAI", {**OPEN_AI, "maxNewTokensPropertyName": field})
    lab.endpoint("E", {}, backend.url)
    refusing(
        backend, (has(field), said if isinstance(said, dict) else {"error": {"message": said, "param": field}}, 400)
    )
    first = len(backend.requests)
    if sent is None:
        with pytest.raises(BackendError, match="It is maxNewTokensPropertyName in ApiTypes/OpenAI.json"):
            ask(lab, backend)
        assert len(backend.requests) == first + 1
        return
    assert ask(lab, backend) == "Hello"
    assert sent.items() <= backend.requests[-1].json.items()


@pytest.mark.parametrize("stream", [False, True])
def test_entries_of_one_error_are_left_out_together(lab: Lab, backend: StubBackend, stream: bool) -> None:
    lab.endpoint("E", {"backupEndpointName": "B"}, backend.url)
    lab.endpoint("B", {}, backend.url)
    names = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "chat_template_kwargs", "parallel_tool_calls")
    refusing(backend, (lambda body: "top_k" in body or "min_p" in body, extra(*names), 422))
    assert ask(lab, backend, stream) == "Hello"
    assert len(backend.requests) == 2 and not set(names) & backend.requests[1].json.keys()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_sent_four_times(lab: Lab, backend: StubBackend, stream: bool) -> None:
    lab.endpoint("E", {}, backend.url)
    names = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "chat_template_kwargs")
    refusing(backend, *((has(name), f"unknown field: {name}", 400) for name in names))
    with pytest.raises(BackendError, match=r"status 400.*unknown field: frequency_penalty\. Remove 'freq"):
        ask(lab, backend, stream)
    assert len(backend.requests) == 4
    # What the server no longer named is known.
    assert ask(lab, backend, stream) == "Hello"
    assert len(backend.requests) == 7


def test_a_failure_confirms_no_change(lab: Lab, backend: StubBackend, short: None) -> None:
    lab.endpoint("E", {}, backend.url)
    refusing(backend, (has("top_k"), "unknown field: top_k", 400), (lambda body: True, "out of memory", 500))
    for _ in range(2):
        first = len(backend.requests)
        with pytest.raises(BackendError, match="out of memory"):
            ask(lab, backend)
        assert ["top_k" in request.json for request in backend.requests[first:]] == [True, False, False, False]


def test_words_of_the_user_are_not_remembered(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("E", {}, backend.url)
    echo = "The prompt 'unsupported parameter: temperature' violates our policy"
    refusing(backend, (lambda body: True, echo, 400))
    for count in (2, 4):
        with pytest.raises(BackendError, match="violates our policy"):
            ask(lab, backend)
        assert len(backend.requests) == count
    without = {key: value for key, value in backend.requests[0].json.items() if key != "temperature"}
    assert backend.requests[1].json == without
    assert backend.requests[2].json == backend.requests[0].json


def test_calls_that_waited_know_what_was_learned_before_they_are_sent(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("E", {}, backend.url)
    refusing(backend, (has("top_k"), "Unrecognized request argument supplied: top_k", 400))
    waiting = [LlmApiService("E", "raw", 300, False) for _ in range(2)]
    assert ask(lab, backend) == "Hello" and len(backend.requests) == 2
    for service in waiting:
        for _ in range(2):
            assert service.get_response_from_llm(conversation=HI) == "Hello"
    assert len(backend.requests) == 6 and all("top_k" not in request.json for request in backend.requests[1:])


NO_TOOLS = (
    '"m" does not support tools',
    "Tools are not supported by this model",
    "`tools` is not supported",
    "This endpoint doesn't support tools.",
    "Tool calling is not supported for model m",
    "Unsupported: tools",
    "The model does not support functions",
    "Functions are not supported",
)


@table(
    "said, status, call, messages, is_asked",
    [
        *((said, 400, {}, HI, True) for said in NO_TOOLS),
        ("This model does not support function calling", 422, {"tool_choice": "auto"}, HI, True),
        ("Function calling is not enabled for models/gemma-3-27b-it", 400, {}, HI, True),
        ("tools param requires --jinja flag", 400, {}, HI, True),
        ("tools param requires --jinja flag", 500, {}, HI, True),
        (NO_TOOLS[0], 500, {"tool_choice": "auto"}, HI, True),
        ("The model doesn't support tool use", 400, {}, HI, True),
        (NO_TOOLS[0], 400, {"tool_choice": "required"}, HI, False),
        (NO_TOOLS[0], 400, {"tool_choice": {"type": "function", "function": {"name": "clock"}}}, HI, False),
        (NO_TOOLS[0], 400, {}, EXCHANGE, False),
        ("tools[0].function.name is not supported", 400, {}, HI, False),
        ("Unsupported: tools.0.type", 400, {}, HI, False),
        ("tool choice is not supported, nor are tools[0].strict", 400, {}, HI, False),
        (
            {"error": {"message": "Invalid schema for function 'clock'", "param": "tools[0].function"}},
            400,
            {},
            HI,
            False,
        ),
        ({"error": {"message": "Invalid schema", "param": "tools"}}, 400, {}, HI, False),
    ],
)
@pytest.mark.parametrize("type_name", ["OpenAI", "OllamaApiChat", "Claude"])
def test_tools_that_a_model_does_not_know(
    lab: Lab,
    backend: StubBackend,
    caplog: pytest.LogCaptureFixture,
    type_name: str,
    said: Any,
    status: int,
    call: dict[str, Any],
    messages: Any,
    is_asked: bool,
) -> None:
    lab.endpoint("E", {"apiTypeConfigFileName": type_name}, backend.url)
    first = len(backend.requests)
    refusing(backend, (has("tools"), said, status))
    # Ollama has no choice of a tool.
    if not is_asked and not (type_name == "OllamaApiChat" and "tool_choice" in call):
        with pytest.raises(BackendError, match=r"Set 'allowTools' of the node to false\."):
            ask(lab, backend, messages=messages, tools=TOOLS, **call)
        assert len(backend.requests) == first + 1
        return
    for _ in range(2):
        assert ask(lab, backend, messages=messages, tools=TOOLS, **call) == "Hello"
    refused, again, later = (request.json for request in backend.requests[first:])
    gone = {key: value for key, value in refused.items() if key not in ("tools", "tool_choice", "parallel_tool_calls")}
    assert again == later == gone
    assert [record.levelname for record in caplog.records if "refuses 'tools'" in record.message] == ["WARNING"]
    # Within an exchange they are needed, although they are known to be refused.
    with pytest.raises(BackendError, match="allowTools"):
        ask(lab, backend, messages=EXCHANGE, tools=TOOLS)


@table(
    "type_name, status, said",
    [
        ("OpenAI", 400, "This model does not support assistant message prefill."),
        ("OpenAI", 422, "The conversation must end with a user message."),
        ("Claude", 400, "This model does not support assistant message prefill."),
        (
            "OpenAI",
            400,
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        ),
        ("OpenAI", 400, "Assistant response prefill is incompatible with enable_thinking."),
        ("Claude", 400, "Prefilling assistant messages is not supported for this model."),
        ("OpenAI", 400, "Cannot set add_generation_prompt to True when the last message is from the assistant."),
        ("OpenAI", 400, "The final message must be from the user"),
        ("OllamaApiChat", 403, "the conversation must end with a user turn"),
    ],
)
def test_a_beginning_of_the_answer(lab: Lab, backend: StubBackend, type_name: str, status: int, said: str) -> None:
    lab.endpoint("E", {"apiTypeConfigFileName": type_name}, backend.url)
    first = len(backend.requests)
    refusing(backend, (lambda body: body["messages"][-1]["role"] == "assistant", said, status))
    begun = [*HI, {"role": "assistant", "content": "Sure:"}]
    assert [ask(lab, backend, messages=begun), ask(lab, backend, messages=begun), ask(lab, backend)] == ["Hello"] * 3
    refused, again, later, plain = (request.json["messages"] for request in backend.requests[first:])
    assert again == later == [*refused, {"role": "user", "content": "Continue."}]
    assert plain[-1]["content"] == "Hi"


IDS = "Tool call id was {} but must be a-z, A-Z, 0-9, with a length of 9."


def test_ids_of_nine_characters() -> None:
    ids = ["call_abc", "toolu_01XyZ", "functions.x:0", "abcDEF123", "call_abc", "", "ä\ud800"]
    new = fitting_ids(ids)
    assert new["abcDEF123"] == "abcDEF123"
    assert all(refusals.FITTING_ID.fullmatch(id) for id in new.values()) and len(set(new.values())) == len(set(ids))
    # A pure function of the id, in whatever order; an id that would be the same as another one is another one.
    assert fitting_ids(reversed(ids)) == new
    clash = fitting_ids(["call_abc", new["call_abc"]])
    assert clash[new["call_abc"]] == new["call_abc"] != clash["call_abc"]
    assert refusals.FITTING_ID.fullmatch(clash["call_abc"])


@table(
    "type_name, said, refused_at_first",
    [
        ("OpenAI", IDS.format("call_abc"), True),
        ("OpenAI", "Invalid 'messages[1].tool_calls[0].id': string too long.", True),
        ("OpenAI", {"detail": [{"loc": ["body", "messages", 1, "tool_calls"], "msg": IDS.format("call_abc")}]}, True),
        ("Claude", "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9]{9}$'", True),
        ("My-Mistral", "", False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_ids_that_a_server_refuses(
    lab: Lab, backend: StubBackend, type_name: str, said: Any, refused_at_first: bool, stream: bool
) -> None:
    lab.write("ApiTypes/My-Mistral", OPEN_AI)
    lab.endpoint("E", {"apiTypeConfigFileName": type_name}, backend.url)
    first = len(backend.requests)
    refusing(backend, (lambda body: "call_abc" in json.dumps(body), said, 400))
    for _ in range(2):
        assert ask(lab, backend, stream, EXCHANGE, tools=TOOLS) == "Hello"
    new = fitting_ids(["call_abc"])["call_abc"]
    bodies = [json.dumps(request.json) for request in backend.requests[first:]]
    assert [body.count(new) for body in bodies] == [0, 2, 2][not refused_at_first :]
    assert bodies[-1] == bodies[-2] and "call_abc" not in bodies[-1]


@table(
    "type_name, status, said",
    [
        ("OllamaApiChat", 400, '"gemma3" does not support thinking'),
        ("OllamaApiChat", 404, '"gemma3" does not support thinking'),
        ("OllamaApiChat", 400, 'think value "low" is not supported for this model'),
    ],
)
def test_thinking_that_a_model_does_not_know(
    lab: Lab, backend: StubBackend, type_name: str, status: int, said: str
) -> None:
    lab.endpoint("E", {"apiTypeConfigFileName": type_name, "presetSamplers": {"thinkingMode": "on"}}, backend.url)
    first = len(backend.requests)
    refusing(backend, (has("think"), {"error": said}, status))
    for _ in range(2):
        assert ask(lab, backend, preset=None) == "Hello"
    assert [body.json.get("think") for body in backend.requests[first:]] == [True, None, None]


@table(
    "said, words",
    [
        (extra("nope", "no_such"), r"nope: Extra inputs are not permitted; no_such: Extra inputs are not permitted$"),
        (
            {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Input should be 'user'"}]},
            r"messages\.0\.role: Input should be 'user'$",
        ),
        (
            {
                "error": {
                    "message": "Provider returned error",
                    "metadata": {"raw": '{"error":{"message":"bad"}}', "provider_name": "Acme"},
                }
            },
            r"Acme: bad$",
        ),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": "plain"}}}, "400 Bad Request: plain$"),
        ({"error": {"message": "Provider returned error", "metadata": {}}}, "Provider returned error$"),
        (
            "'response_format' of type json_schema is not supported",
            r"It is structuredOutput in ApiTypes/OpenAI.json, with the value of 'structuredOutputFile' or",
        ),
    ],
)
def test_errors_that_remain(lab: Lab, backend: StubBackend, said: Any, words: str) -> None:
    lab.write(
        "ApiTypes/OpenAI", {**OPEN_AI, "structuredOutput": {"field": "response_format", "style": "openaiJsonSchema"}}
    )
    lab.endpoint("E", {}, backend.url)
    refusing(backend, (lambda body: True, said, 400))
    with pytest.raises(BackendError, match=words):
        ask(lab, backend, structured_output_schema={"type": "object"})


@table(
    "endpoint, preset, remedy",
    [
        (
            {"presetSamplers": {"temperature": 1}},
            None,
            "Set presetSamplers.temperature to null in Endpoints/lab/E.json.",
        ),
        ({"presetSamplers": {"temperature": 1}}, "Main2", "in Endpoints/lab/Main2.json."),
        ({}, "raw", "Remove 'temperature' from Presets/OpenAiCompatibleApis/tester/raw.json."),
        (
            {"presetSamplers": {"stop": ["x"]}, "appendPresetName": "raw"},
            None,
            "from Presets/OpenAiCompatibleApis/tester/raw",
        ),
    ],
)
def test_where_a_refused_field_comes_from(
    lab: Lab, backend: StubBackend, caplog: pytest.LogCaptureFixture, endpoint: dict[str, Any], preset: Any, remedy: str
) -> None:
    caplog.set_level(logging.INFO)
    lab.endpoint("E", endpoint, backend.url)
    lab.endpoint("Main2", {"presetSamplers": {"temperature": 2}})
    refusing(backend, (has("temperature"), "unknown field: temperature", 400))
    assert ask(lab, backend, preset=preset) == "Hello"
    assert f"'temperature'; it is left out until the next start. {remedy}"[:-1] in caplog.text or remedy in caplog.text


def test_a_refused_question_for_token_counts(lab: Lab, backend: StubBackend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.endpoint("E", {}, backend.url)
    refusing(backend, (has("stream_options"), extra("stream_options"), 422))
    assert ask(lab, backend, True) == "Hello"
    assert "Set requestUsageInStreams to false in ApiTypes/OpenAI.json." in caplog.text
    assert [("stream_options" in request.json) for request in backend.requests] == [True, False]


def test_an_error_within_a_status_of_success(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("E", {}, backend.url)
    said = {"error": {"code": 400, "message": "Unsupported parameter: top_k"}}
    refusing(backend, (has("top_k"), said, 200))
    assert ask(lab, backend) == ask(lab, backend, True) == "Hello"
    assert [("top_k" in request.json) for request in backend.requests] == [True, False, False]


def test_a_refusal_within_a_stream(lab: Lab, backend: StubBackend) -> None:
    lab.endpoint("E", {}, backend.url)
    events = [chat_chunk({"role": "assistant"}), {"error": {"code": 422, "message": "unknown field `top_k`"}}]
    backend.responder = lambda request: (
        sse_reply(events) if "top_k" in request.json else speak(request, Answer(("Hello",)))
    )
    assert ask(lab, backend, True) == "Hello"
    assert len(backend.requests) == 2
