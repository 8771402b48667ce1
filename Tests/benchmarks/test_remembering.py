"""``benchmarks/remembering.py``: what its own set holds, and that its figures are the ones that their names say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import remembering, remembering_sets
from benchmarks.remembering_sets import Conversation, Question
from Middleware.utilities.stop_words import STOP_WORDS
from Tests.backend_dialects import embed
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, status_reply

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
        ([], "tokens", 0.0),
        (["a", "b"], "tokens", 8.0),
        # Of the first ten alone.
        ([*OTHERS, "a", "b"], "tokens", 9 * 5 + 4.0),
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


SAID = ["We painted the hull in red.", "The oven takes two loaves.", "Snow fell on the pass at night."]
BOAT = {"question": "Which colour has the vessel?", "answers": ["red"], "evidence": ["m0"], "type": "single"}
UNKNOWN = {"question": "Who sold the vessel?", "answers": [], "evidence": [], "type": "unanswerable"}
SET = {
    "language": "en",
    "kind": "friends",
    "sessions": [
        {
            "at": "2026-03-11T19:05+01:00",
            "messages": [
                {"id": f"m{n}", "speaker": "Ines", "role": "user", "text": text} for n, text in enumerate(SAID)
            ],
        }
    ],
    "questions": [BOAT, UNKNOWN],
}
SEARCHED = "R@5 | R@10 | R@20 | all@10 | R@300 | words@600 | MRR | tokens | ms | ms p95 | bytes"
ANSWERED = "F1 | exact | refusals | false refusals | prompt tokens | seconds"


class Server:
    """Embeds texts by what they are about, but not one with ``refused``, and answers every question alike."""

    def __init__(self, stub: StubBackend, says: str = "", refused: str = "nothing") -> None:
        self.url, self._says, self._refused = stub.url, says, refused
        stub.responder = self._answer

    def _answer(self, request: RecordedRequest) -> Reply:
        if not request.path.endswith("/embeddings"):
            return chat_reply(self._says, usage={"prompt_tokens": 77})
        if any(self._refused in text for text in request.json["input"]):
            return status_reply(400)
        return embed(request, lambda text: [float("hull" in text or "vessel" in text), 0.1])


def figures_of(folder: Path, *options: str) -> dict[str, dict[str, float]]:
    """Return the figures over all questions of the small set, by search, as ``--json`` has them."""
    (folder / "small.json").write_text(json.dumps(SET), encoding="utf-8")
    remembering.main(["--set", str(folder / "small.json"), "--json", str(folder / "figures.json"), *options])
    figures = json.loads((folder / "figures.json").read_text(encoding="utf-8"))["figures"]
    return {name: groups["all"] for name, groups in figures.items()}


def test_tables_have_all_searches_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StubBackend() as stub:
        url = Server(stub, "Red.").url
        figures = figures_of(tmp_path, "--embeddings", url, "--llm", url)
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert table[0] == f"| all | {SEARCHED} | {ANSWERED} |"
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {name}" for name in remembering.SEARCHES]
    assert [*figures] == [*remembering.SEARCHES]
    assert figures["Recall"].keys() == {*f"{SEARCHED} | {ANSWERED}".split(" | ")}


@pytest.mark.parametrize(
    ("options", "searches"),
    [
        ((), [name for name in remembering.SEARCHES if name != remembering.BY_MEANING]),
        (("--only", "BM25"), ["BM25"]),
        (("--only", "evidence", "--only", "Recall"), ["evidence", "Recall"]),
    ],
)
def test_some_searches_alone(tmp_path: Path, options: tuple[str, ...], searches: list[str]) -> None:
    assert [*figures_of(tmp_path, *options)] == searches


def test_other_words_are_found_with_embeddings_alone(tmp_path: Path) -> None:
    with StubBackend() as stub:
        figures = figures_of(tmp_path, "--embeddings", Server(stub).url, "--embedding-model", "small")
        assert {request.json["model"] for request in stub.requests} == {"small"}
    found = {name: row["MRR"] for name, row in figures.items()}
    assert (found["Recall"], found[remembering.BY_MEANING]) == (0, 1)


@pytest.mark.parametrize(("refused", "missing"), [("", 3), ("oven", 1)])
def test_no_figures_with_vectors_of_some_messages_alone(tmp_path: Path, refused: str, missing: int) -> None:
    with StubBackend() as stub, pytest.raises(SystemExit, match=f"small: {missing} messages have no vector"):
        figures_of(tmp_path, "--only", remembering.BY_MEANING, "--embeddings", Server(stub, refused=refused).url)


def test_no_embeddings_without_a_server(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="needs --embeddings URL"):
        figures_of(tmp_path, "--only", remembering.BY_MEANING)


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("Red.", {"F1": 1, "exact": 1, "refusals": 0, "false refusals": 0}),
        ("A deep, dark red", {"F1": 0.4, "exact": 0, "refusals": 0, "false refusals": 0}),
        ("I do not know.", {"F1": 0, "exact": 0, "refusals": 1, "false refusals": 1}),
    ],
)
def test_answers_of_a_model(tmp_path: Path, says: str, expected: dict[str, float]) -> None:
    with StubBackend() as stub:
        row = figures_of(tmp_path, "--only", "evidence", "--llm", Server(stub, says).url)["evidence"]
        prompt = stub.requests[0].json["messages"][1]["content"]
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["prompt tokens"] == 77
    assert prompt.startswith(f"From earlier:\n<earlier>\n[11 March 2026] Ines: {SAID[0]}\n</earlier>")


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
    assert [(q.kind, q.answers, q.evidence) for q in read.questions] == [
        ("single", ("Ines",), ("D1:1",)),
        ("unanswerable", ("",), ()),
    ]
    folder = tmp_path / "100K" / "1"
    (folder / "probing_questions").mkdir(parents=True)
    (folder / "chat.json").write_text(json.dumps(BEAM_CHAT), encoding="utf-8")
    (folder / "probing_questions" / "probing_questions.json").write_text(json.dumps(BEAM_QUESTIONS), encoding="utf-8")
    (chat,) = remembering_sets.beam(tmp_path / "100K")
    assert [(question.kind, question.evidence) for question in chat.questions] == [("knowledge_update", ("4",))]
