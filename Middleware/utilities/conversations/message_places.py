"""Where a message stood in its conversation, and how it is found again among others with the same text.

Stored data names messages by the hash of their text, which equal messages share; calls of tools, which say nothing, all
do. What stood before a message tells which of them it was. If even that is the same in several places, the earliest is
taken: what follows it is looked at again rather than never.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CONTEXT = 8  # messages
_FEWEST_TELLING = 3
_FEWEST_STILL = 2


@dataclass(frozen=True)
class MessagePlace:
    """The surroundings of a message.

    Attributes:
        before: hashes of the messages before it, the nearest first, ``CONTEXT`` at most; "" is the beginning.
        index: how many messages were before it; None if that is not known.
        history: a hash of all messages up to it; "" if it is not known.
        alone: no other message was like it.
        repeats_first: it said what the first one had said, so that the first one with its text is none that has lost
            all that was before it.
    """

    before: tuple[str, ...]
    index: int | None = None
    history: str = ""
    alone: bool = True
    repeats_first: bool = False

    def as_json(self) -> dict[str, object]:
        return {"before": list(self.before), "index": self.index, "history": self.history, "alone": self.alone,
                "repeatsFirst": self.repeats_first}


class LoggedMessage(NamedTuple):
    """A message that ended processed ones: its hash, and where it stood if that was noted."""

    hash: str
    place: MessagePlace | None = None


def place_of(hashes: Sequence[str], index: int) -> MessagePlace:
    """The place of the message ``index`` among messages with these hashes."""
    return MessagePlace(_before(hashes, index), index, _history(hashes, index), hashes.count(hashes[index]) == 1,
                        index > 0 and hashes[index] == hashes[0])


def place_from_json(value: object) -> MessagePlace | None:
    """What ``as_json`` made; None for anything else. A text is the hash of the message before, "" for none."""
    if isinstance(value, str):
        return MessagePlace((value,))
    if not isinstance(value, Mapping):
        return None
    before, index, history = value.get("before"), value.get("index"), value.get("history")
    if not (isinstance(before, list) and all(isinstance(entry, str) for entry in before)):
        return None
    return MessagePlace(tuple(before), index if type(index) is int else None,
                        history if isinstance(history, str) else "", value.get("alone") is not False,
                        value.get("repeatsFirst") is True)


def place_from_text(text: Any) -> MessagePlace | None:
    """What ``as_json`` made, as JSON text; None for anything else."""
    try:
        return place_from_json(json.loads(text)) if text else None
    except (TypeError, ValueError, RecursionError):
        return None


def find_place(found: Sequence[int], hashes: Sequence[str], place: MessagePlace) -> int | None:
    """Which of the messages ``found`` is the one that stood at ``place``; None if it may be gone.

    Args:
        found: the indexes of all messages with its hash, in order; at least one.
    """
    known = place.index
    if known is not None and known in found and place.history and _history(hashes, known) == place.history:
        return known
    fits = {index: _fit(place.before, _before(hashes, index)) for index in found}
    best = max(fits.values())
    may_be_cut_off = not found[0] and not place.repeats_first
    if best > 0 or (best == 0 and may_be_cut_off):
        return next(index for index in found if fits[index] == best)
    likely = [index for index in found if _fits_but_for_one(place.before, _before(hashes, index))]
    if likely:
        return known if known in likely else likely[0]
    unmoved = known is None or found[0] <= known  # deleting others moves a message towards the beginning
    is_it = len(found) == 1 and place.alone and unmoved and _resembles(place.before, _before(hashes, found[0]))
    return found[0] if is_it else _near_the_same(found, hashes, place.before)


def _before(hashes: Sequence[str], index: int) -> tuple[str, ...]:
    near = tuple(reversed(hashes[max(0, index - CONTEXT):index]))
    return near if len(near) == CONTEXT else (*near, "")


def _history(hashes: Sequence[str], index: int) -> str:
    return hashlib.sha256("\n".join(hashes[:index + 1]).encode()).hexdigest()


def _fit(noted: Sequence[str], actual: Sequence[str]) -> int:
    """How many messages agree, as far as both go; -1 if one does not. The beginning may have been cut off since."""
    for number, (one, other) in enumerate(zip(noted, actual, strict=False)):
        if other == "":
            return number + (one == "")
        if one != other:
            return -1
    return min(len(noted), len(actual))


def _resembles(noted: Sequence[str], actual: Sequence[str]) -> bool:
    """Whether most of what stood before a message, as far as there is still something, repeats not counted, still does.

    Otherwise the message may be a later one with the same text, whose elder has left the client's window. Where the
    conversation began so near that nothing can have left it, nothing is asked for.
    """
    if len(noted) < CONTEXT or "" in noted:
        return True
    telling = [one for one in noted[:len([one for one in actual if one])] if noted.count(one) == 1]
    return (2 * sum(actual.count(one) == 1 for one in telling) > len(telling)
            or _half_stand_still(telling, noted, actual))


def _half_stand_still(telling: Sequence[str], noted: Sequence[str], actual: Sequence[str]) -> bool:
    """Whether half of ``telling`` are still just as far from the message, as they are when all that one side of the
    conversation said has changed."""
    still = sum(one == other and one in telling for one, other in zip(noted, actual, strict=False))
    return still >= _FEWEST_STILL and 2 * still >= len(telling)


def _near_the_same(found: Sequence[int], hashes: Sequence[str], noted: Sequence[str]) -> int | None:
    """The message that follows closely on what stood before the noted one, but for texts that a client inserts anew
    each time.

    Only messages that are there once tell that, and few of those noted may be gone: what stood before a message leaves
    the client's window before it does.
    """
    telling = [one for one in noted if hashes.count(one) == 1]
    gone = sum(one not in hashes for one in noted)
    if len(noted) < CONTEXT or len(telling) < _FEWEST_TELLING or len(telling) <= gone + 1:
        return None
    near = {index: sum(one in _before(hashes, index) for one in telling) for index in found}
    best = max(near.values())
    return next(index for index in found if near[index] == best) if 3 * best > 2 * len(telling) else None


def _fits_but_for_one(noted: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    """Whether the two agree if one message was changed, deleted or added.

    Not where some of it has left the client's window: the few that are left would agree by chance among repeats.
    """
    if "" in actual and "" not in noted and len(noted) == CONTEXT:
        return False
    enough = max(1, min(2, len(noted) - 1))
    for at in range(min(len(noted), len(actual))):
        pairs = ((noted[:at] + noted[at + 1:], actual), (noted, actual[:at] + actual[at + 1:]),
                 (noted[:at] + noted[at + 1:], actual[:at] + actual[at + 1:]))
        if any(_fit(one, other) >= enough for one, other in pairs):
            return True
    return False
