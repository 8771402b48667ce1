"""Where the data of a conversation lies."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config import paths
from Middleware.utilities.discussion_state import MEMORIES, SHORT
from Middleware.utilities.discussions.discussion_files import write_chunks_with_hashes, write_content
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder, holds_data_of_a_key
from Middleware.utilities.discussions.stored_files import copy_file
from Tests.llmapis.lab import Lab
from Tests.windows import tells_capitals_apart

HASH = "ad165b11320bc915"
posix_only = pytest.mark.skipif(os.name == "nt", reason="Windows has no permission bits")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(tmp_path / "install"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "D"


def test_looking_up_creates_nothing(root: Path) -> None:
    folder = DiscussionFolder("k1")
    assert folder.folder == str(root / "k1")
    assert folder.file("memories.json") == str(root / "k1" / "memories.json")
    assert folder.vector_database() == str(root / "k1" / "vector_memory.db")
    assert not root.exists()


def test_a_key_has_a_folder_of_its_own(root: Path) -> None:
    assert DiscussionFolder("k1", HASH).folder == str(root / HASH / "k1")


@posix_only
def test_modes(root: Path) -> None:
    before = os.umask(0)
    try:
        private, plain = Path(DiscussionFolder("k1", HASH).create()), Path(DiscussionFolder("k1").create())
        for folder in (DiscussionFolder("k1", HASH), DiscussionFolder("k1")):
            write_content(folder, "memories.json", [])
            write_chunks_with_hashes([("text", "hash")], folder.file("other.json"))
            copy_file(folder.file("memories.json"), ".bak")
            MemoryStore(folder).save_state_document("one")
            MemoryStore(folder).save_state_document("two")
            with folder.memories(write=True) as memories:
                memories.log_hash("h")
            with folder.lock():
                pass
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (private, private.parent, plain)] == [0o700] * 3
    files = [path for folder in (private, plain) for path in folder.iterdir()]
    assert len(files) >= 14 and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@posix_only
def test_what_is_there_keeps_its_mode(root: Path) -> None:
    (root / "k1").mkdir(parents=True)
    (root / "k1").chmod(0o755)
    (root / "k1" / "memories.json").write_text("[]", "utf-8")
    (root / "k1" / "memories.json").chmod(0o644)
    write_content(DiscussionFolder("k1"), "memories.json", [])
    assert stat.S_IMODE((root / "k1").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "k1" / "memories.json").stat().st_mode) == 0o644


def test_present_folder_of_an_old_installation_is_used(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "install" / "Public" / "DiscussionIds" / "k1"
    old.mkdir(parents=True)
    assert DiscussionFolder("k1").folder == str(old)
    assert DiscussionFolder("k1").create() == str(old)
    (root / "k1").mkdir(parents=True)
    assert DiscussionFolder("k1").folder == str(root / "k1")


def test_a_folder_that_cannot_be_made(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root.write_text("a file where the folder should be", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        made = DiscussionFolder("k1").create()
    assert made == str(tmp_path / "install" / "Public" / "DiscussionIds" / "k1") and os.path.isdir(made)
    assert "cannot be made" in caplog.text


def test_flat_files_and_other_case(root: Path) -> None:
    root.mkdir()
    (root / "k1_memories.json").write_text("[]", encoding="utf-8")
    assert DiscussionFolder("k1").file("memories.json") == str(root / "k1_memories.json")
    assert DiscussionFolder("k1", HASH).file("memories.json") == str(root / HASH / "k1" / "memories.json")
    (root / "k1").mkdir()
    (root / "k1" / "Memories.JSON").write_text("[]", encoding="utf-8")
    assert os.path.samefile(DiscussionFolder("k1").file("memories.json"), root / "k1" / "Memories.JSON")


def test_very_many_discussions_are_not_listed_for_each_missing_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "k1").mkdir(parents=True)
    os.utime(root, (1_000_000_000, 1_000_000_000))
    listed: list[str] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(str(folder)) or listdir(folder))
    for _ in range(3):
        assert DiscussionFolder("k1").file("memories.json") == str(root / "k1" / "memories.json")
    # Where several names may lead to one folder, the spelling of this one is looked up as well.
    assert listed.count(str(root)) == (1 if tells_capitals_apart(root) else 2)


def test_a_flat_file_that_appears_is_found(root: Path) -> None:
    root.mkdir()
    os.utime(root, (1_000_000_000, 1_000_000_000))
    assert DiscussionFolder("k1").file("memories.json") == str(root / "k1" / "memories.json")
    (root / "K1_Memories.json").write_text("[]", encoding="utf-8")
    assert os.path.samefile(DiscussionFolder("k1").file("memories.json"), root / "K1_Memories.json")


def test_databases_of_old_installations(root: Path, tmp_path: Path) -> None:
    public = tmp_path / "install" / "Public"
    public.mkdir(parents=True)
    (public / "k1_vector_memory.db").touch()
    assert DiscussionFolder("k1").vector_database() == str(public / "k1_vector_memory.db")
    assert DiscussionFolder("k1", HASH).vector_database() == str(root / HASH / "k1" / "vector_memory.db")
    (root / "k1").mkdir(parents=True)
    (root / "k1" / "vector_memory.db").touch()
    assert DiscussionFolder("k1").vector_database() == str(root / "k1" / "vector_memory.db")


def test_database_below_the_working_directory(root: Path, tmp_path: Path) -> None:
    (tmp_path / "Public").mkdir()
    (tmp_path / "Public" / "k1_vector_memory.db").touch()
    assert os.path.samefile(DiscussionFolder("k1").vector_database(), tmp_path / "Public" / "k1_vector_memory.db")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "C:x"])
def test_names_that_are_no_folders(root: Path, name: str) -> None:
    with pytest.raises(ValueError, match="folder"):
        DiscussionFolder(name)


def test_locks_of_different_kinds_do_not_wait_for_each_other(root: Path) -> None:
    folder = DiscussionFolder("k1")
    with folder.lock(MEMORIES):
        with folder.lock(SHORT, timeout=0):
            pass
        with pytest.raises(TimeoutError), folder.lock(MEMORIES, timeout=0.05):
            pass
    with folder.lock(MEMORIES, timeout=0):
        pass


@pytest.mark.parametrize("spelling", [HASH, HASH.upper(), "ad165b11\u200d320bc915", "\uff21d165b11320bc915"])
def test_the_folder_of_a_key_however_it_is_spelled(root: Path, spelling: str) -> None:
    """A file system that ignores case, or marks that cannot be seen, takes all of these for the folder of a key."""
    (root / spelling / "d1").mkdir(parents=True)  # what such a file system shows under this name
    assert holds_data_of_a_key(spelling)
    (root / HASH[1:] / "d1").mkdir(parents=True)
    assert not holds_data_of_a_key(HASH[1:])
