"""Answers of the Responses API, as a stream and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.responses_answer import ResponsesAnswer, new_response
from Middleware.api.errors import Cause, PublicError
from Middleware.api.requests.responses_input import returned_fields
from Middleware.api.requests.responses_tools import ResponsesTools
from Middleware.models.messages import Usage
from Tests.api.responses_stream import Heard, heard
from Tests.properties import examples
from Tests.tables import table

USAGE: Usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
TOOLS = [
    {"type": "function", "name": "find"},
    {"type": "custom", "name": "patch"},
    {"type": "local_shell"},
    {"type": "tool_search", "execution": "client"},
    {
        "type": "namespace",
        "name": "crm",
        "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "note"}],
    },
]
DIGITS = "0123456789abcdef" * 2


class Made(ResponsesAnswer):
    """An answer that notes the objects that it kept."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        response = new_response(f"resp_{DIGITS}", "ann", True, returned_fields({"tools": TOOLS}))
        super().__init__(
            response,
            ResponsesTools(TOOLS).called,
            lambda text: {**USAGE, "completion_tokens": len(text)},
            self.kept.append,
        )


def fragment(arguments: Any, index: int | None = 0, name: Any = None, call_id: Any = None) -> dict[str, Any]:
    return {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def streamed(*chunks: Any, finish: str = "stop", cancelled: bool = False) -> Heard:
    """The stream of texts, of reasoning in a tuple, and of lists of fragments of calls."""
    answer = Made()
    data = answer.beginning()
    for chunk in chunks:
        if isinstance(chunk, str):
            data += answer.text(chunk)
        elif isinstance(chunk, tuple):
            data += answer.reasoning(chunk[0])
        else:
            data += answer.tool_calls("", chunk, None)
    data += answer.final(finish) + b"".join(answer.ending(lambda: USAGE, cancelled))
    result = heard(data)
    assert answer.kept == [result.response]
    return result


def output(response: Any, *names: str) -> list[Any]:
    return [tuple(item[name] for name in names) for item in response["output"]]


# -- the stream --------------------------------------------------------------------------------------------------------
def test_a_text() -> None:
    stream = streamed("Grüße", " 😀", '\u0000"')
    assert stream.types == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    for event in stream.events[:2]:
        assert (event["response"]["status"], event["response"]["output"], event["response"]["usage"]) == (
            "in_progress",
            [],
            None,
        )
    assert stream.events[4] == {
        "type": "response.output_text.delta",
        "sequence_number": 4,
        "item_id": stream.ids[0],
        "output_index": 0,
        "content_index": 0,
        "delta": "Grüße",
        "logprobs": [],
    }
    assert stream.response["output"] == [
        {
            "id": stream.ids[0],
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": 'Grüße 😀\u0000"', "annotations": [], "logprobs": []}],
        }
    ]
    assert stream.response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    assert stream.ids[0].startswith(f"msg_{DIGITS}")


def test_nothing() -> None:
    stream = streamed()
    assert stream.types == ["created", "in_progress", "completed"]
    assert (stream.response["output"], stream.response["status"]) == ([], "completed")


def test_reasoning_text_and_calls_follow_each_other() -> None:
    stream = streamed(
        ("Hm",),
        ("m.",),
        "I ",
        "look.",
        [fragment('{"q"', name="find", call_id="c1")],
        [fragment(":1}")],
        "Found.",
        finish="tool_calls",
    )
    assert output(stream.response, "type", "status") == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("message", "completed"),
    ]
    assert stream.texts_in_order == ["Hmm.", "I look.", '{"q":1}', "Found."]
    assert stream.types[2:9] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert stream.response["output"][0] == {
        "id": stream.ids[0],
        "type": "reasoning",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "Hmm."}],
    }
    assert stream.response["output"][2] == {
        "id": stream.ids[2],
        "type": "function_call",
        "status": "completed",
        "call_id": "c1",
        "name": "find",
        "arguments": '{"q":1}',
    }


def test_calls_whose_fragments_alternate() -> None:
    stream = streamed(
        [fragment("", 0, "find", "a"), fragment('{"a"', 1, "find", "b")],
        [fragment('{"b":', 0)],
        [fragment(":1}", 1)],
        [fragment("2}", 0)],
        finish="tool_calls",
    )
    assert output(stream.response, "call_id", "arguments") == [("a", '{"b":2}'), ("b", '{"a":1}')]


