"""Memories that follow a conversation: what is shown is what a fresh start would show."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory import chunks, memory_store, pieces
from Middleware.services.memory.chunks import followed_chunks
from Middleware.services.memory.follow_state import bury, read_follow_state, write_follow_state
from Middleware.services.memory.memory_search import NOTHING_FOUND, SEPARATOR, VectorSearch, search_memories_fully
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import NO_SUMMARY, SUMMARY_SEPARATOR
from Middleware.utilities.config import users
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.conversations.trail import Piece
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.encryption_utils import NO_CIPHER, cipher_for, derive_encryption_key
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import condensation, file_memories, state_document, vector_memories
from Middleware.workflows.tools.memory.chat_summary import ChatSummarizer
from Middleware.workflows.tools.memory.file_memories import FileMemoryPass, FollowingPass
from Middleware.workflows.tools.memory.vector_memories import FollowingVectorPass, VectorMemoryPass
from Tests.amounts import amount
from Tests.tables import table
from Tests.utilities.conversations.simulated_chat import Chat, Said

SETTINGS = {
    "prompt": "[TextChunk]",
    "lookbackStartTurn": 3,
    "maxMessagesBetweenChunks": 10,
    "chunkEstimatedTokenSize": 100_000,
    "followEdits": True,
}


GREETING = "Good evening, traveller. What brings you to the mill?"


class Discussion:
    """A discussion whose memories are their chunks in brackets, each with a number of its own."""

    numbers = itertools.count()

    kind = "file"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: bytes | None = None, **settings: Any) -> None:
        self.folder = DiscussionFolder(f"d{next(Discussion.numbers)}", "0123456789abcdef" if key else None, key)
        self.asked: list[str] = []
        self.markers: list[Mapping[str, str]] = []
        self.answer = "<{}>"
        self._monkeypatch = monkeypatch
        self.set(**settings)
        monkeypatch.setattr(file_memories, "MemoryCall", self._call)
        monkeypatch.setattr(condensation, "MemoryCall", self._call)
        monkeypatch.setattr(vector_memories, "MemoryCall", self._call)
        self.folded: list[str] = []
        self.room = 0
        monkeypatch.setattr(ChatSummarizer, "_ask", lambda summarizer, markers: self._summarized(markers))
        monkeypatch.setattr(ChatSummarizer, "_has_markers", lambda summarizer: True)

    def set(self, **settings: Any) -> None:
        self.settings = read_settings(MemorySettings, {**SETTINGS, **settings}, "test")
        self._monkeypatch.setattr(pieces, "quiet_memory_settings", lambda: self.settings)

    def _call(self, *_: Any) -> Any:
        return self

    def ask(self, system_prompt: str, prompt: str, markers: dict[str, str]) -> str:
        text = markers["[TextChunk]"]
        self.asked.append(text)
        self.markers.append(markers)
        return self.answer.format(text.replace("\n", " / "))

    def _summarized(self, markers: Mapping[str, str]) -> str:
        """A summary that has all that it is made of."""
        texts = [markers["[CHAT_SUMMARY]"], *markers["[LATEST_MEMORIES]"].split(SUMMARY_SEPARATOR)]
        self.folded.append("\n".join(texts))
        return "\n".join(text for text in texts if text != NO_SUMMARY)

    def summary(self, said: list[Said]) -> list[str]:
        """The lines of the summary that a node shows in a request with this history."""
        with request_scope(self._request(said)):
            found = MemoryStore(self.folder).summary()
            return found[0].split("\n") if found else []

    def sum_up(self, said: list[Said]) -> list[str]:
        """A request with a node that brings the summary up to date: what it returns."""
        request = self._request(said)
        with request_scope(request):
            context = ExecutionContext(
                "r", "w", self.folder.discussion_id, {}, list(request.history), False, request=request
            )
            found = ChatSummarizer(context, self.folder, least=1, most=3, room=self.room).update()
        return [] if found == NO_SUMMARY else found.split("\n")

    def _request(self, said: list[Said]) -> RequestContext:
        return RequestContext(history=[{"role": role, "content": text} for role, text in said])

    def shown(self, said: list[Said]) -> list[str]:
        """What a node shows in a request with this history."""
        with request_scope(self._request(said)):
            return self._listed()

    def stored(self) -> list[str]:
        """What a reader shows that knows no history."""
        return [entry["text_block"] for entry in self.document("memories.json")]

    def _listed(self) -> list[str]:
        return [text for text, _ in MemoryStore(self.folder).memories()]

    def correct(self, index: int, text: str) -> None:
        """Change a memory by hand."""
        store = MemoryStore(self.folder)
        pairs = store.memories()
        store.replace_memories([(text, pair[1]) if place == index else pair for place, pair in enumerate(pairs)])

    def _passes(self) -> tuple[Any, Any]:
        return FileMemoryPass, FollowingPass

    def send(self, said: list[Said]) -> list[str]:
        """A request: what its nodes show; then its memories are written."""
        request, found = self.answered(said)
        self.remember(request)
        return found

    def answered(self, said: list[Said]) -> tuple[RequestContext, list[str]]:
        """A request whose pass has not begun, and what its nodes show."""
        request = self._request(said)
        with request_scope(request):
            return request, self._listed()

    def remember(self, request: RequestContext) -> None:
        with request_scope(request):
            context = ExecutionContext(
                "r", "w", self.folder.discussion_id, {}, list(request.history), False, request=request
            )
            self._passes()[self.settings.follow_edits](context, self.settings, self.folder).run()

    def document(self, name: str) -> Any:
        path = Path(self.folder.folder) / name
        return json.loads(path.read_text("utf-8")) if path.exists() else None


class Searchable(Discussion):
    """A discussion with searchable memories: of each chunk one, which is as a file memory would be."""

    kind = "searchable"
    # The text of a fact; a blank one: the model answers [].
    fact = "{}"

    def set(self, **settings: Any) -> None:
        merged = {**SETTINGS, **settings}
        super().set(
            **settings,
            useVectorForQualityMemory=True,
            vectorMemoryPrompt="[TextChunk]",
            vectorMemoryMaxMessagesBetweenChunks=merged["maxMessagesBetweenChunks"],
            vectorMemoryChunkEstimatedTokenSize=merged["chunkEstimatedTokenSize"],
        )

    def ask(self, system_prompt: str, prompt: str, markers: dict[str, str]) -> str:
        answer = super().ask(system_prompt, prompt, markers)
        memory = {"title": "everything", "summary": answer, "entities": [], "key_phrases": []}
        return json.dumps([memory] if answer else [])

    def correct(self, index: int, text: str) -> None:
        with self.folder.memories(write=True) as memories:
            memories.change_text(list(memories.all_memories())[index]["id"], text)

    def _passes(self) -> tuple[Any, Any]:
        return VectorMemoryPass, FollowingVectorPass

    def _listed(self) -> list[str]:
        """The memories in the order of the history; a search finds the same ones."""
        with self.folder.memories() as memories:
            found = followed_chunks(self.folder)
            rows = list(memories.all_memories())
            chunks = memories.chunks_of(row["id"] for row in rows)
            names = [piece.keys.id for piece in found.shown if piece.keys] if found else []
            facts = memories.facts_of(names)
        if found is None:
            return [row["memory_text"] for row in rows if row["memory_text"] in self.stored()]
        listed = [row["memory_text"] for row in rows if row["id"] not in chunks]
        listed += [row["memory_text"] for name in names for row in facts[name]]
        assert sorted(self.stored()) == sorted(listed)
        return listed

    def _chunks(self) -> list[Piece]:
        with self.folder.memories() as memories:
            return memories.chunks()

    def stored(self) -> list[str]:
        found = search_memories_fully(self.folder, VectorSearch("everything", limit=1000))
        return [] if found == NOTHING_FOUND else found.split(SEPARATOR)

    def summary(self, said: list[Said]) -> list[str]:
        return self.shown(said)

    def sum_up(self, said: list[Said]) -> list[str]:
        return []


class Documented(Searchable):
    """The same, with a state document that has all facts as they are."""

    kind = "state document"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: bytes | None = None, **settings: Any) -> None:
        super().__init__(monkeypatch, key, **settings)
        monkeypatch.setattr(state_document, "text_of_helper", lambda context, name, inputs: self._documented(*inputs))
        monkeypatch.setattr(state_document, "helper_prompts", lambda context, name: ())
        monkeypatch.setattr(memory_store, "quiet_memory_settings", lambda: self.settings)

    def set(self, **settings: Any) -> None:
        super().set(**settings, useStateDocument=True, stateDocumentWorkflowName="State")

    def _documented(self, listed: str, current: str) -> str:
        self.folded.append(f"{current} {listed}")
        return f"{current}\n{listed}"

    def _listed(self) -> list[str]:
        searchable = super()._listed()
        found = MemoryStore(self.folder).state_document()
        listed = [line.removeprefix("- ") for line in found.split("\n") if line]
        assert listed == searchable
        return listed


KINDS = (Discussion, Searchable, Documented)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.kind)
def kind(request: pytest.FixtureRequest) -> type[Discussion]:
    found: type[Discussion] = request.param
    return found


@pytest.fixture
def either(discussion: Discussion, kind: type[Discussion], monkeypatch: pytest.MonkeyPatch) -> Discussion:
    """A discussion with memories of either kind."""
    return kind(monkeypatch)


@pytest.fixture
def discussion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Discussion]:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(users, "get_discussions_root_directory", lambda: str(tmp_path))
    yield Discussion(monkeypatch)


def chat(*names: str) -> list[Said]:
    """``m0-m9`` are ten messages; roles by turns."""
    texts: list[str] = []
    for name in names:
        first, _, last = name.partition("-")
        numbers = range(int(first[1:]), int(last[1:]) + 1) if last else ()
        texts += [f"{first[0]}{number}" for number in numbers] if last else [name]
    return [(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


def of(*names: str) -> str:
    return "<" + " / ".join(text for _, text in chat(*names)) + ">"


P1, P2, P3 = of("m0-m9"), of("m10-m19"), of("m20-m29")
ALL = chat("m0-m35")


def begun(discussion: Discussion) -> None:
    """Make the memories of the first thirty messages."""
    for count in (3, 13, 23, 33, 36):
        discussion.send(ALL[:count])
    assert discussion.shown(ALL) == [P1, P2, P3]
    discussion.asked.clear()


@table(
    ("steps", "shown", "calls"),
    [
        # Histories in order; what a request with the last one shows after them, and the number of calls.
        ([chat("m0-m4", "x", "m6-m36")], [of("m0-m4", "x", "m6-m9"), P2, P3], 1),  # 1
        ([chat("m0-m4", "x", "m6-m36"), chat("m0-m36")], [P1, P2, P3], 1),  # 2
        ([chat("m0-m8", "x", "m10-m36")], [of("m0-m8", "x"), P2, P3], 1),  # 3
        ([chat("m0-m4", "m6-m36")], [of("m0-m4", "m6-m9"), P2, P3], 1),  # 4
        ([chat("m0-m4", "m6-m36"), chat("m0-m4", "m7-m37")], [of("m0-m4", "m7-m9"), P2, P3], 2),
        ([chat("m0-m3", "m15-m36")], [of("m0-m3", "m15-m19"), P3], 1),  # 5
        ([chat("m0-m19", "n0-n5"), chat("m0-m19", "n0-n12")], [P1, P2, of("n0-n9")], 1),  # 6
        ([chat("m0-m19", "n0-n12"), chat("m0-m36")], [P1, P2, P3], 1),
        ([chat("m0-m34", name) for name in "abcde"], [P1, P2, P3], 0),  # 7
        ([chat("m0-m12", "n0-n9")], [P1, of("m10-m12", "n0-n6")], 1),  # 9
        ([chat("m0-m12", "n0-n9"), ALL, chat("m0-m12", "n0-n9")], [P1, of("m10-m12", "n0-n6")], 1),
        ([chat("m0-m12", "n0-n9"), ALL], [P1, P2, P3], 1),
        ([chat("m16-m36")], [P1, P2, P3], 0),  # 27
        ([chat("m16-m36"), chat("m0-m37")], [P1, P2, P3], 0),  # 28
        ([chat("m16-m20", "x", "m22-m36")], [P1, P2, of("m20", "x", "m22-m33")], 1),  # 29
        ([chat("x", "m1-m36")], [of("x", "m1-m9"), P2, P3], 1),  # 31
        ([chat("m0", "m16-m36")], [P1, P2, P3], 0),  # 32
        ([chat("m0-m3", "m5", "m4", "m6-m36")], [of("m0-m3", "m5", "m4", "m6-m9"), P2, P3], 1),  # 33
        ([chat("m0-m4", "x", "m5-m36")], [P1, of("x"), P2, P3], 1),  # 34
        ([chat("m0-m9", "x", "m10-m36")], [P1, of("x"), P2, P3], 1),
        ([chat("m0-m33")], [P1, P2, P3], 0),  # 35
        ([chat("m0-m33"), ALL], [P1, P2, P3], 0),
        # Names, dates, roles: 19 to 21.
        ([[(role, f"{role.title()} Smith: {text}") for role, text in ALL]], [P1, P2, P3], 0),
        ([[(role, f"[2026-11-29 1{i % 10}:00] {text}") for i, (role, text) in enumerate(ALL)]], [P1, P2, P3], 0),
        ([[("system", "other"), *ALL]], [P1, P2, P3], 0),  # 16
    ],
)
def test_what_is_shown_after_a_change(
    discussion: Discussion,
    kind: type[Discussion],
    monkeypatch: pytest.MonkeyPatch,
    steps: list[list[Said]],
    shown: list[str],
    calls: int,
) -> None:
    discussion = kind(monkeypatch)
    begun(discussion)
    for said in steps:
        discussion.send(said)
    assert discussion.shown(steps[-1]) == shown
    assert len(discussion.asked) == calls
    assert sorted(discussion.stored()) == sorted(shown)


@table(
    ("steps", "said"),
    [
        ([ALL, chat("m0-m36")], []),
        ([chat("m0-m40"), chat("m0-m60")], []),
        (
            [chat("m0-m4", "x", "m6-m36")],
            ["1 memory no longer fits the conversation and is left out; 1 is written anew"],
        ),
        # Once for each change, not for each request.
        (
            [chat("m0-m4", "x", "m6-m36"), chat("m0-m4", "x", "m6-m37"), chat("m0-m4", "x", "m6-m24", "y", "m26-m37")],
            ["1 memory no longer fits the conversation and is left out; 1 is written anew"] * 2,
        ),
        ([chat("m0-m3", "m15-m36")], ["2 memories no longer fit the conversation and are left out; 1 is written anew"]),
        (
            [chat("m0-m4", "x", "m6-m24", "y", "m26-m36")],
            ["2 memories no longer fit the conversation and are left out; 2 are written anew"],
        ),
        # A step back: nothing is due yet. The return brings it back, and is no change to be told.
        ([chat("m0-m12"), ALL], ["2 memories no longer fit the conversation and are left out"]),
        # Windows, and a second device, leave nothing out.
        ([chat("m16-m36"), chat("m0", "m16-m36"), chat("m0-m33")], []),
    ],
)
def test_what_an_edit_leaves_out_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
    discussion: Discussion,
    caplog: pytest.LogCaptureFixture,
    steps: list[list[Said]],
    said: list[str],
) -> None:
    made = Discussion(monkeypatch)
    begun(made)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for step in steps:
            made.send(step)
    found = [record.getMessage() for record in caplog.records if "no longer" in record.getMessage()]
    assert found == [f"Discussion {made.folder.discussion_id}: {text}" for text in said]


@table("behind", [chat("m0-m38"), chat("m0-m33"), chat("m16-m38"), chat("m0", "m16-m38")])
def test_a_pass_that_comes_late_leaves_nothing_out(
    either: Discussion, caplog: pytest.LogCaptureFixture, behind: list[Said]
) -> None:
    begun(either)
    older, _ = either.answered(behind)
    either.send(chat("m0-m42"))
    with caplog.at_level(logging.INFO):
        either.remember(older)
    assert "no longer" not in caplog.text
    assert len(either.send(chat("m0-m43"))) == 4


@table(
    ("said", "about"),
    [
        (ALL, "3 of 3 pieces on the path, 0 holes"),
        (chat("m0-m4", "x", "m6-m36"), "2 of 3 pieces on the path, 1 hole"),
        (chat("m0-m14", "x", "m16-m36"), "2 of 3 pieces on the path, 1 hole"),
        (chat("m0-m3", "m15-m36"), "1 of 3 pieces on the path, 1 hole"),
        (chat("n0-n9"), "0 of 3 pieces on the path, 0 holes"),
    ],
)
def test_a_run_says_how_many_memories_fit(
    monkeypatch: pytest.MonkeyPatch, discussion: Discussion, said: list[Said], about: str
) -> None:
    made = Discussion(monkeypatch)
    begun(made)
    with request_scope(made._request(said)):
        assert MemoryStore(made.folder).trail() == about
    made.set(followEdits=False)
    with request_scope(made._request(said)):
        assert MemoryStore(made.folder).trail() == ""


@table(
    "settings",
    [
        {},
        {"maxMessagesBetweenChunks": 4, "lookbackStartTurn": 0},
        {"chunkEstimatedTokenSize": 12, "maxMessagesBetweenChunks": 50},
        {"addRolesToTextChunk": True, "lookbackStartTurn": 7},
        {"condenseMemories": True, "memoriesBeforeCondensation": 2, "memoryCondensationBuffer": 1},
    ],
)
def test_without_edits_nothing_is_different(
    discussion: Discussion, kind: type[Discussion], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    found = []
    for follows in (False, True):
        discussion = kind(monkeypatch, **settings, followEdits=follows)
        shown = [discussion.send(chat(f"m0-m{count}")) for count in (2, 3, 4, 6, *range(8, 70, 2))]
        summed = [discussion.sum_up(chat(f"m0-m{count}")) for count in (68, 68)]
        found.append((shown, summed, discussion.markers, discussion.folded))
    assert found[0] == found[1]
    assert len(found[0][2]) > 5


def test_the_first_request_after_an_edit_shows_nothing_that_is_gone(either: Discussion) -> None:
    begun(either)
    assert either.send(chat("m0-m4", "x", "m6-m36")) == [P2, P3]


def test_two_chats_with_one_id_show_each_other(either: Discussion) -> None:
    begun(either)
    other = chat("m0", "h", "n0-n14")
    for count in (5, 9, 13, 17):
        either.send(other[:count])
    second = of("m0", "h", "n0-n7")
    assert either.shown(other) == [P1, P2, P3, second]
    assert either.shown(ALL) == [P1, P2, P3, second]
    either.send(ALL)
    assert either.shown(other) == [P1, P2, P3, second]
    assert len(either.asked) == 1
    either.set(otherChats="hide")
    assert (either.shown(other), either.shown(ALL)) == ([second], [P1, P2, P3])


def test_a_single_question_writes_nothing(either: Discussion) -> None:
    begun(either)
    before = either.document("follow.json"), either.stored()
    assert either.send([("user", "Write a title.")]) == [P1, P2, P3]
    assert either.send([("user", "Write a title."), ("assistant", "A title"), ("system", "x")]) == [P1, P2, P3]
    assert (either.document("follow.json"), either.stored()) == before


def test_an_edit_of_a_joined_memory_brings_the_others_back(discussion: Discussion) -> None:
    begun(discussion)
    discussion.set(condenseMemories=True, memoriesBeforeCondensation=3)
    discussion.send(chat("m0-m44"))
    joined = discussion.shown(chat("m0-m44"))
    assert len(joined) == 2 and "m5" in joined[0]
    discussion.set()
    discussion.asked.clear()
    edited = chat("m0-m12", "x", "m14-m44")
    discussion.send(edited)
    assert discussion.shown(edited)[:3] == [P1, of("m10-m12", "x", "m14-m19"), P3]
    assert len(discussion.asked) == 1


def test_a_client_that_rewrites_everything_is_not_followed(either: Discussion) -> None:
    long = [(role, f"{text}: what is said at such a length is not said twice") for role, text in chat("m0-m59")]
    for count in range(3, 61):
        either.send(long[:count])
    shown = either.shown(long)
    assert len(shown) == 5
    either.asked.clear()
    for number in range(9):
        either.send([(role, f"{text} {number}" if role == "assistant" else text) for role, text in long])
    # Twice, as it may have been an edit.
    assert 0 < len(either.asked) <= 2 * either.settings.repairs_per_pass
    either.send(long)
    assert either.shown(long) == shown


def test_memories_of_an_older_version_are_adopted(discussion: Discussion) -> None:
    discussion.set(followEdits=False)
    for count in (3, 13, 23, 36):
        request = RequestContext()
        messages = [{"role": role, "content": text} for role, text in ALL[:count]]
        with request_scope(request):
            context = ExecutionContext("r", "w", discussion.folder.discussion_id, {}, messages, False, request=request)
            file_memories.FileMemoryPass(context, discussion.settings, discussion.folder).run()
    assert "sources" not in discussion.document("memories.json")[0]
    discussion.set()
    assert discussion.send(ALL) == [P1, P2, of("m20-m32")]
    edited = chat("m0-m4", "x", "m6-m36")
    discussion.send(edited)
    assert discussion.shown(edited) == [of("m0-m4", "x", "m6-m9"), P2, of("m20-m32")]


@table(("left", "first"), [(0, [P1, P2, P3]), (1, [P2, P3, P1]), (2, [P3, P1, P2])])
def test_memories_without_anchors_are_always_shown_and_not_made_again(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch, left: int, first: list[str]
) -> None:
    discussion = Discussion(monkeypatch, followEdits=False)
    for count in (3, 13, 23, 33):
        discussion.send(ALL[:count])
    anchors = Path(discussion.folder.folder) / "memory_anchors.json"
    known = json.loads(anchors.read_text("utf-8"))
    anchors.write_text(json.dumps(dict(list(known.items())[:left])), encoding="utf-8")
    discussion.set()
    discussion.asked.clear()
    for said in (ALL, ALL):
        assert discussion.send(said) == first
    assert discussion.asked == []
    longer = chat("m0-m59")
    for count in range(40, 60):
        discussion.send(longer[:count])
    assert discussion.shown(longer) == [*first, of("m30-m39"), of("m40-m49")]
    edited = chat("m0-m34", "x", "m36-m59")
    discussion.send(edited)
    assert discussion.shown(edited) == [*first, of("m30-m34", "x", "m36-m39"), of("m40-m49")]


def test_an_entry_without_keys_is_always_shown(discussion: Discussion) -> None:
    begun(discussion)
    path = Path(discussion.folder.folder) / "memories.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps([{"text_block": "by hand", "hash": "h"}, *content]), encoding="utf-8")
    edited = chat("m0-m4", "x", "m6-m36")
    assert discussion.send(edited) == ["by hand", P2, P3]
    assert discussion.shown(ALL) == ["by hand", P1, P2, P3]


def test_a_crash_between_the_two_files_loses_and_doubles_nothing(discussion: Discussion) -> None:
    begun(discussion)
    folder = Path(discussion.folder.folder)
    before = (folder / "memories.json").read_bytes()
    edited = chat("m0-m4", "x", "m6-m36")
    discussion.send(edited)
    (folder / "memories.json").write_bytes(before)
    assert discussion.shown(ALL) == [P1, P2, P3]
    assert discussion.send(edited) == [P2, P3]
    assert discussion.shown(edited) == [of("m0-m4", "x", "m6-m9"), P2, P3]


def test_an_answer_that_repeats_itself_is_not_asked_for_again(discussion: Discussion) -> None:
    begun(discussion)
    discussion.answer = P2
    edited = chat("m0-m24", "x", "m26-m36")
    for _ in range(4):
        discussion.send(edited)
    assert len(discussion.asked) == 2
    assert discussion.shown(edited) == [P1, P2]


def test_a_deleted_memory_is_not_made_again(discussion: Discussion) -> None:
    begun(discussion)
    entries = discussion.document("memories.json")
    bury(discussion.folder, tuple(entries[1]["sources"]))
    (Path(discussion.folder.folder) / "memories.json").write_text(json.dumps([entries[0], entries[2]]), "utf-8")
    for _ in range(2):
        assert discussion.send(ALL) == [P1, P3]
    assert discussion.asked == []
    # Of another text, it is.
    edited = chat("m0-m14", "x", "m16-m36")
    discussion.send(edited)
    assert discussion.shown(edited) == [P1, of("m10-m14", "x", "m16-m19"), P3]


@table(
    "content", ["[1]", "{", '{"conversations": [1, {"number": "x"}, {"number": 4, "active": 7, "injected": [3]}]}', ""]
)
def test_a_damaged_state_costs_no_memory(discussion: Discussion, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    discussion = Discussion(monkeypatch)
    begun(discussion)
    (Path(discussion.folder.folder) / "follow.json").write_text(content, encoding="utf-8")
    assert discussion.send(ALL) == [P1, P2, P3]
    assert discussion.send(chat("m0-m4", "x", "m6-m36")) == [P2, P3]


def test_what_is_stored_of_conversations_is_read_again(discussion: Discussion) -> None:
    begun(discussion)
    stored = read_follow_state(discussion.folder)
    assert stored.conversations[0].tails and stored.conversations[0].active
    write_follow_state(discussion.folder, stored.with_tombstone(("a", "b")))
    assert read_follow_state(discussion.folder) == stored.with_tombstone(("a", "b"))


def test_everything_is_encrypted(discussion: Discussion, monkeypatch: pytest.MonkeyPatch) -> None:
    discussion = Discussion(monkeypatch, derive_encryption_key("secret", "ann"))
    edited = chat("m0-m4", "canary", "m6-m36")
    for count in (3, 13, 23, 33, 36):
        discussion.send(edited[:count])
        discussion.sum_up(edited[:count])
    discussion.send(ALL)
    discussion.sum_up(ALL)
    assert discussion.summary(ALL) == [P1, P2, P3]
    found = {path.name: path.read_bytes() for path in Path(discussion.folder.folder).iterdir() if path.is_file()}
    assert {"memories_elsewhere.json", "summary_versions.json", "follow.json"} <= set(found)
    assert not [name for name, content in found.items() if b"canary" in content or b"sources" in content]
    assert discussion.shown(edited)[0] == of("m0-m4", "canary", "m6-m9")


def test_no_more_are_kept_elsewhere_than_wanted(discussion: Discussion) -> None:
    begun(discussion)
    discussion.set(keepElsewhere=1)
    for number in range(4):
        discussion.send(chat("m0-m4", f"x{number}", "m6-m36"))
    assert len(discussion.document("memories_elsewhere.json")) == 1


# -- the summary -------------------------------------------------------------------------------------------------------


def summed_up(discussion: Discussion) -> None:
    for count in (3, 13, 23, 33, 36):
        discussion.send(ALL[:count])
        discussion.sum_up(ALL[:count])
    assert discussion.summary(ALL) == [P1, P2, P3]
    assert len(discussion.folded) == (0 if discussion.room else 3)
    discussion.folded.clear()


@table("room", [0, 100_000])
def test_a_summary_follows_an_edit_and_a_return(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    discussion = Discussion(monkeypatch)
    discussion.room = room
    summed_up(discussion)
    edited = chat("m0-m14", "x", "m16-m36")
    changed = of("m10-m14", "x", "m16-m19")
    # At once without what is gone, and with what is still true.
    assert discussion.summary(edited) == [P1, P3]
    discussion.send(edited)
    assert discussion.summary(edited) == [P1, changed, P3]
    assert discussion.sum_up(edited) == [P1, changed, P3]
    assert len(discussion.folded) == (0 if room else 1)
    # The old branch again: without a call.
    discussion.folded.clear()
    discussion.send(ALL)
    assert discussion.sum_up(ALL) == [P1, P2, P3]
    assert discussion.sum_up(edited) == [P1, changed, P3]
    assert discussion.folded == []
    assert discussion.document("chat_summary.json")[0]["text_block"] == "\n".join([P1, changed, P3])


def test_an_edit_without_an_earlier_version_shows_the_memories(discussion: Discussion) -> None:
    summed_up(discussion)
    path = Path(discussion.folder.folder) / "summary_versions.json"
    versions = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(versions[-1:]), encoding="utf-8")
    edited = chat("m0-m4", "x", "m6-m36")
    assert discussion.summary(edited) == [P2, P3]
    discussion.send(edited)
    assert discussion.sum_up(edited) == [of("m0-m4", "x", "m6-m9"), P2, P3]
    assert len(discussion.folded) == 1


def test_the_text_of_a_user_outranks_an_edit(discussion: Discussion) -> None:
    summed_up(discussion)
    path = Path(discussion.folder.folder) / "chat_summary.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps([{**content[0], "text_block": "by hand"}]), encoding="utf-8")
    assert discussion.summary(ALL) == ["by hand"]
    edited = chat("m0-m14", "x", "m16-m36")
    assert discussion.summary(edited) == ["by hand"]
    discussion.send(edited)
    changed = of("m10-m14", "x", "m16-m19")
    assert discussion.sum_up(edited) == ["by hand", changed]
    assert discussion.summary(ALL) == ["by hand"]


def test_a_summary_of_an_older_version_goes_on(discussion: Discussion) -> None:
    summed_up(discussion)
    for name in ("summary_versions.json", "follow.json"):
        (Path(discussion.folder.folder) / name).unlink()
    assert discussion.summary(ALL) == [P1, P2, P3]
    assert discussion.sum_up(ALL) == [P1, P2, P3]
    assert discussion.folded == []
    assert discussion.summary(chat("m0-m4", "x", "m6-m36")) == [P2, P3]


def _rewritten(discussion: Discussion, text: str, **more: str) -> None:
    """Change the summary by hand; ``more``: its hash."""
    path = Path(discussion.folder.folder) / "chat_summary.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps([{**content[0], "text_block": text, **more}]), encoding="utf-8")


def _removed(discussion: Discussion) -> None:
    (Path(discussion.folder.folder) / "chat_summary.json").unlink()


def _restored(discussion: Discussion) -> None:
    path = Path(discussion.folder.folder) / "chat_summary.json"
    path.write_bytes(path.with_suffix(".json.bak").read_bytes())


def _of_before(discussion: Discussion) -> None:
    """A summary of an older version that refers to no memory."""
    _rewritten(discussion, "before", hash="")
    for name in ("summary_versions.json", "condensation_tracker.json"):
        (Path(discussion.folder.folder) / name).unlink()


def _written_by_a_node(discussion: Discussion) -> None:
    with request_scope(discussion._request(ALL)):
        MemoryStore(discussion.folder).save_summary("by a node", "", pinned=True)


P4, EDITED = of("m30-m39"), chat("m0-m4", "x", "m6-m42")
X1 = of("m0-m4", "x", "m6-m9")


@table(
    ("change", "shown", "later", "edited", "folds"),
    [
        # What is shown after the change and after ten more messages, what is made of an edit, and with how many calls.
        (lambda discussion: None, [P1, P2, P3], [P1, P2, P3, P4], [X1, P2, P3, P4], 3),
        (_removed, [], [P1, P2, P3, P4], [X1, P2, P3, P4], 4),
        (lambda discussion: _rewritten(discussion, "mine"), ["mine"], ["mine", P4], ["mine", X1, P4], 2),
        (_restored, [P1, P2], [P1, P2, P4], [P1, P2, X1, P4], 2),
        (_written_by_a_node, ["by a node"], ["by a node", P4], ["by a node", X1, P4], 2),
        # As with followEdits off, all are folded in, as none is known to be; and an edit ends it.
        (_of_before, ["before"], ["before", P1, P2, P3, P4], [X1, P2, P3, P4], 4),
    ],
)
def test_summaries_of_a_user(
    discussion: Discussion,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Discussion], None],
    shown: list[str],
    later: list[str],
    edited: list[str],
    folds: int,
) -> None:
    discussion = Discussion(monkeypatch)
    summed_up(discussion)
    change(discussion)
    assert discussion.summary(ALL) == shown
    longer = chat("m0-m42")
    discussion.send(longer)
    assert discussion.sum_up(longer) == later
    discussion.send(EDITED)
    assert discussion.sum_up(EDITED) == edited
    assert len(discussion.folded) == folds
    assert discussion.sum_up(longer) == later
    assert len(discussion.folded) == folds


def test_a_summary_without_markers_ends_with_an_edit(discussion: Discussion, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LLM is asked once, with what the node's other texts say; nothing can be added to its answer."""
    texts = iter(["first", "second", "third"])
    monkeypatch.setattr(ChatSummarizer, "_has_markers", lambda summarizer: False)
    monkeypatch.setattr(ChatSummarizer, "_ask", lambda summarizer, markers: next(texts))
    begun(discussion)
    assert discussion.sum_up(ALL) == ["first"]
    edited = chat("m0-m4", "x", "m6-m36")
    assert discussion.summary(edited) == [P2, P3]
    discussion.send(edited)
    assert discussion.sum_up(edited) == ["second"] and discussion.summary(edited) == ["second"]
    discussion.send(ALL)
    assert discussion.sum_up(ALL) == ["first"] and discussion.sum_up(edited) == ["second"]


