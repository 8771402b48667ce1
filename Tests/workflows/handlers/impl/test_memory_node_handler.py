"""The memory nodes, with files and an LLM server as in service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.handlers.impl.memory_node_handler import RecentMemorySummarizerHandler
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.models.execution_context import ExecutionContext, RunRequest
from Middleware.workflows.tools.memory import shared
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool
from Tests.stub_backend import StubBackend, chat_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Message, assistant, static, user

NO_MEMORIES = "There are not yet any memories"
NOTHING_GENERATED = "No memories have been generated yet"
NO_SUMMARY = "There is not yet a summary file"
NO_STATE = "No state document has been created yet"
NOTHING_TO_GRAB = "There are no memories to grab yet"
CHAT = [user(f"m{number}") for number in range(6)]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    with StubBackend() as backend:
        yield EngineLab(tmp_path / "Configs", monkeypatch, backend)


@pytest.fixture
def store(lab: EngineLab) -> MemoryStore:
    return MemoryStore(DiscussionFolder("d1"))


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that memories were to be written: whether as files in any case."""
    calls: list[bool] = []
    monkeypatch.setattr(
        SlowButQualityRAGTool,
        "handle_discussion_id_flow",
        lambda self, context, force_file_memory=False: calls.append(force_file_memory),
        raising=False,
    )
    return calls


def remember(store: MemoryStore, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        store.append_memory(f"c{number}", f"h{number}")


def run(
    lab: EngineLab,
    *nodes: dict[str, Any] | str,
    discussion_id: str | None = "d1",
    messages: list[Message] | None = None,
    stream: bool = False,
    **variables: Any,
) -> Any:
    """The result; a name stands for a node without keys."""
    lab.workflow("Main", [{"type": node} if isinstance(node, str) else node for node in nodes], **variables)
    manager = WorkflowManager("Main", listeners=[])
    with request_scope(lab.request):
        results = list(
            manager.start(
                lab.request,
                list(CHAT if messages is None else messages),
                discussion_id=discussion_id or "",
                stream=stream,
            )
        )
    return "".join(chunk["token"] for chunk in results) if stream else results[-1]


def node(node_type: str, **keys: Any) -> dict[str, Any]:
    return {"type": node_type, **keys}


# -- all of them -------------------------------------------------------------------------------------------------------


@table("stream", [False, True])
@table(
    ("given", "output"),
    [
        ("QualityMemory", "No discussionId on this request; memories were not generated."),
        ("RecentMemory", NOTHING_TO_GRAB),
        (node("RecentMemorySummarizerTool", maxTurnsToPull=3, maxSummaryChunksFromFile=1), "m3\nm4"),
        ("RecentMemorySummarizerTool", NOTHING_TO_GRAB),
        (node("ChatSummaryMemoryGatheringTool", maxTurnsToPull=3), "m3\nm4"),
        ("ChatSummaryMemoryGatheringTool", NOTHING_TO_GRAB),
        ("ConversationMemory", NO_MEMORIES),
        ("GetCurrentMemoryFromFile", NO_MEMORIES),
        ("GetCurrentSummaryFromFile", NO_SUMMARY),
        ("FullChatSummary", ""),
        (node("FullChatSummary", isManualConfig=True), ""),
        ("chatSummarySummarizer", NO_SUMMARY),
        (node("WriteCurrentSummaryToFileAndReturnIt", input="{chat_user_prompt_last_one}!"), "m5!"),
        (node("VectorMemorySearch", input="x"), "Cannot perform VectorMemorySearch without a discussionId."),
        ("GetCurrentStateDocument", NO_STATE),
    ],
)
def test_without_discussion_id(lab: EngineLab, given: Any, output: str, stream: bool) -> None:
    assert run(lab, given, discussion_id=None, stream=stream) == output
    assert not (lab.root.parent / "D").exists()


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ("RecentMemorySummarizerTool", NOTHING_GENERATED),
        ("ChatSummaryMemoryGatheringTool", ""),
        ("ConversationMemory", NO_MEMORIES),
        ("GetCurrentMemoryFromFile", NO_MEMORIES),
        ("GetCurrentSummaryFromFile", NO_SUMMARY),
        (node("FullChatSummary", isManualConfig=True), "No summary found"),
        ("chatSummarySummarizer", NO_SUMMARY),
        ("GetCurrentStateDocument", NO_STATE),
        (
            node("VectorMemorySearch", input="x"),
            "No relevant memories found in the vector database for the given keywords.",
        ),
    ],
)
def test_a_new_discussion(lab: EngineLab, given: Any, output: str) -> None:
    assert run(lab, given) == output
    kept = [path for path in (lab.root.parent / "D").rglob("*") if path.is_file() and path.name != ".lock"]
    assert all((path.name, path.read_bytes()) == ("memories.json", b"[]") for path in kept)


