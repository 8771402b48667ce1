"""Changing the key of all files in a key folder, one after the other."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from Middleware.addons.discussions.rekey.folder_keys import KeyChange
from Middleware.addons.discussions.rekey.journal import NAME, Journal
from Middleware.exceptions import ConfigSyntaxError, DataKeyError, WilmerError
from Middleware.services.memory.memory_store import STATE_FILE
from Middleware.utilities.config.json_source import parse_json
from Middleware.utilities.discussion_state import BACKUP, COMPACTOR, MEMORIES, MESSAGE_INDEX, SHORT, VECTOR_DATABASE
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.stored_files import PRIVATE_FILE
from Middleware.utilities.discussions.vector_memory import VectorMemories, schema
from Middleware.utilities.encryption_utils import is_cut_off, is_token
from Middleware.utilities.files.file_access import LEFT_OVER, atomic_write, process_lock

_SHORT_WAIT = 2.0  # seconds; a server holds it for milliseconds
WRONG_KEY = "belongs to another API key, or to a user that is not configured any more"


class SkippedError(WilmerError):
    """A file stays as it is; the text says why."""


@dataclass
class Result:
    """How many files were changed, how many had been so before, and why the others stay as they are.

    Attributes:
        owners: the users with whose keys the files are or were encrypted.
    """

    changed: int = 0
    done_before: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)


def stored_files(folder: str) -> list[str]:
    """The paths of all files with data of discussions, below the folder, with forward slashes.

    Links to folders are followed, as the server does, but into none twice.
    """
    known: set[str] = set()
    found: list[str] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        if os.path.realpath(place) in known:
            folders.clear()
            continue
        known.add(os.path.realpath(place))
        paths = (os.path.join(place, name) for name in names if is_data(name))
        found += [os.path.relpath(path, folder).replace(os.sep, "/") for path in paths if os.path.isfile(path)]
    return sorted(found, key=lambda path: path.rpartition("/"))


def is_data(name: str) -> bool:
    lower = name.lower()
    return (lower.endswith((".json", f".json{BACKUP}")) and name != NAME) or name in (
        STATE_FILE,
        STATE_FILE + BACKUP,
        VECTOR_DATABASE,
        MESSAGE_INDEX,
    )


def change_all(folder: str, paths: list[str], change: KeyChange, journal: Journal) -> Result:
    """Change each file that the journal does not know yet, and note it there. Raises OSError if that fails."""
    result = Result()
    for place, group in groupby(paths, key=lambda path: path.rpartition("/")[0]):
        todo = [path for path in group if path not in journal.completed]
        try:
            with _locked(os.path.join(folder, place)):
                for path in todo:
                    _change_one(folder, path, change, journal, result)
        except SkippedError as error:
            result.skipped |= dict.fromkeys(todo, str(error))
    result.done_before = len(paths) - result.changed - len(result.skipped)
    return result


@contextlib.contextmanager
def _locked(place: str) -> Iterator[None]:
    """Keep a running server out of a discussion, and drop what interrupted writes left there. Raises SkippedError."""
    with contextlib.ExitStack() as held:
        try:
            for name, seconds in ((MEMORIES, 0.0), (COMPACTOR, 0.0), (SHORT, _SHORT_WAIT)):
                held.enter_context(process_lock(os.path.join(place, name), timeout=seconds, mode=PRIVATE_FILE))
            for name in filter(LEFT_OVER.fullmatch, os.listdir(place)):
                os.unlink(os.path.join(place, name))
        except TimeoutError:
            raise SkippedError("a running server works on it") from None
        except OSError as error:
            raise SkippedError(error.strerror or type(error).__name__) from None
        yield


def _change_one(folder: str, path: str, change: KeyChange, journal: Journal, result: Result) -> None:
    full = os.path.join(folder, path)
    try:
        databases = {VECTOR_DATABASE: VectorMemories, MESSAGE_INDEX: MessageIndex}
        kind = databases.get(os.path.basename(path))
        change_it = _change_file if kind is None else partial(_change_database, kind)
        changed, owner = change_it(full, change)
    except SkippedError as error:
        result.skipped[path] = str(error)
    except DataKeyError:
        result.skipped[path] = WRONG_KEY
    except sqlite3.Error as error:
        result.skipped[path] = f"cannot be used as a database: {error}"
    except OSError as error:
        result.skipped[path] = error.strerror or type(error).__name__
    else:
        result.changed += changed
        result.owners |= {owner} if owner else set()
        journal.add(path)


def _change_file(path: str, change: KeyChange) -> tuple[bool, str | None]:
    """Whether there was anything to do, and whose the file is if a key is in play. Raises SkippedError, DataKeyError,
    OSError."""
    with open(path, "rb") as file:
        stored = file.read()
    data, owner = changed(os.path.basename(path), stored, change)
    if data is None:
        return False, owner
    atomic_write(path, data)
    return True, owner


def changed(name: str, stored: bytes, change: KeyChange) -> tuple[bytes | None, str | None]:
    """Return the content of a file under its new key, None if it has that, and whose it is if a key is in play.

    Raises SkippedError, DataKeyError.
    """
    if is_token(stored):
        cipher = change.source.like(stored)
        plain, target, owner = cipher.decrypt(stored), change.target(cipher.mark), change.owner(cipher.mark)
        if cipher.mark == target.mark:
            return None, owner
    else:
        _require_plain(name, stored)
        plain, target, owner = stored, change.target(), change.user
        if not target.active:
            return None, None
    data = target.encrypt(plain)
    return b" " + data if is_cut_off(data) else data, owner


def _require_plain(name: str, data: bytes) -> None:
    """Raises SkippedError for what is neither encrypted nor what it should be in clear."""
    if is_cut_off(data):
        raise SkippedError("is part of an encrypted text; the rest of it is lost")
    if name in (STATE_FILE, STATE_FILE + BACKUP):
        return
    try:
        data.decode("utf-8")
        parse_json(data, "")
    except (UnicodeDecodeError, ConfigSyntaxError):
        raise SkippedError("is neither encrypted nor JSON") from None


def _change_database(
    kind: type[VectorMemories] | type[MessageIndex], path: str, change: KeyChange
) -> tuple[bool, str | None]:
    """As for a file. Raises SkippedError, DataKeyError, sqlite3.Error: then nothing was changed, or it must be done
    again."""
    with kind(path, cipher=change.source) as stored:
        if not stored.exists:
            return False, None
        target, owner = change.target(stored.cipher.mark), change.owner(stored.cipher.mark)
        stored.change_cipher(target)
    if target.active and _holds_old_pages(path):
        raise SkippedError("holds deleted texts in clear, as it is being read just now")
    return True, owner


def _holds_old_pages(path: str) -> bool:
    with contextlib.closing(schema.connect(path)) as database:
        return bool(database.execute("PRAGMA user_version").fetchone()[0])
