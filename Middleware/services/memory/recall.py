"""The search in all messages of a discussion, without any LLM: one ranking, and a budget in tokens."""

from __future__ import annotations

import heapq
import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

from Middleware.models.cancel_scope import CancelScope
from Middleware.services.memory.embedding_service import vector_of
from Middleware.services.memory.recalled_facts import Fact, ranked_facts, sources_of
from Middleware.services.memory.who_said_it import said_by_another
from Middleware.utilities.conversations.message_keys import path_messages
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow, Occurrences
from Middleware.utilities.discussions.message_index.order import Order
from Middleware.utilities.discussions.message_index.ranking import Ranking, best, with_neighbours
from Middleware.utilities.discussions.message_index.terms import MOST_TERMS, Query, query_of, stands_in
from Middleware.utilities.discussions.message_index.words import index_words
from Middleware.utilities.discussions.vector_memory.cache import raise_if_cancelled
from Middleware.utilities.discussions.vector_memory.keyword_search import CPU_SECONDS
from Middleware.utilities.discussions.vector_memory.searchable import SearchableMemories
from Middleware.utilities.relative_dates import resolve, spelled
from Middleware.utilities.said_times import SERVER, Calendar
from Middleware.utilities.stop_words import ENGLISH, GERMAN
from Middleware.utilities.text_utils import escape_braces
from Middleware.utilities.vector_math_utils import reciprocal_rank_fusion

logger = logging.getLogger(__name__)

MESSAGES, FACTS = "messages", "facts"
NOTE, WITHHOLD, OFF = "note", "withhold", "off"
# Words that are counted before the rarest are chosen.
_MOST_COUNTED = 200
# Results that are looked at at most, and how many are read from the file at once.
_MOST_RESULTS, _BATCH = 150, 30
# After the first line that does not fit, so many are tried once for a shorter one.
_TRIED_AFTER = 3
_LINE_TOKENS = 2
# Of messages and facts, the first ones count much more than the next.
_FUSION = 20
# What a ranking by meaning counts, and how long the vector of the question may take.
_MEANING, _EMBEDDING_SECONDS = 0.5, 2.0
# A date and its weekday; what follows are meanings of relative dates.
_DATE_WORDS = 4
_GERMAN_DATE = re.compile(r"\d{1,2}\. ")
CUT = "…"


@dataclass(frozen=True)
class Recall:
    """A search.

    Attributes:
        text: the question: a sentence, or terms.
        tokens: the budget of all lines together.
        sources: of ``messages`` and ``facts``.
        best_first: the best line first; False: in the order of time.
        neighbours: how many messages before and after each result are shown.
        dates: each line begins with its date, and relative dates get their meaning.
        who_said_it: what happens if the question names one speaker, and what fits best comes from another one.
        shown: ids of rows that the prompt holds anyway; newest: the id of the newest user message.
        states: which rows the request shows to be on its path, and which not.
        conversation: the only one that is searched; None for all.
        endpoint: of the embedding model, to search by meaning as well; "" for words alone.
    """

    text: str
    tokens: int = 600
    sources: Collection[str] = (MESSAGES, FACTS)
    best_first: bool = True
    neighbours: int = 0
    dates: bool = True
    who_said_it: str = NOTE
    calendar: Calendar = SERVER
    shown: Collection[int] = ()
    states: Sequence[tuple[int, bool]] = ()
    conversation: int | None = None
    endpoint: str = ""


class Found(NamedTuple):
    """A result: a line of the output, and the message or the fact that it shows."""

    line: str
    score: float
    row: MessageRow | None = None
    fact: Fact | None = None

    @property
    def text(self) -> str:
        return self.row.text if self.row is not None else self.fact.text if self.fact is not None else ""

    @property
    def order(self) -> tuple[float, int, float]:
        """What orders results by time; of unknown times, by their place in the conversation."""
        if self.row is not None:
            return self.row.said or 0, self.row.conversation, self.row.place
        return (self.fact.said or 0 if self.fact is not None else 0), 0, 0


@dataclass
class Recalled:
    """The results, with the terms that were looked for, and how many rows hold any of them.

    Attributes:
        remark: what is known about who said it; it is a line of its own.
    """

    results: list[Found] = field(default_factory=list)
    terms: tuple[str, ...] = ()
    rows: int = 0
    remark: str = ""

    @property
    def lines(self) -> list[str]:
        return [*(found.line for found in self.results), *filter(None, (self.remark,))]

    @property
    def tokens(self) -> int:
        """Return an estimate of the tokens of the lines."""
        return sum(map(line_tokens, self.lines))


