"""Searchable memories by the built-in prompts: what models are asked, in which form, and what is asked once more."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.models.process import Process
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.tools.memory.vector_memories import VectorMemoryPass
from Middleware.workflows.tools.memory.vector_prompts import LINES
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Message, llm, user
from Tests.workflows.tools.memory.memory_chat import MemoryChat, memory

LEDGER = "Mara hid the ledger under the floor of the old mill."
CHAT: list[Message] = [
    user("Hello!"),
    {"role": "assistant", "content": "Hi."},
    user("Mara hid the ledger under the floor of the old mill. Only Tobias knows."),
    {"role": "assistant", "content": "I see."},
    user("And then?"),
]
BUILT_IN = {
    "vectorMemoryChunkEstimatedTokenSize": 1000,
    "vectorMemoryMaxMessagesBetweenChunks": 4,
    "lookbackStartTurn": 1,
}


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryChat]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = MemoryChat(EngineLab(tmp_path, monkeypatch, backend))
        del chat.raw["vectorMemoryPrompt"]
        chat.raw |= BUILT_IN
        yield chat


def run(chat: MemoryChat, messages: list[Message] = CHAT) -> None:
    chat.within(messages, lambda context: VectorMemoryPass(context, chat.settings, chat.folder).run())


def sent(chat: MemoryChat) -> list[list[str]]:
    """The messages of each call."""
    return [[message["content"] for message in request.json["messages"]] for request in chat.lab.backend.requests]


def test_lines_are_asked_for_with_an_english_and_a_german_example(chat: MemoryChat) -> None:
    chat.raw["vectorMemoryFormat"] = "lines"
    chat.answers = lambda chunk: f"- {LEDGER}\n- Tobias knows it, too."
    run(chat)
    [texts] = sent(chat)
    assert len(texts) == 6 and "line of its own" in texts[0] and "JSON" not in "".join(texts)
    assert "customs house in Bergen" in texts[1] and "Verden abgesagt" in texts[4]
    assert texts[5].endswith("</excerpt>\n\n" + LINES.prompt.splitlines()[-1])
    assert chat.texts == [LEDGER, "Tobias knows it, too."]
    assert json.loads(chat.rows("SELECT metadata_json FROM memories")[0]) == {
        "title": "Mara hid the ledger under the floor of",
        "summary": LEDGER,
        "entities": ["Mara"],
        "key_phrases": [],
    }


@table(
    ("form", "answer"),
    [
        (None, json.dumps([memory(LEDGER)])),
        (None, LEDGER),
        ("json", f"1. {LEDGER}"),
        ("lines", f"```json\n{json.dumps([memory(LEDGER)])}\n```"),
        ("lines", json.dumps([memory(LEDGER)]) + ', {"title": "cut'),
    ],
)
def test_json_or_lines_are_accepted_whatever_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, form: str | None, answer: str
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = MemoryChat(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend))
        del chat.raw["vectorMemoryPrompt"]
        chat.raw |= {**BUILT_IN, "vectorMemoryFormat": form}
        chat.answers = lambda chunk: answer
        run(chat)
        assert chat.texts == [LEDGER]


def test_the_built_in_prompts_end_with_the_task(chat: MemoryChat) -> None:
    run(chat)
    [[system, prompt]] = sent(chat)
    assert "[] alone" not in system + prompt and "worth remembering, answer" not in system
    assert prompt.endswith("Write the JSON array of memories for this excerpt.")


SAID: list[Message] = [
    {"role": "user", "content": "The boat is lent.", "name": "Ines"},
    {"role": "assistant", "content": "Good.", "name": "Tom"},
    user("User: And the oars?"),
    {"role": "tool", "tool_call_id": "1", "name": "look_up", "content": "two"},
    user("And then?"),
]
NAMED: list[Message] = [
    user("Ines: The boat is lent."),
    {"role": "assistant", "content": "Tom: Good."},
    user("Ines: And the oars?"),
    {"role": "assistant", "content": "Tom: Two."},
    user("Ines: And then?"),
]
PROMPT = {"vectorMemoryPrompt": "[TextChunk]"}


@table(
    ("raw", "messages", "excerpt"),
    [
        ({}, CHAT, "User: Hello!\nAssistant: Hi.\nUser: Mara hid the ledger"),
        ({}, SAID, "Ines: The boat is lent.\nTom: Good.\nUser: And the oars?\nTool Result: two\n"),
        ({}, NAMED, "<excerpt>\nInes: The boat is lent.\nTom: Good.\nInes: And the oars?\nTom: Two.\n"),
        ({"addRolesToTextChunk": False}, CHAT, "User: Hello!\nAssistant: Hi.\n"),
        (PROMPT, CHAT, "Hello!\nHi.\nMara hid"),
        ({**PROMPT, "addRolesToTextChunk": True}, CHAT, "User: Hello!\nAssistant: Hi.\nUser: Mara"),
        ({"vectorMemorySystemPrompt": "Be brief."}, CHAT, "<excerpt>\nHello!\nHi.\nMara hid"),
        ({"vectorMemoryWorkflowName": "Writer", "addRolesToTextChunk": True}, CHAT, "W User: Hello!\nAssistant: Hi."),
        ({"vectorMemoryWorkflowName": "Writer"}, CHAT, "W Hello!\nHi."),
    ],
)
def test_who_says_what_in_the_excerpt(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    raw: dict[str, Any],
    messages: list[Message],
    excerpt: str,
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = MemoryChat(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend))
        del chat.raw["vectorMemoryPrompt"]
        chat.lab.workflow("Writer", [llm("W {agent1Input}")])
        chat.raw |= {**BUILT_IN, **raw}
        run(chat, messages)
        assert excerpt in chat.lab.prompts[0]
        # Labels change no hash.
        assert chat.logged in ([], [hash_content(messages[3]["content"])])


@table(
    ("raw", "count"),
    [
        ({"vectorMemoryExampleTurns": [{"user": "a", "assistant": "b"}]}, 4),
        ({"vectorMemoryExampleTurns": [{"user": "a", "assistant": "b"}], "vectorMemoryFormat": "lines"}, 4),
        ({"vectorMemoryExampleTurns": [], "vectorMemoryFormat": "lines"}, 2),
        ({"vectorMemoryFormat": "lines", "vectorMemoryPrompt": "Write [TextChunk]"}, 2),
        ({"vectorMemoryExampleTurns": [{"user": "a", "assistant": "b"}], "vectorMemoryPrompt": "[TextChunk]"}, 4),
        ({"exampleTurns": [{"user": "a", "assistant": "b"}]}, 2),
    ],
)
def test_example_turns(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = MemoryChat(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend))
        del chat.raw["vectorMemoryPrompt"]
        chat.raw |= {**BUILT_IN, **raw}
        run(chat)
        assert len(sent(chat)[0]) == count


# -- asked once more ---------------------------------------------------------------------------------------------------


@table(
    ("form", "answer", "noted"),
    [
        ("json", "[]", "(the model answered [])"),
        ("json", "I'm sorry, I cannot help with that.", "(an answer of 35 characters holds no memories as JSON)"),
        ("json", "", "(an answer of 0 characters holds no memories as JSON)"),
        ("lines", "None.", "(the model answered [])"),
        ("lines", "Nothing in here seems important.", "(an answer of 32 characters holds no memories in its lines)"),
    ],
)
def test_a_chunk_without_a_memory_is_asked_about_once_more_in_the_other_form(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    form: str,
    answer: str,
    noted: str,
) -> None:
    caplog.clear()
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend, caplog.at_level(logging.INFO):
        chat = MemoryChat(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend))
        del chat.raw["vectorMemoryPrompt"]
        chat.raw |= {**BUILT_IN, "vectorMemoryFormat": form, "rememberMessages": True}
        chat.answers = lambda chunk: answer
        run(chat)
        assert chat.logged == [] and "nothing was written down" not in caplog.text
        for _ in range(3):
            run(chat)
        first, again = sent(chat)
        assert len(again) == 4 and len(first) == (6 if form == "lines" else 2)
        assert ("JSON" in again[0]) == (form == "lines") and ('"title"' in again[2]) == (form == "lines")
        assert chat.logged == [hash_content("I see.")]
        line = f"Discussion k1: nothing was written down of 4 messages {noted}; they are still found by Recall"
        assert [record.getMessage() for record in caplog.records].count(line) == 1


def test_the_second_answer_counts(chat: MemoryChat) -> None:
    chat.answers = lambda chunk: f"- {LEDGER}" if "line of its own" in chunk else "[]"
    run(chat)
    assert chat.texts == []
    run(chat)
    run(chat)
    assert chat.texts == [LEDGER] and len(chat.lab.prompts) == 2


def test_prompts_of_the_user_are_asked_as_before(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    chat.raw |= PROMPT
    chat.answers = lambda chunk: "[]"
    with caplog.at_level(logging.INFO):
        run(chat)
        run(chat)
    assert len(chat.lab.prompts) == 1 and len(chat.logged) == 1
    assert "nothing was written down of 4 messages (the model answered [])" in caplog.text
    assert "Recall" not in caplog.text


def test_lines_of_a_workflow(chat: MemoryChat) -> None:
    chat.raw |= {"vectorMemoryWorkflowName": "Writer", "vectorMemoryFormat": "lines"}
    chat.lab.workflow("Writer", [llm("Write a fact a line. {agent1Input}")])
    chat.answers = lambda chunk: "- Le registre est dans le moulin.\nWrite a fact a line.\n- Un moulin"
    run(chat)
    assert chat.texts == ["Le registre est dans le moulin."]
