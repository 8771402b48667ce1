"""Discussions from folders into the state database, and back, as they are stored; and which there are to move."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from Middleware.addons.discussions.catalog import (
    DATABASE_FILES,
    JSON_FILES,
    LOCK_FILES,
    SQLITE_SUFFIXES,
    StoredDiscussion,
    all_discussions,
    discussions_in,
)
from Middleware.addons.postgres.database import StateConnection
from Middleware.addons.postgres.stored_discussions import DiscussionName, StoredRows, claim, find
from Middleware.exceptions import ConfigurationError
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.users import existing_users, get_discussions_space
from Middleware.utilities.discussion_state import BACKUP, MESSAGE_INDEX, VECTOR_DATABASE
from Middleware.utilities.discussions.folder_names import DiscussionNames
from Middleware.utilities.discussions.message_index.whole_index import Rows, file_of_a_moment, stored_rows
from Middleware.utilities.discussions.message_index.whole_index import write_file as write_index
from Middleware.utilities.discussions.stored_files import PRIVATE_FILE, PRIVATE_FOLDER
from Middleware.utilities.discussions.vector_memory.whole import DatabaseFile, WholeMemories, is_empty, write_file
from Middleware.utilities.files.file_access import atomic_write, process_lock
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.text_utils import storable

# Seconds. A pass of a server in file mode holds the lock for as long as its LLM calls take.
LOCK_SECONDS = 30.0

Outcome: TypeAlias = Literal["moved", "known", "differs"]

_CANONICAL = {f"{name}{suffix}".lower(): f"{name}{suffix}" for name in JSON_FILES for suffix in ("", BACKUP)}
_NO_DOCUMENTS = frozenset((*LOCK_FILES, *DATABASE_FILES))
_DAMAGED_INDEX = f"{MESSAGE_INDEX}.corrupt-"


class Documents(Protocol):
    """The documents of a discussion: in file mode, each is a file."""

    def document_names(self) -> list[str]: ...

    def document(self, name: str) -> bytes: ...


@dataclass(frozen=True)
class FolderDocuments:
    """The documents that a server reads of a discussion, under the names that it writes."""

    discussion: StoredDiscussion

    @cached_property
    def paths(self) -> Mapping[str, str]:
        """The file of each document."""
        found: dict[str, tuple[int, str]] = {}
        for name, path, rank in self._files():
            canonical = _CANONICAL.get(name.lower(), name)
            rank += canonical != name
            if (
                name not in _NO_DOCUMENTS
                and not name.endswith(".tmp")
                and not name.startswith(_DAMAGED_INDEX)
                and (canonical not in found or rank < found[canonical][0])
            ):
                found[canonical] = rank, path
        return {name: found[name][1] for name in sorted(found)}

    def _files(self) -> Iterator[tuple[str, str, int]]:
        """Yield name and path of each file, and how many others with such a name a server prefers, about."""
        discussion = self.discussion
        if discussion.folders:
            # Files may have come since the folders were listed.
            with os.scandir(discussion.folders[0]) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if entry.is_file():
                        yield entry.name, entry.path, 0
        if not discussion.key_hash:
            for file in discussion.files:
                if os.path.dirname(file.path) == discussion.root:
                    yield file.name[len(discussion.discussion_id) + 1 :], file.path, 2

    def document_names(self) -> list[str]:
        return list(self.paths)

    def document(self, name: str) -> bytes:
        return Path(self.paths[name]).read_bytes()


# -- into the database -------------------------------------------------------------------------------------------------


def move_in(
    connection: StateConnection,
    space: str,
    discussion: StoredDiscussion,
    *,
    replace: bool = False,
    dry_run: bool = False,
) -> Outcome | None:
    """Store a discussion in the database, in one transaction; return what was done, None for one without any data.

    Raises OSError, sqlite3.Error, and TimeoutError while a server works on its files.

    Args:
        replace: replace what is there and different.
        dry_run: write nothing, and return what would be done.
    """
    name = DiscussionName(space, discussion.key_hash or "", storable(discussion.discussion_id))
    with contextlib.ExitStack() as stack:
        if discussion.folders and not dry_run:
            stack.enter_context(_locked(discussion.folders[0]))
        documents = FolderDocuments(discussion)
        rows = stack.enter_context(DatabaseFile(discussion.database() or ""))
        messages = stack.enter_context(file_of_a_moment(discussion.data(MESSAGE_INDEX)))
        if not documents.paths and is_empty(rows) and not any(stored_rows(messages)):
            return None
        stack.enter_context(connection.transaction())
        stored = find(connection, name) if dry_run else claim(connection, name)
        if stored is not None and not _is_blank(stored):
            if _digest(stored, stored, stored.messages()) == _digest(documents, rows, stored_rows(messages)):
                return "known"
            if not replace:
                return "differs"
        if stored is not None and not dry_run:
            stored.keep_documents(documents.document_names())
            for document in documents.document_names():
                stored.write_document(document, documents.document(document))
            stored.write_memories(rows)
            stored.write_messages(stored_rows(messages))
    return "moved"


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the locks of a server in file mode, so that nothing is read half-written. Raises TimeoutError."""
    with contextlib.ExitStack() as stack:
        for name in LOCK_FILES:
            try:
                stack.enter_context(process_lock(os.path.join(folder, name), timeout=LOCK_SECONDS, mode=PRIVATE_FILE))
            # No process writes to a disk that is mounted for reading, such as a backup.
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
        yield


