"""The changes of one transaction on an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

from Middleware.utilities.conversations.message_keys import Tail
from Middleware.utilities.conversations.path import ClientFirst
from Middleware.utilities.discussions.message_index import message_tables as tables
from Middleware.utilities.discussions.message_index.alignment import StoredRow, units_of
from Middleware.utilities.discussions.message_index.message_tables import (
    COMPARED,
    ELSEWHERE,
    FORGOTTEN,
    HAS_TEXT,
    ON_PATH,
    PART,
    MessageCodec,
    Statements,
)
from Middleware.utilities.discussions.message_index.order import Entry, Order
from Middleware.utilities.discussions.message_index.words import index_words

# Of tentative conversations, so many are kept.
MOST_TENTATIVE = 20
# The limit of rows may be exceeded by this share before rows go, so that not every request looks for them.
_SLACK = 1.05


class NewMessage(NamedTuple):
    """A message to store, in clear.

    Attributes:
        place: orders the rows of a conversation.
        key, key2: 8 bytes each, by which the message is recognised with or without its speaker.
        said: Unix seconds, None if unknown; said_from: how that is known.
        seen: Unix seconds of the newest request that held it.
        when_words: the date and the meaning of relative dates, which are searched as well.
    """

    conversation: int
    place: float
    key: bytes
    role: str
    text: str
    key2: bytes | None = None
    speaker: str | None = None
    said: int | None = None
    said_from: int = 5
    seen: int = 0
    state: int = ON_PATH
    when_words: str = ""


class ChatFacts(NamedTuple):
    """What is kept of the requests of a conversation.

    Attributes:
        tails: to recognise inserted messages; first: to recognise a deleted beginning.
        top: the ids of rows that a client had put before a window, such as a summary.
    """

    tails: tuple[Tail, ...] = ()
    first: ClientFirst | None = None
    top: tuple[int, ...] = ()

    @classmethod
    def read(cls, text: str | None) -> ChatFacts:
        """Return the facts as ``written`` gives them; none for a text that is missing or of another form."""
        try:
            tails, first, top = json.loads(text or "")
            return cls(
                tuple(Tail(length, tuple(beginning), tuple(keys)) for length, beginning, keys in tails),
                ClientFirst(*first) if first else None,
                tuple(map(int, top)),
            )
        except (TypeError, ValueError):
            return cls()

    def written(self) -> str:
        first = astuple(self.first) if self.first is not None else None
        return json.dumps([self.tails, first, self.top], separators=(",", ":"))


class Writing:
    """The changes; ``changes`` make the same ones to what is kept in memory.

    Attributes:
        changed: anything was written; recent: what the next writing is to find, see ``MessageIndex.recent``.
        found: the ids of rows that searches find from now on.
        erased: a text was deleted by the user, so that its words must not stay in the memory of any process.
    """

    def __init__(self, rows: Statements, codec: MessageCodec, *, in_file: bool) -> None:
        self._rows, self._codec, self._in_file = rows, codec, in_file
        self._next = 0
        self.changes: list[Callable[[Order], object]] = []
        self.changed = self.erased = False
        self.recent: Any = None
        self.found: list[int] = []

    def _do(self, statement: str, *values: object) -> None:
        self.changed = True
        self._rows.do(statement, [values])

    # -- rows ----------------------------------------------------------------------------------------------------
    def add(self, new: NewMessage, *, indexed: bool = True) -> StoredRow:
        """Store a message; ``indexed``: a search may find it."""
        encode, encode_key = self._codec.encode_text, self._codec.encode_key
        words = index_words(new.text)
        number = self._new_number()
        key2 = encode_key(new.key2) if new.key2 is not None else None
        key = encode_key(new.key)
        row = StoredRow(number, new.place, key, key2, new.role, new.speaker, new.said, new.said_from, new.state)
        self._do(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            number,
            new.conversation,
            new.place,
            row.key,
            key2,
            new.role,
            encode(new.speaker),
            encode(new.text),
            len(words),
            new.said,
            new.said_from,
            new.seen,
            new.state,
            encode(new.when_words) if new.when_words else "",
        )
        if indexed:
            entry = Entry(new.place, new.role, new.speaker, len(words), new.said, new.state)
            self._index(number, new.conversation, entry, " ".join(words), new.when_words)
        return row

    def _new_number(self) -> int:
        # Not one that a dropped row had: an index of words in memory may still know that.
        if not self._next:
            [(last,)] = self._rows.all("SELECT coalesce(max(id), 0) FROM messages")
            dropped = self._rows.all("SELECT value FROM meta WHERE name = ?", (tables.NEXT,))
            self._next = max(last + 1, *(int(value) for (value,) in dropped), 0)
        self._next += 1
        return self._next - 1

    def _index(self, number: int, conversation: int, entry: Entry, words: str, when_words: str) -> None:
        self._add_words(number, words, when_words, entry.said)
        self.changes.append(lambda order: order.put(number, conversation, entry))
        self.found.append(number)

    def add_vectors(self, vectors: Iterable[tuple[int, bytes]], model: str) -> None:
        """Store or replace a model's vectors of rows, as far as these still have a text."""
        statement = (
            f"INSERT OR REPLACE INTO message_embeddings SELECT id, ?, ? FROM messages WHERE id = ? AND {HAS_TEXT}"
        )
        for number, vector in vectors:
            self._do(statement, model, self._codec.encode_vector(vector), number)

    def set_state(self, numbers: Iterable[int], state: int) -> None:
        for number in numbers:
            self._do("UPDATE messages SET state = ? WHERE id = ?", state, number)
            self.changes.append(lambda order, number=number: order.change(number, state=state))  # type: ignore[misc]

    def set_speaker(self, row: StoredRow, role: str, speaker: str | None) -> None:
        """Note the role of a row, and its speaker, if there is one."""
        if speaker is not None:
            self._do("UPDATE messages SET speaker = ? WHERE id = ?", self._codec.encode_text(speaker), row.id)
            self.changes.append(lambda order: order.change(row.id, role=role, speaker=speaker))
        self._do("UPDATE messages SET role = ? WHERE id = ?", role, row.id)
        self.changes.append(lambda order: order.change(row.id, role=role))

    def set_said(self, number: int, said: int, source: int, when_words: Callable[[str], str]) -> None:
        """Note the time of a row; ``when_words`` makes from its text what a search for that time finds."""
        decode = self._codec.decode_text
        text, before, conversation = self._row(number)
        text, before = decode(text), decode(before)
        after = when_words(text)
        encoded = self._codec.encode_text(after) if after else ""
        statement = "UPDATE messages SET said = ?, said_from = ?, when_words = ? WHERE id = ?"
        self._do(statement, said, source, encoded, number)
        if after != before and not self._is_tentative(conversation):
            self._forget_words(number, text, before)
            self._add_words(number, " ".join(index_words(text)), after, said)
        self.changes.append(lambda order: order.change(number, said=said))

    def _row(self, number: int) -> tuple[Any, ...]:
        return self._rows.all("SELECT text, when_words, conversation FROM messages WHERE id = ?", (number,))[0]

    def _add_words(self, number: int, words: str, when_words: str, said: int | None) -> None:
        dates = " ".join(index_words(when_words))
        if self._in_file:
            self._do(tables.INSERT_WORDS, number, words, dates)
        else:
            self.changes.append(lambda order: order.add_words(number, words, dates, said))

    def _forget_words(self, number: int, text: str, when_words: str) -> None:
        words, dates = " ".join(index_words(text)), " ".join(index_words(when_words))
        if self._in_file:
            self._do(tables.DELETE_WORDS, number, words, dates)
        else:
            self.changes.append(lambda order: order.drop_words(number, words, dates))

    def drop(self, numbers: Iterable[int]) -> None:
        """Delete rows for good."""
        # Before the newest one goes.
        self._do(tables.PUT_META, tables.NEXT, str(self._new_number()))
        self._take_out(numbers, "DELETE FROM messages WHERE id = ?")

    def forget(self, numbers: Iterable[int]) -> None:
        """Empty the texts of rows that the user deletes; their keys stay, so that they do not come back."""
        self.erased = True
        emptied = f"state = {FORGOTTEN}, text = '', when_words = '', speaker = NULL, words = 0"
        self._take_out(numbers, f"UPDATE messages SET {emptied} WHERE id = ?")

    def _take_out(self, numbers: Iterable[int], statement: str) -> None:
        """Let no search find rows any more, after what the statement does with each."""
        decode = self._codec.decode_text
        for number in numbers:
            text, when_words, conversation = self._row(number)
            if not self._is_tentative(conversation):
                self._forget_words(number, decode(text), decode(when_words))
            self._do(statement, number)
            self._do("DELETE FROM message_embeddings WHERE message_id = ?", number)
            self.changes.append(lambda order, number=number: order.remove(number))  # type: ignore[misc]

    def leave_no_traces(self) -> None:
        """Drop the words of deleted entries from the index in the file."""
        if self._in_file:
            self._do(f"INSERT INTO {tables.WORDS} ({tables.WORDS}) VALUES ('optimize')")

    def limit(self, most: int) -> None:
        """Delete rows if there are too many: those elsewhere first, then the oldest."""
        # Never too low. One of both alone is found at once, both together are not.
        ends = "SELECT (SELECT min(id) FROM messages), (SELECT max(id) FROM messages)"
        [(first, last)] = self._rows.all(ends)
        if last is None or last - first < most * _SLACK:
            return
        [(count,)] = self._rows.all("SELECT count(*) FROM messages")
        if count > most * _SLACK:
            # What is on the path was seen with each request of its conversation.
            oldest = self._rows.all(
                "SELECT m.id FROM messages m JOIN conversations c ON c.id = m.conversation ORDER BY "
                f"m.state <> {ELSEWHERE}, CASE m.state WHEN {ELSEWHERE} THEN m.seen ELSE c.used END, "
                "m.conversation, m.place LIMIT ?",
                (count - most,),
            )
            self.drop([row[0] for row in oldest])

    # -- conversations -------------------------------------------------------------------------------------------
    def next_conversation(self) -> int:
        return int(self._rows.all("SELECT coalesce(max(id), 0) + 1 FROM conversations")[0][0])

    def _is_tentative(self, number: int) -> bool:
        found = self._rows.all("SELECT tentative FROM conversations WHERE id = ?", (number,))
        return bool(found and found[0][0])

    def settle(self, number: int) -> None:
        """Let the rows of a conversation be found, which has been tentative until now."""
        decode = self._codec.decode_text
        self._do("UPDATE conversations SET tentative = ? WHERE id = ?", False, number)
        columns = "id, place, role, speaker, text, words, said, state, when_words"
        for row in self._rows.all(f"SELECT {columns} FROM messages WHERE conversation = ?", (number,)):
            entry = Entry(row[1], row[2], decode(row[3]), row[5], row[6], row[7])
            self._index(row[0], number, entry, " ".join(index_words(decode(row[4]))), decode(row[8]))

    def renumber(self, number: int, room: Mapping[int, int]) -> None:
        """Give the rows of a conversation places with a distance of 1. ``room``: more in front of a row, by its id."""
        where = "conversation = ? ORDER BY place, id"
        rows = self._rows.all(f"SELECT {COMPARED} FROM messages WHERE {where}", (number,))
        place = -1
        for unit in units_of(StoredRow(*row) for row in rows):
            place += 1 + room.get(unit.rows[0].id, 0)
            for part, row in enumerate(unit.rows):
                self._do("UPDATE messages SET place = ? WHERE id = ?", place + part * PART, row.id)
                self.changes.append(
                    lambda order, number=row.id, at=place + part * PART: order.change(number, place=at)  # type: ignore[misc]
                )

    def put_chat(self, number: int, used: int, tentative: bool, facts: ChatFacts) -> None:
        """Note a request of a conversation; of tentative ones, only the newest are kept."""
        # The last one used has the highest number, if requests come within a second, or a clock goes back.
        for last, before in self._rows.all("SELECT id, used FROM conversations ORDER BY used DESC LIMIT 1"):
            used = max(used, before + (last != number))
        self._do("INSERT OR REPLACE INTO conversations VALUES (?, ?, ?)", number, used, tentative)
        text = self._codec.encode_text(facts.written())
        self._do(tables.PUT_META, f"{tables.CHAT}{number}", text)
        if tentative:
            others = self._rows.all("SELECT id FROM conversations WHERE tentative ORDER BY used DESC")
            for (other,) in others[MOST_TENTATIVE:]:
                self.drop_conversation(other)

    def drop_conversation(self, number: int) -> None:
        rows = self._rows.all("SELECT id FROM messages WHERE conversation = ?", (number,))
        self.drop([row[0] for row in rows])
        self._do("DELETE FROM conversations WHERE id = ?", number)
        self._do("DELETE FROM meta WHERE name = ?", f"{tables.CHAT}{number}")
