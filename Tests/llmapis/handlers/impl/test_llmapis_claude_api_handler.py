"""The Claude Messages dialect over real sockets, and its shapes against the types of the ``anthropic`` package."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import anthropic.types as claude_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from Middleware.common.constants import LEFT_BRACE_SENTINEL
from Middleware.exceptions import BackendResponseError, BackendStatusError
from Middleware.llmapis.handlers.base import claude_messages
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.impl.claude_api_handler import ClaudeApiHandler
from Middleware.llmapis.keepsakes import origin_of, signed
from Middleware.llmapis.transport import Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.answers.stream_parsers import SSEParser
from Tests.backend_dialects import COMPLETION_TOKENS, DIALECTS, PROMPT_TOKENS, Answer, Call, named_event
from Tests.stub_backend import Reply, StubBackend, json_reply, sse_event, status_reply
from Tests.tables import table

CLAUDE = DIALECTS["claudeMessages"]
HI = Prompt([{"role": "user", "content": "hi"}])
PLAIN = {"token": "", "finish_reason": None}
USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "completion_tokens": COMPLETION_TOKENS,
    "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
}
RICH = Answer(
    ("Zwölf ", "🌍", "\n\nend"),
    "tool_calls",
    ("Let me ", "think"),
    (Call("weather", {"city": "Köln"}, "toolu_1"), Call("time", {}, "toolu_2")),
)
ANSWERS = [Answer(), Answer(("cut",), "length"), Answer((), "tool_calls", (), (Call("f", {"a": [1, {}]}),)), RICH]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(100)).decode()
UNKNOWN = base64.b64encode(bytes(120)).decode()


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


def handler(backend: StubBackend | None = None, scope: CancelScope | None = None, **settings: Any) -> ClaudeApiHandler:
    values = {"endpoint": {}, "api_type": {}, **settings}
    url = backend.url if backend else "http://127.0.0.1:1"
    return ClaudeApiHandler(BackendSettings("E", url, **values), Transport(), scope)


def payload(*conversation: dict[str, Any], samplers: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return handler(samplers=samplers or {}).payload(Prompt(list(conversation), **more))


def sent(*conversation: dict[str, Any]) -> list[dict[str, Any]]:
    return payload(*conversation)["messages"]


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


def result(content: Any, tool_call_id: str | None = "c1") -> dict[str, Any]:
    return {"role": "tool", "content": content, **({"tool_call_id": tool_call_id} if tool_call_id else {})}


def result_block(content: str, tool_call_id: str = "c1") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_call_id, "content": content}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def start_block(block: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(kind: str, index: int = 0, **values: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **values}}


def stop_block(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def finish(reason: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, **more}


def started(**usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": usage}}


TOOL_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


def read(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return handler().read_events(SSEParser().feed(b"".join(named_event(event["type"], event) for event in events)))


def text(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["token"] for chunk in chunks)


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as one answer, read as an OpenAI client reads it."""
    calls: dict[int, dict[str, Any]] = {}
    for part in (part for chunk in chunks for part in chunk.get("tool_calls", ())):
        known = calls.setdefault(part["index"], {"function": {"arguments": ""}})
        known |= {key: part[key] for key in ("id", "type") if key in part}
        function = part["function"]
        known["function"] |= {"arguments": known["function"]["arguments"] + function.get("arguments", "")}
        known["function"] |= {key: function[key] for key in ("name",) if key in function}
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return {
        "content": text(chunks),
        "tool_calls": [calls[index] for index in sorted(calls)],
        "reasoning": "".join(chunk.get("reasoning", "") for chunk in chunks),
        "finish_reason": [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]],
        "usage": usages[-1] if usages else None,
    }


def expected(answer: Answer) -> dict[str, Any]:
    calls = [
        {
            "id": one.id,
            "type": "function",
            "function": {"name": one.name, "arguments": json.dumps(dict(one.arguments), ensure_ascii=False)},
        }
        for one in answer.calls
    ]
    return {
        "content": answer.text,
        "tool_calls": calls,
        "reasoning": "".join(answer.reasoning),
        "finish_reason": [answer.finish],
        "usage": USAGE,
    }


# -- the shapes of the test data are those of the real API ------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_of_the_stub_are_messages(answer: Answer) -> None:
    message = claude_types.Message.model_validate(CLAUDE.whole(answer))
    assert message.stop_reason == CLAUDE.STOP_REASONS[answer.finish]  # type: ignore[attr-defined]


