"""The common part of OpenAI's chat and text completions: choices, token counts, error objects."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import cast

from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import LlmApiHandler
from Middleware.models.messages import Chunk, Usage


class OpenAiAnswers(LlmApiHandler):
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
        choice = None if self.ended else self.choice(body, name == "error")
        if choice is None:
            return chunk if usage else None
        self.read_choice(choice, chunk)
        finish_reason = choice.get("finish_reason")
        if finish_reason:
            chunk["finish_reason"] = self.outcome.finish_reason = str(finish_reason)
            self.ended = True
        return chunk

    def open_answer(self, body: object) -> Mapping[str, object] | None:
        """Return the choice of a complete answer, empty if it has none, and store its metadata. None: not an object."""
        if not isinstance(body, Mapping):
            self.unreadable("an answer that is not an object")
            return None
        choice = self.choice(body)
        self.note_usage(body)
        self.note_fingerprint(body)
        return choice or {}

    def choice(self, body: Mapping[str, object], failed: bool = False) -> Mapping[str, object] | None:
        """Return the first choice, None if there is none. Raises BackendResponseError for an error object.

        ``failed`` means that the name of the event is ``error``.
        """
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if body.get("error") or (failed and choice is None):
            self.raise_error_object(body.get("error") or body)
        return choice if isinstance(choice, Mapping) else None

    def note_fingerprint(self, body: Mapping[str, object]) -> bool:
        """Store the back-end's ``system_fingerprint``; return whether this object is the first that has one."""
        fingerprint = body.get("system_fingerprint")
        if self.outcome.fingerprint or not isinstance(fingerprint, str):
            return False
        self.outcome.fingerprint = fingerprint
        return bool(fingerprint)

    def note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """Return and store the token counts of an object."""
        usage = body.get("usage")
        if not isinstance(usage, dict) or not usage:
            return None
        # Counts that are not numbers are dropped where they are used.
        self.outcome.usage = cast(Usage, usage)
        return self.outcome.usage


def text_in(fields: Mapping[str, object], key: str) -> str:
    """Return the string under a key, ``""`` for any other value."""
    text = fields.get(key)
    return text if isinstance(text, str) else ""


def reasoning_of(fields: Mapping[str, object]) -> str:
    """Return the reasoning in a delta, message or choice. Servers use two keys for it, and Mistral content blocks."""
    plain = text_in(fields, "reasoning_content") or text_in(fields, "reasoning")
    content = fields.get("content")
    return plain or (_thinking_in(content) if isinstance(content, list) else "")


def _thinking_in(blocks: list[object]) -> str:
    """Return the text of the blocks of type ``thinking``, which contain a string or a list of text blocks."""
    thoughts = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "thinking")
    return "".join(text_of(block.get("thinking")) for block in thoughts)
