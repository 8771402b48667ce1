"""The OpenAI chat dialect over real sockets."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError, BackendStatusError
from Middleware.llmapis.handlers.base import stream_ends
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.impl.openai_api_handler import OpenAiApiHandler
from Middleware.llmapis.transport import Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.answers.stream_parsers import SSEParser
from Tests.llmapis.transport_lab import SOON
from Tests.stub_backend import (
    Reply,
    StubBackend,
    chat_chunk,
    chat_reply,
    chat_stream_reply,
    json_reply,
    sse_event,
    sse_reply,
    status_reply,
)
from Tests.tables import table

HI = Prompt([{"role": "user", "content": "hi"}])
SILENCE = {"token": "", "finish_reason": None}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(backend: StubBackend | None = None, scope: CancelScope | None = None, **settings: Any) -> OpenAiApiHandler:
    values = {"endpoint": {}, "api_type": {}, **settings}
    url = backend.url if backend else "http://127.0.0.1:1"
    return OpenAiApiHandler(BackendSettings("E", url, **values), Transport(), scope)


def read(*events: Any) -> list[dict[str, Any]]:
    return handler().read_events(SSEParser().feed(b"".join(map(sse_event, events))))


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["token"] for chunk in chunks)


# -- events -------------------------------------------------------------------------------------------------------


def test_tokens_and_finish() -> None:
    assert read(chat_chunk({"content": "Hel"}), chat_chunk({}, "stop")) == [
        {"token": "Hel", "finish_reason": None},
        {"token": "", "finish_reason": "stop"},
    ]


def test_finish_reason_beside_text() -> None:
    assert read(chat_chunk({"content": "x"}, "length")) == [{"token": "x", "finish_reason": "length"}]


def test_empty_tool_calls_are_no_tool_calls() -> None:
    assert read(chat_chunk({"content": "hi", "tool_calls": []})) == [{"token": "hi", "finish_reason": None}]


def test_one_call_without_a_list_is_a_call() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    chunk = read(chat_chunk({"tool_calls": call}))[0]
    assert chunk["tool_calls"] == [{"index": 0, **call}]
    answer = handler().read_whole({"choices": [{"message": {"content": None, "tool_calls": call}}]})
    assert answer["tool_calls"] == [call]  # type: ignore[index]


def test_tool_call_deltas_get_their_type() -> None:
    calls = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]
    assert read(chat_chunk({"content": None, "tool_calls": calls})) == [
        {"token": "", "finish_reason": None, "tool_calls": [{**calls[0], "type": "function"}]}
    ]


@pytest.mark.parametrize(
    "noise", [123, "{broken", [], None, {"choices": []}, {"choices": None}, {}, "[DONE]", {"choices": [5]}]
)
def test_noise_is_skipped(noise: Any) -> None:
    assert text(read(noise, chat_chunk({"content": "a"}))) == "a"


@pytest.mark.parametrize("delta", [{"content": None}, {"role": "assistant", "content": ""}, {}])
def test_contentless_delta_is_a_sign_of_life(delta: dict[str, Any]) -> None:
    assert read(chat_chunk(delta)) == [SILENCE]
    assert read({"choices": [{"delta": None}]}) == [SILENCE]


def test_usage_and_text_after_the_finish_reason_are_kept() -> None:
    chunks = read(chat_chunk({}, "stop"), chat_chunk({"content": "late"}), {"choices": [], "usage": USAGE})
    assert chunks == [
        {"token": "", "finish_reason": "stop"},
        {"token": "late", "finish_reason": None},
        {**SILENCE, "usage": USAGE},
    ]


TIMINGS = {"cache_n": 69, "prompt_n": 13, "prompt_ms": 4.5, "predicted_n": 20, "predicted_ms": 80.1}
COUNTED = {"prompt_tokens": 82, "completion_tokens": 20, "total_tokens": 102}


@pytest.mark.parametrize(
    ("sent", "usage"),
    [
        ({"timings": TIMINGS}, {**COUNTED, "prompt_tokens_details": {"cached_tokens": 69}}),
        ({"usage": COUNTED, "timings": TIMINGS}, {**COUNTED, "prompt_tokens_details": {"cached_tokens": 69}}),
        (
            {
                "usage": {**COUNTED, "prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": 0}},
                "timings": TIMINGS,
            },
            {**COUNTED, "prompt_tokens_details": {"cached_tokens": 7, "audio_tokens": 0}},
        ),
        ({"usage": {**COUNTED, "prompt_tokens_details": None}}, {**COUNTED, "prompt_tokens_details": None}),
        ({"usage": COUNTED}, COUNTED),
        ({"usage": None, "timings": {"prompt_n": 13, "predicted_n": 20}}, {"completion_tokens": 20}),
        ({"timings": {"cache_n": "x", "predicted_n": True}}, None),
        ({"timings": []}, None),
        ({"usage": {}}, None),
    ],
    ids=["timings", "both", "both-say-cached", "usage-null", "usage", "old-server", "no-numbers", "a-list", "empty"],
)
def test_a_stream_and_a_whole_answer_have_the_same_counts(sent: dict[str, Any], usage: dict[str, Any] | None) -> None:
    streamed = read(chat_chunk({"content": "a"}), chat_chunk({}, "stop", **sent))
    assert streamed[-1].get("usage") == usage
    whole = handler()
    whole.read_whole({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], **sent})
    assert whole.outcome.usage == usage


def test_usage_on_a_token() -> None:
    assert read(chat_chunk({"content": "a"}, usage=USAGE)) == [{"token": "a", "finish_reason": None, "usage": USAGE}]
    assert read(chat_chunk({"content": "a"}, usage=None)) == [{"token": "a", "finish_reason": None}]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_carried_beside_the_text(key: str) -> None:
    assert read(chat_chunk({key: "hm"})) == [{**SILENCE, "reasoning": "hm"}]


@table(
    ("details", "wanted"),
    [
        ([{"type": "reasoning.text", "text": "hm"}], "hm"),
        ([{"type": "reasoning.summary", "summary": "hm"}], "hm"),
        (
            [
                {"type": "reasoning.summary", "summary": "h", "index": 0, "format": "x"},
                {"type": "reasoning.encrypted", "data": "c2VjcmV0"},
                {"type": "reasoning.text", "text": "m", "signature": "s", "summary": "no"},
            ],
            "hm",
        ),
        ([{"type": "reasoning.encrypted", "data": "c2VjcmV0"}], ""),
        ([{"type": "reasoning.text", "text": None}, {"type": "text", "text": "no"}, {"text": "no"}, "no", None], ""),
        ([{"type": ["reasoning.text"], "text": "no"}, {"type": "reasoning.text", "text": 5}], ""),
        ([], ""),
        (None, ""),
        ("no", ""),
        ({"type": "reasoning.text", "text": "no"}, ""),
    ],
)
def test_details_of_reasoning(details: Any, wanted: str) -> None:
    shown = {**SILENCE, "reasoning": wanted} if wanted else None
    found = read(chat_chunk({"reasoning_details": details}))
    assert [chunk for chunk in found if "reasoning" in chunk] == ([shown] if shown else [])
    # Another member has the same, so it is not shown twice.
    for key in ("reasoning_content", "reasoning"):
        assert read(chat_chunk({"reasoning_details": details, key: "other"})) == [{**SILENCE, "reasoning": "other"}]
    message = {"role": "assistant", "content": "a", "reasoning_details": details}
    call = handler()
    assert call.read_whole({"choices": [{"message": message}]}) == "a" and call.outcome.reasoning == wanted


def test_thinking_among_content_blocks_is_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}
    assert read(chat_chunk({"content": [thinking]})) == [{**SILENCE, "reasoning": "hm"}]
    call = handler()
    message = {"content": [thinking, {"type": "thinking", "thinking": "!"}, {"type": "text", "text": "a"}, 5]}
    assert call.read_whole({"choices": [{"message": message}]}) == "a" and call.outcome.reasoning == "hm!"


def test_content_as_blocks() -> None:
    assert text(read(chat_chunk({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}))) == "ab"


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "too  long"}},
        {"error": "too long"},
        {"error": {"message": "too long"}, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]},
    ],
)
def test_error_object_raises(error: dict[str, Any]) -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' .*: an error instead of an answer: too long"):
        read(error)


@pytest.mark.parametrize("more", ["", ', "choices": [{"delta": {"content": ""}}]', ', "choices": []'])
def test_error_event_raises(more: str) -> None:
    call = handler()
    event = f'event: error\ndata: {{"message": "bad"{more}}}\n\n'.encode()
    with pytest.raises(BackendResponseError, match="bad"):
        call.read_events(SSEParser().feed(event))
    call.flowing = True  # as after the first text
    with pytest.raises(BackendResponseError, match="bad"):
        call.read_events(SSEParser().feed(event))


LLAMA_CPP_ERROR = b'error: {"code":500,"message":"the request exceeds the available context size","type":"x"}\n\n'


def test_error_line_of_llama_cpp_raises() -> None:
    with pytest.raises(BackendResponseError, match="available context size.* 'maxContextTokenSize'"):
        handler().read_events(SSEParser().feed(LLAMA_CPP_ERROR))


@pytest.mark.usefixtures("short_retry_waits")
def test_an_answer_that_breaks_off_with_an_error_line_is_no_complete_one(backend: StubBackend) -> None:
    token = sse_event(chat_chunk({"content": "Hel"}))
    for pieces in ([token, LLAMA_CPP_ERROR], [token + LLAMA_CPP_ERROR], [LLAMA_CPP_ERROR]):
        backend.default = Reply(pieces=pieces, headers={"Content-Type": "text/event-stream"})
        found: list[dict[str, Any]] = []
        with pytest.raises(BackendResponseError, match="available context size"):
            for chunk in handler(backend).handle_streaming(HI):
                found.append(chunk)
        assert text(found) == "Hel" * (len(b"".join(pieces)) > len(LLAMA_CPP_ERROR))


# -- streams ------------------------------------------------------------------------------------------------------


def test_stream(backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["Hel", "lo"], usage=USAGE))
    call = handler(backend, samplers={"stream": True}, model="m", api_key="k")
    chunks = list(call.handle_streaming(HI))
    assert text(chunks) == "Hello"
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
    assert call.outcome.finish_reason == "stop" and call.outcome.usage == USAGE
    request = backend.requests[0]
    assert request.path == "/v1/chat/completions"
    assert request.json == {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    assert request.headers["authorization"] == "Bearer k"


def test_no_key_no_authorization(backend: StubBackend) -> None:
    backend.script(chat_reply("x"))
    handler(backend).handle_non_streaming(HI)
    assert "authorization" not in backend.requests[0].headers


def test_nothing_is_sent_before_the_first_pull(backend: StubBackend) -> None:
    stream = handler(backend).handle_streaming(HI)
    time.sleep(0.05)
    stream.close()
    assert backend.requests == []


def test_events_of_one_block_say_that_more_follows(backend: StubBackend) -> None:
    events = b"".join(sse_event(chat_chunk({"content": token})) for token in "abc")
    backend.script(Reply(pieces=[events]))
    chunks = list(handler(backend).handle_streaming(HI))
    assert [(chunk["token"], chunk.get("more", False)) for chunk in chunks] == [("a", True), ("b", True), ("c", False)]


def test_events_may_be_split_anywhere(backend: StubBackend) -> None:
    data = b"".join(map(sse_event, [chat_chunk({"content": "zwölf 🌍"}), chat_chunk({}, "stop"), "[DONE]"]))
    backend.script(Reply(pieces=[data[index : index + 7] for index in range(0, len(data), 7)]))
    assert text(list(handler(backend).handle_streaming(HI))) == "zwölf 🌍"


def test_stream_that_simply_ends(backend: StubBackend) -> None:
    backend.script(sse_reply([chat_chunk({"content": "a"})]))
    call = handler(backend)
    assert text(list(call.handle_streaming(HI))) == "a" and call.outcome.finish_reason is None


def test_usage_that_comes_later_is_waited_for(backend: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_ends, "DRAIN_SECONDS", 60.0)
    backend.script(sse_reply([chat_chunk({}, "stop"), {"choices": [], "usage": USAGE}, "[DONE]"], delay=0.1))
    assert list(handler(backend).handle_streaming(HI))[-1] == {**SILENCE, "usage": USAGE}


@pytest.mark.parametrize(("last", "drain"), [(chat_chunk({}, "stop"), 1.0), ("[DONE]", 60.0)])
def test_a_connection_that_stays_open_delays_the_end_little(
    backend: StubBackend, last: Any, drain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_ends, "DRAIN_SECONDS", drain)
    backend.script(sse_reply([chat_chunk({"content": "a"}), last], hang=True))
    started = time.monotonic()
    assert text(list(handler(backend).handle_streaming(HI))) == "a"
    assert time.monotonic() - started < SOON


def test_comments_are_signs_of_life(backend: StubBackend) -> None:
    backend.script(Reply(pieces=[b": working\n\n", sse_event(chat_chunk({"content": "a"}))], delay=0.2))
    assert next(handler(backend).handle_streaming(HI)) == SILENCE


def test_second_call_of_a_handler_starts_afresh(backend: StubBackend) -> None:
    backend.script(chat_stream_reply(["a"]), chat_stream_reply(["b"]))
    call = handler(backend)
    assert [text(list(call.handle_streaming(HI))) for _ in range(2)] == ["a", "b"]


def test_plain_body_instead_of_a_stream(backend: StubBackend) -> None:
    backend.script(
        chat_reply("whole", usage=USAGE), json_reply({"error": {"message": "no such model"}}), Reply(body=b"<html>")
    )
    call = handler(backend)
    chunks = [chunk for chunk in call.handle_streaming(HI) if chunk != SILENCE]
    assert chunks == [{"token": "whole", "finish_reason": "stop", "usage": USAGE}]
    with pytest.raises(BackendResponseError, match="no such model"):
        list(call.handle_streaming(HI))
    with pytest.raises(BackendResponseError, match="holds no event"):
        list(call.handle_streaming(HI))


def test_plain_body_instead_of_a_stream_keeps_its_reasoning(backend: StubBackend) -> None:
    message = {"role": "assistant", "content": "whole", "reasoning_content": "hm"}
    backend.script(json_reply({"choices": [{"message": message, "finish_reason": "stop"}]}))
    chunks = [chunk for chunk in handler(backend).handle_streaming(HI) if chunk != SILENCE]
    assert chunks == [{"token": "whole", "finish_reason": "stop", "reasoning": "hm"}]


@pytest.mark.parametrize("body", [b"", b"\n\n", b": ping\n\n", b"data: [DONE]\n\n"])
def test_stream_without_events_is_no_answer(backend: StubBackend, body: bytes) -> None:
    backend.script(Reply(body=body, headers={"Content-Type": "text/event-stream"}))
    with pytest.raises(BackendResponseError, match="an answer without a message: nothing"):
        list(handler(backend).handle_streaming(HI))


def test_status_error_is_raised(backend: StubBackend) -> None:
    backend.script(status_reply(404, "no model"))
    with pytest.raises(BackendStatusError):
        list(handler(backend).handle_streaming(HI))


def test_cancelled_stream_ends_and_lets_the_connection_go(backend: StubBackend) -> None:
    backend.script(sse_reply([chat_chunk({"content": "a"})], hang=True))
    scope = CancelScope()
    stream = handler(backend, scope).handle_streaming(HI)
    assert next(stream)["token"] == "a"
    threading.Timer(0.05, scope.cancel).start()
    assert text(list(stream)) == ""
    assert backend.requests[0].wait_ended()


def test_cancelled_before_the_start_sends_nothing(backend: StubBackend) -> None:
    scope = CancelScope()
    scope.cancel()
    call = handler(backend, scope)
    assert list(call.handle_streaming(HI)) == [] and call.handle_non_streaming(HI) == ""
    assert backend.requests == []


def test_cancelled_while_waiting_for_the_answer(backend: StubBackend) -> None:
    backend.script(Reply(never=True))
    scope = CancelScope()
    threading.Timer(0.1, scope.cancel).start()
    started = time.monotonic()
    assert handler(backend, scope).handle_non_streaming(HI) == ""
    assert time.monotonic() - started < SOON


# -- complete answers ---------------------------------------------------------------------------------------------


def test_complete_answer(backend: StubBackend) -> None:
    backend.script(chat_reply("Hello", finish_reason="length", usage=USAGE))
    call = handler(backend)
    assert call.handle_non_streaming(HI) == "Hello"
    assert (call.outcome.finish_reason, call.outcome.usage) == ("length", USAGE)


@pytest.mark.parametrize("content", [None, ""])
def test_empty_answer_is_an_empty_text(content: Any) -> None:
    assert handler().read_whole({"choices": [{"message": {"content": content}}]}) == ""


@pytest.mark.parametrize("body", [{"choices": []}, {}, [], 5, {"choices": [{"message": None}]}])
def test_what_has_no_message_is_no_answer(body: Any) -> None:
    with pytest.raises(BackendResponseError, match="Endpoint 'E' .*: an answer without a message: "):
        handler().read_whole(body)


def test_error_body_with_a_good_status_raises() -> None:
    with pytest.raises(BackendResponseError, match="overloaded"):
        handler().read_whole({"error": {"message": "overloaded"}})


def test_tool_calls_of_a_complete_answer() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body: dict[str, Any] = {"choices": [{"message": {"content": None, "tool_calls": calls}}]}
    assert handler().read_whole(body) == {"content": "", "tool_calls": calls, "finish_reason": "tool_calls"}
    for sent, reason in (("stop", "tool_calls"), ("length", "length"), ("safety", "content_filter")):
        body["choices"][0]["finish_reason"] = sent
        assert handler().read_whole(body)["finish_reason"] == reason  # type: ignore[index]


# -- requests -----------------------------------------------------------------------------------------------------


def sent(*conversation: dict[str, Any]) -> list[dict[str, Any]]:
    return handler().payload(Prompt(list(conversation)))["messages"]


@pytest.mark.parametrize("calls", [[], None, "x"])
def test_tool_calls_that_are_none_are_removed(calls: Any) -> None:
    assert sent({"role": "assistant", "content": "a", "tool_calls": calls}) == [{"role": "assistant", "content": "a"}]


def test_images_become_blocks() -> None:
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(100)).decode()
    images = ["data:image/gif;base64,R0lG", png, "https://h/x.png", "file:///etc/passwd", "AAAA" * 30]
    message = {"role": "user", "content": "look", "images": images}
    [out] = sent(message)
    assert out["content"][0] == {"type": "text", "text": "look"}
    assert [block["image_url"]["url"] for block in out["content"][1:]] == [
        images[0],
        f"data:image/png;base64,{png}",
        images[2],
    ]
    assert "images" not in out and message["images"] == images


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_base64_in_lines(line_break: str) -> None:
    """As the command ``base64`` and several languages write it, and Ollama reads it."""
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(100)).decode()
    lines = line_break.join(png[start : start + 76] for start in range(0, len(png), 76)) + line_break
    [out] = sent({"role": "user", "content": "look", "images": [lines]})
    assert out["content"][1]["image_url"]["url"] == f"data:image/png;base64,{png}"


def test_unusable_images_leave_the_text_alone() -> None:
    assert sent(
        {"role": "user", "content": "a", "images": ["nonsense"]},
        {"role": "tool", "content": "b", "images": ["https://h/x"]},
    ) == [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]


def test_payload_is_json(backend: StubBackend) -> None:
    backend.script(chat_reply("x"))
    handler(backend).handle_non_streaming(Prompt([{"role": "user", "content": "\ud83d ü"}]))
    assert json.loads(backend.requests[0].body)["messages"][0]["content"].endswith("ü")


@pytest.mark.parametrize(
    "error",
    [
        {"message": "bad key sk-very-secret"},
        "sk-very-secret is unknown",
        {"code": 401, "detail": {"key": "sk-very-secret"}},
    ],
)
def test_an_error_object_never_repeats_the_key(error: Any) -> None:
    call = OpenAiApiHandler(BackendSettings("E", "http://h", {}, {}, api_key="sk-very-secret"), Transport())
    with pytest.raises(BackendResponseError) as caught:
        call.read_whole({"error": error})
    assert "secret" not in str(caught.value) + caught.value.body
