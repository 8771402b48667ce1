"""What is deleted by hand is gone from all files, wherever it was and whatever it was called before."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.discussions import exports, memory_command, removal
from Middleware.addons.discussions.contents import Part, page
from Middleware.addons.discussions.editing import DiscussionEditor, MemoryKey
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.addons.records.records import build_records
from Middleware.addons.records.settings import RecordSettings
from Middleware.addons.records.store.disk import Disk
from Middleware.common import instance_global_variables as instance
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import is_token
from Middleware.utilities.hashing_utils import hash_content
from Tests.integration.permissions import without_root_rights
from Tests.services.discussion_lab import KEY, DiscussionLab
from Tests.tables import table
from Tests.windows import needs_links

# One word, because the index of words has no sentences.
CANARY = "zebrafinchlike"
SAID = f"The {CANARY} sat in the mill."
STAYS = ("Mara hid the ledger.", "It rained for days.")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionLab:
    monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(tmp_path / "Console"))
    return DiscussionLab(tmp_path, monkeypatch)


class Place:
    """A discussion with the canary, and what is done with it by hand."""

    def __init__(self, lab: DiscussionLab, api_key: str | None, texts: tuple[str, ...]) -> None:
        self.lab, self.api_key = lab, api_key
        lab.store("mill", api_key, texts=texts)
        self.store = MemoryStore(self.folder)

    @property
    def folder(self) -> DiscussionFolder:
        return self.lab.folder("mill", self.api_key)

    @property
    def editor(self) -> DiscussionEditor:
        return DiscussionEditor(self.lab.reader("mill", self.api_key))

    def key(self, part: Part, text: str) -> MemoryKey:
        entries = page(self.lab.reader("mill", self.api_key), part, 100)["entries"]
        return next(MemoryKey.parse(entry["key"]) for entry in entries if text in entry["text"])

    def change(self, part: Part, text: str, new: str, forget: bool = False) -> None:
        self.editor.change(self.key(part, text), new, forget)

    def delete(self, part: Part, text: str = CANARY) -> None:
        self.editor.delete(self.key(part, text))

    def holding(self, word: str = CANARY) -> list[str]:
        """The files below the user's folders that contain the word, encrypted ones as they are decrypted."""
        cipher, found = self.folder.cipher, []
        for path in sorted(self.lab.root.parent.rglob("*")):
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            if is_token(data):
                data = cipher.decrypt(data)
            if word.lower().encode() in data.lower():
                found.append(str(path.relative_to(self.lab.root.parent)))
        return found


def _delete_both(place: Place) -> None:
    place.delete("memories")
    place.delete("searchable")


def _edited_first(place: Place) -> None:
    place.change("memories", CANARY, "It is gone.")
    place.change("searchable", CANARY, "It is gone.")
    place.delete("memories", "It is gone.")
    place.delete("searchable", "It is gone.")


def _edited_twice(place: Place) -> None:
    place.change("memories", CANARY, "Once.")
    place.change("memories", "Once.", "Twice.")
    place.delete("memories", "Twice.")
    place.delete("searchable")


def _changed_and_forgotten(place: Place) -> None:
    place.change("memories", CANARY, "It is gone.", forget=True)
    place.change("searchable", CANARY, "It is gone.", forget=True)


def _in_the_summary(place: Place) -> None:
    place.store.save_summary(f"All that happened, the {CANARY} too.", hash_content(STAYS[0]))
    place.change("summary", CANARY, "All that happened.", forget=True)
    _delete_both(place)


def _in_the_state_document(place: Place) -> None:
    place.store.save_state_document(f"Mara: has a {CANARY}")
    place.change("state", CANARY, "Mara: at the mill", forget=True)
    _delete_both(place)


def _taken_out_of_all_before(place: Place) -> None:
    """The backups of summary and state document have an earlier wording when the memory is deleted."""
    place.store.save_summary(f"All that happened, the {CANARY} too.", hash_content(STAYS[0]))
    place.store.save_state_document(f"Mara: has a {CANARY}")
    place.change("summary", CANARY, "All that happened.")
    place.change("state", CANARY, "Mara: at the mill")
    place.delete("searchable")
    place.delete("memories")


def _condensed_before(place: Place) -> None:
    """The server has replaced memories, whose old wording is in the backup."""
    place.store.replace_memories([("Condensed.", hash_content(STAYS[-1]))])
    place.delete("memories", "Condensed.")
    place.delete("searchable")