# -- out of the database -----------------------------------------------------------------------------------------------


def move_out(
    connection: StateConnection,
    name: DiscussionName,
    root: str,
    present: StoredDiscussion | None,
    *,
    replace: bool = False,
) -> Outcome | None:
    """Write a discussion below ``root`` as a server in file mode does; return what was done, or None.

    Args:
        present: what is there of the discussion.
        replace: replace it if it is different.

    Raises OSError, sqlite3.Error, TimeoutError, and ValueError for names that no file can have.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(connection.transaction())
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        stored = find(connection, name)
        if stored is None or _is_blank(stored):
            return None
        for part in (name.discussion_id, *([name.key_hash] if name.key_hash else ()), *stored.document_names()):
            if not is_flat_name(part):
                raise ValueError(f"no file can have the name '{part}'")
        stale: set[str] = set()
        if present is not None:
            if present.folders:
                stack.enter_context(_locked(present.folders[0]))
            documents = FolderDocuments(present)
            index = file_of_a_moment(present.data(MESSAGE_INDEX))
            with DatabaseFile(present.database() or "") as rows, index as messages:
                if documents.paths or not is_empty(rows) or any(stored_rows(messages)):
                    there = _digest(documents, rows, stored_rows(messages))
                    if _digest(stored, stored, stored.messages()) == there:
                        return "known"
                    if not replace:
                        return "differs"
            stale = {path for document, path in documents.paths.items() if document not in stored.document_names()}
        folder = present.folders[0] if present is not None and present.folders else _new_folder(root, name)
        for document in stored.document_names():
            atomic_write(os.path.join(folder, document), stored.document(document), PRIVATE_FILE)
        _write_database(folder, name, stored)
        for path in stale:
            os.remove(path)
    return "moved"


def _new_folder(root: str, name: DiscussionName) -> str:
    os.makedirs(root, exist_ok=True)
    if name.key_hash:
        root = os.path.join(root, name.key_hash)
        os.makedirs(root, PRIVATE_FOLDER, exist_ok=True)
    return process().one(DiscussionNames).made(root, name.discussion_id)


def _write_database(folder: str, name: DiscussionName, stored: StoredRows) -> None:
    path, index = os.path.join(folder, VECTOR_DATABASE), os.path.join(folder, MESSAGE_INDEX)
    if not is_empty(stored):
        write_file(path, name.discussion_id, stored, PRIVATE_FILE)
    else:
        _remove_database(path)
    if any(stored.messages()):
        write_index(index, stored.messages(), PRIVATE_FILE)
    else:
        _remove_database(index)


def _remove_database(path: str) -> None:
    for suffix in SQLITE_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path + suffix)


# -- comparing ---------------------------------------------------------------------------------------------------------


def _is_blank(stored: StoredRows) -> bool:
    return not stored.document_names() and is_empty(stored) and not any(stored.messages())


def _digest(documents: Documents, rows: WholeMemories, messages: Rows) -> bytes:
    """Return a value that is equal for equal contents. There may be more of them than fit into memory."""
    digest = hashlib.sha256()
    for name in documents.document_names():
        digest.update(repr((name, hashlib.sha256(documents.document(name)).digest())).encode())
    for kind in (rows.memories(), rows.vectors(), rows.log()):
        digest.update(b"--")
        for row in kind:
            digest.update(repr(tuple(row)).encode())
    digest.update(repr(rows.hash_key()).encode())
    for table, some in messages:
        for message in some:
            digest.update(repr((table, message)).encode())
    return digest.digest()


# -- what there is to move ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """The folder of some users' discussions, and one of these users."""

    name: str
    root: str
    user: str


def spaces() -> list[Space]:
    """Return the folders of all users, each once, the default one first."""
    found: dict[str, Space] = {}
    for user in existing_users():
        try:
            with as_user(user):
                name = get_discussions_space()
                found.setdefault(name, Space(name, config_utils.get_discussions_root_directory(), user))
        # A user whom no server can serve; 'check' reports the file.
        except ConfigurationError:
            continue
    return [found[name] for name in sorted(found)]


def as_user(user: str) -> AbstractContextManager[RequestContext]:
    """Do something with the settings of a user."""
    return request_scope(RequestContext(request_id=f"state {user}", user=user))


def discussions_in_files(folder: str | None = None) -> Iterator[tuple[str, StoredDiscussion]]:
    """Yield the discussions in a folder, or those of all users, each with its space."""
    known = spaces()
    if folder is not None:
        name = next((space.name for space in known if os.path.realpath(space.root) == os.path.realpath(folder)), "")
        yield from ((name, discussion) for discussion in discussions_in(folder))
        return
    # Folders of old installations are below those of all users, but belong to the users whose own folder they are.
    roots = {os.path.realpath(space.root) for space in known}
    taken: set[tuple[str, str | None, str]] = set()
    for space in known:
        with as_user(space.user):
            found = all_discussions()
        for discussion in found:
            root = os.path.realpath(os.path.dirname(discussion.root) if discussion.key_hash else discussion.root)
            place = root, discussion.key_hash, discussion.discussion_id
            if place not in taken and (root == os.path.realpath(space.root) or root not in roots):
                taken.add(place)
                yield space.name, discussion
