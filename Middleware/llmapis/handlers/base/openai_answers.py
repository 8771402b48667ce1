"""What the two dialects of OpenAI have in common: the outer object of answers, token counts, reasoning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import cast

from Middleware.llmapis.handlers.base.answer_forms import text_in, usage_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.keepsakes import thought_in
from Middleware.models.messages import Chunk, PromptTokens, Usage, cached_tokens, sent_usage, token_count


class OpenAiAnswers(BaseLlmApiHandler):
    """Reads the outer object of an answer or an event."""

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
        self.reported = _error_in(choice)
        reason = "error" if self.reported else choice.get("finish_reason")
        chunk["finish_reason"] = None if reason is None else str(reason)
        return chunk

    def open_answer(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the choice of a complete answer, empty if it has none, and store its metadata and finish reason."""
        choice = self.choice(body) or {}
        if error := _error_in(choice):
            self.raise_error_object(error)
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
        if body.get("error") or failed or (choice is None and "error" in (body.get("object"), body.get("type"))):
            self.raise_error_object(body.get("error") or body, body)
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
        usage = cast(Usage, sent_usage(sent))
        if cached is not None and cached_tokens(usage) is None:
            details = usage.get("prompt_tokens_details")
            known: PromptTokens = details if isinstance(details, dict) else {}
            usage["prompt_tokens_details"] = {**known, "cached_tokens": cached}
        return usage
    read, written = token_count(counts.get("prompt_n")), token_count(counts.get("predicted_n"))
    if written is None:
        return None
    # Servers before September 2025 report only the tokens that they have read, so the length of the prompt is unknown.
    return usage_of(None if read is None or cached is None else token_count(cached + read), written, cached)


REASONING = ("reasoning_content", "reasoning")
_DETAILS = {"reasoning.text": "text", "reasoning.summary": "summary"}


def reasoning_of(fields: Mapping[str, object], with_details: bool = True) -> str:
    """Return the reasoning in a delta, message or choice.

    Servers use two keys for it, Mistral content blocks, and OpenRouter a list of details, often in addition to a key.
    ``with_details``: the answer has had no such key so far, so that the details are not a second copy.
    """
    content, details = fields.get("content"), fields.get("reasoning_details")
    plain = text_in(fields, REASONING[0]) or text_in(fields, REASONING[1])
    plain = plain or (_thinking_in(content) if isinstance(content, list) else "")
    return plain or (_detailed(details) if with_details and isinstance(details, list) else "")


def _detailed(details: list[object]) -> str:
    """Return the texts and summaries among details of reasoning, which may also be encrypted."""
    found = (detail for detail in details if isinstance(detail, Mapping))
    return "".join(text_in(detail, _DETAILS.get(str(detail.get("type")), "")) for detail in found)


def _thinking_in(blocks: list[object]) -> str:
    """Return the text of the blocks of type ``thinking``, which contain a string or a list of text blocks."""
    thoughts = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "thinking")
    return "".join(map(thought_in, thoughts))


def _error_in(choice: Mapping[str, object]) -> object:
    """Return the error in a choice, or in its message; None for none."""
    said = choice.get("delta") or choice.get("message")
    return choice.get("error") or (said.get("error") if isinstance(said, dict) else None) or None
