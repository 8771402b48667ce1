"""Which format the data of a client's key has, what it costs, and what happens to its salt."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError, KeySaltError
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.discussion_keys import discussion_keys
from Middleware.utilities import encryption_utils
from Middleware.utilities.discussions.client_keys import data_key, key_name, key_names, key_place, use_format_2
from Middleware.utilities.discussions.discussion_folder import discussions
from Middleware.utilities.discussions.key_salts import KEY_FOLDER_2, SALT_FILE, parse_salt, salt_text
from Middleware.utilities.encryption_utils import (
    DERIVED_AT_ONCE,
    DerivedKeys,
    KeySalt,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    key_folder_name,
    owner_mark,
)
from Tests.services.discussion_lab import DiscussionLab
from Tests.windows import wine_lacks

KEY, OTHER = "wilmer-a-key-of-some-length", "wilmer-another-key"
# As cheap as a salt may be.
SALT, SECOND = KeySalt(b"s" * 32, 2**14, 8, 1), KeySalt(b"t" * 32, 2**14, 8, 1)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiscussionLab]:
    lab = DiscussionLab(tmp_path, monkeypatch)
    for user in ("alice", "bob"):
        lab.config.write(f"Users/{user}", {"encryptUsingApiKey": True})
    monkeypatch.setattr(instance, "USERS", ["alice", "bob"])
    lab.root.mkdir()
    with request_scope(RequestContext(user="alice")):
        yield lab


def put(lab: DiscussionLab, salt: KeySalt = SALT) -> Path:
    file = lab.root / SALT_FILE
    file.write_text(salt_text(salt), encoding="utf-8")
    # What has just been written may change once more without a new time, so that it is not remembered.
    os.utime(file, (1e9, 1e9))
    return file


FIRST, NEW = hash_api_key(KEY), key_folder_name(KEY, SALT)
PLACES = {
    "no salt": (None, (), FIRST),
    "no salt, stored": (None, (f"D/{FIRST}",), FIRST),
    "a salt": (SALT, (), NEW),
    "stored in format 1": (SALT, (f"D/{FIRST}",), FIRST),
    "stored in format 1 in the installation": (SALT, (f"install/Public/DiscussionIds/{FIRST}",), FIRST),
    "stored in format 2": (SALT, (f"D/{NEW}",), NEW),
    "stored in both": (SALT, (f"D/{FIRST}", f"D/{NEW}"), NEW),
    # What was stored while the disk with D was away does not hide what is on it.
    "stored in both, elsewhere": (SALT, (f"D/{FIRST}", f"install/Public/DiscussionIds/{NEW}"), FIRST),
    "stored in both, format 1 elsewhere": (SALT, (f"D/{NEW}", f"install/Public/DiscussionIds/{FIRST}"), NEW),
    "stored in both, both elsewhere": (
        SALT,
        tuple(f"install/Public/DiscussionIds/{name}" for name in (FIRST, NEW)),
        NEW,
    ),
    "stored for another key": (SALT, (f"D/{hash_api_key(OTHER)}",), NEW),
    "the name of a file": (SALT, (f"D/{FIRST}.json",), NEW),
}


@pytest.mark.parametrize("salt, stored, name", list(PLACES.values()), ids=list(PLACES))
def test_which_format(lab: DiscussionLab, salt: KeySalt | None, stored: tuple[str, ...], name: str) -> None:
    if salt:
        put(lab, salt)
    for folder in stored:
        (lab.root.parent / folder).mkdir(parents=True)
    keys, used = discussion_keys(KEY), salt if name == NEW else None
    assert (keys.key_hash, keys.encryption_key) == (name, derive_encryption_key(KEY, "alice", used))
    assert {key_name(KEY, user) for user in ("alice", "bob", None)} == {name}
    assert key_names(KEY, None) == {FIRST, NEW} if salt else {FIRST}
    assert key_names(KEY, ["bob"]) >= {name, FIRST} and key_name(None, "alice") is None
    # What either format has written, for either user, is read in this folder.
    for one in (None, salt):
        for user in ("alice", "bob"):
            token = cipher_for(derive_encryption_key(KEY, user, one)).encrypt(b"said")
            assert cipher_for(keys.encryption_key).decrypt(token) == b"said"
    with pytest.raises(DataKeyError):
        cipher_for(keys.encryption_key).decrypt(cipher_for(derive_encryption_key(OTHER, "alice", salt)).encrypt(b""))


def test_names_and_keys_of_format_2() -> None:
    """They differ for each key, salt and user, tell nothing of the fast hash, and have a form of their own."""
    assert KEY_FOLDER_2.fullmatch(NEW) and FIRST not in NEW
    assert len({NEW, key_folder_name(OTHER, SALT), key_folder_name(KEY, SECOND)}) == 3
    keys = {derive_encryption_key(KEY, user, salt) for user in ("a", "A", "", None) for salt in (SALT, SECOND, None)}
    assert len(keys) == 9  # without a user, the name is empty
    stretched = hashlib.scrypt(KEY.encode(), salt=SALT.salt, n=SALT.n, r=8, p=1, maxmem=2**26, dklen=32)
    assert process().one(DerivedKeys).get(KEY, None, SALT) == stretched
    assert KeySalt.new() != KeySalt.new() and owner_mark(KEY) != owner_mark(OTHER)
    assert hashlib.sha256(KEY.encode()).hexdigest()[:8] not in owner_mark(KEY)


CONTENT = json.loads(salt_text(SALT))
DAMAGED: dict[str, object] = {
    "empty": "",
    "cut off": salt_text(SALT)[:60],
    "a list": [],
    "null": None,
    "an older version": {**CONTENT, "version": 1},
    "a version in quotes": {**CONTENT, "version": "2"},
    "another method": {**CONTENT, "method": "pbkdf2"},
    "a short salt": {**CONTENT, "salt": CONTENT["salt"][:30]},
    "no hexadecimal digits": {**CONTENT, "salt": "x" * 64},
    "a number as salt": {**CONTENT, "salt": 5},
    "no salt": {name: value for name, value in CONTENT.items() if name != "salt"},
    "too little work": {**CONTENT, "n": 2},
    "too much memory": {**CONTENT, "n": 2**24},
    "no power of two": {**CONTENT, "n": 2**15 + 1},
    "work in quotes": {**CONTENT, "p": "1"},
    "a fraction": {**CONTENT, "r": 8.0},
    "nested": "[" * 100_000,
    "not UTF-8": b"\xff\xfe{",
}
NEWER: dict[str, object] = {
    "more of it": {**CONTENT, "version": 3, "method": "argon2"},
    "nothing else": {"version": 7},
}


@pytest.mark.parametrize(
    "content, words",
    [
        *((one, "is damaged. Expected: ") for one in DAMAGED.values()),
        *((one, "is of a newer version of WilmerAI (") for one in NEWER.values()),
    ],
    ids=[*DAMAGED, *NEWER],
)
def test_a_salt_that_cannot_be_used(lab: DiscussionLab, content: object, words: str) -> None:
    file = lab.root / SALT_FILE
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = lab.everything()
    for act in (
        lambda: discussion_keys(KEY),
        lambda: data_key(KEY, "bob"),
        lambda: key_names(KEY, None),
        lambda: use_format_2(KEY, ["alice"]),
        lambda: process().one(discussions).keep_key_salt(SALT, "alice"),
    ):
        with pytest.raises(KeySaltError) as raised:
            act()
        message = str(raised.value)
        assert words in message and "Nothing was changed" in message and message.startswith(SALT_FILE)
        assert raised.value.file == str(file) and str(lab.root) not in message
    assert key_name(KEY, "alice") is None and lab.everything() == before


@pytest.mark.parametrize("place", ["D", "install/Public/DiscussionIds"])
def test_a_salt_that_is_lost(lab: DiscussionLab, place: str) -> None:
    """Noticed at the start and under a running server; and no other one is made, which could open nothing."""
    file = put(lab)
    assert key_place(KEY).name == NEW
    folder = lab.root.parent / place / NEW
    (folder / "d1").mkdir(parents=True)
    file.unlink()
    for act in (lambda: discussion_keys(KEY), lambda: use_format_2(OTHER, ["alice"])):
        with pytest.raises(KeySaltError, match=r"is missing, and the conversations of 1 API key .* from a backup"):
            act()
    assert not file.exists()
    put(lab)
    assert key_place(KEY).name == NEW
    # A disk that is away for a while takes all along.
    lab.root.rename(lab.root.parent / "away")
    assert key_place(KEY).name == NEW
    (lab.root.parent / "away").rename(lab.root)
    file.unlink()
    (folder / "d1").rmdir()
    assert key_place(KEY).name == FIRST  # nothing is lost with it


@pytest.mark.parametrize("name", [NEW, "v2-" + "0" * 32])
@pytest.mark.parametrize(
    "content",
    [
        "nothing",
        "memories.json",
        pytest.param("a file of this name", marks=wine_lacks("the error about a file that is listed as a folder")),
    ],
)
def test_discussions_without_a_key_are_not_lost_with_a_salt(lab: DiscussionLab, name: str, content: str) -> None:
    """Clients without a key choose the names of their discussions, and must not stop those with one."""
    if content == "a file of this name":
        (lab.root / name).write_text("", encoding="utf-8")
    else:
        (lab.root / name).mkdir()
    if content == "memories.json":
        (lab.root / name / content).write_text("[]", encoding="utf-8")
    assert key_place(KEY).name == FIRST and use_format_2(KEY, ["alice"]) == ["alice"]


def test_a_disk_that_was_away_keeps_its_data(lab: DiscussionLab) -> None:
    put(lab)
    (lab.root / FIRST / "years").mkdir(parents=True)
    assert key_place(KEY).name == FIRST
    lab.root.rename(lab.root.parent / "away")
    keys = discussion_keys(KEY)
    (lab.root.parent / "install/Public/DiscussionIds" / str(keys.key_hash) / "a minute").mkdir(parents=True)
    (lab.root.parent / "away").rename(lab.root)
    assert key_place(KEY).name == FIRST


INSTALLED = "install/Public/DiscussionIds"
FOLDERS: dict[str, tuple[tuple[str, ...], KeySalt | None, KeySalt | None, bool]] = {
    "an empty folder": (("bobs",), None, SALT, True),
    "none as yet": ((), None, SALT, True),
    "with a key in format 1": ((f"bobs/{hash_api_key(OTHER)}/d1",), None, SALT, True),
    "with a discussion without a key": (("bobs/d1",), None, SALT, True),
    "with a salt of its own": (("bobs",), SECOND, SECOND, True),
    "with a key in format 2, and a salt": ((f"bobs/{NEW}/d1",), SECOND, SECOND, True),
    "with a key in format 2, but no salt": ((f"bobs/{NEW}/d1",), None, None, False),
    "that cannot be made": (("file",), None, SALT, False),
}


@pytest.mark.parametrize("made, own, used, has_salt", list(FOLDERS.values()), ids=list(FOLDERS))
def test_a_user_with_another_folder(
    lab: DiscussionLab, made: tuple[str, ...], own: KeySalt | None, used: KeySalt | None, has_salt: bool
) -> None:
    """The conversations of other users, or the user's own older ones, are in the installation's folder, with a salt."""
    place, home = lab.root.parent, lab.root.parent / INSTALLED
    for folder in (f"{INSTALLED}/{NEW}/d1", *made):
        (place / folder).mkdir(parents=True)
    bobs = place / "bobs"
    if made == ("file",):
        (place / "file").rmdir()
        (place / "file").write_text("", encoding="utf-8")
        bobs = place / "file" / "bobs"
    (home / SALT_FILE).write_text(salt_text(SALT), encoding="utf-8")
    if own:
        (bobs / SALT_FILE).write_text(salt_text(own), encoding="utf-8")
    instance.DISCUSSION_DIRECTORY = None
    lab.config.write("Users/bob", {"discussionDirectory": str(bobs), "encryptUsingApiKey": True})
    for _ in range(2):
        if used is None:
            with pytest.raises(KeySaltError, match="is missing, and the conversations of 1 API key"):
                key_place(KEY, "bob")
        else:
            assert key_place(KEY, "bob").name == key_folder_name(KEY, used)
        assert (bobs / SALT_FILE).is_file() == has_salt
    # With the copy, bob's folder can be used without the other one.
    assert not has_salt or parse_salt((bobs / SALT_FILE).read_text(encoding="utf-8"), "") == used
    assert key_place(KEY, "alice").name == NEW


def test_a_folder_in_place_of_the_salt(lab: DiscussionLab) -> None:
    (lab.root / SALT_FILE).mkdir()
    with pytest.raises(KeySaltError, match="cannot be read"):
        discussion_keys(KEY)


def test_a_salt_that_is_replaced_is_seen(lab: DiscussionLab) -> None:
    for moment, salt in enumerate((SALT, SECOND), 1):
        os.utime(put(lab, salt), (moment * 1e9, moment * 1e9))
        assert key_place(KEY).name == key_folder_name(KEY, salt)


def test_use_format_2(lab: DiscussionLab) -> None:
    lab.config.write("Users/carl", {"discussionDirectory": str(lab.root.parent / "carls"), "encryptUsingApiKey": True})
    (lab.root / hash_api_key(OTHER)).mkdir()
    assert use_format_2(OTHER, ["alice", "bob"]) == []  # its data stays in format 1
    assert use_format_2(KEY, ["alice", "bob"]) == ["alice"]
    made = (lab.root / SALT_FILE).read_text(encoding="utf-8")
    assert asdict(parse_salt(made, "")) == {**asdict(KeySalt.new()), "salt": parse_salt(made, "").salt}
    assert sys.platform == "win32" or (lab.root / SALT_FILE).stat().st_mode & 0o777 == 0o600
    assert use_format_2(KEY, ["alice"]) == [] and made == (lab.root / SALT_FILE).read_text(encoding="utf-8")
    instance.DISCUSSION_DIRECTORY = None
    assert use_format_2(KEY, ["carl"]) == ["carl"] and (lab.root.parent / "carls" / SALT_FILE).exists()


MAKE = """
import sys
from Middleware.utilities.discussions.key_salts import SaltFiles
from Middleware.utilities.encryption_utils import KeySalt
sys.stdin.readline()
print(SaltFiles().keep([sys.argv[1]], KeySalt.new()).salt.hex())
"""


def test_processes_that_make_it_at_once_have_one(tmp_path: Path) -> None:
    root = tmp_path / "D"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        for _ in range(4)
    ]
    for one in started:
        assert one.stdin
        one.stdin.write("\n")
        one.stdin.flush()
    salts = {one.communicate(timeout=120)[0].strip() for one in started}
    assert salts == {json.loads((root / SALT_FILE).read_text(encoding="utf-8"))["salt"]}
    assert [path.name for path in root.iterdir() if path.suffix == ".json"] == [SALT_FILE]


def test_stretched_once_for_all_users_and_two_at_a_time(lab: DiscussionLab, monkeypatch: pytest.MonkeyPatch) -> None:
    put(lab)
    running, most, stretched = [0], [0], []
    guard, stretch = threading.Lock(), encryption_utils._stretch

    def counted(api_key: str, salt: KeySalt) -> bytes:
        with guard:
            running[0] += 1
            most[0] = max(most[0], running[0])
            stretched.append(api_key)
        try:
            return stretch(api_key, salt)
        finally:
            with guard:
                running[0] -= 1

    monkeypatch.setattr(encryption_utils, "_stretch", counted)
    process().put(DerivedKeys, DerivedKeys())
    keys = [f"wilmer-key-number-{number}" for number in range(4)]
    tasks: list[Callable[[], object]] = [
        task
        for key in keys
        for user in ("alice", "bob")
        for task in (lambda key=key, user=user: data_key(key, user), lambda key=key, user=user: key_name(key, user))
    ]
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stretched) == keys and most[0] <= DERIVED_AT_ONCE
