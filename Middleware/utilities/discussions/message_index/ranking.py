"""The score of each message for the terms of a search.

What a message contains counts in full; what its neighbours contain, in part, so that an answer without the words of the
question is found by the question before it. The constants were measured on public conversations over months.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from Middleware.utilities.discussions.message_index.message_rows import Occurrences
from Middleware.utilities.discussions.message_index.order import SLOT_BITS, Order

# What the neighbours and those behind them count, and a word that only begins like a term.
NEAR, FAR, BEGUN = 0.5, 0.3, 0.4
# What the neighbours count in meaning.
MEANT = 0.35
# How soon repetitions of a term stop to count, and what a term counts at most.
SATURATION, MOST = 0.8, 1.8
# What the message of the speaker whom the question names counts more.
NAMED = 1.7
# Rows with a term, above which it only adds to those that rarer terms reach.
MOST_MATCHES = 2_000


@dataclass(frozen=True)
class Ranking:
    """How messages are ranked; ``plain``: by their words alone, as is compared between speakers.

    Attributes:
        named: the speaker whose messages count more; None counts all alike.
    """

    named: str | None = None
    plain: bool = False

    def scores(self, order: Order, found: Sequence[Occurrences]) -> dict[int, float]:
        """Return the score of each slot that is not 0. ``found``: of each term."""
        scores: dict[int, float] = {}
        ratios = {} if self.plain else {key: ratio for key, ratio in order.ratios().items() if ratio < 1}
        for term in sorted(found, key=lambda term: term.rows):
            count = term.rows
            if not count:
                continue
            own, dated = self._own(order, term), self._dated(order, term)
            if count > MOST_MATCHES and not scores:
                numbers = heapq.nlargest(MOST_MATCHES, (order.at[slot] for slot in own))
                scores = dict.fromkeys((order.slots[number] for number in numbers), 0.0)
            if count > MOST_MATCHES:
                occurring = {slot: _with_neighbours(own, slot, ratios) + dated.get(slot, 0) for slot in scores}
            else:
                occurring = _spread(own, ratios)
                for slot in dated:
                    occurring[slot] = occurring.get(slot, 0.0) + 1
            rarity = weight(order.count, count)
            known, at = scores.get, order.at
            for slot, much in occurring.items():
                if slot in at and much:
                    scores[slot] = known(slot, 0.0) + rarity * much / (much + SATURATION)
        return scores if self.plain else self._weighed(order, scores, ratios)

    def _own(self, order: Order, term: Occurrences) -> dict[int, float]:
        """Return how much of a term is in each row itself."""
        slots = order.slots
        if self.plain:
            return {slots[number]: 1.0 for number in term.full if number in slots}
        longest, sizes, own = order.longest(), order.sizes, dict[int, float]()
        for numbers, much in ((term.full, 1.0), (term.begun, BEGUN)):
            for number in numbers:
                if (slot := slots.get(number)) is not None:
                    words = sizes[slot]
                    own[slot] = much if words <= longest else much * math.sqrt(longest / words)
        return own

    def _dated(self, order: Order, term: Occurrences) -> dict[int, int]:
        return {} if self.plain else {order.slots[number]: 1 for number in term.dated if number in order.slots}

    def _weighed(self, order: Order, scores: dict[int, float], ratios: dict[int, float]) -> dict[int, float]:
        if self.named is not None:
            for slot in scores.keys() & order.by_speaker.get((self.named, ""), ()):
                scores[slot] *= NAMED
        if ratios:
            for slot in scores.keys() & order.by_speaker.get((None, "assistant"), ()):
                scores[slot] *= ratios.get(slot >> SLOT_BITS, 1.0)
        return scores


def weight(total: int, count: int) -> float:
    """Return what a term counts that is in ``count`` of ``total`` rows: the rarer, the more."""
    return MOST * math.log(1 + (total - count + 0.5) / (count + 0.5))


def best(scores: dict[int, float], most: int) -> list[int]:
    """Return the slots with the highest scores, best first; of equal ones the earlier message first."""
    found = heapq.nlargest(most, zip(scores.values(), map(operator.neg, scores), strict=True))
    return [-slot for _, slot in found]


def with_neighbours(order: Order, near: dict[int, float]) -> dict[int, float]:
    """Return by slot how near messages are to a question in meaning, their neighbours included.

    ``near``: by the ids of messages. A product with a sum of vectors is the sum of the products.
    """
    own = {slot: much for number, much in near.items() if (slot := order.slots.get(number)) is not None}
    get = own.get
    return {slot: much + MEANT * (get(slot - 1, 0.0) + get(slot + 1, 0.0)) for slot, much in own.items()}


def _spread(own: dict[int, float], ratios: dict[int, float]) -> dict[int, float]:
    """Return what each row contains of a term, with its part of what the neighbours contain."""
    out: dict[int, float] = {}
    get = out.get
    for slot, much in own.items():
        ratio = ratios.get(slot >> SLOT_BITS, 1.0) if ratios else 1.0
        near, far = NEAR * ratio * much, FAR * ratio * much
        out[slot - 2] = get(slot - 2, 0.0) + far
        out[slot - 1] = get(slot - 1, 0.0) + near
        out[slot] = get(slot, 0.0) + much
        out[slot + 1] = get(slot + 1, 0.0) + near
        out[slot + 2] = get(slot + 2, 0.0) + far
    return out


def _with_neighbours(own: dict[int, float], slot: int, ratios: dict[int, float]) -> float:
    get, ratio = own.get, ratios.get(slot >> SLOT_BITS, 1.0)
    near = get(slot - 1, 0.0) + get(slot + 1, 0.0)
    far = get(slot - 2, 0.0) + get(slot + 2, 0.0)
    return get(slot, 0.0) + ratio * (NEAR * near + FAR * far)
