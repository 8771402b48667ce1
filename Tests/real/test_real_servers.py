"""WilmerAI in front of real servers: llama.cpp's own and LiteLLM's proxy, over a model that talks nonsense."""

from __future__ import annotations

import json
import time

import pytest

from Tests.integration.launcher import Launcher, read_until, sse_payloads, streamed_text
from Tests.real.conftest import DIALECTS, SCHEMA
from Tests.real.servers import RealServer, busy
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.real

ENDS = {"llama-chat": {"length"}}  # the others may end an answer before its limit: chance, or LiteLLM's own view


@pytest.fixture(params=DIALECTS)
def model(request: pytest.FixtureRequest) -> str:
    """Every dialect that the two servers speak."""
    return str(request.param)


def test_whole_answer(model: str, wilmer: Launcher) -> None:
    answer = wilmer.ask(model)
    assert answer.status == 200, answer.body
    assert answer.text or any(wilmer.ask(model).text for _ in range(3))  # by chance it says nothing but blanks
    assert answer.json["choices"][0]["finish_reason"] in ENDS.get(model, {"length", "stop"})
    assert 0 < answer.json["usage"]["completion_tokens"] <= (16 if model == "litellm-claude" else 12)  # its least


def test_streamed_answer(model: str, wilmer: Launcher) -> None:
    answer = wilmer.ask(model, stream=True, stream_options={"include_usage": True})
    payloads = sse_payloads(answer.body)
    assert answer.status == 200
    assert payloads[-1] == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert len(reasons) == 1 and reasons[0] in ENDS.get(model, {"length", "stop"})
    assert streamed_text(answer.body)
    assert chunks[-1]["usage"]["completion_tokens"] > 0 or model == "litellm-text"  # which counts no tokens there


def test_grammar_binds_the_answer(wilmer: Launcher) -> None:
    assert {wilmer.ask("grammar").text for _ in range(3)} <= {"yes", "no"}


def test_schema_binds_the_answer(wilmer: Launcher) -> None:
    assert json.loads(wilmer.ask("schema").text)["city"] in ("Oslo", "Rome")


def test_required_tool_is_called(wilmer: Launcher) -> None:
    """A model that talks nonsense still calls the tool, because the reply is bound to its schema."""
    tools = [{"type": "function", "function": {"name": "travel", "parameters": SCHEMA}}]
    message = wilmer.ask("tool", tools=tools, tool_choice="required").json["choices"][0]["message"]
    call = message["tool_calls"][0]["function"]
    assert call["name"] == "travel"
    assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")


@pytest.mark.parametrize("stream", [True, False])
def test_stop_frees_the_slot(wilmer: Launcher, llama: RealServer, stream: bool) -> None:
    client = wilmer.open("endless", stream)
    try:
        if stream:
            read_until(client, b'"content"')
        assert until(lambda: busy(llama), 10), "the request never reached a slot"
    finally:
        client.close()
    # The server looks for its own client's end after a second in which nothing else happens: leave it in peace.
    time.sleep(1.6)
    assert not busy(llama), "the slot was not freed"


def test_wrong_key_is_explained(wilmer: Launcher) -> None:
    answer = wilmer.ask("wrong-key")
    assert answer.status == 502
    assert "apiKey" in answer.error and "sk-wrong" not in answer.body.decode()


def test_unknown_model_is_explained(wilmer: Launcher) -> None:
    answer = wilmer.ask("wrong-model")
    assert answer.status == 502
    assert "wrong-model" in answer.error and "nobody" in answer.error


@pytest.mark.parametrize("stream", [True, False])
def test_dead_server_hands_over_to_the_proxy(wilmer: Launcher, stream: bool) -> None:
    answer = wilmer.ask("dead", stream=stream)
    assert answer.status == 200
    assert streamed_text(answer.body) if stream else answer.text
