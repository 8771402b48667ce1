"""The OpenAI text completions dialect, spoken by llama.cpp, vLLM, LiteLLM and many others."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.base_llm_api_handler import Chunk, Prompt
from Middleware.llmapis.handlers.base.openai_answers import OpenAiAnswers


class OpenAiCompletionsApiHandler(OpenAiAnswers, BaseCompletionsHandler):
    """Calls ``/v1/completions``."""

    PATH = "/v1/completions"

    def payload(self, prompt: Prompt) -> dict[str, Any]:
        model = {} if self.settings.model is None else {"model": self.settings.model}
        return {**model, **super().payload(prompt)}

    def read_event(self, body: dict[str, Any], name: str | None) -> Chunk | None:
        usage = self.note_usage(body)
        chunk: Chunk = {"token": "", "finish_reason": None}
        if usage:
            chunk["usage"] = usage
        if self.note_fingerprint(body):
            chunk["fingerprint"] = self.outcome.fingerprint
        choice = None if self.ended else self.choice(body, name == "error")
        if choice is None:
            return chunk if usage else None
        chunk["token"] = _text(choice, "text")  # servers leave it out of a last chunk
        reasoning = _reasoning(choice)
        if reasoning:
            chunk["reasoning"] = reasoning
        if choice.get("finish_reason"):
            chunk["finish_reason"] = self.outcome.finish_reason = str(choice["finish_reason"])
            self.ended = True
        return chunk

    def read_response(self, body: Any) -> str:
        if not isinstance(body, Mapping):
            self.unreadable("an answer that is not an object")
            return ""
        choice = self.choice(body)
        self.note_usage(body)
        self.note_fingerprint(body)
        if choice is None or not isinstance(choice.get("text", 0), str | None):
            self.unreadable("an answer without a text")
            return ""
        self.outcome.reasoning = _reasoning(choice)
        self.outcome.finish_reason = str(choice["finish_reason"]) if choice.get("finish_reason") else None
        return _text(choice, "text")


def _reasoning(choice: Mapping[str, Any]) -> str:
    return _text(choice, "reasoning_content") or _text(choice, "reasoning")


def _text(choice: Mapping[str, Any], key: str) -> str:
    text = choice.get(key)
    return text if isinstance(text, str) else ""
