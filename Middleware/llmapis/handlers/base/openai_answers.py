"""What the answers of OpenAI's chat and text completions have in common: choices, token counts, error objects."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from Middleware.llmapis.handlers.base.base_llm_api_handler import LlmApiHandler


class OpenAiAnswers(LlmApiHandler):
    """Reads the outer object of an answer or an event."""

    def choice(self, body: Mapping[str, Any], failed: bool = False) -> Mapping[str, Any] | None:
        """The first choice, None if there is none. Raises BackendResponseError for an error object.

        ``failed`` says that the event's name already calls it an error.
        """
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if body.get("error") or (failed and choice is None):
            self.raise_error_object(body.get("error") or body)
        return choice if isinstance(choice, Mapping) else None

    def note_fingerprint(self, body: Mapping[str, Any]) -> bool:
        """Keep the back-end's ``system_fingerprint``; whether this object is the first to say one."""
        fingerprint = body.get("system_fingerprint")
        if self.outcome.fingerprint or not isinstance(fingerprint, str):
            return False
        self.outcome.fingerprint = fingerprint
        return bool(fingerprint)

    def note_usage(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The token counts of an object, kept for the outcome too."""
        usage = body.get("usage")
        if not isinstance(usage, dict) or not usage:
            return None
        self.outcome.usage = usage
        return usage
