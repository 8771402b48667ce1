"""Payloads of text completion back-ends: one text, injection, sentinels, schema, images."""

from __future__ import annotations

from typing import Any

import pytest

from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.base_llm_api_handler import Chunk
from Middleware.llmapis.transport import Transport


class Plain(BaseCompletionsHandler):
    """A dialect that adds nothing."""

    def read_event(self, body: dict[str, Any], name: str | None) -> Chunk | None:
        return None

    def read_response(self, body: Any) -> str:
        return ""


def handler(endpoint: dict[str, Any] | None = None, **settings: Any) -> Plain:
    settings = {"model": "m", "api_type": {}, **settings}
    return Plain(BackendSettings("E", "http://h", endpoint=endpoint or {}, **settings), Transport())


def payload(prompt: Prompt, endpoint: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return handler(endpoint, **settings).payload(prompt)


def text(system: str | None, prompt: str | None, **endpoint: Any) -> str:
    return payload(Prompt(None, system, prompt), endpoint)["prompt"]


def injection(place: str, words: str, flag: Any = True) -> dict[str, Any]:
    return {f"addTextToStartOf{place}": flag, f"textToAddToStartOf{place}": words}


def user(*images: Any) -> dict[str, Any]:
    return {"role": "user", "content": "", "images": list(images)}


# -- the text -----------------------------------------------------------------------------------------------------


def test_payload_is_prompt_then_samplers() -> None:
    body = payload(Prompt(None, "S ", "hi"), samplers={"temperature": 0, "stream": True})
    assert body == {"prompt": "S hi", "temperature": 0, "stream": True}
    assert list(body) == ["prompt", "temperature", "stream"]


def test_a_preset_may_override_the_prompt() -> None:
    assert payload(Prompt(None, "", "hi"), samplers={"prompt": "other"}) == {"prompt": "other"}


def test_tools_are_left_out() -> None:
    prompt = Prompt(None, "", "hi", tools=[{"type": "function"}], tool_choice="required")
    assert payload(prompt) == {"prompt": "hi"}


@pytest.mark.parametrize(
    ("system", "prompt", "expected"),
    [
        (" You are a bot. ", "Hello! ", "You are a bot. Hello!"),
        ("S", "P", "SP"),
        (None, "P\n", "P"),
        ("S", None, "S"),
        (None, None, ""),
        ("\n", "  inner  gaps stay\n\n", "inner  gaps stay"),
    ],
)
def test_system_and_prompt_are_joined_and_trimmed(system: str | None, prompt: str | None, expected: str) -> None:
    assert text(system, prompt) == expected


def test_sentinels_become_braces() -> None:
    assert text("__WILMER_L_CURLY__a", "b__WILMER_R_CURLY__ ") == "{ab}"


# -- the endpoint's texts -----------------------------------------------------------------------------------------


def test_completion_text_follows_the_trimmed_text_untrimmed() -> None:
    assert text(" You are a bot. ", "Hello! ", **injection("Completion", "\nAI: ")) == "You are a bot. Hello!\nAI: "
    assert text("", "", **injection("Completion", "\n{x}__WILMER_L_CURLY__")) == "\n{x}__WILMER_L_CURLY__"


@pytest.mark.parametrize(
    ("place", "expected"),
    [("System", "X<sys>S</sys><user>P"), ("Prompt", "<sys>S</sys>X<user>P"), ("Completion", "<sys>S</sys><user>PX")],
)
def test_texts_stand_outside_the_templates(place: str, expected: str) -> None:
    assert text("<sys>S</sys>", "<user>P", **injection(place, "X")) == expected


def test_system_text_stands_alone_if_there_is_no_system() -> None:
    for nothing in ("", None):
        assert text(nothing, "P", **injection("System", "X")) == "XP"


def test_texts_are_inserted_literally() -> None:
    assert text("S", "P", **injection("Prompt", " {agent1Output} ")) == "S {agent1Output} P"


@pytest.mark.parametrize("place", ["System", "Prompt", "Completion"])
@pytest.mark.parametrize(("flag", "words"), [(False, "X"), (None, "X"), ("false", "X"), (True, ""), (True, None)])
def test_injection_needs_flag_and_text(place: str, flag: Any, words: Any) -> None:
    assert text("S", "P", **injection(place, words, flag)) == "SP"


# -- schema -------------------------------------------------------------------------------------------------------


def test_schema_goes_where_the_api_type_says(caplog: pytest.LogCaptureFixture) -> None:
    prompt = Prompt(None, "", "hi", schema={"type": "object"})
    declared = {"structuredOutput": {"field": "format", "style": "raw"}}
    assert payload(prompt, api_type=declared) == {"prompt": "hi", "format": {"type": "object"}}
    for undeclared in ({}, {"structuredOutput": None}):
        assert payload(prompt, api_type=undeclared) == {"prompt": "hi"}
    assert payload(Prompt(None, "", "hi"), api_type=declared) == {"prompt": "hi"}
    assert caplog.text == ""


# -- images -------------------------------------------------------------------------------------------------------


def test_images_come_from_user_messages_in_order() -> None:
    conversation = [
        user("a", "b"),
        {"role": "assistant", "content": "", "images": ["no"]},
        {"role": "user"},
        {"role": "user", "images": None},
        {"role": "user", "images": "one"},
        user("d"),
    ]
    prompt = Prompt(conversation, "", "hi")
    assert handler().images(prompt) == ["a", "b", "one", "d"]
    assert payload(prompt) == {"prompt": "hi"}
    assert handler().images(Prompt(None, "", "hi")) == []
