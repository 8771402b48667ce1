"""A back-end that repeats the conversation in its errors: a redacted log does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from Middleware.models.process import Process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.memory_search import VectorSearch, search_memories_fully
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import shared
from Middleware.workflows.tools.memory.condensation import Condensation
from Middleware.workflows.tools.memory.file_memories import FileMemoryPass
from Middleware.workflows.tools.memory.state_document import update_state_document
from Middleware.workflows.tools.memory.vector_memories import VectorMemoryPass, generate_and_store
from Tests.stub_backend import Reply, StubBackend, status_reply
from Tests.workflows.engine_lab import EngineLab, llm, user
from Tests.workflows.tools.memory.memory_chat import MemoryChat, numbered

ECHO = "cannot take 'the owl sleeps'"
Work = Callable[[MemoryChat, ExecutionContext], object]


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryChat]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        chat = MemoryChat(EngineLab(tmp_path, monkeypatch, backend))
        chat.lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
        chat.lab.endpoint("Embed", {"apiTypeConfigFileName": "Embed", "modelNameToSendToAPI": "vec"}, backend.url)
        chat.lab.workflow("Helper", [llm("x")])
        chat.raw |= {
            "stateDocumentWorkflowName": "Helper",
            "prompt": "[TextChunk]",
            "lookbackStartTurn": 1,
            "condenseMemories": True,
            "memoriesBeforeCondensation": 2,
            "chunkEstimatedTokenSize": 5,
        }
        yield chat


def vector_pass(chat: MemoryChat, context: ExecutionContext) -> None:
    VectorMemoryPass(context, chat.settings, chat.folder).run()


def workflow_pass(chat: MemoryChat, context: ExecutionContext) -> None:
    chat.raw["vectorMemoryWorkflowName"] = "Helper"
    vector_pass(chat, context)


def state_document(chat: MemoryChat, context: ExecutionContext) -> None:
    chat.raw["useStateDocument"] = True
    update_state_document(context, chat.settings, chat.folder, ["fact"])


def file_pass(chat: MemoryChat, context: ExecutionContext) -> None:
    MemoryStore(chat.folder).replace_memories([])
    FileMemoryPass(context, chat.settings, chat.folder).run()


def condensation(chat: MemoryChat, context: ExecutionContext) -> None:
    MemoryStore(chat.folder).replace_memories([(text, hash_content(text)) for text in "abc"])
    Condensation(context, chat.settings, chat.folder).run()


def embedding(chat: MemoryChat, context: ExecutionContext) -> None:
    """Older memories too, so that the call is made again without them."""
    chat.lab.backend.responder = lambda request: (
        refusal(request) if "embed" in request.path else answered(chat, request)
    )
    generate_and_store([("old", "h0")], chat.settings, context)
    chat.raw["embeddingEndpointName"] = "Embed"
    generate_and_store([("new", "h1")], chat.settings, context)


def older_rows(chat: MemoryChat, context: ExecutionContext) -> None:
    chat.lab.backend.responder = lambda request: (
        refusal(request)
        if "embed" in request.path and "about old" in request.json["input"]
        else answered(chat, request)
    )
    generate_and_store([("old", "h0")], chat.settings, context)
    chat.raw["embeddingEndpointName"] = "Embed"
    generate_and_store([("new", "h1")], chat.settings, context)


def search(chat: MemoryChat, context: ExecutionContext) -> None:
    search_memories_fully(chat.folder, VectorSearch("owl", mode="semantic", embedding_endpoint="Embed"))


def refusal(request: object) -> Reply:
    return status_reply(400, ECHO)


def answered(chat: MemoryChat, request: object) -> Reply:
    return chat._reply(request)


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize(
    "work", [vector_pass, workflow_pass, state_document, file_pass, condensation, embedding, older_rows, search]
)
def test_what_a_back_end_echoes(chat: MemoryChat, caplog: pytest.LogCaptureFixture, work: Work, redact: bool) -> None:
    chat.lab.backend.responder = refusal
    with caplog.at_level(logging.INFO):
        chat.within(
            [user("hi"), *numbered(12)],
            lambda context: work(chat, context),
            RequestContext(request_id="r-1", redact=redact),
        )
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("400" in text for text in told)
    assert any(ECHO in text for text in told) is not redact and ("owl sleeps" in caplog.text) is not redact


@pytest.mark.parametrize("redact", [False, True])
def test_foreign_errors_of_private_requests_leave_no_trace(caplog: pytest.LogCaptureFixture, redact: bool) -> None:
    caplog.set_level(logging.DEBUG)
    with request_scope(RequestContext(redact=redact)):
        try:
            raise KeyError("words of the user")
        except KeyError as error:
            assert shared.failure_reason(error) == "KeyError"
    assert ("words of the user" in caplog.text) is not redact
