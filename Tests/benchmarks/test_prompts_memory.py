"""The cases about memories, and how what is kept of them is judged."""

from __future__ import annotations

import pytest

from benchmarks.prompts_memory import Conversation, Discussion, discussions, has, holds, judge

EVERY = [
    (discussion.name, one)
    for kind in ("memory", "game")
    for discussion in discussions(kind)
    for one in discussion.conversations
]


def test_there_are_enough_conversations() -> None:
    assert len([one for discussion in discussions("memory") for one in discussion.conversations]) >= 40


@pytest.mark.parametrize("conversation", [one for _, one in EVERY], ids=[f"{name} {one.name}" for name, one in EVERY])
def test_what_is_looked_for_was_said(conversation: Conversation) -> None:
    said = "\n".join(conversation.messages)
    assert len(conversation.messages) == 10
    for fact in conversation.keep:
        assert all(has(said, part) for part in fact), fact
    for text in (*conversation.leave, *(part for pair in conversation.outdated for part in pair)):
        assert has(said, text), text
    for question in conversation.questions:
        # The answer to a question is one of the facts, or a part of one.
        assert question["ask"] and all(has(said, part) for part in question["answer"]), question


@pytest.mark.parametrize(
    "text, wanted, there",
    [
        ("She has an allergy.", "allerg", True),
        ("On 14\u00a0March.", "14 March|March 14", True),
        ("Call 114 March Street.", "14 March", False),
        ("Le 1\u202f180 euros", "1 180|1180", True),
        ("", "x", False),
    ],
)
def test_words_in_one_of_their_spellings(text: str, wanted: str, there: bool) -> None:
    assert has(text, wanted) is there


def test_a_fact_stands_in_one_line() -> None:
    assert holds("Balu is a dog.\nLene hates cats.", ["Lene", "cat"])
    assert not holds("Lene is nine.\nShe hates cats.", ["Lene", "cat"])


def test_what_is_counted() -> None:
    one = Conversation("pets", [], [["Balu"], ["Thursday"]], ["Switzerland"], [["Tuesday", "Thursday"]], [])
    score = judge(
        Discussion("en-1", "en", [one]),
        [
            "<notes>The dog is Balu.\nBernese dogs come from Switzerland.\nThe date is Tuesday.",
            "The dog is Balu.\nIt was moved from Tuesday to Thursday.",
        ],
        "Balu",
    )
    assert (score.facts, score.kept, score.summarized, score.lines) == (2, 2, 1, 5)
    assert (score.plain, score.wrong, score.repeated, score.tags) == (2, 2, 0, 1)
