"""Changing and removing an API key: every file, every way to be interrupted, and no text left in clear."""

from __future__ import annotations

import getpass
import io
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.discussions.rekey import journal as rekey_journal
from Middleware.addons.discussions.rekey import key_folder as rekey_folder
from Middleware.addons.discussions.rekey import rekey_command as rekey_encrypted_files
from Middleware.api.edge.access_keys import HASHED
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.lookup import reset_config_store
from Middleware.utilities.discussion_state import SHORT
from Middleware.utilities.discussions.client_keys import key_place
from Middleware.utilities.discussions.key_salts import SALT_FILE, SaltFiles, parse_salt
from Middleware.utilities.encryption_utils import (
    NO_CIPHER,
    KeySalt,
    cipher_for,
    derive_encryption_key,
    hash_api_key,
    key_folder_name,
)
from Middleware.utilities.files.file_access import process_lock
from Tests.integration.permissions import without_root_rights
from Tests.scripts.rekey_lab import CONTENT, FILES, NEW, OLD, SALT, SECRET, USER, RekeyLab, cipher_of

SCRIPTS = Path(__file__).parents[2] / "Scripts"
KEYS = ("--api-key", OLD, "--new-api-key", NEW)
posix = pytest.mark.skipif(os.name == "nt", reason="permission bits and shell scripts")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RekeyLab:
    return RekeyLab(tmp_path, monkeypatch)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Tool:
    """Runs the script in this process; ``answer`` is what is typed."""

    def __init__(self, lab: RekeyLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._lab, self._capsys, self._monkeypatch = lab, capsys, monkeypatch
        self.out = self.err = ""

    def __call__(self, *arguments: str, answer: str = "Y\n", terminal: bool = False) -> int:
        self._monkeypatch.setattr(sys, "stdin", (Terminal if terminal else io.StringIO)(answer))
        try:
            status = rekey_encrypted_files.main(self._lab.arguments(*arguments))
        except SystemExit as end:
            status = int(end.code or 0)
        self.out, self.err = self._capsys.readouterr()
        assert not any(secret in self.out + self.err for secret in (OLD, NEW, SECRET))
        return status


@pytest.fixture
def tool(lab: RekeyLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tool:
    return Tool(lab, capsys, monkeypatch)


# -- the user ----------------------------------------------------------------------------------------------------------


@posix
def test_a_folder_of_users_that_must_not_be_read(lab: RekeyLab, tool: Tool) -> None:
    lab.fill("d1", cipher_of(OLD))
    users = lab.config.root / "Users"
    users.chmod(0)
    # The lab has read the folder already; the command is a process of its own.
    reset_config_store()
    try:
        with without_root_rights():
            assert tool(*KEYS) == 1
    finally:
        users.chmod(0o700)
    assert (
        f"User '{USER}' in {lab.config.root} cannot be used: Users: no permission to read this folder. Nothing was "
        "changed."
    ) in tool.err
    lab.check(lab.old / "d1", OLD)


# -- the three changes -------------------------------------------------------------------------------------------------


def test_a_new_key(lab: RekeyLab, tool: Tool) -> None:
    for name in ("d1", "d2"):
        lab.fill(name, cipher_of(OLD))
    assert tool(*KEYS) == 0 and not lab.old.exists() and not lab.in_clear()
    for name in ("d1", "d2"):
        lab.check(lab.new / name, NEW)
    assert sorted(path.name for path in lab.root.iterdir()) == [SALT_FILE, lab.new.name]


def test_decrypting(lab: RekeyLab, tool: Tool) -> None:
    lab.fill("d1", cipher_of(OLD))
    plain = lab.write("d2/memories.json", b"[ ]")
    assert tool("--api-key", OLD) == 0
    lab.check(lab.old / "d1", None)
    assert plain.read_bytes() == b"[ ]" and not (lab.old / rekey_journal.NAME).exists()
    assert "encrypted again" in tool.out  # as the user's setting is on
    with closing(sqlite3.connect(lab.old / "d1/vector_memory.db")) as database:
        assert database.execute("SELECT count(*) FROM memories_fts").fetchone()[0] == 1


def test_what_is_in_clear_gets_encrypted(lab: RekeyLab, tool: Tool) -> None:
    """Deleted rows, the index of words and leftovers of interrupted writes included."""
    folder = lab.fill("d1", NO_CIPHER)
    (folder / ".0123456789abcdef.tmp").write_text(SECRET, encoding="utf-8")
    with closing(sqlite3.connect(folder / "vector_memory.db")) as database, database:
        database.execute(
            "INSERT INTO memories (discussion_id, memory_text, date_added, metadata_json) VALUES ('d1', ?, '', '{}')",
            (f"{SECRET} is gone " * 400,),
        )
        database.execute("DELETE FROM memories WHERE id = 2")
    assert len(lab.in_clear()) == len(rekey_folder.stored_files(str(lab.old))) + 1
    assert tool(*KEYS) == 0
    lab.check(lab.new / "d1", NEW)
    assert not lab.in_clear()


@pytest.mark.parametrize("setting", [True, False])
def test_the_setting_does_not_matter_but_is_mentioned(lab: RekeyLab, tool: Tool, setting: bool) -> None:
    lab.config.user(encryptUsingApiKey=setting)
    lab.fill("d1", cipher_of(OLD))
    assert tool(*KEYS) == 0 and ("is off" in tool.out) is not setting


@pytest.mark.parametrize("new", [NEW, None], ids=["new key", "decrypt"])
@pytest.mark.parametrize("setting", [True, False])
def test_the_setting_of_the_users_whose_files_these_are(
    lab: RekeyLab, tool: Tool, setting: bool, new: str | None
) -> None:
    lab.config.write("Users/bob", {"encryptUsingApiKey": setting})
    lab.config.user(encryptUsingApiKey=not setting)
    lab.write("bobs/memories.json", [], cipher_of(OLD, "bob"))
    assert tool(*(KEYS if new else KEYS[:2])) == 0
    misfit = setting is (new is None)
    assert ("of user bob is" in tool.out) is misfit and f"of user {USER} is" not in tool.out


def test_every_user_whose_setting_does_not_fit(lab: RekeyLab, tool: Tool) -> None:
    lab.config.write("Users/bob", {})
    lab.config.user(encryptUsingApiKey=False)
    lab.write("bobs/memories.json", [], cipher_of(OLD, "bob"))
    lab.fill("own", cipher_of(OLD))
    assert tool(*KEYS) == 0
    assert all(f"of user {user} is off" in tool.out for user in ("bob", USER))


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_new_key_is_a_mistake(lab: RekeyLab, tool: Tool, monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    """An unset variable of a shell must not decrypt everything."""
    lab.fill("d1", cipher_of(OLD))
    before = lab.everything()
    assert tool("--api-key", OLD, "--new-api-key", blank, "--yes") == 2 and "--new-api-key" in tool.err
    monkeypatch.setenv(rekey_encrypted_files.NEW_VARIABLE, blank or " ")  # Windows has no empty variables
    assert tool("--api-key", OLD, "--yes") == 2 and rekey_encrypted_files.NEW_VARIABLE in tool.err
    assert tool(terminal=True) == 2
    assert lab.everything() == before
    assert tool(*KEYS) == 0  # the argument counts


@posix
def test_modes_stay(lab: RekeyLab, tool: Tool) -> None:
    folder = lab.fill("d1", cipher_of(OLD))
    (folder / "memories.json").chmod(0o640)
    assert tool(*KEYS) == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (lab.new / "d1").iterdir()}
    assert modes.pop("memories.json") == 0o640 and set(modes.values()) == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (lab.new, lab.new / "d1")} == {0o700}


def test_a_name_spelled_otherwise_and_other_users(lab: RekeyLab, tool: Tool) -> None:
    lab.config.write("Users/bob", {})
    for name, user in (("own", "Tester"), ("nobody", None), ("bobs", "bob"), ("now", USER)):
        lab.write(f"{name}/memories.json", [], cipher_of(OLD, user))
    assert rekey_encrypted_files.main([*lab.arguments(*KEYS, "--yes")[2:], "--user", "Tester"]) == 0
    for name, user in (("own", "Tester"), ("nobody", "Tester"), ("now", "Tester"), ("bobs", "bob")):
        assert cipher_of(NEW, user).decrypt((lab.new / name / "memories.json").read_bytes()) == b"[]"


def test_the_same_key_for_a_name_spelled_otherwise(lab: RekeyLab) -> None:
    lab.fill("d1", cipher_of(OLD, USER))
    arguments = lab.arguments("--api-key", OLD, "--new-api-key", OLD, "--yes")[2:]
    assert rekey_encrypted_files.main(["--user", USER.upper(), *arguments]) == 0
    lab.check(lab.root / key_folder_name(OLD, SALT) / "d1", OLD, USER.upper())


def test_the_server_reads_it_afterwards(lab: RekeyLab, tool: Tool) -> None:
    lab.store("d1", OLD)
    before = json.dumps([lab.reader("d1", OLD).pairs(name) for name in ("memories.json", "chat_summary.json")])
    assert tool(*KEYS) == 0
    after = json.dumps([lab.reader("d1", NEW).pairs(name) for name in ("memories.json", "chat_summary.json")])
    assert after == before and len(lab.reader("d1", NEW).state_document()) > 5


@pytest.mark.parametrize("place", ["D", "install/Public/DiscussionIds"])
def test_where_the_server_looks(lab: RekeyLab, tool: Tool, place: str) -> None:
    folder = lab.fill("d1", cipher_of(OLD))
    root = lab.root.parent / place
    root.mkdir(parents=True, exist_ok=True)
    os.rename(folder.parent, root / "key")
    os.rename(root / "key", root / lab.old.name)
    words = ["--user", USER, "--ConfigDirectory", str(lab.config.root), *KEYS, "--yes"]
    assert rekey_encrypted_files.main(words) == 0
    lab.check(root / lab.new.name / "d1", NEW)


def test_both_places_are_worked_on(lab: RekeyLab) -> None:
    live = lab.copy_into_installation(lab.fill("d1", cipher_of(OLD)))
    words = ["--user", USER, "--ConfigDirectory", str(lab.config.root), *KEYS, "--yes"]
    assert rekey_encrypted_files.main(words) == 0
    for root in (lab.root, live.parent):
        lab.check(root / lab.new.name / "d1", NEW)


@pytest.mark.parametrize("flag", ["--DiscussionDirectory", "--PublicDirectory"])
def test_a_rehearsal_on_a_copy_leaves_the_installation_alone(
    lab: RekeyLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    live = lab.copy_into_installation(lab.fill("d1", cipher_of(OLD)))
    before = {path: path.read_bytes() for path in live.rglob("*") if path.is_file()}
    named = lab.root
    if flag == "--PublicDirectory":
        monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", None)
        named = lab.root.parent / "copy"
        named.mkdir()
        os.rename(lab.root, named / "DiscussionIds")
    words = ["--user", USER, "--ConfigDirectory", str(lab.config.root), *KEYS, "--yes"]
    assert rekey_encrypted_files.main([*words, flag, str(named)]) == 0
    assert {path: path.read_bytes() for path in live.rglob("*") if path.is_file()} == before
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith(f"{live} ")]
    _, salt, again = re.split("change it, too, copy | there, and run this with the same keys: ", line)
    shutil.copy(salt, live.parent)
    assert own_command("rekey", "--User", USER) in again and str(live.parent) in again
    assert OLD not in out and NEW not in out
    assert rekey_encrypted_files.main([*words, "--DiscussionDirectory", str(live.parent)]) == 0
    assert not live.exists() and f"{live} " not in capsys.readouterr().out.replace(f"in {live} ", "")
    lab.check(live.parent / lab.new.name / "d1", NEW)


# -- what can be wrong -------------------------------------------------------------------------------------------------

UNREADABLE: dict[str, Any] = {
    "another key": cipher_of("sk-other").encrypt(b"[]"),
    "no JSON": b"hello",
    "empty": b"",
    "no UTF-8": b'["\xff"]',
    "cut off": cipher_of(OLD).encrypt(b"[1, 2, 3]" * 9)[:-5],
}


@pytest.mark.parametrize("new", [NEW, None], ids=["new key", "decrypt"])
@pytest.mark.parametrize("data", list(UNREADABLE.values()), ids=list(UNREADABLE))
def test_what_nobody_can_read_stays(lab: RekeyLab, tool: Tool, data: bytes, new: str | None) -> None:
    keys = KEYS if new else KEYS[:2]
    bad, good = lab.write("d1/memories.json", data), lab.write("d2/memories.json", [SECRET], cipher_of(OLD))
    assert tool(*keys) == 1 and "d1/memories.json" in tool.err
    assert bad.read_bytes() == data and SECRET.encode() in cipher_of(new).decrypt(good.read_bytes())
    journal = json.loads((lab.old / rekey_journal.NAME).read_text(encoding="utf-8"))
    assert journal == {
        "operation": "re-key" if new else "decrypt",
        "user": USER,
        "old": lab.old.name,
        "new": lab.new.name if new else None,
        "completed": ["d2/memories.json"],
    }
    bad.unlink()
    assert tool(*keys) == 0 and (lab.new if new else lab.old).exists() and "before" in tool.out
    assert not list(lab.root.rglob(rekey_journal.NAME))


@pytest.mark.parametrize("data", [b"no database", cipher_of("sk-other")], ids=["no database", "another key"])
def test_a_database_that_nobody_can_read_stays(lab: RekeyLab, tool: Tool, data: Any) -> None:
    folder = lab.fill("d1", cipher_of(OLD) if isinstance(data, bytes) else data)
    path = folder / "vector_memory.db"
    if isinstance(data, bytes):
        path.write_bytes(data)
    before = path.read_bytes()
    assert tool(*KEYS) == 1 and "d1/vector_memory.db" in tool.err and path.read_bytes() == before


def test_files_of_workflows_are_left_alone(lab: RekeyLab, tool: Tool) -> None:
    lab.fill("d1", cipher_of(OLD))
    notes = lab.write("d1/notes.md", b"mine")
    os.rename(notes, lab.old / "notes.txt")
    assert tool(*KEYS) == 0 and (lab.new / "notes.txt").read_bytes() == b"mine"


def test_a_discussion_that_a_server_works_on(lab: RekeyLab, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rekey_folder, "_SHORT_WAIT", 0.05)
    folder = lab.fill("d1", cipher_of(OLD))
    lab.fill("d2", cipher_of(OLD))
    with process_lock(str(folder / SHORT)):
        assert tool(*KEYS) == 1 and "a running server works on it" in tool.err
    lab.check(folder, OLD)
    assert tool(*KEYS) == 0
    lab.check(lab.new / "d1", NEW)


def test_the_new_key_has_a_folder(lab: RekeyLab, tool: Tool) -> None:
    lab.fill("d1", cipher_of(OLD))
    lab.new.mkdir()
    assert tool(*KEYS) == 1 and "by hand" in tool.err and "by hand" in tool.out
    lab.check(lab.old / "d1", NEW)
    assert not list(lab.root.rglob(rekey_journal.NAME)) and not list(lab.new.iterdir())
    lab.new.rmdir()
    assert tool(*KEYS) == 0
    lab.check(lab.new / "d1", NEW)


# -- arguments and questions -------------------------------------------------------------------------------------------


def test_no_such_user(lab: RekeyLab) -> None:
    lab.fill("d1", cipher_of(OLD))
    before = lab.everything()
    for user in ("nobody", "../tester", " "):
        assert rekey_encrypted_files.main([*lab.arguments(*KEYS, "--yes")[2:], "--user", user]) == 1
    assert lab.everything() == before


def test_no_such_folder(lab: RekeyLab, tool: Tool) -> None:
    assert tool(*KEYS) == 1 and key_folder_name(OLD, SALT) in tool.err and os.listdir(lab.root) == [SALT_FILE]


def test_run_again_when_all_is_done(lab: RekeyLab, tool: Tool) -> None:
    """As somebody does who cannot know how far it was when it was interrupted."""
    lab.fill("chat", cipher_of(OLD))
    assert tool(*KEYS) == 0
    assert tool(*KEYS) == 1
    assert f"{lab.new.name} of the new key is there" in tool.err
    lab.check(lab.new / "chat", NEW)


def test_nothing_stored(lab: RekeyLab, tool: Tool) -> None:
    lab.write(rekey_journal.NAME, b"{}")
    assert tool(*KEYS, answer="") == 0 and "nothing to do" in tool.out and lab.old.exists()


@pytest.mark.parametrize(
    "arguments",
    [(), ("--api-key", " "), ("--api-key", OLD, "--new-api-key", "schlüssel")],
    ids=["none", "blank", "not ASCII"],
)
def test_keys_that_cannot_be(lab: RekeyLab, tool: Tool, arguments: tuple[str, ...]) -> None:
    lab.fill("d1", cipher_of(OLD))
    assert tool(*arguments) == 2
    lab.check(lab.old / "d1", OLD)


def test_keys_of_the_environment(lab: RekeyLab, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill("d1", cipher_of(OLD))
    monkeypatch.setenv("WILMER_API_KEY", f"{OLD} ")
    monkeypatch.setenv("WILMER_NEW_API_KEY", NEW)
    assert tool() == 0
    lab.check(lab.new / "d1", NEW)


@pytest.mark.parametrize(
    "typed, api_key",
    [([OLD, NEW, NEW], NEW), ([OLD, ""], None), ([OLD, NEW, "x"], OLD)],
    ids=["new key", "decrypt", "mistyped"],
)
def test_keys_that_are_typed(
    lab: RekeyLab, tool: Tool, monkeypatch: pytest.MonkeyPatch, typed: list[str], api_key: str | None
) -> None:
    lab.fill("d1", cipher_of(OLD))
    answers = iter(typed)
    monkeypatch.setattr(getpass, "getpass", lambda prompt: next(answers))
    assert tool(terminal=True) == (1 if api_key == OLD else 0)
    lab.check((lab.new if api_key == NEW else lab.old) / "d1", api_key)


def test_no_key_is_typed(lab: RekeyLab, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(getpass, "getpass", end)
    assert tool(terminal=True) == 1 and "Nothing was changed" in tool.err


@pytest.mark.parametrize("answer", ["N\n", "", "yes please\n", "\n"], ids=["N", "end", "other", "nothing"])
def test_no_backup_no_change(lab: RekeyLab, tool: Tool, answer: str) -> None:
    lab.fill("d1", cipher_of(OLD))
    before = lab.everything()
    assert tool(*KEYS, answer=answer) == 1 and lab.everything() == before


def test_a_backup_is_made_once(lab: RekeyLab, tool: Tool) -> None:
    lab.fill("d1", cipher_of(OLD))
    unfinished = lab.root / f"{lab.old.name}_backup.unfinished"
    unfinished.mkdir()
    (unfinished / "half").write_bytes(b"")
    assert tool(*KEYS, answer="a\n") == 0
    lab.check(lab.new / "d1", NEW)
    backup = lab.root / f"{lab.old.name}_backup"
    lab.check(backup / "d1", OLD)
    assert not unfinished.exists() and not (backup / "half").exists()
    if os.name != "nt":
        assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    shutil.copytree(backup, lab.old)
    assert tool(*KEYS, answer="A\n") == 1 and "exists already" in tool.err
    lab.check(lab.old / "d1", OLD)


def test_the_home_folder(lab: RekeyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(lab.root.parent))
    monkeypatch.setenv("USERPROFILE", str(lab.root.parent))
    lab.fill("d1", cipher_of(OLD))
    assert (
        rekey_encrypted_files.main(
            [
                "--user",
                USER,
                "--ConfigDirectory",
                f"~/{lab.config.root.name}",
                "--DiscussionDirectory",
                "~/D/",
                *KEYS,
                "--yes",
            ]
        )
        == 0
    )
    lab.check(lab.new / "d1", NEW)


# -- interrupted -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [("--api-key", OLD, "--new-api-key", "third-key-0123456789"), ("--api-key", OLD)],
    ids=["a third key", "decrypt"],
)
def test_another_operation_does_not_go_on(lab: RekeyLab, tool: Tool, keys: tuple[str, ...]) -> None:
    lab.fill("d1", cipher_of(OLD))
    lab.write("d2/memories.json", b"hello")
    assert tool(*KEYS) == 1
    before = lab.everything()
    assert tool(*keys) == 1 and "something else" in tool.err and lab.everything() == before
    lab.write("d2/memories.json", CONTENT)
    assert tool(*KEYS) == 0


@pytest.mark.parametrize("journal", [b"{", b"[]"])
def test_a_damaged_journal(lab: RekeyLab, tool: Tool, journal: bytes) -> None:
    lab.fill("d1", cipher_of(OLD))
    lab.write(rekey_journal.NAME, journal)
    assert tool(*KEYS) == 1 and "damaged" in tool.err
    (lab.old / rekey_journal.NAME).unlink()
    lab.check(lab.old / "d1", OLD)


def test_what_is_done_is_not_touched_again(lab: RekeyLab, tool: Tool) -> None:
    lab.write("d1/memories.json", b"hello")
    lab.write("d2/memories.json", [], cipher_of(OLD))
    assert tool(*KEYS) == 1
    lab.write("d1/memories.json", b"[]")
    lab.write("d2/memories.json", b"whatever it holds now")
    assert tool(*KEYS) == 0 and "1 file(s) encrypted with the new key, 1 were so before" in tool.out
    assert (lab.new / "d2/memories.json").read_bytes() == b"whatever it holds now"


def test_a_journal_of_an_older_version(lab: RekeyLab, tool: Tool) -> None:
    folder = lab.fill("d1", cipher_of(OLD))
    done = lab.write("d2/memories.json", [], cipher_of(NEW)).read_bytes()
    lab.write(rekey_journal.NAME, {"completed": [str(folder / "memories.json")]})
    assert tool(*KEYS) == 0 and (lab.new / "d2/memories.json").read_bytes() == done
    lab.check(lab.new / "d1", NEW)


@pytest.mark.parametrize("new", [NEW, OLD], ids=["another key", "the same key"])
@pytest.mark.parametrize("done", [(), FILES], ids=["nothing done", "one done"])
def test_an_older_version_was_interrupted(lab: RekeyLab, tool: Tool, new: str, done: tuple[str, ...]) -> None:
    """It knew only format 1; what it has begun is finished in it, and gets format 2 by the next change."""
    lab.fill("d1", cipher_of(OLD))
    lab.fill("d2", cipher_for(derive_encryption_key(new if done else OLD, USER)))
    names, completed = [hash_api_key(OLD), hash_api_key(new)], [f"d2/{name}" for name in done]
    begun = {"operation": "re-key", "user": USER, "old": names[0], "new": names[1], "completed": completed}
    lab.write(rekey_journal.NAME, begun)
    # Anything else still has to wait.
    before = lab.everything()
    for words in ((), ("--new-api-key", "third-key-0123456789")):
        assert tool("--api-key", OLD, *words) == 1 and "something else" in tool.err and lab.everything() == before
    assert tool("--api-key", OLD, "--new-api-key", new) == 0
    for name in ("d1", "d2"):
        lab.check(lab.root / names[1] / name, new, salt=None)
    assert tool("--api-key", new, "--new-api-key", new) == 0 and not list(lab.root.rglob(rekey_journal.NAME))
    lab.check(lab.root / key_folder_name(new, SALT) / "d1", new, salt=SALT)


KILLED = 77
AT_A_STEP = """
import os
seen = 0
def hook(event, arguments):
    global seen
    mine = any({root!r} in str(argument) for argument in arguments) and (event != 'open' or arguments[1] != 'r')
    if mine and event in ('open', 'os.rename', 'os.remove', 'os.mkdir', 'sqlite3.connect'):
        seen += 1
        if seen == {number}:
            os._exit({killed})
sys.addaudithook(hook)
"""
"""Ends the process without any clean-up at the n-th step that it takes in the folder of the discussions."""
AT_A_STATEMENT = """
import os
from Middleware.utilities.discussions.vector_memory import schema
prepare = schema.prepare
def prepare_and_watch(database):
    prepare(database)
    database.set_trace_callback(lambda statement: os._exit({killed}) if {statement!r} in statement else None)
schema.prepare = prepare_and_watch
"""
MOMENTS = {
    **{f"step {number}": AT_A_STEP.replace("{number}", str(number)) for number in (1, 3, 9, 24, 41, 60)},
    **{
        name: AT_A_STATEMENT.replace("{statement!r}", repr(name))
        for name in ("UPDATE memories SET", "COMMIT", "VACUUM", "PRAGMA wal_checkpoint")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", list(MOMENTS.values()), ids=list(MOMENTS))
def test_killed_at_any_moment_and_run_again(lab: RekeyLab, tool: Tool, moment: str) -> None:
    lab.fill("d1", NO_CIPHER)
    lab.fill("d2", cipher_of(OLD))
    killed = lab.start(
        "--yes",
        keys={"WILMER_API_KEY": OLD, "WILMER_NEW_API_KEY": NEW},
        before=moment.format(root=str(lab.root), killed=KILLED),
    )
    assert killed.returncode == KILLED, killed.stderr
    assert tool(*KEYS) == 0
    lab.check(lab.new / "d1", NEW)
    lab.check(lab.new / "d2", NEW)
    assert not lab.in_clear() and sorted(path.name for path in lab.root.iterdir()) == [SALT_FILE, lab.new.name]


SOURCES = {
    "format 1": (False, True),
    "format 2": (True, True),
    "1, in clear": (False, False),
    "2, in clear": (True, False),
}
TARGETS = ("a new key", "the same key", "no key", "a key with data in format 1")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("second, encrypted", list(SOURCES.values()), ids=list(SOURCES))
def test_from_each_format_to_each_with_a_kill_between(
    lab: RekeyLab, tool: Tool, second: bool, encrypted: bool, target: str
) -> None:
    salt = SALT if second else None
    for name in ("d1", "d2"):
        lab.fill(name, cipher_of(OLD, salt=salt) if encrypted else NO_CIPHER)
    upgraded = lab.root / key_folder_name(OLD, SALT)
    if second:
        os.rename(lab.old, upgraded)
    expected: dict[str, tuple[str | None, Path, KeySalt | None]] = {
        "a new key": (NEW, lab.new, SALT),
        "the same key": (OLD, upgraded, SALT),
        "no key": (None, upgraded if second else lab.old, None),
        "a key with data in format 1": (NEW, lab.root / hash_api_key(NEW), None),
    }
    new, folder, salt = expected[target]
    if target == TARGETS[3]:
        folder.mkdir()
    keys = {"WILMER_API_KEY": OLD, **({"WILMER_NEW_API_KEY": new} if new else {})}
    killed = lab.start("--yes", keys=keys, before=MOMENTS["step 9"].format(root=str(lab.root), killed=KILLED))
    assert killed.returncode == KILLED, killed.stderr
    words = ("--api-key", OLD, *(("--new-api-key", new) if new else ()))
    if target == TARGETS[3]:
        assert tool(*words) == 1 and "by hand" in tool.err
        folder.rmdir()
        os.rename(upgraded if second else lab.old, folder)
    else:
        assert tool(*words) == 0
    for name in ("d1", "d2"):
        lab.check(folder / name, new, salt=salt)
    assert sorted(path.name for path in lab.root.iterdir()) == sorted([SALT_FILE, folder.name])
    # What the server finds with this key.
    assert key_place(new or OLD, USER).name == folder.name


def test_a_change_of_format_goes_on_in_the_other_place(lab: RekeyLab) -> None:
    live = lab.copy_into_installation(lab.fill("d1", cipher_of(OLD)))
    words = ["--user", USER, "--ConfigDirectory", str(lab.config.root), "--api-key", OLD, "--new-api-key", OLD, "--yes"]
    away = live.rename(live.with_name("away"))
    assert rekey_encrypted_files.main(words) == 0
    away.rename(live)
    assert rekey_encrypted_files.main(words) == 0
    for root in (lab.root, live.parent):
        lab.check(root / key_folder_name(OLD, SALT) / "d1", OLD)
        # A user whose folder is only one of the two can go on, too.
        assert SaltFiles().read([str(root)]) == SALT


def test_the_salt_is_made_before_the_first_file_is_changed(lab: RekeyLab, tool: Tool) -> None:
    """And not for a key that has nothing, nor by somebody who says no."""
    (lab.root / SALT_FILE).unlink()
    assert tool(*KEYS) == 1 and not list(lab.root.iterdir())
    lab.fill("d1", cipher_of(OLD))
    assert tool(*KEYS, answer="N\n") == 1 and os.listdir(lab.root) == [lab.old.name]
    killed = lab.start(
        "--yes",
        keys={"WILMER_API_KEY": OLD, "WILMER_NEW_API_KEY": NEW},
        before=MOMENTS["step 9"].format(root=str(lab.root), killed=KILLED),
    )
    assert killed.returncode == KILLED, killed.stderr
    made = parse_salt((lab.root / SALT_FILE).read_text(encoding="utf-8"), "")
    assert made != SALT and tool(*KEYS) == 0
    folder = lab.root / key_folder_name(NEW, made)
    assert cipher_for(derive_encryption_key(NEW, USER, made)).decrypt((folder / "d1/memories.json").read_bytes())


@pytest.mark.parametrize("content", ["{", '{"version": 3}', None], ids=["damaged", "newer", "missing"])
def test_a_salt_that_cannot_be_used_stops_it(lab: RekeyLab, tool: Tool, content: str | None) -> None:
    lab.fill("d1", cipher_of(OLD))
    (lab.root / SALT_FILE).unlink()
    if content is None:
        (lab.new / "d1").mkdir(parents=True)
    else:
        (lab.root / SALT_FILE).write_text(content, encoding="utf-8")
    before = lab.everything()
    assert tool(*KEYS) == 1 and tool.err.startswith(f"{lab.root / SALT_FILE}: {SALT_FILE} is ")
    assert lab.everything() == before


def test_interrupted_after_the_folder_got_its_name(lab: RekeyLab, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.fill("d1", cipher_of(OLD))
    with monkeypatch.context() as patch:
        patch.setattr(rekey_journal, "remove", _interrupt)
        assert tool(*KEYS) == 1 and "Run it again" in tool.err
    assert (lab.new / rekey_journal.NAME).exists()
    third = lab.root.parent / "copy"
    shutil.copytree(lab.root, third)
    assert tool(*KEYS) == 0 and not list(lab.root.rglob(rekey_journal.NAME))
    lab.check(lab.new / "d1", NEW)
    shutil.rmtree(lab.root)
    os.rename(third, lab.root)  # the journal says nothing of the next change of key
    assert tool("--api-key", NEW, "--new-api-key", OLD) == 0 and not list(lab.root.rglob(rekey_journal.NAME))
    lab.check(lab.root / key_folder_name(OLD, SALT) / "d1", OLD)


def _interrupt(folder: str) -> None:
    raise KeyboardInterrupt


# -- started as people do ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_as_a_process_without_a_terminal(lab: RekeyLab) -> None:
    lab.fill("d1", cipher_of(OLD))
    assert lab.start("--yes", keys={}).returncode == 2
    assert lab.start(keys={"WILMER_API_KEY": OLD}).returncode == 1  # nobody answers about the backup
    done = lab.start("--yes", keys={"WILMER_API_KEY": OLD, "WILMER_NEW_API_KEY": NEW})
    assert (done.returncode, done.stderr) == (0, "")
    assert "The server must be stopped." in done.stdout and "STOP" not in done.stdout
    lab.check(lab.new / "d1", NEW)


@posix
@pytest.mark.parametrize(
    "present, used",
    [(["venv", ".venv", ".venv1"], "venv"), ([".venv", ".venv1"], ".venv"), ([".venv1"], ".venv1"), ([], None)],
    ids=["all", "two", "one", "none"],
)
def test_the_wrapper_takes_the_first_environment(tmp_path: Path, present: list[str], used: str | None) -> None:
    (tmp_path / "Scripts").mkdir()
    shutil.copy(SCRIPTS / "rekey_encrypted_files.sh", tmp_path / "Scripts")
    for name in present:
        binaries = tmp_path / name / "bin"
        binaries.mkdir(parents=True)
        (binaries / "activate").write_text(f'PATH="{binaries}:$PATH"\n', encoding="utf-8")
        (binaries / "python").write_text(f'#!/bin/sh\necho {name} "$@"\nexit 7\n', encoding="utf-8")
        (binaries / "python").chmod(0o755)
    done = subprocess.run(
        [str(tmp_path / "Scripts/rekey_encrypted_files.sh"), "--user", "a b"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        cwd="/",
    )
    if used is None:
        assert done.returncode == 1 and "venv, .venv or .venv1" in done.stderr and not done.stdout
    else:
        assert (done.returncode, done.stdout) == (7, f"{used} {tmp_path}/Scripts/rekey_encrypted_files.py --user a b\n")


def test_the_wrapper_for_windows_says_the_same() -> None:
    text = (SCRIPTS / "rekey_encrypted_files.bat").read_text(encoding="utf-8")
    assert "(venv .venv .venv1)" in text and 'rekey_encrypted_files.py" %*' in text and "exit /b 1" in text


# -- the list of accepted keys -----------------------------------------------------------------------------------------

LIST = f"# phones\n{OLD} user={USER}  # ann's\nanother-key-of-some-length\n"


@pytest.mark.parametrize("stored", [str, lambda key: HASHED + sha256(key.encode()).hexdigest()], ids=["plain", "hash"])
def test_the_list_of_accepted_keys_gets_the_new_key(
    lab: RekeyLab, tool: Tool, tmp_path: Path, stored: Callable[[str], str]
) -> None:
    lab.fill("d1", cipher_of(OLD))
    file = tmp_path / "keys.txt"
    file.write_text(LIST.replace(OLD, stored(OLD)), encoding="utf-8")
    assert tool(*KEYS, "--accepted-keys-file", str(file)) == 0
    assert f"{file}: the new key is in line 2, in place of the old one." in tool.out
    line = f"{HASHED}{sha256(NEW.encode()).hexdigest()}"
    assert file.read_text(encoding="utf-8") == LIST.replace(OLD, line)


def test_a_list_elsewhere(lab: RekeyLab, tool: Tool, tmp_path: Path) -> None:
    """The program does not know which list the server will be started with, so it prints the line for it."""
    lab.fill("d1", cipher_of(OLD))
    assert tool(*KEYS) == 0
    assert f"replace the line of the old key by: {HASHED}{sha256(NEW.encode()).hexdigest()}" in tool.out


@pytest.mark.parametrize("content", ["another-key-of-some-length", None])
def test_a_list_without_the_old_key(lab: RekeyLab, tool: Tool, tmp_path: Path, content: str | None) -> None:
    lab.fill("d1", cipher_of(OLD))
    file = tmp_path / "keys.txt"
    if content:
        file.write_text(content, encoding="utf-8")
    assert tool(*KEYS, "--accepted-keys-file", str(file)) == (0 if content else 1)
    assert ("the old key is not in it" in tool.out) is bool(content)
    assert ("there is no such file of keys" in tool.err or "No such file" in tool.err) is not bool(content)
    assert lab.new.exists()
