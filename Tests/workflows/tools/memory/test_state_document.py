"""The document that says how things stand in a conversation."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.encryption_utils import cipher_for
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import state_document
from Middleware.workflows.tools.memory.state_document import loses_too_much, update_state_document
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, llm, static, user
from Tests.workflows.tools.memory.memory_chat import MemoryChat

KEY = b"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
OLD = "o" * 1000


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryChat]:
    with StubBackend() as backend:
        chat = MemoryChat(EngineLab(tmp_path, monkeypatch, backend))
        chat.raw |= {"useStateDocument": True, "stateDocumentWorkflowName": "State"}
        chat.lab.workflow("State", [llm("[{agent1Input}][{agent2Input}]")])
        yield chat


def update(chat: MemoryChat, *facts: str) -> None:
    chat.within([user("hi")], lambda context: update_state_document(context, chat.settings, chat.folder, facts))


def document(chat: MemoryChat) -> str:
    return MemoryStore(chat.folder).state_document()


def backup(chat: MemoryChat) -> str | None:
    path = Path(chat.folder.plain_file("state_document.md.bak"))
    return path.read_text("utf-8") if path.exists() else None


def test_first_document(chat: MemoryChat) -> None:
    chat.answers = lambda prompt: f"\n {prompt} \n"
    update(chat, "one", "two\nlines", "{three}")
    assert document(chat) == "[- one\n- two lines\n- {three}][]" and backup(chat) is None


def test_tags_of_the_workflow_and_repetitions_are_removed(chat: MemoryChat) -> None:
    chat.lab.workflow("State", [llm("<facts>{agent1Input}</facts><document>{agent2Input}</document>")])
    chat.answers = lambda prompt: "<document>\n# Pets\n- Balu is a dog.\n- Balu is a dog.\n</document>"
    update(chat, "Balu is a dog.")
    assert document(chat) == "# Pets\n- Balu is a dog."
    chat.answers = lambda prompt: "<document>\n</document>"
    update(chat, "Balu is a cat.")
    assert document(chat) == "# Pets\n- Balu is a dog."


@table(
    "answer, kept",
    [
        ("```markdown\n# Pets\n- Balu\n```", "# Pets\n- Balu"),
        ("```\n# Pets\n```", "# Pets"),
        ("# Code\n```\nx = 1\n```", "# Code\n```\nx = 1\n```"),
        ("```\na\n```\n```\nb\n```", "```\na\n```\n```\nb\n```"),
        ("```python\nx = 1\n```", "```python\nx = 1\n```"),
    ],
)
def test_a_document_in_a_code_block(chat: MemoryChat, answer: str, kept: str) -> None:
    chat.answers = lambda prompt: answer
    update(chat, "fact")
    assert document(chat) == kept


def test_the_present_document_is_an_input_and_becomes_the_backup(chat: MemoryChat) -> None:
    MemoryStore(chat.folder).save_state_document("old {text} {agent1Input}\n")
    chat.answers = lambda prompt: prompt
    update(chat, "fact")
    assert document(chat) == "[- fact][old {text} {agent1Input}\n]" and backup(chat) == "old {text} {agent1Input}\n"


@pytest.mark.parametrize(
    "current, ratio, length, kept",
    [
        (1000, None, 499, True),
        (1000, None, 500, False),
        (1000, 0, 1, False),
        (500, None, 1, False),
        (501, None, 1, True),
        (1000, "0.8", 799, True),
        (1000, 0.8, 800, False),
        (1000, 0, 0, True),
        (100, None, 0, True),
    ],
)
def test_short_documents(
    chat: MemoryChat, caplog: pytest.LogCaptureFixture, current: int, ratio: Any, length: int, kept: bool
) -> None:
    MemoryStore(chat.folder).save_state_document(OLD[:current])
    chat.raw["stateDocumentMinRetentionRatio"] = ratio
    chat.answers = lambda prompt: "n" * length
    update(chat, "fact")
    assert document(chat) == (OLD[:current] if kept else "n" * length)
    assert backup(chat) == (None if kept else OLD[:current])
    assert ("is not updated" in caplog.text) is kept and "ooo" not in caplog.text and "nnn" not in caplog.text


def test_a_thought_without_an_end_is_no_document(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    MemoryStore(chat.folder).save_state_document("old")
    chat.answers = lambda prompt: "<think>Now what has changed"
    update(chat, "fact")
    assert document(chat) == "old" and "unfinished reasoning" in caplog.text


def test_loses_too_much() -> None:
    assert loses_too_much(OLD, "", 0.5) and not loses_too_much(OLD, "", 0) and not loses_too_much(OLD, OLD, -1)


@pytest.mark.parametrize(
    "raw, said",
    [
        ({"useStateDocument": False}, ""),
        ({"stateDocumentWorkflowName": " "}, "stateDocumentWorkflowName"),
        ({"stateDocumentWorkflowName": "Nowhere"}, "Nowhere"),
    ],
)
def test_settings(chat: MemoryChat, caplog: pytest.LogCaptureFixture, raw: dict[str, Any], said: str) -> None:
    chat.raw |= raw
    update(chat, "fact")
    assert document(chat) == "" and chat.lab.prompts == []
    assert said in caplog.text if said else not caplog.text


def test_without_facts_nothing_is_asked(chat: MemoryChat) -> None:
    update(chat)
    assert chat.lab.prompts == []


def test_a_document_changed_meanwhile_is_left_to_who_changed_it(
    chat: MemoryChat, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(prompt: str) -> str:
        MemoryStore(chat.folder).save_state_document("by hand")
        return "by the model"

    chat.answers = answer
    update(chat, "fact")
    assert document(chat) == "by hand" and "changed in the meantime" in caplog.text


def test_foreign_failures_are_logged_without_their_words(
    chat: MemoryChat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> str:
        raise RuntimeError("SECRET")

    monkeypatch.setattr(state_document, "text_of_helper", fail)
    update(chat, "fact")
    assert document(chat) == "" and "k1/state_document.md is not updated: RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


def test_failures_of_the_system_are_told(
    chat: MemoryChat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "SECRET", "SECRET")

    monkeypatch.setattr(MemoryStore, "save_state_document", fail)
    update(chat, "fact")
    assert f"k1/state_document.md is not updated: OSError: {os.strerror(errno.ENOSPC)}" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_folder_in_the_documents_place_is_no_reason_to_fail(
    chat: MemoryChat, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(chat.folder.create()) / "state_document.md").mkdir()
    update(chat, "fact")
    assert "state_document.md is not updated: IsADirectoryError" in caplog.text and chat.lab.prompts == []


def test_a_cancelled_request_keeps_the_document(chat: MemoryChat) -> None:
    request = RequestContext(request_id="r-2")

    def answer(prompt: str) -> str:
        request.cancel_scope.cancel()
        return "new"

    def work(context: ExecutionContext) -> None:
        with pytest.raises(EarlyTerminationException):
            update_state_document(context, chat.settings, chat.folder, ["fact"])

    chat.answers = answer
    with pytest.raises(EarlyTerminationException):  # the engine's own, after the node
        chat.within([user("hi")], work, request)
    assert document(chat) == ""


def test_an_unchanged_document_leaves_the_backup_alone(chat: MemoryChat) -> None:
    MemoryStore(chat.folder).save_state_document("first")
    MemoryStore(chat.folder).save_state_document("second")
    chat.answers = lambda prompt: "second"
    update(chat, "fact")
    assert document(chat) == "second" and backup(chat) == "first"


def test_encrypted(chat: MemoryChat) -> None:
    chat.encryption_key = KEY
    chat.lab.workflow("State", [static("{agent2Input}{agent1Input}")])
    update(chat, "one")
    update(chat, "two")
    assert document(chat) == "- one- two"
    for name in ("state_document.md", "state_document.md.bak"):
        assert Path(chat.folder.plain_file(name)).read_bytes().startswith(b"gAAAA")


@pytest.mark.parametrize(
    "text",
    [cipher_for(KEY).encrypt(b"x").decode(), cipher_for(KEY).encrypt(b"x").decode() + "\n", "gAAAA" + "A" * 200],
    ids=["token", "token and line end", "almost"],
)
def test_a_document_that_looks_encrypted(chat: MemoryChat, text: str) -> None:
    """A model may write anything. The conversation can go on, with and without a key."""
    chat.answers = lambda prompt: text
    update(chat, "one")
    assert document(chat).strip() == text.strip()
    chat.answers = lambda prompt: "two"
    update(chat, "two")
    assert document(chat) == "two" and (backup(chat) or "").strip() == text.strip()


@pytest.mark.parametrize("text", [cipher_for(KEY).encrypt(b"x").decode(), "gAAAA"], ids=["token", "start"])
def test_files_of_memories_that_look_encrypted(chat: MemoryChat, text: str) -> None:
    store = MemoryStore(chat.folder)
    store.append_memory(text, text)
    store.save_summary(text, text)
    assert store.memories() == [(text, text)] and store.summary() == (text, text)


def test_a_document_of_another_key_is_left_alone(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    chat.encryption_key = KEY
    MemoryStore(chat.folder).save_state_document("old")
    before = Path(chat.folder.plain_file("state_document.md")).read_bytes()
    chat.encryption_key = KEY.replace(b"M", b"N")
    update(chat, "one")
    assert Path(chat.folder.plain_file("state_document.md")).read_bytes() == before and "another API key" in caplog.text
