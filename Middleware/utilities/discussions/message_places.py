"""The position of a message in its conversation, by which it is found again among others with the same text.

Stored data refers to messages by the hash of their text, which equal messages share; the hashes of all tool calls
without text are equal. The messages before a message distinguish it from the others. If several have the same ones, the
earliest is taken: then some messages are processed again, rather than never.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# The number of preceding messages that are stored: enough to tell repeated short messages apart, and cheap to store.
CONTEXT = 8
# The number of messages after it that are stored: enough that some survive edits of the newest ones.
_AFTER = 4
# In characters. People say "go on" and the like again and again, but a text of this length is not written twice.
_DISTINCTIVE = 40
# With fewer unique messages a match would be a coincidence in conversations with repetitions.
_MIN_UNIQUE = 3
_MIN_UNMOVED = 2


@dataclass(frozen=True)
class MessagePlace:
    """The surroundings of a message.

    Attributes:
        before: hashes of the messages before it, the nearest first, at most ``CONTEXT``; "" is the beginning.
        index: the number of messages before it; None if unknown.
        history: a hash of all messages up to it; "" if unknown.
        alone: no other message had the same text.
        repeats_first: its text was that of the first message, so that a first message with this text need not be this
            one after the loss of everything before it.
        key: the recognition key of the message; "" in older data, whose other hashes are those of whole texts.
        length: the length of its text; 0 if unknown.
        after: hashes of the messages after it, the nearest first; few if it was one of the newest.
    """

    before: tuple[str, ...]
    index: int | None = None
    history: str = ""
    alone: bool = True
    repeats_first: bool = False
    key: str = ""
    length: int = 0
    after: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "before": list(self.before),
            "index": self.index,
            "history": self.history,
            "alone": self.alone,
            "repeatsFirst": self.repeats_first,
            "key": self.key,
            "length": self.length,
            "after": list(self.after),
        }


class LoggedMessage(NamedTuple):
    """The last of some processed messages: its hash, and its position if that was stored."""

    hash: str
    place: MessagePlace | None = None


def place_of(hashes: Sequence[str], index: int, length: int = 0) -> MessagePlace:
    """Return the surroundings of the message ``index``, with a text of this length, among messages with these keys."""
    return MessagePlace(
        _before(hashes, index),
        index,
        _history(hashes, index),
        hashes.count(hashes[index]) == 1,
        index > 0 and hashes[index] == hashes[0],
        hashes[index],
        length,
        tuple(hashes[index + 1 : index + 1 + _AFTER]),
    )


def place_from_json(value: object) -> MessagePlace | None:
    """Return what ``as_json`` stored; None for anything else."""
    # Older versions stored only the hash of the message before; "" was the beginning.
    if isinstance(value, str):
        return MessagePlace((value,))
    if not isinstance(value, Mapping):
        return None
    before, index, history = _texts(value.get("before")), value.get("index"), value.get("history")
    key, length = value.get("key"), value.get("length")
    if before is None:
        return None
    return MessagePlace(
        before,
        index if type(index) is int else None,
        history if isinstance(history, str) else "",
        value.get("alone") is not False,
        value.get("repeatsFirst") is True,
        key if isinstance(key, str) else "",
        length if type(length) is int else 0,
        _texts(value.get("after")) or (),
    )


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(value) if isinstance(value, list) and all(isinstance(entry, str) for entry in value) else None


def place_from_text(text: Any) -> MessagePlace | None:
    """Return what ``as_json`` stored, from a JSON text; None for anything else."""
    try:
        return place_from_json(json.loads(text)) if text else None
    except (TypeError, ValueError, RecursionError):
        return None


def find_place(found: Sequence[int], hashes: Sequence[str], place: MessagePlace) -> int | None:
    """Return which of the messages ``found`` is the one with these surroundings; None if it may be gone.

    Args:
        found: the indexes of all messages with its hash, in order; at least one.
    """
    known = place.index
    # The usual case: nothing before the message has changed.
    if known is not None and known in found and place.history and _history(hashes, known) == place.history:
        return known
    # Whatever was done around it: an edited message has another text.
    if len(found) == 1 and place.alone and place.length >= _DISTINCTIVE:
        return found[0]
    fits = {index: _fit(place.before, _before(hashes, index)) for index in found}
    best = max(fits.values())
    may_be_cut_off = not found[0] and not place.repeats_first
    if best > 0 or (best == 0 and may_be_cut_off):
        return next(index for index in found if fits[index] == best)
    confirmed = [index for index in found if _has_a_neighbour(index, hashes, place, len(found) == 1)]
    if len(confirmed) > 1:
        # What followed the stored one stands behind each of them, and directly behind one.
        followed = {index: _equal_beginning(place.after, hashes[index + 1 :]) for index in confirmed}
        confirmed = [index for index in confirmed if followed[index] == max(followed.values())]
    if len(confirmed) == 1:
        return confirmed[0]
    left = [index for index in found if not _went_another_way(index, hashes, place)]
    # The text is known to be a short one. Where its length is not known, it may be one that is not said twice.
    if not left and place.length:
        return None
    likely = [index for index in left if _fits_but_for_one(place.before, _before(hashes, index))]
    if likely:
        return known if known in likely else likely[0]
    # If other messages are deleted, a message moves towards the beginning, never away from it.
    unmoved = known is None or found[0] <= known
    is_it = len(found) == 1 and place.alone and unmoved and _resembles(place.before, _before(hashes, found[0]))
    return found[0] if is_it else _near_the_same(found, hashes, place.before)


def _before(hashes: Sequence[str], index: int) -> tuple[str, ...]:
    near = tuple(reversed(hashes[max(0, index - CONTEXT) : index]))
    return near if len(near) == CONTEXT else (*near, "")


def _history(hashes: Sequence[str], index: int) -> str:
    return hashlib.sha256("\n".join(hashes[: index + 1]).encode()).hexdigest()


def _fit(noted: Sequence[str], actual: Sequence[str]) -> int:
    """Return how many messages agree, as far as both lists go; -1 if one does not."""
    for number, (one, other) in enumerate(zip(noted, actual, strict=False)):
        # The client may have cut off the beginning of the conversation since.
        if other == "":
            return number + (one == "")
        if one != other:
            return -1
    return min(len(noted), len(actual))


def _equal_beginning(noted: Sequence[str], actual: Sequence[str]) -> int:
    """Return how many messages at the beginning of both are equal."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(noted, actual, strict=False)))


