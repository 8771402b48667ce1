"""The texts of one discussion, a page at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias, TypedDict, get_args

from Middleware.addons.discussions import messages
from Middleware.addons.discussions.discussion_reader import Reader, metadata_of
from Middleware.addons.discussions.editing import Kind, MemoryKey, NoSuchMemoryError
from Middleware.addons.discussions.unwritten import Unwritten, unwritten
from Middleware.exceptions import DataKeyError, StoredDataError
from Middleware.services.memory.chunks import chunks_elsewhere
from Middleware.services.memory.memory_documents import ELSEWHERE_FILE
from Middleware.services.memory.memory_search import VectorSearch, search_memories
from Middleware.services.memory.memory_store import MEMORIES_FILE, SUMMARY_FILE, MemoryStore
from Middleware.services.memory.pieces import StoredPiece
from Middleware.services.memory.recall import MESSAGES
from Middleware.services.memory_service import valid_position
from Middleware.services.timestamp_service import FILE_NAME as TIMESTAMPS_FILE
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE, ON_PATH
from Middleware.utilities.discussions.vector_memory import MemoryRow
from Middleware.utilities.text_utils import restore_braces

Part: TypeAlias = Literal["summary", "memories", "searchable", "state", "messages"]
PARTS: tuple[Part, ...] = get_args(Part)
# A search shows the best matches only: the rest has little to do with the words.
MOST_FOUND = 50
GoneTexts: TypeAlias = Callable[[], Mapping[str, str]]
"""Returns the texts of messages that were in the conversation and are not now, by their keys."""
# The budget of a search in messages: enough for as many long ones.
_MOST_TOKENS = 20_000


class Entry(TypedDict, total=False):
    """One text.

    ``hash``: of the last message that a memory of the file covers, "" for none. ``summarized``: it is in the summary.
    ``state``: of a message that is not in the conversation, what ``messages.STATES`` calls it.
    """

    key: str
    number: int
    text: str
    date: str | None
    title: str
    entities: str
    hash: str
    summarized: bool
    state: str


class Elsewhere(TypedDict):
    """A memory that does not fit the conversation now; ``missing``: how a message begins that is no longer in it."""

    text: str
    missing: str


class Page(TypedDict):
    """Some texts of a part, newest first.

    ``next``: the number before which older ones follow; None at the oldest. ``problem``: why the part cannot be
    shown, "" if it can; ``locked``: because it is encrypted. ``elsewhere``: with the first texts, the memories of the
    file that do not fit the conversation now. ``unwritten``: of how many messages there is no searchable memory, "" for
    none; ``conspicuous``: that is more than small talk.
    """

    part: Part
    entries: list[Entry]
    total: int
    next: int | None
    problem: str
    locked: bool
    unwritten: str
    conspicuous: bool
    elsewhere: list[Elsewhere]


def page(
    reader: Reader, part: Part, limit: int, before: int | None = None, words: str = "", gone: GoneTexts = dict
) -> Page:
    """Return the newest ``limit`` texts of a part, of those with a number below ``before``.

    ``words``: only those that a search for them finds, best first. ``gone``: knows messages that are not stored. Faults
    in the files raise no error.
    """
    shown: Page = {
        "part": part,
        "entries": [],
        "total": 0,
        "next": None,
        "problem": "",
        "locked": False,
        "unwritten": "",
        "conspicuous": False,
        "elsewhere": [],
    }
    try:
        read: dict[Part, Callable[[], tuple[list[Entry], int]]] = {
            "summary": lambda: _single(_summary(reader)),
            "state": lambda: _single(_state(reader)),
            "memories": lambda: _memories(reader, limit, before, words),
            "searchable": lambda: _searchable(reader, limit, before, words),
            "messages": lambda: _messages(reader, limit, before, words),
        }
        shown["entries"], shown["total"] = read[part]()
        if len(shown["entries"]) == limit and not words and part in ("memories", "searchable", "messages"):
            oldest = shown["entries"][-1]["number"]
            shown["next"] = oldest if oldest > 1 or part == "messages" else None
        if part == "memories" and before is None and not words:
            shown["elsewhere"] = _elsewhere(reader, gone)
        if part == "searchable" and before is None and not words and (found := _unwritten(reader)):
            shown["unwritten"], shown["conspicuous"] = str(found), found.is_conspicuous
    except DataKeyError:
        shown["problem"], shown["locked"] = reader.why_locked, True
    except (StoredDataError, OSError, sqlite3.Error) as error:
        shown["problem"] = f"This part cannot be read: {error}"
    return shown


def _entry(kind: Kind, number: int, stored: str, **more: object) -> Entry:
    text = restore_braces(stored)
    return {"key": str(MemoryKey.of(kind, number, text)), "number": number, "text": text, **more}  # type: ignore[typeddict-item]


def _single(entry: Entry | None) -> tuple[list[Entry], int]:
    return ([entry], 1) if entry is not None else ([], 0)


def _summary(reader: Reader) -> Entry | None:
    pairs = reader.pairs(SUMMARY_FILE)
    return _entry("summary", 0, pairs[0][0], hash=pairs[0][1]) if pairs else None


def _state(reader: Reader) -> Entry | None:
    # Through the reader for its errors; the store reads the text as the editor does.
    text = MemoryStore(reader.state).state_document() if reader.state_document() else ""
    return _entry("state", 0, text) if text.strip() else None


def _memories(reader: Reader, limit: int, before: int | None, words: str) -> tuple[list[Entry], int]:
    pairs, times = reader.pairs(MEMORIES_FILE), _times(reader)
    covered = _covered(reader, pairs)
    wanted = words.casefold().split()
    chosen = [
        number
        for number, (text, _) in enumerate(pairs, start=1)
        if (before is None or number < before) and _has(text, wanted)
    ]
    entries = [
        _entry(
            "memory",
            number,
            pairs[number - 1][0],
            hash=pairs[number - 1][1],
            summarized=number <= covered,
            date=times.get(pairs[number - 1][1]),
        )
        for number in chosen[::-1][:limit]
    ]
    return entries, len(pairs)


def _has(text: str, wanted: Sequence[str]) -> bool:
    folded = restore_braces(text).casefold()
    return all(word in folded for word in wanted)


def _covered(reader: Reader, pairs: Sequence[Pair]) -> int:
    """Return how many memories the summary covers."""
    store, summary = MemoryStore(reader.state), next(iter(reader.pairs(SUMMARY_FILE)), None)
    if summary is None:
        return 0
    place = valid_position(pairs, summary, store.summary_position())
    hashes = [stored for _, stored in pairs]
    return place or (len(hashes) - hashes[::-1].index(summary[1]) if summary[1] in hashes else 0)


def _times(reader: Reader) -> dict[str, str]:
    """Return the times of the messages that memories end with, if they are stored."""
    try:
        return {key: value for key, value in reader.object(TIMESTAMPS_FILE).items() if isinstance(value, str)}
    # Without dates, memories can still be shown.
    except (StoredDataError, OSError):
        return {}


def _searchable(reader: Reader, limit: int, before: int | None, words: str) -> tuple[list[Entry], int]:
    if not reader.discussion.has_memories:
        return [], 0
    with reader.state.memories() as memories:
        total = memories.counts()["memories"]
        rows: Iterable[MemoryRow]
        if words.strip():
            memories.leave_out(chunks_elsewhere(reader.state, memories))
            rows = search_memories(memories, VectorSearch(words, min(limit, MOST_FOUND)))
        else:
            rows = memories.newest(limit, before)
        return [_of_row(row) for row in rows], total


def _messages(reader: Reader, limit: int, before: int | None, words: str) -> tuple[list[Entry], int]:
    with reader.messages() as index:
        if index is None:
            return [], 0
        total = index.survey().rows
        if words.strip():
            found = messages.search(reader, index, words, _MOST_TOKENS, (MESSAGES,)).results
            rows = [one.row for one in found if one.row is not None][: min(limit, MOST_FOUND)]
        else:
            rows = index.newest(limit, before)
        return [_of_message(row) for row in rows], total


def _of_message(row: MessageRow) -> Entry:
    said = None if row.said is None else datetime.fromtimestamp(row.said, UTC).isoformat()
    state = messages.STATES[row.state] if row.state != ON_PATH else ""
    speaker = row.speaker or row.role.capitalize()
    # Its text is as it was sent: nothing in it was escaped.
    key = str(MemoryKey.of("message", row.id, row.text))
    return {"key": key, "number": row.id, "text": row.text, "date": said, "title": speaker, "state": state}


def _elsewhere(reader: Reader, gone: GoneTexts) -> list[Elsewhere]:
    pieces = reader.pieces(ELSEWHERE_FILE)[::-1]
    with reader.messages() as index:
        missing = [_missing(index, piece) for piece in pieces]
    known = gone() if not all(missing) else {}
    sources = [piece.keys.sources if piece.keys is not None else () for piece in pieces]
    found = [
        text or next((known[key] for key in keys if key in known), "")
        for text, keys in zip(missing, sources, strict=True)
    ]
    return [
        Elsewhere(text=restore_braces(piece.text), missing=messages.beginning(text))
        for piece, text in zip(pieces, found, strict=True)
    ]


def _missing(index: MessageIndex | None, piece: StoredPiece) -> str:
    """Return a message of a memory that no conversation shows now; "" if none is stored."""
    if index is None or piece.keys is None:
        return ""
    for source in piece.keys.sources:
        rows = index.known_by(source)
        if rows and all(row.state == ELSEWHERE for row in rows):
            return rows[0].text
    return ""


def _unwritten(reader: Reader) -> Unwritten | None:
    if not reader.discussion.has_memories:
        return None
    with reader.state.memories() as memories:
        return unwritten(memories)


def _of_row(row: MemoryRow) -> Entry:
    metadata = metadata_of(row["metadata_json"]) or {}
    title, entities = metadata.get("title"), metadata.get("entities")
    return _entry(
        "searchable",
        row["id"],
        row["memory_text"],
        date=row["date_added"],
        title=restore_braces(title) if isinstance(title, str) else "",
        entities=restore_braces(", ".join(map(str, entities))) if isinstance(entities, list) else "",
    )


def find(reader: Reader, key: MemoryKey) -> Entry:
    """Return the entry that a key names, as it is now. Raises NoSuchMemoryError, and the errors of the reader."""
    read: dict[Kind, Callable[[], list[Entry]]] = {
        "summary": lambda: _single(_summary(reader))[0],
        "state": lambda: _single(_state(reader))[0],
        "memory": lambda: _memories(reader, 1, key.number + 1, "")[0],
        "searchable": lambda: _searchable(reader, 1, key.number + 1, "")[0],
        "message": list,
    }
    for entry in read[key.kind]():
        if entry["key"] == str(key):
            return entry
    raise NoSuchMemoryError("It has been changed in the meantime. Load the page again.")