def test_a_corrected_memory_corrects_what_is_made_of_it(
    discussion: Discussion, kind: type[Discussion], monkeypatch: pytest.MonkeyPatch
) -> None:
    discussion = kind(monkeypatch)
    summed_up(discussion) if kind is Discussion else begun(discussion)
    with request_scope(discussion._request([])):
        discussion.correct(1, "<corrected>")
    # The version before, and what is known of the rest; then it is made again.
    assert discussion.shown(ALL) == [P1, "<corrected>", P3]
    discussion.send(ALL)
    discussion.sum_up(ALL)
    assert discussion.summary(ALL) == [P1, "<corrected>", P3]
    # A branch and back.
    branch = chat("m0-m12", "n0-n9")
    discussion.send(branch)
    discussion.sum_up(branch)
    discussion.folded.clear()
    discussion.send(ALL)
    discussion.sum_up(ALL)
    assert discussion.summary(ALL) == [P1, "<corrected>", P3] and discussion.folded == []


# -- whatever users do -------------------------------------------------------------------------------------------------


@table(("repeated", "room"), [(0.0, 0), (0.4, 0), (0.4, 100_000)])
def test_whatever_a_user_does_memories_follow(
    discussion: Discussion, kind: type[Discussion], monkeypatch: pytest.MonkeyPatch, repeated: float, room: int
) -> None:
    for seed in range(amount(1, 12)):
        discussion = kind(monkeypatch, maxMessagesBetweenChunks=5)
        discussion.room = room
        user = Chat(
            random.Random(seed), repeated, greeting="Good evening, traveller. What brings you to the mill?", shortest=14
        )
        for step in range(40):
            operation = user.anything()
            texts = [text for _, text in user.messages]
            where = f"seed {seed}, step {step}, {operation}"
            assert not _strangers(discussion.summary(user.messages), texts), where
            before = discussion.send(user.messages)
            assert not _strangers(before, texts), where
            after = discussion.shown(user.messages)
            told = _told(after)
            assert not _strangers(after, texts), where
            unique = [text for text in told if texts.count(text) == 1]
            assert len(unique) == len(set(unique)), where
            last = max((texts.index(text) for text in unique), default=-1)
            missing = [text for text in texts[: last + 1][: len(texts) - 3] if text not in told]
            assert not missing, where
            discussion.sum_up(user.messages)
            assert _told(discussion.summary(user.messages)) == told, where
        assert len(discussion.asked) == len(set(discussion.asked)), seed
        assert len(discussion.folded) == len(set(discussion.folded)), seed


