"""What answers look like on the wire."""
from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from Middleware.services.response_builder_service import (
    SSE_DONE,
    OpenAIChatStream,
    ResponseBuilderService,
    encode_text,
    sse,
    to_json,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
builder = ResponseBuilderService()


def event(data: bytes) -> Any:
    """The object in one server-sent event."""
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    return json.loads(data[6:])


def test_models() -> None:
    before = int(time.time())
    body = builder.build_openai_models_response(["ann:fast", "ann"])
    assert [entry["id"] for entry in body["data"]] == ["ann:fast", "ann"]
    assert body["object"] == "list"
    for entry in body["data"]:
        created = entry.pop("created")
        assert before <= created <= time.time()
        assert entry == {"id": entry["id"], "object": "model", "owned_by": "Wilmer"}


def test_chat_completion() -> None:
    body = builder.build_openai_chat_completion_response("Hi", "ann", usage={"total_tokens": 1})
    assert body["id"] == f"chatcmpl-{body['created']}"
    del body["id"], body["created"]
    assert body == {
        "object": "chat.completion", "model": "ann", "system_fingerprint": "wmr_123456789",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": None,
                     "finish_reason": "stop"}],
        "usage": {"total_tokens": 1}}


@pytest.mark.parametrize(("reason", "expected"), [
    (None, "stop"), ("length", "length"), ("content_filter", "content_filter")])
def test_finish_reason(reason: str | None, expected: str) -> None:
    body = builder.build_openai_chat_completion_response("x", "m", finish_reason=reason)
    assert body["choices"][0]["finish_reason"] == expected


@pytest.mark.parametrize(("text", "content"), [("", None), ("so:", "so:")])
def test_tool_calls(text: str, content: str | None) -> None:
    choice = builder.build_openai_chat_completion_response(text, "m", [CALL])["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": content, "tool_calls": [CALL]}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("token", "calls", "delta"), [
    ("x", None, {"content": "x"}), ("", None, {}), ("", [CALL], {"tool_calls": [CALL]}),
    ("x", [CALL], {"content": "x", "tool_calls": [CALL]})])
def test_chunk(token: str, calls: Any, delta: dict[str, Any]) -> None:
    chunk = builder.build_openai_chat_completion_chunk(token, "stop" if not token else None, "m", tool_calls=calls)
    assert chunk["id"].startswith("chatcmpl-") and len(chunk["id"]) == len("chatcmpl-") + 36
    assert (chunk["object"], chunk["model"], chunk["system_fingerprint"]) == \
        ("chat.completion.chunk", "m", "fp_44709d6fcb")
    assert chunk["choices"] == [{"index": 0, "delta": delta, "logprobs": None,
                                 "finish_reason": None if token else "stop"}]


def test_error() -> None:
    assert builder.build_openai_error("m", 502) == {"error": {"message": "m", "type": "server_error", "code": 502}}


# -- the stream --------------------------------------------------------------------------------------------------------

def test_stream() -> None:
    stream = OpenAIChatStream(builder, "ann")
    events = [event(stream.text("Hi")), event(stream.text(" you")), event(stream.final("stop"))]
    assert [entry["choices"][0]["delta"] for entry in events] == [
        {"role": "assistant", "content": "Hi"}, {"content": " you"}, {}]
    assert [entry["choices"][0]["finish_reason"] for entry in events] == [None, None, "stop"]
    assert len({(entry["id"], entry["created"], entry["model"]) for entry in events}) == 1
    assert all("usage" not in entry for entry in events)
    assert all(entry.keys() == events[0].keys() for entry in events)
    assert stream.terminator() == SSE_DONE == b"data: [DONE]\n\n"


@pytest.mark.parametrize("first", ["tool", "final"])
def test_role_is_on_the_first_delta_whatever_it_is(first: str) -> None:
    stream = OpenAIChatStream(builder, "m")
    data = stream.tool_calls("", [CALL], "tool_calls") if first == "tool" else stream.final("stop")
    assert event(data)["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in event(stream.text("x"))["choices"][0]["delta"]


def test_include_usage() -> None:
    stream = OpenAIChatStream(builder, "m", include_usage=True)
    assert event(stream.text("a"))["usage"] is None
    assert event(stream.text("b"))["usage"] is None
    assert event(stream.final("stop"))["usage"] is None
    closing = event(stream.usage({"total_tokens": 3}))
    assert (closing["choices"], closing["usage"]) == ([], {"total_tokens": 3})


def test_error_in_mid_stream() -> None:
    data = OpenAIChatStream(builder, "m").error("broken", 500)
    assert data.endswith(SSE_DONE)
    assert event(data.removesuffix(SSE_DONE)) == builder.build_openai_error("broken", 500)


@pytest.mark.parametrize("model", ['an"n', "\\", "data", "größe", "\\u0000"])
def test_odd_model_names(model: str) -> None:
    stream = OpenAIChatStream(builder, model)
    stream.text("a")
    assert event(stream.text("x"))["model"] == model
    assert event(stream.text("x"))["choices"][0]["delta"] == {"content": "x"}


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1))
def test_any_token_survives(token: str) -> None:
    stream = OpenAIChatStream(builder, "m")
    assert event(stream.text(token))["choices"][0]["delta"]["content"] == token
    assert event(stream.text(token))["choices"][0]["delta"]["content"] == token


@pytest.mark.parametrize("token", ["[DONE]", "data: [DONE]\n\n", "\u2028\u2029", "a\r\nb", '"', "\x7f\x01"])
def test_tokens_that_look_like_framing(token: str) -> None:
    stream = OpenAIChatStream(builder, "m")
    for data in (stream.text(token), stream.text(token)):
        assert event(data)["choices"][0]["delta"]["content"] == token


# -- JSON --------------------------------------------------------------------------------------------------------------

def test_json_is_compact_utf8() -> None:
    assert to_json({"a": "ü😀", "b": [1, 2]}) == '{"a":"ü😀","b":[1,2]}'.encode()
    assert sse({"a": 1}) == b'data: {"a":1}\n\n'


@pytest.mark.parametrize(("text", "expected"), [
    ("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "😀"), ("\ude00b", "\ufffdb"), ("plain", "plain")])
def test_lone_surrogates(text: str, expected: str) -> None:
    assert encode_text(text).decode() == expected
    assert json.loads(to_json(text)) == expected
