"""The Standard node against a real HTTP back-end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendConnectionError, ConfigNotFoundError
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import EngineLab, assistant, llm, user

HISTORY = ({"role": "system", "content": "client system"}, user("u1"), assistant("a1"), user("u2"))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def sent(lab: EngineLab, node: dict[str, Any], *messages: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The body that the node sends."""
    lab.run([node], *messages, **options)
    return lab.backend.requests[-1].json


def test_conversation_mode(lab: EngineLab) -> None:
    body = sent(lab, llm("", systemPrompt="", lastMessagesToSendInsteadOfPrompt=2), *HISTORY)
    assert body["messages"] == [assistant("a1"), user("u2")]


def test_absent_prompt_is_conversation_mode(lab: EngineLab) -> None:
    node = {"type": "Standard", "endpointName": "Main", "systemPrompt": "S"}
    assert sent(lab, node, *HISTORY)["messages"] == [{"role": "system", "content": "S"}, *HISTORY[1:]]


def test_prompt_mode(lab: EngineLab) -> None:
    body = sent(lab, llm("Answer {chat_user_prompt_last_one}", systemPrompt="{chat_system_prompt}!"), *HISTORY)
    assert body["messages"] == [{"role": "system", "content": "client system!"}, user("Answer u2")]


def test_prompt_that_resolves_to_nothing_is_still_a_prompt(lab: EngineLab) -> None:
    assert sent(lab, llm("{Discussion_Id}"), *HISTORY)["messages"] == [user("")]


def test_window_without_user_message_gets_the_newest_one(lab: EngineLab) -> None:
    body = sent(lab, llm("", systemPrompt="S", lastMessagesToSendInsteadOfPrompt=1), user("u1"), assistant("a1"))
    assert body["messages"] == [{"role": "system", "content": "S"}, user("u1"), assistant("a1")]


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("nodes", "options", "names"),
    [
        ([llm("a", allowTools=True, title="First"), llm("b")], {"tools": TOOLS}, ["First"]),
        (
            [llm("a", allowTools=True), llm("b", allowTools="true", title="Own")],
            {"tools": TOOLS, "non_responder": True},
            ["N/A", "Own"],
        ),
        ([llm("a"), llm("b", allowTools=True)], {"tools": TOOLS}, []),
        ([llm("a", allowTools="false"), llm("b")], {"tools": TOOLS}, []),
        ([llm("a", allowTools=True), llm("b")], {}, []),
    ],
)
def test_tools_where_no_call_reaches_the_client(
    lab: EngineLab,
    caplog: pytest.LogCaptureFixture,
    nodes: list[dict[str, Any]],
    options: dict[str, Any],
    names: list[str],
) -> None:
    lab.run(nodes, user("hi"), **options)
    warned = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and "tools of the request" in record.getMessage()
    ]
    assert [text.split("'")[1] for text in warned] == names


@pytest.mark.parametrize(
    ("value", "expected"), [(600, 600), ("5000", 5000), (750.9, 750), ("abc", 400), ("{size}", 33), ("{nope}", 400)]
)
def test_response_budget(lab: EngineLab, value: Any, expected: int) -> None:
    lab.workflow("Main", [llm("x", maxResponseSizeInTokens=value)], size=33)
    lab.run_named("Main")
    assert lab.backend.requests[0].json["max_tokens"] == expected


def test_response_budget_absent_and_null(lab: EngineLab) -> None:
    assert sent(lab, llm("x"))["max_tokens"] == 400
    assert "max_tokens" not in sent(lab, llm("x", maxResponseSizeInTokens=None))


@pytest.mark.parametrize("key", ["preset", "presetName"])
def test_preset(lab: EngineLab, key: str) -> None:
    lab.preset("OpenAiCompatibleApis", "warm", {"temperature": 0.9})
    assert sent(lab, llm("x", **{key: "warm"}))["temperature"] == 0.9


def test_preset_wins_over_its_other_name(lab: EngineLab) -> None:
    lab.preset("OpenAiCompatibleApis", "warm", {"temperature": 0.9})
    assert sent(lab, llm("x", preset="warm", presetName="Gone"))["temperature"] == 0.9


def test_missing_preset_key(lab: EngineLab) -> None:
    assert "temperature" not in sent(lab, llm("x"))
    lab.endpoint("Own", {"presetSamplers": {"temperature": 0.2}}, lab.backend.url)
    assert sent(lab, llm("x", endpointName="Own"))["temperature"] == 0.2


def test_unknown_preset(lab: EngineLab) -> None:
    with pytest.raises(ConfigNotFoundError, match="Presets/OpenAiCompatibleApis"):
        lab.run([llm("x", preset="Gone")])


@pytest.mark.parametrize("endpoint", [{}, {"endpointName": ""}, {"endpointName": None}])
def test_no_endpoint(lab: EngineLab, endpoint: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'Ask'"):
        lab.run([{"type": "Standard", "title": "Ask", "prompt": "x", **endpoint}])


def test_refused_connection_names_the_endpoint(lab: EngineLab) -> None:
    lab.endpoint("Off", {}, "http://127.0.0.1:1")
    with pytest.raises(BackendConnectionError, match="Off"):
        lab.run([llm("x", endpointName="Off")])


def test_tools_only_where_allowed(lab: EngineLab) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert "tools" not in sent(lab, llm("x"), tools=tools, tool_choice="auto")
    body = sent(lab, llm("x", allowTools=True), tools=tools, tool_choice="auto")
    assert (body["tools"], body["tool_choice"]) == (tools, "auto")


def test_braces_reach_the_backend_as_they_are(lab: EngineLab) -> None:
    text = "__WILMER_L_CURLY__agent1Output__WILMER_R_CURLY__"
    assert sent(lab, llm(""), user(text))["messages"] == [user("{agent1Output}")]


def test_images_only_where_accepted(lab: EngineLab) -> None:
    message = {**user("look"), "images": ["http://127.0.0.1/x.png"]}
    assert sent(lab, llm(""), message)["messages"] == [user("look")]
    parts = sent(lab, llm("", acceptImages=True), message)["messages"][0]["content"]
    assert {"type": "text", "text": "look"} in parts
    assert [part["image_url"]["url"] for part in parts if part["type"] == "image_url"] == ["http://127.0.0.1/x.png"]