def _told(shown: list[str]) -> list[str]:
    return [text for one in shown for text in re.sub("^<|>$", "", one).split(" / ")]


def _strangers(shown: list[str], texts: list[str]) -> list[str]:
    return [text for text in _told(shown) if text not in texts]


# -- searchable memories -----------------------------------------------------------------------------------------------


def searchable(monkeypatch: pytest.MonkeyPatch, key: bytes | None = None, **settings: Any) -> Searchable:
    found = Searchable(monkeypatch, key, **settings)
    begun(found)
    return found


CHANGED = chat("m0-m4", "x", "m6-m36")
P1_EDITED = of("m0-m4", "x", "m6-m9")


@table(
    ("answers", "calls"),
    [
        # Of a changed chunk; how often it is asked for in as many requests.
        (["[]"] * 5, 1),
        (["no JSON"] * 5, 3),
        (["", "no JSON", "{", "[]"], 3),
        (["no JSON", "[]", "never asked"], 2),
    ],
)
def test_a_chunk_without_memories_is_left_alone(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch, answers: list[str], calls: int
) -> None:
    discussion = searchable(monkeypatch)
    left = iter(answers)
    monkeypatch.setattr(discussion, "ask", lambda system, prompt, markers: discussion.asked.append("") or next(left))
    for count, _ in enumerate(answers):
        discussion.send(chat("m0-m4", "x", f"m6-m{36 + count % 2}"))
    assert len(discussion.asked) == calls
    assert discussion.shown(CHANGED) == [P2, P3]
    # Its messages are no hole, and what was made of them before comes back.
    assert discussion.shown(ALL) == [P1, P2, P3]
    monkeypatch.undo()


