"""Names from outside become path parts only here."""
from __future__ import annotations

import os
import re
from functools import lru_cache

from Middleware.exceptions import ConfigValueError

_DRIVE = re.compile(r"[A-Za-z]:")
_SEPARATORS = re.compile(r"[/\\]")


def is_flat_name(name: object) -> bool:
    """Whether ``name`` is one safe path component: not empty, ``.`` or ``..``, and without ``/``, ``\\``, ``:``."""
    if not isinstance(name, str) or not name.strip(" .") or any(mark in name for mark in "/\\:\0"):
        return False
    return _is_encodable(name)


def split_name(name: object) -> tuple[str, ...]:
    """The path components of a name written by an operator.

    Both slashes separate, on every platform; empty and ``.`` components are dropped. Raises ``ConfigValueError`` for
    what is not text, blank, absolute, on a drive, or holds NUL or ``..``.
    """
    if not isinstance(name, str):
        raise ConfigValueError(f"a name must be text, not {type(name).__name__}")
    return _split_text(name)


def safe_join(root: str, *names: str) -> str:
    """``root`` extended by ``names``, which cannot lead out of it. Raises as ``split_name`` does."""
    return os.path.join(root, *(part for name in names for part in split_name(name)))


@lru_cache(maxsize=2048)
def _split_text(name: str) -> tuple[str, ...]:
    if "\0" in name or not _is_encodable(name):
        raise ConfigValueError(f"the name {name!r} holds a character that no file name can have")
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        raise ConfigValueError(f"the name {name!r} is an absolute path; names are relative to their folder")
    parts = tuple(part for part in _SEPARATORS.split(name) if part not in ("", "."))
    if not parts:
        raise ConfigValueError("the name is empty")
    for part in parts:
        if not part.strip(" ."):  # "..", and what Windows takes for it, such as ".. "
            raise ConfigValueError(f"the name {name!r} holds '{part}', which may not be part of a name")
        if os.name == "nt" and ":" in part:  # an alternate data stream
            raise ConfigValueError(f"the name {name!r} holds ':'")
    return parts


def _is_encodable(name: str) -> bool:
    """False for lone surrogates, which JSON can carry but no file system call accepts everywhere."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
