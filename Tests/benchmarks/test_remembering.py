"""``benchmarks/remembering.py``: what its own set holds, and that its figures are the ones that their names say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import remembering, remembering_sets
from benchmarks.remembering_sets import Conversation, Question
from Middleware.utilities.stop_words import STOP_WORDS

CONVERSATIONS = list(remembering_sets.own_conversations())
QUESTIONS = [question for conversation in CONVERSATIONS for question in conversation.questions]
KINDS = Counter(question.kind for question in QUESTIONS)


def test_the_own_set_holds_what_a_fair_yardstick_needs() -> None:
    languages = Counter(conversation.language for conversation in CONVERSATIONS)
    assert languages["en"] >= 5
    assert languages["de"] >= 4
    assert languages["es"] + languages["fr"] >= 3
    assert 2 * sum(conversation.held_out for conversation in CONVERSATIONS) == len(CONVERSATIONS)
    for conversation in CONVERSATIONS:
        assert len(conversation.sessions) >= 8
        assert len(conversation.messages) >= 150
        dates = [message.said for message in conversation.messages]
        assert dates == sorted(dates)


@pytest.mark.parametrize(
    ("kind", "least"), [("unanswerable", 0.2), ("multi", 0.15), ("temporal", 0.2), ("update", 0.1)]
)
def test_the_own_set_asks_enough_questions_of_each_kind(kind: str, least: float) -> None:
    assert len(QUESTIONS) >= 240
    assert KINDS[kind] / len(QUESTIONS) >= least


def test_every_question_has_what_its_kind_needs() -> None:
    for conversation in CONVERSATIONS:
        known = {message.id for message in conversation.messages}
        for question in conversation.questions:
            assert known.issuperset(question.evidence)
            assert bool(question.evidence) == bool(question.answers) == (question.kind != "unanswerable")


def test_half_of_the_questions_use_other_words_than_their_evidence() -> None:
    overlaps = [share_of_words(*pair) for pair in answerable()]
    assert sum(overlap < 0.5 for overlap in overlaps) / len(overlaps) >= 0.5


def answerable() -> list[tuple[Conversation, Question]]:
    return [(c, question) for c in CONVERSATIONS for question in c.questions if question.evidence]


def share_of_words(conversation: Conversation, question: Question) -> float:
    """Return the share of the words of a question, without frequent words and names, that its evidence holds."""
    frequent = STOP_WORDS[conversation.language]
    words = [word for word in remembering.words_of(question.text) if word not in frequent]
    names = remembering.STEMS.of(" ".join(message.speaker for message in conversation.messages))
    asked = remembering.STEMS.of(" ".join(words)) - names
    said = [message.text for message in conversation.messages if message.id in question.evidence]
    return len(asked & remembering.STEMS.of(" ".join(said))) / max(1, len(asked))


def results(*shown: str) -> list[remembering.Found]:
    return [remembering.Found(f"line {name}", frozenset([name])) for name in shown]


ASKED = Question("Where?", ("in Thurso",), ("a", "b"), "multi")
OTHERS = [f"other{number}" for number in range(9)]


@pytest.mark.parametrize(
    ("found", "figure", "expected"),
    [
        (["a", "b"], "R@5", 1.0),
        (["x", "a"], "R@5", 0.5),
        (["x", "a"], "MRR", 0.5),
        (["x"], "MRR", 0.0),
        ([*OTHERS[:4], "a", "b"], "R@5", 0.5),
        ([*OTHERS, "a", "b"], "R@10", 0.5),
        ([*OTHERS, "a", "b"], "all@10", 0.0),
        ([*OTHERS, "a", "b"], "R@20", 1.0),
        (["a", "a"], "R@10", 0.5),
        ([], "R@10", 0.0),
    ],
)
def test_a_figure_counts_the_evidence_that_was_found(found: list[str], figure: str, expected: float) -> None:
    assert remembering.measure_question(ASKED, results(*found))[figure] == expected


@pytest.mark.parametrize(
    ("said", "expected", "f1"),
    [("in Thurso", "Thurso", 2 / 3), ("Thurso", "thurso.", 1.0), ("Wick", "Thurso", 0.0), ("", "Thurso", 0.0)],
)
def test_an_answer_is_compared_by_its_words(said: str, expected: str, f1: float) -> None:
    assert remembering.overlap(said, expected) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("I do not know.", True),
        ("It was not mentioned.", True),
        ("Das weiß ich nicht.", True),
        ("No lo sé.", True),
        ("In Thurso.", False),
        ("It is not far.", False),
    ],
)
def test_a_refusal_is_recognised(said: str, refused: bool) -> None:
    assert bool(remembering.REFUSALS.search(said)) == refused


def test_recall_finds_more_than_full_text_search() -> None:
    chosen = [conversation for conversation in CONVERSATIONS if not conversation.held_out][:3]
    figures = remembering.measure(chosen, ["plain FTS5", "Recall", "evidence"])
    found = {name: groups["all"].row()["R@10"] for name, groups in figures.items()}
    assert found["plain FTS5"] < found["Recall"] < found["evidence"] == 1


LOCOMO = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Ines",
        "speaker_b": "Tom",
        "session_2_date_time": "9:05 am on 1 June, 2023",
        "session_2": [{"speaker": "Tom", "dia_id": "D2:1", "text": "Hello", "blip_caption": "a boat"}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [{"speaker": "Ines", "dia_id": "D1:1", "text": "I moved."}],
    },
    "qa": [
        {"question": "Who moved?", "answer": "Ines", "evidence": ["D1:1"], "category": 4},
        {"question": "When?", "answer": 2023, "evidence": ["D9:1"], "category": 2},
        {"question": "Did Tom move?", "adversarial_answer": "yes", "evidence": ["D1:1"], "category": 5},
    ],
}
BEAM_CHAT = [{"turns": [[{"id": 4, "role": "user", "content": "The sprint ends."}]]}]
BEAM_QUESTIONS = {
    "knowledge_update": [{"question": "When?", "answer": "March", "source_chat_ids": {"old": [4], "new": [4]}}],
    "abstention": [{"question": "Why?", "ideal_response": "Not said."}],
}


def test_published_sets_are_read(tmp_path: Path) -> None:
    (tmp_path / "locomo10.json").write_text(json.dumps([LOCOMO]), encoding="utf-8")
    (read,) = remembering_sets.locomo(tmp_path / "locomo10.json")
    assert [(m.id, m.role, m.text) for m in read.messages] == [
        ("D1:1", "user", "I moved."),
        ("D2:1", "assistant", "Hello (picture: a boat)"),
    ]
    assert [question.kind for question in read.questions] == ["single", "unanswerable"]
    folder = tmp_path / "100K" / "1"
    (folder / "probing_questions").mkdir(parents=True)
    (folder / "chat.json").write_text(json.dumps(BEAM_CHAT), encoding="utf-8")
    (folder / "probing_questions" / "probing_questions.json").write_text(json.dumps(BEAM_QUESTIONS), encoding="utf-8")
    (chat,) = remembering_sets.beam(tmp_path / "100K")
    assert [(question.kind, question.evidence) for question in chat.questions] == [("knowledge_update", ("4",))]
