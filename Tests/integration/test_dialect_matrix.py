"""Every client dialect with every back-end dialect: what is heard, what is sent, and the users' table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from Scripts.generate import dialect_table, generated_files
from Tests.backend_dialects import PATHS
from Tests.integration.client_dialects import FRONTS, TOOLS
from Tests.integration.dialect_matrix import (
    BACKS,
    CHAT,
    CLAUDE,
    FEATURES,
    GENERATE,
    HISTORY,
    KEY,
    KOBOLD,
    LOSSES,
    OLLAMA,
    PAIRS,
    PICTURE,
    TEXT,
    Observation,
    Pair,
    observe,
)
from Tests.stub_backend import RecordedRequest

SYSTEM, FIRST, CALL, RESULT, SECOND, LAST = HISTORY
DATA_URI = f"data:image/png;base64,{PICTURE}"
LIMITS = {CHAT: "max_tokens", TEXT: "max_tokens", KOBOLD: "max_length", CLAUDE: "max_tokens"}


@pytest.fixture(scope="module")
def observed() -> Observation:
    return observe()


# -- what clients hear ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_what_arrives(observed: Observation, pair: Pair) -> None:
    got = {feature: observed.outcome(pair, feature) for feature in FEATURES}
    assert got == {feature: pair.expected(feature) for feature in FEATURES}

    others = [heard for name, heard in observed.heard[pair].items() if name != "failure"]
    assert {(heard.status, heard.error) for heard in others} == {(200, "")}
    assert observed.heard[pair]["failure"].status == (200 if pair.stream else 502)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_counts_that_the_backend_leaves_out_are_estimated(observed: Observation, pair: Pair) -> None:
    usage = observed.heard[pair]["length"].usage
    assert usage is not None
    assert 0 < usage[0] < 50 and 0 < usage[1] < 10


def test_every_loss_is_seen() -> None:
    used = {id(pair.loss(feature)) for pair in PAIRS for feature in FEATURES}
    assert [loss.reason for loss in LOSSES if id(loss) not in used] == []


# -- what back-ends are sent ---------------------------------------------------------------------------------------
def check_chat(body: Any, headers: dict[str, str], front: Any) -> None:
    messages = body["messages"]
    assert [message["role"] for message in messages] == roles(front.takes_tools)
    assert messages[0]["content"] == SYSTEM.text and messages[1]["content"] == FIRST.text
    assert all(set(message) <= {"role", "content", "tool_calls", "tool_call_id", "name"} for message in messages)
    picture = [{"type": "image_url", "image_url": {"url": DATA_URI}}] if front.takes_images else []
    assert messages[-1]["content"] == ([{"type": "text", "text": LAST.text}, *picture] if picture else LAST.text)
    assert headers["authorization"] == f"Bearer {KEY}"
    if front.takes_tools:
        [call] = messages[2]["tool_calls"]
        assert call == {
            "id": messages[3]["tool_call_id"],
            "type": "function",
            "function": {"name": "look_up", "arguments": '{"word": "x", "n": 1}'},
        }
        assert messages[3]["content"] == RESULT.text
        assert body["tools"] == TOOLS


def check_ollama_chat(body: Any, headers: dict[str, str], front: Any) -> None:
    messages = body["messages"]
    assert [message["role"] for message in messages] == roles(front.takes_tools)
    assert [message["content"] for message in messages if message["content"]] == [
        turn.text for turn in HISTORY if turn.text and (front.takes_tools or turn.role != "tool")
    ]
    assert messages[-1].get("images") == ([PICTURE] if front.takes_images else None)
    check_ollama_options(body)
    if front.takes_tools:
        [call] = messages[2]["tool_calls"]
        assert call["function"] == {"name": "look_up", "arguments": {"word": "x", "n": 1}}
        assert messages[3]["tool_name"] == "look_up"
        assert body["tools"] == TOOLS and "tool_choice" not in body


def check_ollama_generate(body: Any, headers: dict[str, str], front: Any) -> None:
    check_text(body, front, "images")
    check_ollama_options(body)
    assert body["raw"] is True and body["model"] == "stub"


def check_completion(body: Any, headers: dict[str, str], front: Any) -> None:
    check_text(body, front, None)
    assert body["model"] == "stub" and body["stop"] == ["###"]
    assert set(body) <= {"model", "prompt", "temperature", "stop", "stream", "max_tokens"}


def check_kobold(body: Any, headers: dict[str, str], front: Any) -> None:
    check_text(body, front, "images")
    assert "model" not in body and body["stop_sequence"] == ["###"] and body["max_context_length"] == 8192


def check_claude(body: Any, headers: dict[str, str], front: Any) -> None:
    messages = body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
    assert body["system"] == SYSTEM.text and body["stop_sequences"] == ["###"]
    assert headers["x-api-key"] == KEY and headers["anthropic-version"] and "authorization" not in headers
    text: Any = LAST.text
    if front.takes_images:
        text = [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            {"type": "text", "text": LAST.text},
        ]
    assert messages[-1]["content"] == text
    if front.takes_tools:
        [use], [result] = messages[1]["content"], messages[2]["content"]
        assert use == {"type": "tool_use", "id": use["id"], "name": "look_up", "input": {"word": "x", "n": 1}}
        assert result == {"type": "tool_result", "tool_use_id": use["id"], "content": RESULT.text}
        assert [tool["name"] for tool in body["tools"]] == ["look_up"]
        assert body["tools"][0]["input_schema"]["type"] == "object"


def check_text(body: Any, front: Any, images: str | None) -> None:
    """One prompt with all texts in their order, and no field of the chat dialects."""
    turns = [turn for turn in HISTORY if front.takes_tools or turn.role != "tool"]
    places = [body["prompt"].index(turn.text) for turn in turns if turn.text]
    assert places == sorted(places)
    assert body["prompt"].startswith("<|im_start|>system\n" + SYSTEM.text)
    assert not {"messages", "tools", "tool_choice"} & set(body)
    assert body.get("images") == ([PICTURE] if images and front.takes_images else None)


def check_ollama_options(body: Any) -> None:
    assert body["options"] == {"temperature": 0.5, "stop": ["###"], "num_ctx": 8192, "num_predict": 100}
    assert not {"temperature", "stop", "max_tokens", "num_predict"} & set(body)


def roles(tools: bool) -> list[str]:
    return [turn.role for turn in HISTORY if tools or not (turn.call or turn.role == "tool")]


CHECKS: dict[str, Callable[[Any, dict[str, str], Any], None]] = {
    CHAT: check_chat,
    TEXT: check_completion,
    OLLAMA: check_ollama_chat,
    GENERATE: check_ollama_generate,
    KOBOLD: check_kobold,
    CLAUDE: check_claude,
}


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_what_is_sent(observed: Observation, pair: Pair) -> None:
    request: RecordedRequest = observed.sent[pair]
    body = request.json
    CHECKS[pair.back](body, request.headers, FRONTS[pair.front])
    assert PATHS[request.path].api_type == pair.back
    assert request.path.endswith("/stream") == (pair.back == KOBOLD and pair.stream)
    default = True if pair.back in (OLLAMA, GENERATE) else pair.stream  # Ollama streams unless told otherwise
    assert body.get("stream", default) is pair.stream
    if pair.back in LIMITS:
        assert (body[LIMITS[pair.back]], body["temperature"]) == (100, 0.5)
    assert b"__WILMER" not in request.body


# -- the table for users -------------------------------------------------------------------------------------------
def test_document_is_current(observed: Observation) -> None:
    """``python -m Scripts.generate`` writes it."""
    assert dialect_table.DOCUMENT.read_text(encoding="utf-8") == dialect_table.document(observed)


def test_document_shows_what_was_observed(observed: Observation) -> None:
    changed = dict(observed.heard)
    pair = Pair("OpenAI chat", CHAT, True)
    changed[pair] = {**changed[pair], "text": changed[Pair("OpenAI chat", CHAT, False)]["length"]}
    assert dialect_table.document(Observation(changed)) != dialect_table.document(observed)


def test_the_generator_compares_with_the_file(
    observed: Observation, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(dialect_table, "observe", lambda: observed)
    monkeypatch.setattr(dialect_table, "DOCUMENT", tmp_path / "dialects.md")
    assert generated_files.write_or_check(dialect_table.files(), check=True) == 1
    assert generated_files.write_or_check(dialect_table.files(), check=False) == 0
    assert generated_files.write_or_check(dialect_table.files(), check=True) == 0
    assert len(dialect_table.DOCUMENT.read_text(encoding="utf-8").split("\n| ")) == len(FRONTS) * len(BACKS) + 2
