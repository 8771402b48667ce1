"""The rows of an index in the order of the conversation, kept in memory between two requests.

A search adds to the score of a message what its neighbours contain. Which rows are neighbours is decided here: those
before and after on the path in their conversation, without a long time in between. Each row on the path has a slot, a
number, and the slots of neighbours follow each other.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from Middleware.utilities.discussions.message_index.message_tables import (
    DELETE_WORDS,
    ELSEWHERE,
    FORGOTTEN,
    INDEX_TABLE,
    INSERT_WORDS,
    ON_PATH,
    PROVISIONAL,
    Versions,
)

# Seconds. After a longer pause, a message has nothing to do with the one before.
LONGEST_PAUSE = 6 * 3600
# The slots of a conversation begin at its number, shifted by so many bits.
SLOT_BITS = 24
# What keeps two parts of a conversation apart: neighbours are at most two slots away.
_GAP = 3
ON_THE_PATH = (ON_PATH, PROVISIONAL)
# No time of a row is equal to this.
_UNKNOWN = (-1 << 63, "")


class Entry(NamedTuple):
    """What a search needs of a row, without its text. ``said``: Unix seconds, None if unknown."""

    place: float
    role: str
    speaker: str | None
    words: int
    said: int | None
    state: int


class _Chat:
    """The rows of one conversation, and the share of its neighbours in a score."""

    def __init__(self, number: int) -> None:
        self.base = number << SLOT_BITS
        self.entries: dict[int, Entry] = {}
        # None before the first slot.
        self.last: tuple[int, Entry] | None = None
        self.laid = True
        # Of rows without the name of a speaker: how many there are of each role, and their words.
        self.speakers: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._words: Counter[str] = Counter()

    def count(self, entry: Entry, sign: int) -> None:
        if entry.speaker is not None:
            self.speakers[entry.speaker] += sign
        if entry.speaker is None and entry.state != FORGOTTEN:
            self._counts[entry.role] += sign
            self._words[entry.role] += sign * entry.words

    @property
    def ratio(self) -> float:
        """How much less a talkative assistant's messages and neighbours say; 1 among equals, at least 0.3."""
        user, assistant = (self._words[role] / max(1, self._counts[role]) for role in ("user", "assistant"))
        return min(1.0, max(0.3, math.sqrt(user / assistant))) if user and assistant else 1.0


