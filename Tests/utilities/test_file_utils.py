"""Plain text files and the files that workflows name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from Middleware.exceptions import DataKeyError, EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities import file_utils
from Middleware.utilities.config import json_source
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, cipher_for, derive_encryption_key
from Middleware.utilities.file_utils import (
    EMPTY_TEXT,
    MISSING_TEXT,
    load_custom_file,
    read_plain_text_file,
    save_custom_file,
    write_plain_text_file,
)
from Middleware.utilities.files.file_access import path_lock
from Tests.windows import LOCK_FILES, tells_capitals_apart

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.txt"


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


class Reversed:
    """A cipher that one can check by eye."""

    def encrypt(self, data: bytes) -> bytes:
        return b"#" + data[::-1]

    def decrypt(self, data: bytes) -> bytes:
        assert data[:1] == b"#"
        return data[:0:-1]


# -- plain text --------------------------------------------------------------------------------------------------------


def test_plain_text(path: Path) -> None:
    assert read_plain_text_file(str(path)) == "" and not path.exists()
    write_plain_text_file(str(path), "é\r\nx\n")
    assert read_plain_text_file(str(path)) == "é\r\nx\n" and path.read_bytes() == b"\xc3\xa9\r\nx\n"


def test_plain_text_uses_the_exact_name(path: Path) -> None:
    path.write_text("x")
    expected = "" if tells_capitals_apart(path.parent) else "x"
    assert read_plain_text_file(str(path.with_name("A.txt"))) == expected


def test_plain_text_through_a_cipher(path: Path) -> None:
    write_plain_text_file(str(path), "abc", Reversed())
    write_plain_text_file(str(path), "def", Reversed(), backup_suffix=".bak")
    assert path.read_bytes() == b"#fed" and path.with_name("a.txt.bak").read_bytes() == b"#cba"
    assert read_plain_text_file(str(path), Reversed()) == "def"


def test_plain_text_under_a_key(path: Path) -> None:
    key = derive_encryption_key("a key")
    write_plain_text_file(str(path), "abc", encryption_key=key)
    write_plain_text_file(str(path), "def", backup_suffix=".bak", encryption_key=key)
    assert path.read_bytes().startswith(b"gAAAA") and path.with_name("a.txt.bak").read_bytes().startswith(b"gAAAA")
    assert read_plain_text_file(str(path), encryption_key=key) == "def"
    with pytest.raises(DataKeyError):
        read_plain_text_file(str(path))


TOKEN = cipher_for(derive_encryption_key("a key")).encrypt(b"x" * 40)


@pytest.mark.parametrize("cipher", [NO_CIPHER, cipher_for(derive_encryption_key("a key"))], ids=["clear", "encrypted"])
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("kept", [5, 6, 99, 100, len(TOKEN) - 20, len(TOKEN) - 1])
def test_a_token_cut_off_is_no_text(path: Path, kept: int, end: bytes, cipher: Cipher) -> None:
    data = TOKEN[:kept] + end
    path.write_bytes(data)
    with pytest.raises(DataKeyError):
        read_plain_text_file(str(path), cipher)
    with pytest.raises(DataKeyError):
        write_plain_text_file(str(path), "x", cipher, backup_suffix=".bak")
    assert path.read_bytes() == data and names(path.parent) == ["a.txt"]


@pytest.mark.parametrize("text", ["gAAAA, said the owl.", "gAAA", "gAAAA\nBBBB", "gAAAA===", "AgAAAA"])
@pytest.mark.parametrize("cipher", [NO_CIPHER, cipher_for(derive_encryption_key("a key"))], ids=["clear", "encrypted"])
def test_text_that_begins_like_a_token(path: Path, text: str, cipher: Cipher) -> None:
    path.write_text(text, encoding="utf-8", newline="")
    assert read_plain_text_file(str(path), cipher) == text


@given(st.one_of(st.text(max_size=30), st.text("ABCz09-_=\n", max_size=130).map("gAAAA{}".format)))
def test_any_text_is_read_as_it_was_written(text: str) -> None:
    for cipher in (NO_CIPHER, cipher_for(derive_encryption_key("a key"))):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "a.txt"))
            for _ in range(2):
                write_plain_text_file(path, text, cipher, backup_suffix=".bak")
                read = read_plain_text_file(path, cipher)
                assert read == text or (read == f" {text}" and text.startswith("gAAAA") and not cipher.active)


def test_backup(path: Path) -> None:
    write_plain_text_file(str(path), "1", backup_suffix=".bak")
    assert names(path.parent) == ["a.txt"]
    write_plain_text_file(str(path), "2", backup_suffix=".bak")
    write_plain_text_file(str(path), "3", backup_suffix=".bak")
    assert (path.read_text(), path.with_name("a.txt.bak").read_text()) == ("3", "2")


def test_nothing_is_written_when_the_backup_fails(path: Path) -> None:
    path.write_text("1")
    path.with_name("a.txt.bak").mkdir()
    with pytest.raises(OSError):
        write_plain_text_file(str(path), "2", backup_suffix=".bak")
    assert path.read_text() == "1"


@pytest.mark.skipif(os.name == "nt", reason="permission bits")
def test_a_backup_is_no_more_open_than_the_file(path: Path) -> None:
    path.write_text("1")
    path.chmod(0o600)
    write_plain_text_file(str(path), "2", backup_suffix=".bak")
    assert stat.S_IMODE(path.with_name("a.txt.bak").stat().st_mode) == 0o600


# -- reading custom files ----------------------------------------------------------------------------------------------


def load(path: Path, data: bytes | str, *arguments: object, **options: object) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return load_custom_file(str(path), *arguments, **options)  # type: ignore[arg-type]


def test_missing_and_empty(path: Path, tmp_path: Path) -> None:
    assert load_custom_file(str(path)) == MISSING_TEXT == "Custom instruction file did not exist"
    assert load_custom_file(str(tmp_path)) == load_custom_file("") == load_custom_file("a\0b") == MISSING_TEXT
    assert load(path, "") == EMPTY_TEXT == "No additional information added"
    assert load(path, b"\xef\xbb\xbf") == EMPTY_TEXT


def test_a_file_that_vanishes_at_the_last_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_utils, "find_file_ignoring_case", lambda found: found)
    assert load_custom_file(str(path)) == MISSING_TEXT


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX systems")
def test_a_pipe_does_not_block(path: Path) -> None:
    os.mkfifo(path)
    assert load_custom_file(str(path)) == MISSING_TEXT


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfx", "x"),
        ("é😀".encode(), "é😀"),
        (b"a\r\nb\rc\n", "a\nb\nc\n"),
        (b"caf\xe9", "café"),
        (b"\x81 x", "\ufffd x"),
        (b" \n", " \n"),
        (b"{a}", "{a}"),
    ],
)
def test_decoding(path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, text: str) -> None:
    monkeypatch.setattr(json_source, "legacy_code_page", lambda: "cp1252")
    assert load(path, data) == text


def test_case_of_the_name_but_not_of_folders(tmp_path: Path) -> None:
    (tmp_path / "Folder").mkdir()
    (tmp_path / "Folder" / "Notes.md").write_text("x")
    assert load_custom_file(str(tmp_path / "Folder" / "nOtEs.MD")) == "x"
    if not (tmp_path / "folder").exists():
        assert load_custom_file(str(tmp_path / "folder" / "Notes.md")) == MISSING_TEXT


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert save_custom_file("~/n/a.txt", "x") is None
    assert (tmp_path / "n" / "a.txt").read_text() == "x" == load_custom_file("~/n/a.txt")


@pytest.mark.parametrize(
    ("delimiter", "custom", "text"),
    [
        ("\n", "|", "l1|l2|l3|"),
        (None, None, "l1\nl2\nl3\n"),
        ("\n", None, "l1\nl2\nl3\n"),
        (None, "|", "l1\nl2\nl3\n"),
        ("", "|", "l1\nl2\nl3\n"),
        ("\n", "", "l1\nl2\nl3\n"),
        ("l", "{x}", "{x}1\n{x}2\n{x}3\n"),
    ],
)
def test_replacement(path: Path, delimiter: str | None, custom: str | None, text: str) -> None:
    assert load(path, "l1\nl2\nl3\n", delimiter, custom) == text


@pytest.mark.parametrize(
    ("head", "tail", "text"),
    [
        (1, None, "a"),
        (None, 1, ""),
        (None, 0, ""),
        (0, None, ""),
        (None, 9, "a\nb\n\nc\n"),
        (9, None, "a\nb\n\nc\n"),
        (None, 2, "c\n"),
        (2, None, "a\nb"),
        (1, 2, "c\n"),
        (None, -1, ""),
        (-1, None, ""),
    ],
)
def test_counts(path: Path, head: int | None, tail: int | None, text: str) -> None:
    assert load(path, "a\nb\n\nc\n", None, None, head, tail) == text


def test_counts_come_before_the_replacement(path: Path) -> None:
    assert load(path, "a;b\nc;d\ne", ";", "\n", tail_count=2) == "c\nd\ne"
    assert load(path, "a--b--c", "b", "x", head_count=2, chunk_delimiter="--") == "a--x"
    assert load(path, "a\nb\nc", tail_count=1, chunk_delimiter="") == "c"


LINES = st.lists(st.sampled_from(["", "a", "bc", "long line " * 9, "é", "\r"]), max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.integers(1, 12), st.sampled_from([b"", b"\xff\n"]))
def test_the_end_of_a_large_file_is_what_the_whole_file_says(
    path: Path, lines: list[str], end: str, count: int, head: bytes
) -> None:
    path.write_bytes(head + end.join(lines).encode())
    whole = load_custom_file(str(path), tail_count=count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_utils, "LARGE_FILE", 1)
        patch.setattr(file_utils, "TAIL_BLOCK", 8)
        assert load_custom_file(str(path), tail_count=count) == whole


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\n" + "é\n".encode() * 20, "Ã©\n"),
        (b"x" * 30 + b"\r\nyy\r\n", "yy\n"),
        (b"x" * 30 + b"\ny\rz", "y\nz"),
        (b"x\n" * 20 + "é".encode() * 9, "x\n" + "é" * 9),
    ],
)
def test_the_end_of_a_large_file(path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, text: str) -> None:
    monkeypatch.setattr(json_source, "legacy_code_page", lambda: "cp1252")
    monkeypatch.setattr(file_utils, "LARGE_FILE", 1)
    monkeypatch.setattr(file_utils, "TAIL_BLOCK", 7)
    assert load(path, data, tail_count=2) == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    LINES,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(-1, 12),
    st.sampled_from([b"", b"\xff\n", b"\xef\xbb\xbf"]),
    st.sampled_from([b"", b"\xff\n"]),
)
def test_the_start_of_a_large_file_is_what_the_whole_file_says(
    path: Path, lines: list[str], end: str, count: int, head: bytes, tail: bytes
) -> None:
    path.write_bytes(head + end.join(lines).encode() + tail)
    whole = load_custom_file(str(path), head_count=count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_utils, "LARGE_FILE", 1)
        assert load_custom_file(str(path), head_count=count) == whole


@pytest.mark.skipif(os.name == "nt", reason="files with holes")
def test_only_the_start_of_a_large_file_is_read(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(b"".join(b"line %d\r\n" % number for number in range(30_000)))
        file.seek(1 << 40)
        file.write(b"end")
    assert load_custom_file(str(path), head_count=2) == "line 0\nline 1"
    assert load_custom_file(str(path), "\n", "|", head_count=30_000).count("|") == 29_999


@pytest.mark.skipif(os.name == "nt", reason="files with holes")
def test_only_the_end_of_a_large_file_is_read(path: Path) -> None:
    with open(path, "wb") as file:
        file.seek(1 << 40)  # a hole: reading all of it would take minutes and fill the memory
        file.write(b"\n".join(b"line %d" % number for number in range(100_000)))
    assert load_custom_file(str(path), tail_count=2) == "line 99998\nline 99999"
    assert load_custom_file(str(path), "\n", "|", tail_count=30_000).count("|") == 29_999


# -- writing custom files ----------------------------------------------------------------------------------------------


def test_overwrite_and_append(path: Path) -> None:
    assert save_custom_file(str(path), "x") is None
    assert save_custom_file(str(path), "y", "append") is None
    assert path.read_text() == "xy"
    assert save_custom_file(str(path), "") is None
    assert path.read_text() == ""


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_new_files_and_folders(tmp_path: Path, mode: str) -> None:
    save_custom_file(str(tmp_path / "n" / "m" / "a.txt"), "x\r\né", mode)
    assert (tmp_path / "n" / "m" / "a.txt").read_bytes() == b"x\r\n\xc3\xa9"


@pytest.mark.parametrize(
    ("mode", "content", "find", "count", "text"),
    [
        ("replace", "-", "a", 3, b"-\r\nb-\n\n  \n-c"),
        ("replace", "", "\n", 4, b"a\rba  ac"),
        ("replace", "[a]", "a", 3, b"[a]\r\nb[a]\n\n  \n[a]c"),
        ("remove", "", "a", 3, b"\n  \n"),
        ("remove", "", "ba", 1, b"a\r\n\n  \nac"),
        ("trim", "", None, 2, b"a\r\nba\nac"),
    ],
)
def test_edits(path: Path, mode: str, content: str, find: str | None, count: int, text: bytes) -> None:
    path.write_bytes(b"a\r\nba\n\n  \nac")
    assert save_custom_file(str(path), content, mode, find) == count
    assert path.read_bytes() == text


@pytest.mark.parametrize(("mode", "find"), [("replace", "x"), ("remove", "x"), ("remove", "\n"), ("trim", None)])
def test_an_edit_without_a_hit_writes_nothing(path: Path, mode: str, find: str | None) -> None:
    assert save_custom_file(str(path), "y", mode, find) == 0 and not path.exists()
    assert save_custom_file(str(path.parent / "n" / "a.txt"), "y", mode, find) == 0
    assert names(path.parent) == LOCK_FILES
    path.write_text("a\n")
    os.utime(path, (1, 1))
    assert save_custom_file(str(path), "y", mode, find) == 0
    assert path.stat().st_mtime == 1 and path.read_text() == "a\n"


@pytest.mark.parametrize("mode", ["replace", "remove"])
@pytest.mark.parametrize("find", ["", None])
def test_an_edit_needs_something_to_look_for(path: Path, mode: str, find: str | None) -> None:
    path.write_text("a")
    with pytest.raises(ValueError, match=f"'find'.*'{mode}'"):
        save_custom_file(str(path), "x", mode, find)
    with pytest.raises(ValueError, match="'find'"):
        save_custom_file(str(path.with_name("none")), "x", mode, find)
    assert path.read_text() == "a"


def test_unknown_mode_and_empty_path(path: Path) -> None:
    with pytest.raises(ValueError, match="delete"):
        save_custom_file(str(path), "x", "delete")
    for empty in ("", "  "):
        with pytest.raises(ValueError, match="path"):
            save_custom_file(empty, "x")


@pytest.mark.parametrize("mode", ["overwrite", "append", "replace", "remove", "trim"])
def test_a_folder_is_an_error(tmp_path: Path, mode: str) -> None:
    with pytest.raises(OSError) as failure:
        save_custom_file(str(tmp_path), "x", mode, "x")
    assert failure.value.filename == str(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX systems")
@pytest.mark.parametrize("mode", ["append", "trim"])
def test_a_pipe_is_an_error(path: Path, mode: str) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="ordinary"):
        save_custom_file(str(path), "x", mode)


@pytest.mark.parametrize(
    ("mode", "text"),
    [("append", b"\xef\xbb\xbf\na\nx"), ("trim", b"\xef\xbb\xbfa\n"), ("replace", b"\xef\xbb\xbf\nx\n")],
)
def test_a_byte_order_mark_stays(path: Path, mode: str, text: bytes) -> None:
    path.write_bytes(b"\xef\xbb\xbf\na\n")
    save_custom_file(str(path), "x", mode, "a")
    assert path.read_bytes() == text


def test_a_file_in_the_old_code_page_becomes_utf_8(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_utils, "legacy_code_page", lambda: "cp1252")
    path.write_bytes(b"caf\xe9 ")
    save_custom_file(str(path), "é", "append")
    assert path.read_text(encoding="utf-8") == "café é"


def test_a_file_that_is_no_text_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_utils, "legacy_code_page", lambda: "cp1252")
    path.write_bytes(b"\x81\xff\n\n")
    for mode in ("append", "replace", "remove", "trim"):
        with pytest.raises(ValueError, match="neither UTF-8 nor"):
            save_custom_file(str(path), "x", mode, "y")
    assert path.read_bytes() == b"\x81\xff\n\n"
    save_custom_file(str(path), "x")
    assert path.read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="permission bits and links")
@pytest.mark.parametrize("mode", ["overwrite", "append", "replace", "remove", "trim"])
def test_permission_bits_and_links_stay(path: Path, mode: str) -> None:
    path.write_text("a\n\n")
    path.chmod(0o640)
    link = path.with_name("link")
    link.symlink_to(path)
    save_custom_file(str(link), "x", mode, "a")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and link.is_symlink() and path.read_text() != "a\n\n"


def test_nothing_is_lost_when_many_append(path: Path) -> None:
    started = threading.Barrier(20)

    def append(number: int) -> None:
        started.wait()
        for turn in range(10):
            save_custom_file(str(path), f"{number}-{turn}\n", "append")

    threads = [threading.Thread(target=append, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(f"{number}-{turn}" for number in range(20) for turn in range(10))
    for number in range(20):  # and everybody's lines are in order
        assert [line for line in lines if line.startswith(f"{number}-")] == [f"{number}-{turn}" for turn in range(10)]
    assert names(path.parent) == [*LOCK_FILES, "a.txt"]


def test_a_cancelled_request_does_not_wait_for_a_file(path: Path) -> None:
    scope = CancelScope()
    scope.cancel()
    with path_lock(str(path)), pytest.raises(EarlyTerminationException):
        save_custom_file(str(path), "x", scope=scope)
    assert not path.exists()


KILLED = """
import os, sys
from Middleware.utilities.file_utils import save_custom_file
os.replace = lambda *_: os._exit(9)
save_custom_file(sys.argv[1], "new", sys.argv[2])
"""


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_process_killed_while_it_saves(path: Path, mode: str) -> None:
    path.write_text("old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path), mode], cwd=PROJECT, timeout=60).returncode == 9
    assert load_custom_file(str(path)) == "old"
    save_custom_file(str(path), "+", "append")
    assert path.read_text() == "old+"


# -- several processes -------------------------------------------------------------------------------------------------

WRITERS = {
    "lines": "save_custom_file(path, f'{name} {number}\\n', 'append')",
    "cursor": "ChunkCursor(path).add(f'{name} {number}')",
}


@pytest.mark.parametrize("way", list(WRITERS))
def test_lines_of_two_processes_are_all_there(way: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "notes.txt"
    program = (
        "import sys\nfrom Middleware.utilities.file_utils import save_custom_file\n"
        "from Middleware.workflows.handlers.impl.sub_workflow_handler import ChunkCursor\n"
        "path, name = sys.argv[1:]\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        f"for number in range(60):\n    {WRITERS[way]}\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=100)
        assert writer.returncode == 0
    assert sorted(path.read_text("utf-8").split("\n")[:-1]) == sorted(
        f"{name} {number}" for name in "ab" for number in range(60)
    )
    if os.name != "nt":
        assert os.listdir(path.parent) == ["notes.txt"]
