"""Functions for users' scripts that combine and shorten prompts. No node uses them; none changes its input."""

from __future__ import annotations

from collections.abc import Sequence

from Middleware.models.messages import Message
from Middleware.utilities.prompt_extraction_utils import newest, outside_exchange, system_text
from Middleware.utilities.text_utils import estimate_message

# The share of the context window that is used, as tokens are only estimated.
ACCEPTABLE_SHARE = 0.8


def combine_initial_system_prompts(messages: Sequence[Message], prefix: str, suffix: str) -> str:
    """Return the contents of the leading ``system`` messages, joined by a space, with ``prefix`` and ``suffix``."""
    start = next((index for index, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    return prefix + system_text(messages[:start], leading_only=False) + suffix


def get_messages_within_index(messages: Sequence[Message], n: int) -> list[Message]:
    """Return the ``n`` messages before the last one; none for ``n`` below 1."""
    return newest(messages[:-1], n)


def reduce_messages_to_fit_token_limit(
    system_prompt: str,
    messages: Sequence[Message],
    max_tokens: float,
) -> list[Message]:
    """Return the newest messages whose estimates, with that of the system prompt, are at most ``max_tokens``."""
    used = estimate_message({"content": system_prompt})
    start = len(messages)
    while start and used + estimate_message(messages[start - 1]) <= max_tokens:
        start -= 1
        used += estimate_message(messages[start])
    return list(messages[outside_exchange(messages, start, 0) :])


def reduce_messages_down_to_wilmer_acceptable_length(
    system_prompt: str, messages: list[Message], truncate_length: int, max_new_tokens: int
) -> list[Message]:
    """Cut to what leaves a context window of ``truncate_length`` tokens room for an answer of ``max_new_tokens``.

    With impossible numbers (no answer, or one as long as the window) the messages are returned unchanged.
    """
    if not 0 < max_new_tokens < truncate_length:
        return messages
    limit = int((truncate_length - max_new_tokens) * ACCEPTABLE_SHARE)
    return reduce_messages_to_fit_token_limit(system_prompt, messages, limit)
