"""Finding, surveying, checking, exporting and deleting stored conversations."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from Middleware.addons.discussions import catalog, removal
from Middleware.addons.discussions.catalog import JSON_FILES, NoSuchDiscussionError, all_discussions
from Middleware.addons.discussions.damage_check import check
from Middleware.addons.discussions.discussion_reader import export
from Middleware.addons.discussions.overview import overview
from Middleware.exceptions import DataKeyError
from Middleware.utilities.discussion_state import COMPACTOR, MEMORIES
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder, holds_data_of_a_key
from Tests.services.discussion_lab import HASH, KEY, DiscussionLab
from Tests.windows import needs_links, tells_capitals_apart


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionLab:
    return DiscussionLab(tmp_path, monkeypatch)


def places() -> list[tuple[str | None, str]]:
    return [(one.key_hash, one.discussion_id) for one in all_discussions()]


def put(path: Path, text: str = "[]") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# -- finding -----------------------------------------------------------------------------------------------------------


def test_nothing_is_stored_and_nothing_is_made(lab: DiscussionLab) -> None:
    assert all_discussions() == []
    assert not lab.root.exists()


def test_every_kind_of_place(lab: DiscussionLab) -> None:
    lab.store("plain")
    lab.store("private", KEY)
    put(lab.root / "flat one_memories.json")
    put(lab.root / "SHOUTED_CHAT_SUMMARY.JSON")
    put(lab.install / "Public" / "DiscussionIds" / "old" / "memories.json")
    put(lab.install / "Public" / "ancient_vector_memory.db")
    put(Path("Public") / "here_vector_memory.db")
    put(lab.root / "notes.txt")
    assert places() == [
        (None, "SHOUTED"),
        (None, "ancient"),
        (None, "flat one"),
        (None, "here"),
        (None, "old"),
        (None, "plain"),
        (HASH, "private"),
    ]


def test_looking_changes_nothing(lab: DiscussionLab) -> None:
    lab.store("plain")
    lab.store("private", KEY)
    before = lab.everything()
    for one in all_discussions():
        overview(one)
    assert lab.everything() == before


def test_an_id_like_a_key_folder(lab: DiscussionLab) -> None:
    put(lab.root / HASH / "memories.json")
    lab.store("private", KEY)
    assert places() == [(None, HASH), (HASH, "private")]


def test_a_journal_makes_no_discussion_of_a_key_folder(lab: DiscussionLab) -> None:
    lab.store("private", KEY)
    put(lab.root / HASH / ".rekey_journal.json", "{}")
    put(lab.root / f"{HASH}_backup" / "private" / "memories.json")
    assert places() == [(HASH, "private")]


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "present",
    [
        ["k1/{}"],
        ["k1/{upper}"],
        ["k1_{}"],
        ["k1_{upper}"],
        ["K1_{upper}", "k1/other.txt"],
        ["k1/{}", "k1_{}"],
        ["k1/{upper}", "k1/{}"],
    ],
)
def test_the_file_is_the_one_that_the_server_uses(lab: DiscussionLab, name: str, present: list[str]) -> None:
    for pattern in present:
        put(lab.root / pattern.format(name, upper=name.upper()))
    found, used = lab.find("k1").data(name), DiscussionFolder("k1").file(name)
    # Elsewhere both may be spellings of one file.
    assert found == used if tells_capitals_apart(lab.root) else found and Path(found).samefile(used)


@pytest.mark.parametrize(
    "present",
    [
        ["D/k1/vector_memory.db"],
        ["install/Public/k1_vector_memory.db"],
        ["Public/k1_vector_memory.db"],
        ["install/Public/k1_vector_memory.db", "Public/k1_vector_memory.db"],
        ["D/k1/vector_memory.db", "install/Public/k1_vector_memory.db"],
    ],
)
def test_the_database_is_the_one_that_the_server_uses(lab: DiscussionLab, tmp_path: Path, present: list[str]) -> None:
    for name in present:
        put(tmp_path / name)
    found = lab.find("k1").database()
    assert found and Path(found).samefile(DiscussionFolder("k1").vector_database())


@needs_links
def test_a_link_in_a_circle_hides_nothing_else(lab: DiscussionLab) -> None:
    lab.store("one")
    for folder in (lab.root, lab.root / "one"):
        (folder / "circle").symlink_to("circle")
        (folder / "a_vector_memory.db").symlink_to("a_vector_memory.db")
    assert [found.discussion_id for found in all_discussions()] == ["one"]
    key_folder = lab.root / ("0" * 16)
    (key_folder / "of a client").mkdir(parents=True)
    (key_folder / "circle").symlink_to("circle")
    assert holds_data_of_a_key(key_folder.name)


def test_choosing(lab: DiscussionLab) -> None:
    lab.store("both")
    lab.store("both", KEY)
    assert lab.find("both", HASH).key_hash == HASH
    assert lab.find("both", "none").key_hash is None
    with pytest.raises(NoSuchDiscussionError, match=f"2 discussions named 'both'.*{HASH}"):
        lab.find("both")
    with pytest.raises(NoSuchDiscussionError, match="no discussion 'Bohth'.* nearest: both"):
        lab.find("Bohth")
    with pytest.raises(NoSuchDiscussionError, match="no discussion 'both' in key folder 0000.*outside the key folders"):
        lab.find("both", "0" * 16)


# -- overview ----------------------------------------------------------------------------------------------------------


def test_overview(lab: DiscussionLab) -> None:
    lab.store("plain")
    row = overview(lab.find("plain"))
    assert (row.memories, row.summary, row.searchable, row.vectors, row.state_document) == (
        2,
        True,
        2,
        {"embedder": 1},
        True,
    )
    assert not row.encrypted and not row.damaged and row.discussion.last_change
    assert row.discussion.size == sum(len(data) for data in lab.everything().values())


@pytest.mark.parametrize("api_key, memories, encrypted", [(None, None, True), (KEY, 2, False)])
def test_overview_of_encrypted_data(
    lab: DiscussionLab, api_key: str | None, memories: int | None, encrypted: bool
) -> None:
    lab.store("private", KEY)
    reader = lab.reader("private", api_key)
    row = overview(reader.discussion, reader.keys)
    assert (row.memories, row.encrypted, row.searchable, row.damaged) == (memories, encrypted, 2, False)


def test_a_database_alone_may_be_encrypted(lab: DiscussionLab) -> None:
    folder = Path(lab.store("private", KEY).folder)
    for path in folder.glob("*.*n"):  # the JSON files
        path.unlink()
    (folder / "state_document.md").unlink()
    row = overview(lab.find("private"))
    assert (row.memories, row.searchable, row.encrypted) == (0, 2, True)


def test_a_key_without_encryption_needs_no_key(lab: DiscussionLab) -> None:
    lab.store("private", KEY, encrypt=False)
    row = overview(lab.find("private"))
    assert (row.memories, row.encrypted) == (2, False)


@pytest.mark.parametrize("name", ["memories.json", "chat_summary.json", "vector_memory.db"])
def test_overview_of_damaged_data(lab: DiscussionLab, name: str) -> None:
    lab.store("plain")
    (lab.root / "plain" / name).write_bytes(b"[{ broken " * 500)
    assert overview(lab.find("plain")).damaged


# -- check -------------------------------------------------------------------------------------------------------------


def sql(statement: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "vector_memory.db")) as database, database:
            database.executescript(statement)

    return change


def test_sound_data(lab: DiscussionLab) -> None:
    lab.store("plain")
    lab.store("private", KEY)
    assert check(lab.reader("plain")) == check(lab.reader("private", KEY)) == []


@pytest.mark.parametrize(
    "damage, text",
    [
        (lambda folder: put(folder / "memories.json", "[\n{\n"), "plain/memories.json.*line 3"),
        (lambda folder: put(folder / "chat_summary.json", '[{"text_block": 1}]'), "plain/chat_summary.json: entry 1"),
        (lambda folder: put(folder / "timestamps.json", "[]"), "plain/timestamps.json: an object"),
        (
            lambda folder: put(folder / "context_compactor_folded.json", "[]"),
            "plain/context_compactor_folded.json: an object",
        ),
        (lambda folder: put(folder / "memories.json.bak", "{}"), "plain/memories.json.bak: a list"),
        (lambda folder: put(folder / "summary_versions.json", "["), "plain/summary_versions.json.*line 1"),
        (lambda folder: put(folder / "state_versions.json", "[\n{\n"), "plain/state_versions.json.*line 3"),
        (lambda folder: (folder / "state_document.md").write_bytes(b"a\xff"), "plain/state_document.md: byte 2"),
        (
            lambda folder: (folder / "vector_memory.db").write_bytes(b"junk" * 999),
            "plain/vector_memory.db: cannot be read",
        ),
        (sql("DELETE FROM memories_fts WHERE rowid = 1"), "1 of the memories are not in the index.*rebuild-index"),
        (
            sql(
                "DELETE FROM memories_fts WHERE rowid = 1; "
                "UPDATE memories SET memory_text = 'gAAAA, said the owl' WHERE id = 1"
            ),
            "1 of the memories are not in",
        ),
        (sql("INSERT INTO memories_fts (rowid, title) VALUES (9, 'x')"), "index of words has 1 rows without"),
        (sql("DROP TABLE memories_fts"), "no table 'memories_fts'"),
        (sql("UPDATE memory_embeddings SET memory_id = 9"), "1 vectors belong to no memory"),
        (sql("UPDATE memory_embeddings SET dim = 9"), "1 vectors do not have their recorded length"),
        (sql("UPDATE memories SET metadata_json = 'x' WHERE id = 2"), "metadata of memory 2"),
        (sql("UPDATE vector_memory_hash_log SET message_hash = '' WHERE id = 1"), "entry 1 of the log .* not a hash"),
        (sql("UPDATE vector_memory_hash_log SET timestamp = 'soon' WHERE id = 2"), "entry 2 of the log .* no time"),
    ],
)
def test_problems(lab: DiscussionLab, damage: Callable[[Path], object], text: str) -> None:
    lab.store("plain")
    damage(lab.root / "plain")
    [finding] = check(lab.reader("plain"))
    assert re.search(text, finding.text) and finding.problem


@pytest.mark.parametrize(
    "change, text",
    [
        (sql("DELETE FROM vector_memory_hash_log"), "whole conversation is processed again"),
        (lambda folder: put(folder / ".0123.tmp"), "left over"),
        (lambda folder: put(folder / "memories.json", "[]"), "refers to a memory that is not stored"),
        (
            lambda folder: put(folder / "condensation_tracker.json", '{"lastCondensationHash": "x"}'),
            "condensation starts",
        ),
    ],
)
def test_notes(lab: DiscussionLab, change: Callable[[Path], object], text: str) -> None:
    lab.store("plain")
    change(lab.root / "plain")
    [finding] = check(lab.reader("plain"))
    assert text in finding.text and not finding.problem


def test_flat_files_are_checked(lab: DiscussionLab) -> None:
    put(lab.root / "old_memories.json", "{}")
    [finding] = check(lab.reader("old"))
    assert finding.problem and "old_memories.json: a list" in finding.text


@pytest.mark.parametrize("api_key, problem", [(None, False), ("sk-other", False), (KEY, True)])
def test_encrypted_data(lab: DiscussionLab, api_key: str | None, problem: bool) -> None:
    lab.store("private", KEY)
    reader = lab.reader("private", api_key)
    if api_key == KEY:  # the right folder, but another user's key
        reader = type(reader)(reader.discussion, type(reader.keys)(HASH, base64.urlsafe_b64encode(b"x" * 32)))
    findings = check(reader)
    assert findings and all(finding.problem is problem and "encrypted" in finding.text for finding in findings)


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", [None, KEY])
def test_export(lab: DiscussionLab, api_key: str | None) -> None:
    lab.store("one", api_key)
    content = json.loads(json.dumps(export(lab.reader("one", api_key))))
    assert [entry["text_block"] for entry in content["files"]["memories.json"]] == [
        "Mara hid the ledger.",
        "The inspector came.",
    ]
    assert content["files"]["state_document.md"] == "Mara: at the mill"
    assert content["files"]["chat_summary.json"][0]["text_block"] == "All that happened."
    assert (content["discussionId"], content["keyFolder"], content["unreadable"]) == (
        "one",
        HASH if api_key else None,
        [],
    )
    database = content["vectorMemory"]
    assert [row["metadata"]["title"] for row in database["memories"]] == ["About Mara", "About The"]
    assert [(row["model"], len(base64.b64decode(row["float32"]))) for row in database["vectors"]] == [("embedder", 12)]
    assert len(database["processedMessages"]) == 2


def test_export_keeps_what_cannot_be_parsed(lab: DiscussionLab) -> None:
    put(lab.root / "old_memories.json", "[broken")
    content = export(lab.reader("old"))
    assert content["files"] == {"memories.json": "[broken"} and "memories.json" in content["unreadable"][0]


def test_export_without_a_damaged_database(lab: DiscussionLab) -> None:
    lab.store("one")
    put(lab.root / "one" / "vector_memory.db", "no database at all")
    content = export(lab.reader("one"))
    assert content["files"]["chat_summary.json"] and content["vectorMemory"] is None
    assert "vector_memory.db" in content["unreadable"][0]


def test_export_without_the_key(lab: DiscussionLab) -> None:
    lab.store("private", KEY)
    with pytest.raises(DataKeyError):
        export(lab.reader("private"))


# -- removal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", [None, KEY])
def test_all_of_one_discussion_goes_and_nothing_else(lab: DiscussionLab, api_key: str | None) -> None:
    lab.store("stays", api_key)
    before = lab.everything()
    folder = Path(lab.store("goes", api_key).folder)
    for name in ("vector_memory.db-wal", ".0123.tmp", "memories.json.bak", ".compactor.lock", "inner/own.txt"):
        put(folder / name)
    result = removal.remove(lab.find("goes"))
    assert result.left == [] and result.deleted > 5
    assert lab.everything() == before and not folder.exists()


def test_files_of_old_installations_go_too(lab: DiscussionLab, tmp_path: Path) -> None:
    lab.store("k1")
    old = [
        lab.root / "k1_memories.json",
        lab.root / "k1_timestamps.json",
        lab.root / "k1_memories.json.bak",
        lab.install / "Public" / "k1_vector_memory.db",
        lab.install / "Public" / "k1_vector_memory.db-wal",
        tmp_path / "Public" / "k1_vector_memory.db",
        lab.install / "Public" / "DiscussionIds" / "k1" / "x.txt",
    ]
    kept = [put(lab.root / "k12_memories.json"), put(lab.install / "Public" / "k12_vector_memory.db")]
    for path in old:
        put(path)
    assert removal.remove(lab.find("k1")).left == []
    assert all(path.exists() for path in kept) and "k1" not in [name for _, name in places()]
    assert not any(path.exists() for path in old)


@pytest.mark.parametrize("name", ["memories.json", "context_compactor_folded.json"])
def test_a_flat_file_alone(lab: DiscussionLab, name: str) -> None:
    put(lab.root / f"k1_{name}")
    assert removal.remove(lab.find("k1")).deleted == 1
    assert list(lab.root.iterdir()) == []


def test_an_id_like_a_key_folder_leaves_the_others_there(lab: DiscussionLab) -> None:
    put(lab.root / HASH / "memories.json")
    lab.store("private", KEY)
    assert removal.remove(lab.find(HASH)).left == []
    assert places() == [(HASH, "private")] and not (lab.root / HASH / "memories.json").exists()


def test_the_last_discussion_takes_the_key_folder_along(lab: DiscussionLab) -> None:
    lab.store("private", KEY)
    removal.remove(lab.find("private"))
    assert list(lab.root.iterdir()) == []


@pytest.mark.parametrize("lock", [MEMORIES, COMPACTOR])
def test_not_while_a_server_works_on_it(lab: DiscussionLab, lock: str) -> None:
    folder = lab.store("busy")
    with folder.lock(lock), pytest.raises(removal.RemovalRefusedError, match="running server"):
        removal.remove(lab.find("busy"))
    assert overview(lab.find("busy")).memories == 2


@needs_links
def test_a_linked_folder_is_left_to_its_owner(lab: DiscussionLab, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "memories.json")
    lab.root.mkdir()
    (lab.root / "k1").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(removal.RemovalRefusedError, match="link"):
        removal.remove(lab.find("k1"))
    assert (tmp_path / "elsewhere" / "memories.json").exists()


def test_what_cannot_be_deleted_is_told(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.store("k1")
    real = removal.os.unlink

    def unlink(path: str) -> None:
        if path.endswith("memories.json"):
            raise PermissionError(13, "in use")
        real(path)

    monkeypatch.setattr(removal.os, "unlink", unlink)
    result = removal.remove(lab.find("k1"))
    assert any("memories.json: in use" in left for left in result.left)
    assert catalog.all_discussions()[0].data("memories.json")
