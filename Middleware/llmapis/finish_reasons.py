"""The words with which servers say why an answer ended, as the four that the program uses, and *failed*."""

from __future__ import annotations

import logging

from Middleware.models.process import process
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

FAILED = "failed"
_WORDS = {
    "stop": "stop eos eos_token stop_sequence end_turn end complete completed done finish finished pause_turn",
    "length": "length max_tokens max_output_tokens model_length token_limit context_length "
    "model_context_window_exceeded max_length limit",
    "tool_calls": "tool_calls tool_call tool_use function_call function_calls",
    "content_filter": "content_filter safety sensitive refusal recitation blocklist prohibited_content spii "
    "image_safety moderation content_filtered guardrail_intervened",
    FAILED: "error failed failure network_error insufficient_system_resource server_error internal_error overloaded "
    "timeout abort aborted cancelled other_error malformed_function_call unexpected_tool_call",
}
_INSIDE = {word: inside for inside, words in _WORDS.items() for word in words.split()}
_NONE = frozenset({"", "null", "none"})


def _unknown_words() -> Once[str]:
    """Return the endpoints and unknown words that were logged, until the process ends."""
    return Once()


def finish_reason(sent: object, endpoint: str) -> str | None:
    """Return the program's word for that of a server, ``stop`` for an unknown one; None if there is no reason.

    The words are ``stop``, ``length``, ``tool_calls``, ``content_filter`` and ``FAILED``. ``endpoint``: for the log.
    """
    word = "" if sent is None else str(sent).strip().lower().replace("-", "_").replace(" ", "_")
    if word in _NONE:
        return None
    inside = _INSIDE.get(word)
    if inside is None and process().one(_unknown_words).first(f"{endpoint}\0{word}"):
        logger.info("Endpoint '%s': the finish reason '%.60s' is unknown; it counts as 'stop'.", endpoint, word)
    return inside or "stop"


def with_calls(reason: str | None, has_calls: bool) -> str | None:
    """Return the finish reason of an answer with or without tool calls, which clients rely on."""
    if has_calls:
        return reason if reason in ("length", "content_filter") else "tool_calls"
    return "stop" if reason == "tool_calls" else reason
