"""A compactor that follows edits: every message is in exactly one place, and nothing is made twice."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import BackendResponseError, EarlyTerminationException, GateTimeoutError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.compactor_store import BLOCKS_FILE
from Middleware.utilities.config import users
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.discussion_state import COMPACTOR
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Middleware.utilities.text_utils import tagged_text
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import context_compaction
from Middleware.workflows.tools.memory.context_compaction import OLD_TAG, OLDEST_TAG, ContextCompaction, cut_sections
from Middleware.workflows.tools.memory.following_compaction import MOST_CALLS, FollowingCompaction
from Tests.amounts import amount
from Tests.tables import table
from Tests.utilities.conversations.simulated_chat import Chat, Said

SETTINGS = {
    "endpointName": "Main",
    "recentContextTokens": 80,
    "oldContextTokens": 80,
    "lookbackStartTurn": 3,
    "oldSectionPrompt": "old|[MESSAGES_TO_SUMMARIZE]",
    "neutralSummaryPrompt": "block|[MESSAGES_TO_SUMMARIZE]",
    "oldestUpdatePrompt": "fold|[EXISTING_SUMMARY]\n[NEW_CONTENT]",
    "followEdits": True,
}


GREETING = "Good evening, traveller. What brings you to the mill?"


class Compactor:
    """A discussion whose model answers with all the messages that it is to sum up.

    Attributes:
        asked: the prompts, in order.
        fails: kinds of calls that get no answer.
        failure: what happens to these, and to prompts of more than ``longest`` characters.
    """

    numbers = itertools.count()

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: bytes | None = None, **settings: Any) -> None:
        self.folder = DiscussionFolder(f"c{next(Compactor.numbers)}", "0123456789abcdef" if key else None, key)
        self.asked: list[str] = []
        self.fails: set[str] = set()
        self.failure: BaseException = BackendResponseError("down")
        self.longest = 1_000_000
        self.raw = {**SETTINGS, **settings}
        monkeypatch.setattr(context_compaction, "MemoryCall", lambda *_, **__: self)

    @property
    def settings(self) -> CompactorSettings:
        return read_settings(CompactorSettings, self.raw, "test")

    def ask_as_written(self, system_prompt: str, prompt: str, markers: dict[str, str]) -> str:
        for marker, text in markers.items():
            prompt = prompt.replace(marker, text)
        self.asked.append(prompt)
        kind, _, text = prompt.partition("|")
        if kind in self.fails or len(prompt) > self.longest:
            raise self.failure
        return " / ".join(_messages(text))

    def compact(self, said: list[Said]) -> tuple[list[str], list[str]]:
        """A request: the messages of Old and of Oldest."""
        request = RequestContext(history=[{"role": role, "content": text} for role, text in said])
        with request_scope(request):
            context = ExecutionContext(
                "r", "w", self.folder.discussion_id, {}, list(request.history), False, request=request
            )
            kind = FollowingCompaction if self.settings.follow_edits else ContextCompaction
            found = kind(context, self.settings, self.folder).run()
        return _messages(tagged_text(found, OLD_TAG)), _messages(tagged_text(found, OLDEST_TAG))

    def grow(self, said: list[Said]) -> None:
        for count in range(1, len(said) + 1, 2):
            self.compact(said[:count])
        self.compact(said)
        self.asked.clear()

    @property
    def calls(self) -> list[str]:
        return [prompt.partition("|")[0] for prompt in self.asked]

    def recent(self, said: list[Said]) -> list[str]:
        """The messages that the compactor leaves to the node that answers."""
        settings = self.settings
        messages: Any = [{"role": role, "content": text} for role, text in said]
        cut = cut_sections(messages, settings.lookback, settings.recent_budget, settings.old_budget)
        return [text for role, text in said[cut.recent :] if role != "system"]


def _messages(shown: str) -> list[str]:
    """The messages in a text, with or without their roles."""
    return [re.sub("^(user|assistant): ", "", text) for text in re.split(r" / |\n+", shown) if text]


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(users, "get_discussions_root_directory", lambda: str(tmp_path))


def chat(*names: str) -> list[Said]:
    """``m0-m9`` are ten messages; a block has five."""
    found: list[str] = []
    for name in names:
        first, _, last = name.partition("-")
        found += [f"{first[0]}{number}" for number in range(int(first[1:]), int(last[1:]) + 1)] if last else [name]
    texts = [f"{name} of the chat about the mill by the old river" for name in found]
    return [(("user", "assistant")[index % 2], text) for index, text in enumerate(texts)]


B1, B2, B3 = (chat(name) for name in ("m0-m4", "m5-m9", "m10-m14"))
ALL = chat("m0-m30")


def texts(*parts: list[Said]) -> list[str]:
    return [text for said in parts for _, text in said]


@pytest.fixture
def compactor(monkeypatch: pytest.MonkeyPatch) -> Compactor:
    return Compactor(monkeypatch)


def test_a_chat_that_grows(compactor: Compactor) -> None:
    found = [(compactor.compact(ALL[:count]), len(compactor.asked)) for count in (8, 9, 17, 18, 22, 23)]
    assert found == [
        (([], []), 0),
        ((texts(ALL[:1]), []), 1),
        # What has left Old without filling a block stays there.
        ((texts(ALL[:9]), []), 2),
        ((texts(ALL[5:10]), texts(B1)), 5),
        ((texts(ALL[5:14]), texts(B1)), 6),
        ((texts(ALL[10:15]), texts(B1, B2)), 9),
    ]
    assert compactor.calls == ["old", "old", *["old", "block", "fold"], "old", *["old", "block", "fold"]]
    assert compactor.asked[-1] == "fold|\n" + " / ".join(texts(B1)) + "\n\n" + " / ".join(texts(B2))


def stamped(said: list[Said]) -> list[Said]:
    return [(role, f"[2026-11-29 1{index % 10}:00] {text}") for index, (role, text) in enumerate(said)]


def named(said: list[Said]) -> list[Said]:
    return [(role, f"{role.title()} Smith: {text}") for role, text in said]


@table(
    ("steps", "oldest", "calls"),
    [
        # Histories in order; the Oldest that a request with the last one shows at once, and the calls.
        ([chat("m0-m4", "x5", "m6-m30")], [B1, chat("x5", "m6-m9"), B3], "block fold"),  # 1
        ([chat("x0", "m1-m30")], [chat("x0", "m1-m4"), B2, B3], "block fold"),
        ([chat("m0-m4", "x5", "m6-m30"), ALL], [B1, B2, B3], "block fold"),  # 2
        ([chat("m0-m8", "x9", "m10-m30")], [B1, chat("m5-m8", "x9"), B3], "block fold"),  # 3
        ([chat("m0-m4", "m6-m31")], [B1, chat("m6-m9"), B3], "old block fold"),  # 4
        ([chat("m0-m4", "m7-m30")], [B1, chat("m7-m9"), B3], "block fold"),
        ([chat("m0-m3", "m12-m38")], [chat("m0-m3", "m12"), chat("m13-m17")], "old block block"),  # 5
        ([chat("m0-m14", "n0-n2"), chat("m0-m14", "n0-n15")], [B1, B2, B3], "old old"),  # 6
        ([chat("m0-m14", "n0-n2"), ALL], [B1, B2, B3], "old"),
        ([chat("m0-m29", name) for name in ("a1", "b1", "c1", "d1", "e1")], [B1, B2, B3], ""),  # 7, 8
        ([chat("m0-m29", "the first half 1"), chat("m0-m29", "the whole 1")], [B1, B2, B3], ""),  # 15
        ([chat("m0-m12", f"n0-n{count}") for count in (2, 6, 10)], [B1, B2], "old old old"),  # 9
        ([chat("m0-m12", "n0-n16")], [B1, B2, chat("m10-m12", "n0-n1")], "old block fold"),
        (
            [chat("m0-m12", "n0-n16"), ALL, chat("m0-m12", "n0-n16")],
            [B1, B2, chat("m10-m12", "n0-n1")],
            "old block fold",
        ),
        ([chat("m0-m12", "n0-n16"), ALL], [B1, B2, B3], "old block fold"),
        ([[("system", "other"), *ALL]], [B1, B2, B3], ""),  # 16
        ([chat("m13-m30")], [B1, B2, B3], ""),  # 27
        ([chat("m3-m30")], [B1, B2, B3], ""),
        ([chat("m20-m30"), chat("m22-m32")], [B1, B2, B3], "old old"),
        ([chat("m0", "m13-m30"), chat("m0", "m13-m32")], [B1, B2, B3, chat("m15-m19")], "old block fold"),  # 32
        ([chat("m0", "m20-m30")], [B1, B2, B3], "old"),
        ([chat("m13-m30"), ALL], [B1, B2, B3], ""),  # 28
        ([chat("m20-m30"), ALL], [B1, B2, B3], "old"),
        ([chat("m13-m17", "x18", "m19-m30"), ALL], [B1, B2, B3], "old"),  # 29
        ([chat("m13-m30"), chat("m13", "x14", "m15-m31")], [B1, B2, chat("m13", "x14", "m15-m17")], "old block fold"),
        ([chat("m10-m30"), chat("m10", "x11", "m12-m30")], [B1, B2, chat("m10", "x11", "m12-m14")], "block fold"),
        ([ALL[:28]], [B1, B2, B3], "old"),  # 35
    ],
)
def test_what_is_shown_after_a_change(
    monkeypatch: pytest.MonkeyPatch, steps: list[list[Said]], oldest: list[list[Said]], calls: str
) -> None:
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    for said in steps:
        found = compactor.compact(said)
    assert found[1] == texts(*oldest)
    assert compactor.calls == calls.split()


@table("changed", [stamped, named, lambda said: stamped(named(said))])
def test_names_and_dates_change_nothing(monkeypatch: pytest.MonkeyPatch, changed: Any) -> None:
    """19 to 22: with names, a chat of one with one is like that of a group."""
    # The estimates grow with the names and dates, so the sections have to be larger than they are.
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    before = compactor.compact(ALL)
    compactor.raw |= {"recentContextTokens": 10_000, "oldContextTokens": 80}
    assert compactor.compact(ALL)[1] == []
    assert compactor.compact(changed(ALL)) == ([], [])
    assert before[1] == texts(B1, B2, B3) and compactor.asked == []


def test_a_long_history_is_caught_up_with_and_never_has_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    said = chat("m0-m99")
    compactor = Compactor(monkeypatch)
    for count in range(20):  # noqa: B007
        before = len(compactor.asked)
        old, oldest = compactor.compact(said)
        assert [*oldest, *old, *compactor.recent(said)] == texts(said)
        assert len(compactor.asked) - before <= MOST_CALLS
        if len(compactor.asked) == before:
            break
    # Seventeen blocks, two for each request, of which the first twelve are folded for themselves.
    assert count == 10 and [compactor.calls.count(kind) for kind in ("block", "fold")] == [17, 2]
    assert len(set(compactor.asked)) == len(compactor.asked)
    compactor.asked.clear()
    edited = [*said[:7], ("assistant", "x7 of the chat"), *said[8:]]
    for _ in range(2):
        assert compactor.compact(edited)[1] == texts(edited[:85])
    assert compactor.calls == ["block", "fold", "fold"]
    assert [compactor.compact(one)[1] for one in (said, edited)] == [texts(said[:85]), texts(edited[:85])]
    assert len(compactor.asked) == 3


def test_a_model_that_takes_no_more_than_usual_gets_no_more(compactor: Compactor) -> None:
    said = chat("m0-m59")
    compactor.longest = 500
    for _ in range(9):
        old, oldest = compactor.compact(said)
        assert old[-7:] == texts(said[45:52])
    assert [*oldest, *old] == texts(said[:52])


@table("failing", ["old", "block", "fold"])
def test_without_an_answer_nothing_false_is_shown(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    edited = chat("m0-m4", "x5", "m6-m20", "x21", "m22-m30")
    compactor.fails = {failing}
    old, oldest = compactor.compact(edited)
    # Of Old, the summary that ends before the edit.
    assert old == texts(chat("m15-m20") if failing == "old" else edited[15:23])
    assert oldest == texts(edited[:15])
    assert compactor.calls == {"old": ["old"], "block": ["old", "block"], "fold": ["old", "block", "fold"]}[failing]
    compactor.fails = set()
    assert compactor.compact(edited) == (texts(edited[15:23]), texts(edited[:15]))


def test_while_another_request_works_only_what_is_true_is_shown(compactor: Compactor) -> None:
    compactor.grow(ALL)
    edited = chat("m0-m4", "x5", "m6-m20", "x21", "m22-m30")
    with compactor.folder.lock(COMPACTOR):
        assert compactor.compact(edited) == (texts(chat("m15-m20")), texts(edited[:15]))
        assert compactor.compact(ALL) == (texts(ALL[15:23]), texts(ALL[:15]))
    assert compactor.asked == []


def test_a_swipe_writes_nothing(compactor: Compactor) -> None:
    compactor.grow(ALL)
    folder = Path(compactor.folder.folder)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.json")}
    for name in ("a1", "b1", "c1"):
        compactor.compact(chat("m0-m29", name))
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("*.json")}
    assert len(before) == 4 and compactor.asked == []


def test_switched_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made without following counts as a block, and what follows goes on without it."""
    compactor = Compactor(monkeypatch)
    compactor.raw["followEdits"] = False
    compactor.grow(ALL)
    without = compactor.compact(ALL)
    compactor.raw["followEdits"] = True
    assert compactor.compact(ALL) == without
    # Nothing but what the shorter Old costs.
    assert set(compactor.calls) <= {"old"}
    more = chat("m0-m36")
    old, oldest = compactor.compact(more)
    assert [*oldest, *old, *compactor.recent(more)] == texts(more)
    compactor.asked.clear()
    compactor.raw["followEdits"] = False
    assert compactor.compact(more)[1][: len(oldest)] == oldest
    edited = chat("m0-m4", "x5", "m6-m36")
    compactor.raw["followEdits"] = True
    old, oldest = compactor.compact(edited)
    assert [*oldest, *old, *compactor.recent(edited)] == texts(edited)


