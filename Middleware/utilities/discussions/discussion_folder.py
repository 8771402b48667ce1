"""The folder of a discussion's data: its path, its encryption and its locks."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from Middleware.exceptions import WilmerError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import current_outside
from Middleware.utilities.config import paths, users
from Middleware.utilities.discussion_state import (
    MESSAGE_INDEX,
    SHORT,
    VECTOR_DATABASE,
    Discussions,
    DiscussionState,
    ListedDiscussion,
)
from Middleware.utilities.discussions.folder_names import DiscussionNames, Listings
from Middleware.utilities.discussions.key_salts import KEY_FOLDER_2, SaltFiles, holds_folders
from Middleware.utilities.discussions.stored_files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    copy_file,
    hide_file,
    read_stored,
    write_stored,
)
from Middleware.utilities.encryption_utils import Cipher, KeySalt, cipher_for
from Middleware.utilities.files.file_access import find_file_ignoring_case, process_lock
from Middleware.utilities.files.path_utils import folded_name, is_flat_name

if TYPE_CHECKING:
    from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
    from Middleware.utilities.discussions.vector_memory.store import VectorMemories

logger = logging.getLogger(__name__)

# The form of the names that ``key_folder_name`` returns.
KEY_FOLDER = re.compile(f"[0-9a-f]{{16}}|{KEY_FOLDER_2.pattern}")


class FlatFiles:
    """Finds files of old installations, which are next to the folders of discussions, ignoring case."""

    # A folder may have thousands of sub-folders and no such file, so possible names are kept until it changes.
    def __init__(self) -> None:
        self._names = Listings(lambda names: filter(_is_flat_file, map(str.lower, names)))

    def find(self, folder: str, name: str) -> str | None:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
        return find_file_ignoring_case(path) if name.lower() in self._names.names(folder) else None


def _is_flat_file(name: str) -> bool:
    return name.endswith(".json")


@dataclass(frozen=True)
class DiscussionFolder:
    """The folder of one conversation. A lookup creates nothing.

    Attributes:
        key_hash: the folder of a client's API key, which contains the folder of the discussion; None without a key.
        encryption_key: the key that encrypts the files; None leaves them in clear.

    Raises ValueError for an id or hash that is not usable as the name of a folder.
    """

    discussion_id: str
    key_hash: str | None = None
    encryption_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not is_flat_name(self.discussion_id) or (self.key_hash and not is_flat_name(self.key_hash)):
            raise ValueError("a discussion id must be usable as the name of a folder")

    @property
    def cipher(self) -> Cipher:
        return cipher_for(self.encryption_key)

    def display(self, name: str) -> str:
        """Return the name of a file in messages."""
        return f"{self.discussion_id}/{name}"

    # -- as a DiscussionState --------------------------------------------------------------------------------------
    @property
    def place(self) -> str:
        return self.folder

    def read(self, name: str) -> bytes | None:
        return read_stored(self._path(name))

    def together(self, *names: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def write(self, name: str, content: bytes) -> None:
        if not os.path.isdir(self.folder):
            self.create()
        write_stored(self._path(name), content, self.cipher)

    def change(
        self,
        name: str,
        function: Callable[[bytes | None], bytes | None],
        scope: CancelScope | None = None,
        timeout: float | None = None,
    ) -> None:
        with self.lock(SHORT, scope, timeout):
            content = function(self.read(name))
            if content is not None:
                self.write(name, content)

    def copy(self, name: str, suffix: str, instead: bytes | None = None) -> None:
        copy_file(self._path(name), suffix, self.cipher, instead)

    def hide(self, name: str, suffix: str) -> None:
        hide_file(self._path(name) + suffix, self.cipher)

    def memories(self, *, write: bool = False, scope: CancelScope | None = None) -> VectorMemories:
        # Most discussions have none, so that what reads SQLite is imported here.
        from Middleware.utilities.discussions.vector_memory.store import VectorMemories

        if write:
            self.create()
        return VectorMemories(
            self.vector_database(), self.discussion_id, write=write, cipher=self.cipher, mode=PRIVATE_FILE, scope=scope
        )

    def messages(self, *, write: bool = False, scope: CancelScope | None = None) -> MessageIndex:
        from Middleware.utilities.discussions.message_index.message_rows import MessageIndex

        if write and not os.path.isdir(self.folder):
            self.create()
        path = self.plain_file(MESSAGE_INDEX)
        return MessageIndex(path, write=write, cipher=self.cipher, mode=PRIVATE_FILE, scope=scope)

    def _path(self, name: str) -> str:
        # Only JSON files were next to the folders in old installations.
        return self.file(name) if name.endswith(".json") else self.plain_file(name)

    # -- paths -----------------------------------------------------------------------------------------------------
    @property
    def folder(self) -> str:
        """The existing folder, else the one to create. Data of old installations stays where it is."""
        return self._found() or process().one(DiscussionNames).new(self.parents()[0], self.discussion_id)

    def file(self, name: str) -> str:
        """Return the JSON file ``name``: the one in the folder, else an older one next to it, else the one to
        create."""
        path = os.path.join(self.folder, name)
        found = find_file_ignoring_case(path)
        if found is None and not self.key_hash:
            found = process().one(FlatFiles).find(os.path.dirname(self.folder), f"{self.discussion_id}_{name}")
        return found or path

    def plain_file(self, name: str) -> str:
        """Return the path of ``name`` in the folder, existing or not."""
        return os.path.join(self.folder, name)

    def vector_database(self) -> str:
        """Return the database of the discussion's searchable memories; an older one may be in ``Public``."""
        path = self.plain_file(VECTOR_DATABASE)
        if self.key_hash or os.path.isfile(path):
            return path
        name = f"{self.discussion_id}_{VECTOR_DATABASE}"
        roots = (paths.own_public_directory(), os.path.join(os.getcwd(), "Public"))
        older = (os.path.join(root, name) for root in roots)
        names = process().one(DiscussionNames)
        return next((found for found in older if os.path.isfile(found) and names.is_spelled_so(found)), path)

    def create(self) -> str:
        """Create the folder and return its path. Raises OSError."""
        if found := self._found():
            return found
        target, older = self.parents()
        try:
            return self._made(target)
        except OSError as error:
            # The configured directory may be on a disk that is missing or full; the memories must not be lost.
            if target == older:
                raise
            folder = process().one(DiscussionNames).new(older, self.discussion_id)
            logger.warning(
                "The folder of discussion %s cannot be made (%s); %s is used",
                self.discussion_id,
                error.strerror,
                folder,
            )
            return self._made(older)

    def _made(self, parent: str) -> str:
        # The root keeps the umask's bits: it may hold other things as well.
        os.makedirs(os.path.dirname(parent) if self.key_hash else parent, exist_ok=True)
        if self.key_hash:
            os.makedirs(parent, PRIVATE_FOLDER, exist_ok=True)
        return process().one(DiscussionNames).made(parent, self.discussion_id)

    def _found(self) -> str | None:
        names, (target, older) = process().one(DiscussionNames), self.parents()
        return names.find(target, self.discussion_id) or names.find(older, self.discussion_id)

    def parents(self) -> tuple[str, str]:
        """Return the folder that contains that of the discussion, and the one of an old installation."""
        target, older = _used_roots()
        if self.key_hash:
            return os.path.join(target, self.key_hash), os.path.join(older, self.key_hash)
        return target, older

    # -- locks -----------------------------------------------------------------------------------------------------
    def lock(
        self, name: str = SHORT, scope: CancelScope | None = None, timeout: float | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Return a lock between threads and processes on a part of the discussion's data; creates the folder.

        ``SHORT`` is for reading, changing and writing a file, as ``change`` does.
        Raises OSError, EarlyTerminationException, and TimeoutError after ``timeout`` seconds (0: one attempt).
        """
        return process_lock(os.path.join(self.create(), name), scope, timeout, PRIVATE_FILE)


class DiscussionFolders:
    """All discussions in files."""

    worker, health = 0, ""

    def listed(self) -> list[ListedDiscussion] | None:
        return None

    def state(
        self, discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
    ) -> DiscussionState:
        return DiscussionFolder(discussion_id, key_hash, encryption_key)

    def folder(
        self, discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
    ) -> DiscussionFolder | None:
        return DiscussionFolder(discussion_id, key_hash, encryption_key)

    def key_salt(self, user: str | None = None) -> KeySalt | None:
        return process().one(SaltFiles).read(_own_roots(user))

    def keep_key_salt(self, salt: KeySalt, user: str | None = None) -> KeySalt:
        return process().one(SaltFiles).keep(_own_roots(user), salt)

    def has_key(self, name: str, user: str | None = None) -> bool:
        return any(os.path.isdir(os.path.join(root, name)) for root in _own_roots(user))

    def first_name(self, names: Sequence[str], user: str | None = None) -> str | None:
        places = ((root, name) for root in _own_roots(user) for name in names)
        return next((name for root, name in places if os.path.isdir(os.path.join(root, name))), None)

    def hold_data_of_a_key(self, discussion_id: str) -> bool:
        # Other spellings of the name count too: file systems may ignore case and invisible characters.
        if not KEY_FOLDER.fullmatch(folded_name(discussion_id)):
            return False
        # The file system may take the id for the name of the key's folder, although the discussion would get another.
        return any(_holds_folders(os.path.join(root, discussion_id)) for root in _used_roots())


def _holds_folders(path: str) -> bool:
    try:
        return holds_folders(path)
    except (OSError, ValueError):
        return False


def _used_roots() -> tuple[str, str]:
    return users.get_discussions_root_directory(), os.path.join(paths.own_public_directory(), "DiscussionIds")


def _own_roots(user: str | None) -> tuple[str, str]:
    return users.own_discussions_root(user), os.path.join(paths.own_public_directory(), "DiscussionIds")


def discussions() -> Discussions:
    """Make what ``process().one(discussions)`` returns, unless the launcher has put another object there: the only one
    that knows whether discussions are in files or in a database."""
    return DiscussionFolders()


def used_discussions() -> Discussions:
    """Return the discussions that the current request reads and changes."""
    return current_outside().discussions(process().one(discussions))


def stored_discussion(
    discussion_id: str, key_hash: str | None = None, encryption_key: bytes | None = None
) -> DiscussionState:
    """Return a discussion; the arguments are those of ``Discussions.state``. Raises ValueError."""
    return used_discussions().state(discussion_id, key_hash, encryption_key)


def holds_data_of_a_key(discussion_id: str) -> bool:
    """Return whether this id, without a key, is the name of a client's key with its discussions."""
    return process().one(discussions).hold_data_of_a_key(discussion_id)


# -- for users' scripts ------------------------------------------------------------------------------------------------
# Each takes a discussion id and, for the discussion of a client with an API key, the hash of that key. It returns the
# path of the existing file, which may be an older one next to the folder, else the path of a new one. Raises
# WilmerError if discussions are not in files.


def _json_file(name: str, discussion_id: str, api_key_hash: str | None = None) -> str:
    return _folder(discussion_id, api_key_hash).file(name)


def get_discussion_state_document_file_path(discussion_id: str, api_key_hash: str | None = None) -> str:
    return _folder(discussion_id, api_key_hash).plain_file("state_document.md")


def _folder(discussion_id: str, key_hash: str | None) -> DiscussionFolder:
    folder = used_discussions().folder(discussion_id, key_hash)
    # The path of a file that is never read or written would mislead the script.
    if folder is None:
        raise WilmerError(
            "This server stores conversations in a database, so they have no files. Scripts can use "
            "MemoryStore of Middleware.services.memory.memory_store."
        )
    return folder


get_discussion_memory_file_path = partial(_json_file, "memories.json")
get_discussion_chat_summary_file_path = partial(_json_file, "chat_summary.json")
get_discussion_timestamp_file_path = partial(_json_file, "timestamps.json")
get_discussion_condensation_tracker_file_path = partial(_json_file, "condensation_tracker.json")
get_discussion_vision_responses_file_path = partial(_json_file, "vision_responses.json")
get_discussion_context_compactor_old_file_path = partial(_json_file, "context_compactor_old.json")
get_discussion_context_compactor_oldest_file_path = partial(_json_file, "context_compactor_oldest.json")
