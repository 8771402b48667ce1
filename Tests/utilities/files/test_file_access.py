"""Replacing files in one step, and taking turns."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.files import file_access
from Middleware.utilities.files.file_access import (
    LEFT_OVER,
    PathLocks,
    atomic_write,
    find_file_ignoring_case,
    listed_name,
    open_to_read,
    process_lock,
    resolve_file_path,
)
from Middleware.utilities.text_utils import encode_text
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.windows import tells_capitals_apart

posix = pytest.mark.skipif(os.name == "nt", reason="permission bits, special files and limits of POSIX systems")
PROJECT = Path(__file__).parents[3]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run_python(code: str, *arguments: object) -> int:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=PROJECT, timeout=CLIENT_PATIENCE
    ).returncode


# -- where a path leads ------------------------------------------------------------------------------------------------


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve_file_path("~/a.txt") == f"{tmp_path}/a.txt"
    assert resolve_file_path("b~/~") == "b~/~"


def test_find_ignoring_case(tmp_path: Path) -> None:
    (tmp_path / "Notes.TXT").write_text("x")
    (tmp_path / "folder").mkdir()
    found = find_file_ignoring_case(str(tmp_path / "nOTES.txt"))
    assert found is not None and os.path.samefile(found, tmp_path / "Notes.TXT")
    assert find_file_ignoring_case(str(tmp_path / "other.txt")) is None
    assert find_file_ignoring_case(str(tmp_path / "Folder")) is None  # no file
    assert find_file_ignoring_case(str(tmp_path / "none" / "notes.txt")) is None


def test_the_exact_name_wins_and_of_several_others_always_the_same(tmp_path: Path) -> None:
    for name in ("b.txt", "B.txt", "B.TXT"):
        (tmp_path / name).write_text("x")
    assert find_file_ignoring_case(str(tmp_path / "B.txt")) == str(tmp_path / "B.txt")
    # Where all these names are one file, each is exact.
    expected = "B.TXT" if tells_capitals_apart(tmp_path) else "b.tXt"
    assert find_file_ignoring_case(str(tmp_path / "b.tXt")) == str(tmp_path / expected)


@pytest.mark.parametrize("name", ["notes.txt", "NOTES.TXT", "Notes.txt", "none.txt"])
def test_the_name_that_the_folder_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "Notes.txt").touch()
    expected = "Notes.txt" if name != "none.txt" else name
    assert listed_name(str(tmp_path / name)) == expected
    assert listed_name(str(tmp_path / "missing" / name)) == name
    monkeypatch.chdir(tmp_path)
    assert listed_name(name) == expected


def test_find_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert find_file_ignoring_case("A.txt") == "A.txt"
    found = find_file_ignoring_case("a.TXT")
    assert found is not None and os.path.samefile(found, "A.txt")


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * 5000, ".", "no/such/folder/x"])
def test_a_path_that_cannot_be_is_not_found(path: str) -> None:
    assert find_file_ignoring_case(path) is None


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_new_file_and_its_folders(tmp_path: Path) -> None:
    atomic_write(str(tmp_path / "x" / "y" / "a.txt"), b"text\r\n")
    assert (tmp_path / "x" / "y" / "a.txt").read_bytes() == b"text\r\n"
    assert names(tmp_path / "x" / "y") == ["a.txt"]


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    atomic_write("a.txt", b"1")
    atomic_write("b/c.txt", b"2")
    assert (tmp_path / "a.txt").read_bytes() + (tmp_path / "b" / "c.txt").read_bytes() == b"12"


@posix
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_obeys_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    code = (
        "import os, sys; os.umask(int(sys.argv[2]))\n"
        "from Middleware.utilities.files.file_access import atomic_write; atomic_write(sys.argv[1], b'x')"
    )
    assert run_python(code, tmp_path / "a.txt", umask) == 0
    assert mode_of(tmp_path / "a.txt") == mode


@posix
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o755, 0o640])
def test_an_existing_file_keeps_its_permission_bits(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(mode)
    atomic_write(str(path), b"new", mode=0o600)
    assert (mode_of(path), path.read_bytes()) == (mode, b"new")


@posix
def test_a_new_file_with_a_mode(tmp_path: Path) -> None:
    atomic_write(str(tmp_path / "a.txt"), b"x", mode=0o600)
    assert mode_of(tmp_path / "a.txt") == 0o600


@posix
def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link, second = tmp_path / "real" / "a.txt", tmp_path / "link.txt", tmp_path / "second.txt"
    target.write_text("old")
    link.symlink_to("real/a.txt")
    second.symlink_to(link)
    atomic_write(str(second), b"new")
    assert target.read_text() == "new" and link.is_symlink() and second.is_symlink()
    assert names(tmp_path / "real") == ["a.txt"]


@posix
def test_a_link_to_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to("later.txt")
    atomic_write(str(tmp_path / "link.txt"), b"x")
    assert (tmp_path / "later.txt").read_text() == "x" and (tmp_path / "link.txt").is_symlink()


@posix
def test_links_in_a_circle_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError) as failure:
        atomic_write(str(tmp_path / "a"), b"x")
    assert failure.value.errno == errno.ELOOP
    assert (tmp_path / "a").is_symlink() and names(tmp_path) == ["a", "b"]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for path in (f"{tmp_path / 'd'}", f"{tmp_path / 'd'}/", f"{tmp_path / 'new'}/"):
        with pytest.raises(IsADirectoryError) as failure:
            atomic_write(path, b"x")
        assert failure.value.filename == path
    assert names(tmp_path) == ["d"] and names(tmp_path / "d") == []


@posix
def test_a_special_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), os.devnull):
        with pytest.raises(OSError, match="ordinary file"):
            atomic_write(path, b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_file_that_must_not_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # nothing is forbidden to root, who runs some test machines
    with pytest.raises(PermissionError) as failure:
        atomic_write(str(path), b"new")
    assert failure.value.filename == str(path)
    assert path.read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(OSError) as failure:
        atomic_write(str(tmp_path / "a" / "b.txt"), b"x")
    assert failure.value.filename == str(tmp_path / "a" / "b.txt")


def test_the_longest_name(tmp_path: Path) -> None:
    atomic_write(str(tmp_path / ("n" * 200)), b"x")
    assert names(tmp_path) == ["n" * 200]


def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> None:
        raise OSError(errno.EBUSY, "busy", "temporary name")

    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="busy") as failure:
        atomic_write(str(tmp_path / "a.txt"), b"new")
    assert failure.value.filename == str(tmp_path / "a.txt") and failure.value.errno == errno.EBUSY
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


class RefusedReplace:
    """``os.replace`` of a file that somebody has open on Windows, for the first ``refusals`` times."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.replace = refusals, os.replace

    def __call__(self, source: str, target: str) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise PermissionError(errno.EACCES, "in use", source)
        self.replace(source, target)


