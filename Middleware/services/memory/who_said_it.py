"""Whose words fit a question best that names one speaker: small models answer with what another one has said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow, Occurrences
from Middleware.utilities.discussions.message_index.order import Order
from Middleware.utilities.discussions.message_index.ranking import Ranking, best
from Middleware.utilities.discussions.message_index.terms import Query
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.stop_words import words_of

# How much of the best score of others the named speaker's best needs.
_ENOUGH = 0.9
_MOST_ROWS = 60
_SENTENCE = re.compile(r"(?<=[.!?…])\s+|\n")
_YOU = frozenset(
    (
        "you your yours yourself du dich dir dein deine deinen deinem deiner euch euer eure ihr ihre ihren ihrem "
        "tu te toi ton ta tes vous votre vos usted ustedes tus ti contigo"
    ).split()
)
_WE = frozenset(
    (
        "i me my mine myself we us our ours ich mich mir mein meine meinen meinem wir uns unser unsere "
        "je j moi mon ma mes nous notre yo mi mis nosotros"
    ).split()
)
# Words with so many common letters at their beginning may have one stem.
_LEAST_STEM, _MOST_ENDING = 3, 3


def said_by_another(index: MessageIndex, order: Order, query: Query, found: Sequence[Occurrences]) -> str | None:
    """Return the speaker whose words fit a question better than those of the speaker whom it names; else None."""
    assert query.named is not None
    scores = Ranking(plain=True).scores(order, found)
    mine = other = 0.0
    who: str | None = None
    slots = best(scores, _MOST_ROWS)
    rows = {row.id: row for row in index.rows([order.at[slot] for slot in slots])}
    for slot in slots:
        row = rows.get(order.at[slot])
        if row is None:
            continue
        for owner in _owners(row, order, query):
            if owner == query.named:
                mine = mine or scores[slot]
            elif not other:
                other, who = scores[slot], owner
        if mine and other:
            break
    return who if mine < _ENOUGH * other else None


def _owners(row: MessageRow, order: Order, query: Query) -> set[str]:
    """Return whose the words of a row are that the question looks for: its speaker's, or those of the addressee."""
    if row.speaker is None:
        return set()
    owners: set[str] = set()
    for sentence in _SENTENCE.split(row.text):
        words = index_words(sentence)
        if not any(_is_like(word, looked) for looked in query.words for word in words):
            continue
        plain = frozenset(words_of(sentence))
        addressed = order.addressee(row.id) if plain & _YOU else None
        if addressed is None or plain & _WE:
            owners.add(row.speaker)
        if addressed is not None:
            owners.add(addressed)
    # Found by its neighbours alone.
    return owners or {row.speaker}


def _is_like(word: str, looked: str) -> bool:
    """Return whether two words may have one stem; only sentences of rows with such a word are compared."""
    shorter = min(len(word), len(looked))
    stem = max(_LEAST_STEM, shorter - _MOST_ENDING + 1)
    return word == looked or (shorter > _LEAST_STEM and word[:stem] == looked[:stem])
