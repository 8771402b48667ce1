"""The texts of one discussion, a page at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypedDict, get_args

from Middleware.addons.discussions.discussion_reader import Reader, metadata_of
from Middleware.addons.discussions.editing import Kind, MemoryKey, NoSuchMemoryError
from Middleware.addons.discussions.unwritten import Unwritten, unwritten
from Middleware.exceptions import DataKeyError, StoredDataError
from Middleware.services.memory.memory_search import VectorSearch, search_memories
from Middleware.services.memory.memory_store import MEMORIES_FILE, SUMMARY_FILE, MemoryStore
from Middleware.services.memory_service import valid_position
from Middleware.services.timestamp_service import FILE_NAME as TIMESTAMPS_FILE
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.utilities.discussions.vector_memory import MemoryRow
from Middleware.utilities.text_utils import restore_braces

Part: TypeAlias = Literal["summary", "memories", "searchable", "state"]
PARTS: tuple[Part, ...] = get_args(Part)
# A search shows the best matches only: the rest has little to do with the words.
MOST_FOUND = 50


class Entry(TypedDict, total=False):
    """One text.

    ``hash``: of the last message that a memory of the file covers, "" for none. ``summarized``: it is in the summary.
    """

    key: str
    number: int
    text: str
    date: str | None
    title: str
    entities: str
    hash: str
    summarized: bool


class Page(TypedDict):
    """Some texts of a part, newest first.

    ``next``: the number before which older ones follow; None at the oldest. ``problem``: why the part cannot be
    shown, "" if it can; ``locked``: because it is encrypted. ``unwritten``: of how many messages there is no searchable
    memory, "" for none; ``conspicuous``: that is more than small talk.
    """

    part: Part
    entries: list[Entry]
    total: int
    next: int | None
    problem: str
    locked: bool
    unwritten: str
    conspicuous: bool


def page(reader: Reader, part: Part, limit: int, before: int | None = None, words: str = "") -> Page:
    """Return the newest ``limit`` texts of a part, of those with a number below ``before``.

    ``words``: only those that a search for them finds, best first. Faults in the files raise no error.
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
    }
    try:
        read: dict[Part, Callable[[], tuple[list[Entry], int]]] = {
            "summary": lambda: _single(_summary(reader)),
            "state": lambda: _single(_state(reader)),
            "memories": lambda: _memories(reader, limit, before, words),
            "searchable": lambda: _searchable(reader, limit, before, words),
        }
        shown["entries"], shown["total"] = read[part]()
        if len(shown["entries"]) == limit and not words and part in ("memories", "searchable"):
            oldest = shown["entries"][-1]["number"]
            shown["next"] = oldest if oldest > 1 else None
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
            rows = search_memories(memories, VectorSearch(words, min(limit, MOST_FOUND)))
        else:
            rows = memories.newest(limit, before)
        return [_of_row(row) for row in rows], total


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
    }
    for entry in read[key.kind]():
        if entry["key"] == str(key):
            return entry
    raise NoSuchMemoryError("It has been changed in the meantime. Load the page again.")
