"""Install packages with pip and show how far it is: python -m Middleware.cli.installing -r FILE [pip's other options].

pip shows no progress where its output is read by another program, and dozens of lines for each package elsewhere. This
runs before any package is installed, so it needs nothing but Python.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import signal
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from Middleware.cli.prerequisites import OLDEST
from Middleware.cli.signals import INTERRUPTED
from Middleware.cli.standard_streams import prepare_streams

NEWEST = (3, 15)
"""The newest Python that the lock files have wheels for; ``Docs/Developer/platforms.md`` has all that they serve."""
SYSTEMS = ("linux-x86_64", "linux-aarch64", "win-amd64")
"""What ``sysconfig.get_platform()`` says of the systems that they serve, apart from macOS."""
OLDEST_GLIBC = (2, 28)
# A longer line would wrap, and could not be rewritten.
WIDTH = 70
_REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?\s*[=<>~!@]")
_INCLUDED = re.compile(r"(?:-r|--requirement)[ =]\s*(\S+)")
# A package from a folder is named by its file.
_SEEN = re.compile(
    r"(?:Collecting |Requirement already satisfied: |Ignoring |Processing (?:\S*[/\\])?)"
    r"([A-Za-z0-9][\w.]*(?:-[A-Za-z][\w.]*)*)"
)
_DETAIL = re.compile(r"Downloading |Using cached |Installing |Successfully |Looking in |Preparing ")
# Where a package is built, pip indents its errors, too.
_ERROR = re.compile(r"\s+(?:error|fatal): ", re.IGNORECASE)


def main(words: Sequence[str]) -> int:
    """Run ``pip install`` with these words, and return its exit status."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *words]
    files = [word for option, word in itertools.pairwise(words) if option in ("-r", "--requirement")]
    progress = Progress(sys.stdout, sum(map(count_requirements, files)))
    status = _run(command, progress)
    progress.end()
    if status == INTERRUPTED:
        sys.stderr.write("The installation was interrupted. The next start continues it.\n")
    elif status:
        sys.stderr.write("".join(f"{line}\n" for line in progress.problems))
        advice = None if progress.retried else way_out(words)
        sys.stderr.write(f"{advice}\n" if advice else "")
    return status


def _run(command: Sequence[str], progress: Progress) -> int:
    """Run pip, and return its exit status or ``INTERRUPTED``."""
    signal.signal(signal.SIGINT, _interrupt_once)
    # pip's errors come in the order of its steps, so that the reason of a failure is not among later lines.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                progress.read(line.rstrip())
            return process.wait()
        except KeyboardInterrupt:
            # pip has got the same Ctrl-C, unless only this process got it, and undoes what it has begun.
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.terminate()
            return INTERRUPTED


