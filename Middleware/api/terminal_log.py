"""The log as a terminal shows it: a line or two for each request, and what is wrong.

A record with the attribute ``terminal`` is shown whatever its level: a text replaces its message there. The optional
``terminal_level`` replaces its level for the colour.
"""

from __future__ import annotations

import logging

from Middleware.utilities.terminal import painted, without_controls

TIME_FORMAT = "%H:%M:%S"
COLOURS = {logging.INFO: "32", logging.WARNING: "1;33", logging.ERROR: "1;31", logging.CRITICAL: "1;31"}


class TerminalFilter(logging.Filter):
    """Lets warnings, errors and the records that are meant for a terminal pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or hasattr(record, "terminal")


class TerminalFormatter(logging.Formatter):
    """Writes time and text; in front of a warning or an error its level, and the user if there are several.

    Args:
        colour: the terminal shows colours.
    """

    def __init__(self, colour: bool) -> None:
        super().__init__("%(message)s", TIME_FORMAT)
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        shown = getattr(record, "terminal", None)
        level = getattr(record, "terminal_level", record.levelno)
        # The traceback of a bug stays: without a log file it would be nowhere.
        text = shown if isinstance(shown, str) else super().format(record)
        text = without_controls(text, "?")
        if shown is None:
            text = f"{self._paint(self._label(record), level)} {text}"
        return f"{self._paint(self.formatTime(record, self.datefmt), level)}  {text}"

    @staticmethod
    def _label(record: logging.LogRecord) -> str:
        user = getattr(record, "user", "system")
        return f"{record.levelname.lower()}:" if user == "system" else f"{record.levelname.lower()} ({user}):"

    def _paint(self, text: str, level: int) -> str:
        return painted(text, COLOURS.get(level, ""), self._colour)
