"""Ids that a file system takes for the same name are different discussions nevertheless."""

from __future__ import annotations

import logging
import os
import random
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.addons.discussions import removal
from Middleware.addons.discussions.catalog import all_discussions
from Middleware.addons.discussions.discussion_reader import export
from Middleware.addons.discussions.memory_output import what_is_deleted
from Middleware.models.process import process
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder, holds_data_of_a_key
from Middleware.utilities.discussions.folder_names import DiscussionNames, id_of_folder, own_name
from Middleware.utilities.files.path_utils import is_storable_name
from Tests.folding_file_systems import RULES, OtherFileSystem, used
from Tests.properties import examples
from Tests.services.discussion_lab import HASH, KEY, DiscussionLab
from Tests.tables import table
from Tests.windows import tells_apart, tells_capitals_apart

# Letters whose other spellings meet each other: cases, normal forms, signs that are letters, marks that are not seen.
LETTERS = "aAbB12 .~_-äÄa\u0308A\u0308kK\u212asSßẞſıiIİςσΣée\u0301чЧ你ﬁf\u200d😀"
CHAT = own_name("Chat")
# Those that can be had in a folder of this file system: it must tell apart what they do.
SYSTEMS = [
    name
    for name, rules in RULES.items()
    if all(
        rules.folded(one) == rules.folded(other) or tells_apart(Path(tempfile.gettempdir()), one, other)
        for one, other in (("a", "A"), ("\u00e9", "e\u0301"))
    )
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiscussionLab:
    return DiscussionLab(tmp_path, monkeypatch)


@pytest.fixture
def ntfs(lab: DiscussionLab) -> Iterator[DiscussionLab]:
    with used(OtherFileSystem(RULES["NTFS"])):
        yield lab


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)


# -- which name --------------------------------------------------------------------------------------------------------


@table(
    ("system", "present", "sent", "own"),
    [
        ("NTFS", "chat", "Chat", True),
        ("NTFS", "Chat", "Chat", False),
        ("NTFS", "chat", "chats", False),
        ("NTFS", "straße", "Straße", True),
        ("NTFS", "STRAßE", "straße", True),
        ("NTFS", "strasse", "straße", False),
        ("NTFS", "ß", "ẞ", False),
        ("NTFS", "ıl", "Il", True),
        ("NTFS", "чат", "ЧАТ", True),
        ("NTFS", "你好", "你好", False),
        ("NTFS", "😀x", "😀X", True),
        ("NTFS", "\u00e9", "e\u0301", False),
        ("NTFS", "a~b", "A~b", True),
        ("NTFS", CHAT, CHAT.upper(), True),
        ("FAT", "mill", "mill.", True),
        ("FAT", "mill", "MILL ", True),
        ("FAT", "12", "12..", True),
        ("APFS", "chat", "Chat", True),
        ("APFS", "\u00e9", "e\u0301", True),
        ("APFS", "e\u0301", "\u00e9", True),
        ("APFS", "e\u0301", "\u00c9", True),
        ("APFS", "k", "\u212a", True),
        ("APFS", "straße", "STRASSE", True),
        ("APFS", "ﬁx", "FIX", True),
        ("APFS", "ς", "σ", True),
        ("APFS", "ß1", "ẞ1", True),
        ("APFS", "12", "12", False),
        ("APFS that respects case", "chat", "Chat", False),
        ("APFS that respects case", "chat\u00e9", "chate\u0301", True),
        ("ext4 with casefold", "1ı", "1I", False),
        ("ext4 with casefold", "ж1", "Ж1", True),
        ("HFS+", "chat", "Chat", True),
        ("HFS+", "e\u0301", "\u00e9", False),
        ("HFS+", "e\u0301", "\u00c9", True),
        ("HFS+", "1\u200d2", "12", True),
        ("tells names apart", "chat", "Chat", False),
        ("tells names apart", "e\u0301", "\u00e9", False),
        ("tells names apart", "mill", "mill.", False),
    ],
)
def test_the_folder_of_an_id_next_to_another(tmp_path: Path, system: str, present: str, sent: str, own: bool) -> None:
    names, folder = OtherFileSystem(RULES[system]), str(tmp_path)
    if not is_storable_name(sent) or (present != sent and not own and not tells_apart(tmp_path, present, sent)):
        return  # both cannot be had in one folder here
    put(tmp_path, present)
    expected = os.path.join(folder, own_name(sent) if own else sent)
    reached = bool(names.reached(os.path.join(folder, sent))) and not own
    assert names.find(folder, sent) == (expected if reached else None)
    assert names.made(folder, sent) == expected
    for later in (names, OtherFileSystem(RULES[system])):
        assert later.find(folder, sent) == expected
        assert later.reached(later.find(folder, id_of_folder(present)) or "") == os.path.join(folder, present)