def test_a_file_in_use_is_replaced_a_little_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_access, "REPLACE_TIMEOUT", 1.0)
    monkeypatch.setattr(os, "replace", RefusedReplace(5))
    atomic_write(str(tmp_path / "a.txt"), b"new")
    assert (tmp_path / "a.txt").read_text() == "new" and names(tmp_path) == ["a.txt"]


def test_a_file_that_is_being_replaced_is_opened_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [PermissionError(errno.EACCES, "in use")] * 5

    def refused_open(path: str, mode: str) -> IO[Any]:
        if refusals:
            raise refusals.pop()
        return open(path, mode)

    (tmp_path / "a.txt").write_text("new")
    monkeypatch.setattr(file_access, "REPLACE_TIMEOUT", 1.0)
    monkeypatch.setattr(file_access, "open", refused_open, raising=False)
    with open_to_read(str(tmp_path / "a.txt")) as file:
        assert file.read() == b"new" and not refusals


def test_patience_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_access, "REPLACE_TIMEOUT", 0.1)
    monkeypatch.setattr(os, "replace", RefusedReplace(10_000))
    with pytest.raises(PermissionError):
        atomic_write(str(tmp_path / "a.txt"), b"new")
    assert names(tmp_path) == []


@posix
def test_a_full_disk_truncates_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from Middleware.utilities.files.file_access import atomic_write\n"
        "try: atomic_write(sys.argv[1], b'n' * 5000)\n"
        "except OSError: sys.exit(7)\n"
    )
    (tmp_path / "a.txt").write_text("old")
    assert run_python(code, tmp_path / "a.txt") == 7
    assert (tmp_path / "a.txt").read_text() == "old" and names(tmp_path) == ["a.txt"]


