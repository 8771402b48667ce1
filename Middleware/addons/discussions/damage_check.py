"""Check the stored data of a discussion."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from Middleware.addons.discussions.catalog import OBJECT_FILES, PAIR_FILES, VERSION_FILES, StoredFile
from Middleware.addons.discussions.discussion_reader import Reader, metadata_of, opened
from Middleware.exceptions import DataKeyError, StoredDataError, UnreadableDataError
from Middleware.services.memory.follow_state import read_follow_state
from Middleware.services.memory.memory_documents import ELSEWHERE_FILE, FOLLOW_FILE
from Middleware.services.memory.memory_store import (
    CONDENSED_UP_TO,
    MEMORIES_FILE,
    STATE_FILE,
    SUMMARY_FILE,
    TRACKER_FILE,
)
from Middleware.services.memory.pieces import FILE_MEMORIES
from Middleware.utilities import sqlite
from Middleware.utilities.discussion_state import BACKUP, MESSAGE_INDEX, VECTOR_DATABASE
from Middleware.utilities.discussions.discussion_files import pairs_in, texts_in
from Middleware.utilities.discussions.message_index import message_tables as tables
from Middleware.utilities.discussions.vector_memory import schema
from Middleware.utilities.discussions.vector_memory.schema import sql_is_clear
from Middleware.utilities.text_utils import counted
from Middleware.utilities.vector_math_utils import FLOAT_BYTES

_HASH = re.compile("[0-9a-f]{64}")
# Encrypted memories are in no index of words.
_CLEAR = sql_is_clear("memory_text")


@dataclass(frozen=True)
class Finding:
    """One result of the check. A ``problem`` needs attention; other findings are harmless."""

    text: str
    problem: bool = True


def check(reader: Reader) -> list[Finding]:
    """Return the findings about a discussion, without changing anything."""
    return [*_files(reader), *_references(reader), *_pieces(reader), *_database(reader), *_messages(reader)]


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
        # Files are written under such a name first, and renamed once they are complete.
        if file.name.startswith(".") and file.name.endswith(".tmp"):
            yield Finding(f"{reader.discussion.display(file.name)}: left over from a write that was interrupted", False)


def _read(reader: Reader, file: StoredFile) -> None:
    """Read a file, and raise an error for a fault in it."""
    # As the server does, which ignores the case of these names.
    name, display = file.name.lower().removesuffix(BACKUP), reader.discussion.display(file.name)
    if _is_one_of(name, PAIR_FILES):
        pairs_in(reader.json(file.path), display)
    elif _is_one_of(name, OBJECT_FILES):
        texts_in(reader.json(file.path), display)
    elif _is_one_of(name, VERSION_FILES):
        reader.json(file.path)
    elif file.name in (STATE_FILE, STATE_FILE + BACKUP):
        reader.bytes(file.path).decode("utf-8")


def _is_one_of(name: str, known: tuple[str, ...]) -> bool:
    # Next to the folders, older files have the discussion's name before it.
    return name in known or name.endswith(tuple(f"_{one}" for one in known))


def _locked(reader: Reader, name: str) -> Finding:
    """Return a finding about encrypted data, which is a problem only if the API key was given."""
    return Finding(f"{reader.discussion.display(name)}: {reader.why_locked}", reader.has_key)


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
        yield Finding(
            f"{reader.discussion.display(SUMMARY_FILE)}: it refers to a memory that is not stored (any "
            "more), so all memories are summarized again",
            False,
        )
    if condensed and condensed not in known:
        yield Finding(
            f"{reader.discussion.display(TRACKER_FILE)}: it refers to a memory that is not stored (any "
            "more), so condensation starts with the oldest",
            False,
        )


def _pieces(reader: Reader) -> Iterator[Finding]:
    """Yield findings about memories that others name, and that are not stored."""
    try:
        names = MEMORIES_FILE, ELSEWHERE_FILE
        listed = [(name, piece.keys) for name in names for piece in reader.pieces(name) if piece.keys]
        known = {keys.id for _, keys in listed}
        conversations = read_follow_state(reader.state).conversations
    # Reported as a fault of the file already.
    except (StoredDataError, OSError):
        return
    for name in names:
        lost = sum(1 for place, keys in listed if place == name and keys.after and keys.after not in known)
        if lost:
            text = f"{lost} of the memories refer to one before them that is not stored (any more)"
            yield Finding(f"{reader.discussion.display(name)}: {text}", False)
    lost = sum(len(set(one.active.get(FILE_MEMORIES, ())) - known) for one in conversations)
    if lost:
        text = f"it refers to memories that are not stored (any more): {lost}"
        yield Finding(f"{reader.discussion.display(FOLLOW_FILE)}: {text}", False)


# -- database ----------------------------------------------------------------------------------------------------------


def _database(reader: Reader) -> Iterator[Finding]:
    if not reader.discussion.has_memories:
        return
    path = reader.discussion.database()
    display = reader.discussion.display(VECTOR_DATABASE)
    try:
        # A state database has no file that may be damaged, and its tables hold themselves together.
        if path is not None:
            yield from (Finding(f"{display}: {text}") for text in _faults(path))
        yield from (Finding(f"{display}: {text}") for text in _metadata_faults(reader))
        if reader.searchable().memories and not _is_logged(reader):
            yield Finding(
                f"{display}: no processed message is logged, so the whole conversation is processed again", False
            )
    except DataKeyError:
        yield _locked(reader, VECTOR_DATABASE)
    except (sqlite3.Error, OSError, UnreadableDataError) as error:
        yield _cannot_read(reader, VECTOR_DATABASE, error)


def _is_logged(reader: Reader) -> bool:
    with reader.memories() as memories:
        return bool(memories.counts()["hashes"])


def _metadata_faults(reader: Reader) -> Iterator[str]:
    with reader.memories() as memories:
        for row in memories.all_memories():
            if metadata_of(row["metadata_json"]) is None:
                yield f"the metadata of memory {row['id']} is not a JSON object"


def _faults(path: str) -> list[str]:
    """Return the faults of the database as sentences. Raises sqlite3.Error if it cannot be read at all."""
    with opened(path) as (database, tables):
        # At most five: a damaged database may have thousands.
        broken = [row[0] for row in database.execute("PRAGMA quick_check(5)") if row[0] != "ok"]
        if broken or "memories" not in tables:
            return [f"the database is damaged: {text}" for text in broken] or ["it has no table 'memories'"]
        # The two tables that older versions did not have are made by the next write.
        missing = [
            f"it has no table '{name}'; rebuild-index makes it"
            for name in sorted(schema.NAMES - tables - {"memory_embeddings", "memory_indexed_topics"})
        ]
        return [
            *missing,
            *_index_faults(database, tables),
            *_vector_faults(database, tables),
            *_log_faults(database, tables),
        ]


def _index_faults(database: sqlite3.Connection, tables: frozenset[str]) -> Iterator[str]:
    if "memories_fts" not in tables:
        return
    lost = _count(database, f"FROM memories WHERE {_CLEAR} AND id NOT IN (SELECT rowid FROM memories_fts)")
    if lost:
        yield f"{lost} of the memories are not in the index of words, so no search finds them; rebuild-index adds them"
    stray = _count(database, "FROM memories_fts WHERE rowid NOT IN (SELECT id FROM memories)")
    if stray:
        yield f"the index of words has {stray} rows without a memory; rebuild-index removes them"


def _vector_faults(database: sqlite3.Connection, tables: frozenset[str]) -> Iterator[str]:
    if "memory_embeddings" not in tables:
        return
    stray = _count(database, "FROM memory_embeddings WHERE memory_id NOT IN (SELECT id FROM memories)")
    if stray:
        yield f"{stray} vectors belong to no memory"
    # Encrypted vectors are texts, whose length says nothing.
    odd = _count(
        database, f"FROM memory_embeddings WHERE typeof(vector) = 'blob' AND length(vector) <> dim * {FLOAT_BYTES}"
    )
    if odd:
        yield f"{odd} vectors do not have their recorded length"


def _log_faults(database: sqlite3.Connection, tables: frozenset[str]) -> Iterator[str]:
    if "vector_memory_hash_log" not in tables:
        return
    rows = database.execute("SELECT id, message_hash, timestamp FROM vector_memory_hash_log ORDER BY id").fetchall()
    for row in rows:
        if not isinstance(row["message_hash"], str) or not _HASH.fullmatch(row["message_hash"]):
            yield f"entry {row['id']} of the log of processed messages is not a hash"
        if not _is_date(row["timestamp"]):
            yield f"entry {row['id']} of the log of processed messages has no time"


def _is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _count(database: sqlite3.Connection, rest: str) -> int:
    number: int = database.execute(f"SELECT count(*) {rest}").fetchone()[0]
    return number


# -- index of messages -------------------------------------------------------------------------------------------------


def _messages(reader: Reader) -> Iterator[Finding]:
    path, display = reader.discussion.data(MESSAGE_INDEX), reader.discussion.display(MESSAGE_INDEX)
    try:
        faults = _message_faults(path) if path is not None else []
        yield from (Finding(f"{display}: {text}") for text in faults)
        if faults:
            return
        with reader.messages() as index:
            lost = index.undecodable() if index is not None else []
        if lost:
            yield Finding(f"{display}: {counted(len(lost), 'row')} cannot be decrypted, the first one is {lost[0]}")
    except DataKeyError:
        yield _locked(reader, MESSAGE_INDEX)
    except (sqlite3.Error, OSError, UnreadableDataError) as error:
        yield _cannot_read(reader, MESSAGE_INDEX, error)


def _message_faults(path: str) -> list[str]:
    """Return the faults of an index as sentences. Raises sqlite3.Error if it cannot be read at all."""
    with closing(tables.connect(path)) as database:
        # From SQLite 3.44 on, it looks into indexes of words as well. Each version is asked about them below.
        found = [row[0] for row in database.execute("PRAGMA quick_check(5)")]
        broken = [text for text in found if text != "ok" and "FTS5 table" not in text]
        names = tables.table_names(database)
        if broken or not names:
            return [f"the database is damaged: {text}" for text in broken] or ["it has no table of messages"]
        # The words of encrypted messages are in no file.
        return list(_word_faults(database)) if tables.WORDS in names else []


def _word_faults(database: sqlite3.Connection) -> Iterator[str]:
    try:
        database.execute(f"INSERT INTO {tables.WORDS} ({tables.WORDS}) VALUES ('integrity-check')")
    except sqlite3.DatabaseError as error:
        # It changes nothing, but a file that only others may write does not get so far.
        if sqlite.error_code(error) != sqlite3.SQLITE_READONLY:
            yield f"the index of words is damaged ({error}); rebuild-index makes it again"
            return
    found = {row[0] for row in database.execute(f"SELECT rowid FROM {tables.WORDS}")}
    wanted = {row[0] for row in database.execute(f"SELECT id {tables.FOUND_ROWS}")}
    if lost := len(wanted - found):
        yield f"{lost} of the rows are not in the index of words, so no search finds them; rebuild-index adds them"
    if stray := len(found - wanted):
        yield f"the index of words has {counted(stray, 'entry', 'entries')} without a row; rebuild-index removes them"
