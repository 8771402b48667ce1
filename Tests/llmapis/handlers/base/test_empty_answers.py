"""Answers without text: refusals, models that were only loaded, nothing but reasoning, nothing at all."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt
from Middleware.llmapis.llm_api import TYPES
from Middleware.llmapis.transport import Transport
from Tests.stub_backend import Reply, StubBackend, chat_chunk, json_reply, sse_reply
from Tests.tables import table

HI = Prompt([{"role": "user", "content": "hi"}])


def ask(backend: StubBackend, kind: str, reply: Reply, stream: bool) -> tuple[Any, str, list[Any]]:
    """Return the handler, the text, and the finish reasons of the answer."""
    backend.responder = lambda request: reply
    settings = BackendSettings("E", backend.url, {}, {"type": kind, "streamPropertyName": "stream"})
    call = TYPES[kind](settings, Transport())
    prompt = HI if kind not in ("ollamaApiGenerate", "openAIV1Completion") else Prompt(prompt="hi")
    if not stream:
        answer = call.handle_non_streaming(prompt)
        text = answer if isinstance(answer, str) else answer["content"]
        return call, text, [call.outcome.finish_reason]
    chunks = list(call.handle_streaming(prompt))
    reasons = [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]]
    return call, "".join(chunk["token"] for chunk in chunks), reasons


def message(reason: str = "stop", **fields: Any) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": reason}
    return json_reply({"choices": [choice], "usage": {"completion_tokens": 40}})


def deltas(*found: dict[str, Any], reason: str | None = "stop") -> Reply:
    events: list[Any] = [chat_chunk(delta) for delta in found]
    ends = [chat_chunk({}, reason, usage={"completion_tokens": 40})] if reason else []
    return sse_reply([*events, *ends, "[DONE]"])


def claude(**end: Any) -> Reply:
    return json_reply({"type": "message", "role": "assistant", "content": [], **end})


def claude_stream(text: str, **end: Any) -> Reply:
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        *([{"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}] if text else []),
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return sse_reply(events)


REFUSED = {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "I cannot."}}
CHAT, CLAUDE = "openAIChatCompletion", "claudeMessages"


@table(
    "kind, reply, stream, text, reason",
    [
        (CHAT, message(content=None, refusal="I cannot."), False, "I cannot.", "content_filter"),
        (CHAT, message(content="", refusal="I cannot."), False, "I cannot.", "content_filter"),
        (CHAT, message(refusal="I cannot.", reason="length"), False, "I cannot.", "content_filter"),
        (CHAT, message(content="Yes.", refusal="I cannot."), False, "Yes.", "stop"),
        (CHAT, message(content="Yes.", refusal=None), False, "Yes.", "stop"),
        (CHAT, message(content="Yes.", refusal=""), False, "Yes.", "stop"),
        (CHAT, deltas({"content": None, "refusal": "I "}, {"refusal": "cannot."}), True, "I cannot.", "content_filter"),
        (CHAT, deltas({"role": "assistant", "content": "", "refusal": "No."}), True, "No.", "content_filter"),
        (CHAT, deltas({"refusal": "No."}, reason=None), True, "No.", "content_filter"),
        (CHAT, deltas({"content": "Yes."}, {"refusal": "No."}), True, "Yes.", "stop"),
        (CHAT, deltas({"reasoning_content": "hm"}, {"refusal": "No."}), True, "No.", "content_filter"),
        (CLAUDE, claude(**REFUSED), False, "I cannot.", "content_filter"),
        (CLAUDE, claude(stop_reason="refusal"), False, "", "content_filter"),
        (CLAUDE, claude(**{**REFUSED, "content": [{"type": "text", "text": "Hm."}]}), False, "Hm.", "content_filter"),
        (CLAUDE, claude_stream("", **REFUSED), True, "I cannot.", "content_filter"),
        (CLAUDE, claude_stream("Half", **REFUSED), True, "Half", "content_filter"),
        (CLAUDE, claude_stream("", stop_reason="refusal", stop_details=None), True, "", "content_filter"),
    ],
)
def test_the_words_of_a_refusal_are_the_text_without_another(
    backend: StubBackend, kind: str, reply: Reply, stream: bool, text: str, reason: str
) -> None:
    call, found, reasons = ask(backend, kind, reply, stream)
    assert found == text
    assert reasons == [reason] and call.outcome.finish_reason == reason and not call.outcome.empty


def ollama(kind: str, stream: bool, **fields: Any) -> Reply:
    body = {"message": {"role": "assistant", "content": ""}, "response": "", "done": True, **fields}
    raw = json.dumps(body).encode()
    return (
        Reply(body=raw) if not stream else Reply(pieces=[raw + b"\n"], headers={"Content-Type": "application/x-ndjson"})
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["ollamaApiChat", "ollamaApiGenerate"])
def test_a_model_that_was_only_loaded(backend: StubBackend, kind: str, stream: bool) -> None:
    with pytest.raises(BackendResponseError, match="^Endpoint 'E' .*: the model was only loaded: the prompt was empty"):
        ask(backend, kind, ollama(kind, stream, done_reason="load"), stream)
    assert len(backend.requests) == 1


THOUGHTS = (
    "tokens were reasoning; raise 'maxResponseSizeInTokens' of the node, or switch thinking off ('thinkingMode')."
)


@table(
    "kind, reply, stream, empty, line",
    [
        (CHAT, message("length", content="", reasoning_content="hm"), False, "reasoning", f"all 40 {THOUGHTS}"),
        (CHAT, message("stop", content=None, reasoning="hm"), False, "reasoning", f"all 40 {THOUGHTS}"),
        (CHAT, deltas({"reasoning_content": "hm"}, reason="length"), True, "reasoning", f"all 40 {THOUGHTS}"),
        (CLAUDE, claude(content=[{"type": "thinking", "thinking": "hm"}]), False, "reasoning", f"all its {THOUGHTS}"),
        (CHAT, message(content=""), False, "nothing", "an empty answer."),
        (CHAT, message(content=None), False, "nothing", "an empty answer."),
        (CHAT, deltas({"role": "assistant", "content": ""}), True, "nothing", "an empty answer."),
        ("ollamaApiChat", ollama("", True), True, "nothing", "an empty answer."),
        ("openAIV1Completion", json_reply({"choices": [{"text": ""}]}), False, "nothing", "an empty answer."),
        (CHAT, message(content=" "), False, "", ""),
        (CHAT, message(content="", tool_calls=[{"id": "c", "function": {"name": "f"}}]), False, "", ""),
        (CHAT, deltas({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}), True, "", ""),
        (CHAT, deltas({"reasoning_content": "hm"}, {"content": "Yes"}), True, "", ""),
    ],
)
def test_an_empty_answer_is_noted(
    backend: StubBackend,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    reply: Reply,
    stream: bool,
    empty: str,
    line: str,
) -> None:
    caplog.set_level(logging.INFO)
    call, text, _ = ask(backend, kind, reply, stream)
    assert text.strip() in ("", "Yes") and call.outcome.empty == empty
    # What an earlier test has left behind may end now, and say so.
    records = [record for record in caplog.records if record.name.startswith("Middleware.llmapis")]
    said = [record.getMessage() for record in records if "sends no end" not in record.getMessage()]
    assert said == ([f"Endpoint 'E': {line}"] if line else [])