@pytest.mark.parametrize("answer", ANSWERS)
def test_events_of_the_stub_are_stream_events(answer: Answer) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(claude_types.RawMessageStreamEvent)
    events = [json.loads(data) for _, data in SSEParser().feed(b"".join(CLAUDE.pieces(answer)))]
    assert [adapter.validate_python(event).type for event in events if event["type"] != "ping"] == [
        event["type"] for event in events if event["type"] != "ping"
    ]


# -- streamed answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
def test_stream(backend: StubBackend, answer: Answer) -> None:
    backend.script(CLAUDE.reply(answer, True))
    api = handler(backend)
    assert joined(list(api.handle_streaming(HI))) == expected(answer)
    assert (api.outcome.finish_reason, api.outcome.usage) == (answer.finish, USAGE)


def test_stream_in_small_pieces(backend: StubBackend) -> None:
    data = b"".join(CLAUDE.pieces(RICH))
    backend.script(Reply(pieces=[data[index : index + 7] for index in range(0, len(data), 7)]))
    assert joined(list(handler(backend).handle_streaming(HI))) == expected(RICH)


def read_blocks(blocks: list[bytes]) -> list[dict[str, Any]]:
    api, framer = handler(), SSEParser()
    return [chunk for block in blocks for chunk in api.read_events(framer.feed(block))]


def test_stream_cut_at_every_byte() -> None:
    data = b"".join(CLAUDE.pieces(RICH))
    whole = read_blocks([data])
    assert joined(whole) == expected(RICH)
    for cut in range(len(data)):
        assert read_blocks([data[:cut], data[cut:]]) == whole


@given(st.lists(st.integers(0, sum(map(len, CLAUDE.pieces(RICH)))), max_size=30))
def test_stream_cut_anywhere(cuts: list[int]) -> None:
    data = b"".join(CLAUDE.pieces(RICH))
    edges = [0, *sorted(cuts), len(data)]
    blocks = [data[first:last] for first, last in itertools.pairwise(edges)]
    assert joined(read_blocks(blocks)) == expected(RICH)


def test_text_and_thinking() -> None:
    signature = signed("x", origin_of(handler().settings))
    assert read(
        start_block({"type": "thinking", "thinking": ""}),
        delta("thinking_delta", thinking="hm"),
        delta("signature_delta", signature="x"),
        stop_block(),
        start_block(text_block(""), 1),
        delta("text_delta", 1, text="Hi"),
        stop_block(1),
    ) == [
        {**PLAIN, "reasoning": "hm"},
        {
            **PLAIN,
            "thought": {"type": "thinking", "thinking": "hm", "signature": signature},
        },
        {"token": "Hi", "finish_reason": None},
    ]


def test_text_that_a_block_starts_with() -> None:
    assert joined(read(start_block({"type": "thinking", "thinking": "a"}), start_block(text_block("b"), 1))) == {
        "content": "b",
        "reasoning": "a",
        "tool_calls": [],
        "finish_reason": [],
        "usage": None,
    }


