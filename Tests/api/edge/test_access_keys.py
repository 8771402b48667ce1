"""The list of accepted keys: what its lines say, what is wrong with them, and edits while the server runs."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from Middleware.api.edge import access_keys
from Middleware.api.edge.access_keys import RECHECK_SECONDS, AccessKeys, AccessKeysError, Grant, parse_keys
from Middleware.exceptions import ConfigurationError
from Middleware.utilities.command_lines import own_command

LONG = "a-key-of-some-length"
OTHER = "another-key-of-some-length"
USERS = ["ann", "bob", "Carol Ann"]
EVERYONE = Grant()


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode("utf-8")).hexdigest()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class KeyFile:
    """A list on disk, and the object that reads it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.txt"
        self.clock = Clock()

    def write(self, text: str | bytes) -> None:
        self.path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)

    def load(self, text: str | bytes) -> AccessKeys:
        self.write(text)
        return AccessKeys(str(self.path), lambda: USERS, self.clock)

    def edit(self, text: str) -> None:
        """Change the file, and let the time pass after which it is looked at again."""
        self.write(text)
        self.pass_time()

    def pass_time(self) -> None:
        self.clock.now += RECHECK_SECONDS


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path)


def raise_error(error: Exception) -> None:
    raise error


def grant(keys: AccessKeys, key: str, scheme: str = "Bearer") -> Grant | None:
    return keys.grant(f"{scheme} {key}")


# -- lines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"{LONG}\n",
        f"  {LONG}  \r\n",
        f"# mine\n\n{LONG} # phone\n",
        f"\ufeff{LONG}",
        f"x\n{LONG}\ny",
        hashed(LONG),
        hashed(LONG).upper().replace("SHA", "sha"),
        f"\t{hashed(LONG)}\t# a\n#b",
    ],
)
def test_a_key_of_the_list_opens_for_every_user(file: KeyFile, text: str) -> None:
    keys = file.load(text)
    assert grant(keys, LONG) == EVERYONE
    assert grant(keys, OTHER) is None


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (f"{LONG} user=ann", {"ann"}),
        (f"{LONG}\tuser=Carol Ann  # both names", {"Carol Ann"}),
        (f"{hashed(LONG)}   user=bob", {"bob"}),
        (f"{LONG} user=ann\n{hashed(LONG)} user=bob", {"ann", "bob"}),
        (f"{OTHER}\n{LONG} user= ann", {"ann"}),
        (f"{LONG} user=ann\n{LONG}", None),
        (f"{LONG}\n{LONG} user=ann", None),
    ],
)
def test_a_key_may_be_for_some_users(file: KeyFile, text: str, users: set[str] | None) -> None:
    assert grant(file.load(text), LONG) == Grant(None if users is None else frozenset(users))


@pytest.mark.parametrize(
    ("text", "console", "users"),
    [
        (LONG, "", set()),
        (f"{LONG} console=own", "own", None),
        (f"{LONG}\tconsole=all   user=Carol Ann # x", "all", {"Carol Ann"}),
        (f"{hashed(LONG)} console=all user=ann\n{LONG} user=bob", "all", {"ann"}),
        (f"{LONG} console=own\n{LONG} console=all user=ann", "all", None),
        (f"{LONG} console=all user=nobody", None, None),
    ],
)
def test_a_line_says_what_its_key_sees_in_the_console(
    file: KeyFile, text: str, console: str | None, users: set[str] | None
) -> None:
    found = grant(file.load(text), LONG)
    if console is None:
        assert found is None
    else:
        assert found is not None and found.console == console
        assert found.console_users == (None if users is None else frozenset(users))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"{LONG} console=", "takes 'own'"),
        (f"{LONG} console=edit", "'edit'"),
        ("console=own user=ann", "key is missing"),
        (f"{LONG} user=ann console=own", "behind the key"),
        (f"{LONG} consle=own", "console=own"),
    ],
)
def test_a_wrong_word_for_the_console_is_named_with_its_line(file: KeyFile, text: str, word: str) -> None:
    with pytest.raises(AccessKeysError, match="line 1") as error:
        file.load(text)
    assert word in str(error.value)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        LONG,
        f"Basic {LONG}",
        f"Bearer{LONG}",
        f"Bearer {LONG}x",
        f"Bearer {LONG[:-1]}",
        f"Bearer {LONG.upper()}",
        f"Bearer {hashed(LONG)}",
        f"Bearer {hashed(LONG)[7:]}",
        f"Bearer {LONG} {LONG}",
        f"Bearer {LONG}, Bearer {LONG}",
        "Bearer #",
        "Bearer \ud800",
    ],
)
def test_no_key_of_the_list_no_entry(file: KeyFile, header: str | None) -> None:
    assert file.load(f"# {OTHER}\n{LONG}").grant(header) is None


