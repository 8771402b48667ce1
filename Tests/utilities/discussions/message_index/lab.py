"""Message indexes for tests: who said what, and when."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from Middleware.services.memory.message_texts import parts_of
from Middleware.utilities.conversations.message_keys import path_messages, recognised
from Middleware.utilities.discussions.message_index.filling import Filled
from Middleware.utilities.discussions.message_index.filling import fill as fill_index
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.row_writing import NewMessage
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
        return [writing.add(message).id for message in messages]


def chat(*lines: str, conversation: int = 1, **fields: Any) -> list[NewMessage]:
    """Return messages with the roles in turn; ``Name: text`` is said by a speaker."""
    found = []
    for place, line in enumerate(lines):
        name, colon, text = line.partition(": ")
        role = ("user", "assistant")[place % 2]
        found.append(said(text if colon else line, name if colon else None, place, conversation, role=role, **fields))
    return found


class Request:
    """A request, as a front-end sends it: roles and texts."""

    def __init__(self, messages: Sequence[tuple[str, str]], dates: Sequence[int | None] = ()) -> None:
        self.texts = messages
        self._dates = dates
        given = [{"role": role, "content": text} for role, text in messages]
        self.messages = path_messages(given)
        found = recognised(given)
        self._parts = [found.parts(message) for message in given]

    def speaker(self, index: int) -> str | None:
        return self._parts[index][1] or None

    def parts(self, index: int) -> Sequence[str]:
        return parts_of(self._parts[index][2])

    def said(self, index: int) -> tuple[int | None, int]:
        known = self._dates[index] if index < len(self._dates) else None
        return (None, 5) if known is None else (known, 1)

    def when_words(self, index: int, text: str, said: int | None) -> str:
        return ""


def request(
    index: MessageIndex, messages: Sequence[tuple[str, str]], *, now: int = START, kept: int = 50_000
) -> Filled:
    return fill_index(index, Request(messages), now, kept)


def on_path(index: MessageIndex, conversation: int | None = None) -> list[str]:
    """The texts on the path, in order."""
    where = "" if conversation is None else f"AND conversation = {conversation}"
    rows = index.all(f"SELECT id FROM messages WHERE state IN (0, 2) {where} ORDER BY conversation, place, id")
    return [row.text for row in index.rows([number for (number,) in rows])]