def test_a_process_killed_in_the_middle_leaves_the_old_file_whole(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "os.replace = lambda *_: os._exit(9)\n"
        "from Middleware.utilities.files.file_access import atomic_write\n"
        "atomic_write(sys.argv[1], b'new')\n"
    )
    path = tmp_path / "a.json"
    path.write_text("old")
    assert run_python(code, path) == 9
    assert path.read_text() == "old"
    left = [name for name in names(tmp_path) if name != "a.json"]
    assert len(left) == 1 and left[0].startswith(".") and left[0].endswith(".tmp")
    assert list(tmp_path.glob("*.json")) == [path]
    atomic_write(str(path), b"newer")
    assert path.read_text() == "newer"


def test_a_reader_sees_the_old_or_the_new_text_only(tmp_path: Path) -> None:
    path, done = tmp_path / "a.txt", threading.Event()
    atomic_write(str(path), b"0" * 100_000)
    seen = set()

    def read() -> None:
        while not done.is_set():
            with open_to_read(str(path)) as file:
                data = file.read()
            seen.add((len(data), len(set(data))))
            # Windows replaces no file that is always open.
            done.wait(0.02 if os.name == "nt" else 0)

    reader = threading.Thread(target=read)
    reader.start()
    for digit in range(1, 30):
        atomic_write(str(path), str(digit % 10).encode() * 100_000)
    done.set()
    reader.join()
    assert seen == {(100_000, 1)}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("aé\r\n", b"a\xc3\xa9\r\n"),
        ("", b""),
        ("\ud83d\ude00", "😀".encode()),
        ("a\ud800b", "a\ufffdb".encode()),
        ("\ufeffx", b"\xef\xbb\xbfx"),
    ],
)
def test_encoding(text: str, data: bytes) -> None:
    assert encode_text(text) == data


# -- taking turns ------------------------------------------------------------------------------------------------------


def waits(locks: PathLocks, path: object, seconds: float = 0.15) -> bool:
    """Whether a thread that asks for ``path`` has to wait that long."""
    got = threading.Event()

    def ask() -> None:
        with contextlib.suppress(EarlyTerminationException), locks.held(str(path), scope):
            got.set()

    scope = CancelScope()
    thread = threading.Thread(target=ask)
    thread.start()
    result = not got.wait(seconds)
    scope.cancel()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return result


def test_one_at_a_time_for_each_path(tmp_path: Path) -> None:
    locks = PathLocks()
    (tmp_path / "d").mkdir()
    with locks.held(str(tmp_path / "a.txt")):
        assert waits(locks, tmp_path / "a.txt")
        assert waits(locks, tmp_path / "d" / ".." / "a.txt")
        assert waits(locks, tmp_path / "A.TXT")  # the same file where case does not count
        assert not waits(locks, tmp_path / "b.txt", PATIENCE)
    assert not waits(locks, tmp_path / "a.txt", PATIENCE)


@posix
def test_a_link_and_its_target_share_a_lock(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "link").symlink_to("a.txt")
    locks = PathLocks()
    with locks.held(str(tmp_path / "link")):
        assert waits(locks, tmp_path / "a.txt")


def test_a_lock_is_freed_by_a_failure(tmp_path: Path) -> None:
    locks = PathLocks()
    with pytest.raises(KeyError), locks.held(str(tmp_path / "a")):
        raise KeyError
    assert not waits(locks, tmp_path / "a", PATIENCE)


def test_locks_of_unused_paths_are_forgotten(tmp_path: Path) -> None:
    locks = PathLocks()
    for number in range(100):
        with locks.held(str(tmp_path / str(number))):
            assert len(locks) == 1
    assert len(locks) == 0


def test_waiting_ends_with_the_request(tmp_path: Path) -> None:
    locks, scope = PathLocks(), CancelScope()
    threading.Timer(0.1, scope.cancel).start()
    with locks.held(str(tmp_path / "a")):  # until the inner one has failed, so only the cancelling ends the wait
        with pytest.raises(EarlyTerminationException), locks.held(str(tmp_path / "a"), scope):
            pass


