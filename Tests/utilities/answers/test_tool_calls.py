"""Fragments of streamed tool calls."""

from __future__ import annotations

import copy
import time
from typing import Any

from Middleware.utilities.answers.tool_calls import ToolCallAssembler, ToolCallNumbers, ToolCallReader, with_unique_ids
from Tests.tables import table


def assembled(*fragments: Any) -> list[tuple[str, str, Any]]:
    assembler = ToolCallAssembler()
    for fragment in fragments:
        assembler.add([fragment])
    calls = assembler.calls()
    assert all(call["type"] == "function" for call in calls)
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def part(arguments: Any = None, name: Any = None, index: Any = 0, call_id: Any = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"index": index, "id": call_id, "function": function}


def whole(call_id: str, index: Any = None) -> dict[str, Any]:
    return part("{}", "f", index, call_id)


@table(
    ("fragments", "calls"),
    [
        ((), []),
        ((part('{"a":', "f", 0, "c1"), part("1}")), [("c1", "f", '{"a":1}')]),
        ((part("x", "first"), part("y", "second"), part("z", "")), [("", "first", "xyz")]),
        # In the order of appearance.
        ((part("2", "g", 1), part("1", "f", 0)), [("", "g", "2"), ("", "f", "1")]),
        (({"function": {"name": "f", "arguments": "a"}}, part("b")), [("", "f", "ab")]),
        ((part("a", "f", "odd"), part("b")), [("", "f", "ab")]),
        ((part("old", "f"), part({"a": 1})), [("", "f", {"a": 1})]),
        ((part({"a": 1}, "f"), part("new")), [("", "f", "new")]),
        ((part(None, "f"),), [("", "f", "")]),
        (("junk", None, 5, {"index": 0}, {"index": 0, "function": "x"}), [("", "", "")]),
        ((part("", 5, 0, 6),), [("", "", "")]),
        ((whole("c1"), whole("c2"), whole("c3")), [("c1", "f", "{}"), ("c2", "f", "{}"), ("c3", "f", "{}")]),
        (
            (part("a", "f", None, "c1"), part("b", index=None), part("c", "g", None, "c2"), part("d", index=None)),
            [("c1", "f", "ab"), ("c2", "g", "cd")],
        ),
        (
            (
                part("a", "f", None, "c1"),
                part("x", "g", None, "c2"),
                part("b", index=None, call_id="c1"),
                part("c", index=None),
            ),
            [("c1", "f", "abc"), ("c2", "g", "x")],
        ),
        (
            (part("a", "f", "0", "c1"), part("x", "g", "1", "c2"), part("b", index="0"), part("y", index="1")),
            [("c1", "f", "ab"), ("c2", "g", "xy")],
        ),
        ((whole("c1", True), whole("c2", False)), [("c1", "f", "{}"), ("c2", "f", "{}")]),
        (
            (whole("c1", 0.0), whole("c2", "²"), whole("c3", "9" * 5000)),
            [("c1", "f", "{}"), ("c2", "f", "{}"), ("c3", "f", "{}")],
        ),
        ((part("{}", "f", 4, "c1"), whole("c2")), [("c1", "f", "{}"), ("c2", "f", "{}")]),
        # Some servers send another id with each fragment.
        ((part('{"a', "f", 0, "c1"), part('":1}', index=0, call_id="c2")), [("c1", "f", '{"a":1}')]),
        (
            (part("", "f", 0, "c1"), part("{", "f", 0, "c2"), part("}", "f", 0, "c3")),
            [("c1", "f", ""), ("c2", "f", "{}")],
        ),
        # Two calls under one index, each in fragments.
        (
            (part('{"a":', "f", 0, "c1"), part("1}"), part('{"b":', "f", 0, "c2"), part("2}")),
            [("c1", "f", '{"a":1}'), ("c2", "f", '{"b":2}')],
        ),
        # A name that differs begins a call once the arguments before it are whole.
        ((part('{"a": "}"', "f"), part("}"), part("{}", "g")), [("", "f", '{"a": "}"}'), ("", "g", "{}")]),
        # An id that comes late; one that comes twice, under two indices.
        ((part(None, "f"), part("{}", None, 0, "c1")), [("c1", "f", "{}")]),
        ((part("{", "f", 0, "c1"), part("}", None, 1, "c1")), [("c1", "f", "{}")]),
    ],
)
def test_assembly(fragments: tuple[Any, ...], calls: list[tuple[str, str, Any]]) -> None:
    assert assembled(*fragments) == calls


def test_objects_are_copied() -> None:
    arguments = {"a": 1}
    assembler = ToolCallAssembler()
    assembler.add([part(arguments, "f")])
    assembler.calls()[0]["function"]["arguments"]["b"] = 2
    assert arguments == {"a": 1}


