"""Conversations cut into blocks of text of a bounded size. Nothing here changes its input."""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from Middleware.utilities.prompt_extraction_utils import estimate_message, join_contents

Message = dict[str, Any]

FILL = 0.8
"""How much of a size is used: what was estimated too low still fits."""

_WORD = re.compile(r"\w+")
_LABELS = ("User: ", "USER: ", "Assistant: ", "ASSISTANT: ", "systemMes: ", "SYSTEMMES: ")


def tokenize(text: str) -> list[str]:
    """All runs of letters, digits and underscores, in order."""
    return _WORD.findall(text)


def chunk_messages_by_token_size(messages: Sequence[Message], size: float) -> list[list[Message]]:
    """The messages in groups of at most 80 % of ``size`` estimated tokens, in order.

    Groups are filled from the newest message backwards, so it is the first that stays small. No message is split; one
    that is too large makes a group of its own.
    """
    groups: list[list[Message]] = []
    used = 0
    for message in reversed(messages):
        cost = estimate_message(message)
        if not groups or used + cost > size * FILL:
            groups.append([])
            used = 0
        groups[-1].append(message)
        used += cost
    return [group[::-1] for group in reversed(groups)]


def messages_to_text_block(messages: Iterable[Message]) -> str:
    """The contents, a line break between them, without roles."""
    return join_contents(messages)


def messages_into_chunked_text_of_token_size(messages: Sequence[Message], size: float) -> list[str]:
    """The text of each group of ``chunk_messages_by_token_size``."""
    return [messages_to_text_block(group) for group in chunk_messages_by_token_size(messages, size)]


def get_message_chunks(messages: Sequence[Message], lookback: int, size: float) -> list[str]:
    """The texts of the newest ``lookback`` messages; with 0 or less, of all messages but the newest."""
    chosen = messages[-lookback:] if lookback > 0 else messages[:-1]
    return messages_into_chunked_text_of_token_size(chosen, size)


def clear_out_user_assistant_from_chunks(chunks: Iterable[str | None]) -> list[str]:
    """The texts without the labels of roles; those that are None are left out."""
    return [_without_labels(chunk) for chunk in chunks if chunk is not None]


def _without_labels(text: str) -> str:
    for label in _LABELS:
        text = text.replace(label, "")
    return text