COUNT = """
import sys
from pathlib import Path
from Middleware.utilities.files.file_access import atomic_write, process_lock
path = Path(sys.argv[1])
for _ in range(25):
    with process_lock(sys.argv[2]):
        atomic_write(str(path), str(int(path.read_text()) + 1).encode())
"""


def test_processes_take_turns(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(counter), str(tmp_path / ".lock")]
    workers = [subprocess.Popen(command, cwd=PROJECT) for _ in range(4)]
    assert [worker.wait(PATIENCE) for worker in workers] == [0] * 4
    assert counter.read_text() == "100"


def test_waiting_for_another_process_ends_with_the_request(tmp_path: Path) -> None:
    hold = (
        "import sys\nfrom Middleware.utilities.files.file_access import process_lock\n"
        "with process_lock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    lock, scope = str(tmp_path / ".lock"), CancelScope()
    with subprocess.Popen(
        [sys.executable, "-c", hold, lock], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline().strip() == b"held"
        threading.Timer(0.1, scope.cancel).start()
        with pytest.raises(EarlyTerminationException), process_lock(lock, scope):
            pass
        holder.kill()
    with process_lock(lock):  # the dead hold nothing
        pass


@pytest.mark.parametrize("locks_are_known", [True, False])
def test_threads_take_turns_under_a_process_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks_are_known: bool
) -> None:
    if not locks_are_known:  # as on some network file systems
        monkeypatch.setattr(file_access, "_try_lock", lambda descriptor: True)
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with process_lock(str(tmp_path / ".lock")):
            inside += 1
            most = max(most, inside)
            time.sleep(0.005)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


# -- what killed processes leave ---------------------------------------------------------------------------------------

WRITING = """
import os, sys, time
from Middleware.utilities.files import file_access

def stop(*_):
    print("writing", flush=True)
    time.sleep(100)

os.fsync = stop
file_access.atomic_write(sys.argv[1], b"new")
"""


@contextlib.contextmanager
def process_that_writes(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written, but not renamed, its temporary file."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITING, str(path)], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
            yield writer
        finally:
            writer.kill()


def make_older(path: Path) -> None:
    os.utime(path, (time.time() - 100, time.time() - 100))


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with process_that_writes(path) as writer:
        temporary = [tmp_path / name for name in names(tmp_path)]
        assert len(temporary) == 1 and LEFT_OVER.fullmatch(temporary[0].name)
        if os.name != "nt":
            make_older(temporary[0])
        atomic_write(str(tmp_path / "b.txt"), b"1")
        assert temporary[0].exists()  # its writer is alive
        writer.kill()
        writer.wait(timeout=CLIENT_PATIENCE)
    make_older(temporary[0])
    (tmp_path / ".other.tmp").write_text("a user's")
    (tmp_path / ".0123456789abcdef.tmp").mkdir()
    atomic_write(str(tmp_path / "b.txt"), b"2")
    assert names(tmp_path) == [".0123456789abcdef.tmp", ".other.tmp", "b.txt"]


@posix
def test_what_cannot_be_locked_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks nobody can tell whether the writer is gone."""
    (tmp_path / ".0123456789abcdef.tmp").write_text("x")

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    atomic_write(str(tmp_path / "a.txt"), b"1")
    assert names(tmp_path) == [".0123456789abcdef.tmp", "a.txt"]


@posix
def test_a_file_that_is_taken_for_left_over_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, taken = os.open, []

    def remove_first(path: str, flags: int, *mode: int) -> int:
        descriptor = original(path, flags, *mode)
        if flags & os.O_EXCL and not taken:
            taken.append(path)
            os.unlink(path)
        return descriptor

    monkeypatch.setattr(os, "open", remove_first)
    atomic_write(str(tmp_path / "a.txt"), b"1")
    assert taken and names(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_bytes() == b"1"


def test_processes_that_write_into_one_folder_never_take_each_others_files(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom Middleware.utilities.files.file_access import atomic_write\n"
        "for number in range(150):\n    atomic_write(sys.argv[1], b'%d' % number)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / name)], cwd=PROJECT) for name in "abc"]
    assert [writer.wait(timeout=100) for writer in writers] == [0, 0, 0]
    assert names(tmp_path) == ["a", "b", "c"]
