"""Models that repeat themselves while memories are written: the back-end sees the stop, what stands before is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from Middleware.models.llm_call import LlmCallRecord
from Middleware.models.process import Process
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.workflows.events import EngineListener
from Middleware.workflows.tools.memory.file_memories import FileMemoryPass
from Middleware.workflows.tools.memory.vector_memories import VectorMemoryPass
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, chat_stream_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, llm, start, user
from Tests.workflows.tools.memory.memory_chat import MemoryChat, memory

LEDGER, MILL = "Mara hid the ledger under the floor.", "The old mill burnt down in May."
SAID = [user(LEDGER), user(MILL), user("Only Tobias knows."), user("I see."), user("Go on.")]
LINES = [f"{LEDGER}\n", f"{MILL}\n", *([f"{LEDGER}\n"] * 2)]
WORDS = [f"{LEDGER} ", f"{MILL} ", *(["and the inspector arrived at dusk "] * 5)]
ITEMS = ["[", *(json.dumps(memory(f"Mara hid ledger number {number} in the mill.")) + ", " for number in range(42))]
ENDLESS = [f"{LEDGER}\n{MILL}\n", *(f"word{number} " for number in range(200))]
WAYS = {
    "vectors": {},
    "lines": {"vectorMemoryFormat": "lines"},
    "workflow": {"vectorMemoryWorkflowName": "Writer", "vectorMemoryFormat": "lines"},
    "files": {"prompt": "Write [TextChunk]"},
    "summary": {},
    "file workflow": {"fileMemoryWorkflowName": "Writer"},
    "document": {"vectorMemoryPrompt": "[TextChunk]", "useStateDocument": True, "stateDocumentWorkflowName": "Writer"},
}


class Finished(EngineListener):
    """Keeps the calls that have finished."""

    def __init__(self) -> None:
        self.calls: list[LlmCallRecord] = []

    def llm_call_finished(self, record: LlmCallRecord) -> None:
        self.calls.append(record)


def chat_of(lab: EngineLab, way: str) -> MemoryChat:
    chat = MemoryChat(lab)
    del chat.raw["vectorMemoryPrompt"]
    lab.workflow("Writer", [llm("Write {agent1Input}")])
    summary = {"type": "chatSummarySummarizer", "endpointName": "Main", "prompt": "[CHAT_SUMMARY] [LATEST_MEMORIES]"}
    lab.workflow("Summary", [summary])
    chat.raw |= {
        "vectorMemoryChunkEstimatedTokenSize": 1000,
        "vectorMemoryMaxMessagesBetweenChunks": 2,
        "chunkEstimatedTokenSize": 5,
        "lookbackStartTurn": 1,
        "rememberMessages": True,
        **WAYS[way],
    }
    lab.user(discussionDirectory=str(lab.root / "data"), discussionIdMemoryFileWorkflowSettings="Memory")
    lab.write("Workflows/tester/Memory", {"rememberMessages": True})
    return chat


def run(chat: MemoryChat, way: str, listener: EngineListener | None = None) -> None:
    if way == "summary":
        for number in range(3):
            MemoryStore(chat.folder).append_memory(f"Memory {number}.", f"h{number}")
        list(start(chat.lab, "Summary", *SAID, listener=listener, discussion_id=chat.discussion_id))
        return
    kind: Any = FileMemoryPass if way.startswith("file") else VectorMemoryPass
    chat.within(SAID, lambda context: kind(context, chat.settings, chat.folder).run(), listener=listener)


def kept(chat: MemoryChat, way: str) -> str:
    store = MemoryStore(chat.folder)
    if way == "document":
        return store.state_document()
    if way == "summary":
        return (store.summary() or ("", ""))[0]
    return "\n".join(text for text, _ in store.memories()) if way.startswith("file") else "\n".join(chat.texts)


@table(
    ("way", "tokens", "found"),
    [
        ("vectors", ITEMS, "a list"),
        ("vectors", LINES, "a line"),
        ("lines", LINES, "a line"),
        ("lines", WORDS, "the same words"),
        ("lines", ENDLESS, "a line without an end"),
        ("workflow", LINES, "a line"),
        ("workflow", ENDLESS, "a line without an end"),
        ("files", LINES, "a line"),
        ("files", WORDS, "the same words"),
        ("files", ENDLESS, "a line without an end"),
        ("file workflow", WORDS, "the same words"),
        ("document", LINES, "a line"),
        ("summary", LINES, "a line"),
        ("summary", WORDS, "the same words"),
    ],
)
def test_the_back_end_sees_the_stop(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    way: str,
    tokens: list[str],
    found: str,
) -> None:
    caplog.clear()
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = chat_of(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend), way)

        def reply(request: RecordedRequest) -> Reply:
            if way == "document" and not request.json["messages"][-1]["content"].startswith("Write "):
                return chat_reply(json.dumps([memory(LEDGER)]))
            # The server goes on for ever.
            return chat_stream_reply(tokens, finish_reason=None, hang=True)

        backend.responder = reply
        run(chat, way)
        asked = [request for request in backend.requests if way != "document" or request is backend.requests[-1]]
        assert asked and all(request.json["stream"] is True and request.wait_ended() for request in asked)
        text = kept(chat, way)
        assert ("ledger number 39" in text and "number 40" not in text) if tokens is ITEMS else LEDGER in text
        assert tokens is ITEMS or (MILL in text and "word" not in text and "inspector" not in text)
        warnings = [record.getMessage() for record in caplog.records if "the model repeats" in record.getMessage()]
        ending = "its answer was ended, what stands before is used"
        assert warnings == [f"Endpoint 'Main': the model repeats {found}; {ending}"]


@table(
    ("way", "answer", "texts"),
    [
        ("lines", "".join(LINES), f"{LEDGER}\n{MILL}"),
        ("files", "".join(LINES), f"{LEDGER}\n{MILL}"),
        ("files", f"{LEDGER}\n{MILL}", f"{LEDGER}\n{MILL}"),
    ],
)
def test_a_back_end_that_does_not_stream(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, way: str, answer: str, texts: str
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = chat_of(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend), way)
        backend.responder = lambda request: chat_reply(answer)
        run(chat, way)
        assert kept(chat, way) == texts


@pytest.mark.parametrize("newer", [True, None])
def test_a_file_without_the_newer_keys_keeps_its_calls_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, newer: bool | None
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = chat_of(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend), "files")
        chat.raw["rememberMessages"] = newer
        backend.responder = lambda request: chat_reply("".join(LINES))
        run(chat, "files")
        assert kept(chat, "files") == f"{LEDGER}\n{MILL}"
        assert {request.json["stream"] for request in backend.requests} == {bool(newer)}


@pytest.mark.parametrize("way", ["lines", "file workflow", "summary"])
def test_the_run_says_that_the_answer_was_a_repetition(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = chat_of(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend), way)
        backend.responder = lambda request: chat_stream_reply(LINES, finish_reason=None, hang=True)
        finished = Finished()
        run(chat, way, finished)
        assert {call.finish_reason for call in finished.calls} == {"repetition"}
        assert not any(call.stopped for call in finished.calls)


def test_of_a_stream_that_is_cut_off_the_whole_lines_are_kept(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = chat_of(EngineLab(tmp_path_factory.mktemp("lab"), monkeypatch, backend), "lines")
        backend.responder = lambda request: chat_stream_reply([f"{LEDGER}\n", "The old m"], None, drop="after_pieces")
        run(chat, "lines")
        assert chat.texts == [LEDGER]