class Order:
    """The rows of all conversations that are no longer tentative. Hold ``lock`` while you use them.

    Attributes:
        versions: of the index, when it was read last.
        slots: the slot of each row on the path; ``at``: the reverse.
        sizes: the words of each slot; ``by_speaker``: the slots of each speaker, or of a role for rows without one.
        count, words: of all rows in the index of words.
        speakers: how many rows each speaker has.
        recent: the last request, with the version that it has left.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # The words of rows of which there is no index elsewhere; and of each such row its time, and the words of that.
        self._words: sqlite3.Connection | None = None
        self.indexed: dict[int, tuple[int | None, str]] = {}
        self.recent: tuple[Versions, object] | None = None
        self.clear()

    def __del__(self) -> None:
        if self._words is not None:
            self._words.close()

    def clear(self) -> None:
        """Forget the order of the rows; their words do not change."""
        self.versions = Versions()
        self.slots: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.by_speaker: dict[tuple[str | None, str], set[int]] = {}
        self.count = self.words = 0
        self.speakers: Counter[str] = Counter()
        self._chats: dict[int, _Chat] = {}
        self._chat_of: dict[int, _Chat] = {}

    # -- changes -------------------------------------------------------------------------------------------------
    def put(self, number: int, conversation: int, entry: Entry) -> None:
        """Add a row, or replace what is known of it."""
        self.remove(number)
        chat = self._chats.setdefault(conversation, _Chat(conversation))
        chat.entries[number], self._chat_of[number] = entry, chat
        self._count(chat, entry, 1)
        if not chat.laid or entry.state not in ON_THE_PATH:
            return
        if chat.last is None or entry.place > chat.last[1].place:
            self._append(chat, number, entry)
        else:
            chat.laid = False

    def change(self, number: int, **fields: Any) -> None:
        """Replace fields of the entry of a row."""
        chat = self._chat_of.get(number)
        if chat is None:
            return
        entry = chat.entries[number]
        new = entry._replace(**fields)
        self._count(chat, entry, -1)
        chat.entries[number] = new
        self._count(chat, new, 1)
        # An answer that is confirmed keeps its slot.
        is_kept = new == entry._replace(state=new.state) and (entry.state in ON_THE_PATH) == (new.state in ON_THE_PATH)
        chat.laid = chat.laid and is_kept

    def remove(self, number: int) -> None:
        chat = self._chat_of.pop(number, None)
        if chat is not None:
            self._count(chat, chat.entries.pop(number), -1)
            chat.laid = False

    def _count(self, chat: _Chat, entry: Entry, sign: int) -> None:
        chat.count(entry, sign)
        if entry.state != FORGOTTEN:
            self.count += sign
            self.words += sign * entry.words
        if entry.speaker is not None:
            self.speakers[entry.speaker] += sign

    # -- slots ---------------------------------------------------------------------------------------------------
    def lay(self) -> None:
        """Give slots to the rows of all conversations that have changed. Call it before a search."""
        for chat in self._chats.values():
            if not chat.laid:
                self._lay(chat)

    def _lay(self, chat: _Chat) -> None:
        last = chat.last[0] if chat.last is not None else chat.base
        for slot in range(chat.base, last + 1):
            if (number := self.at.pop(slot, None)) is not None:
                del self.slots[number], self.sizes[slot]
        for slots in self.by_speaker.values():
            slots.difference_update(range(chat.base, last + 1))
        chat.last, chat.laid = None, True
        on_path = [(entry.place, number) for number, entry in chat.entries.items() if entry.state in ON_THE_PATH]
        for _, number in sorted(on_path):
            self._append(chat, number, chat.entries[number])

    def _append(self, chat: _Chat, number: int, entry: Entry) -> None:
        slot = chat.base if chat.last is None else chat.last[0] + (_GAP if _is_far(chat.last[1], entry) else 1)
        self.slots[number], self.at[slot], self.sizes[slot] = slot, number, entry.words
        key = entry.speaker, "" if entry.speaker is not None else entry.role
        self.by_speaker.setdefault(key, set()).add(slot)
        chat.last = slot, entry

    # -- words of rows without another index ---------------------------------------------------------------------
    @property
    def index(self) -> sqlite3.Connection:
        """The index of words in memory. It holds no texts."""
        if self._words is None:
            self._words = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._words.execute(INDEX_TABLE)
        return self._words

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Add the words of many rows faster. Those that were added stay if the block raises."""
        self.index.execute("BEGIN")
        try:
            yield
        finally:
            self.index.execute("COMMIT")

    def add_words(self, number: int, words: str, dates: str, said: int | None) -> None:
        self.index.execute(INSERT_WORDS, (number, words, dates))
        self.indexed[number] = said, dates

    def drop_words(self, number: int, words: str, dates: str) -> None:
        if number in self.indexed:
            self.index.execute(DELETE_WORDS, (number, words, dates))
            del self.indexed[number]

    def forget_words(self) -> None:
        if self._words is not None:
            self._words.close()
        self._words = None
        self.indexed.clear()

    def without_words(self) -> list[int]:
        """Return the ids of the rows whose words are not indexed, or not those of their present time."""
        known = self.indexed.get
        return [
            number
            for number, chat in self._chat_of.items()
            if (entry := chat.entries[number]).state != FORGOTTEN and known(number, _UNKNOWN)[0] != entry.said
        ]

    # -- reading -------------------------------------------------------------------------------------------------
    @property
    def marks(self) -> tuple[int, int]:
        """What differs if this object lacks a row, or has one that is gone: the number and the sum of all ids."""
        return len(self._chat_of), sum(self._chat_of)

    def entry(self, number: int) -> Entry:
        return self._chat_of[number].entries[number]

    def conversation(self, number: int) -> int:
        return self._chat_of[number].base >> SLOT_BITS

    def ratios(self) -> dict[int, float]:
        """Return the ratio of each conversation."""
        return {number: chat.ratio for number, chat in self._chats.items()}

    def longest(self) -> float:
        """Return the number of words above which a row counts for less."""
        return 1.5 * self.words / max(1, self.count)

    def as_shown(self, states: Sequence[tuple[int, bool]]) -> Order:
        """Return the rows as a request shows them. Mostly this object: each request leaves its states in the file."""
        if not self.differs(states):
            return self
        shown, on = Order(), dict(states)
        for number, chat in self._chat_of.items():
            entry = chat.entries[number]
            if number in on and entry.state != FORGOTTEN:
                entry = entry._replace(state=ON_PATH if on[number] else ELSEWHERE)
            shown.put(number, chat.base >> SLOT_BITS, entry)
        shown.lay()
        return shown

    def differs(self, states: Iterable[tuple[int, bool]]) -> bool:
        """Return whether a row is not on or off the path as ``states`` say."""
        return any(
            number in self._chat_of and (number in self.slots) != shown
            for number, shown in states
            if number not in self._chat_of or self.entry(number).state != FORGOTTEN
        )

    def only(self, scores: dict[int, float], conversation: int) -> dict[int, float]:
        """Return the scores of one conversation."""
        return {slot: score for slot, score in scores.items() if slot >> SLOT_BITS == conversation}

    def around(self, number: int, count: int) -> tuple[list[int], list[int]]:
        """Return the rows before and after a row on the path, at most ``count`` each."""
        if not count:
            return [], []
        slot, at = self.slots[number], self.at
        before = [at[slot - step] for step in range(count, 0, -1) if slot - step in at]
        return before, [at[slot + step] for step in range(1, count + 1) if slot + step in at]

    def addressee(self, number: int) -> str | None:
        """Return to whom a row speaks: the other one of two speakers, in groups the speaker before."""
        chat = self._chat_of[number]
        speaker, slot = chat.entries[number].speaker, self.slots[number]
        others = {name for name, count in chat.speakers.items() if count and name != speaker}
        if len(others) == 1:
            return others.pop()
        for step in range(slot - 1, chat.base - 1, -1):
            if step in self.at:
                before = chat.entries[self.at[step]].speaker
                if before not in (None, speaker):
                    return before
        return None


def _is_far(before: Entry, entry: Entry) -> bool:
    if before.said is None or entry.said is None:
        return False
    return abs(entry.said - before.said) > LONGEST_PAUSE