def test_the_scheme_may_be_spelled_as_one_likes_and_the_log_tells_what_that_costs(
    file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    keys = file.load(LONG)
    assert grant(keys, LONG) == EVERYONE and caplog.text == ""
    assert grant(keys, OTHER, "bEARER") is None and caplog.text == ""
    for scheme in ("bearer", "BEARER"):
        assert grant(keys, LONG, scheme) == EVERYONE
    assert len(caplog.records) == 1 and "bearer" in caplog.text and LONG not in caplog.text


def test_a_key_of_one_user_needs_the_spelling_by_which_conversations_are_kept_apart(file: KeyFile) -> None:
    keys = file.load(f"{LONG} user=ann\n{OTHER}\n{OTHER} user=bob")
    assert grant(keys, LONG) == Grant(frozenset(["ann"])) and grant(keys, LONG, "bearer") is None
    assert grant(keys, OTHER, "bearer") == EVERYONE


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("store", [str, hashed], ids=["plain", "hashed"])
@pytest.mark.parametrize("key", ["schlüssel-für-drei", "la-clé-qui-est-là"])  # à ends with the byte of a blank
def test_a_key_that_is_not_ascii(file: KeyFile, key: str, store: Callable[[str], str], encoding: str) -> None:
    keys = file.load(store(key))
    assert grant(keys, key.encode(encoding).decode("latin-1")) == EVERYONE
    assert grant(keys, key.encode("ascii", "ignore").decode()) is None


def test_every_key_is_compared_whichever_fits(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    keys = file.load("\n".join(f"key-number-{number:010}" for number in range(5)))

    def compare(sent: bytes, known: bytes) -> bool:
        compared.append(known)
        return sent == known

    monkeypatch.setattr("Middleware.api.edge.access_keys.hmac.compare_digest", compare)
    for key in ("key-number-0000000000", "key-number-0000000004", "none"):
        compared.clear()
        grant(keys, key)
        assert len(set(compared)) == 5


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no key in it"),
        ("# nothing\n\n  \n", "no key in it"),
        (f"\n{LONG}\nsha256:12", "line 3: .*64 hexadecimal"),
        (f"{LONG}\n{hashed(LONG)}0", "line 2: .*64 hexadecimal"),
        ("sha256:" + "g" * 64, "line 1: .*64 hexadecimal"),
        ("sha256:", "64 hexadecimal"),
        (f"sha256: {'0' * 64}", "line 1: "),
        (f"{LONG} alice", "line 1: .*'user=NAME'"),
        (f"{LONG} user=", "line 1: .*'user=NAME'"),
        ("user=ann", "line 1: the key is missing"),
        (f"{LONG}\nse\x00cret-of-some-length", "line 2: .*control"),
        (f"{LONG}\n".encode() + b"\xff\xfe", "line 2: .*UTF-8"),
        (LONG.encode("utf-16"), "line 1: .*UTF-8"),
    ],
)
def test_mistakes_are_named_with_file_and_line_and_without_the_key(
    file: KeyFile, text: str | bytes, problem: str
) -> None:
    with pytest.raises(AccessKeysError, match=problem) as caught:
        file.load(text)
    assert str(file.path) in str(caught.value) and "\n" not in str(caught.value)
    assert "length" not in str(caught.value) and hashed(LONG)[7:20] not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "hint"), [("anne", " Did you mean 'ann'?"), ("ANN", " Did you mean 'ann'?"), ("zzz", "")]
)
def test_a_key_of_a_user_who_is_not_served_admits_no_client(
    file: KeyFile, caplog: pytest.LogCaptureFixture, user: str, hint: str
) -> None:
    """The other keys of the list are good, and the start goes on with a warning."""
    keys = file.load(f"{OTHER}\n# x\n{LONG} user={user}")
    assert grant(keys, OTHER) == EVERYONE and grant(keys, LONG) is None and len(keys.keys) == 1
    (text,) = (text for text in keys.warnings() if "one of the users" in text)
    assert text == (
        f"{file.path}, line 3: '{user}' is not one of the users that are served ({', '.join(USERS)}), so this "
        f"key admits no client.{hint}"
    )
    file.edit(f"{OTHER}\n{LONG} user={user}")
    assert grant(keys, LONG) is None and [record.levelname for record in caplog.records] == []
    file.edit(f"{OTHER}\n{LONG} user=ann")
    assert grant(keys, LONG) == Grant(frozenset(["ann"])) and not keys.warnings()[1:]
    file.edit(f"{OTHER}\n{LONG} user={user}x")
    assert grant(keys, LONG) is None and f"line 2: '{user}x' is not one" in caplog.text


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "none.txt", "no such file"),
        (tmp_path, "not a file"),
        (Path(f"{tmp_path}/a\x00b"), "cannot be read"),
    ):
        with pytest.raises(AccessKeysError, match=problem) as caught:
            AccessKeys(str(path), lambda: USERS)
        assert re.escape(str(path)) and str(path) in str(caught.value)