# -- memories are written ----------------------------------------------------------------------------------------------


def helper(lab: EngineLab, user_key: str, nodes: list[dict[str, Any]] | None = None) -> None:
    lab.user(**{user_key: "Helper"})
    lab.workflow(
        "Helper",
        nodes
        or [static("{Discussion_Id}/{chat_user_prompt_last_one}"), static("later", returnToUser=True), static("")],
    )


def test_quality_memory(lab: EngineLab, store: MemoryStore, flows: list[bool]) -> None:
    helper(lab, "recentMemoryToolWorkflow")
    assert run(lab, "QualityMemory") == "" and flows == [False]
    assert run(lab, "QualityMemory", static("<{agent1Output}>")) == "<>"


def test_quality_memory_without_id_asks_the_workflow(lab: EngineLab, flows: list[bool]) -> None:
    helper(lab, "recentMemoryToolWorkflow")
    assert run(lab, "QualityMemory", discussion_id=None) == "later" and flows == []


def test_recent_memory(lab: EngineLab, store: MemoryStore, flows: list[bool]) -> None:
    remember(store, 5)
    assert run(lab, "RecentMemory") == "c2--ChunkBreak--c3--ChunkBreak--c4" and flows == [True]
    helper(lab, "recentMemoryToolWorkflow", [node("RecentMemorySummarizerTool", maxSummaryChunksFromFile=1)])
    assert run(lab, "RecentMemory") == "c4" and flows == [True, True]
    assert run(lab, "RecentMemory", discussion_id=None) == NOTHING_TO_GRAB and flows == [True, True]


def test_a_blank_workflow_name_is_none(lab: EngineLab, flows: list[bool]) -> None:
    lab.user(recentMemoryToolWorkflow="")
    assert run(lab, "RecentMemory") == NOTHING_GENERATED


@pytest.mark.parametrize("stream", [False, True])
def test_conversation_memory(lab: EngineLab, store: MemoryStore, stream: bool) -> None:
    remember(store, 2)
    assert run(lab, "ConversationMemory", stream=stream) == "c0--ChunkBreak--c1"
    helper(lab, "conversationMemoryToolWorkflow", [static("{Discussion_Id}/{chat_user_prompt_last_one}")])
    assert run(lab, "ConversationMemory", stream=stream) == "d1/m5"
    assert run(lab, "ConversationMemory", discussion_id=None, stream=stream) == NO_MEMORIES


def with_settings(lab: EngineLab, **settings: Any) -> None:
    lab.write(
        "Workflows/tester/Mem",
        {"endpointName": "Main", "prompt": "[TextChunk]", "chunkEstimatedTokenSize": 1000, **settings},
    )
    lab.user(discussionIdMemoryFileWorkflowSettings="Mem")


@pytest.mark.parametrize(
    ("reader", "at_once"),
    [
        (node("RecentMemorySummarizerTool", maxTurnsToPull=3), True),
        ("ChatSummaryMemoryGatheringTool", True),
        ("GetCurrentMemoryFromFile", True),
        ("ConversationMemory", True),
        (node("chatSummarySummarizer", endpointName="Main", prompt="[LATEST_MEMORIES]"), True),
        (node("MemoryKeywordSearchPerformerTool", keywords="x", searchTarget="RecentMemories"), True),
        ("GetCurrentSummaryFromFile", False),
        ("GetCurrentStateDocument", False),
        (node("VectorMemorySearch", input="x"), False),
        (node("FullChatSummary", isManualConfig=True), False),
        (static("x"), False),
    ],
)
def test_a_node_that_read_memories_before_makes_the_first_one_come_at_once(
    lab: EngineLab, store: MemoryStore, reader: Any, at_once: bool
) -> None:
    with_settings(lab)
    chat = [user(f"m{number}") for number in range(20)]
    run(lab, reader, "QualityMemory", messages=chat)
    first = [stored for _, stored in store.memories()]
    run(lab, reader, "QualityMemory", messages=chat)
    assert first == ([hash_content("m16")] if at_once else [])
    assert [stored for _, stored in store.memories()] == [hash_content("m16")]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("writer", ["QualityMemory", "RecentMemory", "FullChatSummary"])