def recall(
    index: MessageIndex, search: Recall, scope: CancelScope | None = None, facts: SearchableMemories | None = None
) -> Recalled:
    """Return what fits best, as much as the budget holds. Raises sqlite3.Error and OSError."""
    return _Search(index, search, scope, facts).run()


class _Search:
    """One search on open databases."""

    def __init__(
        self, index: MessageIndex, search: Recall, scope: CancelScope | None, facts: SearchableMemories | None
    ) -> None:
        self._index, self._search, self._scope = index, search, scope
        self._memories = facts if FACTS in search.sources else None
        self._facts: dict[int, Fact] = {}
        # Of the facts: the keys of the messages that they were made of.
        self._sources: dict[int, frozenset[str]] = {}
        # Of the question, with the model that has made it.
        self._meaning: tuple[list[float], str] | None = None

    def run(self) -> Recalled:
        # Not inside the block, which others wait for.
        near = self._by_meaning()
        with self._index.order() as kept:
            order = kept.as_shown(self._search.states)
            query = query_of(self._search.text, +order.speakers)
            found = self._occurrences(query) if MESSAGES in self._search.sources else []
            scores = Ranking(query.named).scores(order, found)
            scores = self._here(order, scores)
            self._double_phrases(order, query, found, scores)
            most = _MOST_RESULTS + len(self._search.shown)
            messages = {order.at[slot]: scores[slot] for slot in best(scores, most)}
            meant = [order.at[slot] for slot in best(self._here(order, with_neighbours(order, near)), most)]
            other = self._other(order, query, found)
            around = {number: order.around(number, self._search.neighbours) for number in (*messages, *meant)}
        if other and self._search.who_said_it == WITHHOLD:
            return Recalled([], query.words, len(scores), f"(Nothing was found that {query.named} said about this.)")
        remark = f"(What fits best was said by {other}, not by {query.named}.)" if other else ""
        # It is worth little without a result.
        remark = remark if 2 * line_tokens(remark) <= self._search.tokens else ""
        results = self._chosen(self._ranked(query, messages, meant), around, remark)
        if not self._search.best_first:
            results.sort(key=lambda result: result.order)
        return Recalled(results, query.words, len(scores), remark if results else "")

    # -- meaning -------------------------------------------------------------------------------------------------
    def _by_meaning(self) -> dict[int, float]:
        """Return how near messages are to the question in meaning, by their ids."""
        text = self._search.text.replace(";", " ").strip()
        if self._search.endpoint and text:
            self._meaning = vector_of(text, self._search.endpoint, self._scope, _EMBEDDING_SECONDS)
        if self._meaning is None or MESSAGES not in self._search.sources:
            return {}
        return self._index.similarities(*self._meaning)

    def _near_facts(self) -> list[int]:
        if self._memories is None or self._meaning is None:
            return []
        return self._memories.nearest(*self._meaning, _MOST_RESULTS)

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
            raise_if_cancelled(self._scope)
            if time.thread_time() > ends:
                logger.info("A search in the messages has taken too long; %d terms are left out", len(terms))
                break
            found.append(self._index.occurrences(term))
        return found

    def _here(self, order: Order, scores: dict[int, float]) -> dict[int, float]:
        """Return the scores of what is searched."""
        only = self._search.conversation
        return scores if only is None else order.only(scores, only)

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

    def _other(self, order: Order, query: Query, found: Sequence[Occurrences]) -> str | None:
        """Return who said what fits best, if the question names one speaker and that was another one."""
        if query.named is None or self._search.who_said_it == OFF or len(+order.speakers) < 2:
            return None
        return said_by_another(self._index, order, query, found)

    def _ranked(self, query: Query, messages: dict[int, float], meant: list[int]) -> Iterator[Found]:
        """Yield messages and facts as one ranking, the best first. The keys of facts are negative."""
        near = self._near_facts()
        if self._memories is not None:
            self._facts = ranked_facts(self._memories, query, self._search.calendar, near)
            self._sources = sources_of(self._memories, self._facts.keys())
        facts = [-1 - number for number, fact in self._facts.items() if fact.score]
        lists = list(messages), facts, meant, [-1 - number for number in near if number in self._facts]
        keys = reciprocal_rank_fusion(lists, _FUSION, (1, 1, _MEANING, _MEANING))
        for start in range(0, len(keys), _BATCH):
            some = [key for key in keys[start : start + _BATCH] if key not in self._search.shown]
            rows = {row.id: row for row in self._index.rows([key for key in some if key >= 0])}
            for key in some:
                if key in rows:
                    yield Found(self.line_of(rows[key]), messages.get(key, 0.0), rows[key])
                elif key < 0:
                    fact = self._facts[-1 - key]
                    yield Found(self._dated(fact.line, fact.text), fact.score, fact=fact)

    # -- lines ---------------------------------------------------------------------------------------------------
    def _dated(self, dated: str, text: str) -> str:
        return dated if self._search.dates else one_line(text)

    def line_of(self, row: MessageRow) -> str:
        """Return a message as a line."""
        day = self._search.calendar.day(row.said) if self._search.dates else None
        language = GERMAN if _GERMAN_DATE.match(row.when_words) else ENGLISH
        text = row.text
        if day is not None and len(row.when_words.split()) > _DATE_WORDS:
            text = resolve(text, day, language)
        spoken = f"{row.speaker or row.role.capitalize()}: {one_line(text)}"
        return f"[{spelled(day, language)}] {spoken}" if day is not None else spoken

    # -- choosing ------------------------------------------------------------------------------------------------
    def _chosen(
        self, ranked: Iterable[Found], around: dict[int, tuple[list[int], list[int]]], remark: str
    ) -> list[Found]:
        left = self._search.tokens - (line_tokens(remark) if remark else 0)
        results = list[Found]()
        tried: int | None = None
        for found in ranked:
            if any(_repeats(found, other) for other in results) or self._is_made_of(found, results):
                continue
            group = self._with_neighbours(found, around, results)
            cost = sum(line_tokens(one.line) for one in group)
            if not results and cost > left:
                return [found._replace(line=cut_to(found.line, left))]
            if tried is not None:
                tried += 1
            if cost <= left:
                results += group
                left -= cost
                if tried is not None:
                    break
            elif tried is None:
                tried = 0
            if tried == _TRIED_AFTER:
                break
        return results

    def _is_made_of(self, found: Found, results: Sequence[Found]) -> bool:
        """Return whether a result is a fact, and all messages that it was made of are results."""
        sources = self._sources.get(found.fact.id) if found.fact is not None else None
        rows = [other.row for other in results if other.row is not None]
        if not sources or self._memories is None or len(rows) < len(sources):
            return False
        return sources <= {*self._memories.stored_keys(key for row in rows for key in _keys_of(row))}

    def _with_neighbours(
        self, found: Found, around: dict[int, tuple[list[int], list[int]]], known: Sequence[Found]
    ) -> list[Found]:
        """Return a result between its neighbours, as far as they are not results yet."""
        if found.row is None or not self._search.neighbours:
            return [found]
        taken = {other.row.id for other in known if other.row is not None}.union(self._search.shown)
        before, behind = around[found.row.id]
        sides = [
            [Found(self.line_of(row), 0, row) for row in self._index.rows([n for n in side if n not in taken])]
            for side in (before, behind)
        ]
        return [*sides[0], found, *sides[1]]


def _repeats(found: Found, chosen: Found) -> bool:
    if found.text in chosen.text:
        return True
    # A memory quotes a message with other marks around it, or in other letters.
    return chosen.fact is not None and stands_in(index_words(found.text), index_words(chosen.text))


def _keys_of(row: MessageRow) -> tuple[str, ...]:
    """Return the keys of a message, with and without its speaker. Those of parts of a message are other ones."""
    spoken = f"{row.speaker}: {row.text}" if row.speaker else row.text
    return path_messages([{"role": row.role, "content": escape_braces(spoken)}])[0].keys


def one_line(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())


def dated_line(text: str, day: date | None, language: str, about: bool) -> str:
    """Return a fact as a line; ``about``: it is of the days around that date."""
    mark = "about " if about else ""
    return f"[{mark}{spelled(day, language)}] {one_line(text)}" if day is not None else one_line(text)


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