@pytest.mark.skipif(
    sys.platform == "win32" or not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="nothing keeps this account from reading",
)
def test_a_file_that_may_not_be_read(file: KeyFile) -> None:
    file.write(LONG)
    file.path.chmod(0)
    with pytest.raises(AccessKeysError, match="cannot be read: Permission denied"):
        AccessKeys(str(file.path), lambda: USERS)


def test_a_large_file_is_no_list(file: KeyFile) -> None:
    with pytest.raises(AccessKeysError, match="too large"):
        file.load(f"{LONG}\n" * 60_000)


# -- warnings ----------------------------------------------------------------------------------------------------------

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="file modes do not say who may read there")


@posix_only
@pytest.mark.parametrize(
    ("mode", "text", "warned"),
    [
        (0o600, LONG, False),
        (0o640, LONG, False),
        (0o644, LONG, True),
        (0o604, LONG, True),
        (0o644, hashed(LONG), False),
        (0o644, f"{hashed(LONG)}\n{OTHER}", True),
    ],
)
def test_a_list_of_keys_that_others_can_read(file: KeyFile, mode: int, text: str, warned: bool) -> None:
    keys = file.load(text)
    file.path.chmod(mode)
    assert any("can read" in warning for warning in keys.warnings()) == warned


@pytest.mark.parametrize(
    ("text", "warned"), [("short", True), ("x" * 15, True), ("x" * 16, False), (hashed("short"), False)]
)
def test_a_key_that_may_be_guessed(file: KeyFile, text: str, warned: bool) -> None:
    keys = file.load(text)
    file.path.chmod(0o600)
    assert bool(keys.warnings()) == warned
    assert "short" not in "".join(keys.warnings())


def test_the_lines_of_keys_that_may_be_guessed(file: KeyFile) -> None:
    keys = file.load(f"# mine\n{LONG}\nshort\n\nbrief user=ann\n")
    file.path.chmod(0o600)
    assert [re.findall(r"line (\d)", warning) for warning in keys.warnings()] == [["3"], ["5"]]


