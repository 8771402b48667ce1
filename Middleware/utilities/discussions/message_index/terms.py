"""What a search looks for: the words of a question, and the speaker whom it names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from Middleware.utilities.discussions.message_index.words import index_words, is_pair
from Middleware.utilities.discussions.vector_memory.keyword_search import without_bullets
from Middleware.utilities.stop_words import STOP_WORDS, verb_forms, without_stop_words

# Characters, from the end of the question: what is asked stands behind what is pasted.
MOST_CHARACTERS = 1_000
MOST_TERMS = 24
# Words of so many letters also find those that begin with the same so many letters.
LONG_WORD, BEGINNING = 6, 5
_QUOTED = re.compile(r'"([^"\n]+)"|„([^“”"\n]+)[“”"]|“([^”"\n]+)”')


@dataclass(frozen=True)
class Term:
    """What is looked for: one of ``words``, or, at less, a word that begins with ``beginning``."""

    words: tuple[str, ...]
    beginning: str = ""


@dataclass(frozen=True)
class Query:
    """The words of a question.

    Attributes:
        words: distinct and folded, without stop words and names of speakers if others are left.
        phrases: those that stand in quotation marks, as words side by side.
        named: the only speaker whom it names; None if there are several, or none.
    """

    words: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...] = ()
    named: str | None = None

    @property
    def terms(self) -> list[Term]:
        return [term_of(word) for word in self.words]


def query_of(text: str, speakers: Collection[str] = ()) -> Query:
    """Return what ``text`` asks for; ``speakers``: the names of those who speak in the discussion."""
    text = _end_of(without_bullets(text))
    words = list(dict.fromkeys(index_words(text)))
    named, names = _named(words, speakers)
    telling = without_stop_words(words)
    telling = [word for word in telling if word not in names] or telling
    # Forms of one verb are one term.
    distinct = {verb_forms(word): word for word in reversed(telling)}
    quoted = (tuple(index_words(next(filter(None, found.groups())))) for found in _QUOTED.finditer(text))
    return Query(tuple(distinct.values())[::-1], tuple(phrase for phrase in quoted if len(phrase) > 1), named)


def term_of(word: str) -> Term:
    long = len(word) >= LONG_WORD and word.isalpha() and not is_pair(word)
    return Term(verb_forms(word), word[:BEGINNING] if long else "")


def stands_in(phrase: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether the words of ``phrase`` stand side by side in ``words``."""
    # No word holds a space.
    return f" {' '.join(phrase)} " in f" {' '.join(words)} "


def _end_of(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    end = text[-MOST_CHARACTERS:]
    # Not a part of a word.
    return end.partition(" ")[2] if text[-MOST_CHARACTERS - 1].isalnum() and " " in end[:80] else end


def _named(words: Iterable[str], speakers: Collection[str]) -> tuple[str | None, frozenset[str]]:
    """Return the only speaker who is named, and all words of names of speakers.

    A speaker is named by all words of his name, or by one that no other speaker's name has.
    """
    common = frozenset().union(*STOP_WORDS.values())
    names = {name: frozenset(index_words(name)) - common for name in speakers}
    said, named = frozenset(words), dict[str, frozenset[str]]()
    counts = Counter(word for own in names.values() for word in own)
    for name, own in names.items():
        if own and (own <= said or any(counts[word] == 1 for word in own & said)):
            named[name] = own
    # "Tom Miller" does not name a Tom of whom there is no more.
    only = [name for name, own in named.items() if not any(own < other for other in named.values())]
    return (only[0] if len(only) == 1 else None), frozenset().union(*names.values())
