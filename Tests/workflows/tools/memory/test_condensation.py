"""Joining older memories into one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import unsummarized
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool
from Tests.stub_backend import Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import last_text
from Tests.workflows.tools.memory.memory_lab import MemoryLab, chat

LINE = "\n--------------\n"
NONE = "No preceding memories to show"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLab]:
    with StubBackend() as backend:
        yield MemoryLab(tmp_path, monkeypatch, backend)


def settings_of(**changes: Any) -> MemorySettings:
    found = {
        "endpointName": "Main",
        "condenseMemories": True,
        "memoriesBeforeCondensation": 3,
        "condenseMemoriesPrompt": "[MemoriesToCondense]",
        **changes,
    }
    return read_settings(MemorySettings, {key: value for key, value in found.items() if value is not ...}, "test")


def condense(lab: MemoryLab, discussion_id: str = "d1", **changes: Any) -> bool:
    with request_scope(lab.request):
        return SlowButQualityRAGTool().condense_memories(discussion_id, settings_of(**changes), lab.context(chat(3)))


def fill(lab: MemoryLab, count: int, tracker: str | None = None) -> None:
    """Memories ``k1`` ... with hashes ``h1`` ..."""
    lab.folder.create()
    lab.store.replace_memories([(f"k{number}", f"h{number}") for number in range(1, count + 1)])
    if tracker:
        lab.store.save_condensation_hash(tracker)


def kept(*numbers: int) -> list[tuple[str, str]]:
    return [(f"k{number}", f"h{number}") for number in numbers]


def summary_hash(lab: MemoryLab) -> str:
    summary = lab.store.summary()
    assert summary is not None and summary[0] == "the summary"
    return summary[1]


def test_waits_for_count_and_buffer(lab: MemoryLab) -> None:
    fill(lab, 6)
    assert not condense(lab, memoriesBeforeCondensation=4, memoryCondensationBuffer=3)
    assert lab.stored() == kept(1, 2, 3, 4, 5, 6) and lab.prompts == []
    fill(lab, 7)
    assert condense(lab, memoriesBeforeCondensation="4", memoryCondensationBuffer="3")
    assert lab.stored() == [(f"<{LINE.join(('k1', 'k2', 'k3', 'k4'))}>", "h4"), *kept(5, 6, 7)]
    assert lab.store.condensation_hash() == "h4"


def test_only_what_is_new_and_what_came_before(lab: MemoryLab) -> None:
    fill(lab, 8, "h4")
    before = "[Memories_Before_Memories_to_Condense]"
    assert condense(
        lab,
        condenseMemoriesSystemPrompt=f"S {before} [MemoriesToCondense] [TextChunk]",
        condenseMemoriesPrompt=f"{before}#[MemoriesToCondense]#[TextChunk]",
    )
    batch, preceding = LINE.join(("k5", "k6", "k7")), LINE.join(("k2", "k3", "k4"))
    assert [message["content"] for message in lab.backend.requests[0].json["messages"]] == [
        f"S {preceding} [MemoriesToCondense] {batch}",
        f"{preceding}#{batch}#{batch}",
    ]
    assert [stored for _, stored in lab.stored()] == ["h1", "h2", "h3", "h4", "h7", "h8"]
    assert lab.store.condensation_hash() == "h7"


def test_unknown_tracker(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    fill(lab, 8, "gone")
    assert condense(lab)
    assert [stored for _, stored in lab.stored()] == ["h3", "h4", "h5", "h6", "h7", "h8"]
    assert "all count as new" in caplog.text


def test_no_tracker_is_no_warning(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    fill(lab, 3)
    assert condense(lab) and "count as new" not in caplog.text


def test_first_of_equal_hashes_counts(lab: MemoryLab) -> None:
    lab.put("a", "b", "c", "a", "d")
    lab.store.save_condensation_hash(hash_content("a"))
    assert condense(lab)
    assert lab.stored() == [
        ("of a", hash_content("a")),
        (f"<of b{LINE}of c{LINE}of a>", hash_content("a")),
        ("of d", hash_content("d")),
    ]


def test_built_in_prompts(lab: MemoryLab) -> None:
    fill(lab, 4, "h1")
    assert condense(lab, condenseMemoriesPrompt=...)
    system, prompt = (message["content"] for message in lab.backend.requests[0].json["messages"])
    assert system and "[" not in system + prompt
    assert prompt.index("\nk1\n") < prompt.index(LINE.join(("k2", "k3", "k4")))


def test_memories_are_not_templates(lab: MemoryLab) -> None:
    lab.put("a", "b", texts=["{Discussion_Id} [TextChunk]", "x"])
    assert condense(lab, memoriesBeforeCondensation=2, condenseMemoriesPrompt="{Discussion_Id} [MemoriesToCondense]")
    assert lab.prompts == [f"d1 {{Discussion_Id}} [TextChunk]{LINE}x"]


def test_endpoint_preset_and_size(lab: MemoryLab) -> None:
    lab.endpoint("Other", {"presetSamplers": {"temperature": 0.1}}, lab.backend.url)
    fill(lab, 3)
    assert condense(
        lab,
        endpointName="Nowhere",
        preset="Nowhere",
        condenseMemoriesEndpointName="Other",
        condenseMemoriesPreset="Other",
        condenseMemoriesMaxResponseSizeInTokens=77,
    )
    body = lab.backend.requests[0].json
    assert body["max_tokens"] == 77 and body["temperature"] == 0.1


@pytest.mark.parametrize(("size", "sent"), [(..., 500), (123, 123)])
def test_size_without_a_key_of_its_own(lab: MemoryLab, size: Any, sent: int) -> None:
    fill(lab, 3)
    assert condense(lab, maxResponseSizeInTokens=size)
    assert lab.backend.requests[0].json["max_tokens"] == sent


@pytest.mark.parametrize("reply", [chat_reply(""), chat_reply(" \n"), status_reply(400)])
def test_without_an_answer_all_stays(lab: MemoryLab, reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    fill(lab, 3)
    lab.backend.responder = lambda request: reply
    assert not condense(lab)
    assert lab.stored() == kept(1, 2, 3) and lab.store.condensation_hash() is None
    assert "Discussion d1: memories stay uncondensed" in caplog.text and "k1" not in caplog.text


def test_cancelled(lab: MemoryLab) -> None:
    fill(lab, 3)

    def respond(request: Any) -> Reply:
        lab.request.cancel_scope.cancel()
        return chat_reply("late")

    lab.backend.responder = respond
    with pytest.raises(EarlyTerminationException):
        condense(lab)
    assert lab.stored() == kept(1, 2, 3)


@pytest.mark.parametrize("count", [..., 0, -1, "", "many"])
def test_count_is_required(lab: MemoryLab, count: Any, caplog: pytest.LogCaptureFixture) -> None:
    fill(lab, 3)
    assert not condense(lab, memoriesBeforeCondensation=count)
    assert lab.stored() == kept(1, 2, 3) and "memoriesBeforeCondensation" in caplog.text


def test_off(lab: MemoryLab) -> None:
    fill(lab, 9)
    assert not condense(lab, condenseMemories="false") and lab.prompts == []


def test_unknown_discussion_makes_no_folder(lab: MemoryLab) -> None:
    assert not condense(lab, "other") and not condense(lab, "")
    assert not (lab.root / "discussions").exists()


def test_does_not_wait(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    fill(lab, 3)
    with lab.folder.lock(MEMORIES):
        assert not condense(lab)
    assert lab.stored() == kept(1, 2, 3) and "another request is working" in caplog.text


def test_settings_may_be_a_mapping(lab: MemoryLab) -> None:
    fill(lab, 2)
    with request_scope(lab.request):
        assert SlowButQualityRAGTool().condense_memories(
            "d1",
            {"condenseMemories": True, "memoriesBeforeCondensation": 2, "endpointName": "Main"},
            lab.context(chat(3)),
        )


@pytest.mark.parametrize("name", ["condensation_tracker.json", "chat_summary.json", "memories.json"])
@pytest.mark.parametrize("content", ["{broken", '"x"'])
def test_nobody_is_asked_for_what_cannot_be_stored(
    lab: MemoryLab, name: str, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(lab, 3)
    path = lab.path.with_name(name)
    path.write_text(content, encoding="utf-8")
    assert not condense(lab)
    assert lab.prompts == [] and path.read_text("utf-8") == content
    assert len([record for record in caplog.records if name in record.getMessage()]) == 1


# -- edited meanwhile --------------------------------------------------------------------------------------------------

Pairs = list[tuple[str, str]]


def edited(lab: MemoryLab, change: Callable[[Pairs], Pairs]) -> bool:
    """Join k3 to k5 of eight memories; somebody makes ``change`` to the file while the LLM is at it."""

    def respond(request: Any) -> Reply:
        lab.store.replace_memories(change(lab.store.memories()))
        return chat_reply("one")

    fill(lab, 8, "h2")
    lab.store.save_summary("the summary", "h4")
    lab.backend.responder = respond
    return condense(lab)


@pytest.mark.parametrize(
    ("change", "after", "points_to"),
    [
        (lambda pairs: [*pairs, ("by hand", "")], [*kept(1, 2), ("one", "h5"), *kept(6, 7, 8), ("by hand", "")], "h2"),
        (
            lambda pairs: [("corrected", "h1"), *pairs[1:6], ("x", "y")],
            [("corrected", "h1"), *kept(2), ("one", "h5"), *kept(6), ("x", "y")],
            "h2",
        ),
    ],
)
def test_edits_around_the_batch_stay(
    lab: MemoryLab, change: Callable[[Pairs], Pairs], after: Pairs, points_to: str
) -> None:
    assert edited(lab, change)
    assert lab.stored() == after and lab.store.condensation_hash() == "h5" and summary_hash(lab) == points_to


@pytest.mark.parametrize(
    "change",
    [
        lambda pairs: [*pairs[:3], ("corrected", "h4"), *pairs[4:]],
        lambda pairs: [*pairs[:3], ("k4", "other"), *pairs[4:]],
        lambda pairs: [*pairs[:3], *pairs[4:]],
        lambda pairs: [*pairs[:3], ("between", "b"), *pairs[3:]],
        lambda pairs: [("new", "n"), *pairs],
        lambda pairs: pairs[1:],
        lambda pairs: [],
    ],
)
def test_an_edited_batch_is_left_alone(
    lab: MemoryLab, change: Callable[[Pairs], Pairs], caplog: pytest.LogCaptureFixture
) -> None:
    assert not edited(lab, change)
    assert lab.stored() == change(kept(*range(1, 9)))
    assert lab.store.condensation_hash() == "h2" and summary_hash(lab) == "h4"
    assert "d1: the memories to be joined were changed in the meantime" in caplog.text and "k4" not in caplog.text


def test_of_equal_batches_the_one_that_was_sent_goes(lab: MemoryLab) -> None:
    same = ["k", "k"]
    lab.put("x", *same, "y", *same, "z", texts=["x", *same, "y", *same, "z"])
    lab.store.save_condensation_hash(hash_content("y"))
    assert condense(lab, memoriesBeforeCondensation=2)
    assert [text for text, _ in lab.stored()] == ["x", *same, "y", f"<k{LINE}k>", "z"]


def test_the_log_tells_of_success(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "Middleware.workflows.tools")
    fill(lab, 3)
    assert condense(lab)
    assert [record.getMessage() for record in caplog.records] == ["Discussion d1: 3 memories joined into one"]
    assert not condense(lab) and len(caplog.records) == 1


def test_originals_are_kept_aside(lab: MemoryLab) -> None:
    fill(lab, 3)
    condense(lab)
    backup = json.loads(lab.path.with_name("memories.json.bak").read_text("utf-8"))
    assert [entry["text_block"] for entry in backup] == ["k1", "k2", "k3"]


# -- the summary -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "after"),
    [("h1", "h1"), ("h2", "h2"), ("h3", "h2"), ("h4", "h2"), ("h5", "h5"), ("h6", "h6"), ("gone", "gone")],
)
def test_summary_points_before_the_batch(lab: MemoryLab, at: str, after: str) -> None:
    fill(lab, 6, "h2")
    lab.store.save_summary("the summary", at)
    assert condense(lab)
    assert summary_hash(lab) == after


def test_summary_points_nowhere_before_the_first_batch(lab: MemoryLab) -> None:
    fill(lab, 3)
    lab.store.save_summary("the summary", "h1")
    assert condense(lab)
    assert summary_hash(lab) == ""


@pytest.mark.parametrize(
    ("place", "after", "left"),
    [
        (1, 1, ["k2", "<>", "k6", "k7"]),
        (2, 2, ["<>", "k6", "k7"]),
        (3, 2, ["<>", "k6", "k7"]),
        (4, 2, ["<>", "k6", "k7"]),
        (5, 3, ["k6", "k7"]),
        (6, 4, ["k7"]),
        (7, 5, []),
        (9, None, []),
    ],
)
def test_place_of_the_summary_among_equal_hashes(
    lab: MemoryLab, place: int, after: int | None, left: list[str]
) -> None:
    lab.folder.create()
    lab.store.replace_memories([("k1", "same"), ("k2", "start"), *[(f"k{n}", "same") for n in range(3, 8)]])
    lab.store.save_condensation_hash("start")
    lab.store.save_summary("the summary", "start" if place == 2 else "same", place)
    lab.backend.responder = lambda request: chat_reply("<>")
    assert condense(lab)
    assert [text for text, _ in lab.stored()] == ["k1", "k2", "<>", "k6", "k7"]
    assert lab.store.summary_position() == after and [text for text, _ in unsummarized(lab.store)] == left
    assert summary_hash(lab) == ("start" if place in (2, 3, 4) else "same")


def test_place_before_the_first_batch(lab: MemoryLab) -> None:
    lab.folder.create()
    lab.store.replace_memories([(f"k{number}", "same") for number in range(4)])
    lab.store.save_summary("the summary", "same", 2)
    lab.backend.responder = lambda request: chat_reply("<>")
    assert condense(lab)
    assert lab.stored() == [("<>", "same"), ("k3", "same")]
    assert summary_hash(lab) == "" and unsummarized(lab.store) == lab.stored()


@pytest.mark.parametrize("place", [1, 4, 5, 6, 7])
@pytest.mark.parametrize(
    "fails", ["save_condensation_hash", "save_summary_position", "save_summary", "replace_memories"]
)
def test_stopped_among_equal_hashes_nothing_is_lost(
    lab: MemoryLab, fails: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.folder.create()
    lab.store.replace_memories([("k1", "same"), ("k2", "start"), *[(f"k{n}", "same") for n in range(3, 8)]])
    lab.store.save_condensation_hash("start")
    lab.store.save_summary("the summary", "same", place)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, fails, fail)
        condense(lab)
    new = [text for text, _ in unsummarized(lab.store)]
    assert all(f"k{number}" in "".join(new) for number in range(place + 1, 8))


@pytest.mark.parametrize("fails", ["save_condensation_hash", "save_summary", "replace_memories"])
def test_stopped_between_the_files(
    lab: MemoryLab, fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every memory is still there, once, and the summary does not point behind one that it has not seen."""
    fill(lab, 6, "h2")
    lab.store.save_summary("the summary", "h4")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, fails, fail)
        assert not condense(lab)
    assert "No space left" in caplog.text
    assert lab.stored() == kept(1, 2, 3, 4, 5, 6)
    assert summary_hash(lab) in ("h4", "h2")
    lab.store.append_memory("k7", "h7")
    condense(lab)
    assert "".join(text.strip("<>").replace(LINE, "") for text, _ in lab.stored()) == "k1k2k3k4k5k6k7"


