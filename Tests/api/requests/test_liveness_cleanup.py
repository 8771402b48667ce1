"""What the clean-up for users with a liveness call takes out of a conversation, and what it leaves alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from Middleware.api.requests.liveness_cleanup import LivenessCall, clean_up
from Middleware.api.requests.messages import chat_messages
from Tests.tables import table

SETTING = {"toolName": " ping ", "arguments": {"a": 1, "b": {"c": "ü", "d": []}}}
OURS = "wilmer_liveness_01234567"
USER = {"role": "user", "content": "go on"}


def call(name: str = "f", arguments: Any = "{}", call_id: str | None = "c1") -> dict[str, Any]:
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **made} if call_id else made


def turn(*calls: Any, content: Any = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content: Any = "ok", call_id: str | None = "c1", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({"tool_call_id": call_id} if call_id else {}), **more}


def said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def cleaned(*messages: Any, setting: Any = SETTING) -> list[Any]:
    liveness = LivenessCall.of(setting)
    assert liveness is not None
    before = copy.deepcopy(messages)
    after = clean_up(list(messages), liveness)
    assert messages == before, "the caller's messages were changed"
    return after


# -- the setting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [None, "ping", [], {}, {"toolName": " "}, {"toolName": 3}, {"arguments": {}}])
def test_a_setting_without_a_tool_name_is_none(setting: Any) -> None:
    assert LivenessCall.of(setting) is None


@pytest.mark.parametrize(
    "setting",
    [
        {"toolName": "f"},
        {"toolName": "f", "arguments": "x"},
        {"toolName": "f", "arguments": None},
        {"toolName": "f", "arguments": [1]},
    ],
)
def test_arguments_that_are_no_object_are_empty(setting: Any) -> None:
    assert cleaned(turn(call("f", "{}")), result(), USER, setting=setting) == [USER]


# -- which calls are machinery -----------------------------------------------------------------------------------------

PING = '{"b": {"d": [], "c": "ü"}, "a": 1}'


@pytest.mark.parametrize(
    "made",
    [
        call("any", '{"x": 1}', OURS),
        call("any", "", OURS),
        call("any", "text [Wilmer] text"),
        call("any", {"x": ["[Wilmer] waits"]}),
        call("ping", PING),
        call(" ping", json.loads(PING)),
        call("ping", json.dumps(json.loads(PING))),
    ],
)
def test_machinery_goes_with_its_result(made: Any) -> None:
    assert cleaned(USER, turn(made), result(call_id=made["id"]), USER) == [USER, USER]


@table(
    "made",
    [
        call("any"),
        call("ping", '{"a": 1}'),
        call("ping", "not JSON"),
        call("Ping", PING),
        call("ping", '{"a": 1.5}'),
        call("any", "{}", "call_wilmer_liveness_1"),
        call("any", "[Wilmer note: x]"),
        call("any", '["x"]'),
        call("ping", None),
        call("ping", ["[Wilmer]"]),
        "[Wilmer]",
        None,
        3,
        {},
        {"id": OURS},
        {"id": OURS, "function": "ping"},
        {"id": OURS, "function": {"arguments": "[Wilmer]"}},
        {"function": {"name": None, "arguments": "{}"}},
    ],
)
def test_other_calls_and_malformed_ones_are_genuine(made: Any) -> None:
    conversation = [USER, turn(made), result(), USER]
    assert cleaned(*conversation) == conversation


@pytest.mark.parametrize("arguments", [None, "", " ", "{}", {}])
def test_missing_arguments_are_an_empty_object(arguments: Any) -> None:
    without = {"id": "c1", "function": {"name": "f"}}
    for made in (call("f", arguments), without):
        assert cleaned(turn(made), result(), USER, setting={"toolName": "f"}) == [USER]


def test_calls_that_are_no_list_are_left_alone() -> None:
    conversation = [{"role": "assistant", "content": "", "tool_calls": {"id": OURS}}, result(), USER]
    assert cleaned(*conversation) == conversation


# -- what is left of a turn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", None, " \n", "Assistant:", " Assistant: "])
def test_an_empty_turn_goes(content: Any) -> None:
    assert cleaned(turn(call(call_id=OURS), content=content), USER) == [USER]


@pytest.mark.parametrize("content", ["done", "Assistant: done", "User:"])
def test_a_turn_with_text_stays_without_its_calls(content: str) -> None:
    assert cleaned(turn(call(call_id=OURS), content=content), result(call_id=OURS), USER) == [said(content), USER]


def test_an_empty_turn_with_an_image_stays() -> None:
    image = {**turn(call(call_id=OURS)), "images": ["aGk="]}
    assert cleaned(image, USER) == [{"role": "assistant", "content": "", "images": ["aGk="]}, USER]


def test_genuine_calls_stay_with_their_results() -> None:
    genuine = call("look", call_id="c2")
    mixed = turn(call(call_id=OURS), genuine)
    assert cleaned(mixed, result(call_id=OURS), result("seen", "c2"), USER) == [
        turn(genuine),
        result("seen", "c2"),
        USER,
    ]


def test_turns_without_machinery_stay_however_empty() -> None:
    conversation = [said(""), USER, said("Assistant:"), {"role": "assistant", "content": None}, USER, turn()]
    assert cleaned(*conversation) == conversation


# -- results -----------------------------------------------------------------------------------------------------------


def test_results_without_an_id_directly_after_machinery_go() -> None:
    two = turn(call(call_id=OURS), call("ping", PING))
    assert cleaned(two, result("a", None), result("b", None), result("c", None), USER) == [result("c", None), USER]


@pytest.mark.parametrize("between", [USER, said("x"), result("x", "other")])
def test_adjacency_ends(between: Any) -> None:
    two = turn(call(call_id=OURS), call("ping", PING, None))
    assert cleaned(two, between, result("a", None), USER) == [between, result("a", None), USER]


def test_results_without_an_id_after_a_mixed_turn_stay() -> None:
    genuine = call("look", call_id=None)
    assert cleaned(turn(call(call_id=OURS), genuine), result("a", None), USER) == [
        turn(genuine),
        result("a", None),
        USER,
    ]


def test_a_result_with_an_id_uses_up_its_place() -> None:
    two = turn(call(call_id=OURS), call("ping", PING, None))
    assert cleaned(two, result("a", OURS), result("b", None), result("c", None), USER) == [result("c", None), USER]


def test_a_result_with_a_known_id_goes_wherever_it_stands() -> None:
    assert cleaned(turn(call(call_id=OURS)), USER, result(call_id=OURS), USER) == [USER, USER]


def test_an_id_used_again_by_a_genuine_call_is_genuine() -> None:
    again = [turn(call("look", call_id="c1")), result("seen", "c1"), USER]
    assert cleaned(turn(call("ping", PING, "c1")), result(call_id="c1"), *again) == again


# -- the trailing exchange ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    [
        [turn(call(call_id=OURS)), result(call_id=OURS)],
        [turn(call(call_id=OURS))],
        [turn(call(call_id=OURS), call("look", call_id="c2"), content="x"), result(call_id=OURS), result("y", "c2")],
        [turn(call(call_id=OURS)), result("a", None), said("")],
        [turn(call(call_id=OURS)), result(), said("Assistant:")],
        [turn(call(call_id=OURS)), result(), said(""), {"role": "assistant", "content": None}, said(" Assistant: \n")],
    ],
)
def test_the_trailing_exchange_stays(tail: list[Any]) -> None:
    old = [turn(call(call_id=OURS)), result(call_id=OURS)]
    assert cleaned(USER, *old, *tail) == [USER, *tail]


@pytest.mark.parametrize("after", [[USER], [said("text")], [turn(call("look", call_id="c2")), result("y", "c2")]])
def test_an_exchange_before_something_else_is_not_the_last(after: list[Any]) -> None:
    assert cleaned(turn(call(call_id=OURS)), result(call_id=OURS), *after) == after


# -- repeats -----------------------------------------------------------------------------------------------------------


def exchanges(*pairs: tuple[Any, Any]) -> list[Any]:
    """Exchanges of (arguments, result)."""
    return [
        message
        for number, (arguments, content) in enumerate(pairs)
        for message in (turn(call("look", arguments, f"c{number}")), result(content, f"c{number}"))
    ]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("{}", "same")] * 3, "same"),
        ([("{}", "same")] * 7, "same"),
        (
            [
                ('{"a":1,"b":{"c":2,"d":3}}', "x  y\n"),
                ('{"b": {"d": 3, "c": 2}, "a": 1}', " x y"),
                ({"a": 1, "b": {"c": 2, "d": 3}}, "x\ty"),
            ],
            "x  y\n",
        ),
        ([("{}", None), ("", ""), ({}, " ")], ""),
        ([("oops", "s")] * 3, "s"),
    ],
)
def test_repeats_become_one(pairs: list[Any], text: str) -> None:
    first, *_ = run = exchanges(*pairs)
    after = cleaned(USER, *run, USER)
    assert [after[0], after[1], after[3]] == [USER, first, USER] and len(after) == 4
    kept, note = after[2]["content"].split("\n\n[Wilmer note:")
    assert (kept, after[2]["tool_call_id"]) == (text, "c0")
    assert f"{len(pairs)} consecutive times" in note and note.endswith("]")


@pytest.mark.parametrize(
    "pairs",
    [
        [("{}", "same")] * 2,
        [("{}", "a"), ("{}", "a"), ("{}", "b")],
        [("{}", "a"), ('{"x":1}', "a"), ("{}", "a")],
        [('{"x":1}', "a"), ('{"x":true}', "a"), ('{"x":1}', "a")],
        [("a", "s"), ("b", "s"), ("a", "s")],
        [([], "a")] * 3,
    ],
)
def test_what_differs_or_is_malformed_is_no_repeat(pairs: list[Any]) -> None:
    run = exchanges(*pairs)
    assert cleaned(*run, USER) == [*run, USER]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda run: run.insert(2, USER),
        lambda run: run.insert(6, result("x")),
        lambda run: run[2]["tool_calls"].append(call("other", call_id="c9")),
        lambda run: run[3].update(tool_call_id="c9"),
        lambda run: run[3].update(images=["aGk="]),
        lambda run: run[2]["tool_calls"][0]["function"].update(name="Look"),
    ],
)
def test_what_stands_between_ends_a_run(spoil: Any) -> None:
    run = exchanges(*[("{}", "same")] * 3)
    spoil(run)
    assert cleaned(*run, USER) == [*run, USER]


def test_two_runs_become_two_exchanges() -> None:
    after = cleaned(*exchanges(*[("{}", "a")] * 3, *[("{}", "b")] * 4))
    assert [message["role"] for message in after] == ["assistant", "tool"] * 2
    assert "3 consecutive times" in after[1]["content"] and "4 consecutive times" in after[3]["content"]


def test_machinery_between_repeats_does_not_hide_them() -> None:
    first, second, third = (exchanges(("{}", "same")) for _ in range(3))
    ours = [turn(call(call_id=OURS)), result(call_id=OURS)]
    after = cleaned(*first, *ours, *second, *ours, *third, USER)
    assert len(after) == 3 and "3 consecutive times" in after[1]["content"]


# -- as clients send it ------------------------------------------------------------------------------------------------


def test_calls_of_ollama_clients() -> None:
    """These have neither id nor type, and arguments as an object."""

    def native(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return turn({"function": {"name": name, "arguments": arguments}})

    tool = {"role": "tool", "content": "ok", "tool_name": "ping"}
    conversation = [USER, native("ping", json.loads(PING)), tool, native("look", {"q": 1}), tool, USER]
    after = cleaned(*chat_messages(conversation))
    assert [message["role"] for message in after] == ["user", "assistant", "tool", "user"]
    assert after[1]["tool_calls"][0]["function"]["name"] == "look"
