"""The terminal of ``try`` and ``chat``: the answer on stdout, everything else on stderr, never on the same line."""
from __future__ import annotations

import re
import sys
import threading

# A model's text must not steer the terminal.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _RESET = "\x1b[2m", "\x1b[0m"


class Screen:
    """Prints from several threads. ``colours``: notes are dimmed."""

    def __init__(self, colours: bool = False) -> None:
        self._lock = threading.Lock()
        self._colours = colours
        # Whether stdout ends in the middle of a line.
        self._open = False

    def write(self, text: str) -> None:
        """Print a piece of the answer at once."""
        text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
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
        text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
        with self._lock:
            self._end()
            sys.stderr.write(f"{_DIM}{text}{_RESET}\n" if self._colours else f"{text}\n")
            sys.stderr.flush()

    def _end(self) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = False
