"""The stream of one answer: cleaned chunks, tool calls, the final chunk, liveness, closing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.common.constants import OLLAMA_CHAT, OLLAMA_GENERATE, OPENAI_CHAT, OPENAI_COMPLETION
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.answers.text_cleaner import CleaningRules, clean_text
from Middleware.workflows.streaming import response_handler
from Middleware.workflows.streaming.response_handler import StreamingResponseHandler
from Tests.properties import examples

THINK = {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}
LIVENESS = {"toolName": " ping ", "arguments": {"a": 1}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


@pytest.fixture(autouse=True)
def assistant_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_handler, "strip_assistant_prefix_enabled", lambda: False)


def token(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"token": text, "finish_reason": finish, **more}


def call(index: int = 0, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"index": index, "function": function}


def run(handler: StreamingResponseHandler, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = list(handler.process_stream(iter(chunks)))
    assert handler.full_response_text == "".join(chunk["token"] for chunk in out)
    finals = [chunk for chunk in out if chunk["finish_reason"]]
    assert len(finals) == 1
    assert finals[0]["finish_reason"] == handler.finish_reason
    assert not finals[0].get("more") and not out[-1].get("more")
    return out


def test_plain_stream() -> None:
    handler = StreamingResponseHandler({}, {})
    assert run(handler, [token("Hi"), token(" you"), token("", "stop")]) == [
        token("Hi"),
        token(" you"),
        token("", "stop"),
    ]
    assert handler.full_response_text == "Hi you"


@pytest.mark.parametrize(
    "options", [{"trimBeginningAndEndLineBreaks": True}, {**THINK, "trimBeginningAndEndLineBreaks": True}]
)
@pytest.mark.parametrize("word", [" word", " w\u00f6rd", "word \n"])
def test_a_chunk_of_text_takes_few_calls_where_only_the_end_is_still_open(options: dict[str, Any], word: str) -> None:
    def calls(count: int) -> int:
        handler = StreamingResponseHandler(options, {})
        chunks = iter([token("<think>so</think>Hi"), *[token(word)] * count, token("", "stop")])
        made = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event == "call"

        sys.setprofile(note)
        try:
            out = list(handler.process_stream(chunks))
        finally:
            sys.setprofile(None)
        assert len(out) == count + 2 and handler.full_response_text.endswith((word * count).rstrip())
        return made

    assert (calls(60) - calls(20)) / 40 < 8


def test_text_on_the_finishing_chunk_is_delivered_and_reading_ends() -> None:
    handler = StreamingResponseHandler({}, {})
    assert run(handler, [token("Hi"), token(" you", "length"), token("lost")]) == [
        token("Hi"),
        token(" you", more=True),
        token("", "length"),
        token(""),
    ]


def test_no_reason_means_stop_or_tool_calls() -> None:
    assert run(StreamingResponseHandler({}, {}), [token("a")])[-1] == token("", "stop")
    assert run(StreamingResponseHandler({}, {}), [])[-1] == token("", "stop")
    called = [token("", tool_calls=[call(name="f")])]
    assert run(StreamingResponseHandler({}, {}), called)[-1] == token("", "tool_calls")


def test_a_token_that_looks_like_a_terminator_is_text() -> None:
    assert run(StreamingResponseHandler({}, {}), [token("[DONE]"), token("x")])[:2] == [token("[DONE]"), token("x")]


def test_empty_tool_calls_are_ordinary_text() -> None:
    out = run(StreamingResponseHandler({}, {}), [token("hi", tool_calls=[])])
    assert out == [token("hi"), token("", "stop")]


@pytest.mark.parametrize("odd", [{"x": 1}, {"token": ""}, {"finish_reason": None}, {"token": "b", "x": 1}])
def test_every_chunk_has_a_token_and_a_finish_reason(odd: dict[str, Any]) -> None:
    for chunks in ([odd], [odd, token("a")], [token("a"), odd]):
        out = run(StreamingResponseHandler({}, {}, has_endpoint=False), chunks)
        assert all({"token", "finish_reason"} <= chunk.keys() for chunk in out)


@pytest.mark.parametrize(("trim", "wanted"), [(False, "Yes "), (True, "Yes")])
def test_thinking_is_removed_character_by_character(trim: bool, wanted: str) -> None:
    handler = StreamingResponseHandler({**THINK, "trimBeginningAndEndLineBreaks": trim}, {})
    chunks = [token(char) for char in "<think>p</think>\n\nYes "]
    out = run(handler, chunks)
    assert handler.full_response_text == wanted
    assert len(out) > len(chunks)  # swallowed text still gives a chunk each, as signs of life


def test_a_node_without_endpoint_is_verbatim() -> None:
    handler = StreamingResponseHandler({}, {}, has_endpoint=False)
    run(handler, [token("  a "), token(" b ")])
    assert handler.full_response_text == "  a  b "


def test_speaker() -> None:
    handler = StreamingResponseHandler({}, {}, "Old Tom:")
    run(handler, [token("Old"), token(" Tom:"), token(" hi")])
    assert handler.full_response_text == "Old Tom: hi"
    handler = StreamingResponseHandler({}, {}, "Old Tom:", has_endpoint=False)
    run(handler, [token("hi")])
    assert handler.full_response_text == "Old Tom: hi"


def test_usage_rides_on_the_final_chunk() -> None:
    handler = StreamingResponseHandler({}, {})
    out = run(handler, [token("a", more=True), token("", "stop", more=True), token("", usage=USAGE)])
    assert out == [token("a", more=True), token("", more=True), token("", "stop", usage=USAGE)]
    assert handler.usage == USAGE


def test_the_finish_reason_does_not_wait_for_late_usage() -> None:
    handler = StreamingResponseHandler({}, {})
    out = run(handler, [token("a"), token("", "stop"), token("", usage=USAGE)])
    assert out == [token("a"), token("", "stop"), token("", usage=USAGE)]
    stream = StreamingResponseHandler({}, {}).process_stream(iter([token("a", "stop"), token("")]))
    assert [next(stream), next(stream)] == [token("a", more=True), token("", "stop")]


def test_running_usage_is_kept_for_the_end() -> None:
    out = run(StreamingResponseHandler({}, {}), [token("a", usage={"total_tokens": 1}), token("b", usage=USAGE)])
    assert out == [token("a"), token("b"), token("", "stop", usage=USAGE)]


def test_a_batch_always_ends_without_more() -> None:
    chunks = [
        token("<think>a", more=True),
        token("b", more=True),
        token("</think>c"),
        token("d", "stop", more=True),
        token("", more=True),
        token(""),
    ]
    out = run(StreamingResponseHandler(THINK, {}), chunks)
    assert [bool(chunk.get("more")) for chunk in out[:3]] == [True, True, False]
    assert [chunk["finish_reason"] for chunk in out if not chunk.get("more")] == [None, "stop"]


def test_reasoning_and_signs_of_life_pass() -> None:
    out = run(
        StreamingResponseHandler(THINK, {}),
        [token("", reasoning="hm\ud83d"), token("", reasoning="\ude00"), token(""), token("x", "stop")],
    )
    assert out == [
        token("", reasoning="hm"),
        token("", reasoning="\U0001f600"),
        token(""),
        token("x", more=True),
        token("", "stop"),
    ]


def test_surrogates_are_joined_or_replaced() -> None:
    handler = StreamingResponseHandler({}, {})
    run(handler, [token("a"), token("\ud83d"), token("\ude00"), token("\ude00"), token("b\ud83d")])
    assert handler.full_response_text == "a\U0001f600\ufffdb\ufffd"


def test_tool_calls_keep_their_order_with_text() -> None:
    handler = StreamingResponseHandler(THINK, {})
    out = run(
        handler,
        [token("so <th"), token("", tool_calls=[call(name="F")]), token("x", tool_calls=[call()]), token("", "stop")],
    )
    assert out == [
        token("so "),
        token("<th", tool_calls=[call(name="F")]),
        token("x", tool_calls=[call()]),
        token("", "stop"),
    ]
    assert handler.tool_calls_seen


def test_stripping_stays_armed_when_nothing_was_held() -> None:
    handler = StreamingResponseHandler(THINK, {})
    run(handler, [token("", tool_calls=[call(name="f")]), token("<think>a</think> b")])
    assert handler.full_response_text == "b"


def test_a_tool_chunk_with_finish_reason_is_final() -> None:
    out = run(
        StreamingResponseHandler({}, {}),
        [token("", tool_calls=[call(name="F")]), token("", "tool_calls", tool_calls=[call(arguments="{}")])],
    )
    assert out == [token("", tool_calls=[call(name="F")]), token("", "tool_calls", tool_calls=[call(arguments="{}")])]


def test_tool_names_in_lower_case_on_request() -> None:
    chunks = [token("", tool_calls=[call(name="GetIt", arguments="A")])]
    out = run(StreamingResponseHandler({}, {"lowercaseToolCallFunctionNames": True}), chunks)
    assert out[0]["tool_calls"] == [call(name="getit", arguments="A")]
    assert chunks[0]["tool_calls"][0]["function"]["name"] == "GetIt"


def test_tool_calls_alone_get_no_speaker_and_held_text_gets_one() -> None:
    handler = StreamingResponseHandler({}, {}, "Tom:")
    run(handler, [token("", tool_calls=[call(name="f")]), token("", "tool_calls")])
    assert handler.full_response_text == ""
    handler = StreamingResponseHandler({}, {}, "Tom:")
    run(handler, [token("hi"), token("", tool_calls=[call(name="f")]), token("", "tool_calls")])
    assert handler.full_response_text == "Tom: hi"


@pytest.mark.parametrize(
    ("api_type", "node", "text", "fires"),
    [
        (OPENAI_CHAT, {"injectLivenessToolCall": True}, "done", True),
        (OLLAMA_CHAT, {}, " \n", True),
        (OPENAI_CHAT, {}, "done", False),
        (OPENAI_COMPLETION, {"injectLivenessToolCall": True}, "done", False),
        (OLLAMA_GENERATE, {}, "", False),
    ],
)
def test_liveness(api_type: str, node: dict, text: str, fires: bool) -> None:
    with request_scope(RequestContext(api_type=api_type)):
        out = run(StreamingResponseHandler({}, node, liveness=LIVENESS), [token(text), token("", "stop")])
    calls = [chunk["tool_calls"] for chunk in out if "tool_calls" in chunk]
    assert len(calls) == fires
    assert out[-1]["finish_reason"] == ("tool_calls" if fires else "stop")
    if fires:
        injected = calls[0][0]
        assert injected["id"].startswith("wilmer_liveness_") and len(injected["id"]) == len("wilmer_liveness_") + 8
        assert injected["function"]["name"] == "ping"
        assert json.loads(injected["function"]["arguments"]) == {"a": 1}


def test_liveness_never_follows_a_tool_call_or_a_cancellation() -> None:
    request = RequestContext(api_type=OPENAI_CHAT)
    node = {"injectLivenessToolCall": True}
    with request_scope(request):
        out = run(StreamingResponseHandler({}, node, liveness=LIVENESS), [token("", tool_calls=[call(name="f")])])
        assert len(out) == 2
        request.cancel_scope.cancel()
        assert run(StreamingResponseHandler({}, node, liveness=LIVENESS), [token("x")])[-1] == token("", "stop")


@pytest.mark.parametrize("liveness", [{"toolName": " "}, {"toolName": 3}, {"x": 1}])
def test_malformed_liveness_is_ignored(liveness: dict, caplog: pytest.LogCaptureFixture) -> None:
    assert run(StreamingResponseHandler({}, {}, liveness=liveness), [])[-1] == token("", "stop")
    assert "livenessToolCall" in caplog.text


def test_liveness_arguments_that_are_no_object_become_empty() -> None:
    out = run(StreamingResponseHandler({}, {}, liveness={"toolName": "f", "arguments": "x"}), [])
    assert out[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_closing_closes_the_back_end_at_once_and_reads_no_more() -> None:
    events: list[str] = []

    def upstream() -> Iterator[dict[str, Any]]:
        try:
            for text in ("a", "b", "c"):
                events.append(text)
                yield token(text)
        finally:
            events.append("closed")

    stream = StreamingResponseHandler({}, {}).process_stream(upstream())
    assert next(stream) == token("a")
    stream.close()
    assert events == ["a", "closed"]


def test_an_error_of_the_back_end_comes_through() -> None:
    def upstream() -> Iterator[dict[str, Any]]:
        yield token("a")
        raise ConnectionError("lost")

    handler = StreamingResponseHandler({}, {})
    stream = handler.process_stream(upstream())
    assert next(stream) == token("a")
    with pytest.raises(ConnectionError):
        next(stream)
    assert handler.full_response_text == "a"


PIECES = st.sampled_from(
    ["<think>", "</think>", "<", "th", "Out:", "Ou", ":", " ", "\n", "x", "\ud83d", "\ude00", "\u4f60", "Tom:", ""]
)


@examples(400)
@given(
    st.lists(st.tuples(PIECES, st.booleans()), max_size=15),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "Tom:"]),
    st.booleans(),
    st.booleans(),
)
def test_streamed_equals_whole(
    pieces: list[tuple[str, bool]],
    think: bool,
    trim: bool,
    strip: bool,
    prompt: str | None,
    has_endpoint: bool,
    told: bool,
) -> None:
    endpoint = {**THINK, "removeThinking": think, "trimBeginningAndEndLineBreaks": trim}
    node = {"removeCustomTextFromResponseStart": strip, "responseStartTextToRemove": ["Out:"]}
    chunks = [token(text, more=True) if more else token(text) for text, more in pieces]
    handler = StreamingResponseHandler(endpoint, node, prompt, has_endpoint=has_endpoint)
    out = run(handler, [*chunks, token("", "stop")] if told else chunks)
    rules = CleaningRules.build(endpoint, node, prompt, has_endpoint=has_endpoint)
    assert handler.full_response_text == clean_text("".join(text for text, _ in pieces), rules)
    assert len(out) > len(pieces)