def test_commands_are_whole(tmp_path: Path) -> None:
    """So that they can be copied, wherever one is."""
    path = tmp_path / "my keys"
    texts = []
    for content in (None, b"# none"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(AccessKeysError) as caught:
            AccessKeys(str(path), lambda: USERS)
        texts.append(str(caught.value))
    path.write_bytes(b"short")
    path.chmod(0o644)
    texts += AccessKeys(str(path), lambda: USERS).warnings()
    assert all(text.endswith(own_command("keys", "add", "--accepted-keys-file", str(path))) for text in texts[:3])
    assert sys.platform == "win32" or texts[3].endswith(f": chmod 600 '{path}'")


@pytest.mark.parametrize("field", ["user=", "user= ", "user=  # ann"])
def test_a_field_without_a_name(field: str) -> None:
    with pytest.raises(AccessKeysError, match="f, line 1: user= needs a name"):
        parse_keys(f"{LONG} {field}".encode(), USERS, "f")


# -- edits while the server runs ---------------------------------------------------------------------------------------


def test_an_edit_counts_after_a_second(file: KeyFile) -> None:
    keys = file.load(LONG)
    file.write(OTHER)
    assert grant(keys, LONG) == EVERYONE and grant(keys, OTHER) is None
    file.pass_time()
    assert grant(keys, LONG) is None and grant(keys, OTHER) == EVERYONE


def test_an_edit_that_changes_no_time_stamp_counts_too(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time stamps advance in steps, two edits of the same size may look alike."""
    signature = (int(time.time()) * 1_000_000_000, 20)
    monkeypatch.setattr("Middleware.api.edge.access_keys.file_signature", lambda path: signature)
    keys = file.load("a" * 20)
    for letter in "bc":
        file.edit(letter * 20)
        assert grant(keys, letter * 20) == EVERYONE


@pytest.mark.parametrize("text", ["", f"# {LONG}\n"], ids=["empty", "comments"])
def test_a_list_whose_last_key_was_taken_away_admits_no_client(
    file: KeyFile, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    keys = file.load(LONG)
    file.edit(text)
    for _ in range(3):
        assert grant(keys, LONG) is None and keys.grant(None) is None
        file.pass_time()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert str(file.path) in caplog.text and "No client is admitted" in caplog.text and LONG not in caplog.text
    file.edit(f"{OTHER}\nsha256:1")
    assert grant(keys, OTHER) is None and grant(keys, LONG) is None
    file.edit(LONG)
    assert grant(keys, LONG) == EVERYONE


@pytest.mark.parametrize("text", [f"{OTHER}\nsha256:1", f"{OTHER} users=zoe"], ids=["bad hash", "unknown field"])
def test_a_broken_edit_leaves_the_last_good_list(file: KeyFile, caplog: pytest.LogCaptureFixture, text: str) -> None:
    keys = file.load(LONG)
    file.edit(text)
    for _ in range(3):
        assert grant(keys, LONG) == EVERYONE and grant(keys, OTHER) is None
        file.pass_time()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert str(file.path) in caplog.text and OTHER not in caplog.text
    file.edit(OTHER)
    assert grant(keys, LONG) is None and grant(keys, OTHER) == EVERYONE


def test_a_list_that_is_gone_opens_nothing(file: KeyFile, caplog: pytest.LogCaptureFixture) -> None:
    keys = file.load(LONG)
    file.path.unlink()
    file.pass_time()
    assert grant(keys, LONG) == EVERYONE and grant(keys, OTHER) is None and keys.grant(None) is None
    assert "no such file" in caplog.text
    file.edit(OTHER)
    assert grant(keys, OTHER) == EVERYONE


@pytest.mark.parametrize("failing", ["_read", "_users"])
def test_an_edit_that_could_not_be_read_at_first_is_tried_again(
    file: KeyFile, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Else a key that was taken away would stay good until somebody edits the file once more."""
    keys = file.load(LONG)
    owner = keys if failing == "_users" else access_keys
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, lambda *_: raise_error(ConfigurationError("broken")))
        file.write(OTHER)
        os.utime(file.path, (1, 1))
        file.pass_time()
        assert grant(keys, LONG) == EVERYONE
    file.pass_time()
    assert grant(keys, LONG) is None and grant(keys, OTHER) == EVERYONE


def test_a_file_that_stays_is_read_no_more(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = file.load(LONG)
    os.utime(file.path, (1, 1))
    file.pass_time()
    assert grant(keys, LONG) == EVERYONE
    monkeypatch.setattr("Middleware.api.edge.access_keys._read", lambda path: pytest.fail("read again"))
    file.pass_time()
    assert grant(keys, LONG) == EVERYONE


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (LONG, ""),
        (f"{LONG}  # Alice's phone", "Alice's phone"),
        (f"{LONG} user=ann #  two   words ", "two words"),
        (f"{hashed(LONG)}  # wilmer-Zk3x..., 2026-11-22", "wilmer-Zk3x..., 2026-11-22"),
        (f"{LONG} # a\x1b[31mb", "a?[31mb"),
        (f"{LONG} # {'x' * 50}", "x" * 40),
        (f"{OTHER} # other\n{LONG} user=ann\n{LONG} user=bob # Bob", "Bob"),
    ],
)
def test_a_comment_is_the_name_of_its_key(file: KeyFile, line: str, name: str) -> None:
    grant = file.load(line).grant(f"Bearer {LONG}")
    assert grant is not None and grant.name == name
