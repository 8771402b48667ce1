"""The terminal of ``try`` and ``chat``: the answer on stdout, everything else on stderr, never on the same line."""

from __future__ import annotations

import sys
import threading

from Middleware.utilities.terminal import painted, without_controls

_DIM = "2"


class TerminalWriter:
    """Prints from several threads. ``colours``: notes are dimmed."""

    def __init__(self, colours: bool = False) -> None:
        self._lock = threading.Lock()
        self._colours = colours
        # Whether stdout ends in the middle of a line.
        self._open = False

    def write(self, text: str) -> None:
        """Print a piece of the answer at once."""
        text = without_controls(text.replace("\r\n", "\n"))
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = not text.endswith("\n") if text else self._open

    def end_line(self) -> None:
        """End the answer's line, if it is open."""
        with self._lock:
            self._end()

    def note(self, text: str) -> None:
        """Print a line that does not belong to the answer."""
        text = without_controls(text)
        with self._lock:
            self._end()
            sys.stderr.write(f"{painted(text, _DIM, self._colours)}\n")
            sys.stderr.flush()

    def _end(self) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = False
