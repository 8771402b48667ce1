"""The scores of messages: the same as the formula gives, written down plainly here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.utilities.discussions.message_index import ranking
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE, ON_PATH
from Middleware.utilities.discussions.message_index.ranking import Ranking, best
from Middleware.utilities.discussions.message_index.row_writing import NewMessage
from Middleware.utilities.discussions.message_index.terms import Term
from Tests.properties import examples
from Tests.utilities.discussions.message_index.lab import DAY, START, another_process, chat, fill, opened, said

WORDS = ("loom", "harbour", "violet", "lantern", "lanterns")
TERMS = [Term(("loom",)), Term(("harbour",)), Term(("violet",)), Term(("lantern",), "lante")]


class _Plain:
    """The formula, row by row, for rows of one conversation."""

    def __init__(self, messages: list[NewMessage]) -> None:
        self.all = messages
        self.rows = [message for message in messages if message.state == ON_PATH]
        self.average = sum(len(m.text.split()) for m in messages) / max(1, len(messages))

    def r(self) -> float:
        means = []
        for role in ("user", "assistant"):
            sizes = [len(m.text.split()) for m in self.all if m.role == role and m.speaker is None]
            means.append(sum(sizes) / len(sizes) if sizes else 0)
        return min(1.0, max(0.3, math.sqrt(means[0] / means[1]))) if all(means) else 1.0

    def own(self, term: Term, row: NewMessage) -> float:
        words = row.text.split()
        # "lanterns" and "lantern" have one stem.
        stems = {word.rstrip("s") for word in words}
        much = 1.0 if set(term.words) & stems else 0.0
        if not much and term.beginning and any(word.startswith(term.beginning) for word in words):
            much = 0.4
        return much / math.sqrt(max(1.0, len(words) / (1.5 * self.average)))

    def near(self, term: Term, index: int, distance: int) -> float:
        other = index + distance
        if not 0 <= other < len(self.rows):
            return 0.0
        step = 1 if distance > 0 else -1
        for place in range(index, other, step):
            first, second = self.rows[place].said, self.rows[place + step].said
            if first is not None and second is not None and abs(first - second) > 6 * 3600:
                return 0.0
        return self.own(term, self.rows[other])

    def score(self, terms: list[Term], index: int, named: str | None) -> float:
        row, r, score = self.rows[index], self.r(), 0.0
        for term in terms:
            count = sum(self.own(term, message) > 0 for message in self.all)
            dated = [bool(set(term.words) & set(message.when_words.split())) for message in self.all]
            count = count or sum(dated)
            tf = self.own(term, row)
            tf += 0.5 * r * (self.near(term, index, -1) + self.near(term, index, 1))
            tf += 0.3 * r * (self.near(term, index, -2) + self.near(term, index, 2))
            tf += bool(set(term.words) & set(row.when_words.split()))
            score += math.log(1 + (len(self.all) - count + 0.5) / (count + 0.5)) * 1.8 * tf / (tf + 0.8)
        if row.speaker is None and row.role == "assistant":
            score *= r
        return score * (1.7 if named is not None and row.speaker == named else 1)


MESSAGES = st.lists(
    st.tuples(
        st.lists(st.sampled_from((*WORDS, "the", "and")), min_size=1, max_size=12).map(" ".join),
        st.sampled_from(("user", "assistant")),
        st.sampled_from((None, "Ines", "Tom")),
        st.sampled_from((None, 0, 4, 9)),
        st.sampled_from((ON_PATH, ON_PATH, ON_PATH, ELSEWHERE)),
        st.sampled_from(("", "harbour", "violet 2026")),
    ),
    min_size=1,
    max_size=12,
)


@examples(40)
@given(rows=MESSAGES, named=st.sampled_from((None, "Ines")))
def test_scores_are_those_of_the_formula(tmp_path_factory: Any, rows: list[Any], named: str | None) -> None:
    messages = [
        said(
            text,
            speaker,
            place,
            role=role,
            said=None if hours is None else START + place * 60 + hours * 3600,
            state=state,
            when_words=when,
        )
        for place, (text, role, speaker, hours, state, when) in enumerate(rows)
    ]
    plain = _Plain(messages)
    with opened(tmp_path_factory.mktemp("index")) as index:
        numbers = fill(index, messages)
        with index.order() as order:
            scores = Ranking(named).scores(order, [index.occurrences(term) for term in TERMS])
            found = {number: scores.get(order.slots[number], 0.0) for number in numbers if number in order.slots}
    on_path = [number for number, message in zip(numbers, messages, strict=True) if message.state == ON_PATH]
    assert list(found) == on_path
    for position, number in enumerate(on_path):
        assert math.isclose(found[number], plain.score(TERMS, position, named), abs_tol=1e-9)


def _best(index: MessageIndex, *words: str, named: str | None = None) -> list[int]:
    with index.order() as order:
        scores = Ranking(named).scores(order, [index.occurrences(Term((word,))) for word in words])
        return [order.at[slot] for slot in best(scores, 20)]


def test_neighbours_are_those_on_the_path_without_a_long_pause(tmp_path: Path) -> None:
    with opened(tmp_path) as index:
        fill(index, chat("where is the loom", "in the shed", "ah", "good night", "nothing more", said=START))
        assert _best(index, "loom") == [1, 2, 3]
        fill(index, [said("a lantern", place=10, said=START), said("far", place=11, said=START + DAY)])
        assert _best(index, "lantern") == [6, 5, 4]
        # Not across conversations.
        fill(index, chat("other", "chat", conversation=2))
        fill(index, [said("a harbour", place=-1)])
        assert _best(index, "harbour") == [10, 1, 2]
        # The row between goes elsewhere.
        with index.writing() as writing:
            writing.set_state([2], ELSEWHERE)
        assert _best(index, "loom") == [1, 10, 3, 4]


def test_common_terms_only_add_to_rows_of_rarer_ones(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ranking, "MOST_MATCHES", 5)
    apart = [said(f"loom {n}", place=n, said=START + n * DAY) for n in range(9)]
    rare = said("a harbour loom", place=9, said=START + 9 * DAY)
    with opened(tmp_path) as index:
        fill(index, [*apart, rare])
        assert _best(index, "loom", "harbour") == [10]
        # Without a rarer term: the newest rows of the commonest.
        assert sorted(_best(index, "loom")) == [6, 7, 8, 9, 10]


@pytest.mark.usefixtures("anywhere")
def test_what_is_kept_in_memory_follows_the_index(tmp_path: Path) -> None:
    with opened(tmp_path) as mine, opened(tmp_path) as another:
        fill(mine, chat("a loom"))
        assert _best(mine, "loom") == [1]
        fill(another, [said("the loom again", place=1)])
        assert _best(mine, "loom") == [1, 2]
        with another_process(), another.writing() as writing:
            writing.set_state([1], ELSEWHERE)
            writing.add(said("a harbour", place=2))
        assert (_best(mine, "loom"), _best(mine, "harbour")) == ([2, 3], [3, 2])
        with another_process(), another.writing() as writing:
            writing.set_said(2, START, 1, lambda text: "violet 2026")
        assert (_best(mine, "violet"), _best(mine, "loom")) == ([2], [2, 3])
        with another_process(), another.writing() as writing:
            writing.set_said(2, START + DAY, 1, lambda text: "lantern 2026")
            writing.drop([1])
        assert (_best(mine, "violet"), _best(mine, "lantern")) == ([], [2])
        with another_process(), another.writing() as writing:
            writing.forget([3])
        assert (_best(mine, "harbour"), _best(mine, "loom")) == ([], [2])