@table(
    ("name", "arguments", "item"),
    [
        ("find", "", {"type": "function_call", "name": "find", "arguments": "{}"}),
        ("FIND", '{"a":1}', {"type": "function_call", "name": "find", "arguments": '{"a":1}'}),
        ("other", {"a": "ü"}, {"type": "function_call", "name": "other", "arguments": '{"a": "ü"}'}),
        ("crm__find", "{}", {"type": "function_call", "name": "find", "arguments": "{}", "namespace": "crm"}),
        ("patch", '{"input": "*** Begin"}', {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"}),
        ("patch", "*** Begin", {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"}),
        ("patch", '{"text": 1}', {"type": "custom_tool_call", "name": "patch", "input": '{"text": 1}'}),
        ("crm__note", "", {"type": "custom_tool_call", "name": "note", "input": "", "namespace": "crm"}),
        ("tool_search", '{"q": "x"}', {"type": "tool_search_call", "execution": "client", "arguments": {"q": "x"}}),
        ("tool_search", "x", {"type": "tool_search_call", "execution": "client", "arguments": {}}),
        (
            "local_shell",
            '{"command": ["ls"]}',
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        ),
    ],
)
def test_calls_come_back_as_what_the_client_sent(name: str, arguments: Any, item: dict[str, Any]) -> None:
    stream = streamed([fragment(arguments, name=name, call_id="c1")], finish="tool_calls")
    (last,) = stream.response["output"]
    assert last == {"id": stream.ids[0], "status": "completed", "call_id": "c1", **item}
    added = stream.items[0]
    assert (added["call_id"], added.get("arguments") or "", added.get("input") or "") == ("c1", "", "")
    if item["type"] == "custom_tool_call":
        assert stream.types[3:5] == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    elif item["type"] == "function_call":
        (done,) = [event for event in stream.events if event["type"].endswith("arguments.done")]
        assert (done["name"], done["arguments"]) == (item["name"], item["arguments"])
    else:
        assert stream.types == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]


def test_ids_of_calls_without_one() -> None:
    stream = streamed([fragment("{}", 0, "find"), fragment("{}", 1, "find")])
    (one,), (two,) = output(stream.response, "call_id")
    assert one.startswith("call_") and two.startswith("call_") and one != two


def test_a_name_that_comes_late() -> None:
    stream = streamed([fragment('{"a"', call_id="c1")], [fragment(":1}", name="find")])
    assert output(stream.response, "name", "arguments") == [("find", '{"a":1}')]
    assert output(streamed([fragment('{"a":1}')]).response, "name", "arguments") == [("", '{"a":1}')]


@table(
    ("finish", "status", "reason", "item", "last"),
    [
        ("stop", "completed", None, "completed", "completed"),
        ("tool_calls", "completed", None, "completed", "completed"),
        ("whatever", "completed", None, "completed", "completed"),
        ("length", "incomplete", "max_output_tokens", "incomplete", "incomplete"),
        ("content_filter", "incomplete", "content_filter", "incomplete", "incomplete"),
    ],
)
def test_endings(finish: str, status: str, reason: str | None, item: str, last: str) -> None:
    stream = streamed("Hi", finish=finish)
    response = stream.response
    assert (response["status"], stream.types[-1]) == (status, last)
    assert response["incomplete_details"] == ({"reason": reason} if reason else None)
    assert output(response, "status") == [(item,)]
    assert response["completed_at"] >= response["created_at"] > 0 and response["error"] is None


def test_calls_are_cut_off_only_where_their_arguments_are() -> None:
    calls = [fragment("{}", 0, "find"), fragment('{"a":', 1, "find"), fragment("", 2, "find")]
    response = streamed(calls, finish="length").response
    assert response["status"] == "incomplete"
    assert output(response, "status", "arguments") == [
        ("completed", "{}"),
        ("incomplete", '{"a":'),
        ("completed", "{}"),
    ]


def test_cancelled() -> None:
    stream = streamed("Hi", cancelled=True)
    assert (stream.types[-1], stream.response["status"], stream.response["incomplete_details"]) == (
        "incomplete",
        "cancelled",
        None,
    )
    assert output(stream.response, "status") == [("incomplete",)]
    assert streamed(cancelled=True).response["output"] == []


@table(
    ("cause", "code"),
    [
        (Cause.OTHER, "server_error"),
        (Cause.LASTING, "invalid_prompt"),
        (Cause.NO_QUOTA, "insufficient_quota"),
        (Cause.PROMPT_TOO_LONG, "context_length_exceeded"),
        (Cause.RATE_LIMIT, "rate_limit_exceeded"),
    ],
)
def test_failures(cause: Cause, code: str) -> None:
    for begun in (False, True):
        answer = Made()
        data = answer.beginning() + (answer.text("Hi") if begun else b"")
        stream = heard(data + b"".join(answer.error(PublicError(502, "Endpoint 'Main': down.", cause=cause))))
        assert stream.types[-1] == "failed"
        assert (stream.response["status"], stream.response["error"]) == (
            "failed",
            {"code": code, "message": "Endpoint 'Main': down."},
        )
        assert output(stream.response, "status") == ([("incomplete",)] if begun else [])
        assert (stream.response["usage"] is None) is not begun
        assert answer.kept == [stream.response]


def test_silence() -> None:
    answer = Made()
    data = answer.beginning()
    data += answer.heartbeat() + answer.heartbeat() + answer.reasoning("Hm") + answer.text("Once")
    data += answer.heartbeat()
    stream = heard(data + answer.text(" upon") + answer.final("stop") + b"".join(answer.ending(lambda: USAGE, False)))
    assert stream.types.count("in_progress") == 4
    again = [event for event in stream.events if event["type"] == "response.in_progress"][-1]["response"]
    assert again["status"] == "in_progress"
    assert output(again, "type", "status") == [("reasoning", "completed"), ("message", "in_progress")]
    assert again["output"][1]["content"][0]["text"] == "Once"


# -- whole -------------------------------------------------------------------------------------------------------------
def finished(
    text: str = "", calls: Any = None, finish: str | None = None, reasoning: str = "", cancelled: bool = False
) -> FinishedAnswer:
    return FinishedAnswer(text, calls, finish, reasoning, "", {**USAGE, "completion_tokens": len(text)}, cancelled)


def whole(answer: FinishedAnswer) -> Any:
    made = Made()
    response = made.whole(answer)
    assert made.kept == [response]
    return json.loads(json.dumps(response))


def test_all_fields() -> None:
    response = whole(finished("Hi"))
    assert sorted(response) == sorted(
        [
            "id",
            "object",
            "created_at",
            "completed_at",
            "status",
            "background",
            "error",
            "incomplete_details",
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "metadata",
            "model",
            "output",
            "parallel_tool_calls",
            "previous_response_id",
            "prompt_cache_key",
            "reasoning",
            "safety_identifier",
            "service_tier",
            "store",
            "temperature",
            "text",
            "tool_choice",
            "tools",
            "top_logprobs",
            "top_p",
            "truncation",
            "usage",
            "user",
        ]
    )
    fixed = {
        "object": "response",
        "background": False,
        "max_tool_calls": None,
        "service_tier": "default",
        "top_logprobs": 0,
        "truncation": "disabled",
        "store": True,
        "model": "ann",
        "id": f"resp_{DIGITS}",
    }
    assert response.items() >= fixed.items()


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a":1}'}}


@table(
    ("answer", "chunks", "finish"),
    [
        (finished("Hi", None, "stop"), ["Hi"], "stop"),
        (finished(), [], "stop"),
        (finished("Hi", [CALL], "tool_calls", "Hm"), [("Hm",), "Hi", [{**CALL, "index": 0}]], "tool_calls"),
        (finished("Hi", [CALL], None), ["Hi", [{**CALL, "index": 0}]], "stop"),
        (
            finished("", [CALL, {**CALL, "id": ""}], "stop"),
            [[{**CALL, "index": 0}, {**CALL, "index": 1, "id": ""}]],
            "stop",
        ),
        (finished("Hi", None, "length", "Hm"), [("Hm",), "Hi"], "length"),
        (finished("Hi", None, "tool_calls"), ["Hi"], "stop"),
        (finished("Hi", None, "content_filter"), ["Hi"], "content_filter"),
    ],
)
def test_a_whole_answer_is_the_last_object_of_its_stream(answer: FinishedAnswer, chunks: Any, finish: str) -> None:
    last = streamed(*chunks, finish=finish).response
    times = {"created_at": 0, "completed_at": 0}
    assert {**whole(answer), **times} == {**last, **times}


def test_a_whole_answer_that_is_cancelled() -> None:
    response = whole(finished("Hi", cancelled=True))
    assert (response["status"], output(response, "status")) == ("cancelled", [("incomplete",)])


def test_details_of_the_usage() -> None:
    usage: Any = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    told = Made().whole(FinishedAnswer("x", None, "stop", "", "", usage))["usage"]
    assert told == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 10,
    }


# -- anything ----------------------------------------------------------------------------------------------------------
TEXT = st.text(min_size=1, max_size=5)
FRAGMENT = st.builds(
    fragment,
    st.one_of(st.none(), TEXT, st.just({"a": 1})),
    st.one_of(st.none(), st.integers(0, 2)),
    st.one_of(st.none(), st.sampled_from(["find", "patch", "crm__note", "tool_search", "x"])),
    st.one_of(st.none(), st.just("c1"), st.just("c2")),
)
CHUNKS = st.lists(st.one_of(TEXT, st.tuples(TEXT), st.lists(FRAGMENT, max_size=3)), max_size=12)


@examples(60)
@given(CHUNKS, st.sampled_from(["stop", "length", "tool_calls"]), st.booleans())
def test_every_stream_is_in_order(chunks: list[Any], finish: str, cancelled: bool) -> None:
    streamed(*chunks, finish=finish, cancelled=cancelled)


@pytest.mark.parametrize("token", ["\ud800", "a\ud83d"])
def test_lone_surrogates_can_be_sent(token: str) -> None:
    answer = Made()
    assert "\ufffd".encode() in answer.beginning() + answer.text(token)
