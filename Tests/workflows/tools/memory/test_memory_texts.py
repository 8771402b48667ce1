"""What is left of the answers of small models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.workflows.tools.memory.memory_texts import REPETITIONS, clean_memory
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply
from Tests.tables import table
from Tests.workflows.engine_lab import assistant, last_text, llm, user
from Tests.workflows.tools.memory.memory_lab import MemoryLab, chat

PROMPTS = ("Keep notes.", "<notes>\n[Memory_file]\n</notes>\n<part>\n[TextChunk]\n</part>")
BEFORE = ("Far away.", "Mara lives in Ulm. She has a dog.", "- Balu is ill.")


@table(
    ("answer", "kept"),
    [
        ("Mara met Tobias.", "Mara met Tobias."),
        ("<part>\nMara met Tobias.\n</part>", "Mara met Tobias."),
        ("<notes>Mara met Tobias.", "Mara met Tobias."),
        ("</part> Mara met Tobias.", "Mara met Tobias."),
        ("<b>Mara</b> met <Tobias>.", "<b>Mara</b> met <Tobias>."),  # not of the prompt
        ("Mara lives in Ulm. Mara met Tobias.", "Mara met Tobias."),
        ("mara lives in ulm!", ""),
        ("* She has a dog.\n* Balu is ill.\n* Balu is well", "* Balu is well"),
        ("Mara lives in Ulm, she has a dog\nmara lives in Ulm she has a dog", "Mara lives in Ulm, she has a dog"),
        ("People\n- Ann\nPeople\n- Tom", "People\n- Ann\nPeople\n- Tom"),
        ("Far away.", "Far away."),  # too old
        ("Ann ran. Ann fell. Ann ran. Ann rose.", "Ann ran. Ann fell. Ann rose."),
        ("1. Ann ran.\n2. Ann ran.\n\n3. Ann fell.", "1. Ann ran.\n\n3. Ann fell."),
        (
            "She met Dr. Lee. Then she met Dr. Ray, e.g. Dr. Lee.",
            "She met Dr. Lee. Then she met Dr. Ray, e.g. Dr. Lee.",
        ),
        ("J. R. Tolkien wrote. J. R. Ewing did not.", "J. R. Tolkien wrote. J. R. Ewing did not."),
        ("At 3.5 km. At 3.5 m.", "At 3.5 km. At 3.5 m."),
        ("安走了。安走了。安跌倒了。", "安走了。安跌倒了。"),
        ("One.\n---\nTwo.\n---\nThree.", "One.\n---\nTwo.\n---\nThree."),
        ("She has a dog.\n---\nTwo.\n---\nTwo.", "Two."),
        ("There is not yet a summary file.\nMara met Tobias.", "Mara met Tobias."),
        ("No preceding memories to show", ""),
        ("there are not yet any memories", ""),
        ("There is not yet a summary file in Ann's folder.", "There is not yet a summary file in Ann's folder."),
        ("  as it was\n", "  as it was\n"),
        ("<part>\n</part>", ""),
        ("", ""),
    ],
)
def test_repetitions_tags_and_placeholders_of_the_prompt_are_removed(answer: str, kept: str) -> None:
    assert clean_memory(answer, PROMPTS, BEFORE) == kept


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLab]:
    with StubBackend() as backend:
        lab = MemoryLab(tmp_path, monkeypatch, backend)
        lab.workflow("Main", [])
        lab.remember(chat(3))
        yield lab


def test_memories_of_a_model_that_copies_and_loops(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter(
        [
            "<part>\nMara has a dog.\n</part>",
            "<notes>Mara has a dog.</notes>",
            "Mara has a dog. Balu is ill. Balu is ill. Balu is ill.",
        ]
    )
    lab.settings(prompt="<notes>[Memory_file]</notes><part>[TextChunk]</part>")
    lab.backend.responder = lambda request: chat_reply(next(answers))
    lab.remember(chat(8))
    lab.remember(chat(13))
    assert [text for text, _ in lab.stored()] == ["Mara has a dog."]
    assert f"no memory: {REPETITIONS}" in caplog.text
    lab.remember(chat(14))
    assert [text for text, _ in lab.stored()] == ["Mara has a dog.", "Balu is ill."]


def test_a_model_that_only_repeats_itself_does_not_keep_later_messages_out(lab: MemoryLab) -> None:
    """It is asked twice for the same messages; then the next memory covers them."""
    said = "Mara has a dog."
    lab.backend.responder = lambda request: chat_reply(said)
    for count in (8, 13, 14):
        lab.remember(chat(count))
    assert len(lab.backend.requests) == 3
    lab.remember(chat(15))
    assert len(lab.backend.requests) == 3
    said = "Balu is ill."
    lab.remember(chat(20))
    assert [text for text, _ in lab.stored()] == ["Mara has a dog.", "Balu is ill."]


def test_a_condensed_memory(lab: MemoryLab) -> None:
    lab.settings(
        condenseMemories=True,
        memoriesBeforeCondensation=2,
        condenseMemoriesPrompt="<entries>[MemoriesToCondense]</entries>",
    )
    lab.put("m1", "m2", "m4")
    lab.backend.responder = lambda request: chat_reply(
        "<entries>Ann ran. Ann ran.</entries>" if "<entries>" in last_text(request) else "Ann fell."
    )
    lab.remember(chat(13))
    assert [text for text, _ in lab.stored()] == ["Ann ran.", "of m4", "Ann fell."]


@pytest.mark.parametrize("asked", [True, False])
def test_roles_are_shown_if_the_settings_ask_for_it(lab: MemoryLab, asked: bool) -> None:
    seen: list[str] = []

    def reply(request: RecordedRequest) -> Reply:
        seen.append(last_text(request))
        return chat_reply("a memory")

    lab.backend.responder = reply
    lab.settings(**({"addRolesToTextChunk": True} if asked else {}))
    lab.remember([user("m0"), assistant("m1"), user("User: m2"), *chat(8, start=3)])
    assert seen[0].split("\n")[:3] == (["User: m0", "Assistant: m1", "User: m2"] if asked else ["m0", "m1", "User: m2"])


def test_a_memory_of_a_workflow(lab: MemoryLab) -> None:
    lab.settings(fileMemoryWorkflowName="Writer", prompt=...)
    lab.workflow("Writer", [llm("<part>{agent1Input}</part>", lateInstruction="Write <lines>.")])
    lab.backend.responder = lambda request: chat_reply("<part>\n<lines>Mara met <Tobias>.\n</part>")
    lab.remember(chat(8))
    assert [text for text, _ in lab.stored()] == ["Mara met <Tobias>."]


def test_example_turns_of_a_memory(lab: MemoryLab) -> None:
    """They are sent for memories alone, and a model that copies them leaves nothing of that."""
    lab.settings(
        exampleTurns=[{"user": "[part] Ann ran.", "assistant": "Ann ran away."}],
        condenseMemories=True,
        memoriesBeforeCondensation=2,
        condenseMemoriesPrompt="join [MemoriesToCondense]",
    )
    lab.put("m1", "m2")
    said: list[list[str]] = []

    def reply(request: RecordedRequest) -> Reply:
        said.append(
            [
                f"{message['role']}: {message['content']}"
                for message in request.json["messages"]
                if message["role"] != "system"
            ]
        )
        return chat_reply("Ann ran away.\nBalu is ill." if len(said) == 1 else "joined")

    lab.backend.responder = reply
    lab.remember(chat(13))
    assert [text for text, _ in lab.stored()] == ["joined", "Balu is ill."]
    assert [turns[:-1] for turns in said] == [["user: [part] Ann ran.", "assistant: Ann ran away."], []]


def test_wrong_example_turns_are_reported(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.settings(exampleTurns=[{"user": "x"}])
    lab.remember(chat(8))
    assert lab.stored() == [] and "entry 1 of exampleTurns has no text under 'assistant'" in caplog.text
