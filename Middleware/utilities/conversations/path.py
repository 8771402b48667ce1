"""Which conversation a request belongs to, and what of it the client no longer sends.

Users edit, delete, regenerate, go back and branch off; front-ends cut off the beginning of a conversation. Everything
here is pure: it compares the keys of the messages of a request with stored keys, whatever they are stored in.

A *history* is the messages of a request without those of role ``system`` and without blank ones, as the outermost
workflow got them. Injected messages are left out first (``injected`` and ``without``), so that all indexes are those
of the history without them.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from Middleware.utilities.conversations.message_keys import PathMessage, Tail

At = TypeVar("At", int, float)

# -- conversations -----------------------------------------------------------------------------------------------------

# A greeting and "Hi" begin many conversations.
EVIDENCE = 4
# A message that is repeated more often says little about its place.
MOST_PLACES = 16
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
    places, at = defaultdict[str, list[Place]](list), 0
    for sequence in (trail, *elsewhere):
        at += 2
        for key in sequence:
            places[key].append(Place(at, sequence is trail))
            at += 1
    return Known(number, used, first, len(trail), places)


def conversation_of(history: Sequence[PathMessage], known: Iterable[Known]) -> int | None:
    """Return the number of the stored conversation to which a history belongs; None for one of its own.

    The newest user message is not counted. A conversation in which the first 4 messages agree, of whose newest trail
    half occurs, or in which at least 4 messages of the history occur in order, either half of it or its first 4 side
    by side. Of several, the one with most messages in common, then the one used last. Two messages in common, a
    greeting and "Hi", are never enough, unless they are half of what there is.
    """
    newest = next((index for index in reversed(range(len(history))) if history[index].role == "user"), len(history))
    rest = [*history[:newest], *history[newest + 1 :]]
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


def _begins_alike(history: Sequence[PathMessage], stored: Known) -> bool:
    return agreeing(history, stored.first[:EVIDENCE]) == EVIDENCE


def _in_common(history: Sequence[PathMessage], stored: Known) -> int:
    """Return how many messages both have, if they are enough for one conversation; else 0."""
    places = [_places_of(message, stored) for message in history]
    everywhere = _evident(history, places)
    # Of so many, none says anything about its place.
    newest = [there if len(there) > MOST_PLACES else [one for one in there if one.on_trail] for there in places]
    in_order = everywhere >= EVIDENCE and 2 * everywhere >= len(history)
    side_by_side = len(history) >= EVIDENCE and _side_by_side(places[:EVIDENCE])
    half = stored.length > 0 and 2 * _evident(history, newest) >= stored.length
    return max(everywhere, 1) if in_order or side_by_side or half or _begins_alike(history, stored) else 0


def _places_of(message: PathMessage, stored: Known) -> Sequence[Place]:
    found = stored.places.get(message.key, ())
    other = stored.places.get(message.other, ()) if message.other else ()
    return sorted({*found, *other}) if other else found


def _evident(history: Sequence[PathMessage], places: Sequence[Sequence[Place]]) -> int:
    """Return how many messages stand in a conversation in the order of the history, without mere coincidences.

    Of chats that begin alike, the short messages of the user are often the same. So a short one counts only next to
    another one that is in the conversation, in the history.
    """
    found = longest_in_order([[at for at, _ in there] if len(there) <= MOST_PLACES else () for there in places])
    common = [index in found or len(there) > MOST_PLACES for index, there in enumerate(places)]

    def counts(index: int) -> bool:
        near = [at for at in (index - 1, index + 1) if 0 <= at < len(common)]
        if index not in found:
            return any(at in found for at in near)
        return history[index].is_long or not near or any(common[at] for at in near)

    return sum(1 for index, is_common in enumerate(common) if is_common and counts(index))


def longest_in_order(choices: Sequence[Sequence[At]]) -> dict[int, At]:
    """Return a longest choice of one value, in ascending lists, for each of some indexes that ascends with them."""
    ends: list[At] = []
    holders: list[int] = []
    links: list[tuple[int, At, int]] = []  # (index, value, the link before it)
    for index, choice in enumerate(choices):
        # Backwards, so that an index is not put behind itself.
        for value in reversed(choice):
            length = bisect.bisect_left(ends, value)
            links.append((index, value, holders[length - 1] if length else -1))
            ends[length : length + 1] = [value]
            holders[length : length + 1] = [len(links) - 1]
    found: dict[int, At] = {}
    link = holders[-1] if holders else -1
    while link >= 0:
        index, value, link = links[link]
        found[index] = value
    return found


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
MOST_BETWEEN = 2
# One to three that are missing behind a greeting were deleted.
LEAST_GAP = 4
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
    kept = agreeing(history[:3], newest)
    if kept not in (1, 2) or len(history) <= kept:
        return None
    there = {key for message in history for key in message.keys}
    if not shows_newest(there, newest):
        return None
    found = _gaps(history, newest, kept, there)
    # Of a history of repeated messages, any of these places may be it: they are not all compared up to the end.
    near = {at: agreeing(history[kept : kept + _NEAR], newest[at : at + _NEAR]) for at in found}
    nearest = [at for at in found if near[at] == max(near.values())]
    some = {*nearest[: MOST_PLACES // 2], *nearest[-MOST_PLACES // 2 :]}
    best = max(some, key=lambda at: (agreeing(history[kept:], newest[at:]), -at), default=0)
    return Gap(kept, best - kept) if best else None


def _gaps(history: Sequence[PathMessage], newest: Sequence[str], kept: int, there: Collection[str]) -> list[int]:
    """Return where in ``newest`` the history may go on behind its first messages; those between are missing."""
    counts = Counter(newest)
    single = {key: at for at, key in enumerate(newest) if counts[key] == 1}
    repeated: set[str] = set()
    found = []
    for at in range(kept, len(newest) - _NEWEST_KEPT + 1):
        # Those before it are missing, but for repeated ones.
        if at >= kept + LEAST_GAP and newest[at] in history[kept].keys and 2 * len(repeated) <= at - kept:
            first = history[kept : min(at, kept + _NEWEST_KEPT) + MOST_BETWEEN]
            if not any(kept <= single.get(key, -1) < at for message in first for key in message.keys):
                found.append(at)
        if newest[at] in there:
            repeated.add(newest[at])
    return found


def shows_newest(there: Collection[str], newest: Sequence[str]) -> bool:
    """Return whether most of the newest messages are there: otherwise the user has gone back to the beginning."""
    last = {*newest[-_NEWEST_KEPT:]}
    return len(newest) > _NEWEST_KEPT and 2 * sum(key in there for key in last) >= len(last)


def agreeing(history: Sequence[PathMessage], keys: Sequence[str]) -> int:
    """Return how many messages at the beginning have these keys."""
    for count, (message, key) in enumerate(zip(history, keys, strict=False)):
        if key not in message.keys:
            return count
    return min(len(history), len(keys))


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
        if agreeing(history[:EVIDENCE], then[index:]) == min(EVIDENCE, len(history), len(then) - index):
            return then[index - 1]
    return ""
