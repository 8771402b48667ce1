"""How each dialect writes a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.api.answers import stream_renderers
from Middleware.api.answers.stream_renderers import (
    SSE_DONE,
    OllamaChatStream,
    OllamaGenerateStream,
    OpenAIChatStream,
    OpenAICompletionStream,
    StreamRenderer,
    sse,
)
from Middleware.api.errors import PublicError
from Middleware.services.response_builder_service import Counters, ResponseBuilderService
from Tests.properties import examples

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
builder = ResponseBuilderService()


def event(data: bytes) -> Any:
    """The object in one server-sent event."""
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    return json.loads(data[6:])


# -- OpenAI chat -------------------------------------------------------------------------------------------------------


def test_stream() -> None:
    stream = OpenAIChatStream("ann")
    events = [event(stream.text("Hi")), event(stream.text(" you")), event(stream.final("stop"))]
    assert [entry["choices"][0]["delta"] for entry in events] == [
        {"role": "assistant", "content": "Hi"},
        {"content": " you"},
        {},
    ]
    assert [entry["choices"][0]["finish_reason"] for entry in events] == [None, None, "stop"]
    assert len({(entry["id"], entry["created"], entry["model"]) for entry in events}) == 1
    assert all("usage" not in entry for entry in events)
    assert all(entry.keys() == events[0].keys() for entry in events)
    assert stream.ending(dict, False) == [SSE_DONE] == [b"data: [DONE]\n\n"]


@pytest.mark.parametrize("first", ["tool", "final"])
def test_role_is_on_the_first_delta_whatever_it_is(first: str) -> None:
    stream = OpenAIChatStream("m")
    data = stream.tool_calls("", [CALL], "tool_calls") if first == "tool" else stream.final("stop")
    assert event(data)["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in event(stream.text("x"))["choices"][0]["delta"]


@pytest.mark.parametrize(
    ("indices", "told"),
    [
        ((0, 1, 2), [0, 1, 2]),
        ((None, None, None), [0, 1, 2]),
        (("0", "1", "2"), [0, 1, 2]),
        ((True, False, 0.5), [0, 1, 2]),
        ((3, None, None), [0, 1, 2]),
    ],
)
def test_tool_calls_are_numbered(indices: tuple[Any, ...], told: list[int]) -> None:
    stream = OpenAIChatStream("m")
    items = [
        event(stream.tool_calls("", [{**CALL, "id": f"c{n}", "index": index}], None)) for n, index in enumerate(indices)
    ]
    assert [item["choices"][0]["delta"]["tool_calls"] for item in items] == [
        [{**CALL, "id": f"c{n}", "index": index}] for n, index in enumerate(told)
    ]


def test_fragments_without_index_stay_with_their_call() -> None:
    stream = OpenAIChatStream("m")
    rest = {"function": {"arguments": "x"}}
    calls = [{**CALL, "id": "a"}, rest, {**CALL, "id": "b"}, rest, "junk"]
    told = event(stream.tool_calls("", calls, None))["choices"][0]["delta"]["tool_calls"]
    assert [call["index"] for call in told[:-1]] == [0, 0, 1, 1] and told[-1] == "junk"
    assert "index" not in rest


def test_include_usage() -> None:
    stream = OpenAIChatStream("m", include_usage=True)
    assert event(stream.text("a"))["usage"] is None
    assert event(stream.text("b"))["usage"] is None
    assert event(stream.final("stop"))["usage"] is None
    last, done = stream.ending(lambda: {"total_tokens": 3}, False)
    closing = event(last)
    assert done == SSE_DONE
    assert (closing["choices"], closing["usage"]) == ([], {"total_tokens": 3})


def test_error_in_mid_stream() -> None:
    data, done = OpenAIChatStream("m").error(PublicError(500, "broken"))
    assert done == SSE_DONE
    assert event(data) == builder.build_openai_error("broken", 500)


@pytest.mark.parametrize("model", ['an"n', "\\", "data", "größe", "\\u0000"])
def test_odd_model_names(model: str) -> None:
    stream = OpenAIChatStream(model)
    stream.text("a")
    assert event(stream.text("x"))["model"] == model
    assert event(stream.text("x"))["choices"][0]["delta"] == {"content": "x"}


@examples(200)
@given(st.text(min_size=1))
def test_any_token_survives(token: str) -> None:
    stream = OpenAIChatStream("m")
    assert event(stream.text(token))["choices"][0]["delta"]["content"] == token
    assert event(stream.text(token))["choices"][0]["delta"]["content"] == token


@pytest.mark.parametrize("token", ["[DONE]", "data: [DONE]\n\n", "\u2028\u2029", "a\r\nb", '"', "\x7f\x01"])
def test_tokens_that_look_like_framing(token: str) -> None:
    stream = OpenAIChatStream("m")
    for data in (stream.text(token), stream.text(token)):
        assert event(data)["choices"][0]["delta"]["content"] == token


def test_event_framing() -> None:
    assert sse({"a": 1}) == b'data: {"a":1}\n\n'


# -- all dialects ------------------------------------------------------------------------------------------------------


def counters(usage: Mapping[str, Any]) -> Counters:
    return Counters(total_duration=9, prompt_eval_count=usage["prompt_tokens"], eval_count=usage["completion_tokens"])


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
RENDERERS: dict[str, Callable[[], StreamRenderer]] = {
    "openai chat": lambda: OpenAIChatStream("m"),
    "openai text": lambda: OpenAICompletionStream("m"),
    "ollama chat": lambda: OllamaChatStream("m", "r-1", counters),
    "ollama text": lambda: OllamaGenerateStream("m", "r-1", counters),
}


@pytest.fixture(params=RENDERERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def objects(name: str, *pieces: bytes) -> list[Any]:
    """What pieces of a stream say; each must be framed on its own."""
    if name.startswith("openai"):
        return [event(piece) for piece in pieces if piece]
    assert all(piece.endswith(b"\n") and piece.count(b"\n") == 1 for piece in pieces if piece)
    return [json.loads(piece) for piece in pieces if piece]


def text_of(name: str, item: Any) -> Any:
    return {
        "openai chat": lambda: item["choices"][0]["delta"].get("content"),
        "openai text": lambda: item["choices"][0]["text"],
        "ollama chat": lambda: item["message"]["content"],
        "ollama text": lambda: item["response"],
    }[name]()


@examples(100)
@given(tokens=st.lists(st.text(min_size=1), min_size=1, max_size=4))
@pytest.mark.parametrize("kind", RENDERERS)
def test_any_text_in_any_dialect(kind: str, tokens: list[str]) -> None:
    stream = RENDERERS[kind]()
    items = objects(kind, *[stream.text(token) for token in tokens])
    assert [text_of(kind, item) for item in items] == tokens


def test_heartbeat(name: str) -> None:
    stream = RENDERERS[name]()
    (item,) = objects(name, stream.heartbeat())
    assert not text_of(name, item)
    if name.startswith("openai"):
        first, second = event(stream.text("a")), event(stream.heartbeat())
        assert [item["id"], item["created"], item["model"]] == [first["id"], first["created"], "m"]
        told = [found["choices"][0].get("delta") for found in (item, first, second)]
        chat = [{"role": "assistant"}, {"content": "a"}, {}]
        assert told == (chat if name == "openai chat" else [None] * 3)
        assert [found["choices"][0]["finish_reason"] for found in (item, second)] == [None, None]
        return
    assert (item["model"], item["done"], item["request_id"]) == ("m", False, "r-1")
    assert "T" in item["created_at"] and item["created_at"].endswith("Z")


def test_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 11.1])
    told = iter(["t1", "t2"])
    monkeypatch.setattr(stream_renderers.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr("Middleware.services.response_builder_service.timestamp", lambda: next(told))
    stream = OllamaChatStream("m", "r-1", counters)
    assert [json.loads(stream.text("x"))["created_at"] for _ in range(3)] == ["t1", "t1", "t2"]


@pytest.mark.parametrize(("reason", "done_reason"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop")])
def test_end(name: str, reason: str, done_reason: str) -> None:
    stream = RENDERERS[name]()
    stream.text("x")
    final, ending = stream.final(reason), stream.ending(lambda: USAGE, False)
    if name.startswith("openai"):
        assert ending == [SSE_DONE]
        told = reason if name == "openai chat" else done_reason
        assert event(final)["choices"][0]["finish_reason"] == told
        return
    assert final == b""
    (last,) = objects(name, *ending)
    assert (last["done"], last["done_reason"], text_of(name, last)) == (True, done_reason, "")
    assert [last[key] for key in ("prompt_eval_count", "eval_count", "total_duration", "load_duration")] == [3, 4, 9, 0]


def test_calls(name: str) -> None:
    stream = RENDERERS[name]()
    fragment = {"index": 0, "function": {"arguments": "}"}}
    begun = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    items = objects(name, stream.tool_calls("so", [begun], None), stream.tool_calls("", [fragment], "tool_calls"))
    assert text_of(name, items[0]) == "so"
    ending = objects(name, *stream.ending(lambda: USAGE, False)) if name.startswith("ollama") else []
    if name == "openai chat":
        assert [item["choices"][0]["delta"]["tool_calls"] for item in items] == [[begun], [fragment]]
        assert items[1]["choices"][0]["finish_reason"] == "tool_calls"
    elif name == "openai text":
        assert [item["choices"][0]["finish_reason"] for item in items] == [None, "stop"]
    elif name == "ollama chat":
        assert len(items) == 1 and "tool_calls" not in items[0]["message"]
        line, last = ending
        assert line["message"] == {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "function": {"index": 0, "name": "f", "arguments": {}}}],
        }
        assert line["done"] is False and "done_reason" not in line
        assert (last["done"], last["done_reason"]) == (True, "stop") and "tool_calls" not in last["message"]
    else:
        assert len(items) == 1 and "tool_calls" not in json.dumps(ending)


def test_reasoning(name: str) -> None:
    stream = RENDERERS[name]()
    items = objects(name, stream.reasoning("h\nm"), stream.reasoning("m"), stream.text("x"))
    if name == "openai chat":
        assert [item["choices"][0]["delta"] for item in items] == [
            {"role": "assistant", "reasoning_content": "h\nm"},
            {"reasoning_content": "m"},
            {"content": "x"},
        ]
    elif name == "ollama chat":
        assert [item["message"] for item in items] == [
            {"role": "assistant", "content": "", "thinking": "h\nm"},
            {"role": "assistant", "content": "", "thinking": "m"},
            {"role": "assistant", "content": "x"},
        ]
    else:
        assert len(items) == 1 and text_of(name, items[0]) == "x"


def test_error(name: str) -> None:
    stream = RENDERERS[name]()
    error, *rest = stream.error(PublicError(502, "broken"))
    if name.startswith("openai"):
        assert rest == [SSE_DONE]
        assert event(error) == builder.build_openai_error("broken", 502)
    else:
        assert rest == [] and objects(name, error) == [{"error": "broken"}]


def test_only_events_may_share_a_write(name: str) -> None:
    assert RENDERERS[name]().joins is name.startswith("openai")


def test_fingerprint_said_late() -> None:
    stream = OpenAICompletionStream("m")
    stream.text("a")
    stream.fingerprint = "b77"
    assert [event(piece)["system_fingerprint"] for piece in (stream.text("b"), stream.final("stop"))] == ["b77"] * 2