def test_a_part_of_the_conversation_is_remembered_once(
    lab: EngineLab, store: MemoryStore, writer: str, vector: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The workflow that a node runs for each piece of the conversation has a memory node, as has the one around it."""
    with_settings(
        lab, chunkEstimatedTokenSize=5, vectorMemoryMaxMessagesBetweenChunks=1, useVectorForQualityMemory=vector
    )
    lab.backend.responder = lambda request: chat_reply(
        json.dumps([{"title": "t", "summary": "s", "entities": [], "key_phrases": []}]) if vector else "made"
    )
    lab.workflow("Each", [node(writer), node(writer)])
    pieces = node(
        "ConversationChunkProcessor",
        id="p",
        workflowName="Each",
        chunkSize=4,
        lookbackMessages=0,
        cursorDirectory=str(lab.root / "cursors"),
    )
    chat = [user(f"m{number:02}") for number in range(16)]
    assert run(lab, pieces, static("{agent1Output}"), messages=chat).endswith("processed 4 chunk(s).")
    assert lab.prompts == [] and store.memories() == []
    assert caplog.text.count("workflow 'Each' sees only a part of the conversation") == 1
    run(lab, writer, messages=chat)
    asked = [text for text in lab.prompts if "m00" in text]
    assert len(asked) == 1


# -- memories are read -------------------------------------------------------------------------------------------------

BREAK = "--ChunkBreak--"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"maxSummaryChunksFromFile": -1}, BREAK.join(["c0", "c1", "c2", "c3", "c4"])),
        ({"maxSummaryChunksFromFile": 10}, BREAK.join(["c0", "c1", "c2", "c3", "c4"])),
        ({"maxSummaryChunksFromFile": 0}, BREAK.join(["c2", "c3", "c4"])),
        ({}, BREAK.join(["c2", "c3", "c4"])),
        ({"maxSummaryChunksFromFile": "junk"}, BREAK.join(["c2", "c3", "c4"])),
        ({"maxSummaryChunksFromFile": None}, BREAK.join(["c2", "c3", "c4"])),
        ({"maxSummaryChunksFromFile": True}, BREAK.join(["c2", "c3", "c4"])),
        ({"maxSummaryChunksFromFile": 2}, "c3--ChunkBreak--c4"),
        ({"maxSummaryChunksFromFile": "2"}, "c3--ChunkBreak--c4"),
        ({"maxSummaryChunksFromFile": "{two}"}, "c3--ChunkBreak--c4"),
        ({"maxSummaryChunksFromFile": "{agent1Output}"}, "c3--ChunkBreak--c4"),
        ({"maxSummaryChunksFromFile": 2, "customDelimiter": ""}, "c3c4"),
        ({"maxSummaryChunksFromFile": 2, "customDelimiter": " | "}, "c3 | c4"),
        ({"maxSummaryChunksFromFile": 2, "customDelimiter": None}, "c3--ChunkBreak--c4"),
    ],
)
def test_recent_memories(lab: EngineLab, store: MemoryStore, keys: dict[str, Any], expected: str) -> None:
    remember(store, 5)
    tool = node("RecentMemorySummarizerTool", maxTurnsToPull=2, **keys)
    assert run(lab, static("2"), tool, two=2) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"maxTurnsToPull": 3}, "m3\nm4"),
        ({"maxTurnsToPull": 3, "lookbackStart": 2}, "m1\nm2"),
        ({"maxTurnsToPull": "{three}", "lookbackStart": "2"}, "m1\nm2"),
        ({"maxTurnsToPull": 1}, ""),
        ({"maxTurnsToPull": 0}, NOTHING_TO_GRAB),
        ({"maxTurnsToPull": "x"}, NOTHING_TO_GRAB),
        ({"maxTurnsToPull": 3, "lookbackStart": "x"}, "m3\nm4"),
        ({"maxTurnsToPull": 3, "lookbackStart": 6}, NOTHING_TO_GRAB),
    ],
)
def test_recent_messages(lab: EngineLab, keys: dict[str, Any], expected: str) -> None:
    assert run(lab, node("RecentMemorySummarizerTool", **keys), discussion_id=None, three=3) == expected


def test_recent_messages_take_the_delimiter(lab: EngineLab) -> None:
    messages = [user("User: " + "a" * 1200), user("b" * 1200), user("__WILMER_L_CURLY__"), user("newest")]
    tool = node("RecentMemorySummarizerTool", maxTurnsToPull=4, customDelimiter="+")
    assert (
        run(lab, tool, static("<{agent1Output}>"), discussion_id=None, messages=messages)
        == f"<{'a' * 1200}+{'b' * 1200}+{{>"
    )


def test_unsummarized_memories(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 4)
    store.save_summary("s", "h1")
    assert run(lab, node("ChatSummaryMemoryGatheringTool", maxTurnsToPull=1)) == "c2\n------------\nc3"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"customDelimiter": "|"}, "c0|c1"),
        ({}, "c0--ChunkBreak--c1"),
        ({"customDelimiter": ""}, "c0c1"),
        ({"customDelimiter": None}, "c0--ChunkBreak--c1"),
    ],
)
def test_current_memories(lab: EngineLab, store: MemoryStore, keys: dict[str, Any], expected: str) -> None:
    remember(store, 2)
    assert run(lab, node("GetCurrentMemoryFromFile", **keys)) == expected


def test_stored_texts_are_given_as_they_are(lab: EngineLab, store: MemoryStore) -> None:
    store.append_memory("{agent1Output} {{x}}", "h0")
    store.save_summary("{Discussion_Id}", "h0")
    store.save_state_document("# {x}\n")
    result = run(
        lab,
        "GetCurrentMemoryFromFile",
        "GetCurrentSummaryFromFile",
        "GetCurrentStateDocument",
        static("{agent1Output}|{agent2Output}|{agent3Output}"),
    )
    assert result == "{agent1Output} {{x}}|{Discussion_Id}|# {x}\n"


def test_data_belongs_to_a_key(lab: EngineLab) -> None:
    lab.user(encryptUsingApiKey=True)
    lab.workflow(
        "Main", [node("WriteCurrentSummaryToFileAndReturnIt", input="hush"), node("GetCurrentSummaryFromFile")]
    )
    with request_scope(lab.request):
        assert lab.run_named("Main", user("[DiscussionId]d1[/DiscussionId]x"), api_key="secret") == "hush"
    (path,) = (lab.root.parent / "D").rglob("chat_summary.json")
    assert b"hush" not in path.read_bytes() and path.parent.parent.parent == lab.root.parent / "D"
    assert run(lab, "GetCurrentSummaryFromFile") == NO_SUMMARY


# -- the summary -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("summary", "memories", "expected"),
    [
        ("h6", 7, "text"),
        ("h5", 7, "text"),
        ("h4", 7, "helped"),
        ("gone", 7, "helped"),
        (None, 0, "helped"),
        ("h0", 0, "helped"),
        (None, 1, "No summary found"),
        (None, 2, "helped"),
    ],
)
def test_full_chat_summary(
    lab: EngineLab, store: MemoryStore, flows: list[bool], summary: str | None, memories: int, expected: str
) -> None:
    helper(lab, "chatSummaryToolWorkflow", [static("helped")])
    remember(store, memories)
    if summary is not None:
        store.save_summary("text", summary)
    assert run(lab, "FullChatSummary", static("{agent1Output}")) == expected and flows == [True]


def test_full_chat_summary_without_a_workflow(lab: EngineLab, store: MemoryStore, flows: list[bool]) -> None:
    remember(store, 3)
    assert run(lab, "FullChatSummary") == NO_SUMMARY
    store.save_summary("text", "gone")
    assert run(lab, "FullChatSummary") == "text"


@pytest.mark.parametrize("flag", [True, "true"])
def test_full_chat_summary_by_hand(lab: EngineLab, store: MemoryStore, flows: list[bool], flag: Any) -> None:
    store.save_summary("text", "gone")
    assert run(lab, node("FullChatSummary", isManualConfig=flag)) == "text" and flows == []


def test_full_chat_summary_by_the_summarizer(lab: EngineLab, store: MemoryStore) -> None:
    """The helper workflow takes the lock on the memories, which its caller must not hold."""
    remember(store, 3)
    helper(
        lab, "chatSummaryToolWorkflow", [node("chatSummarySummarizer", endpointName="Main", prompt="[LATEST_MEMORIES]")]
    )
    expected = "<c0\n------------\nc1\n------------\nc2>"
    assert run(lab, "FullChatSummary", messages=CHAT[:2]) == expected
    assert run(lab, "FullChatSummary", messages=CHAT[:2]) == expected and len(lab.prompts) == 1
    assert store.summary() == (expected, "h2")


def test_the_summary_is_written(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    store.save_summary("old", "h0")
    write = node("WriteCurrentSummaryToFileAndReturnIt", input="{agent1Output}!")
    assert run(lab, static("{{x}} new"), write, static("<{agent2Output}>")) == "<{x} new!>"
    assert store.summary() == ("{x} new!", "h2")


def test_a_summary_among_memories_of_equal_messages(lab: EngineLab, store: MemoryStore) -> None:
    """The node remembers how many memories there were, so that what comes later counts as new."""
    for number in range(6):
        store.append_memory(f"c{number}", "same")
        if number == 2:
            run(lab, node("WriteCurrentSummaryToFileAndReturnIt", input="new"))
    assert store.summary() == ("new", "same") and store.summary_position() == 3
    assert run(lab, "ChatSummaryMemoryGatheringTool") == "c3\n------------\nc4\n------------\nc5"


@pytest.mark.parametrize(("memories", "expected"), [(3, "text"), (4, "text"), (5, "helped")])
def test_full_chat_summary_of_equal_messages(
    lab: EngineLab, store: MemoryStore, flows: list[bool], memories: int, expected: str
) -> None:
    helper(lab, "chatSummaryToolWorkflow", [static("helped")])
    for number in range(memories):
        store.append_memory(f"c{number}", "same")
    store.save_summary("text", "same", 3)
    assert run(lab, "FullChatSummary") == expected


def test_a_summary_without_memories(lab: EngineLab, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    assert run(lab, node("WriteCurrentSummaryToFileAndReturnIt", input="new")) == "new"
    assert store.summary() == ("new", "") and "d1" in caplog.text and "new" not in caplog.text


@pytest.mark.parametrize("keys", [{}, {"input": None}])
@pytest.mark.parametrize("discussion_id", ["d1", None])
def test_a_summary_without_input(lab: EngineLab, keys: dict[str, Any], discussion_id: str | None) -> None:
    with pytest.raises(ValueError, match="input"):
        run(lab, node("WriteCurrentSummaryToFileAndReturnIt", **keys), discussion_id=discussion_id)


@pytest.mark.parametrize("text", [" ", "<think>Hm"])
def test_a_blank_summary_is_not_written(lab: EngineLab, store: MemoryStore, text: str) -> None:
    store.save_summary("old", "h0")
    assert run(lab, node("WriteCurrentSummaryToFileAndReturnIt", input=text)) == text
    assert store.summary() == ("old", "h0")


def test_a_broken_summary_is_not_replaced(lab: EngineLab, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(store.state.create()) / "chat_summary.json"
    path.write_text("{", encoding="utf-8")
    assert run(lab, node("WriteCurrentSummaryToFileAndReturnIt", input="new")) == "new"
    assert path.read_text(encoding="utf-8") == "{" and "cannot be stored" in caplog.text


def test_a_summary_is_not_lost_to_others_at_work(
    lab: EngineLab, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LONGEST_WAIT_BEFORE_ANSWER", 0.1)
    remember(store, 2)
    with store.state.lock(MEMORIES):
        result: list[str] = []
        write = node("WriteCurrentSummaryToFileAndReturnIt", input="new")
        thread = threading.Thread(target=lambda: result.append(run(lab, write)))
        thread.start()
        thread.join(60)
    assert result == ["new"] and store.summary() == ("new", "h1")
    assert store.summary_position() is None  # its file is the others' for now


def test_the_summarizer_as_responder(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    summarizer = node("chatSummarySummarizer", endpointName="Main", prompt="[LATEST_MEMORIES]")
    assert run(lab, summarizer, stream=True) == "<c0\n------------\nc1\n------------\nc2>"
    assert run(lab, summarizer) == "<c0\n------------\nc1\n------------\nc2>"


# -- files that cannot be read -----------------------------------------------------------------------------------------

EVERY_NODE = [
    "QualityMemory",
    "RecentMemory",
    node("RecentMemorySummarizerTool", maxTurnsToPull=3),
    "ChatSummaryMemoryGatheringTool",
    "ConversationMemory",
    "GetCurrentMemoryFromFile",
    "GetCurrentSummaryFromFile",
    "FullChatSummary",
    node("FullChatSummary", isManualConfig=True),
    node("chatSummarySummarizer", endpointName="Main", prompt="[LATEST_MEMORIES]", minMemoriesPerSummary=1),
    node("WriteCurrentSummaryToFileAndReturnIt", input="new"),
    node("VectorMemorySearch", input="x"),
    "GetCurrentStateDocument",
    node("MemoryKeywordSearchPerformerTool", keywords="x", searchTarget="RecentMemories"),
    node("SlowButQualityRAG", endpointName="Main", ragTarget="x", ragType="y", prompt="[Memory_file][Chat_Summary]"),
]
FILES = [
    "memories.json",
    "chat_summary.json",
    "condensation_tracker.json",
    "memory_anchors.json",
    "state_document.md",
    "vector_memory.db",
]


def spoil(path: Path, how: str) -> None:
    if how == "folder":
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{broken \xff")


@pytest.mark.slow
@table("how", ["folder", "junk"])
@table("name", FILES)
@table("vector", [False, True])
@pytest.mark.parametrize("given", EVERY_NODE, ids=lambda given: given if isinstance(given, str) else given["type"])
def test_the_chat_goes_on(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, vector: bool, name: str, how: str
) -> None:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path))
    with_settings(
        lab,
        chunkEstimatedTokenSize=5,
        vectorMemoryMaxMessagesBetweenChunks=1,
        condenseMemories=True,
        memoriesBeforeCondensation=1,
        useVectorForQualityMemory=vector,
    )
    path = Path(DiscussionFolder("d1").folder) / name
    spoil(path, how)
    chat = [user(f"m{number}") for number in range(20)]
    assert run(lab, given, static("on with {chat_user_prompt_last_one}"), messages=chat) == "on with m19"
    assert path.is_dir() if how == "folder" else path.read_bytes() == b"{broken \xff"


# -- keyword search in memories ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_type", ["ConversationalKeywordSearchPerformerTool", "MemoryKeywordSearchPerformerTool"])
def test_search_in_memories(lab: EngineLab, store: MemoryStore, node_type: str) -> None:
    search = node(node_type, keywords="Owls OR owl", searchTarget="RecentMemories")
    assert run(lab, search) == ""
    for number, text in enumerate(["owl {1}", "cat", "owl 2", "owl 3", "owl 4", "owl 5"]):
        store.append_memory(text, f"h{number}")
    assert run(lab, search) == "owl {1}\n\nowl 2"
    assert run(lab, search, discussion_id=None) == ""


def test_nodes_leave_the_conversation_alone(lab: EngineLab, flows: list[bool]) -> None:
    messages = [user("User: a"), assistant("b"), user("c")]
    before = json.dumps(messages)
    run(
        lab, node("RecentMemorySummarizerTool", maxTurnsToPull=3), "RecentMemory", discussion_id=None, messages=messages
    )
    assert json.dumps(messages) == before


def test_messages_are_taken_as_the_client_sent_them() -> None:
    run_request = RunRequest(RequestContext(), "w", "Main", [], {}, "tester", [user("a"), user("b")])
    context = ExecutionContext(
        "r",
        "w",
        None,
        node("RecentMemorySummarizerTool", maxTurnsToPull=2),
        [user("(Monday, 2026-03-16 09:00:00) a"), user("b")],
        False,
        run=run_request,
    )
    assert RecentMemorySummarizerHandler().handle(context) == "a"


# -- from messages to a summary ----------------------------------------------------------------------------------------


def test_memories_are_made_and_summed_up(lab: EngineLab, store: MemoryStore) -> None:
    lab.write(
        "Workflows/tester/Mem",
        {
            "endpointName": "Main",
            "prompt": "Memo: [TextChunk]",
            "maxMessagesBetweenChunks": 2,
            "chunkEstimatedTokenSize": 1000,
        },
    )
    lab.user(discussionIdMemoryFileWorkflowSettings="Mem", chatSummaryToolWorkflow="Helper")
    lab.workflow(
        "Helper",
        [
            node(
                "chatSummarySummarizer",
                endpointName="Main",
                minMemoriesPerSummary=1,
                prompt="Sum: [CHAT_SUMMARY]+[LATEST_MEMORIES]",
            )
        ],
    )
    assert run(lab, "QualityMemory") == "" and store.memories() == []  # the file was not there: too little text
    assert run(lab, "RecentMemory") == "<Memo: m0\nm1\nm2>"
    assert run(lab, "FullChatSummary") == "No summary found"  # one memory does not make it worth while
    messages = [user(f"m{number}") for number in range(9)]
    whole = f"<Sum: {NO_SUMMARY}+<Memo: m0\nm1\nm2>\n------------\n<Memo: m3\nm4\nm5>>"
    assert run(lab, "FullChatSummary", messages=messages) == whole
    assert run(lab, "FullChatSummary", messages=messages) == whole == run(lab, "GetCurrentSummaryFromFile")
    assert store.summary() == (whole, hash_content("m5"))
