"""The exports of discussions in the console's folder: each belongs to one discussion, and is deleted with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from Middleware.addons.discussions.catalog import DiscussionWithoutFiles, StoredDiscussion
from Middleware.addons.discussions.discussion_reader import Reader, export
from Middleware.addons.discussions.removal import Removal
from Middleware.addons.records.console_folder import EXPORTS, OWNER_ONLY, OWNER_ONLY_FOLDER, ConsoleFolder
from Middleware.exceptions import DataKeyError, WilmerError
from Middleware.utilities.files.file_access import atomic_write

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
# Names of files have at most 255 bytes, and letters up to four.
_MAX_NAME_BYTES = 120
# Exports made before their names had a mark end in a shorter time.
_NAME = re.compile(r".*-(?:([0-9a-f]{16})-[0-9]{8}-[0-9]{6}-[0-9]{6}|[0-9]{8}-[0-9]{6})\.json", re.DOTALL)


def exported(reader: Reader) -> bytes:
    """Return the content of an export, not encrypted. Raises as ``export`` does."""
    return json.dumps(export(reader), indent=2, ensure_ascii=True).encode("ascii")


def file_name(discussion_id: str) -> str:
    """Return the id in such a form that it can be part of the name of a file."""
    name = _NOT_IN_NAMES.sub("_", discussion_id)[:80]
    return name.encode()[:_MAX_NAME_BYTES].decode(errors="ignore") or "discussion"


def save(console: ConsoleFolder, reader: Reader) -> str:
    """Write an export, as encrypted as the discussion itself; return its path below the console's folder."""
    folder = os.path.join(console.made(), EXPORTS)
    os.makedirs(folder, OWNER_ONLY_FOLDER, exist_ok=True)
    mark = _mark(reader.discussion, folder)
    name = f"{file_name(reader.discussion.discussion_id)}-{mark}-{datetime.now():%Y%m%d-%H%M%S-%f}.json"
    atomic_write(os.path.join(folder, name), reader.cipher.encrypt(exported(reader)), OWNER_ONLY)
    return f"{EXPORTS}/{name}"


def remove(console: ConsoleFolder, reader: Reader, removal: Removal) -> None:
    """Delete the exports of a discussion; ``removal`` gets the names of those that cannot be deleted."""
    wanted = _mark(reader.discussion, console.file(EXPORTS))
    for path, mark in _stored(console, removal.left):
        if mark == wanted if mark else _says_so(path, reader):
            _change(path, os.unlink, removal.left)


def give_to_key(
    console: ConsoleFolder, discussion: StoredDiscussion, old: str, new: str, changed: Callable[[bytes], bytes | None]
) -> list[str]:
    """Let the exports of a discussion, whose key folder is or was ``old``, belong to it in the key folder ``new``.

    ``changed`` returns a content under the new key, or None for one that has it. It raises WilmerError for one that it
    cannot read, which is then deleted with its discussion all the same. Returns a sentence for each that stays as it
    is. May be called again after an interruption.
    """
    folder, problems = console.file(EXPORTS), list[str]()
    before, after = (_mark(_under(discussion, key), folder) for key in (old, new))
    for path, mark in _stored(console, problems):
        if mark == before:
            head, _, moment = path.rpartition(f"-{before}-")
            _change(path, partial(_give, f"{head}-{after}-{moment}", changed), problems)
    return problems


def _give(target: str, changed: Callable[[bytes], bytes | None], path: str) -> None:
    try:
        content = changed(Path(path).read_bytes())
    except WilmerError:
        os.replace(path, target)
        raise
    # Its days are counted from when it was made.
    made = os.stat(path)
    if content is None:
        os.replace(path, target)
    else:
        atomic_write(target, content, OWNER_ONLY)
        os.utime(target, ns=(made.st_atime_ns, made.st_mtime_ns))
        if target != path:
            os.unlink(path)


def _under(discussion: StoredDiscussion, key_hash: str) -> StoredDiscussion:
    """Return the discussion as it is, or was, in the folder of another key."""
    root = discussion.root
    # A link has the same target under its other name.
    if not isinstance(discussion, DiscussionWithoutFiles) and not os.path.islink(root):
        root = os.path.join(os.path.dirname(root), key_hash)
    return replace(discussion, root=root, key_hash=key_hash)


def _stored(console: ConsoleFolder, problems: list[str]) -> list[tuple[str, str | None]]:
    """Return the paths of the exports, with the marks in their names. Other things may lie in their folder."""
    try:
        with os.scandir(console.file(EXPORTS)) as entries:
            found = [(entry.path, _NAME.fullmatch(entry.name)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(f"{EXPORTS}: {error.strerror or type(error).__name__}")
        return []
    # A pipe is never read to its end; a link may lead nowhere.
    return [(path, name[1]) for path, name in found if name and os.path.isfile(path)]


def _change(path: str, action: Callable[[str], object], problems: list[str]) -> None:
    """Call ``action`` for an export; ``problems`` gets what went wrong."""
    name = f"{EXPORTS}/{os.path.basename(path)}"
    # Its text is somewhere else.
    if os.path.islink(path):
        problems.append(f"{name}: is a link to {os.path.realpath(path)}, which is left alone")
        return
    try:
        action(path)
    # Another process deleted it first.
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{name}: {error.strerror or type(error).__name__}")
    except WilmerError as error:
        problems.append(f"{name}: {error}")


def _says_so(path: str, reader: Reader) -> bool:
    """Return whether the content of an export without a mark names the discussion, as far as the key can read it."""
    try:
        content = json.loads(reader.cipher.decrypt(Path(path).read_bytes()))
    # Another program may have put anything there.
    except (OSError, ValueError, RecursionError, DataKeyError):
        return False
    wanted = {"discussionId": reader.discussion.discussion_id, "keyFolder": reader.discussion.key_hash}
    return isinstance(content, dict) and content.items() >= wanted.items()


def _mark(discussion: StoredDiscussion, folder: str) -> str:
    """Return what distinguishes a discussion from those with the same id, of other keys or in other places.

    It stays the same if the folder of the exports and that of the discussions are moved together.
    """
    place = discussion.root
    if not isinstance(discussion, DiscussionWithoutFiles):
        with contextlib.suppress(ValueError):  # Windows: they are on different drives.
            place = os.path.relpath(os.path.realpath(place), os.path.realpath(folder))
    names = (place, discussion.key_hash or "", discussion.discussion_id)
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:16]
