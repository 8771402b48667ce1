"""What is remembered of a conversation, as texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import MemoryService, summary_lag, unsummarized
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key
from Tests.llmapis.lab import Lab

KEY, KEY_HASH = derive_encryption_key("secret", "tester"), hash_api_key("secret")
DASHES = "\n------------\n"
service = MemoryService()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    return MemoryStore(DiscussionFolder("d1"))


def remember(store: MemoryStore, count: int, name: str = "c") -> None:
    for number in range(count):
        store.append_memory(f"{name}{number}", f"h{number}")


def chat(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"m{number}"} for number in range(count)]


# -- memories with an id -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (-1, ["c0", "c1", "c2", "c3", "c4"]),
        (-7, ["c0", "c1", "c2", "c3", "c4"]),
        (10, ["c0", "c1", "c2", "c3", "c4"]),
        (0, ["c2", "c3", "c4"]),
        (2, ["c3", "c4"]),
        (1, ["c4"]),
    ],
)
def test_recent_memories(store: MemoryStore, chunks: int, expected: list[str]) -> None:
    remember(store, 5)
    assert service.get_recent_memories(chat(9), "d1", 2, chunks, 1) == "--ChunkBreak--".join(expected)


@pytest.mark.parametrize("chunks", [-1, 0, 2])
def test_without_memories(store: MemoryStore, chunks: int) -> None:
    assert service.get_recent_memories(chat(9), "d1", 2, chunks) == "No memories have been generated yet"
    assert service.get_current_memories("d1") == ["There are not yet any memories"]
    assert service.get_chat_summary_memories(chat(9), "d1") == ""
    assert service.get_current_summary("d1") == "There is not yet a summary file"
    assert service.get_current_state_document("d1") == "No state document has been created yet"
    kept = [path for path in Path(store.state.folder).iterdir() if not path.name.startswith(".")]
    assert [(path.name, path.read_bytes()) for path in kept] == [("memories.json", b"[]")]


def test_current_texts(store: MemoryStore) -> None:
    remember(store, 2)
    store.save_summary("so far", "h0")
    store.save_state_document("# Now\n")
    assert service.get_current_memories("d1") == ["c0", "c1"]
    assert service.get_current_summary("d1") == "so far"
    assert service.get_current_state_document("d1") == "# Now\n"
    assert service.get_chat_summary_memories([], "d1") == "c1"


def test_a_blank_state_document_is_none(store: MemoryStore) -> None:
    store.save_state_document(" \n")
    assert service.get_current_state_document("d1") == "No state document has been created yet"


def test_without_id_there_is_nothing_stored() -> None:
    assert service.get_current_memories(None) == ["There are not yet any memories"]
    assert service.get_current_summary("") == "There is not yet a summary file"
    assert service.get_current_state_document(None) == "No state document has been created yet"
    assert service.get_latest_memory_chunks_with_hashes_since_last_summary(None) == []


def test_an_unreadable_file_counts_as_absent(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(store.state.create()) / "memories.json"
    path.write_text("[{", encoding="utf-8")
    assert service.get_recent_memories([], "d1") == "No memories have been generated yet"
    assert "d1/memories.json" in caplog.text and path.read_text(encoding="utf-8") == "[{"


def test_data_of_a_key(store: MemoryStore) -> None:
    own = MemoryStore(DiscussionFolder("d1", KEY_HASH, KEY))
    remember(own, 2, "private")
    own.save_summary("hush", "h0")
    keys: dict[str, Any] = {"encryption_key": KEY, "api_key_hash": KEY_HASH}
    assert service.get_recent_memories([], "d1", **keys) == "private0--ChunkBreak--private1"
    assert service.get_current_memories("d1", **keys) == ["private0", "private1"]
    assert service.get_chat_summary_memories([], "d1", **keys) == "private1"
    assert service.get_current_summary("d1", **keys) == "hush"
    assert service.get_current_memories("d1") == ["There are not yet any memories"]


def test_data_of_another_key(store: MemoryStore) -> None:
    remember(MemoryStore(DiscussionFolder("d1", KEY_HASH, KEY)), 1)
    with pytest.raises(DataKeyError):
        service.get_current_memories("d1", api_key_hash=KEY_HASH)


# -- the summary's place -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("summary", "count", "new"),
    [
        (None, 0, -1),
        ("h1", 0, -1),
        (None, 3, 3),
        ("h2", 3, 0),
        ("h1", 3, 1),
        ("h0", 3, 2),
        ("gone", 3, -1),
        ("", 3, -1),
    ],
)
def test_how_many_are_new(summary: str | None, count: int, new: int) -> None:
    memories = [(f"c{number}", f"h{number}") for number in range(count)]
    pairs = [] if summary is None else [("old", "h0"), ("text", summary)]  # the last entry counts
    assert service.find_how_many_new_memories_since_last_summary(pairs, memories) == new


def test_the_newest_of_equal_hashes_counts() -> None:
    memories = [("a", "same"), ("b", "x"), ("c", "same"), ("d", "y")]
    assert service.find_how_many_new_memories_since_last_summary([("s", "same")], memories) == 1


@pytest.mark.parametrize(
    ("summary", "expected"),
    [(None, ["c0", "c1", "c2"]), ("gone", ["c0", "c1", "c2"]), ("h0", ["c1", "c2"]), ("h2", [])],
)
def test_latest_memories(store: MemoryStore, summary: str | None, expected: list[str]) -> None:
    remember(store, 3)
    if summary:
        store.save_summary("text", summary)
    assert service.get_latest_memory_chunks_with_hashes_since_last_summary("d1") == [
        (text, f"h{text[1]}") for text in expected
    ]
    assert service.get_chat_summary_memories([], "d1", 5) == DASHES.join(expected)


EQUAL = [("A", "ok"), ("B", "m5"), ("C", "ok"), ("D", "m7")]


@pytest.mark.parametrize(
    ("count", "stored", "covered", "expected"),
    [
        (3, "ok", 1, "BC"),
        (3, "ok", 3, ""),
        (4, "ok", 1, "BCD"),
        (4, "ok", 3, "D"),
        (4, "m5", 2, "CD"),
        (3, "ok", None, ""),
        (4, "ok", None, "D"),  # a summary of before
        (3, "ok", 2, ""),
        (3, "ok", 4, ""),
        (3, "ok", 0, ""),
        (3, "ok", -2, ""),  # a number that does not fit
        (3, "gone", 1, "ABC"),
        (3, "", 1, "ABC"),
    ],
)
def test_memories_that_end_with_equal_messages(
    store: MemoryStore, count: int, stored: str, covered: int | None, expected: str
) -> None:
    for pair in EQUAL[:count]:
        store.append_memory(*pair)
    store.save_summary("text", stored, covered)
    assert "".join(text for text, _ in unsummarized(store)) == expected
    assert service.get_chat_summary_memories([], "d1") == DASHES.join(expected)
    assert summary_lag(store) == (-1 if stored not in ("ok", "m5") else len(expected))


# -- without an id -----------------------------------------------------------------------------------------------------

NOTHING = "There are no memories to grab yet"


@pytest.mark.parametrize(
    ("count", "turns", "lookback", "expected"),
    [
        (6, 3, 0, "m3\nm4"),
        (6, 3, 2, "m1\nm2"),
        (6, 1, 0, ""),
        (6, 0, 0, NOTHING),
        (6, -2, 0, NOTHING),
        (6, 99, 0, "m0\nm1\nm2\nm3\nm4"),
        (6, 99, 5, ""),
        (6, 3, 6, NOTHING),
        (6, 3, 7, NOTHING),
        (6, 3, 99, NOTHING),
        (6, 3, -1, "m3\nm4"),
        (1, 3, 0, NOTHING),
        (0, 3, 0, NOTHING),
        (2, 2, 0, "m0"),
    ],
)
def test_recent_messages(count: int, turns: int, lookback: int, expected: str) -> None:
    assert service.get_recent_memories(chat(count), None, turns, 2, lookback) == expected
    if not lookback:
        assert service.get_chat_summary_memories(chat(count), "", turns) == expected


def test_recent_messages_in_blocks() -> None:
    messages = [{"role": "user", "content": f"User: {letter * 1200}"} for letter in "abc"] + chat(1)
    texts = [letter * 1200 for letter in "abc"]
    assert service.get_recent_memories(messages, None, 4) == "--ChunkBreak--".join(texts)
    assert service.get_chat_summary_memories(messages, None, 4) == DASHES.join(texts)


def test_recent_messages_are_readable_and_nothing_is_changed() -> None:
    messages = [{"role": "user", "content": "Assistant: __WILMER_L_CURLY__x__WILMER_R_CURLY__"}, *chat(1)]
    before = json.dumps(messages)
    assert service.get_recent_memories(messages, None, 2) == "{x}"
    assert json.dumps(messages) == before


def test_empty_blocks_are_left_out() -> None:
    messages = [{"role": "assistant", "content": "", "tool_calls": [{}]}, *chat(1)]
    assert service.get_recent_memories(messages, None, 2) == ""
