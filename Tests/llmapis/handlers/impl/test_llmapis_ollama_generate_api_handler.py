"""The Ollama text dialect: exact payloads, images, schema. What it shares with the chat dialect is tested in
``base/test_ollama_answers.py``."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.handlers.impl.ollama_generate_api_handler import OllamaGenerateHandler
from Middleware.llmapis.transport import Transport

FORMAT = {"structuredOutput": {"field": "format", "style": "raw"}}
SCHEMA = {"type": "object"}


def handler(**settings: Any) -> OllamaGenerateHandler:
    values = {"endpoint": {}, "api_type": {"streamPropertyName": "stream"}, "model": "m", **settings}
    return OllamaGenerateHandler(BackendSettings("E", "http://127.0.0.1:1", **values), Transport())


@pytest.mark.parametrize("stream", [True, False])
def test_payload(stream: bool) -> None:
    prompt = Prompt(
        system_prompt=" You are a __WILMER_L_CURLY__bot__WILMER_R_CURLY__. ",
        prompt="Hello! ",
        tools=[{"type": "function"}],
        tool_choice="auto",
    )
    samplers = {"temperature": 0.4, "think": False, "stream": stream, "num_ctx": 4096, "num_predict": 300}
    assert handler(samplers=samplers).request(prompt, stream).payload == {
        "model": "m",
        "prompt": "You are a {bot}. Hello!",
        "stream": stream,
        "raw": True,
        "think": False,
        "options": {"temperature": 0.4, "num_ctx": 4096, "num_predict": 300},
    }


def test_endpoint_texts_are_injected() -> None:
    endpoint = {
        "addTextToStartOfSystem": True,
        "textToAddToStartOfSystem": "S ",
        "addTextToStartOfPrompt": True,
        "textToAddToStartOfPrompt": "P ",
        "addTextToStartOfCompletion": True,
        "textToAddToStartOfCompletion": "\nAI:",
    }
    assert handler(endpoint=endpoint).payload(Prompt(prompt="hi"))["prompt"] == "S P hi\nAI:"


@pytest.mark.parametrize(
    ("api_type", "added"),
    [
        ({}, {}),
        (FORMAT, {"format": SCHEMA}),
        (
            {"structuredOutput": {"field": "options.grammar", "style": "raw"}},
            {"options": {"top_k": 1, "grammar": SCHEMA}},
        ),
    ],
)
def test_schema_stands_where_the_api_type_says(
    api_type: dict[str, Any], added: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    samplers = {"top_k": 1}
    assert handler(api_type=api_type, samplers=samplers).payload(Prompt(prompt="hi", schema=SCHEMA)) == {
        "model": "m",
        "prompt": "hi",
        "stream": False,
        "raw": True,
        "options": {"top_k": 1},
        **added,
    }
    assert samplers == {"top_k": 1} and not caplog.records


def test_images_of_the_user_are_sent_beside_the_text() -> None:
    conversation = [
        {"role": "user", "content": "", "images": ["data:image/png;base64,AAAA", "BBBB"]},
        {"role": "assistant", "content": "", "images": ["CCCC"]},
    ]
    before = copy.deepcopy(conversation)
    payload = handler().payload(Prompt(conversation, None, "look"))
    assert payload["images"] == ["AAAA", "BBBB"] and payload["prompt"] == "look"
    assert conversation == before


@pytest.mark.parametrize("images", [[], None, ["https://h/x.png"]])
def test_no_usable_images_no_key(images: Any) -> None:
    assert "images" not in handler().payload(Prompt([{"role": "user", "content": "", "images": images}], None, "look"))


@pytest.mark.parametrize("thinking", ["hm", None])
def test_an_answer_may_lack_its_text(thinking: str | None) -> None:
    call = handler()
    assert call.read_whole({"thinking": thinking, "response": "", "done": True}) == ""
    assert call.outcome.reasoning == (thinking or "")