def test_memories_from_before_are_always_shown_and_not_made_again(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch
) -> None:
    discussion = Searchable(monkeypatch, followEdits=False)
    for count in (13, 23):
        discussion.send(ALL[:count])
    with discussion.folder.memories() as memories:
        assert not memories.has_chunks
    discussion.set()
    discussion.asked.clear()
    newer = of("m20-m32")
    for said in (ALL, CHANGED, chat("m0-m36")):
        discussion.send(said)
        assert discussion.shown(said) == [P1, P2, newer]
    assert len(discussion.asked) == 1
    # What is newer follows, and what is older stays.
    edited = chat("m0-m4", "x", "m6-m24", "y", "m26-m36")
    discussion.send(edited)
    newer = of("m20-m24", "y", "m26-m33")
    assert discussion.shown(edited) == [P1, P2, newer]
    # Switched off, the newest trail is shown, and what was made is not made again.
    discussion.set(followEdits=False)
    discussion.asked.clear()
    for _ in range(2):
        discussion.send(edited)
    assert sorted(discussion.shown(edited)) == sorted([P1, P2, newer])
    assert discussion.asked == []


@table("followed", [0, 23, 43, 120])
@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.kind)
def test_memories_from_before_are_no_sign_of_a_client_that_rewrites_everything(
    discussion: Discussion,
    kind: type[Discussion],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    followed: int,
) -> None:
    discussion = kind(monkeypatch)
    for count in range(3, followed + 1, 10):
        discussion.send(chat(f"m0-m{count}"))
    discussion.set(followEdits=False)
    for count in range(followed, 200, 10):
        discussion.send(chat(f"m0-m{count}"))
    discussion.set()
    for count in range(200, 270, 2):
        discussion.send(chat(f"m0-m{count}"))
    assert "other texts" not in caplog.text
    assert any("m255" in text for text in discussion.shown(chat("m0-m270")))
    # What followed edits before does so again.
    if followed >= 43:
        discussion.send(chat("m0-m4", "x", "m6-m270"))
        shown = discussion.shown(chat("m0-m4", "x", "m6-m270"))
        assert sum("m4 / x / m6" in text for text in shown) == 1 and not any("m5 " in text for text in shown)


