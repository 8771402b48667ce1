"""Install packages with pip and show how far it is: python -m Middleware.cli.installing -r FILE [pip's other options].

pip shows no progress where its output is read by another program, and dozens of lines for each package elsewhere. This
runs before any package is installed, so it needs nothing but Python.
"""
from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from Middleware.cli.standard_streams import prepare_streams

NEWEST = (3, 15)
"""The newest Python that the lock files have wheels for; ``Docs/Developer/platforms.md`` has all that they serve."""
INTERRUPTED = 130
# A longer line would wrap, and could not be rewritten.
WIDTH = 70
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[^]]*\])?\s*[=<>~!@]")
_INCLUDED = re.compile(r"(?:-r|--requirement)[ =]\s*(\S+)")
# A package from a folder is named by its file.
_SEEN = re.compile(r"(?:Collecting |Requirement already satisfied: |Ignoring |Processing (?:\S*[/\\])?)"
                   r"([A-Za-z0-9][\w.]*(?:-[A-Za-z][\w.]*)*)")
_DETAIL = re.compile(r"\s|Downloading |Using cached |Installing |Successfully |Looking in |Preparing ")


def main(words: Sequence[str]) -> int:
    """Run ``pip install`` with these words, and return its exit status."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *words]
    files = [word for option, word in itertools.pairwise(words) if option in ("-r", "--requirement")]
    progress = Progress(sys.stdout, sum(map(count_requirements, files)))
    # pip's errors come in the order of its steps, so that the reason of a failure is not among later lines.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                               errors="replace", env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"})
    assert process.stdout is not None
    try:
        for line in process.stdout:
            progress.read(line.rstrip())
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()
        status = INTERRUPTED
    progress.end()
    if status not in (0, INTERRUPTED):
        sys.stderr.write("".join(f"{line}\n" for line in progress.problems))
    return status


def count_requirements(path: str) -> int:
    """Return the number of packages that a requirements file names, with those of the files that it includes."""
    count = 0
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        included = _INCLUDED.match(line)
        if included:
            count += count_requirements(os.path.join(os.path.dirname(path), included[1]))
        else:
            count += _REQUIREMENT.match(line) is not None
    return count


class Progress:
    """Shows what pip does: one line that is rewritten on a terminal, a line for each package elsewhere.

    Attributes:
        problems: lines of pip that are neither progress nor shown already.
    """

    def __init__(self, output: TextIO, total: int) -> None:
        self.problems: list[str] = []
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
            self._names.add(found[1].lower())
            # A list that is not complete grows while pip finds what its packages need.
            total = f" of {self._total}" if len(self._names) <= self._total else ""
            self._show(f"{len(self._names)}{total}: {found[1]}")
        elif line.startswith("Installing collected packages"):
            self._show("Unpacking and compiling them ...")
        # The network fails at present; without this line the user would wait for nothing.
        elif line.startswith("WARNING: Retrying"):
            self._print(line)
        elif line and not _DETAIL.match(line):
            self.problems.append(line)

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
    # The installation goes on when nobody reads what it prints: the start waits for it.
    prepare_streams()
    sys.exit(main(sys.argv[1:]))
