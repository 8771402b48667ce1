"""Forgetting messages for good, with all that was made of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.addons.discussions.editing import DiscussionEditor, MemoryKey, NoSuchMemoryError
from Middleware.models.messages import Message
from Middleware.services.memory.compactor_store import BLOCKS_FILE
from Middleware.services.memory.memory_documents import ELSEWHERE_FILE, MEMORIES_FILE
from Middleware.services.memory.pieces import StoredPiece, pieces_in
from Middleware.utilities.conversations.message_keys import path_messages
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE, INDEX_TABLE, INSERT_WORDS
from Middleware.utilities.discussions.message_index.terms import query_of, stands_in
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory import MemoryRow
from Middleware.utilities.text_utils import escape_braces


@dataclass(frozen=True)
class Choice:
    """Which messages to forget: those for which all that is given holds.

    Attributes:
        words: all of them are in the message, or name who said it, in any form; those in quotation marks stand side by
            side in it.
        before: it was sent before that time, in Unix seconds.
        number: of one of its rows.
        elsewhere: no conversation shows it any more.
    """

    words: str = ""
    before: int | None = None
    number: int | None = None
    elsewhere: bool = False


@dataclass(frozen=True)
class StoredMessage:
    """A message: its rows, and the keys by which it is known, as they are stored."""

    rows: Sequence[MessageRow]
    keys: frozenset[bytes]

    @property
    def number(self) -> int:
        return self.rows[0].id

    @property
    def text(self) -> str:
        return "\n".join(row.text for row in self.rows)


@dataclass
class Forgotten:
    """What goes: the messages, and the memories of the file and the searchable ones that were made of them."""

    messages: list[StoredMessage] = field(default_factory=list)
    memories: list[StoredPiece] = field(default_factory=list)
    searchable: list[MemoryRow] = field(default_factory=list)

    @property
    def made(self) -> list[str]:
        """The texts of all memories."""
        return [*(memory.text for memory in self.memories), *(row["memory_text"] for row in self.searchable)]


def find(reader: Reader, choice: Choice) -> Forgotten:
    """Return what ``forget`` would delete. Raises DataKeyError, UnreadableDataError, sqlite3.Error and OSError."""
    with reader.messages() as index:
        if index is None:
            return Forgotten()
        known = [
            StoredMessage(rows, frozenset(key for row in unit.rows for key in (row.key, row.key2) if key))
            for unit, rows in index.all_messages()
        ]
        chosen = _chosen(known, choice)
        numbers = {message.number for message in chosen}
        rest = {key for message in known if message.number not in numbers for key in message.keys}
        # What another message says as well stays true.
        gone = {key for message in chosen for key in message.keys} - rest
        pieces = [piece for name in (MEMORIES_FILE, ELSEWHERE_FILE) for piece in reader.pieces(name)]
        pieces += pieces_in(reader.object(BLOCKS_FILE).get("blocks", []), reader.discussion.display(BLOCKS_FILE))
        keys = _as_sent(index, gone, chosen, pieces)
        made = [piece for piece in pieces if piece.keys is not None and keys.intersection(piece.keys.sources)]
        return Forgotten(chosen, made, _searchable(reader, keys))


def forget(reader: Reader, found: Forgotten) -> None:
    """Delete what was found. The messages go last, so that an interrupted deletion can be repeated.

    Raises what ``find`` and the methods of DiscussionEditor raise.
    """
    DiscussionEditor(reader).forget(
        [memory.keys.id for memory in found.memories if memory.keys],
        [row["id"] for row in found.searchable],
        [message.text for message in found.messages],
    )
    with reader.messages(write=True) as index:
        if index is not None:
            index.forget([row.id for message in found.messages for row in message.rows])


def forget_one(reader: Reader, key: MemoryKey) -> None:
    """Forget the message that a key names. Raises NoSuchMemoryError, and what ``forget`` raises."""
    found = find(reader, Choice(number=key.number))
    rows = [row for message in found.messages for row in message.rows if row.id == key.number]
    if not rows or MemoryKey.of("message", key.number, rows[0].text) != key:
        raise NoSuchMemoryError("It is no longer there; nothing was changed.")
    forget(reader, found)


def _chosen(known: Iterable[StoredMessage], choice: Choice) -> list[StoredMessage]:
    found = [
        message
        for message in known
        if (choice.before is None or all(_is_before(row, choice.before) for row in message.rows))
        and (choice.number is None or any(row.id == choice.number for row in message.rows))
        and (not choice.elsewhere or all(row.state == ELSEWHERE for row in message.rows))
    ]
    return _with_words(found, choice.words) if choice.words else found


def _is_before(row: MessageRow, time: int) -> bool:
    return row.said is not None and row.said < time


def _with_words(messages: Sequence[StoredMessage], wanted: str) -> list[StoredMessage]:
    """Return the messages that have all words, also those that no search finds."""
    query = query_of(wanted)
    if not query.words:
        return []
    words = [index_words(f"{message.rows[0].speaker or ''} {message.text}") for message in messages]
    every = " AND ".join("(" + " OR ".join(f'"{word}"' for word in term.words) + ")" for term in query.terms)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(INDEX_TABLE)
        database.executemany(INSERT_WORDS, ((number, " ".join(one), "") for number, one in enumerate(words)))
        found = database.execute("SELECT rowid FROM messages_fts WHERE messages_fts MATCH ? ORDER BY rowid", (every,))
        return [
            messages[number]
            for (number,) in found.fetchall()
            if all(stands_in(phrase, words[number]) for phrase in query.phrases)
        ]


def _as_sent(
    index: MessageIndex, gone: Collection[bytes], messages: Iterable[StoredMessage], pieces: Iterable[StoredPiece]
) -> set[str]:
    """Return the keys that are stored as ``gone``, as memories have them: in clear.

    Of encrypted rows, only the keyed hash is stored. It is compared with those of the keys that memories of the file
    name, and of the texts of the messages.
    """
    named = {source for piece in pieces if piece.keys is not None for source in piece.keys.sources}
    said = [
        Message(role=message.rows[0].role, content=escape_braces(text))
        for message in messages
        for text in _forms(message)
    ]
    made = (key for one in said for message in path_messages([one]) for key in message.keys)
    return {key for key in {*named, *made, *(key.hex() for key in gone)} if index.stored_key(key) in gone}


def _forms(message: StoredMessage) -> Iterator[str]:
    speaker = message.rows[0].speaker
    for separator in ("\n\n", "\n", " "):
        text = separator.join(row.text for row in message.rows)
        yield from (text, f"{speaker}: {text}") if speaker else (text,)


def _searchable(reader: Reader, keys: Collection[str]) -> list[MemoryRow]:
    """Return the searchable memories of the chunks that were made of any of these messages."""
    if not keys or not reader.discussion.has_memories:
        return []
    with reader.memories() as memories:
        chunks = [piece.id for piece in memories.chunks(keys) if not set(keys).isdisjoint(piece.sources)]
        return [row for rows in memories.facts_of(chunks).values() for row in rows] if chunks else []