def test_a_repaired_chunk_is_not_the_newest_for_those_that_do_not_follow(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch
) -> None:
    discussion = searchable(monkeypatch)
    discussion.send(CHANGED)
    discussion.set(followEdits=False)
    discussion.asked.clear()
    discussion.send(CHANGED)
    assert discussion.asked == []
    discussion.send(chat("m0-m4", "x", "m6-m49"))
    assert [text.replace("\n", " / ") for text in discussion.asked] == [of("m30-m46").strip("<>")]


@table("kept", [0, 1, 2, 500])
def test_chunks_elsewhere_are_dropped_oldest_first(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    discussion = searchable(monkeypatch, keepElsewhere=kept)
    versions = [chat("m0-m4", f"x{number}", "m6-m36") for number in range(4)]
    for said in versions:
        discussion.send(said)
        assert discussion.shown(said) == [of("m0-m4", said[5][1], "m6-m9"), P2, P3]
    assert len(discussion.asked) == 4
    with discussion.folder.memories() as memories:
        assert len(memories.chunks()) == 3 + min(kept, 4) == memories.counts()["memories"]
        assert memories.counts()["hashes"] == 3 + min(kept, 4)
    discussion.asked.clear()
    discussion.send(versions[2])
    assert len(discussion.asked) == (0 if kept else 1)
    assert discussion.shown(versions[2]) == [of("m0-m4", "x2", "m6-m9"), P2, P3]


def test_a_search_fills_its_limit_from_the_path(discussion: Discussion, monkeypatch: pytest.MonkeyPatch) -> None:
    discussion = Searchable(monkeypatch, chunkEstimatedTokenSize=8)
    gone, there = chat("m0-m3", "n0-n99"), chat("m0-m3", "o0-o21")
    for said in (gone[:40], gone, there):
        discussion.send(said)
    search = VectorSearch("n1;everything;n2;n3", limit=5)
    with request_scope(discussion._request(there)):
        found = search_memories_fully(discussion.folder, search).split(SEPARATOR)
    assert len(found) == 5 and not any("n" in text for text in found)


def test_searchable_memories_are_encrypted(discussion: Discussion, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = searchable(monkeypatch)
    keys = {key for piece in plain._chunks() for key in piece.sources}
    hidden = searchable(monkeypatch, derive_encryption_key("secret", "ann"))
    for said in (CHANGED, ALL, CHANGED):
        hidden.send(said)
        assert hidden.shown(said) == [P1 if said == ALL else P1_EDITED, P2, P3]
    assert len(hidden.asked) == 1
    assert len(keys) == 30 and not [key for key in keys if key in _stored_sources(hidden)]
    # The same discussion in clear has them.
    assert all(key in _stored_sources(plain) for key in keys)


def _stored_sources(discussion: Discussion) -> str:
    with closing(sqlite3.connect(Path(discussion.folder.folder) / "vector_memory.db")) as database:
        return repr(database.execute("SELECT * FROM vector_memory_sources").fetchall())


def test_encryption_that_is_switched_on_changes_no_trail(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch
) -> None:
    discussion = searchable(monkeypatch)
    discussion.send(CHANGED)
    path, key = Path(discussion.folder.folder) / "vector_memory.db", derive_encryption_key("secret", "ann")
    for cipher in (cipher_for(key), cipher_for(derive_encryption_key("other", "ann")), NO_CIPHER):
        with VectorMemories(str(path), "x", write=True, cipher=discussion.folder.cipher) as memories:
            memories.change_cipher(cipher)
        discussion.folder = DiscussionFolder(discussion.folder.discussion_id, None, None)
        monkeypatch.setattr(DiscussionFolder, "cipher", cipher)
        (path.parent / "follow.json").unlink(missing_ok=True)
        assert discussion.shown(CHANGED) == [P1_EDITED, P2, P3]
        assert discussion.shown(ALL) == [P1, P2, P3]
    monkeypatch.undo()


@table("content", ["[1]", "{", '{"conversations": [{"number": 4, "active": {"searchable": ["7", 3, ""]}}]}', ""])
def test_a_damaged_state_costs_no_searchable_memory(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    discussion = searchable(monkeypatch)
    (Path(discussion.folder.folder) / "follow.json").write_text(content, encoding="utf-8")
    assert sorted(discussion.stored()) == sorted([P1, P2, P3])
    assert discussion.send(ALL) == [P1, P2, P3]
    assert discussion.send(CHANGED) == [P2, P3]


def test_a_killed_pass_loses_and_doubles_nothing(discussion: Discussion, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was stored when a pass ended, the next one makes the rest."""
    places = [
        (vector_memories.ChunkWriter, "_settle"),
        (chunks.FollowedChunks, "_store"),
        (pieces, "write_follow_state"),
        (VectorMemories, "_insert_chunk"),
        (VectorMemories, "_change_chunks"),
    ]
    for owner, name in places:
        found = searchable(monkeypatch)
        two_edits = chat("m0-m4", "x", "m6-m24", "y", "m26-m37")

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, killed)
            found.send(two_edits)
        for _ in range(2):
            found.send(two_edits)
        assert found.shown(two_edits) == [P1_EDITED, P2, of("m20-m24", "y", "m26-m34")], name
        assert found.shown(ALL) == [P1, P2, P3], name
        assert len(found.asked) <= 3, name


def test_both_kinds_in_one_discussion_keep_to_one_conversation(
    discussion: Discussion, monkeypatch: pytest.MonkeyPatch
) -> None:
    searchable_ones = Searchable(monkeypatch)
    files = Discussion(monkeypatch)
    files.folder = searchable_ones.folder
    monkeypatch.setattr(vector_memories, "MemoryCall", searchable_ones._call)
    for said in (*(ALL[:count] for count in (3, 13, 23, 36)), CHANGED, chat("m0-m36"), CHANGED):
        for one in (files, searchable_ones):
            one.set()
            one.send(said)
    for one in (files, searchable_ones):
        assert one.shown(CHANGED)[0] == P1_EDITED and one.shown(ALL)[:2] == [P1, P2]
    (conversation,) = read_follow_state(files.folder).conversations
    assert {kind: len(names) for kind, names in conversation.active.items()} == {"file": 3, "searchable": 3}
