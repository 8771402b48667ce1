"""Dates in the texts that become memories, what memories keep of them, and where they are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from Middleware.models.request_context import request_scope
from Middleware.services.memory import remembering
from Middleware.services.memory.memory_search import VectorSearch, search_memories_fully
from Middleware.services.memory_service import MemoryService
from Middleware.utilities.said_times import calendar_of
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory.dated_chunks import Dates
from Middleware.workflows.tools.memory.vector_memories import VectorMemoryPass
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, assistant, user
from Tests.workflows.tools.memory.memory_chat import MemoryChat, memory, numbered
from Tests.workflows.tools.memory.memory_lab import MemoryLab, chat

DAY = 86_400
# Wednesday, 11 March 2026, 20:00 in Berlin.
MARCH = int(datetime(2026, 3, 11, 19, 0, tzinfo=UTC).timestamp())
BERLIN = calendar_of("Europe/Berlin")
SETTINGS = {"addDatesToTextChunk": True, "timeZone": "Europe/Berlin"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLab]:
    with StubBackend() as backend:
        yield MemoryLab(tmp_path, monkeypatch, backend)


@table(
    ("messages", "times", "text"),
    [
        (
            [user("We met yesterday."), assistant("Nice, you two!"), user("I saw her today")],
            [MARCH, MARCH + 60, MARCH + DAY],
            "--- Wednesday, 11 March 2026 ---\nWe met yesterday (10 March 2026).\nNice, you two!\n"
            "--- Thursday, 12 March 2026 ---\nI saw her today (12 March 2026)",
        ),
        (
            [user("Wir waren gestern da."), assistant("Und wie war es?")],
            [MARCH, MARCH],
            "--- Mittwoch, 11. März 2026 ---\nWir waren gestern (10. März 2026) da.\nUnd wie war es?",
        ),
        # Near midnight, days are those of the time zone.
        ([user("and now")], [MARCH + 4 * 3600 - 1], "--- Wednesday, 11 March 2026 ---\nand now"),
        ([user("and now")], [MARCH + 4 * 3600], "--- Thursday, 12 March 2026 ---\nand now"),
        # A time that is not known has no date, and does not end a day.
        (
            [user("It was today"), user("It was yesterday"), user("It was now")],
            [MARCH, None, MARCH + 60],
            "--- Wednesday, 11 March 2026 ---\nIt was today (11 March 2026)\nIt was yesterday\nIt was now",
        ),
        ([user("It was today")], [None], "It was today"),
        # French; braces are still escaped.
        ([user("Nous avons mangé hier")], [MARCH], "--- Wednesday, 11 March 2026 ---\nNous avons mangé hier"),
        (
            [user("We said __WILMER_L_CURLY__x__WILMER_R_CURLY__ yesterday, and so on")],
            [MARCH],
            "--- Wednesday, 11 March 2026 ---\n"
            "We said __WILMER_L_CURLY__x__WILMER_R_CURLY__ yesterday (10 March 2026), and so on",
        ),
        ([], [], ""),
    ],
)
def test_a_line_before_each_day(messages: list[Any], times: list[int | None], text: str) -> None:
    dates = Dates(messages, times, BERLIN)
    assert dates.text(0, len(messages), lambda message: str(message["content"])) == text
    known = [at for at in times if at is not None]
    iso = [datetime.fromtimestamp(at, BERLIN.zone).isoformat() for at in (max(known), min(known))] if known else []
    assert list(dates.span(0, len(times)).values()) == iso


def timed(lab: MemoryLab, messages: list[dict[str, Any]]) -> None:
    """Send messages, as if the client had sent times an hour apart with them."""
    request = lab.request
    context = lab.context(messages, request)
    set_times(context)
    with request_scope(request):
        SlowButQualityRAGTool().handle_discussion_id_flow(context, False)


def set_times(context: ExecutionContext) -> None:
    assert context.run is not None
    messages = enumerate(context.run.messages)
    context.request.said = {id(message): (message, [MARCH + 3600 * number]) for number, message in messages}


def entries(lab: MemoryLab) -> list[dict[str, str]]:
    return json.loads(lab.path.read_text("utf-8"))  # type: ignore[no-any-return]


def test_file_memories_keep_when_they_were_said(lab: MemoryLab) -> None:
    lab.settings(**SETTINGS)
    timed(lab, chat(3))
    timed(lab, chat(8))
    assert lab.prompts[0] == ("--- Wednesday, 11 March 2026 ---\nm0\nm1\nm2\nm3\n--- Thursday, 12 March 2026 ---\nm4")
    (entry,) = entries(lab)
    assert (entry["said_from"], entry["said"]) == ("2026-03-11T20:00:00+01:00", "2026-03-12T00:00:00+01:00")
    text = entry["text_block"]
    service = MemoryService()
    assert service.get_recent_memories([], "d1") == text
    assert service.get_recent_memories([], "d1", include_dates=True) == f"[12 March 2026] {text}"
    # An edit keeps the times, and so do memories that are joined: from the first to the last.
    lab.store.append_memory(
        "later", "h", {"said": "2026-03-20T08:00:00+01:00", "said_from": "2026-03-19T08:00:00+01:00"}
    )
    pairs = lab.store.memories()
    lab.store.replace_memories([("edited", pairs[0][1]), pairs[1]])
    assert [one.get("said_from") for one in entries(lab)] == ["2026-03-11T20:00:00+01:00", "2026-03-19T08:00:00+01:00"]
    lab.store.replace_memories([("joined", "h")])
    assert [(one["said_from"], one["said"]) for one in entries(lab)] == [
        ("2026-03-11T20:00:00+01:00", "2026-03-20T08:00:00+01:00")
    ]
    lab.store.replace_memories([("other", "x")])
    assert entries(lab) == [{"text_block": "other", "hash": "x"}]
    assert service.get_recent_memories([], "d1", include_dates=True) == "other"


@table("settings", [{}, {**SETTINGS, "addDatesToTextChunk": False}, {**SETTINGS, "timeZone": "none"}])
def test_without_the_setting_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    with StubBackend() as backend:
        lab = MemoryLab(tmp_path, monkeypatch, backend)
        lab.settings(**settings)
        timed(lab, chat(3))
        timed(lab, chat(8))
        assert lab.prompts == ["m0\nm1\nm2\nm3\nm4"]
        assert [list(entry) for entry in entries(lab)] == [["text_block", "hash"]]


def test_searchable_memories_keep_when_they_were_said(lab: EngineLab) -> None:
    chat = MemoryChat(lab)
    chat.raw |= {**SETTINGS, "vectorMemoryMaxMessagesBetweenChunks": 3, "vectorMemoryChunkEstimatedTokenSize": 1000}
    chat.answers = lambda chunk: json.dumps(memory("The loom was sold to Mara."))

    def work(context: ExecutionContext) -> None:
        set_times(context)
        VectorMemoryPass(context, chat.settings, chat.folder).run()

    chat.within([user("I sold the loom to Mara yesterday, and it was fine"), *numbered(7)], work)
    assert "yesterday (10 March 2026), and it" in lab.prompts[0]
    with chat.folder.memories() as memories:
        (row,) = memories.keyword_search("loom", 5)
    kept = json.loads(row["metadata_json"] or "")
    assert (kept["said_from"], kept["said"]) == ("2026-03-11T20:00:00+01:00", "2026-03-12T00:00:00+01:00")
    text = "The loom was sold to Mara."
    assert search_memories_fully(chat.folder, VectorSearch("loom", include_dates=True)) == f"[2026-03-12] {text}"
    # Without the key, metadata are those of the answer.
    del chat.raw["addDatesToTextChunk"]
    chat.discussion_id = "k2"
    chat.within([user("I sold the loom to Mara yesterday, and it was fine"), *numbered(7)], work)
    with chat.folder.memories() as memories:
        (row,) = memories.keyword_search("loom", 5)
    assert json.loads(row["metadata_json"] or "") == memory(text)
    added = str(row["date_added"])[:10]
    assert search_memories_fully(chat.folder, VectorSearch("loom", include_dates=True)) == f"[{added}] {text}"


def test_the_index_of_messages_knows_when_they_came(lab: MemoryLab) -> None:
    """Of a client that sends no times, each message came with some request."""
    lab.settings(**SETTINGS, rememberMessages=True)
    for count in (3, 8):
        request = lab.request
        context = lab.context(chat(count), request)
        if count == 3:
            set_times(context)
        with request_scope(request):
            request.remembered = remembering.remember(request, "d1", context.messages, None, None)
            SlowButQualityRAGTool().handle_discussion_id_flow(context, False)
    assert lab.prompts[0].startswith("--- Wednesday, 11 March 2026 ---\nm0\nm1\nm2\n")
    assert entries(lab)[0]["said_from"] == "2026-03-11T20:00:00+01:00"
