"""The discussions, and the files that belong to each.

In a state database, documents stand for files. Otherwise, discussions are stored in folders below the discussions
root, those of clients with an API key one level deeper. Old installations have further locations:
``Public/DiscussionIds`` in the install directory, files named after the discussion next to the folders, and databases
in ``Public``. Scanning creates and changes nothing.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from Middleware.exceptions import WilmerError
from Middleware.models.process import process
from Middleware.services.memory.compactor_store import BLOCKS_FILE, FOLDED_FILE, OLD_FILE, OLDEST_FILE
from Middleware.services.memory.memory_documents import (
    ANCHORS_FILE,
    ELSEWHERE_FILE,
    FOLLOW_FILE,
    MEMORIES_FILE,
    STATE_FILE,
    STATE_VERSIONS_FILE,
    SUMMARY_FILE,
    SUMMARY_VERSIONS_FILE,
    TRACKER_FILE,
)
from Middleware.services.timestamp_service import FILE_NAME as TIMESTAMPS_FILE
from Middleware.services.vision_cache import FILE_NAME as VISION_FILE
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import own_public_directory
from Middleware.utilities.discussion_state import (
    BACKUP,
    COMPACTOR,
    MEMORIES,
    MESSAGE_INDEX,
    SHORT,
    VECTOR_DATABASE,
    ListedDiscussion,
    Searchable,
)
from Middleware.utilities.discussions.discussion_folder import KEY_FOLDER, discussions, stored_discussion
from Middleware.utilities.discussions.folder_names import id_of_folder
from Middleware.utilities.files.file_access import open_to_read
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.text_utils import nearest

logger = logging.getLogger(__name__)

PAIR_FILES = (MEMORIES_FILE, ELSEWHERE_FILE, SUMMARY_FILE, OLD_FILE, OLDEST_FILE)
OBJECT_FILES = (FOLLOW_FILE, TRACKER_FILE, ANCHORS_FILE, TIMESTAMPS_FILE, VISION_FILE, FOLDED_FILE, BLOCKS_FILE)
VERSION_FILES = (SUMMARY_VERSIONS_FILE, STATE_VERSIONS_FILE)
JSON_FILES = PAIR_FILES + OBJECT_FILES + VERSION_FILES
LOCK_FILES = (MEMORIES, COMPACTOR, SHORT)
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")
DATABASE_FILES = tuple(f"{name}{suffix}" for name in (VECTOR_DATABASE, MESSAGE_INDEX) for suffix in SQLITE_SUFFIXES)
DATA_FILES = frozenset(
    (
        *JSON_FILES,
        STATE_FILE,
        *(f"{name}{BACKUP}" for name in (*JSON_FILES, STATE_FILE)),
        *DATABASE_FILES,
    )
)
NO_KEY = "none"
_FLAT = {f"_{name}{suffix}": name for name in JSON_FILES for suffix in ("", BACKUP)}
# Ids are typed from memory, so that a distant match is still a useful suggestion.
NEAR_CUTOFF = 0.6

DiscussionIdentity = tuple[str | None, str]
"""The folder of an API key, None without one, and the id of a discussion."""


class NoSuchDiscussionError(WilmerError, LookupError):
    """There is no such discussion, or more than one; the message names those that exist."""


@dataclass(frozen=True)
class StoredFile:
    """A file at the time of the scan; ``modified`` in seconds since 1970."""

    path: str
    size: int
    modified: float

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


@dataclass(frozen=True)
class StoredDiscussion:
    """One discussion.

    Attributes:
        root: the folder that contains its folder and the older files next to it.
        folders: its folders; the server uses the first one.
        files: all its files, including those outside its folders.
    """

    discussion_id: str
    key_hash: str | None
    root: str
    folders: tuple[str, ...] = ()
    files: tuple[StoredFile, ...] = ()

    @property
    def has_memories(self) -> bool:
        """Whether there may be searchable memories."""
        return self.database() is not None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def last_change(self) -> float | None:
        """Return the time of the last change of its data, in seconds since 1970; None if there is no data."""
        return max((file.modified for file in self.files if file.name not in LOCK_FILES), default=None)

    def display(self, name: str) -> str:
        """Return the name of a file in messages."""
        return f"{self.discussion_id}/{name}"

    def data(self, name: str) -> str | None:
        """Return the file that the server reads as ``name``, or None."""
        if self.folders:
            found = self._file_in(self.folders[0], name)
            if found or name not in JSON_FILES:
                return found
        return None if self.key_hash else self._file_in(self.root, f"{self.discussion_id}_{name}")

    def read(self, path: str) -> bytes:
        """Return the content of one of its files as it is stored. Raises OSError."""
        with open_to_read(path) as file:
            return file.read()

    def name_of(self, file: StoredFile) -> str:
        """Return the name of a file without that of the discussion."""
        outside = os.path.dirname(file.path) not in self.folders
        return file.name[len(self.discussion_id) + 1 :] if outside else file.name

    def database(self) -> str | None:
        """Return the file of its searchable memories, or None."""
        inside = self.data(VECTOR_DATABASE)
        # Elsewhere there are only databases of discussions without an API key.
        if inside or self.key_hash:
            return inside
        name = f"{self.discussion_id}_{VECTOR_DATABASE}"
        paths = {file.path for file in self.files}
        return next(
            (path for path in (os.path.join(folder, name) for folder in database_folders()) if path in paths), None
        )

    def _file_in(self, folder: str, name: str) -> str | None:
        """Return the file with this exact name, else, for JSON files only, the first whose name differs in case."""
        alike = sorted(
            file.name
            for file in self.files
            if file.name.lower() == name.lower() and os.path.dirname(file.path) == folder
        )
        if name in alike:
            return os.path.join(folder, name)
        return os.path.join(folder, alike[0]) if alike and name.endswith(".json") else None


@dataclass(frozen=True)
class DiscussionWithoutFiles(StoredDiscussion):
    """A discussion in the state database: each of its files is a document, whose path is its name.

    Attributes:
        remove: deletes it and returns how many documents it had.
    """

    searchable: Searchable = field(default_factory=Searchable)
    remove: Callable[[], int] = field(default=int, repr=False, compare=False)

    @property
    def has_memories(self) -> bool:
        return bool(self.searchable.memories)

    def data(self, name: str) -> str | None:
        return name if any(file.path == name for file in self.files) else None

    def read(self, path: str) -> bytes:
        content = stored_discussion(self.discussion_id, self.key_hash).read(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "it is not stored any more", path)
        return content

    def name_of(self, file: StoredFile) -> str:
        return file.name

    def database(self) -> str | None:
        return None

    @staticmethod
    def of(listed: ListedDiscussion) -> DiscussionWithoutFiles:
        files = tuple(StoredFile(document.name, document.size, document.modified) for document in listed.documents)
        return DiscussionWithoutFiles(
            listed.discussion_id, listed.key_hash, listed.place, (), files, listed.searchable, listed.remove
        )


@dataclass
class _Found:
    folders: list[str] = field(default_factory=list)
    files: list[StoredFile] = field(default_factory=list)


# -- scanning ----------------------------------------------------------------------------------------------------------


def discussion_roots() -> list[str]:
    """Return the folders in which the server looks for discussions, in this order."""
    return _different(
        [config_utils.get_discussions_root_directory(), os.path.join(own_public_directory(), "DiscussionIds")]
    )


def database_folders() -> list[str]:
    """Return the folders with databases of old installations."""
    return _different([own_public_directory(), os.path.join(os.getcwd(), "Public")])


def all_discussions() -> list[StoredDiscussion]:
    """Return all stored discussions of the current user, by key folder and id. Raises ConfigurationError, OSError."""
    listed = process().one(discussions).listed()
    if listed is not None:
        return [DiscussionWithoutFiles.of(one) for one in listed]
    return _scan(discussion_roots(), database_folders())


def discussions_in(root: str) -> list[StoredDiscussion]:
    """Return the discussions in one folder, as a server has them that is given this folder."""
    return _scan([root], [])


def _scan(roots: list[str], folders_of_databases: list[str]) -> list[StoredDiscussion]:
    found: dict[DiscussionIdentity, _Found] = {}
    for root in roots:
        _scan_root(root, found)
    for folder in folders_of_databases:
        _scan_databases(folder, found)
    _share_flat_files(found, roots)
    return [
        StoredDiscussion(
            place[1],
            place[0],
            _root_of(found[place].folders, place[0], roots),
            tuple(found[place].folders),
            tuple(found[place].files),
        )
        for place in sorted(found, key=lambda place: (place[0] or "", place[1]))
    ]


def is_key_folder_name(name: str) -> bool:
    """Return whether a folder with this name may contain the discussions of clients with one API key."""
    return KEY_FOLDER.fullmatch(name) is not None


def _scan_root(root: str, found: dict[DiscussionIdentity, _Found], key_hash: str | None = None) -> None:
    for entry in _entries(root):
        if not is_flat_name(entry.name):
            continue
        if os.path.isdir(entry):
            _scan_folder(entry, found, key_hash)
        elif key_hash is None and os.path.isfile(entry) and (name := _id_of_flat_file(entry.name)):
            _add_file(found, (None, name), entry)


def _scan_folder(folder: os.DirEntry[str], found: dict[DiscussionIdentity, _Found], key_hash: str | None) -> None:
    entries = _entries(folder.path)
    inner = any(os.path.isdir(entry) for entry in entries)
    has_data = any(entry.name.lower() in DATA_FILES or entry.name in LOCK_FILES for entry in entries)
    # An id may look like the hash of a key, so that one folder is both.
    if has_data or not inner:
        place = key_hash, id_of_folder(folder.name)
        discussion = found.setdefault(place, _Found())
        discussion.folders.append(folder.path)
        for entry in entries:
            if os.path.isfile(entry):
                _add_file(found, place, entry)
    if inner and key_hash is None and is_key_folder_name(folder.name):
        _scan_root(folder.path, found, folder.name)


def _scan_databases(folder: str, found: dict[DiscussionIdentity, _Found]) -> None:
    for entry in _entries(folder):
        for suffix in SQLITE_SUFFIXES:
            ending = f"_{VECTOR_DATABASE}{suffix}"
            name = entry.name.removesuffix(ending)
            if entry.name.endswith(ending) and is_flat_name(name) and os.path.isfile(entry):
                _add_file(found, (None, name), entry)


def _share_flat_files(found: dict[DiscussionIdentity, _Found], roots: list[str]) -> None:
    """Add older files next to the folders to all ids that match: the server ignores the case of their names."""
    alike: dict[str, list[str]] = {}
    for key_hash, name in found:
        if key_hash is None:
            alike.setdefault(name.lower(), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            flat = {
                file.path: file
                for name in names
                for file in found[None, name].files
                if os.path.dirname(file.path) in roots
            }
            for name in names:
                own = {file.path: file for file in found[None, name].files}
                found[None, name].files = list((own | flat).values())


def _add_file(found: dict[DiscussionIdentity, _Found], place: DiscussionIdentity, entry: os.DirEntry[str]) -> None:
    try:
        known = entry.stat()
    # The file was deleted a moment ago.
    except OSError:
        return
    found.setdefault(place, _Found()).files.append(StoredFile(entry.path, known.st_size, known.st_mtime))


def _id_of_flat_file(name: str) -> str | None:
    lower = name.lower()
    ending = next((ending for ending in _FLAT if lower.endswith(ending)), None)
    discussion_id = name[: -len(ending)] if ending else ""
    return discussion_id if is_flat_name(discussion_id) else None


def _root_of(folders: list[str], key_hash: str | None, roots: list[str]) -> str:
    if folders:
        return os.path.dirname(folders[0])
    return os.path.join(roots[0], key_hash) if key_hash else roots[0]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    # Most installations lack some of the folders.
    except FileNotFoundError:
        return []
    except OSError as error:
        logger.warning("%s cannot be read: %s", folder, error.strerror or type(error).__name__)
        return []


def _different(paths: Iterable[str]) -> list[str]:
    """Return the paths without those that lead to the same folder as an earlier one."""
    return list({os.path.realpath(path): path for path in reversed(list(paths))}.values())[::-1]


# -- choosing ----------------------------------------------------------------------------------------------------------


def choose(stored: Iterable[StoredDiscussion], discussion_id: str, key_folder: str | None = None) -> StoredDiscussion:
    """Return the discussion with this id.

    Args:
        key_folder: the folder of an API key that contains it, ``none`` for outside of such folders; None for any.

    Raises NoSuchDiscussionError unless there is exactly one.
    """
    known = list(stored)
    same_id = [one for one in known if one.discussion_id == discussion_id]
    found = [one for one in same_id if key_folder is None or (one.key_hash or NO_KEY) == key_folder]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchDiscussionError(
            f"There are {len(found)} discussions named '{discussion_id}': {_places(found)}. "
            "Choose one with --key-folder, or give the API key."
        )
    if same_id:
        raise NoSuchDiscussionError(
            f"There is no discussion '{discussion_id}' in key folder {key_folder}. There is one {_places(same_id)}."
        )
    raise NoSuchDiscussionError(f"There is no discussion '{discussion_id}'.{_hint(known, discussion_id)}")


def _places(discussions: Iterable[StoredDiscussion]) -> str:
    outside = f"outside the key folders (--key-folder {NO_KEY})"
    return ", ".join(f"in key folder {one.key_hash}" if one.key_hash else outside for one in discussions)


def _hint(known: list[StoredDiscussion], wanted: str) -> str:
    names = list(dict.fromkeys(one.discussion_id for one in known))
    near = nearest(wanted, names, NEAR_CUTOFF)
    return f" The nearest: {near}" if near else f" {len(names)} others are stored; 'list' shows them."
