"""What both Ollama dialects share: options, stream flag, images, ends, token counts, errors, framing."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import BackendResponseError, BackendStatusError
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.handlers.impl.ollama_chat_api_handler import OllamaChatHandler
from Middleware.llmapis.handlers.impl.ollama_generate_api_handler import OllamaGenerateHandler
from Middleware.llmapis.transport import Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.answers.stream_parsers import NDJSONParser
from Tests.backend_dialects import COMPLETION_TOKENS, DIALECTS, PROMPT_TOKENS, Answer
from Tests.stub_backend import Reply, StubBackend, json_reply, status_reply
from Tests.tables import table

TYPES: dict[str, type[BaseLlmApiHandler]] = {
    "ollamaApiChat": OllamaChatHandler,
    "ollamaApiGenerate": OllamaGenerateHandler,
}
PROMPTS = {"ollamaApiChat": Prompt([{"role": "user", "content": "hi"}]), "ollamaApiGenerate": Prompt(prompt="hi")}
USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "completion_tokens": COMPLETION_TOKENS,
    "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
}
SILENCE = {"token": "", "finish_reason": None}
LONG_ANSWER = Answer(("zwölf ", "🌍\n", ""), "length", ("hm ", "…"))
EXPECTED = [
    {**SILENCE, "reasoning": "hm "},
    {**SILENCE, "reasoning": "…"},
    {"token": "zwölf ", "finish_reason": None},
    {"token": "🌍\n", "finish_reason": None},
    SILENCE,
    {"token": "", "finish_reason": "length", "usage": USAGE},
]

pytestmark = pytest.mark.parametrize("type_name", TYPES)


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(
    type_name: str, url: str = "http://127.0.0.1:1", scope: CancelScope | None = None, **settings: Any
) -> BaseLlmApiHandler:
    values = {"endpoint": {}, "api_type": {"streamPropertyName": "stream"}, "model": "m", **settings}
    return TYPES[type_name](BackendSettings("E", url, **values), Transport(), scope)


def body(type_name: str, stream: bool = True, **settings: Any) -> dict[str, Any]:
    return dict(handler(type_name, **settings).request(PROMPTS[type_name], stream).payload)


def line(type_name: str, text: str, **more: Any) -> dict[str, Any]:
    part = {"message": {"role": "assistant", "content": text}} if type_name == "ollamaApiChat" else {"response": text}
    return {**part, "done": False, **more}


def read(type_name: str, *lines: Any) -> list[dict[str, Any]]:
    return handler(type_name).read_events([each if isinstance(each, str) else json.dumps(each) for each in lines])


def ndjson(*lines: Any) -> list[bytes]:
    return [json.dumps(each).encode() + b"\n" for each in lines]


# -- requests -----------------------------------------------------------------------------------------------------


@table("api_type", [{"streamPropertyName": "stream"}, {"streamPropertyName": ""}, {"streamPropertyName": None}, {}])
@table("samplers", [{"stream": True}, {"stream": False}, {}])
def test_stream_flag_follows_the_call_and_is_no_option(
    type_name: str, api_type: dict[str, Any], samplers: dict[str, Any]
) -> None:
    call = handler(type_name, samplers=samplers, api_type=api_type)
    flags = []
    for stream in (True, False, True):
        payload = call.request(PROMPTS[type_name], stream).payload
        assert payload["options"] == {}
        flags.append(payload.get("stream", "default"))
    assert flags == ["default" if type_name == "ollamaApiChat" else True, False, flags[0]]


def test_a_stream_key_of_another_name_is_no_option(type_name: str) -> None:
    api_type = {"streamPropertyName": "live"}
    assert body(type_name, api_type=api_type, samplers={"live": True, "top_k": 1})["options"] == {"top_k": 1}


@pytest.mark.parametrize(
    "lifted",
    [
        {"think": False},
        {"think": "high"},
        {"keep_alive": -1},
        {"format": "json"},
        {"think": None},
        {"think": True, "keep_alive": "5m", "format": {"type": "object"}},
    ],
)
def test_fields_that_are_no_options_stand_at_the_top(type_name: str, lifted: dict[str, Any]) -> None:
    samplers = {"temperature": 0.4, **lifted, "stop": ["x"], "num_predict": 300, "num_ctx": 4096}
    payload = body(type_name, samplers=samplers)
    assert payload["options"] == {"temperature": 0.4, "stop": ["x"], "num_predict": 300, "num_ctx": 4096}
    assert {key: payload[key] for key in ("think", "keep_alive", "format") if key in payload} == lifted
    assert samplers["stop"] == ["x"] and set(lifted) <= set(samplers)


@pytest.mark.parametrize(
    ("model", "endpoint", "sent"),
    [
        ("m", {}, "m"),
        (None, {"modelNameToSendToAPI": "from-file"}, "from-file"),
        (None, {}, ""),
        (None, {"modelNameToSendToAPI": None}, ""),
        ("", {}, ""),
    ],
)
def test_the_model_is_always_sent(type_name: str, model: str | None, endpoint: dict[str, Any], sent: str) -> None:
    assert body(type_name, model=model, endpoint=endpoint)["model"] == sent


def test_schema_replaces_the_format_of_the_preset(type_name: str, caplog: pytest.LogCaptureFixture) -> None:
    call = handler(
        type_name, samplers={"format": "json"}, api_type={"structuredOutput": {"field": "format", "style": "raw"}}
    )
    prompt = Prompt([{"role": "user", "content": "hi"}], schema={"type": "object"})
    payload = call.payload(prompt)
    assert payload["format"] == {"type": "object"} and payload["options"] == {}
    assert "replaces the value of 'format'" in caplog.text


@table(
    "source",
    [
        "https://h/x.png",
        "HTTP://h/x.png",
        "https://h/;base64,AAAA",
        "file:///x",
        "",
        None,
        5,
        "data:image/svg+xml,<svg/>",
        "data:image/png;base64,",
    ],
)
def test_images_that_are_no_data_are_skipped(type_name: str, source: Any, caplog: pytest.LogCaptureFixture) -> None:
    images = [source, "data:image/png;base64,AAAA", "data:image/gif;name=a;base64,BBBB", "CCCC"]
    payload = handler(type_name).payload(Prompt([{"role": "user", "content": "look", "images": images}]))
    sent = payload["messages"][0]["images"] if type_name == "ollamaApiChat" else payload["images"]
    assert sent == ["AAAA", "BBBB", "CCCC"]
    assert images[0] == source
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "1 image" in record.message and "'E'" in record.message
    assert not source or str(source) not in record.message


# -- events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("load", "stop"), (None, "stop"), (5, "stop")]
)
def test_what_follows_done_counts(type_name: str, reason: Any, finish: str) -> None:
    call = handler(type_name)
    events = [
        json.dumps(each)
        for each in (
            line(type_name, "a"),
            line(type_name, "b", done=True, done_reason=reason),
            line(type_name, "late"),
        )
    ]
    assert call.read_events(events) == [
        {"token": "a", "finish_reason": None},
        {"token": "b", "finish_reason": finish},
        {"token": "late", "finish_reason": None},
    ]
    # One with content is not the last for certain.
    assert call.ended and not call.closed and call.outcome.finish_reason == finish
    with pytest.raises(BackendResponseError, match="late"):
        call.read_events([json.dumps({"error": "late"})])


def test_done_alone_is_an_end(type_name: str) -> None:
    assert read(type_name, {"done": True}) == [{"token": "", "finish_reason": "stop"}]


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ({"prompt_eval_count": 3, "eval_count": 4}, {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}),
        ({"eval_count": 4}, {"completion_tokens": 4}),
        ({"prompt_eval_count": 3, "eval_count": None}, {"prompt_tokens": 3}),
        ({"prompt_eval_count": "3", "eval_count": True}, None),
        ({}, None),
    ],
)
def test_token_counts(type_name: str, counts: dict[str, Any], usage: dict[str, int] | None) -> None:
    call = handler(type_name)
    [chunk] = call.read_events([json.dumps(line(type_name, "", done=True, **counts))])
    assert chunk.get("usage") == usage and call.outcome.usage == usage
    whole = handler(type_name)
    assert whole.read_whole(line(type_name, "a", done=True, **counts)) == "a"
    assert whole.outcome.usage == usage


@table(
    "noise",
    [
        "123",
        "{broken",
        "[]",
        "null",
        {},
        {"done": False},
        {"status": "pulling"},
        {"message": 5, "response": 5},
        {"message": {"content": 5}},
        {"message": {"thinking": 5}, "thinking": 5},
        {"message": None, "response": None},
        {"message": {}},
    ],
)
def test_noise_says_nothing(type_name: str, noise: Any) -> None:
    chunks = read(type_name, noise, line(type_name, "a"))
    assert [chunk for chunk in chunks if chunk != SILENCE] == [{"token": "a", "finish_reason": None}]


@pytest.mark.parametrize("error", ["model  not found", {"message": "model not found"}])
def test_error_object_raises(type_name: str, error: Any) -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' .*: an error instead of an answer: model not found"):
        read(type_name, {"error": error})
    with pytest.raises(BackendResponseError, match="model not found"):
        handler(type_name).read_whole({"error": error})


@table("garbage", [5, [], None, "text", {}, {"message": None}, {"message": 5, "response": 5}, {"done": True}])
def test_what_has_no_message_is_no_answer(type_name: str, garbage: Any) -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' \(.*\): an answer without a message: "):
        handler(type_name).read_whole(garbage)


@pytest.mark.parametrize(
    ("end", "finish"),
    [
        ({"done": True, "done_reason": "length"}, "length"),
        ({"done": True, "done_reason": "stop"}, "stop"),
        ({"done": True}, "stop"),
        ({}, None),
    ],
)
def test_finish_reason_of_a_complete_answer(type_name: str, end: dict[str, Any], finish: str | None) -> None:
    call = handler(type_name)
    assert call.read_whole({**line(type_name, "a"), **end}) == "a"
    assert call.outcome.finish_reason == finish


# -- framing ------------------------------------------------------------------------------------------------------


def test_a_stream_may_be_cut_at_every_byte(type_name: str) -> None:
    data = b"".join(DIALECTS[type_name].pieces(LONG_ANSWER))
    for cut in range(len(data) + 1):
        call, framer = handler(type_name), NDJSONParser()
        events = [call.read_events(framer.feed(part)) for part in (data[:cut], data[cut:])]
        assert [chunk for chunks in events for chunk in chunks] == EXPECTED, cut


@given(texts=st.lists(st.text(st.characters(codec="utf-8")), max_size=6), cuts=st.sets(st.integers(0, 900)))
def test_texts_survive_any_cuts(type_name: str, texts: list[str], cuts: set[int]) -> None:
    data = b"".join(DIALECTS[type_name].pieces(Answer(texts)))
    call, framer = handler(type_name), NDJSONParser()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    chunks = [
        chunk for start, end in itertools.pairwise(edges) for chunk in call.read_events(framer.feed(data[start:end]))
    ]
    assert [chunk["token"] for chunk in chunks] == [*texts, ""]
    assert call.closed


# -- calls --------------------------------------------------------------------------------------------------------


def test_stream(type_name: str, backend: StubBackend) -> None:
    backend.script(DIALECTS[type_name].reply(LONG_ANSWER, True))
    call = handler(type_name, backend.url, samplers={"stream": True, "top_k": 1}, api_key="k")
    chunks = list(call.handle_streaming(PROMPTS[type_name]))
    assert [{key: value for key, value in chunk.items() if key != "more"} for chunk in chunks] == EXPECTED
    assert (call.outcome.finish_reason, call.outcome.usage) == ("length", USAGE)
    request = backend.requests[0]
    assert request.path == {"ollamaApiChat": "/api/chat", "ollamaApiGenerate": "/api/generate"}[type_name]
    assert request.json["options"] == {"top_k": 1} and request.headers["authorization"] == "Bearer k"
    assert request.json.get("stream", True) is True


def test_complete_answer(type_name: str, backend: StubBackend) -> None:
    backend.script(DIALECTS[type_name].reply(LONG_ANSWER, False))
    call = handler(type_name, backend.url + "/api/", samplers={"stream": False})
    assert call.handle_non_streaming(PROMPTS[type_name]) == "zwölf 🌍\n"
    assert (call.outcome.finish_reason, call.outcome.usage, call.outcome.reasoning) == ("length", USAGE, "hm …")
    assert backend.requests[0].json["stream"] is False and backend.requests[0].path.count("/api") == 1


def test_error_behind_tokens_comes_after_them(type_name: str, backend: StubBackend) -> None:
    backend.script(
        Reply(
            pieces=[
                b"".join(
                    ndjson(line(type_name, "a"), line(type_name, "b"), {"error": "out of memory"}, line(type_name, "c"))
                )
            ]
        )
    )
    tokens = []
    with pytest.raises(BackendResponseError, match="out of memory"):
        for chunk in handler(type_name, backend.url).handle_streaming(PROMPTS[type_name]):
            tokens.append(chunk["token"])
    assert tokens == ["a", "b"]


def test_error_bodies_with_a_good_status(type_name: str, backend: StubBackend) -> None:
    backend.script(
        json_reply({"error": "no such model"}),
        json_reply({"error": "no such model"}),
        Reply(body=b'{\n "error": "no such model"\n}'),
    )
    with pytest.raises(BackendResponseError, match="no such model"):
        handler(type_name, backend.url).handle_non_streaming(PROMPTS[type_name])
    for _ in range(2):
        with pytest.raises(BackendResponseError, match="no such model"):
            list(handler(type_name, backend.url).handle_streaming(PROMPTS[type_name]))


def test_status_error(type_name: str, backend: StubBackend) -> None:
    backend.script(status_reply(404, "model 'm' not found"))
    with pytest.raises(BackendStatusError, match="not found"):
        list(handler(type_name, backend.url).handle_streaming(PROMPTS[type_name]))


def test_a_wrong_dialect_is_explained(type_name: str, backend: StubBackend) -> None:
    backend.script(Reply(pieces=[b'data: {"choices": []}\n\n']))
    with pytest.raises(BackendResponseError, match="ApiType"):
        list(handler(type_name, backend.url).handle_streaming(PROMPTS[type_name]))


def test_stream_that_breaks_off(type_name: str, backend: StubBackend) -> None:
    backend.script(Reply(pieces=[*ndjson(line(type_name, "a")), b'{"message": {"con']))
    call, texts = handler(type_name, backend.url), list[str]()
    with pytest.raises(BackendResponseError, match="the stream ended without its end"):
        for chunk in call.handle_streaming(PROMPTS[type_name]):
            texts.append(chunk["token"])
    assert "".join(texts) == "a" and call.outcome.finish_reason is None


def test_whole_body_instead_of_a_stream(type_name: str, backend: StubBackend) -> None:
    whole = DIALECTS[type_name].whole(Answer(("whole",)))
    backend.script(json_reply(whole), Reply(body=json.dumps(whole, indent=1).encode()))
    call = handler(type_name, backend.url)
    for _ in range(2):
        chunks = [chunk for chunk in call.handle_streaming(PROMPTS[type_name]) if chunk != SILENCE]
        assert (chunks[0]["token"], chunks[0]["usage"], chunks[-1]["finish_reason"]) == ("whole", USAGE, "stop")


def test_cancelled_stream_ends_and_lets_the_connection_go(type_name: str, backend: StubBackend) -> None:
    backend.script(Reply(pieces=ndjson(line(type_name, "a")), hang=True))
    scope = CancelScope()
    stream = handler(type_name, backend.url, scope).handle_streaming(PROMPTS[type_name])
    assert next(stream)["token"] == "a"
    scope.cancel()
    assert list(stream) == []
    assert backend.requests[0].wait_ended()


def test_a_second_call_starts_afresh(type_name: str, backend: StubBackend) -> None:
    backend.default = DIALECTS[type_name].reply(LONG_ANSWER, True)
    call = handler(type_name, backend.url)
    texts = ["".join(chunk["token"] for chunk in call.handle_streaming(PROMPTS[type_name])) for _ in range(2)]
    assert texts == ["zwölf 🌍\n"] * 2
