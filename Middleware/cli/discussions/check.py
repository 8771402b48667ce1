"""Check the stored data of a conversation."""
from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from Middleware.cli.discussions import searchable
from Middleware.cli.discussions.catalog import OBJECT_FILES, PAIR_FILES, StoredFile
from Middleware.cli.discussions.reading import Reader, shape_name
from Middleware.exceptions import DataKeyError, StoredDataError, UnreadableDataError
from Middleware.services.memory.memory_store import (
    BACKUP,
    CONDENSED_UP_TO,
    MEMORIES_FILE,
    STATE_FILE,
    SUMMARY_FILE,
    TRACKER_FILE,
)
from Middleware.utilities.conversations.discussion_files import pairs_in, texts_in
from Middleware.utilities.conversations.discussion_folder import VECTOR_DATABASE
from Middleware.utilities.conversations.vector_memory import VectorMemories, schema


@dataclass(frozen=True)
class Finding:
    """One result of the check. A ``problem`` needs attention; other findings are harmless."""

    text: str
    problem: bool = True


def check(reader: Reader) -> list[Finding]:
    """Return the findings about a discussion, without changing anything."""
    return [*_files(reader), *_references(reader), *_database(reader)]


# -- files -------------------------------------------------------------------------------------------------------------

def _files(reader: Reader) -> Iterator[Finding]:
    for file in reader.discussion.files:
        try:
            _read(reader, file)
        except DataKeyError:
            yield _locked(reader, file.name)
        except UnicodeDecodeError as error:
            yield Finding(f"{reader.discussion.display(file.name)}: byte {error.start + 1} is not UTF-8")
        except StoredDataError as error:
            yield Finding(str(error).removesuffix(" The file is left as it is."))
        except OSError as error:
            yield _cannot_read(reader, file.name, error)
        if file.name.startswith(".") and file.name.endswith(".tmp"):
            yield Finding(f"{reader.discussion.display(file.name)}: left over from a write that was interrupted", False)


def _read(reader: Reader, file: StoredFile) -> None:
    """Read a file, and raise an error for a fault in it."""
    name, display = shape_name(file), reader.discussion.display(file.name)
    if name in PAIR_FILES:
        pairs_in(reader.json(file.path), display)
    elif name in OBJECT_FILES or name.endswith(tuple(f"_{known}" for known in OBJECT_FILES)):
        texts_in(reader.json(file.path), display)
    elif file.name in (STATE_FILE, STATE_FILE + BACKUP):
        reader.bytes(file.path).decode("utf-8")


def _locked(reader: Reader, name: str) -> Finding:
    """Return a finding about encrypted data, which is a problem only if the API key was given."""
    return Finding(f"{reader.discussion.display(name)}: {reader.why_locked}", reader.key_at_hand)


def _cannot_read(reader: Reader, name: str, error: Exception) -> Finding:
    reason = getattr(error, "strerror", None) or str(error)
    return Finding(f"{reader.discussion.display(name)}: cannot be read: {reason}")


# -- how files belong together -----------------------------------------------------------------------------------------

def _references(reader: Reader) -> Iterator[Finding]:
    try:
        known = {stored for _, stored in reader.pairs(MEMORIES_FILE)}
        summary = reader.pairs(SUMMARY_FILE)
        condensed = reader.object(TRACKER_FILE).get(CONDENSED_UP_TO)
    # Reported as a fault of the file already.
    except (StoredDataError, OSError):
        return
    if len(summary) > 1:
        yield Finding(f"{reader.discussion.display(SUMMARY_FILE)}: {len(summary)} entries; only the first is used")
    if summary and summary[-1][1] and summary[-1][1] not in known:
        yield Finding(f"{reader.discussion.display(SUMMARY_FILE)}: it refers to a memory that is not stored (any "
                      "more), so all memories are summarized again", False)
    if condensed and condensed not in known:
        yield Finding(f"{reader.discussion.display(TRACKER_FILE)}: it refers to a memory that is not stored (any "
                      "more), so condensation starts with the oldest", False)


# -- database ----------------------------------------------------------------------------------------------------------

def _database(reader: Reader) -> Iterator[Finding]:
    path = reader.discussion.database()
    if path is None:
        return
    display = reader.discussion.display(VECTOR_DATABASE)
    try:
        yield from (Finding(f"{display}: {text}") for text in searchable.faults(path))
        yield from (Finding(f"{display}: {text}") for text in _metadata_faults(reader, path))
        found = searchable.survey(path)
        if found.memories and not searchable.hash_log(path):
            yield Finding(f"{display}: no processed message is logged, so the whole conversation is processed again",
                          False)
    except DataKeyError:
        yield _locked(reader, VECTOR_DATABASE)
    except (sqlite3.Error, OSError, UnreadableDataError) as error:
        yield _cannot_read(reader, VECTOR_DATABASE, error)


def _metadata_faults(reader: Reader, path: str) -> Iterator[str]:
    with VectorMemories(path, cipher=reader.cipher) as memories:
        for row in memories.all_memories():
            if not _is_metadata(row["metadata_json"]):
                yield f"the metadata of memory {row['id']} is not a JSON object"


def _is_metadata(text: object) -> bool:
    try:
        schema.parse_metadata(text)  # type: ignore[arg-type]
    except (ValueError, json.JSONDecodeError):
        return False
    return True
