"""What the two dialects of OpenAI have in common: the outer object of answers, token counts, reasoning."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from Middleware.exceptions import BackendStatusError
from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler, Prompt, text_in, usage_of
from Middleware.llmapis.transport import BackendRequest
from Middleware.models.messages import Chunk, PromptTokens, Usage, cached_tokens, token_count
from Middleware.models.process import process
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

STREAM_OPTIONS = "stream_options"


def _refusals() -> Once[str]:
    """Return the addresses of the servers that refuse to be asked for token counts, until the process ends."""
    return Once()


class OpenAiAnswers(BaseLlmApiHandler):
    """Reads the outer object of an answer or an event."""

    # The address that was asked for the token counts of the current stream; "" if it was not asked.
    _asked = ""

    def request(self, prompt: Prompt, stream: bool) -> BackendRequest:
        request = super().request(prompt, stream)
        self._asked = ""
        if STREAM_OPTIONS not in request.payload:
            return request
        if request.url not in process().one(_refusals):
            self._asked = request.url
            return request
        return replace(request, payload={key: value for key, value in request.payload.items() if key != STREAM_OPTIONS})

    def asks_again(self, error: BackendStatusError) -> bool:
        # Servers that are strict about fields name the one that they do not know.
        if not self._asked or error.status not in (400, 422) or STREAM_OPTIONS not in error.body:
            return False
        if process().one(_refusals).first(self._asked):
            logger.info(
                "Endpoint '%s' refuses '%s': its streams have no token counts. With an API type whose "
                "requestUsageInStreams is false, it is not asked for them.",
                self.settings.endpoint_name,
                STREAM_OPTIONS,
            )
        return True

    @abstractmethod
    def read_choice(self, choice: Mapping[str, object], chunk: Chunk) -> None:
        """Copy the content of a streamed choice, except its finish reason, to ``chunk``."""

    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        usage = self.note_usage(body)
        chunk: Chunk = {"token": "", "finish_reason": None}
        if usage:
            chunk["usage"] = usage
        if self.note_fingerprint(body):
            chunk["fingerprint"] = self.outcome.fingerprint
        choice = self.choice(body, name == "error")
        if choice is None:
            return chunk if usage else None
        self.read_choice(choice, chunk)
        self.reported = choice.get("error") or None
        reason = "error" if self.reported else choice.get("finish_reason")
        chunk["finish_reason"] = None if reason is None else str(reason)
        return chunk

    def open_answer(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the choice of a complete answer, empty if it has none, and store its metadata and finish reason."""
        choice = self.choice(body) or {}
        if choice.get("error"):
            self.raise_error_object(choice["error"])
        self.note_usage(body)
        self.note_fingerprint(body)
        reason = choice.get("finish_reason")
        self.outcome.finish_reason = None if reason is None else str(reason)
        return choice

    def choice(self, body: Mapping[str, object], failed: bool = False) -> Mapping[str, object] | None:
        """Return the first choice, or None. Raises BackendResponseError for an error object.

        ``failed`` means that the name of the event is ``error``.
        """
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if body.get("error") or (failed and choice is None):
            self.raise_error_object(body.get("error") or body)
        return choice if isinstance(choice, Mapping) else None

    def note_fingerprint(self, body: Mapping[str, object]) -> bool:
        """Store the back-end's ``system_fingerprint``; return whether this object is the first that has one.

        The name of its model is stored with it.
        """
        outcome = self.outcome
        if not outcome.model and not self.flowing:
            outcome.model = text_in(body, "model")
        fingerprint = body.get("system_fingerprint")
        if self.outcome.fingerprint or not isinstance(fingerprint, str):
            return False
        self.outcome.fingerprint = fingerprint
        return bool(fingerprint)

    def note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """Return and store the token counts of an object."""
        # Most events of a stream have neither.
        if "usage" not in body and "timings" not in body:
            return None
        timings = body.get("timings")
        usage = _usage(body.get("usage"), timings)
        if usage is not None:
            self.outcome.usage = usage
        if isinstance(timings, Mapping):
            self.outcome.reported = timings
        return usage


def _usage(sent: object, timings: object) -> Usage | None:
    """Return the token counts of an object: its ``usage``, completed from llama.cpp's ``timings``, or the latter."""
    counts = timings if isinstance(timings, Mapping) else {}
    cached = token_count(counts.get("cache_n"))
    if isinstance(sent, dict) and sent:
        # Counts that are not numbers are dropped where they are used.
        usage = cast(Usage, sent)
        if cached is None or cached_tokens(usage) is not None:
            return usage
        details = sent.get("prompt_tokens_details")
        return {
            **usage,
            "prompt_tokens_details": {
                **(cast(PromptTokens, details) if isinstance(details, Mapping) else {}),
                "cached_tokens": cached,
            },
        }
    read, written = token_count(counts.get("prompt_n")), token_count(counts.get("predicted_n"))
    if written is None:
        return None
    # Servers before September 2025 report only the tokens that they have read, so the length of the prompt is unknown.
    return usage_of(None if read is None or cached is None else cached + read, written, cached)


def reasoning_of(fields: Mapping[str, object]) -> str:
    """Return the reasoning in a delta, message or choice. Servers use two keys for it, and Mistral content blocks."""
    plain = text_in(fields, "reasoning_content") or text_in(fields, "reasoning")
    content = fields.get("content")
    return plain or (_thinking_in(content) if isinstance(content, list) else "")


def _thinking_in(blocks: list[object]) -> str:
    """Return the text of the blocks of type ``thinking``, which contain a string or a list of text blocks."""
    thoughts = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "thinking")
    return "".join(text_of(block.get("thinking")) for block in thoughts)
