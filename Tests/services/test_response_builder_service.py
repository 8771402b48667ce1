"""What answers look like on the wire."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import Any

import pytest

from Middleware.services.response_builder_service import (
    Counters,
    ResponseBuilderService,
    ollama_tool_calls,
    to_json,
)
from Middleware.utilities.text_utils import encode_text
from Tests.tables import table

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ID = re.compile(r"chatcmpl-[0-9a-f]{32}")
builder = ResponseBuilderService()


def test_models() -> None:
    before = int(time.time())
    body = builder.build_openai_models_response(["ann:fast", "ann"])
    assert [entry["id"] for entry in body["data"]] == ["ann:fast", "ann"]
    assert body["object"] == "list"
    for entry in body["data"]:
        created = entry.pop("created")
        assert before <= created <= time.time()
        assert entry == {
            "id": entry["id"],
            "object": "model",
            "owned_by": "Wilmer",
            "context_length": 32768,
            "meta": {"n_ctx": 32768},
        }


def test_chat_completion() -> None:
    body = builder.build_openai_chat_completion_response("Hi", model="ann", usage={"total_tokens": 1})
    assert ID.fullmatch(body["id"])
    del body["id"], body["created"]
    assert body == {
        "object": "chat.completion",
        "model": "ann",
        "system_fingerprint": "wmr_123456789",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": "stop"}
        ],
        "usage": {"total_tokens": 1},
    }


@pytest.mark.parametrize(
    ("reason", "expected"), [(None, "stop"), ("length", "length"), ("content_filter", "content_filter")]
)
def test_finish_reason(reason: str | None, expected: str) -> None:
    body = builder.build_openai_chat_completion_response("x", model="m", finish_reason=reason)
    assert body["choices"][0]["finish_reason"] == expected


@pytest.mark.parametrize(("text", "content"), [("", None), ("so:", "so:")])
def test_tool_calls(text: str, content: str | None) -> None:
    choice = builder.build_openai_chat_completion_response(text, [CALL], model="m")["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": content, "tool_calls": [CALL]}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("token", "calls", "delta"),
    [
        ("x", None, {"content": "x"}),
        ("", None, {}),
        ("", [CALL], {"tool_calls": [CALL]}),
        ("x", [CALL], {"content": "x", "tool_calls": [CALL]}),
    ],
)
def test_chunk(token: str, calls: Any, delta: dict[str, Any]) -> None:
    chunk = builder.build_openai_chat_completion_chunk(token, "stop" if not token else None, calls, model="m")
    assert ID.fullmatch(chunk["id"])
    assert (chunk["object"], chunk["model"], chunk["system_fingerprint"]) == (
        "chat.completion.chunk",
        "m",
        "fp_44709d6fcb",
    )
    assert chunk["choices"] == [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None if token else "stop"}
    ]


def test_error() -> None:
    assert builder.build_openai_error("m", 502) == {
        "error": {"message": "m", "type": "server_error", "param": None, "code": None}
    }
    assert builder.build_openai_error("m", 404, "model_not_found") == {
        "error": {"message": "m", "type": "invalid_request_error", "param": None, "code": "model_not_found"}
    }
    assert builder.build_openai_error("m", 400, param="input[3].content")["error"]["param"] == "input[3].content"


# -- Ollama ------------------------------------------------------------------------------------------------------------

NATIVE = {"function": {"name": "f", "arguments": {"a": 1}, "description": "kept"}}


A_CALL = {"name": "f", "arguments": {"a": 1}}


@table(
    ("calls", "expected"),
    [
        (
            [{"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}],
            [{"id": "c", "function": {"index": 0, **A_CALL}}],
        ),
        # Numbered from 0 in their order, whatever their own index.
        (
            [
                {"id": "c", "index": 7, "function": {"name": "f", "arguments": {"a": 1}, "index": 7}},
                "x",
                {"id": "d", "type": "custom", "function": {"name": "f", "arguments": '{"a": 1}', "index": 7}},
            ],
            [{"id": "c", "function": {"index": 0, **A_CALL}}, {"id": "d", "function": {"index": 1, **A_CALL}}],
        ),
        ([NATIVE], [{"id": None, "function": {"index": 0, **A_CALL, "description": "kept"}}]),
        (["x", None, 5], []),
        ([], []),
        ([{}], [{"id": None, "function": {"index": 0, "name": "", "arguments": {}}}]),
        *[
            (
                [{"id": unusable, "function": {"name": "f", "arguments": '{"a": 1}'}}],
                [{"id": None, "function": {"index": 0, **A_CALL}}],
            )
            for unusable in ("", None, 5, ["c"])
        ],
        *[
            (
                [{"id": "c", "function": {"name": "f", "arguments": bad}}],
                [{"id": "c", "function": {"index": 0, "name": "f", "arguments": {}}}],
            )
            for bad in ("", " ", "{bad", "[1]", "5", None, [1], "[" * 100_000)
        ],
    ],
)
def test_tool_calls_in_ollama_shape(calls: Any, expected: Any) -> None:
    """An id of None stands for one that is made: of its own for each call."""
    found = ollama_tool_calls(calls)
    made = [call for call, wanted in zip(found, expected, strict=True) if wanted["id"] is None]
    assert all(re.fullmatch("call_[0-9a-f]{24}", str(call["id"])) for call in made)
    assert len({str(call["id"]) for call in found}) == len(found)
    for call in made:
        call["id"] = None
    assert found == expected


@pytest.mark.parametrize("arguments", ["", "{bad", "[1]"])
def test_lost_arguments_are_warned_about(arguments: str, caplog: pytest.LogCaptureFixture) -> None:
    ollama_tool_calls([{"function": {"name": "f", "arguments": arguments}}])
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "arguments" in record.message
    caplog.clear()
    ollama_tool_calls([NATIVE])
    assert not caplog.records


@pytest.mark.parametrize(
    ("reason", "done", "told"),
    [
        (None, False, None),
        ("stop", True, "stop"),
        ("length", True, "length"),
        ("tool_calls", True, "stop"),
        ("content_filter", True, "stop"),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_ollama_chunk(reason: str | None, done: bool, told: str | None, chat: bool) -> None:
    build = builder.build_ollama_chat_chunk if chat else builder.build_ollama_generate_chunk
    chunk = build("t", reason, "r-1", model="m")
    said = {"message": {"role": "assistant", "content": "t"}} if chat else {"response": "t"}
    assert datetime.strptime(chunk.pop("created_at"), "%Y-%m-%dT%H:%M:%S.%fZ")
    assert chunk == {"model": "m", **said, "done": done, "request_id": "r-1", **({"done_reason": told} if told else {})}


def test_no_request_id_is_no_key() -> None:
    assert "request_id" not in builder.build_ollama_chat_chunk("x", None, model="m")
    assert "request_id" not in builder.build_ollama_generate_response("x", "m")


@pytest.mark.parametrize(("calls", "present"), [(None, False), ([], True), ([NATIVE], True)])
def test_absent_calls_stay_absent(calls: Any, present: bool) -> None:
    body = builder.build_ollama_chat_response("x", "m", "r", calls)
    assert ("tool_calls" in body["message"]) is present


@pytest.mark.parametrize("chat", [False, True])
def test_counters(chat: bool) -> None:
    counters = Counters(6, 1, 2, 3, 4, 5)
    body = (
        builder.build_ollama_chat_response("x", "m", "r", counters=counters)
        if chat
        else builder.build_ollama_generate_response("x", "m", "r", counters=counters)
    )
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
    ] == [6, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("text", ["", "x"])
def test_reasoning_has_its_own_place(text: str) -> None:
    openai = builder.build_openai_chat_completion_response(text, model="m", reasoning="hm")
    assert openai["choices"][0]["message"] == {"role": "assistant", "content": text, "reasoning_content": "hm"}
    ollama = builder.build_ollama_chat_response(text, "m", reasoning="hm")
    assert ollama["message"] == {"role": "assistant", "content": text, "thinking": "hm"}


@pytest.mark.parametrize(("given", "told"), [("", "wmr_123456789"), ("b77", "b77")])
def test_fingerprint(given: str, told: str) -> None:
    assert builder.build_openai_completion_response("x", model="m", fingerprint=given)["system_fingerprint"] == told
    assert (
        builder.build_openai_chat_completion_response("x", model="m", fingerprint=given)["system_fingerprint"] == told
    )
    chunk = builder.build_openai_completion_chunk("x", None, model="m", fingerprint=given)
    assert chunk["system_fingerprint"] == (given or "fp_44709d6fcb")


@pytest.mark.parametrize(("reason", "told"), [(None, None), ("length", "length"), ("tool_calls", "stop")])
def test_text_completions_know_no_tool_calls(reason: str | None, told: str | None) -> None:
    assert builder.build_openai_completion_chunk("", reason, model="m")["choices"][0]["finish_reason"] == told
    whole = builder.build_openai_completion_response("x", model="m", finish_reason=reason)
    assert whole["choices"][0]["finish_reason"] == (told or "stop")


def test_ollama_error() -> None:
    assert builder.build_ollama_error("m") == {"error": "m"}


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_json_is_compact_utf8() -> None:
    assert to_json({"a": "ü😀", "b": [1, 2]}) == '{"a":"ü😀","b":[1,2]}'.encode()


@pytest.mark.parametrize(
    ("text", "expected"), [("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "😀"), ("\ude00b", "\ufffdb"), ("plain", "plain")]
)
def test_lone_surrogates(text: str, expected: str) -> None:
    assert encode_text(text).decode() == expected
    assert json.loads(to_json(text)) == expected
