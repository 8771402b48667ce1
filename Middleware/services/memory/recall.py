"""The search in all messages of a discussion, without any LLM: one ranking, and a budget in tokens."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from Middleware.exceptions import EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow, Occurrences
from Middleware.utilities.discussions.message_index.order import Order
from Middleware.utilities.discussions.message_index.ranking import Ranking, best
from Middleware.utilities.discussions.message_index.terms import MOST_TERMS, Query, query_of, stands_in
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory.keyword_search import CPU_SECONDS

logger = logging.getLogger(__name__)

# Words that are counted before the rarest are chosen.
_MOST_COUNTED = 200
# Results that are looked at at most, and how many are read from the file at once.
_MOST_RESULTS, _BATCH = 150, 30
# After the first line that does not fit, so many are tried once for a shorter one.
_TRIED_AFTER = 3
_LINE_TOKENS = 2
CUT = "…"


@dataclass(frozen=True)
class Recall:
    """A search.

    Attributes:
        text: the question: a sentence, or terms.
        tokens: the budget of all lines together.
        best_first: the best line first; False: in the order of time.
        shown: ids of rows that the prompt holds anyway.
    """

    text: str
    tokens: int = 600
    best_first: bool = True
    shown: Collection[int] = ()


class Found(NamedTuple):
    """A result: a line of the output, and what it was made of."""

    line: str
    score: float
    row: MessageRow


@dataclass
class Recalled:
    """The results, with the terms that were looked for, and how many rows hold any of them."""

    results: list[Found] = field(default_factory=list)
    terms: tuple[str, ...] = ()
    rows: int = 0


def recall(index: MessageIndex, search: Recall, scope: CancelScope | None = None) -> Recalled:
    """Return the messages that fit best, as many as the budget holds. Raises sqlite3.Error and OSError."""
    return _Search(index, search, scope).run()


class _Search:
    """One search on an open index."""

    def __init__(self, index: MessageIndex, search: Recall, scope: CancelScope | None) -> None:
        self._index, self._search, self._scope = index, search, scope

    def run(self) -> Recalled:
        with self._index.order() as order:
            query = query_of(self._search.text, order.speakers)
            found = self._occurrences(query)
            scores = Ranking(query.named).scores(order, found)
            self._double_phrases(order, query, found, scores)
            chosen = best(scores, _MOST_RESULTS + len(self._search.shown))
            ranked = [(order.at[slot], scores[slot]) for slot in chosen]
        results = self._chosen(ranked)
        if not self._search.best_first:
            results.sort(key=lambda result: (result.row.said or 0, result.row.conversation, result.row.place))
        return Recalled(results, query.words, len(scores))

    # -- scores --------------------------------------------------------------------------------------------------
    def _occurrences(self, query: Query) -> list[Occurrences]:
        """Return where the rarest terms occur; those that are left when the time is over count as unknown."""
        terms = query.terms
        if len(terms) > MOST_TERMS:
            counts = {term: self._index.count(term) for term in terms[-_MOST_COUNTED:]}
            terms = heapq.nsmallest(MOST_TERMS, (term for term in counts if counts[term]), key=counts.__getitem__)
        found: list[Occurrences] = []
        ends = time.thread_time() + CPU_SECONDS
        for term in terms:
            if self._scope is not None and self._scope.cancelled:
                raise EarlyTerminationException("The request was cancelled during a search", CANCELLED)
            if time.thread_time() > ends:
                logger.info("A search in the messages has taken too long; %d terms are left out", len(terms))
                break
            found.append(self._index.occurrences(term))
        return found

    def _double_phrases(
        self, order: Order, query: Query, found: Sequence[Occurrences], scores: dict[int, float]
    ) -> None:
        """Let rows count double in which the words of a quoted phrase stand side by side."""
        rows = {order.slots.get(number) for term in found for number in term.full} if query.phrases else set()
        slots = best({slot: scores[slot] for slot in rows if slot in scores}, _MOST_RESULTS)
        for row in self._index.rows([order.at[slot] for slot in slots]):
            words = index_words(row.text)
            if any(stands_in(phrase, words) for phrase in query.phrases):
                scores[order.slots[row.id]] *= 2

    # -- choosing ------------------------------------------------------------------------------------------------
    def _chosen(self, ranked: Sequence[tuple[int, float]]) -> list[Found]:
        left, results = self._search.tokens, list[Found]()
        tried: int | None = None
        for found in self._candidates(ranked):
            if any(found.row.text in other.row.text for other in results):
                continue
            cost = line_tokens(found.line)
            if not results and cost > left:
                return [found._replace(line=cut_to(found.line, left))]
            if tried is not None:
                tried += 1
            if cost <= left:
                results.append(found)
                left -= cost
                if tried is not None:
                    break
            elif tried is None:
                tried = 0
            if tried == _TRIED_AFTER:
                break
        return results

    def _candidates(self, ranked: Sequence[tuple[int, float]]) -> Iterator[Found]:
        shown = frozenset(self._search.shown)
        wanted = [(number, score) for number, score in ranked if number not in shown]
        for start in range(0, len(wanted), _BATCH):
            some = dict(wanted[start : start + _BATCH])
            for row in self._index.rows(list(some)):
                yield Found(line_of(row), some[row.id], row)


def line_of(row: MessageRow) -> str:
    """Return a message as a line."""
    speaker = row.speaker or row.role.capitalize()
    return f"{speaker}: {' / '.join(_lines(row.text))}"


def _lines(text: str) -> Iterable[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def line_tokens(line: str) -> int:
    """Return an estimate of the tokens of a line, without a margin."""
    return int(max(len(line.split()) * 1.35, len(line) / 3.5)) + _LINE_TOKENS


def cut_to(line: str, tokens: int) -> str:
    """Return the beginning of a line that fits a budget, with a mark at its end."""
    # Characters at first: a long line may have no spaces.
    cut = line[: max(1, int(tokens * 3.5))]
    while cut and line_tokens(cut.rstrip() + CUT) > max(tokens, _LINE_TOKENS + 1):
        shorter = cut.rstrip().rpartition(" ")[0]
        cut = shorter or cut[: len(cut) // 2]
    return cut.rstrip() + CUT