def meeting(seed: int, count: int) -> list[str]:
    """Return different ids of which many are spellings of each other."""
    random_ = random.Random(seed)
    words = ["".join(random_.choices(LETTERS, k=random_.randint(1, 5))) for _ in range(2)]
    changes = (
        str.upper,
        str.lower,
        str.swapcase,
        str.title,
        str.casefold,
        lambda word: unicodedata.normalize("NFC", word),
        lambda word: unicodedata.normalize("NFD", word),
        lambda word: word + ".",
        own_name,
        lambda word: own_name(word).upper(),
        lambda word: "".join(random_.choice((letter, letter.swapcase())) for letter in word),
    )
    ids = list(words)
    while len(ids) < count:
        ids.append(random_.choice(changes)(random_.choice(ids))[:60])
    return [name for name in dict.fromkeys(ids) if is_storable_name(name)]


@examples(400)
@given(st.sampled_from(SYSTEMS), st.integers(0, 2**32), st.integers(2, 9))
def test_ids_that_meet(system: str, seed: int, count: int) -> None:
    """Each gets a folder of its own, whose name leads back to it, and keeps it."""
    ids = meeting(seed, count)
    if system == "HFS+":
        # It keeps no other normal form, so these share a folder there.
        ids = [name for name in ids if unicodedata.is_normalized("NFC", name)]
    with tempfile.TemporaryDirectory() as folder:
        # One folder was there before, under exactly its id, unless that is the own name of another one.
        old = next((name for name in ids if id_of_folder(name) == name), None)
        if old is not None:
            OtherFileSystem(RULES[system]).make(os.path.join(folder, old))
        names, made = OtherFileSystem(RULES[system]), dict[str, str]()
        for name in ids:
            try:
                made[name] = names.made(folder, name)
            # Another id was put where its own name would lead: it has no memory, but nothing is mixed.
            except FileExistsError:
                own = RULES[system].folded(own_name(name))
                assert own in (RULES[system].folded(other) for other in ids)
        places = [names.reached(place) for place in made.values()]
        assert len({*places}) == len(places) and all(map(os.path.isdir, places))
        if old is not None and RULES[system].stored(old) == old:
            assert made[old] == os.path.join(folder, old)
        again = OtherFileSystem(RULES[system])
        assert {name: again.find(folder, name) for name in reversed(made)} == made
        if RULES[system].stored is str:
            assert sorted(map(id_of_folder, os.listdir(folder))) == sorted(made)
        if system == "tells names apart":
            assert all(
                place == os.path.join(folder, name) for name, place in made.items() if id_of_folder(name) == name
            )


@pytest.mark.parametrize("first", ["Chat", "chat"])
def test_two_processes_at_the_same_moment(tmp_path: Path, first: str) -> None:
    class Late(OtherFileSystem):
        def make(self, path: str) -> None:
            # After this process has looked, and before it has made its folder.
            OtherFileSystem(self.rules).made(str(tmp_path), first)
            super().make(path)

    second = first.swapcase()
    names = Late(RULES["NTFS"])
    assert names.made(str(tmp_path), second) == str(tmp_path / own_name(second))
    assert sorted(os.listdir(tmp_path)) == sorted([first, own_name(second)])


