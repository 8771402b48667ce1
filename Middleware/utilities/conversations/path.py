"""Which conversation a request belongs to, and which stored texts were made of the messages of a request.

Users edit, delete, regenerate, go back and branch off; front-ends cut off the beginning of a conversation. Everything
here is pure: it compares the keys of the messages of a request with stored keys, whatever they are stored in.

A *history* is the messages of a request without those of role ``system`` and without blank ones, as the outermost
workflow got them. Injected messages are left out first (``injected`` and ``without``), so that all indexes are those
of the history without them.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from Middleware.utilities.conversations.message_keys import PathMessage as PathMessage
from Middleware.utilities.conversations.message_keys import Tail as Tail
from Middleware.utilities.conversations.message_keys import injected as injected
from Middleware.utilities.conversations.message_keys import next_tails as next_tails
from Middleware.utilities.conversations.message_keys import path_messages as path_messages
from Middleware.utilities.conversations.message_keys import recognised as recognised
from Middleware.utilities.conversations.message_keys import without as without

Positions = Mapping[str, Sequence[int]]
"""Key -> the indexes of the messages that have it, ascending."""

# -- conversations -----------------------------------------------------------------------------------------------------

# A greeting and "Hi" begin many conversations.
_EVIDENCE = 4
# A message that is repeated more often says little about its place.
_MOST_PLACES = 16
_TENTATIVE_USERS, _TENTATIVE_MESSAGES = 2, 6
# From one message to the next, of rows that were inserted as well.
_STEP = 1.5


class Place(NamedTuple):
    """Where a key stands in a stored conversation.

    Attributes:
        at: orders the messages; from one to the next it is at most 1.5 more, to any other more.
        on_trail: it belongs to the newest trail; of rows, to what was on the path last.
    """

    at: float
    on_trail: bool = True


@dataclass(frozen=True)
class Known:
    """A stored conversation, as far as it concerns a history.

    Attributes:
        number: its number within the discussion.
        used: when a request last belonged to it; a higher number is later.
        first: the keys of its first messages, at most 4.
        length: the number of messages of its newest trail; of rows, of those that were on the path last.
        places: key -> where it stands, ascending, with what is elsewhere. Keys that no message of the history has may
            be missing.
    """

    number: int
    used: int = 0
    first: Sequence[str] = ()
    length: int = 0
    places: Mapping[str, Sequence[Place]] = field(default_factory=dict)


def known_keys(
    number: int, used: int, first: Sequence[str], trail: Sequence[str], elsewhere: Iterable[Sequence[str]] = ()
) -> Known:
    """Return a stored conversation whose keys are all in memory.

    Args:
        trail: the keys of its newest trail, in order.
        elsewhere: sequences of keys that stood in it at some time, in the order of the conversation.
    """
    places: dict[str, list[Place]] = defaultdict(list)
    for index, key in enumerate(trail):
        places[key].append(Place(index))
    at = len(trail)
    for sequence in elsewhere:
        at += 2
        for key in sequence:
            places[key].append(Place(at, False))
            at += 1
    return Known(number, used, first, len(trail), places)


def conversation_of(history: Sequence[PathMessage], known: Iterable[Known]) -> int | None:
    """Return the number of the stored conversation to which a history belongs; None for one of its own.

    The newest user message is not counted. A conversation in which the first 4 messages agree, of whose newest trail
    half occurs, or in which at least 4 messages of the history occur in order, either half of it or its first 4 side
    by side. Of several, the one with most messages in common, then the one used last. Two messages in common, a
    greeting and "Hi", are never enough, unless they are half of what there is.
    """
    rest = _without_newest_user(history)
    keys = {key for message in rest for key in message.keys}
    alike = [stored for stored in known if not keys.isdisjoint(stored.places) or _begins_alike(rest, stored)]
    if len(alike) == 1 and _begins_alike(rest, alike[0]):
        return alike[0].number
    fitting = [(common, stored.used, stored.number) for stored in alike if (common := _in_common(rest, stored))]
    return max(fitting)[2] if fitting else None


def is_tentative(history: Sequence[PathMessage]) -> bool:
    """Return whether a conversation has just begun: before its second user message and its sixth message.

    So are titles, tags and single questions of front-ends, of which nothing may be written. What belongs to a stored
    conversation that was further is not tentative.
    """
    users = sum(message.role == "user" for message in history)
    return users < _TENTATIVE_USERS and len(history) < _TENTATIVE_MESSAGES


def _without_newest_user(history: Sequence[PathMessage]) -> list[PathMessage]:
    newest = next((index for index in reversed(range(len(history))) if history[index].role == "user"), len(history))
    return [message for index, message in enumerate(history) if index != newest]


def _begins_alike(history: Sequence[PathMessage], stored: Known) -> bool:
    if min(len(history), len(stored.first)) < _EVIDENCE:
        return False
    return all(key in message.keys for key, message in zip(stored.first[:_EVIDENCE], history, strict=False))


def _in_common(history: Sequence[PathMessage], stored: Known) -> int:
    """Return how many messages both have, if they are enough for one conversation; else 0."""
    places = [_places_of(message, stored) for message in history]
    everywhere = _evident(history, places)
    on_trail = _evident(history, [_on_trail(found) for found in places])
    in_order = everywhere >= _EVIDENCE and 2 * everywhere >= len(history)
    side_by_side = len(history) >= _EVIDENCE and _side_by_side(places[:_EVIDENCE])
    half = stored.length > 0 and 2 * on_trail >= stored.length
    return max(everywhere, 1) if in_order or side_by_side or half or _begins_alike(history, stored) else 0


def _on_trail(places: Sequence[Place]) -> Sequence[Place]:
    # Of so many, none says anything about its place.
    return places if len(places) > _MOST_PLACES else [place for place in places if place.on_trail]


def _places_of(message: PathMessage, stored: Known) -> Sequence[Place]:
    found = stored.places.get(message.key, ())
    other = stored.places.get(message.other, ()) if message.other else ()
    return sorted({*found, *other}) if other else found


def _evident(history: Sequence[PathMessage], places: Sequence[Sequence[Place]]) -> int:
    """Return how many messages stand in a conversation in the order of the history, without mere coincidences.

    Of chats that begin alike, the short messages of the user are often the same. So a short one counts only next to
    another one that is in the conversation, in the history.
    """
    found = _longest_in_order(places)
    common = [index in found or len(there) > _MOST_PLACES for index, there in enumerate(places)]

    def counts(index: int) -> bool:
        near = [at for at in (index - 1, index + 1) if 0 <= at < len(common)]
        if index not in found:
            return any(at in found for at in near)
        return history[index].is_long or not near or any(common[at] for at in near)

    return sum(1 for index, is_common in enumerate(common) if is_common and counts(index))


def _longest_in_order(places: Sequence[Sequence[Place]]) -> frozenset[int]:
    """Return the indexes of a longest choice of messages that stand in the same order in both."""
    ends: list[float] = []
    holders: list[int] = []
    links: list[tuple[int, int]] = []  # (message, the link before it)
    for index, there in enumerate(places):
        if len(there) > _MOST_PLACES:
            continue
        # Backwards, so that a message is not put behind itself.
        for at, _ in reversed(there):
            length = bisect.bisect_left(ends, at)
            links.append((index, holders[length - 1] if length else -1))
            ends[length : length + 1] = [at]
            holders[length : length + 1] = [len(links) - 1]
    found: list[int] = []
    link = holders[-1] if holders else -1
    while link >= 0:
        index, link = links[link]
        found.append(index)
    return frozenset(found)


def _side_by_side(places: Sequence[Sequence[Place]]) -> bool:
    reached = [place.at for place in places[0]]
    for there in places[1:]:
        ats = [place.at for place in there]
        reached = [at for at in ats if (spot := bisect.bisect_left(reached, at)) and at - reached[spot - 1] <= _STEP]
    return bool(reached)


# -- windows -----------------------------------------------------------------------------------------------------------

# A client that sends the newest messages only sends others first before as many have come.
_GROWN = 12
# Messages between two sources of a piece that were inserted since.
_MOST_BETWEEN = 2
# One to three that are missing behind a greeting were deleted.
_LEAST_GAP = 4
_NEWEST_KEPT = 8
# So many messages tell two places apart, but in a history of repeated ones.
_NEAR = 64


@dataclass(frozen=True)
class ClientFirst:
    """The first message that a client sends, and how many messages the history had when it first was the first.

    Attributes:
        second: the key of the message behind it: a short one may be repeated.
    """

    key: str
    count: int
    second: str = ""


def client_first(history: Sequence[PathMessage], known: ClientFirst | None) -> ClientFirst | None:
    """Return what a request stores in place of ``known``; None for an empty history."""
    if not history:
        return known
    second = history[1].key if len(history) > 1 else ""
    return known if _is_first(history, known) else ClientFirst(history[0].key, len(history), second)


def _is_first(history: Sequence[PathMessage], known: ClientFirst | None) -> bool:
    if known is None or known.key not in history[0].keys:
        return False
    return not known.second or (len(history) > 1 and known.second in history[1].keys)


def beginning_is_deleted(history: Sequence[PathMessage], known: ClientFirst | None) -> bool:
    """Return whether a beginning that is missing was deleted: the same message stayed first while 12 came.

    Only for a beginning that is missing inside the first piece of a conversation (of rows: its first ten). Otherwise
    it is cut off, by a client that sends the newest messages only, or hides old ones.
    """
    if known is None or not history:
        return False
    return _is_first(history, known) and len(history) - known.count >= _GROWN


class Gap(NamedTuple):
    """Messages that a client leaves out behind the greeting that it keeps.

    Attributes:
        kept: how many messages stand before the gap, 1 or 2; the history begins behind it.
        missing: how many messages of the newest trail are left out.
    """

    kept: int
    missing: int


def kept_greeting(history: Sequence[PathMessage], newest: Sequence[str]) -> Gap | None:
    """Return the gap behind the greeting of a client that keeps it and cuts behind it; None without one.

    At least 4 messages are missing there in one run, before the newest 8 of ``newest``, and nothing stands there
    instead. One to three are a deletion.

    Args:
        newest: the keys of the newest trail of the conversation, in order; of rows, those on the path.
    """
    agreeing = _agreeing(history, newest)
    if agreeing not in (1, 2) or len(history) <= agreeing:
        return None
    there = {key for message in history for key in message.keys}
    if not _shows_newest(there, newest):
        return None
    found = _gaps(history, newest, agreeing, there)
    # Of a history of repeated messages, any of these places may be it: they are not all compared up to the end.
    near = {at: _agreeing(history[agreeing : agreeing + _NEAR], newest[at : at + _NEAR]) for at in found}
    most = max(near.values(), default=0)
    nearest = [at for at in found if near[at] == most]
    if len(nearest) > _MOST_PLACES:
        nearest = [*nearest[: _MOST_PLACES // 2], *nearest[-_MOST_PLACES // 2 :]]
    best = max(nearest, key=lambda at: (_agreeing(history[agreeing:], newest[at:]), -at), default=0)
    return Gap(agreeing, best - agreeing) if best else None


def _gaps(
    history: Sequence[PathMessage], newest: Sequence[str], agreeing: int, there: Collection[str]
) -> Sequence[int]:
    """Return where in ``newest`` the history may go on behind its first messages; those between are missing."""
    counts = Counter(newest)
    single = {key: at for at, key in enumerate(newest) if counts[key] == 1}
    repeated: set[str] = set()

    def is_gap(at: int) -> bool:
        """Return whether those before ``at`` are missing, but for repeated ones."""
        first = history[agreeing : min(at, agreeing + _NEWEST_KEPT) + _MOST_BETWEEN]
        is_there = any(agreeing <= single.get(key, -1) < at for message in first for key in message.keys)
        return not is_there and 2 * len(repeated) <= at - agreeing

    found = []
    for at in range(agreeing, len(newest) - _NEWEST_KEPT + 1):
        if at >= agreeing + _LEAST_GAP and newest[at] in history[agreeing].keys and is_gap(at):
            found.append(at)
        if newest[at] in there:
            repeated.add(newest[at])
    return found


def _shows_newest(there: Collection[str], newest: Sequence[str]) -> bool:
    """Return whether most of the newest messages are there: otherwise the user has gone back to the beginning."""
    last = {*newest[-_NEWEST_KEPT:]}
    return len(newest) > _NEWEST_KEPT and 2 * sum(key in there for key in last) >= len(last)


def _agreeing(history: Sequence[PathMessage], keys: Sequence[str]) -> int:
    pairs = zip(history, keys, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[1] in pair[0].keys, pairs))


def key_before_window(history: Sequence[PathMessage], tail: Tail | None, known: str) -> str:
    """Return the key of the message before the first one that the client sends; "" if it is not known.

    Args:
        tail: that of the previous request of the conversation.
        known: what this function returned for it.
    """
    if not history or tail is None:
        return ""
    if tail.beginning and tail.beginning[0] in history[0].keys:
        return known
    then = tail.keys[::-1]
    # As many messages as both have must agree: a short one may be repeated.
    for index in range(1, len(then)):
        if _agreeing(history[:_EVIDENCE], then[index:]) == min(_EVIDENCE, len(history), len(then) - index):
            return then[index - 1]
    return ""


# -- pieces ------------------------------------------------------------------------------------------------------------

# Of a rare key: a piece of nothing but repeated messages is not looked for everywhere.
_MOST_CANDIDATES = 200


@dataclass(frozen=True)
class Piece:
    """The keys of a stored text that was made of messages.

    Attributes:
        id: names it; stays when its text is edited.
        sources: the keys of all messages that it was made of, in order; at least one.
        before: the key of the message before the first one; "" is the beginning of a conversation.
        after: the id of the piece before it; "" if it was the first.
        made: when, in Unix milliseconds; a higher number is later.
        tombstone: its text is deleted, and must not be made again.
    """

    id: str
    sources: tuple[str, ...]
    before: str = ""
    after: str = ""
    made: int = 0
    tombstone: bool = False


class Placed(NamedTuple):
    """A piece, and the indexes in the history of its sources; () if all of them stand before a window."""

    piece: Piece
    at: tuple[int, ...]


@dataclass(frozen=True)
class Trail:
    """The pieces on the path of a history that are chosen for it, oldest first; tombstones included.

    Attributes:
        placed: the pieces; those before a window come first.
        passed: how many messages at the beginning of the history belong to none, and need none: a greeting before a
            gap, or what a client writes in place of what it cuts off.
    """

    placed: Sequence[Placed] = ()
    passed: int = 0

    @property
    def pieces(self) -> list[Piece]:
        """Return the pieces with a text."""
        return [placed.piece for placed in self.placed if not placed.piece.tombstone]

    @property
    def end(self) -> int:
        """Return the index behind the last message that a piece covers."""
        return max((placed.at[-1] + 1 for placed in self.placed if placed.at), default=self.passed)

    def holes(self, end: int) -> list[range]:
        """Return the stretches of indexes below ``end`` that no piece covers, in order."""
        covered = {index for placed in self.placed for index in placed.at}
        missing = [index for index in range(self.passed, end) if index not in covered]
        runs = itertools.groupby(enumerate(missing), lambda pair: pair[1] - pair[0])
        found = [[index for _, index in run] for _, run in runs]
        return [range(run[0], run[-1] + 1) for run in found]


@dataclass(frozen=True)
class WindowFacts:
    """What is stored about the windows in which a client sends a conversation.

    Attributes:
        first: see ``ClientFirst``.
        last: see ``key_before_window``.
        newest: the ids of the pieces of the newest trail, in order.
    """

    first: ClientFirst | None = None
    last: str = ""
    newest: Sequence[str] = ()


def positions(history: Sequence[PathMessage]) -> Positions:
    """Return where each key stands in ``history``; a message with two keys stands under both."""
    where: dict[str, list[int]] = {}
    for index, message in enumerate(history):
        where.setdefault(message.key, []).append(index)
        if message.other:
            where.setdefault(message.other, []).append(index)
    return where


def trail_of(history: Sequence[PathMessage], pieces: Sequence[Piece], window: WindowFacts) -> Trail:
    """Return the trail of a history.

    Args:
        pieces: all stored pieces of one kind, in the order of writing, the newest last.
    """
    return _Search(history, pieces, window).trail() if history else Trail()


class _Search:
    """The steps of ``trail_of``, for a history that is not empty."""

    def __init__(self, history: Sequence[PathMessage], pieces: Sequence[Piece], window: WindowFacts) -> None:
        self._history, self._pieces, self._window = history, pieces, window
        self._where = positions(history)
        self._keys = tuple(message.key for message in history)
        self._kept = 0
        self._by_id = {piece.id: piece for piece in pieces}
        self._newest = {name: index for index, name in enumerate(window.newest)}
        ordered = sorted(range(len(pieces)), key=lambda index: (pieces[index].made, index))
        self._rank = {pieces[index].id: rank for rank, index in enumerate(ordered)}

    def trail(self) -> Trail:
        whole = self._whole()
        gap = kept_greeting(self._history, self._keys_of_newest) or self._grown_gap()
        if gap is None and self._begins_a_conversation():
            return Trail(self._with_others(_chosen(whole, self._rank)))
        self._kept = kept = gap.kept if gap else 0
        begins = kept + self._unknown_from(kept)
        endings = self._endings(begins, begins - kept, whole, may_be_deleted=gap is None)
        # Of two with the same end, the one of the newest trail has what the client no longer sends.
        rank = {**self._rank, **{ending.piece.id: self._newness(ending.piece) for ending in endings}}
        chosen = self._with_others(_chosen([*endings, *whole], rank))
        is_ending = bool(chosen) and chosen[0] in endings
        there = {placed.piece.id for placed in (*whole, *chosen)}
        hidden = [piece for piece in self._before_window(chosen, kept, is_ending) if piece.id not in there]
        is_passed = is_ending or (bool(hidden) and bool(chosen) and chosen[0].at[0] == begins)
        return Trail([*(Placed(piece, ()) for piece in hidden), *chosen], begins if is_passed else kept)

    # -- pieces in the history -----------------------------------------------------------------------------------------

    def _whole(self) -> list[Placed]:
        """Return the pieces all of whose sources are in the history, in order."""
        found: dict[str, Placed] = {}
        reached: dict[str, int] = {}
        last = len(self._newest)
        for piece in sorted(self._pieces, key=lambda one: (self._newest.get(one.id, last), self._rank[one.id])):
            behind, before = reached.get(piece.after, 0), found.get(piece.after)
            if at := self._occurrence(piece, behind, before.at if before else ()):
                found[piece.id] = Placed(piece, at)
                reached[piece.id] = max(behind, at[-1] + 1)
        return list(found.values())

    def _occurrence(self, piece: Piece, behind: int, before: Sequence[int]) -> tuple[int, ...] | None:
        """Return where the sources of a piece stand, as near as can be to where they stood.

        That is behind the message that was before them; then within the piece before, or behind it.
        """

        if not all(map(self._where.__contains__, piece.sources)):
            return None
        # The usual case: nothing has changed.
        stop = behind + len(piece.sources)
        if self._keys[behind:stop] == piece.sources and self._follows(behind, piece):
            return tuple(range(behind, stop))
        ends = (behind, before[-1] + 1) if before else (behind,)

        def order(at: int) -> tuple[bool, int, int]:
            is_within = bool(before) and before[0] < at < before[-1] and at not in before
            return not self._follows(at, piece), 0 if is_within else min(abs(at - end) for end in ends), at

        for start in sorted(self._starts(piece, behind), key=order):
            if at := self._from(start, piece.sources):
                return at
        return None

    def _starts(self, piece: Piece, behind: int) -> Collection[int]:
        found = [self._where[source] for source in piece.sources]
        offset, rarest = min(enumerate(found), key=lambda pair: len(pair[1]))
        starts = found[0]
        if len(rarest) <= _MOST_CANDIDATES:
            farthest = offset * (_MOST_BETWEEN + 1)
            return {start for at in rarest for start in _within(starts, at - farthest, at - offset)}
        spot = bisect.bisect_left(starts, behind)
        return {*starts[:_MOST_CANDIDATES], *starts[spot : spot + _MOST_CANDIDATES]}

    def _follows(self, start: int, piece: Piece) -> bool:
        return piece.before in self._history[start - 1].keys if start else piece.before == ""

    def _from(self, start: int, sources: Sequence[str]) -> tuple[int, ...] | None:
        history, at = self._history, [start]
        for source in sources[1:]:
            nearest = at[-1] + 1
            for index in range(nearest, min(nearest + _MOST_BETWEEN + 1, len(history))):
                if source in history[index].keys:
                    at.append(index)
                    break
            else:
                return None
        return tuple(at)

    def _with_others(self, chosen: list[Placed]) -> list[Placed]:
        """Return the chosen pieces, and others for the holes between them: where those stand first, one was chosen."""
        taken, trail = {placed.piece.id for placed in chosen}, Trail(chosen)
        holes = trail.holes(trail.end)
        for piece in sorted(self._pieces, key=lambda one: (-len(one.sources), -self._rank[one.id])) if holes else ():
            if piece.id in taken or not all(source in self._where for source in piece.sources):
                continue
            for hole in holes:
                starts = _within(self._where[piece.sources[0]], hole.start, hole.stop - len(piece.sources))
                found = (at for start in starts if (at := self._from(start, piece.sources)) and at[-1] < hole.stop)
                if at := next(found, None):
                    trail = Trail(sorted([*trail.placed, Placed(piece, at)], key=lambda one: one.at[0]))
                    holes = trail.holes(trail.end)
                    break
        return list(trail.placed)

    # -- a beginning that is missing -----------------------------------------------------------------------------------

    def _begins_a_conversation(self) -> bool:
        """Return whether the first message begins a stored conversation; a repeated one, with the next."""
        first, near = self._history[0], {key for message in self._history[1:4] for key in message.keys}
        is_unique = first.is_long or self._said_in_newest[first.key] <= 1
        return any(
            piece.before == ""
            and piece.sources[0] in first.keys
            and (is_unique or near.intersection(piece.sources[1:2]))
            for piece in self._pieces
        )

    @cached_property
    def _keys_of_newest(self) -> list[str]:
        newest = [self._by_id[name] for name in self._window.newest if name in self._by_id]
        return [source for piece in newest for source in piece.sources]

    def _grown_gap(self) -> Gap | None:
        """Return the gap behind a greeting that the client keeps, where it grew by a few messages with each request.

        The first few were taken for a deletion, and the first piece was made again without them. The piece that it
        was made of has the others.
        """
        first = next((self._by_id[name] for name in self._window.newest if name in self._by_id), None)
        if first is None or len(self._history) < 2 or not self._said_in_newest.keys() & {*self._history[1].keys}:
            return None
        if _agreeing(self._history, self._keys_of_newest) != 1 or not _shows_newest(self._where, self._keys_of_newest):
            return None
        for piece in self._pieces:
            if piece.sources[-1] == first.sources[-1] and piece.sources[0] in self._history[0].keys:
                gone = sum(key not in self._where for key in piece.sources)
                # Many of them may have been said again.
                if piece is not first and gone >= _LEAST_GAP - 1 and 3 * gone >= len(piece.sources):
                    return Gap(1, gone)
        return None

    def _unknown_from(self, start: int) -> int:
        """Return how many messages from ``start`` on no piece knows; some clients write a summary there."""
        return sum(1 for _ in itertools.takewhile(self._is_unknown, self._history[start:]))

    def _is_unknown(self, message: PathMessage) -> bool:
        return self._sources.isdisjoint(message.keys)

    @cached_property
    def _sources(self) -> frozenset[str]:
        return frozenset(source for piece in self._pieces for source in piece.sources)

    def _endings(self, start: int, passed: int, whole: Sequence[Placed], may_be_deleted: bool) -> list[Placed]:
        """Return the pieces whose last sources stand from ``start`` on, and whose first ones the client cut off."""
        are_whole = {placed.piece.id for placed in whole}
        deleted = may_be_deleted and beginning_is_deleted(self._history, self._window.first)
        found = []
        for piece in self._pieces:
            if piece.id in are_whole or (deleted and piece.before == ""):
                continue
            at = self._ending(piece.sources, start)
            # As many others in place of those that are missing: an edited greeting.
            if at and not 0 < len(piece.sources) - len(at) <= passed and self._is_evident(piece, at, passed, whole):
                found.append(Placed(piece, at))
        return found

    def _ending(self, sources: Sequence[str], start: int) -> tuple[int, ...] | None:
        """Return where the last sources of a piece stand, if they stand from ``start`` on: as many as can be."""
        farthest = start + len(sources) * (_MOST_BETWEEN + 1)
        found: tuple[int, ...] | None = None
        for last in _within(self._where.get(sources[-1], ()), start, farthest):
            at = [last]
            for source in reversed(sources[1:-1]):
                nearest = range(at[-1] - 1, max(at[-1] - 2 - _MOST_BETWEEN, start - 1), -1)
                index = next((index for index in nearest if source in self._history[index].keys), None)
                if at[-1] == start or index is None:
                    break
                at.append(index)
            if at[-1] == start and not self._is_moved(sources[: len(sources) - len(at)], start, at):
                found = tuple(reversed(at)) if found is None or len(at) > len(found) else found
        return found

    def _is_moved(self, missing: Sequence[str], start: int, at: Sequence[int]) -> bool:
        """Return whether a message that is missing stands among the others, or, said only once, next to them."""
        among = {key for index in {*range(start, at[0])}.difference(at) for key in self._history[index].keys}
        near = self._history[at[0] + 1 : at[0] + 1 + len(missing) + _MOST_BETWEEN]
        behind = {key for message in near for key in message.keys if self._said_in_newest[key] <= 1}
        return not (among | behind).isdisjoint(missing)

    @cached_property
    def _said_in_newest(self) -> Counter[str]:
        return Counter(self._keys_of_newest)

    def _is_evident(self, piece: Piece, at: Sequence[int], passed: int, whole: Sequence[Placed]) -> bool:
        """Return whether it is the end of this piece: a short message or two may end another conversation as well."""
        if len(at) >= _EVIDENCE or (piece.id in self._newest and not passed):
            return True
        return any(placed.piece.after == piece.id and placed.at[0] == at[-1] + 1 for placed in whole)

    def _newness(self, piece: Piece) -> int:
        index = self._newest.get(piece.id)
        return self._rank[piece.id] if index is None else len(self._pieces) + index

    def _before_window(self, chosen: Sequence[Placed], kept: int, is_ending: bool) -> list[Piece]:
        """Return the pieces of what the client no longer sends, oldest first."""
        if not chosen:
            last = [piece for piece in self._pieces if piece.sources[-1] == self._window.last]
            chain = self._chain(max(last, key=self._newness).id) if last else []
            return self._unchanged(chain, self._history[kept:], 0)
        before = self._history[kept : chosen[0].at[0]]
        unknown = 0 if is_ending else sum(map(self._is_unknown, before))
        return self._unchanged(self._chain(chosen[0].piece.after), before, unknown)

    def _chain(self, name: str) -> list[Piece]:
        """Return the piece of this id, and the ones before it, backwards."""
        found: dict[str, Piece] = {}
        while name in self._by_id and name not in found:
            found[name] = self._by_id[name]
            name = found[name].after
        return list(found.values())

    def _unchanged(self, chain: Sequence[Piece], before: Sequence[PathMessage], unknown: int) -> list[Piece]:
        """Return the pieces of a chain, oldest first, without those whose messages were changed.

        Args:
            before: the messages of the history before its first piece.
            unknown: how many of them stand in place of others.
        """
        there, end = {key for message in before for key in message.keys}, self._kept + len(before)
        found = []
        for number, piece in enumerate(chain):
            near = self._history[end : end + len(piece.sources) + _MOST_BETWEEN]
            moved = {key for message in near for key in message.keys if self._said_in_newest[key] <= 1}
            known = sum(source in there or source in moved for source in piece.sources)
            replaced = min(unknown, len(piece.sources) - known)
            unknown -= replaced
            is_in_sight = number == 0 and not there.isdisjoint(piece.sources)
            if not is_in_sight and 2 * (known + replaced) < len(piece.sources):
                found.append(piece)
        return found[::-1]


def _within(indexes: Sequence[int], first: int, last: int) -> Sequence[int]:
    return indexes[bisect.bisect_left(indexes, first) : bisect.bisect_right(indexes, last)]


_Score = tuple[int, int, int]
"""How good a choice is: covered messages, pieces (fewer are better, so negative), and how new they are."""


def _chosen(placed: Iterable[Placed], rank: Mapping[str, int]) -> list[Placed]:
    """Return the choice without overlaps that covers most messages; then with fewer pieces, then with newer ones.

    A piece may stand between two messages of another one, where messages were inserted.
    """
    intervals = sorted(placed, key=lambda one: (one.at[0], one.at[-1]))
    return sorted(_best(intervals, rank)[1], key=lambda one: one.at[0])


def _best(intervals: Sequence[Placed], rank: Mapping[str, int]) -> tuple[_Score, list[Placed]]:
    """Return the best choice among pieces that are sorted by their beginnings, and its score."""
    starts = [one.at[0] for one in intervals]
    behind = [bisect.bisect_right(starts, one.at[-1]) for one in intervals]
    inside = [_inserted(intervals[index + 1 : stop], intervals[index], rank) for index, stop in enumerate(behind)]
    best: list[_Score] = [(0, 0, 0)] * (len(intervals) + 1)
    for index in reversed(range(len(intervals))):
        one, rest, within = intervals[index], best[behind[index]], inside[index][0]
        own = (len(one.at), -1, rank[one.piece.id])
        taken = (rest[0] + within[0] + own[0], rest[1] + within[1] + own[1], rest[2] + within[2] + own[2])
        best[index] = max(best[index + 1], taken)
    found: list[Placed] = []
    index = 0
    while index < len(intervals):
        if best[index] == best[index + 1]:
            index += 1
        else:
            found += [intervals[index], *inside[index][1]]
            index = behind[index]
    return best[0], found


def _inserted(others: Sequence[Placed], outer: Placed, rank: Mapping[str, int]) -> tuple[_Score, list[Placed]]:
    """Return the best choice of pieces each of which stands between two neighbouring sources of another piece."""
    if not others or len(outer.at) > outer.at[-1] - outer.at[0]:
        return (0, 0, 0), []
    fitting = [
        one
        for one in others
        if one.at[-1] < outer.at[-1]
        and bisect.bisect_left(outer.at, one.at[0]) == bisect.bisect_right(outer.at, one.at[-1])
    ]
    return _best(fitting, rank)


def among_others(own: Sequence[Piece], others: Iterable[Piece]) -> list[Piece]:
    """Return the pieces of a trail with those of other conversations: each behind the last own piece made before it.

    So the pieces stand in the order of writing, and that is the same from each of the conversations.
    """
    behind: dict[int, list[Piece]] = defaultdict(list)
    for piece in sorted(others, key=lambda one: one.made):
        behind[max((index for index, one in enumerate(own) if one.made < piece.made), default=-1)].append(piece)
    return [*behind[-1], *(piece for index, one in enumerate(own) for piece in (one, *behind[index]))]
