"""File systems that take several names for the same one, in a folder of a file system that does not."""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from Middleware.models.process import process
from Middleware.utilities.discussions.folder_names import DiscussionNames

Change = Callable[[str], str]


@dataclass(frozen=True)
class Rules:
    """``folded`` returns the same for names that lead to the same file, and ``stored`` the name that a new one gets."""

    folded: Change
    stored: Change = str


def _in_form_d(name: str) -> str:
    return unicodedata.normalize("NFD", name)


def _upper(name: str) -> str:
    # NTFS has a table from one code unit to another, which knows no letters beyond the first plane.
    return "".join(letter.upper() if len(letter.upper()) == 1 and letter < "\U00010000" else letter for letter in name)


def _folded(name: str) -> str:
    return _in_form_d(_in_form_d(name).casefold())


RULES = {
    "NTFS": Rules(lambda name: _upper(name.rstrip(" .") or name)),
    "FAT": Rules(lambda name: _upper(name.rstrip(" .") or name), lambda name: name.rstrip(" .") or name),
    "APFS": Rules(_folded),
    "APFS that respects case": Rules(_in_form_d),
    "ext4 with casefold": Rules(_folded),
    "HFS+": Rules(
        lambda name: "".join(letter for letter in _folded(name) if unicodedata.category(letter) != "Cf"), _in_form_d
    ),
    "tells names apart": Rules(str),
}


class OtherFileSystem(DiscussionNames):
    """Names on a file system with these rules; only for the last part of a path."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def reached(self, path: str) -> str:
        """Return the path that exists under one of the names that count as the same, else ""."""
        parent, name = os.path.split(path)
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(parent))
            same = [other for other in names if self.rules.folded(other) == self.rules.folded(name)]
            return os.path.join(parent, name if name in same else same[0]) if same else ""
        return ""

    def is_folder(self, path: str) -> bool:
        return super().is_folder(self.reached(path))

    def is_there(self, path: str) -> bool:
        return super().is_there(self.reached(path))

    def make(self, path: str) -> None:
        if not self.is_there(path):
            parent, name = os.path.split(path)
            super().make(os.path.join(parent, self.rules.stored(name)))

    def keeps_forms(self, folder: str) -> bool:
        return self.rules.stored("\u00e9") == "\u00e9"


@contextlib.contextmanager
def used(names: DiscussionNames) -> Iterator[None]:
    """Let all discussions of this process be on that file system."""
    process().put(DiscussionNames, names)
    try:
        yield
    finally:
        process().put(DiscussionNames, DiscussionNames())
