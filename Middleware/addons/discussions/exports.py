"""The exports of discussions in the console's folder: each belongs to one discussion, and is deleted with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from datetime import datetime

from Middleware.addons.discussions.catalog import DiscussionWithoutFiles, StoredDiscussion
from Middleware.addons.discussions.discussion_reader import Reader, export
from Middleware.addons.discussions.removal import Removal
from Middleware.addons.records.console_folder import EXPORTS, OWNER_ONLY, OWNER_ONLY_FOLDER, ConsoleFolder
from Middleware.exceptions import DataKeyError
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
    for path in list(_of(console, reader)):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            removal.left.append(f"{EXPORTS}/{os.path.basename(path)}: {error.strerror or type(error).__name__}")


def _of(console: ConsoleFolder, reader: Reader) -> Iterator[str]:
    folder = console.file(EXPORTS)
    mark = _mark(reader.discussion, folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            found = _NAME.fullmatch(entry.name)
            if found and (found[1] == mark if found[1] else _says_so(entry.path, reader)):
                yield entry.path


def _says_so(path: str, reader: Reader) -> bool:
    """Return whether the content of an export without a mark names the discussion, as far as the key can read it."""
    try:
        with open(path, "rb") as file:
            content = json.loads(reader.cipher.decrypt(file.read()))
    except (OSError, ValueError, DataKeyError):
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