def test_tool_call_deltas() -> None:
    first, last = {"index": 0, "function": {"arguments": '{"a"'}}, {"index": 0, "function": {"arguments": ": 1}"}}
    assert read(
        start_block(TOOL_USE, 3),
        delta("input_json_delta", 3, partial_json=""),
        delta("input_json_delta", 3, partial_json='{"a"'),
        delta("input_json_delta", 3, partial_json=": 1}"),
        stop_block(3),
    ) == [
        {
            **PLAIN,
            "tool_calls": [{"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {**PLAIN, "tool_calls": [first]},
        {**PLAIN, "tool_calls": [last]},
    ]


def test_index_counts_tool_blocks() -> None:
    chunks = read(
        start_block(text_block("")),
        stop_block(),
        start_block(TOOL_USE, 1),
        delta("input_json_delta", 1, partial_json='{"a":1}'),
        stop_block(1),
        start_block({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, 2),
        delta("input_json_delta", 2, partial_json='{"query":"x"}'),
        stop_block(2),
        start_block({"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, 3),
        stop_block(3),
        start_block({**TOOL_USE, "id": "t2"}, 4),
        delta("input_json_delta", 4, partial_json='{"b":2}'),
        stop_block(4),
    )
    assert [
        (part["index"], part.get("id"), part["function"]["arguments"])
        for chunk in chunks
        for part in chunk["tool_calls"]
    ] == [(0, "t1", ""), (0, None, '{"a":1}'), (1, "t2", ""), (1, None, '{"b":2}')]


@pytest.mark.parametrize(
    ("given_input", "deltas", "arguments"),
    [
        ({}, [], "{}"),
        ({}, [""], "{}"),
        (None, [], "{}"),
        ({"a": "ö"}, [], '{"a": "ö"}'),
        ({"a": 1}, ['{"b":2}'], '{"b":2}'),
        # Servers that imitate the API give other values.
        ('{"a": 1}', [], '{"a": 1}'),
        (" ", [], "{}"),
        ([1], [], "[1]"),
    ],
)
# Some proxies leave the ends of blocks out, or send them too late.
@table("end", [[stop_block(), finish("tool_use")], [finish("tool_use")], [finish("tool_use"), stop_block()]])
def test_arguments_of_a_streamed_call_are_always_json(
    given_input: Any, deltas: list[str], arguments: str, end: list[dict[str, Any]]
) -> None:
    chunks = read(
        start_block({**TOOL_USE, "input": given_input}),
        *(delta("input_json_delta", partial_json=part) for part in deltas),
        *end,
    )
    answer = joined(chunks)
    assert [call["function"]["arguments"] for call in answer["tool_calls"]] == [arguments]
    assert answer["finish_reason"] == ["tool_calls"]


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        # There is no call in the answer.
        ("tool_use", "stop"),
        ("refusal", "content_filter"),
        ("something_new", "stop"),
    ],
)
def test_stop_reasons(stop_reason: str, finish_reason: str) -> None:
    assert read(finish(stop_reason)) == [{"token": "", "finish_reason": finish_reason}]
    api = handler()
    assert api.read_whole({"content": [text_block("x")], "stop_reason": stop_reason}) == "x"
    assert api.outcome.finish_reason == finish_reason


def test_usage_comes_with_the_finish_reason() -> None:
    assert read(started(input_tokens=5, output_tokens=1), finish(usage={"output_tokens": 3})) == [
        {"token": "", "finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}}
    ]


def test_cached_prompt_tokens_are_prompt_tokens() -> None:
    chunks = read(
        started(input_tokens=5, cache_read_input_tokens=100, cache_creation_input_tokens=None),
        finish(usage={"output_tokens": 3, "input_tokens": 6, "cache_creation_input_tokens": 10}),
    )
    assert chunks[0]["usage"] == {
        "prompt_tokens": 116,
        "completion_tokens": 3,
        "total_tokens": 119,
        "prompt_tokens_details": {"cached_tokens": 100},
    }


@pytest.mark.parametrize(
    "events",
    [
        [finish()],
        [started(input_tokens=5, output_tokens=1), finish()],
        [finish(usage={"output_tokens": 3})],
        [finish(usage=None)],
        [started(input_tokens="5"), finish(usage={"output_tokens": 3})],
    ],
)
def test_half_a_usage_is_none(events: list[dict[str, Any]]) -> None:
    assert read(*events) == [{"token": "", "finish_reason": "stop"}]


def test_what_follows_a_finish_reason_counts_up_to_the_last_event() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert read(
        finish("max_tokens"),
        delta("text_delta", text="late"),
        finish("end_turn", usage={"input_tokens": 1, "output_tokens": 2}),
        {"type": "message_stop"},
        delta("text_delta", text="too late"),
    ) == [
        {"token": "", "finish_reason": "length"},
        {"token": "late", "finish_reason": None},
        {"token": "", "finish_reason": "stop", "usage": usage},
    ]


def test_message_delta_without_a_reason_does_not_end() -> None:
    assert read(finish(None), {"type": "message_delta"}, delta("text_delta", text="more")) == [
        {"token": "more", "finish_reason": None}
    ]


def test_message_stop_is_the_last_event() -> None:
    api = handler()
    api.read_events(SSEParser().feed(sse_event({"type": "message_stop"})))
    assert api.closed


@table(
    "noise",
    [
        {"type": "ping"},
        {"type": "brand_new"},
        {},
        {"type": "content_block_delta"},
        {"type": "content_block_start"},
        {"type": "content_block_stop"},
        {"type": "message_start"},
        {"type": "message_start", "message": {"usage": 5}},
        {"type": "content_block_delta", "delta": 5},
        {"type": "content_block_start", "content_block": []},
        delta("citations_delta", citation={}),
        delta("text_delta", text=None),
        delta("text_delta"),
        delta("thinking_delta", thinking=None),
        delta("input_json_delta", 9, partial_json="{}"),
        {"type": "content_block_delta", "index": [1], "delta": {"type": "input_json_delta", "partial_json": "{"}},
        start_block({"type": "redacted_thinking", "data": "x"}),
    ],
)
def test_noise_is_skipped(noise: dict[str, Any]) -> None:
    data = sse_event(noise) + sse_event(5) + sse_event("{broken") + sse_event(delta("text_delta", text="a"))
    assert handler().read_events(SSEParser().feed(data)) == [{"token": "a", "finish_reason": None}]


def test_the_event_line_may_carry_the_type() -> None:
    event = delta("text_delta", text="a")
    del event["type"]
    assert text(handler().read_events(SSEParser().feed(named_event("content_block_delta", event)))) == "a"


def stream_reply(*events: dict[str, Any]) -> Reply:
    return Reply(pieces=[named_event(event["type"], event) for event in events])


def test_second_call_of_a_handler_starts_afresh(backend: StubBackend) -> None:
    begun = start_block(TOOL_USE, 1)
    backend.script(
        stream_reply(started(input_tokens=1), begun),
        stream_reply(
            delta("input_json_delta", 1, partial_json="x"), begun, finish("tool_use", usage={"output_tokens": 1})
        ),
    )
    api = handler(backend)
    for _ in range(2):
        calls = [part for chunk in api.handle_streaming(HI) for part in chunk.get("tool_calls", ())]
        assert [(part["index"], part["id"]) for part in calls if "id" in part] == [(0, "t1")]
    assert api.outcome.usage is None


def test_a_block_ends_where_the_next_begins() -> None:
    chunks = read(
        start_block(TOOL_USE),
        start_block({"type": "server_tool_use", "id": "s", "name": "n", "input": {}}),
        delta("input_json_delta", partial_json="{}"),
    )
    assert [part["function"]["arguments"] for chunk in chunks for part in chunk["tool_calls"]] == [""]


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    "event",
    [
        named_event("error", OVERLOADED),
        sse_event(OVERLOADED),
        named_event("error", {"message": "Overloaded"}),
        sse_event({"error": {"message": "Overloaded"}}),
        sse_event({"error": "Overloaded"}),
    ],
)
def test_error_event_raises(event: bytes) -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' .*: an error instead of an answer: Overloaded"):
        handler().read_events(SSEParser().feed(event))


def test_error_event_amid_a_stream(backend: StubBackend) -> None:
    pieces = [*CLAUDE.pieces(Answer(("a", "b")))[:-3], named_event("error", OVERLOADED)]
    backend.script(Reply(pieces=[b"".join(pieces)]))
    chunks = []
    with pytest.raises(BackendResponseError, match="Overloaded"):
        for chunk in handler(backend).handle_streaming(HI):
            chunks.append(chunk)
    assert text(chunks) == "ab"


@pytest.mark.usefixtures("short_retry_waits")
def test_whole_answer_instead_of_a_stream(backend: StubBackend) -> None:
    # An overloaded server is asked three times.
    backend.script(CLAUDE.reply(RICH, False), *[json_reply(OVERLOADED)] * 3)
    chunks = list(handler(backend).handle_streaming(HI))
    assert joined(chunks) | {"reasoning": ""} == expected(RICH) | {"reasoning": ""}
    with pytest.raises(BackendResponseError, match="Overloaded"):
        list(handler(backend).handle_streaming(HI))


# -- whole answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
def test_whole_answer(backend: StubBackend, answer: Answer) -> None:
    backend.script(CLAUDE.reply(answer, False))
    api, wanted = handler(backend), expected(answer)
    said = api.handle_non_streaming(HI)
    if answer.calls:
        assert said == {"content": answer.text, "tool_calls": wanted["tool_calls"], "finish_reason": answer.finish}
    else:
        assert said == answer.text
    assert (api.outcome.finish_reason, api.outcome.usage) == (answer.finish, USAGE)
    assert api.outcome.reasoning == wanted["reasoning"]


@pytest.mark.parametrize(
    "body",
    [
        {"content": []},
        {"content": [5]},
        {"content": [{"type": "text", "text": None}]},
        {"content": [{"type": "new"}]},
    ],
)
def test_empty_answer_is_an_empty_text(body: Any) -> None:
    assert handler().read_whole(body) == ""


@pytest.mark.parametrize("body", [{}, [], 5, None, {"content": None}])
def test_what_has_no_content_is_no_answer(body: Any) -> None:
    with pytest.raises(BackendResponseError, match="Endpoint 'E' .*: an answer without a message: "):
        handler().read_whole(body)


def test_only_text_blocks_are_text() -> None:
    body = {
        "content": [
            text_block("a"),
            {"type": "server_tool_use", "id": "s", "name": "n", "input": {}},
            {"type": "new_kind", "text": "no"},
            text_block("b"),
        ],
        "stop_reason": "end_turn",
    }
    assert handler().read_whole(body) == "ab"


def test_tool_call_without_input_and_reason() -> None:
    said = handler().read_whole({"content": [{"type": "tool_use", "id": "t", "name": "f", "input": None}]})
    assert said == {
        "content": "",
        "finish_reason": "tool_calls",
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


@pytest.mark.parametrize(
    "body", [OVERLOADED, {"error": {"message": "Overloaded"}}, {"type": "error", "message": "Overloaded"}]
)
def test_error_body_with_a_good_status_raises(body: Any) -> None:
    with pytest.raises(BackendResponseError, match=r"Endpoint 'E' .*: an error instead of an answer: Overloaded"):
        handler().read_whole(body)


def test_status_error_is_raised(backend: StubBackend) -> None:
    backend.script(status_reply(400, "max_tokens: Field required"))
    with pytest.raises(BackendStatusError):
        handler(backend).handle_non_streaming(HI)


def test_cancelled_stream_ends(backend: StubBackend) -> None:
    backend.script(Reply(pieces=CLAUDE.pieces(Answer(("a",)))[:4], hang=True))
    scope = CancelScope()
    stream = handler(backend, scope).handle_streaming(HI)
    while next(stream)["token"] != "a":
        pass
    scope.cancel()
    assert text(list(stream)) == "" and backend.requests[0].wait_ended()


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_request(backend: StubBackend, base: str) -> None:
    backend.script(CLAUDE.reply(Answer(), False))
    api = handler(backend, model="claude-x", api_key="secret", samplers={"stream": False, "max_tokens": 300})
    object.__setattr__(api.settings, "base_url", backend.url + base)
    assert api.handle_non_streaming(HI) == "Hello there"
    request = backend.requests[0]
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == "secret" and request.headers["anthropic-version"] == "2023-06-01"
    assert request.headers["content-type"] == "application/json" and "authorization" not in request.headers
    assert request.json == {"model": "claude-x", "messages": [user("hi")], "stream": False, "max_tokens": 300}


def test_no_key_no_key_header() -> None:
    assert handler().headers() == {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}


def test_model_may_be_left_out() -> None:
    assert "model" not in payload(user("hi"))


def test_fields_outside_of_the_api_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    kept = {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 1,
        "top_k": 3,
        "stream": True,
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "system": "s",
        "tools": [{"name": "t"}],
        "tool_choice": {"type": "auto"},
    }
    body = payload(user("hi"), samplers={**kept, "min_p": 0.1, "seed": 7}, schema={"type": "object"})
    assert body == {"messages": [user("hi")], **kept}
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "min_p, seed" in record.getMessage()


def test_nothing_removed_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    payload(user("hi"), samplers={"stream": True})
    assert caplog.records == []


# -- system and turns -------------------------------------------------------------------------------------------------


def test_system_messages_become_one_text() -> None:
    body = payload(
        {"role": "system", "content": "a"},
        user("hi"),
        {"role": "systemMes", "content": "b"},
        {"role": "system", "content": ""},
        {"role": "system", "content": None},
        assistant("ok"),
        user("go"),
    )
    assert body["system"] == "a\n\nb"
    assert body["messages"] == [user("hi"), assistant("ok"), user("go")]


def test_system_as_blocks_and_none() -> None:
    assert payload({"role": "system", "content": [text_block("a"), text_block("b")]}, user("x"))["system"] == "ab"
    assert "system" not in payload(user("x")) and "system" not in payload({"role": "system", "content": " "}, user("x"))


def test_system_message_beats_the_one_of_a_preset() -> None:
    samplers = {"system": "preset"}
    assert payload({"role": "system", "content": "mine"}, user("x"), samplers=samplers)["system"] == "mine"
    assert payload(user("x"), samplers=samplers)["system"] == "preset"


def test_system_and_prompt_strings() -> None:
    body = handler().payload(Prompt(system_prompt="s", prompt="p"))
    assert (body["system"], body["messages"]) == ("s", [user("p")])


@pytest.mark.parametrize(
    ("content", "wanted"), [(LEFT_BRACE_SENTINEL + " ", "{"), (" a \n", " a"), ([text_block("a ")], [text_block("a ")])]
)
def test_prefill_is_trimmed_at_the_right(content: Any, wanted: Any) -> None:
    assert sent(user("x"), assistant(content))[-1] == assistant(wanted)


def test_other_assistant_messages_are_not_trimmed() -> None:
    assert sent(user("x"), assistant("a "), user("y ")) == [user("x"), assistant("a "), user("y ")]


def test_first_message_that_is_not_the_users_warns_only(caplog: pytest.LogCaptureFixture) -> None:
    assert sent({"role": "system", "content": "s"}, assistant("Hello!"), user("hi")) == [
        assistant("Hello!"),
        user("hi"),
    ]
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "'E'" in record.getMessage() and "Hello" not in record.getMessage()


def test_plain_user_messages_stay_apart_and_lose_foreign_keys() -> None:
    assert sent(user("a", name="bob"), user("b")) == [user("a"), user("b")]


@pytest.mark.parametrize(
    ("content", "wanted"), [(None, ""), ("", ""), ([text_block("a")], [text_block("a")]), ([], [])]
)
def test_content_that_is_no_text(content: Any, wanted: Any) -> None:
    assert sent(user(content), assistant(content), user("x")) == [user(wanted), assistant(wanted), user("x")]


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ("{broken", {}),
        ("[1]", {}),
        ("5", {}),
        ([1], {}),
    ],
)
def test_arguments_of_calls(arguments: Any, wanted: dict[str, Any]) -> None:
    block = {"type": "tool_use", "id": "c1", "name": "f", "input": wanted}
    assert sent(user("x"), assistant(None, call(arguments)))[1] == assistant([block])


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("Let me see. ", [text_block("Let me see. ")]),
        (" \n", []),
        ("", []),
        (None, []),
        ([text_block("a"), text_block("b")], [text_block("a"), text_block("b")]),
    ],
)
def test_text_before_calls(content: Any, blocks: list[Any]) -> None:
    out = sent(user("x"), assistant(content, call("{}")), result("r"))
    assert out[1]["content"] == [*blocks, {"type": "tool_use", "id": "c1", "name": "f", "input": {}}]


def test_missing_ids_name_their_place() -> None:
    conversation = [
        {"role": "system", "content": "s"},
        user("x"),
        assistant(None, call("{}", id=None), call("{}"), {"function": {"name": "g"}}),
        result("r", None),
    ]
    _, calls, results = sent(*conversation)
    assert [block["id"] for block in calls["content"]] == ["toolcall_2_0", "c1", "toolcall_2_2"]
    assert results["content"] == [result_block("r", "unknown")]


@pytest.mark.parametrize("calls", [[], None, "x", [5], {}])
def test_tool_calls_that_are_none_are_removed(calls: Any) -> None:
    assert sent(user("x"), assistant("a", tool_calls=calls), user("y"))[1] == assistant("a")


def test_call_without_a_function_does_not_crash() -> None:
    [block] = sent(user("x"), assistant(None, {"id": "c"}))[1]["content"]
    assert block == {"type": "tool_use", "id": "c", "name": "", "input": {}}


def test_results_are_one_turn() -> None:
    out = sent(user("x"), assistant(None, call("{}"), call("{}", id="c2")), result("r1"), result("r2", "c2"))
    assert out[2:] == [user([result_block("r1"), result_block("r2", "c2")])]


def test_results_come_before_the_text_of_their_turn() -> None:
    assert sent(result("r1"), user("text"), result("r2", "c2")) == [
        user([result_block("r1"), result_block("r2", "c2"), text_block("text")])
    ]


def test_a_system_message_does_not_split_a_turn() -> None:
    assert sent(result("r1"), {"role": "systemMes", "content": "s"}, user("text")) == [
        user([result_block("r1"), text_block("text")])
    ]


@pytest.mark.parametrize("content", ["", " ", None, []])
def test_blank_text_adds_nothing_to_results(content: Any) -> None:
    assert sent(result("r"), user(content)) == [user([result_block("r")])]


def test_blocks_and_images_follow_results() -> None:
    assert sent(result("r"), user("look", images=["https://h/x.png"])) == [
        user(
            [
                result_block("r"),
                {"type": "image", "source": {"type": "url", "url": "https://h/x.png"}},
                text_block("look"),
            ]
        )
    ]


def test_results_after_an_answer_are_a_new_turn() -> None:
    out = sent(user("x"), result("r1"), assistant("a"), result("r2", "c2"), assistant("b"), user("y"))
    assert out == [
        user("x"),
        user([result_block("r1")]),
        assistant("a"),
        user([result_block("r2", "c2")]),
        assistant("b"),
        user("y"),
    ]


@pytest.mark.parametrize(("content", "wanted"), [(None, ""), ("", ""), ([text_block("a"), text_block("b")], "ab")])
def test_content_of_a_result_is_text(content: Any, wanted: str) -> None:
    assert sent(result(content)) == [user([result_block(wanted)])]


PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "g"}},
]


