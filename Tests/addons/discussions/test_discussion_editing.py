"""Changes by hand in stored conversations: what becomes of the text, and that no message is remembered twice."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.discussions import editing
from Middleware.addons.discussions.contents import Part, find, page
from Middleware.addons.discussions.editing import (
    DiscussionBusyError,
    DiscussionEditor,
    MemoryKey,
    NoSuchMemoryError,
)
from Middleware.exceptions import DataKeyError
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import unsummarized
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.hashing_utils import hash_content
from Tests.patience import PATIENCE
from Tests.services.discussion_lab import KEY, DiscussionLab

TEXTS = ("Mara hid the ledger.", "The inspector came.", "It rained for days.")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionLab:
    monkeypatch.setattr(editing, "LOCK_SECONDS", 0.05)
    return DiscussionLab(tmp_path, monkeypatch)


@pytest.fixture(params=[None, KEY], ids=["clear", "encrypted"])
def api_key(request: pytest.FixtureRequest) -> Any:
    return request.param


def editor(lab: DiscussionLab, api_key: str | None = None) -> DiscussionEditor:
    return DiscussionEditor(lab.reader("mill", api_key))


def key_of(lab: DiscussionLab, part: Part, number: int, api_key: str | None = None) -> MemoryKey:
    entries = page(lab.reader("mill", api_key), part, 100)["entries"]
    return next(MemoryKey.parse(entry["key"]) for entry in entries if entry["number"] == number)


def hashes(folder: DiscussionFolder) -> list[str]:
    return [stored for _, stored in MemoryStore(folder).memories()]


def test_a_page_has_the_newest_first(lab: DiscussionLab, api_key: str | None) -> None:
    lab.store("mill", api_key, texts=TEXTS)
    reader = lab.reader("mill", api_key)
    first = page(reader, "memories", 2)
    assert [(entry["number"], entry["text"]) for entry in first["entries"]] == [(3, TEXTS[2]), (2, TEXTS[1])]
    assert (first["total"], first["next"], first["problem"]) == (3, 2, "")
    rest = page(reader, "memories", 2, before=2)
    assert [entry["text"] for entry in rest["entries"]] == [TEXTS[0]] and rest["next"] is None
    assert [entry["summarized"] for entry in first["entries"]] == [True, True]
    searchable = page(reader, "searchable", 1)
    assert searchable["entries"][0]["title"] == "About It" and searchable["next"] == 3
    assert page(reader, "summary", 9)["entries"][0]["text"] == "All that happened."
    assert page(reader, "state", 9)["entries"][0]["text"] == "Mara: at the mill"


def test_a_search_finds_what_a_node_finds(lab: DiscussionLab, api_key: str | None) -> None:
    lab.store("mill", api_key, texts=TEXTS)
    reader = lab.reader("mill", api_key)
    assert [entry["text"] for entry in page(reader, "searchable", 9, words="ledger; rain")["entries"]] == [
        TEXTS[0],
        TEXTS[2],
    ]
    assert [entry["text"] for entry in page(reader, "memories", 9, words="INSPECTOR")["entries"]] == [TEXTS[1]]


def test_without_the_key_there_are_facts_and_no_texts(lab: DiscussionLab) -> None:
    lab.store("mill", KEY)
    reader = lab.reader("mill")
    for part in ("summary", "memories", "searchable", "state"):
        shown = page(reader, part, 9)  # type: ignore[arg-type]
        assert shown["entries"] == [] and shown["locked"] and "encrypted" in shown["problem"]
    with pytest.raises(DataKeyError):
        DiscussionEditor(reader).delete(MemoryKey.of("memory", 1, "x"))
    with pytest.raises(DataKeyError):
        DiscussionEditor(reader).delete(MemoryKey.of("searchable", 1, "x"))


def test_damage_is_a_sentence(lab: DiscussionLab) -> None:
    folder = lab.store("mill")
    Path(folder.file("memories.json")).write_text("{", encoding="utf-8")
    assert "cannot be read" in page(lab.reader("mill"), "memories", 9)["problem"]


@pytest.mark.parametrize("part", ["summary", "memories", "state", "searchable"])
def test_a_changed_text(lab: DiscussionLab, api_key: str | None, part: Part) -> None:
    folder = lab.store("mill", api_key)
    known = hashes(folder)
    number = {"memories": 2, "searchable": 1}.get(part, 0)
    key = key_of(lab, part, number, api_key)
    changed = editor(lab, api_key).change(key, "Tobias {has} it.")
    assert find(lab.reader("mill", api_key), changed)["text"] == "Tobias {has} it."
    assert hashes(folder) == known
    if part != "searchable":
        name = {"summary": "chat_summary.json", "memories": "memories.json", "state": "state_document.md"}[part]
        assert Path(folder.file(name) + ".bak").is_file()
    # It is another text now.
    with pytest.raises(NoSuchMemoryError, match="in the meantime"):
        editor(lab, api_key).change(key, "no")
    with pytest.raises(ValueError, match="blank"):
        editor(lab, api_key).change(changed, " \n")


def test_a_changed_searchable_memory_is_found_by_its_new_words(lab: DiscussionLab, api_key: str | None) -> None:
    folder = lab.store("mill", api_key)
    with folder.memories() as memories:
        logged = [message.hash for message in memories.logged_messages()]
        assert memories.count_without_embeddings("embedder") == 1
    editor(lab, api_key).change(key_of(lab, "searchable", 1, api_key), "Tobias burned the map.")
    reader = lab.reader("mill", api_key)
    assert [entry["number"] for entry in page(reader, "searchable", 9, words="map")["entries"]] == [1]
    assert page(reader, "searchable", 9, words="ledger")["entries"] == []
    with folder.memories() as memories:
        row = memories.by_ids([1])[0]
        assert json.loads(row["metadata_json"] or "")["summary"] == row["memory_text"] == "Tobias burned the map."
        assert [message.hash for message in memories.logged_messages()] == logged
        # A later pass makes the vector anew.
        assert memories.count_without_embeddings("embedder") == 2


def test_a_deleted_searchable_memory_leaves_nothing(lab: DiscussionLab, api_key: str | None) -> None:
    folder = lab.store("mill", api_key)
    with folder.memories() as memories:
        logged = [message.hash for message in memories.logged_messages()]
    editor(lab, api_key).delete(key_of(lab, "searchable", 1, api_key))
    with folder.memories() as memories:
        assert [row["id"] for row in memories.all_memories()] == [2] and memories.embeddings("embedder") == []
        assert memories.keyword_search("ledger") == []
        assert [message.hash for message in memories.logged_messages()] == logged
    database = Path(folder.vector_database())
    files = [database, *(Path(f"{database}{end}") for end in ("-wal", "-journal"))]
    assert not any(b"ledger" in file.read_bytes() for file in files if file.is_file())
    with pytest.raises(NoSuchMemoryError):
        editor(lab, api_key).delete(MemoryKey.of("searchable", 1, TEXTS[0]))


@pytest.mark.parametrize(
    ("gone", "left", "covered", "condensed"),
    [
        (1, [(TEXTS[1], 1), (TEXTS[2], 2)], {2: 1, 3: 2}, 1),
        (2, [(TEXTS[0], 0), (TEXTS[2], 2)], {2: 1, 3: 2}, 0),
        # The newest says up to where messages are remembered.
        (3, [(TEXTS[0], 0), (TEXTS[1], 2)], {2: 2, 3: 2}, 2),
    ],
)
@pytest.mark.parametrize("summarized", [2, 3])
@pytest.mark.parametrize("place", [True, False])
def test_a_deleted_memory_is_not_written_again(
    lab: DiscussionLab,
    gone: int,
    left: list[tuple[str, int]],
    covered: dict[int, int],
    condensed: int,
    summarized: int,
    place: bool,
) -> None:
    folder = lab.store("mill", texts=TEXTS)
    store, known = MemoryStore(folder), [hash_content(text) for text in TEXTS]
    store.save_summary("Some of them.", known[summarized - 1], summarized if place else None)
    store.save_condensation_hash(known[1])
    editor(lab).delete(key_of(lab, "memories", gone))
    assert store.memories() == [(text, known[index]) for text, index in left]
    # Neither the summary nor the condensation takes anything in again, or leaves anything out.
    assert 2 - len(unsummarized(store)) == covered[summarized]
    assert store.condensation_hash() == known[condensed]
    backup = json.loads(Path(folder.file("memories.json") + ".bak").read_text("utf-8"))
    assert [entry["text_block"] for entry in backup] == [text for text, _ in left]


def test_the_only_memory_keeps_its_hash(lab: DiscussionLab) -> None:
    folder = lab.store("mill", texts=TEXTS[:1])
    editor(lab).delete(key_of(lab, "memories", 1))
    assert MemoryStore(folder).memories() == [("", hash_content(TEXTS[0]))]


def test_all_anew(lab: DiscussionLab, api_key: str | None) -> None:
    folder = lab.store("mill", api_key)
    editor(lab, api_key).delete_all()
    store = MemoryStore(folder)
    assert (store.memories(), store.summary()) == ([], None)
    assert (store.state_document(), store.condensation_hash()) == ("", None)
    with folder.memories() as memories:
        assert memories.counts() == {"memories": 0, "embeddings": 0, "hashes": 0}
        assert memories.keyword_search("ledger") == []


def test_nothing_while_the_server_writes(lab: DiscussionLab) -> None:
    folder = lab.store("mill")
    before, key = lab.everything(), key_of(lab, "memories", 1)
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        with folder.lock(MEMORIES):
            ready.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        with pytest.raises(DiscussionBusyError, match="writing memories"):
            editor(lab).change(key, "x")
    finally:
        done.set()
        thread.join()
    assert {name: data for name, data in lab.everything().items() if not name.endswith(".lock")} == before


@pytest.mark.parametrize("text", ["", "memory-1", "memory-1-xyzxyzxy", "other-1-00000000", "memory-1-00000000/x"])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(NoSuchMemoryError, match="key of a memory"):
        MemoryKey.parse(text)


@pytest.mark.parametrize("part", ["summary", "state"])
def test_single_texts_are_not_deleted(lab: DiscussionLab, part: Part) -> None:
    lab.store("mill")
    with pytest.raises(ValueError, match="written again"):
        editor(lab).delete(key_of(lab, part, 0))
