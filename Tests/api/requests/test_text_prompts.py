"""Prompts of the text routes to internal messages."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.api.requests.messages import completion_messages, generate_messages, parse_tagged_prompt
from Middleware.exceptions import ClientError


def pairs(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    assert all(message.keys() == {"role", "content"} for message in messages)
    return [(message["role"], message["content"]) for message in messages]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[Beg_Sys]Be brief.[Beg_User]Ann: hi[Beg_Assistant]Mira:",
            [("system", "Be brief."), ("user", "Ann: hi"), ("assistant", "Mira:")],
        ),
        ("[Beg_Sys]A[Beg_Sys]B[Beg_User] c ", [("system", "A"), ("systemMes", "B"), ("user", "c")]),
        ("[Beg_User]x[Beg_Note]y[Beg_Assistant]z", [("user", "x"), ("assistant", "z")]),
        ("[Beg_SysMes]a[Beg_Sys]b", [("systemMes", "a"), ("system", "b")]),
        ("before[Beg_User]\n a\nb \n", [("user", "a\nb")]),
        ("[Beg_User]x[Beg_Assistant]", [("user", "x"), ("assistant", "")]),
        ("[Beg_User][Beg_User]", [("user", ""), ("user", "")]),
        ("[Beg_Note]x", []),
        ("[beg_User]x", []),
        ("[Beg_user]x", []),
        ("[Beg_]x", []),
        ("[Beg_User x", []),
        ("", []),
        ("plain", []),
        ("[Beg_User]a [Beg_ b [Beg_] c", [("user", "a [Beg_ b [Beg_] c")]),
    ],
)
def test_tags(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(parse_tagged_prompt(text)) == expected


@given(
    st.lists(
        st.tuples(st.sampled_from(["User", "Assistant", "SysMes"]), st.text().filter(lambda text: "[Beg_" not in text))
    )
)
def test_any_conversation_survives(turns: list[tuple[str, str]]) -> None:
    roles = {"User": "user", "Assistant": "assistant", "SysMes": "systemMes"}
    text = "".join(f"[Beg_{word}]{said}" for word, said in turns)
    assert pairs(parse_tagged_prompt(text)) == [(roles[word], said.strip()) for word, said in turns]


@pytest.mark.parametrize("text", ["[Beg_" * 40_000, "[Beg_User]" + "x[" * 200_000, "[Beg_" + "a" * 200_000])
def test_long_prompts_take_no_long_time(text: str) -> None:
    started = time.thread_time()
    parse_tagged_prompt(text)
    assert time.thread_time() - started < 20


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (None, []),
        ("", []),
        ([""], []),
        ("plain text", [("user", "plain text")]),
        (["one"], [("user", "one")]),
        (" spaces kept ", [("user", " spaces kept ")]),
        ("[Beg_User]x", [("user", "x")]),
        (["[Beg_User]x"], [("user", "x")]),
        ("[Beg_Note]x", [("user", "[Beg_Note]x")]),
    ],
)
def test_completion_prompts(prompt: Any, expected: list[tuple[str, str]]) -> None:
    assert pairs(completion_messages(prompt)) == expected


@pytest.mark.parametrize("prompt", [[], ["a", "b"], [5], [[1]], [None, None], 5, {}, True])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(ClientError, match="'prompt'"):
        completion_messages(prompt)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"prompt": "", "system": ""}, []),
        ({"prompt": None, "system": None}, []),
        ({"prompt": "p"}, [("user", "p")]),
        ({"system": "s"}, [("user", "s")]),
        ({"system": "s", "prompt": "p"}, [("user", "sp")]),
        ({"system": "s", "prompt": "[Beg_User]p"}, [("system", "s"), ("user", "p")]),
        ({"system": " \n", "prompt": "[Beg_User]p"}, [("user", "p")]),
        (
            {"system": "[Beg_Sys]s", "prompt": "[Beg_Sys]t[Beg_User]p"},
            [("system", "s"), ("systemMes", "t"), ("user", "p")],
        ),
        ({"system": "[Beg_User]s ", "prompt": "p"}, [("user", "s p")]),
        ({"system": "[Beg_", "prompt": "User]p"}, [("user", "p")]),
    ],
)
def test_generate(fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert pairs(generate_messages(fields)) == expected


@pytest.mark.parametrize(
    ("prompt", "images", "expected"),
    [
        ("p", ["Zm9v"], [{"role": "user", "content": "p", "images": ["Zm9v"]}]),
        ("", ["Zm9v"], [{"role": "user", "content": "", "images": ["Zm9v"]}]),
        ("p", [], [{"role": "user", "content": "p"}]),
        ("p", None, [{"role": "user", "content": "p"}]),
        ("p", "", [{"role": "user", "content": "p"}]),
        ("p", ["", None], [{"role": "user", "content": "p"}]),
        (
            "[Beg_User]a[Beg_User]b[Beg_Assistant]c",
            ["x", "y"],
            [
                {"role": "user", "content": "a"},
                {"role": "user", "content": "b", "images": ["x", "y"]},
                {"role": "assistant", "content": "c"},
            ],
        ),
        ("[Beg_Sys]s", ["x"], [{"role": "system", "content": "s"}, {"role": "user", "content": "", "images": ["x"]}]),
    ],
)
def test_images(prompt: str, images: Any, expected: list[dict[str, Any]]) -> None:
    assert generate_messages({"prompt": prompt, "images": images}) == expected


@pytest.mark.parametrize("key", ["prompt", "system"])
@pytest.mark.parametrize("value", [5, ["x"], {}])
def test_generate_takes_texts_only(key: str, value: Any) -> None:
    with pytest.raises(ClientError, match=f"'{key}'"):
        generate_messages({key: value})


def test_many_segments_take_time_in_proportion() -> None:
    began = time.thread_time()
    messages = parse_tagged_prompt("[Beg_User]a" * 20_000 + "[Beg_Sys]b" * 20_000)
    assert [message["role"] for message in messages[19_999:20_002]] == ["user", "system", "systemMes"]
    assert time.thread_time() - began < 20  # a search through all messages for each segment takes longer