# -- after a pass ------------------------------------------------------------------------------------------------------


def test_after_a_pass(lab: MemoryLab) -> None:
    lab.settings(
        condenseMemories=True,
        memoriesBeforeCondensation=2,
        maxMessagesBetweenChunks=1,
        lookbackStartTurn=1,
        condenseMemoriesPrompt="[MemoriesToCondense]",
    )
    for count in (3, 4, 5):
        lab.remember(chat(count))
    assert lab.stored() == [(f"<<m0\nm1\nm2>{LINE}<m3>>", hash_content("m3"))]
    assert lab.store.condensation_hash() == hash_content("m3")


def test_history_that_is_new_here_is_not_condensed_at_once(lab: MemoryLab) -> None:
    lab.settings(condenseMemories=True, memoriesBeforeCondensation=2, chunkEstimatedTokenSize=2)
    lab.remember(chat(8))
    assert len(lab.stored()) == 5 and lab.store.condensation_hash() == hash_content("m4")


def test_tracker_follows_each_memory(lab: MemoryLab) -> None:
    lab.settings(condenseMemories=True, memoriesBeforeCondensation=2, chunkEstimatedTokenSize=2)
    lab.backend.responder = lambda request: chat_reply("" if last_text(request) == "m2" else "x")
    lab.remember(chat(8))
    assert len(lab.stored()) == 2 and lab.store.condensation_hash() == hash_content("m1")
