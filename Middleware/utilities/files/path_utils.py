"""The only conversion of names from outside to parts of paths.

A name is one path component or, in an operator's configuration, several. The disk is not accessed: a link that an
operator has created in a data folder is followed, and no name can create a link or lead out of the folder.
"""

from __future__ import annotations

import os
import re
import unicodedata
from functools import lru_cache

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.json_data import type_name

WINDOWS = os.name == "nt"
# In UTF-8: the limit of most file systems for one component.
MAX_NAME_BYTES = 255

_DRIVE = re.compile(r"[A-Za-z]:")
_NOT_FLAT = re.compile(r"[/\\:\0]")
_SEPARATORS = re.compile(r"[/\\]")
_WINDOWS_MARKS = frozenset('<>"|?*:')
_WINDOWS_DEVICES = frozenset(
    {
        "con",
        "prn",
        "aux",
        "nul",
        "conin$",
        "conout$",
        "clock$",
        *(f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"),
    }
)


def is_flat_name(name: object) -> bool:
    """Return whether ``name`` is one safe path component.

    It must not be blank, ``.`` or ``..``, nor contain ``/``, ``\\``, ``:`` or NUL. On Windows it must also not be a
    device or end with a dot or a space.
    """
    if not isinstance(name, str) or not name.strip(" .") or _NOT_FLAT.search(name):
        return False
    return _is_encodable(name) and not (WINDOWS and _means_another_file(name))


def is_storable_name(name: object) -> bool:
    """Return whether a file or folder may be created with this name: flat, without control characters, not too long."""
    return is_flat_name(name) and not _has_controls(str(name)) and not _is_too_long(str(name))


def split_name(name: object) -> tuple[str, ...]:
    """Return the path components of a name in an operator's configuration.

    Both slashes are separators, on every platform; empty and ``.`` components are dropped. Raises ``ConfigValueError``
    for a name that is not a string, blank, absolute, on a drive or too long, or contains control characters, ``..`` or
    a component that has another meaning on Windows.
    """
    if not isinstance(name, str):
        raise ConfigValueError(f"a name must be a string, not {type_name(name)}")
    return _split_text(name)


def safe_join(root: str, *names: str) -> str:
    """Return ``root`` extended by ``names``, which cannot lead out of it. Raises as ``split_name`` does."""
    return os.path.join(root, *(part for name in names for part in split_name(name)))


def folded_name(name: str) -> str:
    """Return a form of the name that ignores case, normal form and invisible characters, as some file systems do."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(mark for mark in unicodedata.normalize("NFKD", plain) if unicodedata.category(mark) != "Cf")


# The same names are looked up at each request. Some come from requests, so the cache is limited.
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
        # ".." and the names that Windows treats in the same way, such as ".. ".
        if not part.strip(" ."):
            raise ConfigValueError(f"the name {name!r} holds '{part}', which may not be part of a name")
        if _is_too_long(part):
            raise ConfigValueError(
                f"the name {part[:40] + '...'!r} is too long: a file name has at most {MAX_NAME_BYTES} bytes"
            )
        if WINDOWS and _means_another_file(part):
            raise ConfigValueError(f"the name {name!r} holds '{part}', which is not a file name on Windows")
    return parts


def _means_another_file(part: str) -> bool:
    """Return whether Windows opens something other than a file of this name."""
    # A device, a stream of another file, or a file without the dots and spaces at the end.
    stem = part.partition(".")[0].rstrip(" ").lower()
    return bool(set(part) & _WINDOWS_MARKS) or part[-1] in ". " or stem in _WINDOWS_DEVICES or _has_controls(part)


def _has_controls(name: str) -> bool:
    return any(unicodedata.category(mark) == "Cc" for mark in name)


def _is_too_long(part: str) -> bool:
    return len(part.encode("utf-8", "replace")) > MAX_NAME_BYTES


def _is_encodable(name: str) -> bool:
    # JSON may contain lone surrogates, which not every file system accepts.
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
