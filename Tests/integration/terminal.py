"""A program on a terminal of its own: what it asks is read, and answers are typed. Where there are pseudo-terminals."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from Tests.integration.launcher import clean_environment
from Tests.patience import PATIENCE


class Terminal:
    """``words`` are those of the Python interpreter's command line. The process is ended by its own id."""

    def __init__(self, words: Sequence[str | os.PathLike[str]], folder: Path) -> None:
        self._words = [sys.executable, *map(os.fspath, words)]
        self._folder = folder
        self._shown = b""

    def __enter__(self) -> Terminal:
        self._screen, inside = pty.openpty()
        self.process = subprocess.Popen(
            self._words,
            cwd=self._folder,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=clean_environment(),
            preexec_fn=lambda: os.login_tty(inside),
            pass_fds=[inside],
        )
        os.close(inside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._screen)

    @property
    def text(self) -> str:
        """What was printed so far, typed text included."""
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    def wait(self, wanted: str, timeout: float = PATIENCE) -> str:
        """Read until ``wanted`` was printed. Raises AssertionError."""
        deadline = time.monotonic() + timeout
        while wanted not in self.text:
            assert time.monotonic() < deadline and self._read(0.2) is not None, f"'{wanted}' is not in:\n{self.text}"
        return self.text

    def type(self, text: str) -> None:
        self.type_bytes(text.encode("utf-8"))

    def type_bytes(self, data: bytes) -> None:
        os.write(self._screen, data)

    def interrupt(self) -> int:
        """Press Ctrl-C until the program ends; returns the exit status.

        Python overlooks one that comes just before it begins to read an answer.
        """
        for _ in range(12):
            self.type("\x03")
            try:
                return self.wait_end(5)
            except AssertionError:
                continue
        raise AssertionError(f"still running:\n{self.text}")

    def wait_end(self, timeout: float = PATIENCE) -> int:
        """The exit status, once everything was read."""
        deadline = time.monotonic() + timeout
        while True:
            # Asked first: what it has printed before its end is read, too.
            has_ended = self.process.poll() is not None
            data = self._read(0.2)
            if data is None or (has_ended and not data):
                return self.process.wait(PATIENCE)
            assert has_ended or time.monotonic() < deadline, f"still running:\n{self.text}"

    def _read(self, seconds: float) -> bytes | None:
        """What comes within some seconds; None if nothing can come any more."""
        readable, _, _ = select.select([self._screen], [], [], seconds)
        if not readable:
            return b""
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the other side is closed
            return None
        self._shown += data
        return data or None
