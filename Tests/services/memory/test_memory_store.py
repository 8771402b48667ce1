"""The files of a conversation's memories."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError, UnreadableDataError
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config import paths
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Tests.llmapis.lab import Lab

KEY = derive_encryption_key("secretkey", "alice")
HASH = "ad165b11320bc915"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    return tmp_path / "D"


@pytest.fixture
def store(root: Path) -> MemoryStore:
    return MemoryStore(DiscussionFolder("k1"))


def test_looking_creates_nothing(root: Path, store: MemoryStore) -> None:
    assert (store.memories(), store.summary(), store.condensation_hash()) == ([], None, None)
    assert store.state_document() == ""
    assert not root.exists()


def test_opening_creates_the_list_of_memories(root: Path, store: MemoryStore) -> None:
    assert store.open_memories() == ([], False)
    assert (root / "k1" / "memories.json").read_bytes() == b"[]"
    assert store.open_memories() == ([], True)


def test_memories(root: Path, store: MemoryStore) -> None:
    store.append_memory("a", "1")
    store.append_memory("b", "2")
    assert store.memories() == [("a", "1"), ("b", "2")]
    store.replace_memories([("ab", "2")])
    assert store.open_memories() == ([("ab", "2")], True)
    backup = json.loads((root / "k1" / "memories.json.bak").read_bytes())
    assert [entry["text_block"] for entry in backup] == ["a", "b"]


def test_what_stands_beside_the_texts_stays(root: Path, store: MemoryStore) -> None:
    store.append_memory("one", "h1")
    path = root / "k1" / "memories.json"
    path.write_text('[{"hash": "h1", "text_block": "one", "note": {"by": "me", "weight": 3}}]', encoding="utf-8")
    store.append_memory("two", "h2")
    assert json.loads(path.read_text("utf-8")) == [
        {"hash": "h1", "text_block": "one", "note": {"by": "me", "weight": 3}},
        {"text_block": "two", "hash": "h2"},
    ]


def test_summary(root: Path, store: MemoryStore) -> None:
    store.save_summary("first", "1")
    assert not (root / "k1" / "chat_summary.json.bak").exists()
    store.save_summary("second", "2")
    assert store.summary() == ("second", "2")
    assert json.loads((root / "k1" / "chat_summary.json").read_bytes()) == [{"text_block": "second", "hash": "2"}]
    assert json.loads((root / "k1" / "chat_summary.json.bak").read_bytes())[0]["text_block"] == "first"


def test_how_many_memories_the_summary_covers(root: Path, store: MemoryStore) -> None:
    tracker = root / "k1" / "condensation_tracker.json"
    assert store.summary_position() is None
    store.save_summary_position(None)
    store.save_summary("first", "1")
    assert store.summary_position() is None and not tracker.exists()
    store.save_condensation_hash("h4")
    store.save_summary("second", "2", 5)
    assert store.summary_position() == 5
    assert json.loads(tracker.read_bytes()) == {"lastCondensationHash": "h4", "summarizedMemories": 5}
    assert json.loads((root / "k1" / "chat_summary.json").read_bytes()) == [{"text_block": "second", "hash": "2"}]
    store.save_summary("third", "3")
    assert store.summary_position() == 5
    store.save_summary_position(None)
    assert store.summary_position() is None and store.condensation_hash() == "h4"


@pytest.mark.parametrize(
    "content",
    [
        '{"summarizedMemories": "3"}',
        '{"summarizedMemories": true}',
        '{"summarizedMemories": 1.5}',
        '{"summarizedMemories": null}',
        "[1]",
        "{",
    ],
)
def test_what_is_no_number_of_memories(root: Path, store: MemoryStore, content: str) -> None:
    (Path(store.state.create()) / "condensation_tracker.json").write_text(content, encoding="utf-8")
    assert store.summary_position() is None


def test_a_summary_is_stored_even_if_its_place_is_not(
    root: Path, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Path(store.state.create()) / "condensation_tracker.json"
    tracker.write_text("{", encoding="utf-8")
    store.save_summary("text", "1", 1)
    assert store.summary() == ("text", "1") and tracker.read_text(encoding="utf-8") == "{"
    assert "k1/condensation_tracker.json" in caplog.text


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_text_never_replaces_a_summary(store: MemoryStore, blank: str) -> None:
    store.save_summary("first", "1")
    with pytest.raises(ValueError, match="blank"):
        store.save_summary(blank, "2")
    assert store.summary() == ("first", "1")


def test_tracker_keeps_what_else_is_in_it(root: Path, store: MemoryStore) -> None:
    store.save_condensation_hash("h4")
    assert store.condensation_hash() == "h4"
    path = root / "k1" / "condensation_tracker.json"
    assert json.loads(path.read_bytes()) == {"lastCondensationHash": "h4"}
    path.write_text('{"lastCondensationHash": 5, "note": 1}', encoding="utf-8")
    assert store.condensation_hash() is None
    store.save_condensation_hash("h5")
    assert json.loads(path.read_bytes()) == {"lastCondensationHash": "h5", "note": 1}


def test_state_document(root: Path, store: MemoryStore) -> None:
    store.save_state_document("Mara: caf\u00e9\n")
    store.save_state_document("Mara: mill")
    assert store.state_document() == "Mara: mill"
    assert (root / "k1" / "state_document.md.bak").read_text(encoding="utf-8") == "Mara: caf\u00e9\n"


def test_unreadable_files_count_as_absent_and_stay(
    root: Path, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    folder = root / "k1"
    folder.mkdir(parents=True)
    for name in ("memories.json", "chat_summary.json", "condensation_tracker.json"):
        (folder / name).write_text("{broken", encoding="utf-8")
    with caplog.at_level(logging.ERROR):
        assert (store.memories(), store.summary(), store.condensation_hash()) == ([], None, None)
    assert "k1/memories.json, line 1" in caplog.text and str(root) not in caplog.text
    for write in (
        lambda: store.append_memory("a", "1"),
        lambda: store.replace_memories([]),
        lambda: store.save_summary("a", "1"),
        lambda: store.save_condensation_hash("h"),
        store.open_memories,
    ):
        with pytest.raises(UnreadableDataError):
            write()
    assert {path.read_text(encoding="utf-8") for path in folder.glob("*.*") if path.name != ".lock"} == {"{broken"}


@pytest.mark.parametrize("content", ["{}", '""', "0"])
def test_an_empty_something_is_no_list(root: Path, store: MemoryStore, content: str) -> None:
    path = root / "k1" / "memories.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UnreadableDataError):
        store.append_memory("a", "1")
    assert path.read_text(encoding="utf-8") == content


def test_files_of_a_key(root: Path) -> None:
    store = MemoryStore(DiscussionFolder("k1", HASH, KEY))
    store.append_memory("secret", "1")
    store.save_summary("secret", "1")
    store.save_summary("secret too", "1")
    store.save_state_document("secret")
    store.save_state_document("secret too")
    files = [path for path in (root / HASH / "k1").iterdir() if path.is_file() and path.name[0] != "."]
    assert len(files) == 5 and all(path.read_bytes().startswith(b"gAAAA") for path in files)
    if os.name != "nt":
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert store.memories() == [("secret", "1")] and store.state_document() == "secret too"
    with pytest.raises(DataKeyError):
        MemoryStore(DiscussionFolder("k1", HASH)).memories()


def test_a_document_in_clear_is_not_copied_in_clear(root: Path) -> None:
    MemoryStore(DiscussionFolder("k1", HASH)).save_state_document("in clear")
    MemoryStore(DiscussionFolder("k1", HASH, KEY)).save_state_document("hidden")
    for path in (root / HASH / "k1").glob("state_document*"):
        assert path.read_bytes().startswith(b"gAAAA")


def test_memories_in_clear_are_not_copied_in_clear(root: Path) -> None:
    MemoryStore(DiscussionFolder("k1", HASH)).append_memory("in clear", "1")
    MemoryStore(DiscussionFolder("k1", HASH, KEY)).replace_memories([("hidden", "1")])
    for path in (root / HASH / "k1").glob("memories*"):
        assert path.read_bytes().startswith(b"gAAAA")


def test_reading_for_a_node_makes_the_file_of_memories(root: Path, store: MemoryStore) -> None:
    assert store.read_memories() == []
    assert (root / "k1" / "memories.json").read_bytes() == b"[]"
    store.append_memory("a", "1")
    assert store.read_memories() == [("a", "1")]


def test_reading_where_nothing_can_be_made(root: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(root))
    root.write_text("a file where the folder should be", encoding="utf-8")
    assert store.read_memories() == []


def test_a_folder_in_place_of_a_file(root: Path, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("memories.json", "chat_summary.json"):
        (root / "k1" / name).mkdir(parents=True)
    assert store.read_memories() == [] and store.summary() is None
    assert "memories.json of a discussion cannot be read" in caplog.text
    with pytest.raises(OSError):
        store.append_memory("a", "1")


def test_what_must_be_readable_before_an_llm_is_asked(root: Path, store: MemoryStore) -> None:
    store.require_readable()
    store.append_memory("a", "1")
    store.require_readable()
    (root / "k1" / "condensation_tracker.json").write_text("{", encoding="utf-8")
    with pytest.raises(UnreadableDataError, match="condensation_tracker"):
        store.require_readable()


def test_backups_keep_what_stood_beside_the_texts(root: Path, store: MemoryStore) -> None:
    store.append_memory("a", "1")
    path = root / "k1" / "memories.json"
    before = path.read_bytes().replace(b'"hash"', b'"note": "mine", "hash"')
    path.write_bytes(before)
    store.replace_memories([("b", "1")])
    assert (root / "k1" / "memories.json.bak").read_bytes() == before


def test_backups_of_the_time_in_clear_are_hidden_with_the_next_write(root: Path) -> None:
    clear = MemoryStore(DiscussionFolder("k1", HASH))
    clear.append_memory("in clear", "1")
    clear.replace_memories([("joined in clear", "1")])
    clear.save_summary("in clear", "1")
    clear.save_summary("in clear too", "1")
    hidden = MemoryStore(DiscussionFolder("k1", HASH, KEY))
    hidden.append_memory("hidden", "2")
    hidden.save_summary("hidden", "2")
    for path in (root / HASH / "k1").glob("*.json*"):
        assert path.read_bytes().startswith(b"gAAAA"), path


@pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")
def test_lock_files_are_private_too(root: Path) -> None:
    MemoryStore(DiscussionFolder("k1", HASH)).read_memories()
    assert stat.S_IMODE((root / HASH / "k1" / ".lock").stat().st_mode) == 0o600