def test_tools() -> None:
    body = payload(user("x"), tools=TOOLS)
    assert body["tools"] == [
        {"name": "f", "description": "d", "input_schema": PARAMETERS},
        {"name": "g", "description": ""},
    ]
    assert "tool_choice" not in body


@pytest.mark.parametrize("tool", [5, {}, {"type": "function"}, {"function": {}}, {"function": {"name": None}}])
def test_tools_without_a_name_are_skipped(tool: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert payload(user("x"), tools=[tool, TOOLS[1]])["tools"] == [{"name": "g", "description": ""}]
    assert "without a name" in caplog.text
    assert "tools" not in payload(user("x"), tools=[tool])


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ({"type": "function", "function": {"name": "f"}}, {"type": "tool", "name": "f"}),
        ("other", None),
        ({"type": "function"}, None),
        ({"type": "new", "function": {"name": "f"}}, None),
        ({"type": "function", "function": {}}, None),
        (5, None),
        ([], None),
    ],
)
def test_tool_choice(choice: Any, wanted: Any) -> None:
    body = payload(user("x"), tools=TOOLS, tool_choice=choice)
    assert body.get("tool_choice") == wanted and ("tool_choice" in body) == (wanted is not None)
    assert len(body["tools"]) == 2


@pytest.mark.parametrize("samplers", [{}, {"tools": [{"name": "p"}], "tool_choice": {"type": "auto"}}])
def test_tool_choice_none_sends_neither(samplers: dict[str, Any]) -> None:
    body = payload(user("x"), tools=TOOLS, tool_choice="none", samplers=samplers)
    assert not {"tools", "tool_choice"} & body.keys()


