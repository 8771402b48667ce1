"""The server that ``benchmarks/budget.py`` measures: started as by ``run_waitress.py``, with something that counts.

The last two arguments are what to count and the port where ``budget.py`` listens. Each line that arrives from there
asks for what was counted since the line before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import create_connection, socket
from types import CodeType, FrameType

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PROJECT)

from Middleware import addons  # noqa: E402
from Middleware.cli.launch import Launch  # noqa: E402
from Middleware.cli.serving import limits  # noqa: E402
from Middleware.cli.serving.serve_waitress import serve  # noqa: E402
from Middleware.cli.startup import run  # noqa: E402

# What does not change for so long, and so many looks in a row, has come to its end on every thread.
STILL_SECONDS, STILL_LOOKS = 0.004, 3
# strace shows this path, with a number, where one request ends and the next begins.
MARK = "/budget-mark/"
# Of Linux: it allows any process of this user to trace this one.
PR_SET_PTRACER, PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
# The packages' folder may be in one of the others.
FOLDERS = [
    folder + os.sep
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"), PROJECT)
]
# These threads wake by the clock: what they do depends on how long a request takes, and is not counted.
BY_THE_CLOCK = frozenset({"disconnect-watcher", "idle-connections", "start-check", "workflow-locks", "budget"})

Reading = dict[str, dict[str, int]]


class Calls:
    """Counts the calls of Python functions, and the files that are opened.

    A generator counts at each value, as it is entered again. The profiler reports the same from Python 3.11 on.
    """

    def __init__(self) -> None:
        self._threads: list[dict[CodeType, int]] = []
        self._files: dict[str, int] = {}

    def begin(self) -> None:
        sys.addaudithook(self._audit)

    def thread_begins(self, counted: bool) -> None:
        if not counted:
            return
        # Each thread has a table of its own, so that no call is lost between two threads.
        counts: dict[CodeType, int] = {}
        self._threads.append(counts)

        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                code = frame.f_code
                counts[code] = counts.get(code, 0) + 1

        sys.setprofile(profile)

    def total(self) -> int:
        return sum(sum(list(counts.values())) for counts in self._threads)

    def read(self) -> Reading:
        calls: dict[str, int] = {}
        for counts in self._threads:
            for code, number in list(counts.items()):
                name = f"{_relative(code.co_filename)}:{code.co_qualname}"
                calls[name] = calls.get(name, 0) + number
            counts.clear()
        files = dict(self._files)
        self._files.clear()
        return {"Python calls": calls, "file opens": files}

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "sqlite3.connect") and threading.current_thread().name not in BY_THE_CLOCK:
            name = Path(str(arguments[0])).name
            self._files[name] = self._files.get(name, 0) + 1


class System:
    """Counts what is asked of Python's allocators, and marks requests in what strace prints of the system calls.

    The allocations need a C compiler: without one, there is none among the readings.
    """

    def __init__(self) -> None:
        self._allocators = _allocators()
        self._totals = (ctypes.c_longlong * 2)()
        self._before = [0, 0]
        self._marks = 0
        self._left_out: list[int] = []

    def begin(self) -> None:
        if self._allocators:
            self._allocators.begin()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PTRACER_ANY, 0, 0, 0)

    def thread_begins(self, counted: bool) -> None:
        if not counted:
            self._left_out.append(threading.get_native_id())
            if self._allocators:
                self._allocators.leave_out()

    def total(self) -> int:
        if self._allocators:
            self._allocators.read_totals(self._totals)
        return self._totals[0]

    def read(self) -> Reading:
        self.total()
        count, size = (now - before for now, before in zip(self._totals, self._before, strict=True))
        self._before = list(self._totals)
        self._marks += 1
        os.access(f"{MARK}{self._marks}", os.F_OK)
        counted = {"allocations": {"others": count}, "bytes allocated": {"others": size}} if self._allocators else {}
        return {**counted, "mark": {"": self._marks}, "left out": {str(thread): 1 for thread in self._left_out}}


Counter = Calls | System
COUNTERS: dict[str, Callable[[], Counter]] = {"calls": Calls, "system": System}


def _allocators() -> ctypes.PyDLL | None:
    """Return the compiled ``budget_allocations.c``; None without a compiler."""
    source = Path(__file__).with_name("budget_allocations.c")
    options = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        library = os.path.join(folder, "allocations.so")
        try:
            subprocess.run(
                ["cc", "-O1", "-shared", "-fPIC", *options, "-o", library, os.fspath(source)],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return ctypes.PyDLL(library)


def _relative(file: str) -> str:
    """Return a path as it is on every machine."""
    for folder in FOLDERS:
        if file.startswith(folder):
            return file.removeprefix(folder).replace(os.sep, "/")
    return file


def _answer(counter: Counter, connection: socket) -> None:
    """Give the readings that ``budget.py`` asks for."""
    counter.thread_begins(False)
    with connection, connection.makefile("r", encoding="utf-8") as lines:
        for _ in lines:
            _wait_until_still(counter)
            connection.sendall(json.dumps(counter.read()).encode("utf-8") + b"\n")


def _wait_until_still(counter: Counter) -> None:
    looks = [counter.total()]
    while len(looks) < STILL_LOOKS or len(set(looks[-STILL_LOOKS:])) > 1:
        time.sleep(STILL_SECONDS)
        looks.append(counter.total())


def main(argv: Sequence[str]) -> int:
    *arguments, kind, port = argv
    counter = COUNTERS[kind]()
    connection = create_connection(("127.0.0.1", int(port)))
    threading.Thread(target=_answer, args=(counter, connection), name="budget", daemon=True).start()

    def first_event(*_: object) -> None:
        sys.setprofile(None)
        counter.thread_begins(threading.current_thread().name not in BY_THE_CLOCK)

    def counted(launch: Launch) -> None:
        # When the garbage collector runs depends on all that was allocated before.
        gc.disable()
        counter.begin()
        threading.setprofile(first_event)
        counter.thread_begins(True)
        serve(launch)

    addons.load()
    return run(counted, arguments, limits.WORKER_THREADS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
