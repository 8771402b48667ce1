"""Message indexes for tests: who said what, and when."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from Middleware.models.process import process
from Middleware.services.memory.message_texts import parts_of
from Middleware.utilities.conversations.message_keys import path_messages, recognised
from Middleware.utilities.discussions.message_index import message_rows
from Middleware.utilities.discussions.message_index.filling import Filled
from Middleware.utilities.discussions.message_index.filling import fill as fill_index
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.row_writing import NewMessage
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher
from Tests.utilities.discussions.vector_memory.lab import bytes_on_disk

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

DAY = 86_400
START = 1_770_000_000


databases: list[Database] = []
"""The state database in which the test's indexes are; empty: they are files."""


def opened(folder: Path, cipher: Cipher = NO_CIPHER, *, write: bool = True, **options: Any) -> MessageIndex:
    if databases:
        from Middleware.addons.postgres.message_store import PostgresMessages

        return PostgresMessages(databases[-1], str(folder), "", "chat", write=write, cipher=cipher, **options)
    return MessageIndex(str(folder / "message_index.db"), write=write, cipher=cipher, **options)


@contextlib.contextmanager
def another_process() -> Iterator[None]:
    """Let the block find nothing of what this process keeps in memory of indexes."""
    make = message_rows._orders
    kept = process().one(make)
    process().put(make, make())
    try:
        yield
    finally:
        process().put(make, kept)


def stored(folder: Path) -> bytes:
    """All that is stored of the index in a folder, with the files next to it."""
    if not databases:
        return bytes_on_disk(folder)
    rows = databases[-1].read(
        "SELECT concat(m, e) FROM wilmer.discussions d JOIN wilmer.messages m ON m.discussion = d.id "
        "LEFT JOIN wilmer.message_meta e ON e.discussion = d.id WHERE space = %s",
        (str(folder),),
    )
    return "\n".join(row[0] for row in rows).encode()


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
    """A request, as a front-end sends it: roles and texts. ``dates``: None where nothing has dates."""

    def __init__(self, messages: Sequence[tuple[str, str]], dates: Sequence[int | None] | None = ()) -> None:
        self.texts, self.dated = messages, dates is not None
        self._dates = dates or ()
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
