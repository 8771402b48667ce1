"""What is written to a terminal: colours, and text of others that must not control it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TextIO

# A terminal obeys these, and texts quote what clients, servers and files contain. Line breaks and tabs stay.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream is a terminal that shows colours, and NO_COLOR does not forbid them."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb" or not stream.isatty():
        return False
    if sys.platform != "win32":
        return True
    # Older terminals of Windows show escape sequences as text until ENABLE_VIRTUAL_TERMINAL_PROCESSING (4) is set.
    import ctypes

    console = ctypes.windll.kernel32
    handle, mode = console.GetStdHandle(-11), ctypes.c_ulong()
    return bool(console.GetConsoleMode(handle, ctypes.byref(mode)) and console.SetConsoleMode(handle, mode.value | 4))


def painted(text: str, colour: str, shown: bool = True) -> str:
    """Return the text in a colour, given by its SGR parameters such as ``1;31`` for bold red.

    Without a colour, or where none are ``shown``, the text is returned as it is.
    """
    return f"\x1b[{colour}m{text}\x1b[0m" if shown and colour else text


def without_controls(text: str, instead: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """Return the text with each control character replaced, except line breaks and tabs."""
    return _CONTROLS.sub(instead, text)


def printable(text: object) -> str:
    """Return the text in one line, with a question mark for each character that is not shown."""
    return "".join(mark if mark.isprintable() else "?" for mark in str(text))
