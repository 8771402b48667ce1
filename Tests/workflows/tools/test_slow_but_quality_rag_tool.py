"""The tool that applies a prompt to blocks of text, and what it tells the model of memories."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.services.llm_service import LlmHandlerService
from Middleware.services.memory.memory_settings import load_memory_settings
from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools import slow_but_quality_rag_tool
from Middleware.workflows.tools.slow_but_quality_rag_tool import DiscussionMemory, SlowButQualityRAGTool
from Tests.stub_backend import StubBackend, chat_reply
from Tests.workflows.engine_lab import EngineLab, user
from Tests.workflows.tools.memory.memory_lab import MemoryLab, chat, said

NONE = "No preceding memories to show"
LINE = "\n--------------\n"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


def context_of(
    lab: EngineLab, *, discussion_id: str | None = "k1", llm: bool = True, **config: Any
) -> ExecutionContext:
    service = LlmHandlerService()
    return ExecutionContext(
        request_id="r-1",
        workflow_id="w",
        discussion_id=discussion_id,
        config={"title": "Rag", **config},
        messages=[user("hi")],
        stream=False,
        request=lab.request,
        workflow_variable_service=WorkflowVariableManager(),
        agent_outputs={"agent1Output": "out"},
        llm_handler=service.load_model_from_config("Main") if llm else service.without_endpoint(),
    )


def conversation_chunk(lab: EngineLab, prompt: str, text: str, **more: Any) -> str:
    with request_scope(lab.request):
        return SlowButQualityRAGTool().perform_rag_on_conversation_chunk("", prompt, text, context_of(lab, **more))


def with_memories(monkeypatch: pytest.MonkeyPatch, *memories: str, summary: str = "the summary") -> None:
    monkeypatch.setattr(
        slow_but_quality_rag_tool, "_stored_memory", lambda context: DiscussionMemory(memories, summary)
    )


def test_one_answer_for_each_block(lab: EngineLab) -> None:
    assert conversation_chunk(lab, "[TextChunk]", "x--ChunkBreak--y") == "<x><y>"


def test_without_discussion_id(lab: EngineLab) -> None:
    assert conversation_chunk(lab, "[TextChunk]", "x", discussion_id=None) == "" and lab.backend.requests == []


def test_memory_chunk_needs_no_discussion_id_and_takes_a_delimiter(lab: EngineLab) -> None:
    with request_scope(lab.request):
        result = SlowButQualityRAGTool().perform_rag_on_memory_chunk(
            "S", "[TextChunk]", "x--ChunkBreak--y", context_of(lab, discussion_id=None), {}, "--", 5
        )
    assert result == "<x>--<y>"


def test_each_answer_is_a_memory_for_the_next_block(lab: EngineLab) -> None:
    lab.backend.responder = None
    lab.backend.script(*(chat_reply(text) for text in ("m1", "", "m3", "m4", "m5")))
    conversation_chunk(lab, "[Memory_file]#[Full_Memory_file]#[TextChunk]", "--ChunkBreak--".join("abcde"))
    assert lab.prompts == [
        f"{NONE}#{NONE}#a",
        "m1#m1#b",
        "m1#m1#c",
        f"m1{LINE}m3#m1{LINE}m3#d",
        f"m1{LINE}m3{LINE}m4#m1{LINE}m3{LINE}m4#e",
    ]


def test_stored_memories_and_summary(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memories(monkeypatch, "1", "2", "3", "4 ", summary=" all of it\n")
    conversation_chunk(lab, "[Memory_file]#[Full_Memory_file]#[Chat_Summary]", "x")
    assert lab.prompts == [f"2{LINE}3{LINE}4#1{LINE}2{LINE}3{LINE}4#all of it"]


def test_no_summary(lab: EngineLab) -> None:
    conversation_chunk(lab, "[Chat_Summary]", "x")
    assert lab.prompts == ["There is not yet a summary file"]


def test_variables_come_before_markers(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memories(monkeypatch, "{agent1Output} [TextChunk]")
    assert (
        conversation_chunk(lab, "{agent1Output} [Memory_file] [TextChunk]", "{agent1Output}[Chat_Summary]")
        == "<out {agent1Output} [TextChunk] {agent1Output}[Chat_Summary]>"
    )


def test_parallel_mode_sees_stored_memories_only(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    with_memories(monkeypatch, "stored")
    result = conversation_chunk(
        lab, "[Memory_file]:[TextChunk]", "x--ChunkBreak--y", multiModelList=[{"endpointName": "Main"}], llm=False
    )
    assert result == "<stored:x><stored:y>"


def test_single_chunk(lab: EngineLab) -> None:
    with request_scope(lab.request):
        answer = SlowButQualityRAGTool().process_single_chunk("x", "{agent1Output} [TextChunk]", "S", context_of(lab))
    assert answer == "<out x>"
    assert [message["role"] for message in lab.backend.requests[0].json["messages"]] == ["system", "user"]


def test_single_chunk_without_endpoint(lab: EngineLab, caplog: pytest.LogCaptureFixture) -> None:
    assert SlowButQualityRAGTool().process_single_chunk("x", "p", "s", context_of(lab, llm=False)) == ""
    assert "'Rag' names no endpoint" in caplog.text


def test_cancelled_before_a_block(lab: EngineLab) -> None:
    lab.request.cancel_scope.cancel()
    with pytest.raises(EarlyTerminationException):
        conversation_chunk(lab, "[TextChunk]", "x")
    assert lab.backend.requests == []


# -- stored memories ---------------------------------------------------------------------------------------------------


@pytest.fixture
def memory_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLab]:
    with StubBackend() as backend:
        yield MemoryLab(tmp_path, monkeypatch, backend)


def node_context(lab: MemoryLab, messages: list[dict[str, Any]] | None = None, **fields: Any) -> ExecutionContext:
    handler = LlmHandlerService().load_model_from_config("Main")
    return lab.context(messages or said("hi"), llm_handler=handler, **fields)


def test_files_are_what_a_block_is_told(memory_lab: MemoryLab) -> None:
    memory_lab.put("1", "2", "3", "4", texts=["1", "2", "3", "4"])
    memory_lab.store.save_summary("sum", "h")
    with request_scope(memory_lab.request):
        SlowButQualityRAGTool().perform_rag_on_conversation_chunk(
            "", "[Memory_file]#[Full_Memory_file]#[Chat_Summary]", "x", node_context(memory_lab)
        )
    assert memory_lab.prompts == [f"2{LINE}3{LINE}4#1{LINE}2{LINE}3{LINE}4#sum"]


def test_reading_makes_no_files(memory_lab: MemoryLab) -> None:
    with request_scope(memory_lab.request):
        SlowButQualityRAGTool().perform_rag_on_conversation_chunk("", "[Chat_Summary]", "x", node_context(memory_lab))
    assert not (memory_lab.root / "discussions").exists()


def test_new_chunks_become_memories(memory_lab: MemoryLab) -> None:
    memory_lab.put("a", texts=["first"])
    with request_scope(memory_lab.request):
        SlowButQualityRAGTool().process_new_memory_chunks(
            ["x{y}--ChunkBreak--", "z"],
            [("x", "h1"), ("z", "h2")],
            "",
            "[Memory_file]:[TextChunk]",
            {"endpointName": "Main", "prompt": "no"},
            node_context(memory_lab),
            7,
        )
    one = "<first:x{y}--ChunkBreak-->"
    assert memory_lab.stored()[1:] == [(one, "h1"), (f"<first{LINE}{one}:z>", "h2")]


def test_new_chunks_without_discussion(memory_lab: MemoryLab) -> None:
    SlowButQualityRAGTool().process_new_memory_chunks(
        ["x"], [("x", "h1")], "", "p", {"endpointName": "Main"}, node_context(memory_lab, discussion_id=None)
    )
    assert memory_lab.prompts == []


def test_vector_pass_by_setting(memory_lab: MemoryLab, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[Any, ...]] = []

    class Pass:
        def __init__(self, *arguments: Any) -> None:
            passes.append(arguments)

        def run(self) -> None:
            passes.append(("run",))

    monkeypatch.setattr(slow_but_quality_rag_tool, "VectorMemoryPass", Pass)
    memory_lab.settings(useVectorForQualityMemory=True)
    memory_lab.remember(chat(8))
    assert passes[0][1:] == (load_memory_settings(), memory_lab.folder) and passes[1] == ("run",)
    assert not memory_lab.path.exists()
    memory_lab.remember(chat(8), force=True)
    assert len(passes) == 2 and memory_lab.path.exists()


@pytest.mark.parametrize("settings", [{}, {"useVectorForQualityMemory": True}])
@pytest.mark.parametrize("force", [False, True])
def test_a_part_of_a_conversation_makes_no_memories(
    memory_lab: MemoryLab, settings: dict[str, Any], force: bool, caplog: pytest.LogCaptureFixture
) -> None:
    memory_lab.settings(chunkEstimatedTokenSize=1, vectorMemoryMaxMessagesBetweenChunks=1, **settings)
    context = memory_lab.context(chat(20))
    assert context.run is not None
    context.run = dataclasses.replace(context.run, partial=True)
    with request_scope(memory_lab.request):
        for _ in range(3):
            SlowButQualityRAGTool().handle_discussion_id_flow(context, force)
    assert memory_lab.prompts == [] and not (memory_lab.root / "discussions").exists()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "Discussion d1: workflow 'Main' sees only a part of the conversation, so its nodes write no memories; they "
        "belong in a workflow that sees all of it"
    ]


def test_vector_memories_of_chunks(memory_lab: MemoryLab, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(slow_but_quality_rag_tool, "generate_and_store", lambda *given: calls.append(given) or 3)
    context = node_context(memory_lab)
    raw = {"endpointName": "Main", "vectorMemoryMaxResponseSizeInTokens": "7"}
    assert SlowButQualityRAGTool().generate_and_store_vector_memories([("t", "h")], raw, context) == 3
    assert calls[0][0] == [("t", "h")] and calls[0][2] is context
    assert calls[0][1].vector_max_response_tokens == 7


# -- keyword search ----------------------------------------------------------------------------------------------------


def search(lab: MemoryLab, keywords: str, target: str, *texts: str, **fields: Any) -> str:
    return SlowButQualityRAGTool().perform_keyword_search(keywords, target, lab.context(said(*texts), **fields))


@pytest.mark.parametrize("lookback", [2, "2"])
def test_conversation(memory_lab: MemoryLab, lookback: Any) -> None:
    assert search(memory_lab, "cat", "CurrentConversation", "a cat", "dog", "cat?") == "a cat\ndog"
    config = {"lookbackStartTurn": lookback}
    assert search(memory_lab, "cat", "CurrentConversation", "a cat", "dog", "cat?", config=config) == "dog\ncat?"
    assert search(memory_lab, "cat", "CurrentConversation", "cat", "x", config=config).startswith("There are no mem")


def test_conversation_needs_no_discussion(memory_lab: MemoryLab) -> None:
    assert search(memory_lab, "cat", "CurrentConversation", "a cat", "x", discussion_id=None) == "a cat"


def test_recent_memories(memory_lab: MemoryLab) -> None:
    memory_lab.put("1", "2", "3", "4", "5", texts=["a cat", "dog AND cat", "cat", "cat", "cat"])
    assert search(memory_lab, "cat AND bird", "RecentMemories", "hi") == "a cat\n\ndog AND cat"
    assert search(memory_lab, "cat", "RecentMemories", "hi", discussion_id=None) == ""


@pytest.mark.parametrize("target", ["", "Other"])
def test_other_targets(memory_lab: MemoryLab, target: str) -> None:
    assert search(memory_lab, "cat", target, "a cat", "x") == ""
