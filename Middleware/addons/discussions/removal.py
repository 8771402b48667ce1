"""Deleting a discussion completely."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from Middleware.addons.discussions.catalog import (
    LOCK_FILES,
    DiscussionWithoutFiles,
    StoredDiscussion,
    is_key_folder_name,
)
from Middleware.exceptions import WilmerError
from Middleware.utilities.discussion_state import COMPACTOR, MEMORIES, SHORT
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder, stored_discussion

# Seconds. The server holds this lock for milliseconds only.
SHORT_WAIT = 2.0


class RemovalRefusedError(WilmerError):
    """Nothing was deleted; the message says why."""


@dataclass
class Removal:
    """The result of a removal: the number of deleted files, and the files that are left, with reasons."""

    deleted: int = 0
    left: list[str] = field(default_factory=list)


def remove(discussion: StoredDiscussion) -> Removal:
    """Delete every file and folder of the discussion, holding the locks on its memories.

    Raises RemovalRefusedError without having changed anything.
    """
    if isinstance(discussion, DiscussionWithoutFiles):
        with _all_locks(discussion, (MEMORIES, COMPACTOR)):
            return Removal(discussion.remove())
    # Deleting through a link could remove files outside the data folder.
    linked = next((folder for folder in discussion.folders if os.path.islink(folder)), None)
    if linked:
        raise RemovalRefusedError(f"{linked} is a link to {os.path.realpath(linked)}. Delete that by hand.")
    removal = Removal()
    with _all_locks(discussion, (MEMORIES, COMPACTOR, SHORT)):
        for file in discussion.files:
            if file.name not in LOCK_FILES:
                _try(removal, file.path, os.unlink, counts=True)
        for folder in _folders(discussion):
            _empty(folder, _keeps_folders(discussion), removal)
    # After the locks have been released, as Windows does not delete a locked file.
    for folder in _folders(discussion):
        _remove_folder(folder, _keeps_folders(discussion), removal)
        if discussion.key_hash:
            # The folder of the key may contain other discussions.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(folder))
    return removal


@contextlib.contextmanager
def _all_locks(discussion: StoredDiscussion, names: Sequence[str]) -> Iterator[None]:
    state = stored_discussion(discussion.discussion_id, discussion.key_hash)
    with contextlib.ExitStack() as held:
        try:
            for name in names:
                held.enter_context(state.lock(name, timeout=SHORT_WAIT if name == SHORT else 0.0))
        except TimeoutError:
            raise RemovalRefusedError(
                "A running server works on this discussion right now. Nothing was deleted; try "
                "again later, or stop the server."
            ) from None
        except OSError as error:
            raise RemovalRefusedError(
                f"The discussion cannot be locked: {error.strerror}. Nothing was deleted."
            ) from None
        yield


def _folders(discussion: StoredDiscussion) -> list[str]:
    """Return the discussion's folders, including the one that taking a lock may have created."""
    used = DiscussionFolder(discussion.discussion_id, discussion.key_hash).folder
    return list(dict.fromkeys((*discussion.folders, used)))


def _keeps_folders(discussion: StoredDiscussion) -> bool:
    """Return whether inner folders stay: if the id looks like the hash of an API key, they are other discussions."""
    return discussion.key_hash is None and is_key_folder_name(discussion.discussion_id)


def _empty(folder: str, keep_folders: bool, removal: Removal) -> None:
    """Delete the contents of a folder except the locks."""
    for name in _names(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            if not keep_folders:
                _try(removal, path, shutil.rmtree)
        elif name not in LOCK_FILES:
            _try(removal, path, os.unlink, counts=True)


def _remove_folder(folder: str, keep_folders: bool, removal: Removal) -> None:
    for name in LOCK_FILES:
        _try(removal, os.path.join(folder, name), os.unlink)
    if os.path.isdir(folder) and not (keep_folders and _names(folder)):
        _try(removal, folder, os.rmdir)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    # There is no such folder, or deleting it will report why it cannot be read.
    except OSError:
        return []


def _try(removal: Removal, path: str, delete: Callable[[str], object], counts: bool = False) -> None:
    try:
        delete(path)
        removal.deleted += counts
    # Another process deleted it first.
    except FileNotFoundError:
        pass
    except OSError as error:
        removal.left.append(f"{path}: {error.strerror or type(error).__name__}")
