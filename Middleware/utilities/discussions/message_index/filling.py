"""Bring the index up to date with the messages of a request, and say which of its rows they are.

What a client no longer sends was not deleted: only what is missing between or behind the messages that it sends is.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from Middleware.utilities.conversations.message_keys import PathMessage, injected, next_tails
from Middleware.utilities.conversations.path import (
    Place,
    beginning_is_deleted,
    client_first,
    conversation_of,
    is_tentative,
    kept_greeting,
    longest_in_order,
)
from Middleware.utilities.discussions.message_index.alignment import Unit, align, gaps_of
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.message_tables import (
    ELSEWHERE,
    FORGOTTEN,
    ON_PATH,
    PART,
    PROVISIONAL,
)
from Middleware.utilities.discussions.message_index.row_writing import ChatFacts, NewMessage, Writing
from Middleware.utilities.said_times import DAY_SECONDS, Source

# New messages that are stored before the answer; the rest of a long history follows behind it.
MOST_AT_ONCE = 2_000
# Messages behind a known one that are compared to choose between rows with the same key.
_COMPARED = 8
# The distance of neighbours, and of messages between which some were inserted or deleted.
_STEP, _NEAR = 1.5, 16
# A beginning that was deleted is among the first rows of its conversation.
_FIRST_ROWS = 10
# Messages at the end in which a request differs from the one before, at most; the least that both have in common.
_CHANGED, _IN_COMMON = 4, 4
# By how many messages a window moves on at most, to be recognised without a look at the rows.
_MOST_SHIFT = 20
# Rows behind a greeting: a client leaves out at least so many, and sends the newest.
_LEFT_OUT, _NEWEST = 4, 8


class Incoming(Protocol):
    """The messages of a request, as they will be stored."""

    @property
    def messages(self) -> Sequence[PathMessage]: ...

    @property
    def dated(self) -> bool:
        """Return whether messages get dates."""
        ...

    def speaker(self, index: int) -> str | None: ...

    def parts(self, index: int) -> Sequence[str]:
        """Return the texts of the rows of a message; none if it is not stored."""
        ...

    def said(self, index: int) -> tuple[int | None, int]:
        """Return its time, in Unix seconds, and how that is known; a lower number is better."""
        ...

    def when_words(self, index: int, text: str, said: int | None) -> str: ...


def rows_of(
    incoming: Incoming, number: int, conversation: int, place: float, time: tuple[int | None, int], seen: int
) -> list[NewMessage]:
    """Return the rows of a message, the first of them at ``place``; ``time`` and ``seen`` as in ``NewMessage``."""
    message, (said, source) = incoming.messages[number], time
    key, key2 = bytes.fromhex(message.key), bytes.fromhex(message.other) or None
    return [
        NewMessage(
            conversation,
            place + part * PART,
            key,
            message.role,
            text,
            key2,
            incoming.speaker(number),
            said,
            source,
            seen,
            when_words=incoming.when_words(number, text, said),
        )
        for part, text in enumerate(incoming.parts(number))
    ]


@dataclass
class Filled:
    """Which rows the messages of a request are.

    Attributes:
        conversation: its number; tentative: it has just begun, and nothing of it is found.
        rows: the ids of the rows of each message; none for one that was left out, or is not stored yet.
        hidden: the rows that this request shows not to be on its path.
        later: the messages that are stored behind the answer.
        new: the ids of the rows that searches find since this request.
        end: the place of the answer.
    """

    conversation: int
    tentative: bool
    rows: list[tuple[int, ...]]
    hidden: set[int] = field(default_factory=set)
    later: list[NewMessage] = field(default_factory=list)
    end: float = 0
    new: list[int] = field(default_factory=list)

    @property
    def states(self) -> list[tuple[int, bool]]:
        """Return which rows are on the path and which are not, as far as this request says so."""
        return [*((number, True) for ids in self.rows for number in ids), *((number, False) for number in self.hidden)]


class Recent(NamedTuple):
    """The last request of an index: the next one mostly goes on where it ended."""

    conversation: int
    tentative: bool
    facts: ChatFacts
    history: Sequence[PathMessage]
    units: Sequence[Unit | None]


class _Stand(NamedTuple):
    """The place of a new message, and the one that it was made of by an edit."""

    place: float
    instead: Unit | None


class _Start(NamedTuple):
    """From where on a history is compared with the rows of its conversation.

    Attributes:
        found: the units of the messages before that.
        place: of the first row; None: nothing to compare with.
        window: rows on the path stand before it, so that unknown messages at the beginning are the client's own.
        goes_on: the request goes on where the last one ended.
    """

    found: list[Unit | None]
    place: float | None = None
    window: bool = False
    goes_on: bool = False


def _in_common(recent: Recent, history: Sequence[PathMessage]) -> tuple[int, int] | None:
    """Return where the last request has the first message of this one, and how many of its messages follow there.

    None unless both differ at their ends only, as the next request of a chat does, or a window that has moved on.
    """
    before, end = recent.history, len(recent.history) - _CHANGED
    if len(history) < _IN_COMMON:
        return None
    for shift in range(min(len(before), _MOST_SHIFT)):
        if before[shift] == history[0]:
            pairs = zip(before[shift:] if shift else before, history, strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if same >= _IN_COMMON and shift + same >= end:
                break
    else:
        return None
    # From now on, what stood before the first message may count as deleted.
    first = recent.facts.first
    is_now = beginning_is_deleted(history, first) and not beginning_is_deleted(before, first)
    return None if is_now or (shift and recent.facts.top) else (shift, same)


def fill(index: MessageIndex, incoming: Incoming, now: int, kept: int) -> Filled:
    """Store what is new, and return which rows the messages are.

    ``now``: Unix seconds. ``kept``: the most rows of the discussion.
    """
    with index.writing() as writing:
        filled = _Filling(index, incoming, now, kept, writing).run()
        filled.new = writing.found
        return filled


class _Filling:
    """One request."""

    def __init__(self, index: MessageIndex, incoming: Incoming, now: int, kept: int, writing: Writing) -> None:
        self._index, self._incoming, self._now, self._kept = index, incoming, now, kept
        self._writing = writing
        self._all = list(incoming.messages)
        self._recent: Recent | None = index.recent()
        # Of the messages that no front-end has inserted: their indexes, and the messages.
        self._numbers: list[int] = []
        self._history: list[PathMessage] = []
        self._places: list[list[Place]] = []

    def run(self) -> Filled:
        self._leave_out(self._recent.facts if self._recent is not None else ChatFacts())
        if self._recent is not None and (same := _in_common(self._recent, self._history)) is not None:
            return self._store(self._recent.conversation, self._recent.facts, self._behind(self._recent, *same))
        known = self._index.known(self._all)
        number = conversation_of(self._all, known)
        if number is None:
            self._leave_out(ChatFacts())
            return self._store(None, ChatFacts(), _Start([]))
        facts = self._index.chat_facts(number)
        self._leave_out(facts)
        found = next(chat.places for chat in known if chat.number == number)
        self._places = [
            sorted({place for key in message.keys for place in found.get(key, ())}) for message in self._history
        ]
        return self._store(number, facts, self._start(number, facts))

    def _leave_out(self, facts: ChatFacts) -> None:
        left_out = injected(self._all, facts.tails)
        self._numbers = [index for index in range(len(self._all)) if index not in left_out]
        self._history = [self._all[index] for index in self._numbers]

    # -- where the rows begin ------------------------------------------------------------------------------------
    @staticmethod
    def _behind(recent: Recent, shift: int, same: int) -> _Start:
        known = list(recent.units[shift : shift + same])
        last = next((index for index in reversed(range(same)) if known[index] is not None), 0)
        unit = known[last]
        return _Start(known[:last], unit.place if unit is not None else None, goes_on=True)

    def _start(self, number: int, facts: ChatFacts) -> _Start:
        """Return where the first known message stands, and what of the beginning of the conversation is compared."""
        found = self._top(facts)
        first = next((index for index in range(len(found), len(self._history)) if self._places[index]), None)
        if first is None:
            return _Start(found)
        place = self._best_place(first)
        if not found and first == 0 and (behind := self._behind_greeting(number, place)) is not None:
            return behind
        before = self._index.path_units(number, before=place, limit=_FIRST_ROWS + 1)
        unknown = first - len(found)
        if before and (
            len(before) == unknown
            or (len(before) < _FIRST_ROWS and not unknown and beginning_is_deleted(self._history, facts.first))
        ):
            return _Start(found, before[0].place)
        return _Start(found, place, window=bool(before))

    def _top(self, facts: ChatFacts) -> list[Unit | None]:
        """Return the rows of the first messages if these are what the client has put before the window last time."""
        units = self._index.units(facts.top)
        keys = self._index.keys(self._history[: len(units)])
        pairs = zip(units, keys, strict=False)
        return [unit for unit, _ in itertools.takewhile(lambda pair: pair[0].is_one_of(pair[1]), pairs)]

    def _best_place(self, first: int) -> float:
        """Return the row behind which most of the next messages follow; of equal ones the newest on the path."""

        def following(place: Place) -> tuple[int, int]:
            choices: list[list[float]] = []
            exact = 0
            for index, places in enumerate(self._places[first + 1 : first + 1 + _COMPARED], 1):
                near = [other.at for other in places if place.at < other.at <= place.at + _NEAR]
                # An edited message is likelier than a new one in front of which another is cut off.
                exact += any(abs(at - place.at - index) < _STEP / 3 for at in near)
                choices.append(near)
            return len(longest_in_order(choices)), exact

        return max((*following(place), place.on_trail, place.at) for place in self._places[first])[3]

    def _behind_greeting(self, number: int, place: float) -> _Start | None:
        """Return the start of a client that keeps the greeting and cuts behind it."""
        behind = 1
        if len(self._places) > 1 and any(place < second.at <= place + _STEP for second in self._places[1]):
            behind = 2
        if behind >= len(self._history) or not self._places[behind]:
            return None
        window = self._best_place(behind)
        units = self._index.path_units(number, start=place, limit=behind + _LEFT_OUT)
        # Of what is left out, no more than needed.
        units += self._index.path_units(number, start=window, limit=len(self._history) + _NEWEST)
        if len({unit.ids for unit in units}) < len(units):
            return None
        gap = kept_greeting(self._history, self._index.keys_of(units, self._history))
        return _Start(list(units[: gap.kept]), window) if gap is not None else None

    # -- storing -------------------------------------------------------------------------------------------------
    def _store(self, known: int | None, facts: ChatFacts, start: _Start) -> Filled:
        writing, history, begins = self._writing, self._history, len(start.found)
        number = writing.next_conversation() if known is None else known
        before = {unit.ids for unit in start.found if unit is not None}
        stretch = self._index.stretch(number, start.place) if start.place is not None else []
        # A variant may stand at the place of another message.
        units = [unit for unit in stretch if unit.ids not in before]
        found = start.found + align(self._index.keys(history[begins:]), units)
        gaps = gaps_of(found[begins:], units)
        in_front = start.place is not None and any(gap.new and gap.before is None for gap in gaps)
        front = self._index.place_before(number, start.place or 0.0) if in_front else None
        places = [gap.places(front) for gap in gaps]
        if None in places:
            full = [gap for gap, there in zip(gaps, places, strict=True) if there is None]
            writing.renumber(number, {gap.behind.rows[0].id: len(gap.new) for gap in full if gap.behind is not None})
            self._recent = None
            return self.run()
        tentative = self._settle(known, number)
        filled = Filled(number, tentative, [()] * len(self._all))
        for index, unit in enumerate(found):
            if unit is not None:
                filled.rows[self._numbers[index]] = unit.ids
                if index >= begins:
                    self._confirm(unit, self._numbers[index])
        filled.hidden = {row.id for gap in gaps for unit in gap.gone for row in unit.rows}
        stands = {
            begins + index: _Stand(place, gap.replaced.get(index))
            for gap, there in zip(gaps, places, strict=True)
            for index, place in zip(gap.new, there or (), strict=True)
        }
        self._add(filled, found, stands)
        self._note(filled, found, facts, self._top_of(filled, start, stands, facts))
        return filled

    def _settle(self, known: int | None, number: int) -> bool:
        """Return whether the conversation is tentative; let its rows be found from the moment when it is not."""
        before = known is None or self._index.is_tentative(number)
        tentative = before and is_tentative(self._history)
        if known is not None and before and not tentative:
            self._writing.settle(number)
        return tentative

    def _confirm(self, unit: Unit, number: int) -> None:
        """Note what this request says of a message that is stored."""
        incoming, writing = self._incoming, self._writing
        role, (said, source) = incoming.messages[number].role, incoming.said(number)
        # What the user has deleted for good gets nothing back.
        for row in (row for row in unit.rows if row.state != FORGOTTEN):
            if row.state in (ELSEWHERE, PROVISIONAL):
                writing.set_state((row.id,), ON_PATH)
            speaker = incoming.speaker(number) if row.speaker is None else None
            if row.role != role or speaker is not None:
                writing.set_speaker(row, role, speaker)
            if said is not None and source < row.said_from:
                writing.set_said(row.id, said, source, lambda text: incoming.when_words(number, text, said))

    def _add(self, filled: Filled, found: list[Unit | None], stands: dict[int, _Stand]) -> None:
        """Store the new messages, and what is missing in their stead in ``found``; the oldest of many come later."""
        self._writing.set_state(filled.hidden, ELSEWHERE)
        # What the limit of rows would drop at once is not stored.
        wanted = sorted(index for index in stands if index >= len(found) - self._kept)
        for count, index in enumerate(wanted):
            rows = self._rows_of(filled.conversation, found, index, stands[index])
            if count < len(wanted) - MOST_AT_ONCE:
                filled.later += rows
                continue
            stored = [self._writing.add(row, indexed=not filled.tentative) for row in rows]
            filled.rows[self._numbers[index]] = tuple(row.id for row in stored)
            found[index] = Unit(tuple(stored)) if stored else None

    def _rows_of(self, conversation: int, found: list[Unit | None], index: int, stands: _Stand) -> list[NewMessage]:
        number, time = self._numbers[index], self._incoming.said(self._numbers[index])
        row = stands.instead.rows[0] if stands.instead is not None else None
        if row is not None and row.said_from < min(time[1], Source.ARRIVAL):
            # An edited message keeps its first time, but for an arrival.
            time = row.said, row.said_from
        elif row is not None and time[1] == Source.UNKNOWN and self._incoming.dated:
            behind = (unit.rows[0].said for unit in found[index + 1 :] if unit is not None)
            # Times do not run backwards: an old message has no date if the next one is much older than its edit.
            if all(at is None or at >= self._now - DAY_SECONDS for at in behind):
                time = self._now, Source.ARRIVAL
        return rows_of(self._incoming, number, conversation, stands.place, time, self._now)

    def _top_of(self, filled: Filled, start: _Start, new: Collection[int], facts: ChatFacts) -> tuple[int, ...]:
        """Return the rows that the client has put before its window. Earlier ones in their place go elsewhere."""
        if not start.window:
            return facts.top if start.goes_on else ()
        begins = len(start.found)
        beginning = itertools.takewhile(lambda index: index in new, range(begins, len(self._history)))
        found = [filled.rows[self._numbers[index]] for index in (*range(begins), *beginning)]
        top = tuple(number for ids in found for number in ids)
        numbers = set(self._numbers)
        left_out = [message for index, message in enumerate(self._all) if index not in numbers]
        inserted = self._index.keys(left_out)
        for unit in self._index.units(sorted(set(facts.top).difference(top))):
            # Replaced, or recognised as a message that the front-end inserts.
            if begins in new or any(unit.is_one_of(keys) for keys in inserted):
                self._writing.set_state(unit.ids, ELSEWHERE)
                filled.hidden |= set(unit.ids)
        return top

    def _note(self, filled: Filled, found: list[Unit | None], facts: ChatFacts, top: tuple[int, ...]) -> None:
        """Keep what the next request is compared with."""
        facts = ChatFacts(next_tails(self._all, facts.tails), client_first(self._history, facts.first), top)
        filled.end = next((unit.place for unit in reversed(found) if unit is not None), -1.0) + 1
        self._writing.put_chat(filled.conversation, self._now, filled.tentative, facts)
        self._writing.limit(self._kept)
        self._writing.recent = Recent(filled.conversation, filled.tentative, facts, self._history, found)


def add_answer(index: MessageIndex, filled: Filled, rows: Sequence[NewMessage], kept: int) -> None:
    """Store the answer to a request, until the next request confirms or replaces it, and what was left of the history.

    An answer at the same place that no request has confirmed is replaced.
    """
    with index.writing() as writing:
        recent = index.recent()
        for message in filled.later:
            writing.add(message, indexed=not filled.tentative)
        later = index.path_units(filled.conversation, start=filled.end - _STEP / 4, limit=_NEWEST) if rows else []
        writing.set_state((row.id for unit in later for row in unit.rows if row.state == PROVISIONAL), ELSEWHERE)
        # The next request was quicker, and has brought the answer, or another one.
        if not any(row.state == ON_PATH for unit in later for row in unit.rows):
            for message in rows:
                writing.add(message, indexed=not filled.tentative)
        writing.limit(kept)
        writing.recent = recent
        filled.new += writing.found
