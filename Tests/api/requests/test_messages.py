"""Chat bodies to internal messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.requests.messages import chat_messages, with_user_options
from Middleware.exceptions import ClientError
from Tests.llmapis.lab import Lab
from Tests.tables import table

PREFIXES = {"chatCompleteAddUserAssistant": True}
GENERATOR = {"chatCompletionAddMissingAssistantGenerator": True}
CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def source(**fields: Any) -> dict[str, Any]:
    return {"type": "image", "source": fields}


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value}


@table(
    ("content", "expected", "images"),
    [
        ("plain", "plain", None),
        ("", "", None),
        (None, "", None),
        (5, "5", None),
        (1.5, "1.5", None),
        (True, "True", None),
        ([], "", None),
        ([text("a"), image({"url": "http://h/x.png"}), text("b")], "a\nb", ["http://h/x.png"]),
        (
            [image({"url": "data:image/png;base64,QUJD"}), image("http://h/y")],
            "",
            ["data:image/png;base64,QUJD", "http://h/y"],
        ),
        ([source(type="base64", data="QUJD")], "", ["data:image/png;base64,QUJD"]),
        ([source(type="base64", media_type="image/webp", data="QUJD")], "", ["data:image/webp;base64,QUJD"]),
        ([source(type="url", url="http://h/z")], "", ["http://h/z"]),
        (["plain", text("b")], "plain\nb", None),
        ([text(None), text(5)], "\n5", None),
    ],
)
def test_content(content: Any, expected: str, images: list[str] | None) -> None:
    (message,) = chat_messages([{"role": "user", "content": content}])
    assert message == {"role": "user", "content": expected, **({"images": images} if images else {})}


@pytest.mark.parametrize(
    ("raw", "accepted"),
    [
        ({"role": "assistant"}, True),
        ({"role": "tool", "tool_name": "f"}, True),
        ({"role": "user", "images": ["Zm9v"]}, True),
        ({"role": "user"}, False),
        ({"role": "system"}, False),
    ],
)
def test_empty_texts_may_be_left_out_where_the_dialect_does_that(raw: dict[str, Any], accepted: bool) -> None:
    with pytest.raises(ClientError, match="must have 'content' or 'tool_calls'"):
        chat_messages([raw])
    if accepted:
        assert chat_messages([raw], empty_texts_left_out=True)[0]["content"] == ""
    else:
        with pytest.raises(ClientError):
            chat_messages([raw], empty_texts_left_out=True)


def test_results_that_name_their_call_give_it_their_id() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    messages = chat_messages(
        [
            {"role": "assistant", "tool_calls": [call, call]},
            {"role": "tool", "content": "1", "tool_call_id": "a"},
            {"role": "tool", "content": "2"},
        ]
    )
    ids = [entry["id"] for entry in messages[0]["tool_calls"]]
    assert ids[0] == messages[1]["tool_call_id"] == "a"
    assert ids[1] == messages[2]["tool_call_id"] != "a"


def test_prefix_goes_before_the_joined_text(lab: Lab) -> None:
    lab.user(**PREFIXES)
    assert chat_messages([{"role": "user", "content": [text("a"), image("http://h/x.png"), text("b")]}]) == [
        {"role": "user", "content": "User: a\nb", "images": ["http://h/x.png"]}
    ]


def test_prefixes_by_role(lab: Lab) -> None:
    lab.user(**PREFIXES)
    messages = chat_messages(
        [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "tool", "systemMes")]
        + [{"role": "user", "content": ""}]
    )
    assert [message["content"] for message in messages] == ["x", "User: x", "Assistant: x", "x", "x", "User: "]


@pytest.mark.parametrize("images", [[], None, "", {}])
def test_images_may_be_none(images: Any) -> None:
    assert chat_messages([{"role": "user", "content": "x", "images": images}]) == [{"role": "user", "content": "x"}]


def test_part_images_come_before_the_images_key() -> None:
    (message,) = chat_messages([{"role": "user", "content": [image("http://h/1")], "images": ["Zm9v", "", None]}])
    assert message["images"] == ["http://h/1", "Zm9v"]


@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_tool_call_turn(content: dict[str, Any]) -> None:
    assert chat_messages([{"role": "assistant", **content, "tool_calls": CALLS}]) == [
        {"role": "assistant", "content": "", "tool_calls": CALLS}
    ]


def test_tool_keys_are_kept_and_others_dropped() -> None:
    assert chat_messages(
        [
            {
                "role": "tool",
                "content": "r",
                "tool_call_id": "c1",
                "name": "f",
                "refusal": None,
                "tool_calls": None,
                "cache_control": {},
            }
        ]
    ) == [{"role": "tool", "content": "r", "tool_call_id": "c1", "name": "f"}]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        ({"role": "systemMes", "content": "x"}, {"role": "systemMes", "content": "x"}),
        ({"role": "tool", "tool_name": "f", "content": "x"}, {"role": "tool", "content": "x", "name": "f"}),
        (
            {"role": "tool", "tool_name": "f", "name": "g", "content": "x"},
            {"role": "tool", "content": "x", "name": "g"},
        ),
        ({"role": "tool", "tool_name": 5, "content": "x"}, {"role": "tool", "content": "x"}),
        (
            {"role": "assistant", "content": "x", "thinking": "t", "reasoning_content": "t"},
            {
                "role": "assistant",
                "content": "x",
                "extra": [
                    {"origin": None, "member": "thinking", "value": "t", "at": "message"},
                    {"origin": None, "member": "reasoning_content", "value": "t", "at": "message"},
                ],
            },
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "output_text", "text": "b"},
                    {"type": "input_image", "image_url": "http://h/x"},
                ],
            },
            {"role": "user", "content": "a\nb", "images": ["http://h/x"]},
        ),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": {"url": "http://h/x"}}]},
            {"role": "user", "content": "", "images": ["http://h/x"]},
        ),
    ],
)
def test_words_of_other_dialects(raw: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat_messages([raw]) == [expected]


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": "f", "arguments": arguments}}


def test_ollama_calls_become_openai_calls() -> None:
    messages = chat_messages(
        [
            {"role": "assistant", "tool_calls": [call({"a": "ü"}), call({}), call("{}", id="c9", type="function")]},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": "two"},
            {"role": "tool", "content": "three"},
        ]
    )
    calls = messages[0]["tool_calls"]
    assert [(entry["type"], entry["function"]["arguments"]) for entry in calls] == [
        ("function", '{"a": "ü"}'),
        ("function", "{}"),
        ("function", "{}"),
    ]
    assert len({entry["id"] for entry in calls}) == 3 and calls[2]["id"] == "c9"
    assert [message.get("tool_call_id") for message in messages[1:]] == [calls[0]["id"], calls[1]["id"], "c9"]


F, G = ("f", "F1"), ("g", "G1")


@table(
    ("calls", "results", "expected"),
    [
        # By id: in any order, and with the name of another tool.
        ([F, G], [{"tool_call_id": "G1"}, {"tool_call_id": "F1"}], ["G1", "F1"]),
        ([F, G], [{"tool_call_id": "G1", "tool_name": "f"}, {"tool_call_id": "F1", "tool_name": "g"}], ["G1", "F1"]),
        # By name, in Ollama's word or OpenAI's.
        ([F, G], [{"tool_name": "g"}, {"tool_name": "f"}], ["G1", "F1"]),
        ([F, G], [{"name": "g"}, {"name": "f"}], ["G1", "F1"]),
        ([F, ("f", "F2")], [{"tool_name": "f"}, {"tool_name": "f"}], ["F1", "F2"]),
        # By order.
        ([F, G], [{}, {}], ["F1", "G1"]),
        ([F, G], [{"tool_name": "unknown"}, {"tool_name": ""}], ["F1", "G1"]),
        ([F, G], [{"tool_call_id": ""}, {"tool_call_id": None}], ["F1", "G1"]),
        # In several ways: a result with an id keeps its call for itself, also if it comes last.
        ([F, G], [{"tool_call_id": "F1"}, {}], ["F1", "G1"]),
        ([F, G], [{}, {"tool_call_id": "F1"}], ["G1", "F1"]),
        ([F, G], [{"tool_name": "f"}, {"tool_call_id": "F1"}], ["G1", "F1"]),
        # More results than calls, fewer, and none that fits: nothing is made up.
        ([F], [{}, {}], ["F1", None]),
        ([F, G], [{}], ["F1"]),
        ([F, G], [{"tool_call_id": "other"}], ["other"]),
        # Calls without an id take one that comes with the result.
        ([("f", None), ("g", "")], [{"tool_call_id": "r2", "tool_name": "g"}, {"tool_call_id": "r1"}], ["r2", "r1"]),
    ],
)
def test_results_belong_to_calls(
    calls: list[tuple[str, str | None]], results: list[dict[str, Any]], expected: list[str | None]
) -> None:
    asked = [{"id": call_id, "function": {"name": name, "arguments": {}}} for name, call_id in calls]
    turn = {"role": "assistant", "content": "", "tool_calls": asked}
    sent = [turn, *[{"role": "tool", "content": "x", **result} for result in results], {"role": "user", "content": "?"}]
    messages = chat_messages([*sent, *sent])
    for round_ in (messages[: len(sent)], messages[len(sent) :]):
        assert [message.get("tool_call_id") for message in round_[1:-1]] == expected
        ids = [call["id"] for call in round_[0]["tool_calls"]]
        assert all(ids) and len(set(ids)) == len(ids)
        assert ids == [own for _, own in calls] or set(ids) == set(expected)


def test_ids_of_several_rounds_differ() -> None:
    turn = {"role": "assistant", "tool_calls": [call({})]}
    messages = chat_messages([turn, {"role": "tool", "content": "1"}, turn, {"role": "tool", "content": "2"}])
    ids = [message["tool_calls"][0]["id"] for message in messages[::2]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in messages[1::2]] == ids


@pytest.mark.parametrize(
    "calls",
    [
        "x",
        {},
        [None, "x", {}, {"function": 5}],
        [],
        [{"id": ["a"], "function": {"name": "f"}}, {"id": {"a": 1}, "function": {}}],
    ],
)
def test_odd_calls_pass(calls: Any) -> None:
    assert chat_messages([{"role": "assistant", "tool_calls": calls}]) == [
        {"role": "assistant", "content": "", "tool_calls": calls}
    ]


@pytest.mark.parametrize(
    ("settings", "last", "appended"),
    [
        ({**PREFIXES, **GENERATOR}, "user", "Assistant:"),
        (GENERATOR, "user", ""),
        (GENERATOR, "system", ""),
        (GENERATOR, "assistant", None),
        (PREFIXES, "user", None),
        ({}, "user", None),
        ({"chatCompletionAddMissingAssistantGenerator": "true"}, "user", ""),
        ({"chatCompletionAddMissingAssistantGenerator": "false"}, "user", None),
    ],
)
def test_generator(lab: Lab, settings: dict[str, Any], last: str, appended: str | None) -> None:
    lab.user(**settings)
    messages = chat_messages([{"role": last, "content": "x"}])
    assert messages[1:] == ([] if appended is None else [{"role": "assistant", "content": appended}])


def test_no_generator_on_an_empty_list(lab: Lab) -> None:
    lab.user(**PREFIXES, **GENERATOR)
    assert chat_messages([]) == []


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "list of objects"),
        ("x", "list of objects"),
        ({"role": "user"}, "list of objects"),
        ([["x"]], "list of objects"),
        ([{"role": "user", "content": "x"}, "y"], "list of objects"),
        ([{"content": "x"}], "'role'"),
        ([{"role": "", "content": "x"}], "'role'"),
        ([{"role": 5, "content": "x"}], "'role'"),
        ([{"role": "user"}], "'content' or 'tool_calls'"),
        ([{"role": "user", "content": {"text": "x"}}], r"messages\[0\].content: expected a text"),
    ],
)
def test_bad_messages(raw: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        chat_messages(raw)


def test_input_is_not_changed(lab: Lab) -> None:
    lab.user(**PREFIXES, **GENERATOR)
    raw = [{"role": "user", "content": [text("a"), image("http://h/x")], "images": ["Zm9v"]}]
    before = repr(raw)
    chat_messages(raw)
    assert repr(raw) == before


def native(name: str, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {}}, **more}


@pytest.mark.parametrize(
    ("calls", "results", "links"),
    [
        ([native("f"), native("g")], [{"tool_name": "g"}, {"tool_name": "f"}], ["call_0_1", "call_0_0"]),
        ([native("f"), native("f")], [{"tool_name": "f"}, {"tool_name": "f"}], ["call_0_0", "call_0_1"]),
        ([native("f"), native("g")], [{"tool_name": "other"}, {"tool_name": "g"}], ["call_0_0", "call_0_1"]),
        ([native("f"), native("g")], [{"name": "g"}, {}], ["call_0_1", "call_0_0"]),
        ([native("f", id="x"), native("g")], [{"tool_call_id": "x"}, {}], ["x", "call_0_1"]),
        ([native("f", id="x"), native("g")], [{"tool_call_id": "y"}, {"tool_call_id": "x"}], ["y", "x"]),
        ([native("f"), native("g")], [{"tool_call_id": ""}, {"tool_call_id": None}], ["call_0_0", "call_0_1"]),
        ([native("f", id=""), native("g", id=None)], [{}, {"tool_call_id": ""}], ["call_0_0", "call_0_1"]),
        ([native("f"), native("g")], [{"tool_call_id": ["odd"]}, {"name": {}}], [["odd"], "call_0_1"]),
    ],
)
def test_results_find_their_calls_by_id_and_name(calls: list[Any], results: list[Any], links: list[Any]) -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = chat_messages([asked, *({"role": "tool", "content": "r", **result} for result in results)])
    assert [message["tool_call_id"] for message in messages[1:]] == links
    ids = [call["id"] for call in messages[0]["tool_calls"]]
    assert all(link in ids for link in links) and len(ids) == 2


def test_thousands_of_tool_results_are_linked_in_no_time() -> None:
    started = time.process_time()
    calls = [{"id": "own", "function": {"name": "f"}}, *({"function": {"name": "f"}} for _ in range(20_000))]
    results = [{"role": "tool", "name": "g" if number else "f", "content": ""} for number in range(20_000)]
    messages = chat_messages([{"role": "assistant", "tool_calls": calls}, *results])
    assert [message["tool_call_id"] for message in messages[1:]] == [f"call_0_{number}" for number in range(1, 20_001)]
    assert time.process_time() - started < 5  # some 15 s if each looks at all calls


@table("options", [{}, PREFIXES, GENERATOR, {**PREFIXES, **GENERATOR}])
def test_the_options_of_the_user_are_the_same_for_messages_of_other_dialects(lab: Lab, options: Any) -> None:
    lab.user(**options)
    for conversation in (
        [],
        [{"role": "user", "content": "hi"}],
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "a", "tool_calls": CALLS},
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
        ],
    ):
        given = [dict(message) for message in conversation]
        assert with_user_options(given) == chat_messages(conversation)
        assert given == conversation