def test_blocks_of_another_chat_with_the_same_id_are_not_shown(compactor: Compactor) -> None:
    compactor.grow(ALL)
    other = [ALL[0], *chat("n0-n40")]
    compactor.grow(other)
    old, oldest = compactor.compact(other)
    assert [*oldest, *old, *compactor.recent(other)] == texts(other)
    # Back, and back again: without a call.
    compactor.asked.clear()
    assert compactor.compact(ALL)[1] == texts(ALL[:15])
    assert compactor.compact(other) == (old, oldest)
    assert compactor.asked == []


@table("message", ["Write a title for this chat.", "### Task: " + "word " * 400])
def test_a_single_question_writes_nothing(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    path = Path(compactor.folder.folder) / BLOCKS_FILE
    before = path.read_bytes()
    assert compactor.compact([("user", message)]) == compactor.compact([("user", message), ("assistant", "T")])
    assert path.read_bytes() == before and compactor.asked == []


@table("content", ["[1]", "{", '{"blocks": 3}', '{"blocks": [{"text_block": 1}]}'])
def test_a_damaged_file_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    path = Path(compactor.folder.folder) / BLOCKS_FILE
    path.write_text(content, encoding="utf-8")
    assert compactor.compact(ALL) == ([], [])
    assert path.read_text("utf-8") == content and compactor.asked == []


@table("change", [{"old": [1, {}]}, {"oldest": "x"}, {"conversations": [3]}, {"conversations": []}])
def test_a_damaged_entry_costs_no_block(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    path = Path(compactor.folder.folder) / BLOCKS_FILE
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), encoding="utf-8")
    assert compactor.compact(ALL) == (texts(ALL[15:23]), texts(ALL[:15]))
    assert "block" not in compactor.calls