def _went_another_way(index: int, hashes: Sequence[str], place: MessagePlace) -> bool:
    """Return whether nothing that followed the stored message follows this one, although something else does.

    Then the conversation was taken up again before the stored message, and a short text was only said once more.
    """
    # The same text once more proves nothing.
    others = [one for one in place.after if one != hashes[index]]
    return bool(others) and index + 1 < len(hashes) and set(others).isdisjoint(hashes[index + 1 :])


def _has_a_neighbour(index: int, hashes: Sequence[str], place: MessagePlace, alone: bool) -> bool:
    """Return whether a message next to this one was near the stored one, and has a text of its own.

    Whatever was deleted between the two, nothing new stands there, so nothing is passed over.
    """

    def is_known(at: int, near: Sequence[str]) -> bool:
        return 0 <= at < len(hashes) and near.count(hashes[at]) == 1 == hashes.count(hashes[at])

    # An equal message further up may have been next to the ones before it as well.
    return is_known(index + 1, place.after) or (alone and is_known(index - 1, place.before))


def _resembles(noted: Sequence[str], actual: Sequence[str]) -> bool:
    """Return whether most of the unique messages before a message are still there, as far as the list goes.

    Otherwise it may be a later message with the same text, and the earlier one has left the client's window.
    """
    # The conversation began so near the message that nothing can have left the window.
    if len(noted) < CONTEXT or "" in noted:
        return True
    unique = [one for one in noted[: len([one for one in actual if one])] if noted.count(one) == 1]
    return 2 * sum(actual.count(one) == 1 for one in unique) > len(unique) or _half_unmoved(unique, noted, actual)


def _half_unmoved(unique: Sequence[str], noted: Sequence[str], actual: Sequence[str]) -> bool:
    """Return whether half of ``unique`` are still at the same distance from the message."""
    # They are if all messages of one side of the conversation have changed.
    still = sum(one == other and one in unique for one, other in zip(noted, actual, strict=False))
    return still >= _MIN_UNMOVED and 2 * still >= len(unique)


def _near_the_same(found: Sequence[int], hashes: Sequence[str], noted: Sequence[str]) -> int | None:
    """Return the message that closely follows the messages before the stored one, or None.

    There may be further messages between them, which a client inserts at each request.
    """
    # Repeated messages prove nothing. Few of the stored ones may be gone: they leave the client's window before the
    # message itself does.
    unique = [one for one in noted if hashes.count(one) == 1]
    gone = sum(one not in hashes for one in noted)
    if len(noted) < CONTEXT or len(unique) < _MIN_UNIQUE or len(unique) <= gone + 1:
        return None
    near = {index: sum(one in _before(hashes, index) for one in unique) for index in found}
    best = max(near.values())
    return next(index for index in found if near[index] == best) if 3 * best > 2 * len(unique) else None


def _fits_but_for_one(noted: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    """Return whether the two lists agree if one message was changed, deleted or added."""
    # Some messages have left the client's window; among repetitions the few others may agree by coincidence.
    if "" in actual and "" not in noted and len(noted) == CONTEXT:
        return False
    enough = max(1, min(2, len(noted) - 1))
    for at in range(min(len(noted), len(actual))):
        pairs = (
            (noted[:at] + noted[at + 1 :], actual),
            (noted, actual[:at] + actual[at + 1 :]),
            (noted[:at] + noted[at + 1 :], actual[:at] + actual[at + 1 :]),
        )
        if any(_fit(one, other) >= enough for one, other in pairs):
            return True
    return False
