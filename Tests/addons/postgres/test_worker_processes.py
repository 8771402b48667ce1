"""Several processes on one socket, and the parent that watches them; with small programs in place of servers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from Middleware.addons.postgres import worker_processes
from Tests.integration.launcher import PROJECT, clean_environment
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send these signals to one process")

# A child answers each connection with its number and process id. In the folder, ``fail-<number>`` has it exit with
# status 3 before it serves, and ``events`` gets a line when one serves and when one is asked to end.
PROGRAM = textwrap.dedent("""
    import os, select, signal, socket, sys
    sys.path.insert(0, {root!r})
    from Middleware.addons.postgres.worker_processes import become_parent, connect_to_parent
    from Middleware.common.constants import CHILD_VARIABLE
    folder, count = sys.argv[1:]
    if CHILD_VARIABLE not in os.environ:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        print(sock.getsockname()[1], flush=True)
        sys.exit(become_parent(sock, int(count)))
    parent = connect_to_parent()
    if os.path.exists(os.path.join(folder, f"fail-{{parent.number}}")):
        sys.exit(3)
    asked = []
    def note(event):
        with open(os.path.join(folder, "events"), "a") as file:
            file.write(f"{{event}} {{parent.number}}\\n")
    if os.path.exists(os.path.join(folder, "stubborn")):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    note("serves")
    parent.report_serving(lambda: asked.append(1))
    while not asked or os.path.exists(os.path.join(folder, "stubborn")):
        if select.select([parent.sock], [], [], 0.02)[0]:
            parent.sock.setblocking(False)
            try:
                client = parent.sock.accept()[0]
            except BlockingIOError:
                continue
            client.sendall(f"{{parent.number}} {{os.getpid()}}".encode())
            client.close()
    note("ends")
""")


@pytest.fixture(autouse=True)
def default_interrupt() -> Iterator[None]:
    """Have children react to Ctrl-C: a shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Parent:
    """A parent with its children."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        program = folder / "program.py"
        program.write_text(PROGRAM.format(root=str(PROJECT)), encoding="utf-8")
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(program), str(folder), str(count)],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=clean_environment(),
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def ask(self) -> tuple[int, int] | None:
        """The number and the process id of the child that answers; None if none does."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            words = client.recv(100).split()
            return (int(words[0]), int(words[1])) if words else None
        return None

    def seen(self, count: int) -> dict[int, int]:
        """The process ids of ``count`` children by number, once so many have answered."""
        found: dict[int, int] = {}

        def all_have_answered() -> bool:
            if answer := self.ask():
                found[answer[0]] = answer[1]
            return len(found) == count

        assert until(all_have_answered, 60)
        return found

    def events(self) -> list[str]:
        file = self.folder / "events"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def end(self) -> None:
        children = [child.pid for child in psutil.Process(self.process.pid).children()] if self.runs() else []
        for pid in [self.process.pid, *children] if self.runs() else []:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def runs(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Parent]]:
    parents: list[Parent] = []

    def start(count: int) -> Parent:
        parents.append(Parent(tmp_path, count))
        return parents[-1]

    yield start
    for parent in parents:
        parent.end()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_all_children_answer_and_the_parent_is_small(start: Callable[[int], Parent]) -> None:
    parent = start(3)
    assert set(parent.seen(3)) == {1, 2, 3}
    process = psutil.Process(parent.process.pid)
    assert process.memory_info().rss < 25 * 1024 * 1024 and process.num_threads() == 1


def test_a_killed_child_is_replaced_while_the_others_answer(start: Callable[[int], Parent]) -> None:
    parent = start(2)
    before = parent.seen(2)
    os.kill(before[1], signal.SIGKILL)
    assert until(lambda: is_gone(before[1]), 60) and parent.seen(1) == {2: before[2]}
    after = parent.seen(2)
    assert after[2] == before[2] and after[1] != before[1]
    assert (
        f"worker 1 (process {before[1]}) has ended by signal 9; it is started again in 1 s"
        in parent.errors.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all(start: Callable[[int], Parent], number: signal.Signals) -> None:
    parent = start(2)
    pids = parent.seen(2).values()
    parent.process.send_signal(number)
    assert parent.process.wait(60) == 0
    assert all(map(is_gone, pids)) and parent.ask() is None
    assert sorted(parent.events()) == ["ends 1", "ends 2", "serves 1", "serves 2"]


def test_a_second_signal_ends_those_that_take_their_time(start: Callable[[int], Parent], tmp_path: Path) -> None:
    (tmp_path / "stubborn").touch()
    parent = start(2)
    pids = parent.seen(2).values()
    parent.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert parent.runs()
    parent.process.send_signal(signal.SIGTERM)
    assert parent.process.wait(60) == 0 and all(map(is_gone, pids))


def test_children_end_when_their_parent_is_killed(start: Callable[[int], Parent]) -> None:
    parent = start(2)
    pids = parent.seen(2).values()
    parent.process.kill()
    assert parent.process.wait(60) == -signal.SIGKILL
    assert until(lambda: all(map(is_gone, pids)), 60)


def test_one_that_cannot_start_ends_everything_with_its_status(start: Callable[[int], Parent], tmp_path: Path) -> None:
    (tmp_path / "fail-2").touch()
    parent = start(2)
    assert parent.process.wait(60) == 3
    assert parent.ask() is None


def test_one_that_cannot_start_any_more_is_tried_again(start: Callable[[int], Parent], tmp_path: Path) -> None:
    """The others serve, and what is wrong may be put right."""
    parent = start(2)
    pids = parent.seen(2)
    failure = tmp_path / "fail-1"
    failure.touch()
    os.kill(pids[1], signal.SIGKILL)
    assert until(lambda: "has ended with status 3" in parent.errors.read_text(encoding="utf-8"), 60)
    failure.unlink()
    assert parent.seen(2)[2] == pids[2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
def test_all_are_replaced_one_after_the_other(start: Callable[[int], Parent]) -> None:
    roll: int = signal.SIGUSR1  # type: ignore[attr-defined,unused-ignore]
    parent = start(3)
    before = parent.seen(3)
    parent.process.send_signal(roll)
    assert until(lambda: len(parent.events()) == 9, 60)
    after = parent.seen(3)
    assert not set(before.values()) & set(after.values()) and parent.runs()
    assert parent.events()[3:] == [f"{event} {number}" for number in (1, 2, 3) for event in ("ends", "serves")]


def test_the_time_until_the_next_start_grows_with_early_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(worker_processes.time, "monotonic", lambda: now)
    child = worker_processes._Child(1)

    def delay_after(lived: float) -> float:
        child.started = now - lived
        child.forget()
        return child.starts_at - now

    assert [delay_after(5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [delay_after(60), delay_after(5), delay_after(5)] == [1, 1, 2]