def test_everything_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    compactor = Compactor(monkeypatch, derive_encryption_key("secret", "ann"))
    compactor.grow(ALL)
    assert compactor.compact(chat("m0-m4", "canary", "m6-m30"))[1] == texts(chat("m0-m4", "canary", "m6-m14"))
    assert compactor.compact(ALL) == (texts(ALL[15:23]), texts(ALL[:15]))
    assert compactor.calls == ["block", "fold"]
    found = {path.name: path.read_bytes() for path in Path(compactor.folder.folder).glob("*.json")}
    assert BLOCKS_FILE in found
    assert not [name for name, content in found.items() if b"mill" in content or b"sources" in content]


@table("failure", [KeyboardInterrupt(), GateTimeoutError("busy"), EarlyTerminationException("gone")])
def test_a_run_that_is_ended_has_made_nothing_twice(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    compactor = Compactor(monkeypatch)
    compactor.grow(ALL)
    edited = chat("m0-m4", "x5", "m6-m30")
    compactor.fails = {"fold"}
    compactor.failure = failure
    with pytest.raises(type(failure)):
        compactor.compact(edited)
    compactor.fails = set()
    assert compactor.compact(edited)[1] == texts(edited[:15])
    assert compactor.calls == ["block", "fold", "fold"]


# -- whatever users do -------------------------------------------------------------------------------------------------


class Ordered(Chat):
    """A user who puts no message into a block, or back into one: such a message stands behind the block."""

    insert = exchange = delete = Chat.say


@table(
    ("repeated", "inserts", "settings"),
    [
        (0.0, False, {}),
        (0.0, True, {}),
        (0.4, True, {}),
        (0.0, False, {"oldSectionPrompt": "old|[MESSAGES_TO_SUMMARIZE]\n[RECENT_MESSAGES]", "lookbackStartTurn": 0}),
        # Blocks of a message or two: more than twelve of them.
        (0.1, False, {"recentContextTokens": 20, "oldContextTokens": 20}),
    ],
)
def test_whatever_a_user_does_summaries_follow(
    monkeypatch: pytest.MonkeyPatch, repeated: float, inserts: bool, settings: dict[str, Any]
) -> None:
    for seed in range(amount(1, 12)):
        one = Compactor(monkeypatch, **settings)
        user = (Chat if inserts else Ordered)(random.Random(seed), repeated, greeting=GREETING, shortest=14)
        for step in range(40):
            before = len(one.asked)
            operation = user.anything()
            texts = [text for _, text in user.messages]

            def in_order(found: list[str], texts: list[str] = texts) -> list[str]:
                once = [text for text in found if texts.count(text) == 1]
                return sorted(once) if inserts else once

            old, oldest = one.compact(user.messages)
            where = f"seed {seed}, step {step}, {operation}"
            assert len(one.asked) - before <= MOST_CALLS, where
            shown = [*oldest, *old, *one.recent(user.messages)]
            assert not [text for text in shown if text not in texts], where
            # A conversation that has just begun writes nothing; what the model of Old sees of Recent is there twice.
            if len(texts) > 3 and "RECENT" not in settings.get("oldSectionPrompt", ""):
                assert in_order(shown) == in_order(texts), where
            before = len(one.asked)
            again = one.compact(user.messages)
            assert again == (old, oldest) or len(one.asked) > before, where
        assert len(one.asked) == len(set(one.asked)), seed
