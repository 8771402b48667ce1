"""Names from outside become path parts only here.

A name is one path component or, from operators, several. Nothing about the disk is looked at: a link that an operator
has put into a data folder is followed like any other entry, and no name can make one, or reach one anywhere else.
"""
from __future__ import annotations

import os
import re
import unicodedata
from functools import lru_cache

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.json_data import type_name

WINDOWS = os.name == "nt"
MAX_NAME_BYTES = 255  # of UTF-8; the limit of most file systems for one component

_DRIVE = re.compile(r"[A-Za-z]:")
_SEPARATORS = re.compile(r"[/\\]")
_WINDOWS_MARKS = frozenset('<>"|?*:')
_WINDOWS_DEVICES = frozenset({"con", "prn", "aux", "nul", "conin$", "conout$", "clock$",
                              *(f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³")})


def is_flat_name(name: object) -> bool:
    """Whether ``name`` is one safe path component: not empty, ``.`` or ``..``, and without ``/``, ``\\``, ``:``, NUL.

    On Windows it must also be a name that means a file of its own there: no device, no trailing dot or space.
    """
    if not isinstance(name, str) or not name.strip(" .") or any(mark in name for mark in "/\\:\0"):
        return False
    return _is_encodable(name) and not (WINDOWS and _means_another_file(name))


def is_storable_name(name: object) -> bool:
    """Whether a file or folder may be made with that name: flat, without control characters, and not too long."""
    return is_flat_name(name) and not _has_controls(str(name)) and not _is_too_long(str(name))


def split_name(name: object) -> tuple[str, ...]:
    """The path components of a name written by an operator.

    Both slashes separate, on every platform; empty and ``.`` components are dropped. Raises ``ConfigValueError`` for
    what is not text, blank, absolute, on a drive, too long, or holds control characters, ``..``, or what Windows
    takes for something else.
    """
    if not isinstance(name, str):
        raise ConfigValueError(f"a name must be text, not {type_name(name)}")
    return _split_text(name)


def safe_join(root: str, *names: str) -> str:
    """``root`` extended by ``names``, which cannot lead out of it. Raises as ``split_name`` does."""
    return os.path.join(root, *(part for name in names for part in split_name(name)))


def folded_name(name: str) -> str:
    """What is equal for names that some file system takes for the same: ignoring case, form, and what is invisible."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(mark for mark in unicodedata.normalize("NFKD", plain) if unicodedata.category(mark) != "Cf")


@lru_cache(maxsize=2048)
def _split_text(name: str) -> tuple[str, ...]:
    if _has_controls(name) or not _is_encodable(name):
        raise ConfigValueError(f"the name {name[:MAX_NAME_BYTES]!r} holds a character that no file name can have")
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        raise ConfigValueError(f"the name {name!r} is an absolute path; names are relative to their folder")
    parts = tuple(part for part in _SEPARATORS.split(name) if part not in ("", "."))
    if not parts:
        raise ConfigValueError("the name is empty")
    for part in parts:
        if not part.strip(" ."):  # "..", and what Windows takes for it, such as ".. "
            raise ConfigValueError(f"the name {name!r} holds '{part}', which may not be part of a name")
        if _is_too_long(part):
            raise ConfigValueError(f"the name {part[:40] + '...'!r} is too long: a file name has at most "
                                   f"{MAX_NAME_BYTES} bytes")
        if WINDOWS and _means_another_file(part):
            raise ConfigValueError(f"the name {name!r} holds '{part}', which is no file name on Windows")
    return parts


def _means_another_file(part: str) -> bool:
    """Whether Windows opens something else than a file of that name: a device, a stream of a file, a shorter name."""
    stem = part.partition(".")[0].rstrip(" ").lower()
    return bool(set(part) & _WINDOWS_MARKS) or part[-1] in ". " or stem in _WINDOWS_DEVICES or _has_controls(part)


def _has_controls(name: str) -> bool:
    return any(unicodedata.category(mark) == "Cc" for mark in name)


def _is_too_long(part: str) -> bool:
    return len(part.encode("utf-8", "replace")) > MAX_NAME_BYTES


def _is_encodable(name: str) -> bool:
    """False for lone surrogates, which JSON can carry but no file system call accepts everywhere."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder, or what it links to, is a folder. A link in a circle is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_file(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder, or what it links to, is an ordinary file. A link in a circle is none."""
    try:
        return entry.is_file()
    except OSError:
        return False
