"""What all dialects share: odd tool calls, deep nesting, answers that are no stream, parts that are skipped."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError, ClientError, ConfigValueError
from Middleware.llmapis.handlers.base import base_llm_api_handler as base
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.image_sources import base64_data
from Middleware.llmapis.handlers.impl import openai_api_handler
from Middleware.llmapis.handlers.impl.ollama_chat_api_handler import OllamaChatHandler
from Middleware.llmapis.handlers.impl.openai_api_handler import OpenAiApiHandler
from Middleware.llmapis.transport import Transport
from Middleware.utilities.answers import stream_parsers
from Tests.stub_backend import Reply, StubBackend, chat_chunk, json_reply, sse_reply

HI = Prompt([{"role": "user", "content": "hi"}])
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ODD_CALLS: list[Any] = [1, None, "x", [], {"function": 5}]


def handler(backend: StubBackend, transport: Transport) -> OpenAiApiHandler:
    return OpenAiApiHandler(BackendSettings("my-llm", backend.url, {}, {}), transport)


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["token"] for chunk in chunks)


def answer(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish_reason}]}


# -- tool calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [[*ODD_CALLS, CALL], [CALL, *ODD_CALLS]])
def test_tool_calls_that_are_no_objects_are_left_out(
    backend: StubBackend, transport: Transport, calls: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    backend.default = json_reply(answer({"content": "", "tool_calls": calls}, "tool_calls"))
    whole = handler(backend, transport).handle_non_streaming(HI)
    assert isinstance(whole, dict) and whole["tool_calls"] == [CALL]
    without_streaming = [chunk for chunk in handler(backend, transport).handle_streaming(HI) if chunk.get("tool_calls")]
    assert [chunk["tool_calls"] for chunk in without_streaming] == [[{"index": 0, **CALL}]]
    assert f"{len(ODD_CALLS)} tool call(s)" in caplog.text


def test_streamed_tool_calls_that_are_no_objects_are_left_out(backend: StubBackend, transport: Transport) -> None:
    good = {"index": 0, **CALL}
    backend.script(
        sse_reply(
            [
                chat_chunk({"tool_calls": [*ODD_CALLS, good]}),
                chat_chunk({"tool_calls": ODD_CALLS}),
                chat_chunk({}, "tool_calls"),
                "[DONE]",
            ]
        )
    )
    chunks = list(handler(backend, transport).handle_streaming(HI))
    assert [chunk["tool_calls"] for chunk in chunks if chunk.get("tool_calls")] == [[good]]


def test_an_answer_of_nothing_but_odd_calls_is_its_text(backend: StubBackend, transport: Transport) -> None:
    backend.script(json_reply(answer({"content": "hm", "tool_calls": ODD_CALLS})))
    assert handler(backend, transport).handle_non_streaming(HI) == "hm"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_a_request_nested_absurdly_deep_is_the_clients_mistake(
    backend: StubBackend, transport: Transport, stream: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level)
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"properties": deep}
    call, prompt = handler(backend, transport), Prompt(HI.conversation, tools=[deep])
    with pytest.raises(ClientError, match="nested too deeply"):
        list(call.handle_streaming(prompt)) if stream else call.handle_non_streaming(prompt)
    assert backend.requests == []


def test_a_value_that_contains_itself_is_a_mistake_of_the_configuration(
    backend: StubBackend, transport: Transport
) -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(ConfigValueError, match="cannot be written as JSON .Circular reference"):
        handler(backend, transport).handle_non_streaming(Prompt(HI.conversation, tools=[loop]))
    assert backend.requests == []


# -- answers that are no stream ---------------------------------------------------------------------------------------

LONG = "word " * 60_000


@pytest.mark.parametrize("start", [b"", b"\n  ", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("pretty", [None, 1])
def test_a_long_complete_answer_to_a_streaming_call(
    backend: StubBackend, transport: Transport, start: bytes, pretty: int | None
) -> None:
    body = start + json.dumps(answer({"content": LONG}), indent=pretty).encode()
    backend.script(Reply(pieces=[body[:3], body[3:100_000], body[100_000:]]))
    assert text_of(list(handler(backend, transport).handle_streaming(HI))) == LONG


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(answer({"content": LONG})).encode(),
        b"{" + b" " * 300_000 + b"}" * 5,
        b"[" * 300_000,
        b'{"a":' + b"[" * 100_000,
    ],
    ids=["too long", "no JSON", "no object", "deep"],
)
def test_what_is_no_answer_stays_refused(
    backend: StubBackend, transport: Transport, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "WHOLE_LIMIT", 200_000)
    backend.script(Reply(body=body))
    with pytest.raises(BackendResponseError, match="holds no event"):
        list(handler(backend, transport).handle_streaming(HI))


def test_a_line_without_end_is_an_error_of_the_back_end(
    backend: StubBackend, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_parsers, "MAX_LINE_BYTES", 1 << 20)
    backend.script(Reply(pieces=[b"data: " + b"x" * 700_000] * 3))
    with pytest.raises(BackendResponseError, match=r"'my-llm'.*too large \(a line of more than 1 MB\)"):
        list(handler(backend, transport).handle_streaming(HI))


# -- parts that are skipped -------------------------------------------------------------------------------------------


def test_skipped_parts_are_logged_once_and_counted(
    backend: StubBackend, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    backend.default = Reply(body=b"<p>\n" * 2001)
    call = OllamaChatHandler(BackendSettings("my-llm", backend.url, {}, {}), transport)
    for _ in range(2):
        caplog.clear()
        with pytest.raises(BackendResponseError):
            list(call.handle_streaming(HI))
        first, last = (record.getMessage() for record in caplog.records)
        assert first.endswith("skipped an event that is not JSON.")
        assert last.endswith("skipped an event that is not JSON 2001 times in all.")


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant", "content": "b"},
        {"content": "b"},
        {"content": "b", "role": None},
        {"content": "b", "refusal": None},
        {"reasoning_content": "b"},
        {"content": None, "reasoning": "b"},
    ],
)
def test_every_event_is_decoded_once(
    backend: StubBackend, transport: Transport, delta: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def decode(text: str) -> Any:
        decoded.append(text)
        return json.loads(text)

    monkeypatch.setattr(base, "decode_json", decode)
    monkeypatch.setattr(openai_api_handler, "decode_json", decode)
    events = [(None, json.dumps(chat_chunk(part))) for part in ({"content": "a"}, delta, delta)]
    chunks = handler(backend, transport).read_events(events)
    assert [chunk["token"] or chunk["reasoning"] for chunk in chunks] == ["a", "b", "b"]
    assert decoded == [data for _, data in events]


def test_a_single_skipped_part_is_not_counted(
    backend: StubBackend, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    backend.default = sse_reply(["{broken", chat_chunk({"content": "a"}, "stop"), "[DONE]"])
    assert text_of(list(handler(backend, transport).handle_streaming(HI))) == "a"
    assert len(caplog.records) == 1


# -- small parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("DATA:image/png;BASE64,AAAA", "AAAA"),
        ("data:image/png;x=y;base64,AAAA", "AAAA"),
        ("AAAA", "AAAA"),
        ("data:image/svg+xml,<svg>", None),
        ("https://h/a.png", None),
        (5, None),
    ],
)
def test_base64_of_images(source: object, data: str | None) -> None:
    assert base64_data(source) == data