def _interrupted_write(place: Place) -> None:
    left = Path(place.folder.folder) / f".{'0a' * 8}.tmp"
    left.write_text(SAID, encoding="utf-8")
    if os.name == "nt":  # where only its age tells that nobody writes it any more
        os.utime(left, (1, 1))
    _delete_both(place)


def _freed_pages(place: Place) -> None:
    """Rows and words that the server itself has deleted stay in freed pages until the file is written anew."""
    path = place.folder.vector_database()
    # Long enough for pages of its own, which a deletion then frees without blanking them.
    long = " ".join(f"{CANARY}{number}" for number in range(3000))
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA secure_delete = OFF")
        for text in (SAID, long):
            database.execute(
                "INSERT INTO memories (discussion_id, memory_text, date_added, metadata_json) "
                "VALUES ('mill', ?, '2026-01-01T00:00:00+00:00', '{}')",
                (text,),
            )
        database.commit()
        database.execute("DELETE FROM memories WHERE memory_text LIKE ? AND id > 3", (f"%{CANARY}%",))
    database.close()
    _delete_both(place)


def _while_it_is_read(place: Place) -> None:
    """A search of the server has the file open, so that the log stays; the next write empties it."""
    reader = sqlite3.connect(place.folder.vector_database(), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM memories").fetchone()
    try:
        _delete_both(place)
    finally:
        reader.close()
    with place.folder.memories(write=True):
        pass


def _without_a_backup(place: Place) -> None:
    for path in Path(place.folder.folder).glob("*.bak"):
        path.unlink()
    _delete_both(place)


def _whole_discussion(place: Place) -> None:
    exports.save(ConsoleFolder(str(instance.CONSOLE_DIRECTORY)), place.lab.reader("mill", place.api_key))
    arguments = ["delete", "mill", "--yes", "--User", "tester"]
    assert memory_command.main([*arguments, *(["--api-key", place.api_key] if place.api_key else [])]) == 0


def _whole_discussion_after_all_anew(place: Place) -> None:
    """An export, the backups and the new memories go together."""
    console, reader = ConsoleFolder(str(instance.CONSOLE_DIRECTORY)), place.lab.reader("mill", place.api_key)
    for _ in range(2):
        exports.save(console, reader)
    assert len(list(Path(console.file("exports")).iterdir())) == 2
    DiscussionEditor(reader).delete_all()
    left = removal.remove(reader.discussion)
    exports.remove(console, reader, left)
    assert left.left == []


WAYS: tuple[Callable[[Place], None], ...] = (
    _delete_both,
    _edited_first,
    _edited_twice,
    _changed_and_forgotten,
    _in_the_summary,
    _in_the_state_document,
    _taken_out_of_all_before,
    _condensed_before,
    _interrupted_write,
    _freed_pages,
    _while_it_is_read,
    _without_a_backup,
    _whole_discussion,
    _whole_discussion_after_all_anew,
)


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "middle", "newest"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_nothing_is_left(lab: DiscussionLab, way: Callable[[Place], None], at: int) -> None:
    _require_gone(lab, None, way, at)


@pytest.mark.parametrize("way", [way for way in WAYS if way is not _freed_pages], ids=lambda way: way.__name__)
def test_nothing_is_left_after_decryption(lab: DiscussionLab, way: Callable[[Place], None]) -> None:
    lab.config.user(encryptUsingApiKey=True)
    _require_gone(lab, KEY, way, 1)


def _require_gone(lab: DiscussionLab, api_key: str | None, way: Callable[[Place], None], at: int) -> None:
    texts = (*STAYS[:at], SAID, *STAYS[at:])
    place = Place(lab, api_key, texts)
    if api_key is None:
        assert len(place.holding()) >= 2
    way(place)
    assert place.holding() == []
    if "whole" not in way.__name__:
        assert place.store.memories()


def test_an_old_file_next_to_the_folders(lab: DiscussionLab) -> None:
    """Its backup is next to it, too."""
    lab.root.mkdir(parents=True)
    pairs = [{"text_block": text, "hash": hash_content(text)} for text in (SAID, *STAYS)]
    old = lab.root / "Mill_memories.json"
    for path in (old, lab.root / "Mill_memories.json.bak"):
        path.write_text(json.dumps(pairs), encoding="utf-8")
    place = Place.__new__(Place)
    place.lab, place.api_key = lab, None
    key = MemoryKey.of("memory", 1, SAID)
    DiscussionEditor(lab.reader("Mill")).delete(key)
    assert place.holding() == [] and STAYS[0] in old.read_text("utf-8")


def test_an_edit_keeps_the_old_wording_in_the_backup(lab: DiscussionLab) -> None:
    place = Place(lab, None, (SAID, *STAYS))
    place.change("memories", CANARY, "It is gone.")
    assert [Path(path).name for path in place.holding()] == ["memories.json.bak", "vector_memory.db"]


def test_a_crash_before_the_end_leaves_the_memory(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its text would be in the backup alone, where no page shows it."""
    place = Place(lab, None, (SAID, *STAYS))
    place.change("memories", CANARY, f"Another {CANARY}.")
    key = place.key("memories", CANARY)

    def crash(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(MemoryStore, "_write", crash)
        place.editor.delete(key)
    assert place.key("memories", CANARY) == key
    assert [Path(path).name for path in place.holding()] == ["memories.json", "vector_memory.db"]


# -- exports -----------------------------------------------------------------------------------------------------------


@table(
    "name, gone",
    [
        # Without a mark: what it contains decides.
        ("mill-20260101-120000.json", True),
        ("renamed-20260101-120000.json", True),
        ("mill.json", False),
        ("mill-20260101-120000.json.txt", False),
        # The mark of another discussion.
        ("mill-0123456789abcdef-20260101-120000-000000.json", False),
    ],
)
def test_exports_of_before(name: str, gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = DiscussionLab(tmp_path, monkeypatch)
    lab.store("mill")
    console, reader = ConsoleFolder(str(tmp_path / "Console")), lab.reader("mill")
    path = tmp_path / "Console" / "exports" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(exports.exported(reader))
    exports.remove(console, reader, removal.Removal())
    assert path.exists() is not gone


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    if os.name == "nt":
        pytest.skip("Windows has no pipes among files")
    os.mkfifo(path)


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _file(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


ODD: dict[str, Callable[[Path], None]] = {
    "not JSON": _file(b"<html>"),
    "not a text": _file(b"\xff\xfe{"),
    "empty": _file(b""),
    "a list": _file(b'["mill"]'),
    "null": _file(b"null"),
    "a number without an end": _file(b"9" * 10_000),
    "other values": _file(b'{"discussionId": ["mill"], "keyFolder": {}}'),
    "a deep list": _file(b"[" * 200_000),
    "encrypted with another key": _file(b"gAAAA" + b"A" * 200),
    "a folder": _folder,
    "a pipe": _pipe,
    "a link to nothing": _link("nothing.json"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a folder": _link("."),
    "a link to a file": _link("../secret"),
}


def _odd(kind: str) -> Any:
    return pytest.param(kind, marks=needs_links if "link" in kind else ())


@pytest.mark.parametrize("kind", [*map(_odd, ODD)])
def test_odd_files_among_the_exports_stay(kind: str, lab: DiscussionLab, tmp_path: Path) -> None:
    lab.store("mill")
    console, reader = ConsoleFolder(str(tmp_path / "Console")), lab.reader("mill")
    own = Path(console.path) / exports.save(console, reader)
    (tmp_path / "Console" / "secret").write_bytes(b"0" * 32)
    odd = own.with_name("mill-20260101-120000.json")
    ODD[kind](odd)
    removal_ = removal.Removal()
    exports.remove(console, reader, removal_)
    assert not own.exists() and os.path.lexists(odd) and removal_.left == []
    console.remove_old_exports(1)
    assert (tmp_path / "Console" / "secret").exists()


@pytest.mark.parametrize(
    "kind", [_odd(kind) for kind in ("a folder", "a pipe", "a link to nothing", "a link to itself", "a link to a file")]
)
def test_what_only_has_the_name_of_an_export_stays(kind: str, lab: DiscussionLab, tmp_path: Path) -> None:
    lab.store("mill")
    console, reader = ConsoleFolder(str(tmp_path / "Console")), lab.reader("mill")
    named = Path(console.path) / exports.save(console, reader)
    named.unlink()
    (tmp_path / "Console" / "secret").write_bytes(b"0" * 32)
    ODD[kind](named)
    removal_ = removal.Removal()
    exports.remove(console, reader, removal_)
    assert os.path.lexists(named) and (tmp_path / "Console" / "secret").exists()
    # Its text is still there, and its reader has to know that.
    assert [line.partition(" to ")[0] for line in removal_.left] == (
        [f"exports/{named.name}: is a link"] if kind == "a link to a file" else []
    )


@pytest.mark.skipif(os.name == "nt", reason="permission bits")
def test_a_folder_of_exports_that_must_not_be_read_is_named(lab: DiscussionLab, tmp_path: Path) -> None:
    lab.store("mill")
    console, reader, left = ConsoleFolder(str(tmp_path / "Console")), lab.reader("mill"), removal.Removal()
    exports.save(console, reader)
    folder = Path(console.file("exports"))
    folder.chmod(0)
    try:
        with without_root_rights():
            exports.remove(console, reader, left)
    finally:
        folder.chmod(0o700)
    assert left.left == ["exports: Permission denied"]


@pytest.mark.parametrize("name", ["日" * 80, "a" * 80, "ü" * 80, "𝔐" * 60])
def test_a_discussion_with_a_long_name_is_exported(lab: DiscussionLab, name: str) -> None:
    lab.store(name)
    console = ConsoleFolder(str(instance.CONSOLE_DIRECTORY))
    path = Path(console.path) / exports.save(console, lab.reader(name))
    assert path.exists() and path.name.startswith(name[:30])
    exports.remove(console, lab.reader(name), removal.Removal())
    assert not path.exists()


def test_exports_belong_to_one_discussion_of_one_key(lab: DiscussionLab, tmp_path: Path) -> None:
    console = ConsoleFolder(str(tmp_path / "Console"))
    for name, key in (("mill", None), ("mill-2", None), ("mill-20260101-120000", None), ("MILL", None)):
        lab.store(name, key)
        exports.save(console, lab.reader(name))
    lab.store("secret", KEY)
    exports.save(console, lab.reader("secret", KEY))
    folder = tmp_path / "Console" / "exports"
    (folder / "broken-20260101-120000.json").write_bytes(b"\xff{")
    exports.remove(console, lab.reader("mill"), removal.Removal())
    left = sorted(path.name.partition("-2026")[0].rpartition("-")[0] for path in folder.glob("*-*-*-*-*.json"))
    assert len(left) == 4 and (folder / "broken-20260101-120000.json").exists()
    # Another key has a discussion of the same name.
    lab.store("open")
    lab.store("open", KEY)
    own, other = lab.find("open", "none"), lab.find("open", lab.folder("open", KEY).key_hash)
    assert exports._mark(own, str(folder)) != exports._mark(other, str(folder))


def test_exports_stay_found_when_all_is_moved(lab: DiscussionLab, tmp_path: Path) -> None:
    lab.store("mill")
    known = exports._mark(lab.find("mill"), str(tmp_path / "Console" / "exports"))
    os.rename(lab.root, tmp_path / "elsewhere")
    instance.DISCUSSION_DIRECTORY = str(tmp_path / "elsewhere")
    assert exports._mark(lab.find("mill"), str(tmp_path / "Console" / "exports")) != known
    (tmp_path / "new").mkdir()
    os.rename(tmp_path / "elsewhere", tmp_path / "new" / "D")
    instance.DISCUSSION_DIRECTORY = str(tmp_path / "new" / "D")
    assert exports._mark(lab.find("mill"), str(tmp_path / "new" / "Console" / "exports")) == known


@pytest.mark.parametrize("when", ["each hour", "each hour, with runs", "at the start"])
def test_exports_go_after_the_days_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(tmp_path))
    console = ConsoleFolder(str(tmp_path))
    settings = RecordSettings(console, "texts")
    settings.change({"days": 3})
    folder = tmp_path / "exports"
    folder.mkdir()
    now, day = time.time(), 86400
    for name, days in (("old.json", 3.1), ("new.json", 2.9), (f".{'0a' * 8}.tmp", 9)):
        (folder / name).write_text("{}", encoding="utf-8")
        os.utime(folder / name, (now - days * day, now - days * day))
    (folder / "kept").mkdir()
    if when == "at the start":
        records = build_records("on")
        records.begin()
        records.close()
    else:
        disk = Disk(console, settings.current)
        if "runs" in when:
            disk.open()
        disk.retain()
        disk.close()
    assert sorted(path.name for path in folder.iterdir()) == ["kept", "new.json"]