def test_a_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in payload(user("x"), tool_choice="required")


# -- images -----------------------------------------------------------------------------------------------------------


def image(media_type: str, data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


@pytest.mark.parametrize(
    ("source", "block"),
    [
        ("data:image/gif;base64,R0lG", image("image/gif", "R0lG")),
        ("data:image/jpg;base64,R0lG", image("image/jpeg", "R0lG")),
        ("data:image/webp;charset=x;base64,R0lG", image("image/webp", "R0lG")),
        (PNG, image("image/png", PNG)),
        (UNKNOWN, image("image/jpeg", UNKNOWN)),
        ("http://h/x", {"type": "image", "source": {"type": "url", "url": "http://h/x"}}),
        ("https://h/x", {"type": "image", "source": {"type": "url", "url": "https://h/x"}}),
    ],
)
def test_images_come_before_the_text(source: str, block: dict[str, Any]) -> None:
    assert sent(user("look", images=[source])) == [user([block, text_block("look")])]
    assert sent(user("look", images=source)) == [user([block, text_block("look")])]


@pytest.mark.parametrize(
    "source",
    [
        "file:///etc/passwd",
        "AAAA",
        "nonsense " * 20,
        UNKNOWN[:-1],
        "",
        None,
        5,
        {},
        "data:image/png;base64,",
        "data:image/svg+xml,<svg/>",
        "data:image/png",
        "data:application/pdf;base64,R0lG",
        "ftp://h/x",
    ],
)
def test_unusable_images_leave_the_text_alone(source: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert sent(user("look", images=[source])) == [user("look")]
    assert "1 image(s)" in caplog.text and "passwd" not in caplog.text


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_base64_in_lines(line_break: str) -> None:
    lines = line_break.join(PNG[start : start + 76] for start in range(0, len(PNG), 76)) + line_break
    assert sent(user("a", images=[lines])) == [user([image("image/png", PNG), text_block("a")])]


def test_usable_and_unusable_images() -> None:
    assert sent(user([text_block("a")], images=["nonsense", PNG])) == [user([image("image/png", PNG), text_block("a")])]


@pytest.mark.parametrize("content", ["", " ", None])
def test_image_without_text(content: Any) -> None:
    assert sent(user(content, images=[PNG])) == [user([image("image/png", PNG)])]


def test_images_belong_to_users_only() -> None:
    body = payload(
        {"role": "system", "content": "s", "images": [PNG]},
        user("a", images=[]),
        assistant("b", images=[PNG]),
        user("c", images=None),
        assistant(None, call("{}"), images=[PNG]),
        {**result("r"), "images": [PNG]},
    )
    assert "image" not in json.dumps(body)


@pytest.mark.parametrize("last", [user("b", images=[PNG]), user("", images=[PNG]), assistant("b")])
def test_failing_conversion_sends_text(
    last: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(source: object) -> None:
        raise RuntimeError("private words")

    monkeypatch.setattr(claude_messages, "image_block", broken)
    out = sent(user([text_block("a")], images=[PNG]), last)
    note = out[-1]["content"].removeprefix("b\n\n")
    assert note == note.strip() and "image" in note and "could not be processed" in note and len(note) < 80
    assert out[-1]["role"] == "user" and all(isinstance(message["content"], str) for message in out)
    assert [message["content"] for message in out][:1] == ["a"]
    assert len(out) == (2 if last["role"] == "user" else 3)
    assert "RuntimeError" in caplog.text and "private" not in caplog.text


# -- the caller's objects and the real API's types --------------------------------------------------------------------

CONVERSATION = [
    {"role": "system", "content": "s"},
    user("look", images=[PNG, "https://h/x.png"]),
    assistant("I see. ", call('{"a": 1}'), call("{}", id="c2")),
    result("r1"),
    user([text_block("and")]),
    result("r2", "c2"),
    assistant("done"),
    user("go on", name="bob"),
    assistant("{ "),
]


def test_nothing_of_the_caller_is_changed() -> None:
    samplers = {"tools": [{"name": "p"}], "tool_choice": {"type": "auto"}, "min_p": 1, "system": "s"}
    conversation, tools = copy.deepcopy(CONVERSATION), copy.deepcopy(TOOLS)
    before = copy.deepcopy((samplers, conversation, tools))
    first = payload(*conversation, samplers=samplers, tools=tools, tool_choice="auto")
    assert (samplers, conversation, tools) == before
    assert payload(*conversation, samplers=samplers, tools=tools, tool_choice="auto") == first


MESSAGE_PARAM: TypeAdapter[Any] = TypeAdapter(claude_types.MessageParam)


def checked(message: dict[str, Any]) -> dict[str, Any]:
    """The message as the package's types read it. They read a list of blocks when it is walked, and only then."""
    read_message = MESSAGE_PARAM.validate_python(message)
    content: Any = read_message["content"]
    return {**read_message, "content": content if isinstance(content, str) else list(content)}


def test_payload_is_what_the_api_takes() -> None:
    body = payload(*CONVERSATION, tools=TOOLS[:1], tool_choice="required")
    assert [checked(message) for message in body["messages"]] == body["messages"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"] * 3
    assert all(message.keys() == {"role", "content"} for message in body["messages"])
    assert [TypeAdapter(claude_types.ToolParam).validate_python(tool) for tool in body["tools"]] == body["tools"]
    assert TypeAdapter(claude_types.ToolChoiceParam).validate_python(body["tool_choice"]) == body["tool_choice"]
    assert json.loads(json.dumps(body)) == body