def test_thousands_of_calls_without_a_number_are_told_apart_in_no_time() -> None:
    started = time.process_time()
    numbers = ToolCallNumbers()
    function = {"name": "f", "arguments": "{}"}
    found = [numbers.number({"id": str(number // 2), "function": function}) for number in range(20_000)]
    assert found == [number // 2 for number in range(20_000)]
    assert numbers.number({"id": "7"}) == 7
    assert time.process_time() - started < 0.5  # 3 s if each looks at all ids


def test_long_arguments_in_many_fragments_take_no_time() -> None:
    def seconds(count: int) -> float:
        started = time.process_time()
        assembler = ToolCallAssembler()
        for _ in range(count):
            assembler.add(({"index": 0, "function": {"arguments": "a file "}},))
        assert len(assembler.calls()[0]["function"]["arguments"]) == count * 7
        return time.process_time() - started

    # Ten times as many: a hundred times as long, if each were added to one long text.
    assert seconds(150_000) < 40 * min(seconds(15_000) for _ in range(3))


# -- one form ----------------------------------------------------------------------------------------------------------


def in_one_form(*events: list[Any]) -> tuple[list[list[dict[str, Any]]], list[tuple[str, str, Any]]]:
    """The fragments of each event and of the end, and the calls that clients put together from them."""
    reader = ToolCallReader()
    passed: list[list[Any]] = [reader.read(event) for event in events]
    passed.append(reader.finish())
    calls: dict[int, list[str]] = {}
    for fragment in (fragment for event in passed for fragment in event):
        if fragment["index"] not in calls:
            assert fragment["index"] == len(calls) and fragment["id"] and fragment["type"] == "function"
            calls[fragment["index"]] = [fragment["id"], fragment["function"]["name"], ""]
        else:
            assert "id" not in fragment and "type" not in fragment and "name" not in fragment["function"]
        calls[fragment["index"]][2] += fragment["function"]["arguments"]
    return passed, [(call_id[:5], name, arguments) for call_id, name, arguments in calls.values()]


@table(
    ("events", "calls"),
    [
        ([[part("", "f", 0, "c1")], [part('{"a"')], [part(":1}")]], [("c1", "f", '{"a":1}')]),
        ([[whole("c1", 0), whole("c2", 0)]], [("c1", "f", "{}"), ("c2", "f", "{}")]),
        ([[whole("c1")], [whole("c2")]], [("c1", "f", "{}"), ("c2", "f", "{}")]),
        ([[whole("c1", "1")], [whole("c2", "2")]], [("c1", "f", "{}"), ("c2", "f", "{}")]),
        ([[part("{", "f", 0, "c1")], [part("}", None, 0, "c2")]], [("c1", "f", "{}")]),
        ([[part("{", "f", 0, "c1")], [part("}", "f", 0, "c1")]], [("c1", "f", "{}")]),
        # Two calls of one tool without any ids: nothing but another call can follow whole arguments.
        (
            [[part('{"a":1}', "f", None)], [part('{"a":2}', "f", None)]],
            [("call_", "f", '{"a":1}'), ("call_", "f", '{"a":2}')],
        ),
        ([[part("{}", "f"), part("{}", "f")]], [("call_", "f", "{}"), ("call_", "f", "{}")]),
        ([[part({}, "f", None), part({}, "f", None)]], [("call_", "f", "{}"), ("call_", "f", "{}")]),
        ([[part("{}", "f")], [part("\n", "f")], [part("", "f")]], [("call_", "f", "{}\n")]),
        # One id for all calls.
        ([[whole("c1", 0), whole("c1", 1)]], [("c1", "f", "{}"), ("c1", "f", "{}")]),
        ([[whole("c1", 0)], [part("{", "g", 1, "c1")], [part("}", None, 1)]], [("c1", "f", "{}"), ("c1", "g", "{}")]),
        (
            [[part("{}", "f", None, "c1"), part("{", "g", None, "c1")], [part("}", None, None, "c1")]],
            [("c1", "f", "{}"), ("c1", "g", "{}")],
        ),
        ([[whole("c1", 0)], [part("{}", "g", 0, "c1")]], [("c1", "f", "{}"), ("c1", "g", "{}")]),
        ([[part("{", "f", 0, "c1")], [part("}", "f", 1, "c1")]], [("c1", "f", "{}")]),
        ([[whole("c1", 0)], [part("", "f", 1, "c1")], [part("[]", None, 1)]], [("c1", "f", "{}"), ("c1", "f", "[]")]),
        # Empty arguments that stand for those that follow.
        ([[part("{}", "f", 0, "c1")], [part('{"a"')], [part(":1}")]], [("c1", "f", '{"a":1}')]),
        ([[part("", "f", 0, "c1")], [part(" {}\n")], [part('{"a":1}')]], [("c1", "f", '{"a":1}')]),
        ([[part({}, "f", None, "c1"), part({"a": 1}, None, None, "c1")]], [("c1", "f", '{"a": 1}')]),
        ([[part("{}", "f")], [part("{}")], [part('{"a":1}')]], [("call_", "f", '{"a":1}')]),
        ([[part("{}", "f", 0, "c1")], [part("", "")], [part(" ")]], [("c1", "f", "{} ")]),
        (
            [[part("{}", "f", 0, "c1")], [part("{", "g", 1, "c2")], [part("}", None, 1)]],
            [("c1", "f", "{}"), ("c2", "g", "{}")],
        ),
        # A name that comes late, or never.
        ([[part("", None, 0, "c1")], [part("{}", "f")]], [("c1", "f", "{}")]),
        ([[part(None, "", 0, "c1")], [part(None, "f")]], [("c1", "f", "{}")]),
        ([[part(None, None, 0, "c1")], [part("{}", "g", 1, "c2")]], [("c1", "", "{}"), ("c2", "g", "{}")]),
        ([[part(None, None, 0, "c1")]], [("c1", "", "{}")]),
        ([[part({"a": 1}, "f", 0, "c1")]], [("c1", "f", '{"a": 1}')]),
        ([[part(None, "f", 0, "c1")], [part(None, "g", 1, "c2")]], [("c1", "f", "{}"), ("c2", "g", "{}")]),
        ([[part(None, "f", 0)], [part("{}", None, 0, "c1")]], [("c1", "f", "{}")]),
        ([[part(None, "f", 0)], [part("{}", None, 0)]], [("call_", "f", "{}")]),
        ([[part(None, "f", 0)], [part("{}", "g", 1)]], [("call_", "f", "{}"), ("call_", "g", "{}")]),
        ([[part(None, "f", 0)]], [("call_", "f", "{}")]),
        ([[part(None, "f", 0)], [part("", None, 0)], [part("", "", 0)]], [("call_", "f", "{}")]),
        ([[part("{}", "f", None)], [part("{}", "g", None)]], [("call_", "f", "{}"), ("call_", "g", "{}")]),
        (
            [[part("{", "f", 0, "c1"), part("{", "g", 1, "c2")], [part("}"), part("}", None, 1)]],
            [("c1", "f", "{}"), ("c2", "g", "{}")],
        ),
        ([[part("{", "f", 0, "c1")], [part("}", None, 1, "c1")]], [("c1", "f", "{}")]),
    ],
)
def test_clients_get_one_form(events: list[list[Any]], calls: list[tuple[str, str, str]]) -> None:
    assert in_one_form(*events)[1] == calls


def test_interleaved_fragments_stay_so_and_other_members_stay() -> None:
    first, second = part("{", "f", 0, "c1"), part("{", "g", 1, "c2")
    passed, _ = in_one_form([{**first, "extra_content": {"x": 1}}], [second], [part("}")], [part("}", None, 1)])
    assert [[fragment["index"] for fragment in event] for event in passed] == [[0], [1], [0], [1], []]
    assert passed[0][0]["extra_content"] == {"x": 1}


def test_members_of_a_fragment_that_waits_stay() -> None:
    waiting = {**part("{}", "f", 0, "c1"), "extra_content": {"x": 1}}
    waiting["function"]["thought"] = "t"
    passed, calls = in_one_form([waiting], [part('{"a":1}')])
    assert calls == [("c1", "f", '{"a":1}')]
    assert passed[1][0]["extra_content"] == {"x": 1} and passed[1][0]["function"]["thought"] == "t"


def calling(*ids: Any) -> Any:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": id, "function": {"name": "f"}} for id in ids]}


def result(id: str) -> Any:
    return {"role": "tool", "content": "x", "tool_call_id": id}


@table(
    ("messages", "expected"),
    [
        ([calling("a"), result("a"), calling("b"), result("b")], ["a", "a", "b", "b"]),
        (
            [calling("call_0"), result("call_0")] * 3,
            ["call_0", "call_0", "call_0_2", "call_0_2", "call_0_3", "call_0_3"],
        ),
        ([calling("a", "a"), result("a"), result("a")], ["a", "a_2", "a", "a_2"]),
        ([calling("a"), result("a"), calling("b", "a"), result("a"), result("b")], ["a", "a", "b", "a_2", "a_2", "b"]),
        ([calling("a_2"), calling("a"), calling("a"), result("a")], ["a_2", "a", "a_3", "a_3"]),
        ([calling("a"), calling("a"), result("a"), result("a")], ["a", "a_2", "a_2", "a_2"]),
        ([calling(None), calling(None), calling("", "")], [None, None, "", ""]),
        ([calling("a"), calling("a"), result("z")], ["a", "a_2", "z"]),
        ([calling({"a": 1}), calling(["a"], "b"), calling("b")], [{"a": 1}, ["a"], "b", "b_2"]),
    ],
)
def test_no_two_calls_of_a_conversation_have_one_id(messages: list[Any], expected: list[Any]) -> None:
    before = copy.deepcopy(messages)
    found: list[Any] = []
    for message in with_unique_ids(messages):
        found += [call["id"] for call in message.get("tool_calls", [])] or [message["tool_call_id"]]
    assert found == expected and messages == before
