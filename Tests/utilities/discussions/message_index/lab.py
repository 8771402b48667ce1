"""Message indexes for tests: who said what, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, NewMessage
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher

DAY = 86_400
START = 1_770_000_000


def opened(folder: Path, cipher: Cipher = NO_CIPHER, *, write: bool = True, **options: Any) -> MessageIndex:
    return MessageIndex(str(folder / "message_index.db"), write=write, cipher=cipher, **options)


def said(text: str, speaker: str | None = None, place: float = 0, conversation: int = 1, **fields: Any) -> NewMessage:
    key = hashlib.sha256(text.encode()).digest()[:8]
    return NewMessage(conversation, place, key, fields.pop("role", "user"), text, speaker=speaker, **fields)


def fill(index: MessageIndex, messages: Iterable[NewMessage]) -> list[int]:
    with index.writing() as writing:
        return [writing.add(message) for message in messages]


def chat(*lines: str, conversation: int = 1, **fields: Any) -> list[NewMessage]:
    """Return messages with the roles in turn; ``Name: text`` is said by a speaker."""
    found = []
    for place, line in enumerate(lines):
        name, colon, text = line.partition(": ")
        role = ("user", "assistant")[place % 2]
        found.append(said(text if colon else line, name if colon else None, place, conversation, role=role, **fields))
    return found
