"""Which stored texts were made of the messages of a request, and stand on its path. Pure, as ``path.py``."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from Middleware.utilities.conversations.message_keys import PathMessage
from Middleware.utilities.conversations.path import (
    EVIDENCE,
    LEAST_GAP,
    MOST_BETWEEN,
    ClientFirst,
    Gap,
    agreeing,
    beginning_is_deleted,
    kept_greeting,
    shows_newest,
)

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
        self._keys = tuple(message.key for message in history)
        self._kept = 0
        self._by_id = {piece.id: piece for piece in pieces}
        self._newest = {name: index for index, name in enumerate(window.newest)}
        self._rank = {piece.id: rank for rank, piece in enumerate(sorted(pieces, key=lambda one: one.made))}

    def trail(self) -> Trail:
        whole = self._whole()
        gap = kept_greeting(self._history, self._keys_of_newest) or self._grown_gap()
        if gap is None and self._begins_a_conversation():
            return Trail(self._with_others(_chosen(whole, self._rank)))
        self._kept = kept = gap.kept if gap else 0
        # Some clients write a summary there.
        begins = kept + sum(1 for _ in itertools.takewhile(self._is_unknown, self._history[kept:]))
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
    @cached_property
    def _where(self) -> Mapping[str, Sequence[int]]:
        """Key -> the indexes of the messages that have it, ascending."""
        where: dict[str, list[int]] = {}
        for index, message in enumerate(self._history):
            where.setdefault(message.key, []).append(index)
            if message.other:
                where.setdefault(message.other, []).append(index)
        return where

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
        # The usual case: nothing has changed.
        stop = behind + len(piece.sources)
        if self._keys[behind:stop] == piece.sources and self._follows(behind, piece):
            return tuple(range(behind, stop))
        if not all(map(self._where.__contains__, piece.sources)):
            return None
        ends = (behind, before[-1] + 1) if before else (behind,)

        def order(at: int) -> tuple[bool, int, int]:
            is_within = bool(before) and before[0] < at < before[-1] and at not in before
            return not self._follows(at, piece), 0 if is_within else min(abs(at - end) for end in ends), at

        # Nowhere behind that message, a repeated one is found a bit too early as well.
        loose: list[tuple[int, ...]] = []
        for start in sorted(self._starts(piece, behind), key=order):
            if at := self._from(start, piece.sources):
                if self._follows(start, piece) or at[-1] - start < len(at):
                    return at
                loose.append(at)
        return min(loose, key=lambda at: at[-1] - at[0], default=None)

    def _starts(self, piece: Piece, behind: int) -> Collection[int]:
        found = [self._where[source] for source in piece.sources]
        offset, rarest = min(enumerate(found), key=lambda pair: len(pair[1]))
        starts = found[0]
        if len(rarest) <= _MOST_CANDIDATES:
            farthest = offset * (MOST_BETWEEN + 1)
            return {start for at in rarest for start in _within(starts, at - farthest, at - offset)}
        spot = bisect.bisect_left(starts, behind)
        return {*starts[:_MOST_CANDIDATES], *starts[spot : spot + _MOST_CANDIDATES]}

    def _follows(self, start: int, piece: Piece) -> bool:
        return piece.before in self._history[start - 1].keys if start else piece.before == ""

    def _from(self, start: int, sources: Sequence[str]) -> tuple[int, ...] | None:
        at = self._along(start, sources[1:], 1)
        return tuple(at) if len(at) == len(sources) else None

    def _along(self, start: int, sources: Iterable[str], step: int) -> list[int]:
        """Return ``start``, and where the sources stand one after the other behind or, with -1, before it."""
        history, at = self._history, [start]
        for source in sources:
            near = range(at[-1] + step, at[-1] + step * (MOST_BETWEEN + 2), step)
            inside = (index for index in near if 0 <= index < len(history))
            found = next((index for index in inside if source in history[index].keys), -1)
            if found < 0:
                break
            at.append(found)
        return at

    def _with_others(self, chosen: list[Placed]) -> list[Placed]:
        """Return the chosen pieces, and others for the holes between them: where those stand first, one was chosen."""
        taken, trail = {placed.piece.id for placed in chosen}, Trail(chosen)
        holes = trail.holes(trail.end)
        for piece in sorted(self._pieces, key=lambda one: (-len(one.sources), -self._rank[one.id])) if holes else ():
            starts, length = self._where.get(piece.sources[0], ()), len(piece.sources)
            near = ((hole, start) for hole in holes for start in _within(starts, hole.start, hole.stop - length))
            found = (at for hole, start in near if (at := self._from(start, piece.sources)) and at[-1] < hole.stop)
            if piece.id not in taken and (at := next(found, None)):
                trail = Trail(sorted([*trail.placed, Placed(piece, at)], key=lambda one: one.at[0]))
                holes = trail.holes(trail.end)
        return list(trail.placed)

    # -- a beginning that is missing -----------------------------------------------------------------------------------

    def _begins_a_conversation(self) -> bool:
        """Return whether the first message begins a stored conversation; a repeated one, with the next."""
        first, near = self._history[0], {key for message in self._history[1:EVIDENCE] for key in message.keys}
        is_unique = first.is_long or self._said_in_newest[first.key] <= 1
        telling = {key for key in near if self._said_in_newest[key] <= 1}

        def begins(sources: Sequence[str]) -> bool:
            behind = sources[1:EVIDENCE]
            if sources[0] in first.keys:
                return is_unique or not near.isdisjoint(behind[:1]) or not telling.isdisjoint(behind)
            # Another one stands in its place.
            same = [key for key, message in zip(behind, self._history[1:], strict=False) if key in message.keys]
            return len(same) > 1 and not telling.isdisjoint(same)

        return any(begins(piece.sources) for piece in self._pieces if piece.before == "")

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
        newest, second = self._keys_of_newest, self._history[1:2]
        if first is None or not any(key in self._said_in_newest for message in second for key in message.keys):
            return None
        if agreeing(self._history[:2], newest) != 1 or not shows_newest(self._where, newest):
            return None
        for piece in self._pieces:
            if piece.sources[-1] == first.sources[-1] and piece.sources[0] in self._history[0].keys:
                gone = sum(key not in self._where for key in piece.sources)
                # Many of them may have been said again.
                if piece is not first and gone >= LEAST_GAP - 1 and 3 * gone >= len(piece.sources):
                    return Gap(1, gone)
        return None

    def _is_unknown(self, message: PathMessage) -> bool:
        """Return whether no piece knows a message."""
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

    def _ending(self, sources: Sequence[str], start: int) -> tuple[int, ...]:
        """Return where the last sources of a piece stand, if they stand from ``start`` on: as many as can be."""
        farthest = start + len(sources) * (MOST_BETWEEN + 1)
        found: list[int] = []
        for last in _within(self._where.get(sources[-1], ()), start, farthest):
            at = [index for index in self._along(last, sources[-2:0:-1], -1) if index >= start]
            if at[-1] == start and len(at) > len(found) and not self._is_moved(sources[: -len(at)], start, at):
                found = at
        return tuple(reversed(found))

    def _is_moved(self, missing: Sequence[str], start: int, at: Sequence[int]) -> bool:
        """Return whether a message that is missing stands among the others, or, said only once, next to them."""
        among = {key for index in {*range(start, at[0])}.difference(at) for key in self._history[index].keys}
        near = self._history[at[0] + 1 : at[0] + 1 + len(missing) + MOST_BETWEEN]
        behind = {key for message in near for key in message.keys if self._said_in_newest[key] <= 1}
        return not (among | behind).isdisjoint(missing)

    @cached_property
    def _said_in_newest(self) -> Counter[str]:
        return Counter(self._keys_of_newest)

    def _is_evident(self, piece: Piece, at: Sequence[int], passed: int, whole: Sequence[Placed]) -> bool:
        """Return whether it is the end of this piece: a short message or two may end another conversation as well."""
        if len(at) >= EVIDENCE:
            return True
        behind = next((one.at for one in whole if one.piece.after == piece.id and one.at[0] == at[-1] + 1), ())
        return bool(behind or (piece.id in self._newest and not passed)) and self._tells([*at, *behind])

    def _tells(self, at: Sequence[int]) -> bool:
        """Return whether messages say enough about the conversation that they are of."""
        return len(at) >= EVIDENCE or any(self._history[index].is_long for index in at)

    def _newness(self, piece: Piece) -> int:
        index = self._newest.get(piece.id)
        return self._rank[piece.id] if index is None else len(self._pieces) + index

    def _before_window(self, chosen: Sequence[Placed], kept: int, is_ending: bool) -> list[Piece]:
        """Return the pieces of what the client no longer sends, oldest first."""
        if not chosen:
            last = [piece for piece in self._pieces if piece.sources[-1] == self._window.last]
            chain = self._chain(max(last, key=self._newness).id) if last else []
            return self._unchanged(chain, self._history[kept:], 0)
        if not self._tells([index for placed in chosen for index in placed.at]):
            return []
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
            near = self._history[end : end + len(piece.sources) + MOST_BETWEEN]
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


def _score(one: Placed, rank: Mapping[str, int]) -> int:
    """Return how good a piece is for a choice: covered messages, then fewer pieces, then newer ones."""
    return (len(one.at) << 96) - (1 << 64) + rank[one.piece.id]


def _chosen(placed: Iterable[Placed], rank: Mapping[str, int]) -> list[Placed]:
    """Return the choice without overlaps that covers most messages; then with fewer pieces, then with newer ones.

    A piece may stand between two messages of another one, where messages were inserted.
    """
    intervals = sorted(placed, key=lambda one: (one.at[0], one.at[-1]))
    return sorted(_best(intervals, rank)[1], key=lambda one: one.at[0])


def _best(intervals: Sequence[Placed], rank: Mapping[str, int]) -> tuple[int, list[Placed]]:
    """Return the best choice among pieces that are sorted by their beginnings, and its score."""
    starts = [one.at[0] for one in intervals]
    behind = [bisect.bisect_right(starts, one.at[-1]) for one in intervals]
    inside = [_inserted(intervals[index + 1 : stop], intervals[index], rank) for index, stop in enumerate(behind)]
    best = [0] * (len(intervals) + 1)
    for index in reversed(range(len(intervals))):
        taken = _score(intervals[index], rank) + inside[index][0] + best[behind[index]]
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


def _inserted(others: Sequence[Placed], outer: Placed, rank: Mapping[str, int]) -> tuple[int, list[Placed]]:
    """Return the best choice of pieces each of which stands between two neighbouring sources of another piece."""
    if not others or len(outer.at) > outer.at[-1] - outer.at[0]:
        return 0, []
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