def test_this_file_system(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds on Windows and macOS is tried there."""
    ids = ["Chat", "chat", "cHAT", "\u00e9", "\u00c9", "e\u0301", "12", CHAT]
    for number, name in enumerate(ids):
        MemoryStore(DiscussionFolder(name)).save_state_document(f"text {number}")
    process().put(DiscussionNames, DiscussionNames())
    assert [MemoryStore(DiscussionFolder(name)).state_document() for name in ids] == [
        f"text {number}" for number in range(len(ids))
    ]
    assert sorted(one.discussion_id for one in all_discussions()) == sorted(ids)
    assert os.path.basename(DiscussionFolder("Chat").folder) == "Chat"
    if tells_capitals_apart(lab.root):
        assert sorted(os.listdir(lab.root)) == sorted([*ids[:-1], own_name(CHAT)])


# -- an id like another one's name -------------------------------------------------------------------------------------


@table(("system", "order"), [(system, order) for system in (SYSTEMS[0], SYSTEMS[-1]) for order in (1, -1)])
def test_an_id_that_looks_like_the_own_name_of_another(tmp_path: Path, system: str, order: int) -> None:
    ids = ["chat", "Chat", CHAT, own_name(CHAT), "Chat~0123456789ab", f"Chat~{CHAT[5:].upper()}"][::order]
    names = OtherFileSystem(RULES[system])
    made = {name: names.made(str(tmp_path), name) for name in ids}
    assert len({*made.values()}) == len(ids) == len(os.listdir(tmp_path))
    assert sorted(map(id_of_folder, os.listdir(tmp_path))) == sorted(ids)
    assert id_of_folder("Chat~0123456789ab") == "Chat~0123456789ab" and id_of_folder("~" + CHAT[5:]) != "Chat"


def test_an_own_name_that_leads_elsewhere(tmp_path: Path) -> None:
    """Nothing is mixed, whatever a client has put there."""
    names = OtherFileSystem(RULES["NTFS"])
    put(tmp_path, "chat", CHAT.lower())
    with pytest.raises(FileExistsError):
        names.made(str(tmp_path), "Chat")
    assert names.find(str(tmp_path), "Chat") is None


# -- what is seen of it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, KEY])
def test_list_export_and_removal(ntfs: DiscussionLab, key: str | None) -> None:
    for name in ("mill", "Mill", "MILL"):
        ntfs.store(name, key, texts=(f"Of {name}.", f"More of {name}."))
    place = ntfs.root / HASH if key else ntfs.root
    assert sorted(os.listdir(place)) == sorted(["mill", own_name("Mill"), own_name("MILL")])
    assert [one.discussion_id for one in all_discussions()] == ["MILL", "Mill", "mill"]
    for name in ("mill", "Mill", "MILL"):
        exported = export(ntfs.reader(name, key))
        assert exported["discussionId"] == name and f"Of {name}." in str(exported)
        assert sum(f"Of {other}." in str(exported) for other in ("mill", "Mill", "MILL")) == 1
    if key:
        put(ntfs.root / f"{HASH}_backup", "mill", own_name("Mill"))
    assert what_is_deleted(ntfs.find("Mill")).count(own_name("Mill")) == (2 if key else 1)
    assert ("_backup" in what_is_deleted(ntfs.find("MILL"))) is False
    assert removal.remove(ntfs.find("mill")).left == []
    assert sorted(os.listdir(place)) == sorted([own_name("Mill"), own_name("MILL")])
    # Its folder stays, although the plain name is free now.
    assert DiscussionFolder("Mill", HASH if key else None).folder == str(place / own_name("Mill"))
    ntfs.store("mIll", key)
    assert (place / "mIll").is_dir() and [one.discussion_id for one in all_discussions()] == ["MILL", "Mill", "mIll"]


def test_folders_that_were_copied_to_a_file_system_that_tells_names_apart(lab: DiscussionLab) -> None:
    put(lab.root, "chat", CHAT)
    assert DiscussionFolder("Chat").create() == str(lab.root / CHAT)
    assert [one.discussion_id for one in all_discussions()] == ["Chat", "chat"]
    if tells_capitals_apart(lab.root):
        put(lab.root, "Chat")
        assert DiscussionFolder("Chat").folder == str(lab.root / "Chat")
        assert lab.find("Chat").folders == (str(lab.root / "Chat"), str(lab.root / CHAT))


def test_the_folder_of_an_old_installation(ntfs: DiscussionLab) -> None:
    older = ntfs.install / "Public" / "DiscussionIds"
    put(older, "Chat")
    put(ntfs.root, "CHAT")
    assert DiscussionFolder("Chat").folder == str(older / "Chat")
    assert DiscussionFolder("chat").create() == str(ntfs.root / own_name("chat"))


def test_the_database_of_an_old_installation(ntfs: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    public = ntfs.install / "Public"
    public.mkdir(parents=True)
    (public / "mill_vector_memory.db").touch()
    isfile, names = os.path.isfile, process().one(DiscussionNames)
    assert isinstance(names, OtherFileSystem)
    monkeypatch.setattr(os.path, "isfile", lambda path: isfile(names.reached(os.fspath(path))))
    assert DiscussionFolder("mill").vector_database() == str(public / "mill_vector_memory.db")
    assert DiscussionFolder("Mill").vector_database() == str(ntfs.root / "Mill" / "vector_memory.db")


def test_the_folder_of_a_key_is_refused_in_capitals(ntfs: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an id leads to the folder of a key, no name of its own helps."""
    put(ntfs.root / HASH, "private")
    scandir, names = os.scandir, process().one(DiscussionNames)
    assert isinstance(names, OtherFileSystem)
    monkeypatch.setattr(os, "scandir", lambda path: scandir(names.reached(os.fspath(path))))
    assert holds_data_of_a_key(HASH.upper()) and not holds_data_of_a_key(HASH[::-1])


def test_a_new_name_is_logged_once(ntfs: DiscussionLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for name in ("mill", "Mill", "Mill", own_name("x")):
            DiscussionFolder(name).create()
    [record] = caplog.records
    assert record.getMessage() == (
        f"Discussion Mill gets the folder {ntfs.root / own_name('Mill')}, as the file system takes its id for that of "
        "another one"
    )


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_a_known_folder_costs_nothing_more(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(DiscussionNames):
        asked: list[str] = []

        def is_folder(self, path: str) -> bool:
            self.asked.append(path)
            return super().is_folder(path)

        is_there = is_folder

    put(lab.root, "Chat1")
    os.utime(lab.root, (1_000_000_000, 1_000_000_000))
    with used(Counted()):
        assert DiscussionFolder("Chat1").folder == str(lab.root / "Chat1")
        Counted.asked.clear()
        monkeypatch.setattr(os, "listdir", pytest.fail)
        for _ in range(3):
            assert DiscussionFolder("Chat1").folder == str(lab.root / "Chat1")
    assert Counted.asked == [str(lab.root / "Chat1")] * 3


def test_a_folder_that_cannot_be_listed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "chat")
    names = OtherFileSystem(RULES["NTFS"])
    assert names.find(str(tmp_path), "chat") == str(tmp_path / "chat")
    unlisted = OtherFileSystem(RULES["NTFS"])
    monkeypatch.setattr(OtherFileSystem, "reached", lambda self, path: str(tmp_path / "chat"))

    def refused(folder: str) -> list[str]:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "listdir", refused)
    assert unlisted.find(str(tmp_path), "Chat") == str(tmp_path / "Chat")