def _interrupt_once(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C only, also if another one comes at once."""
    # Not SIG_IGN: Python would print an error about one that has come already.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    raise KeyboardInterrupt


def way_out(words: Sequence[str]) -> str | None:
    """Return what to do where the lock files have no wheels for this Python or system; None where they have."""
    system = sysconfig.get_platform()
    newest, oldest = (".".join(map(str, version)) for version in (NEWEST, OLDEST))
    other = (
        platform.python_implementation()
        if sys.implementation.name != "cpython"
        else "free-threaded Python"
        if sysconfig.get_config_var("Py_GIL_DISABLED")
        else None
    )
    if other or sys.version_info[:2] > NEWEST:
        return (
            f"The packages have wheels for Python {oldest} to {newest}, and this is "
            f"{other or f'Python {platform.python_version()}'}: install Python {newest}, delete {sys.prefix}, "
            "and start again."
        )
    missing = f"Some packages have no wheels for this system ({system})"
    if sys.platform == "win32":
        return (
            None
            if system in SYSTEMS
            else (
                f'{missing}: install Python {newest} for x64 ("Windows installer (64-bit)"), create the environment '
                f"with "
                f'it (python.exe -m venv --clear "{sys.prefix}"), and start again.'
            )
        )
    # A 64-bit kernel may run a 32-bit system.
    if struct.calcsize("P") < 8:
        return f"{missing}, which has 32 bits: install a 64-bit one, for example Raspberry Pi OS (64-bit)."
    if (system in SYSTEMS and not _is_old_glibc()) or sys.platform == "darwin":
        return None
    build = shlex.join([sys.executable, "-m", "pip", "install", *_without_wheels_only(words)])
    return f"{missing}: build them, with compilers for C and Rust, by {build}, and start again."


def _is_old_glibc() -> bool:
    """Whether this is a Linux with a C library that most wheels are too new for."""
    name, version = platform.libc_ver()
    return name == "glibc" and tuple(map(int, version.split("."))) < OLDEST_GLIBC


def count_requirements(path: str) -> int:
    """Return the number of packages that a requirements file names, with those of the files that it includes."""
    return len(_named(path))


def _named(path: str) -> set[str]:
    """The names of the packages; one may stand in several lines, each for other systems."""
    names: set[str] = set()
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if included := _INCLUDED.match(line):
            names |= _named(os.path.join(os.path.dirname(path), included[1]))
        elif found := _REQUIREMENT.match(line):
            names.add(found[1].lower())
    return names


def _without_wheels_only(words: Sequence[str]) -> list[str]:
    position = words.index("--only-binary") if "--only-binary" in words else len(words)
    return [*words[:position], *words[position + 2 :]]


class Progress:
    """Shows what pip does: one line that is rewritten on a terminal, a line for each package elsewhere.

    Attributes:
        problems: lines of pip that are neither progress nor shown already.
        retried: whether the network failed at times.
    """

    def __init__(self, output: TextIO, total: int) -> None:
        self.problems: list[str] = []
        self.retried = False
        self._in_problem = False
        self._output, self._total = output, total
        self._rewrites = output.isatty()
        self._names: set[str] = set()
        self._text, self._since = "", time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        if self._rewrites:
            threading.Thread(target=self._tick, name="progress", daemon=True).start()

    def read(self, line: str) -> None:
        """Take one line of pip's output."""
        found = _SEEN.match(line)
        if found:
            self._in_problem = False
            self._names.add(found[1].lower())
            # A list that is not complete grows while pip finds what its packages need.
            total = f" of {self._total}" if len(self._names) <= self._total else ""
            self._show(f"{len(self._names)}{total}: {found[1]}")
        elif line.startswith("Installing collected packages"):
            self._show("Unpacking and compiling them ...")
        # The network fails at present; without this line the user would wait for nothing.
        elif line.startswith("WARNING: Retrying"):
            self.retried = True
            self._print(line)
        elif line and self._is_problem(line):
            self.problems.append(line)

    def _is_problem(self, line: str) -> bool:
        """Indented lines belong to the line above them: the reasons of an error, or more of what pip does."""
        if line[0].isspace() and not _ERROR.match(line):
            return self._in_problem
        self._in_problem = _DETAIL.match(line) is None
        return self._in_problem

    def end(self) -> None:
        """Show nothing more, and leave the cursor at the begin of an empty line."""
        self._ended.set()
        with self._lock:
            if self._rewrites:
                self._write("\r" + " " * WIDTH + "\r")

    def _show(self, text: str) -> None:
        with self._lock:
            self._text, self._since = text, time.monotonic()
            if not self._rewrites:
                self._write(f"  {text}\n")
        self._rewrite()

    def _print(self, line: str) -> None:
        with self._lock:
            self._write("\r" + line.ljust(WIDTH) + "\n" if self._rewrites else line + "\n")

    def _tick(self) -> None:
        # A large package takes a while, and the count alone would seem to hang.
        while not self._ended.wait(1.0):
            self._rewrite()

    def _rewrite(self) -> None:
        with self._lock:
            if self._rewrites and self._text and not self._ended.is_set():
                seconds = int(time.monotonic() - self._since)
                self._write("\r" + f"  {self._text}{f' ({seconds} s)' if seconds else ''}"[:WIDTH].ljust(WIDTH))

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


if __name__ == "__main__":
    # The installation goes on when its output is not read: the start waits for it.
    prepare_streams()
    sys.exit(main(sys.argv[1:]))
