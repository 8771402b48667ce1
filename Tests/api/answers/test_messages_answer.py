"""Messages of Anthropic's API: the same content whole and streamed, and the order of the events."""

from __future__ import annotations

import json
import re
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.messages_answer import Blocks, MessageForm, MessagesStream, message_usage
from Middleware.api.errors import PublicError
from Middleware.api.requests.offered_tools import OfferedTools
from Tests.properties import examples
from Tests.tables import table

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USAGE: Any = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 60},
}


def form(*tools: str, thinking: bool = True, omitted: bool = False) -> MessageForm:
    offered = OfferedTools()
    for name in tools:
        offered.add(name, None, None)
    return MessageForm("msg_1", "ann", offered, thinking, omitted, "req_1")


def fragment(number: int, arguments: Any = "", **more: Any) -> Any:
    name = more.pop("name", None)
    return {"index": number, **more, "function": {**({"name": name} if name else {}), "arguments": arguments}}


def begin(number: int, name: str, arguments: Any = "") -> Any:
    return fragment(number, arguments, id=f"call_{number}", name=name)


def events(data: bytes) -> list[Any]:
    """The events, each of which must have its own type as its name."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    parsed = []
    for block in blocks:
        name, _, payload = block.partition("\ndata: ")
        parsed.append(json.loads(payload))
        assert name == f"event: {parsed[-1]['type']}" and "\n" not in payload
    return parsed


def streamed(*steps: Any, form: MessageForm, finish: str = "stop", cancelled: bool = False) -> bytes:
    """A stream of texts, of ("thinking", text), and of lists of fragments."""
    stream = MessagesStream(form, lambda: 42)
    data = stream.beginning()
    for step in steps:
        if isinstance(step, str):
            data += stream.text(step)
        elif isinstance(step, tuple):
            data += stream.reasoning(step[1])
        else:
            data += stream.tool_calls("", step, None)
    return data + stream.final(finish) + b"".join(stream.ending(lambda: USAGE, cancelled))


def summary(data: bytes) -> list[Any]:
    """The events of blocks in short: ("text",), ("+", delta), "." for the end of the block."""
    out: list[Any] = []
    for event in events(data):
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == sum(isinstance(entry, tuple) and entry[0] != "+" for entry in out)
            assert not out or out[-1] == ".", "two blocks are open"
            block = event["content_block"]
            out.append((block["type"], *([block["id"], block["name"]] if block["type"] == "tool_use" else [])))
        elif kind == "content_block_delta":
            (_, _), (_, text) = event["delta"].items()
            out.append(("+", text))
        elif kind == "content_block_stop":
            out.append(".")
    return out


def reason(data: bytes) -> Any:
    return events(data)[-2]["delta"]["stop_reason"]


# -- 8.3: events -------------------------------------------------------------------------------------------------------
def test_order_of_events() -> None:
    data = streamed(
        ("thinking", "Let me "),
        ("thinking", "look."),
        "I ",
        "look.",
        [begin(0, "read", '{"p":')],
        [fragment(0, '"a"}')],
        form=form(),
    )
    first, ping, *_, delta, stop = events(data)
    assert first["message"] == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "ann",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 42,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 1,
            "service_tier": "standard",
        },
    }
    assert ping == {"type": "ping"}
    signature = next(entry[1] for entry in summary(data) if entry[1:] and str(entry[1]).startswith("wilmer-"))
    assert re.fullmatch(r"wilmer-[0-9a-f]{64}", signature)
    assert summary(data) == [
        ("thinking",),
        ("+", "Let me "),
        ("+", "look."),
        ("+", signature),
        ".",
        ("text",),
        ("+", "I "),
        ("+", "look."),
        ".",
        ("tool_use", "call_0", "read"),
        ("+", '{"p":'),
        ("+", '"a"}'),
        ".",
    ]
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {
            "input_tokens": 40,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 60,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 7,
            "service_tier": "standard",
        },
    }
    assert stop == {"type": "message_stop"}
    for event in events(data):
        if event != ping:
            EVENT.validate_python(event, strict=True)


A, B = begin(0, "a", '{"x"'), begin(1, "b", '{"y"')


@table(
    ("steps", "expected"),
    [
        # Alternating fragments: the first call whole, then the second.
        (
            [[A], [B], [fragment(0, ":1}")], [fragment(1, ":2}")]],
            [
                ("tool_use", "call_0", "a"),
                ("+", '{"x"'),
                ("+", ":1}"),
                ".",
                ("tool_use", "call_1", "b"),
                ("+", '{"y"'),
                ("+", ":2}"),
                ".",
            ],
        ),
        # One after the other: each goes out as it comes.
        (
            [[A], [fragment(0, ":1}")], [B], [fragment(1, ":2}")]],
            [
                ("tool_use", "call_0", "a"),
                ("+", '{"x"'),
                ("+", ":1}"),
                ".",
                ("tool_use", "call_1", "b"),
                ("+", '{"y"'),
                ("+", ":2}"),
                ".",
            ],
        ),
        # Two calls in one chunk, without arguments, and with an object as a script gives it.
        (
            [[begin(0, "a"), begin(1, "b", {"y": 2})]],
            [("tool_use", "call_0", "a"), ".", ("tool_use", "call_1", "b"), ("+", '{"y": 2}'), "."],
        ),
        # What is not an object is left out, at once or piece by piece; white space before one is not.
        *(
            ([[begin(0, "a", first)], [fragment(0, second)]], [("tool_use", "call_0", "a"), *shown, "."])
            for first, second, shown in (
                ("[1", "]", []),
                ("x", "", []),
                ('"{', '}"', []),
                ([1], "", []),
                ("5", "{}", []),
                (" \n", '{"x": 1}', [("+", ' \n{"x": 1}')]),
                (" ", " ", []),
            )
        ),
        # Text ends what is open, and what waits comes before it.
        (
            [[A], [B], "done"],
            [
                ("tool_use", "call_0", "a"),
                ("+", '{"x"'),
                ".",
                ("tool_use", "call_1", "b"),
                ("+", '{"y"'),
                ".",
                ("text",),
                ("+", "done"),
                ".",
            ],
        ),
        (
            ["a", [begin(0, "x", "{}")], "b", [begin(1, "y")]],
            [
                ("text",),
                ("+", "a"),
                ".",
                ("tool_use", "call_0", "x"),
                ("+", "{}"),
                ".",
                ("text",),
                ("+", "b"),
                ".",
                ("tool_use", "call_1", "y"),
                ".",
            ],
        ),
        # What is no JSON goes out as it is.
        ([[begin(0, "a", "{oops")]], [("tool_use", "call_0", "a"), ("+", "{oops"), "."]),
        # The name comes later than the id.
        ([[fragment(0, id="call_0")], [fragment(0, "{}", name="a")]], [("tool_use", "call_0", "a"), ("+", "{}"), "."]),
        # A script's chunk may hold anything.
        ([["junk", None, {"function": 5}, begin(0, "a")]], [("tool_use", "call_0", "a"), "."]),
        ([("thinking", "a"), "b", ("thinking", "c")], None),
        ([], []),
    ],
)
def test_blocks(steps: Any, expected: Any) -> None:
    found = summary(streamed(*steps, form=form()))
    if expected is None:
        assert [entry[0] for entry in found if entry != "." and entry[0] != "+"] == ["thinking", "text", "thinking"]
    else:
        assert found == expected


def test_ids_and_names() -> None:
    """An id that Anthropic's clients refuse is replaced; a name in another case becomes the client's."""
    fragments = [fragment(0, id="functions.read:0", name="READ"), fragment(1, name="other"), begin(2, "Read")]
    blocks = [entry for entry in summary(streamed(fragments, form=form("Read"))) if entry[0] == "tool_use"]
    assert [block[2] for block in blocks] == ["Read", "other", "Read"]
    assert all(re.fullmatch(r"toolu_[0-9a-f]{24}", block[1]) for block in blocks[:2]) and blocks[2][1] == "call_2"
    assert blocks[0][1] != blocks[1][1]


# -- 8.1, 8.2: whole and streamed alike --------------------------------------------------------------------------------
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}


@table(
    ("finish", "calls", "expected"),
    [
        ("stop", [], "end_turn"),
        ("length", [], "max_tokens"),
        ("content_filter", [], "refusal"),
        ("tool_calls", [], "end_turn"),
        ("something", [], "end_turn"),
        (None, [], "end_turn"),
        ("stop", [CALL], "tool_use"),
        ("tool_calls", [CALL], "tool_use"),
        ("length", [CALL], "max_tokens"),
        ("content_filter", [CALL], "refusal"),
    ],
)
def test_stop_reasons(finish: Any, calls: Any, expected: str) -> None:
    whole = form().whole(FinishedAnswer("Hi", calls or None, finish, "", "", USAGE))
    assert whole["stop_reason"] == expected
    if finish is not None:
        assert reason(streamed("Hi", calls, form=form(), finish=finish)) == expected


def test_cancelled() -> None:
    """The client is still there: what is open is closed, and the message ends as usual."""
    data = streamed("Once", [A], form=form(), cancelled=True)
    assert summary(data)[-1] == "." and [event["type"] for event in events(data)][-2:] == [
        "message_delta",
        "message_stop",
    ]
    assert reason(data) == "end_turn"
    assert form().whole(FinishedAnswer("", None, None, "", "", USAGE, cancelled=True))["stop_reason"] == "end_turn"


def test_whole() -> None:
    answer = FinishedAnswer(
        "Hi",
        [CALL, {"id": "c2", "function": {"name": "bad", "arguments": "{oops"}}],
        "tool_calls",  # type: ignore[list-item]
        "Hm.",
        "",
        USAGE,
    )
    message = form().whole(answer)
    thinking = message["content"][0]
    assert thinking["type"] == "thinking" and thinking["thinking"] == "Hm." and thinking["signature"] > "wilmer-"
    assert message["content"][1:] == [
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
        {"type": "tool_use", "id": "c2", "name": "bad", "input": {}},
    ]
    Message.model_validate(message, strict=True)
    without_ids: Any = [{"function": {"name": name, "arguments": {"n": 1}}} for name in "ab"]
    uses = form().whole(FinishedAnswer("", without_ids, None, "", "", USAGE))["content"]
    assert [(block["name"], block["input"]) for block in uses if block["type"] == "tool_use"] == [
        ("a", {"n": 1}),
        ("b", {"n": 1}),
    ]
    assert form().whole(FinishedAnswer("", None, "stop", "", "", USAGE))["content"] == []


def test_thinking_only_as_the_client_wants_it() -> None:
    answer = FinishedAnswer("Hi", None, "stop", "Hm.", "", USAGE)
    unwanted, omitted = form(thinking=False), form(omitted=True)
    assert [block["type"] for block in unwanted.whole(answer)["content"]] == ["text"]
    assert summary(streamed(("thinking", "Hm."), "Hi", form=unwanted)) == [("text",), ("+", "Hi"), "."]
    block = omitted.whole(answer)["content"][0]
    shown = form().whole(answer)["content"][0]
    assert block["type"] == shown["type"] == "thinking" and block["thinking"] == ""
    assert block["signature"] == shown["signature"]
    assert summary(streamed(("thinking", "Hm."), "Hi", form=omitted))[:3] == [
        ("thinking",),
        ("+", block["signature"]),
        ".",
    ]


def test_usage() -> None:
    assert message_usage({"prompt_tokens": 10, "completion_tokens": 2})["input_tokens"] == 10
    odd: Any = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 12}}
    assert (message_usage(odd)["input_tokens"], message_usage(odd)["cache_read_input_tokens"]) == (0, 12)


def test_error() -> None:
    """It ends the stream: no message_delta, no message_stop."""
    stream = MessagesStream(form(), lambda: 42)
    stream.text("Once")
    (event,) = events(b"".join(stream.error(PublicError(502, "It broke."))))
    assert event["type"] == "error" and event["error"] == {"type": "api_error", "message": "It broke."}
    assert event["request_id"] == "req_1"


WORDS = st.text(max_size=8)
PIECES = st.one_of(
    st.tuples(st.just("text"), WORDS),
    st.tuples(st.just("thinking"), WORDS),
    st.tuples(st.integers(0, 2), st.text('{}":1a ', max_size=4)),
)


@examples(200)
@given(st.lists(PIECES, max_size=20))
def test_a_stream_adds_up_to_the_content_of_its_events(pieces: list[Any]) -> None:
    """For any order of pieces, nothing is lost, and one block is open at a time."""
    wanted = form()
    begun: set[int] = set()
    steps: list[Any] = []
    for kind, piece in pieces:
        if kind == "text":
            steps += [piece] if piece else []
        elif kind == "thinking":
            steps.append((kind, piece))
        else:
            steps.append([fragment(kind, piece) if kind in begun else begin(kind, "f", piece)])
            begun.add(kind)
    data = streamed(*steps, form=wanted)
    text = "".join(entry[1] for entry, kind in _kinds(summary(data)) if kind == "text")
    assert text == "".join(piece for kind, piece in pieces if kind == "text").encode("utf-8", "replace").decode()
    assert {event["type"] for event in events(data)} <= {
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    }


def _kinds(entries: list[Any]) -> list[Any]:
    """The deltas of a summary with the types of their blocks."""
    kind, out = "", []
    for entry in entries:
        if entry != "." and entry[0] != "+":
            kind = entry[0]
        elif entry != ".":
            out.append((entry, kind))
    return out


def test_a_call_is_not_read_again_for_each_fragment_of_another() -> None:
    """A long first call whose end is late must not make the time of the stream grow with its square."""
    blocks = Blocks(form())
    list(blocks.calls([begin(0, "a", '{"x": "' + "y" * 100_000 + '"')]))
    for _ in range(2000):
        assert list(blocks.calls([fragment(1, "}", name="b")])) == []
    assert len(list(blocks.calls([fragment(0, "}")]))) > 1
