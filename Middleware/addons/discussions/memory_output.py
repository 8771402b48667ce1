"""What the memory tool prints."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from Middleware.addons.discussions import messages
from Middleware.addons.discussions.catalog import StoredDiscussion, discussion_roots
from Middleware.addons.discussions.discussion_reader import ENCRYPTED, Reader
from Middleware.addons.discussions.overview import Overview
from Middleware.addons.discussions.unwritten import unwritten
from Middleware.exceptions import DataKeyError, StoredDataError
from Middleware.models.process import process
from Middleware.services.memory.chunks import chunks_elsewhere
from Middleware.services.memory.memory_documents import ELSEWHERE_FILE, MEMORIES_FILE, SUMMARY_FILE
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.utilities.discussions.folder_names import DiscussionNames
from Middleware.utilities.terminal import without_controls
from Middleware.utilities.text_utils import counted, restore_braces

if TYPE_CHECKING:
    from Middleware.addons.discussions.forgetting import Forgotten

HEADER = (
    "ID",
    "KEY FOLDER",
    "MEMORIES",
    "SUMMARY",
    "SEARCHABLE",
    "MESSAGES",
    "STATE",
    "LAST CHANGE",
    "SIZE",
    "VECTORS",
)
RIGHT = frozenset({"MEMORIES", "SEARCHABLE", "MESSAGES", "SIZE"})
HASH_SHOWN = 8


def say(text: str) -> None:
    text = text.replace("\r\n", "\n")  # people edit files on Windows, too
    print(without_controls(text), flush=True)


def print_error(text: str) -> None:
    print(without_controls(text), file=sys.stderr, flush=True)


# -- list --------------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Overview], others: int = 0) -> str:
    """The discussions, those changed last first, in aligned columns; ``others`` is how many are not shown."""
    if not rows:
        return f"No discussions are stored here; {others} elsewhere." if others else "No discussions are stored."
    ordered = sorted(rows, key=lambda row: row.discussion.last_change or 0, reverse=True)
    lines = [HEADER, *(_cells(row) for row in ordered)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    text = [_line(line, widths) for line in lines]
    return "\n".join([*text, "", *_notes(rows, others)])


def _notes(rows: Sequence[Overview], others: int) -> Iterator[str]:
    size, encrypted = sum(row.discussion.size for row in rows), sum(row.encrypted for row in rows)
    yield f"{counted(len(rows), 'discussion')}, {human_size(size)}."
    if others:
        yield f"{others} in other places are not shown."
    if encrypted:
        yield f"{encrypted} {ENCRYPTED}."
    if any(row.damaged for row in rows):
        yield "damaged: 'check' says what is wrong."


def _cells(row: Overview) -> tuple[str, ...]:
    unknown = "encrypted" if row.encrypted else "damaged"
    searchable = "damaged" if row.searchable is None else str(row.searchable)
    vectors = ", ".join(f"{model} {count}/{row.stored}" for model, count in row.vectors.items())
    notes = [
        note
        for note, holds in (("encrypted", row.encrypted and row.memories is not None), ("damaged", row.damaged))
        if holds
    ]
    return tuple(
        without_controls(cell.replace("\n", " ").replace("\t", " "))
        for cell in (
            row.discussion.discussion_id,
            row.discussion.key_hash or "-",
            unknown if row.memories is None else str(row.memories),
            _yes(row.summary),
            searchable,
            "damaged" if row.messages is None else str(row.messages),
            _yes(row.state_document),
            local_time(row.discussion.last_change),
            human_size(row.discussion.size),
            " ".join([vectors or "-", *(f"({note})" for note in notes)]),
        )
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for title, cell, width in zip(HEADER, cells, widths, strict=True):
        gap = " " * (width - _width(cell))
        padded.append(gap + cell if title in RIGHT else cell + gap)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(letter) in "WF" else not unicodedata.combining(letter) for letter in text
    )


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def local_time(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def human_size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


# -- show --------------------------------------------------------------------------------------------------------------


def sections(reader: Reader, limit: int | None) -> tuple[str, bool]:
    """All that is remembered, and whether every part could be read."""
    texts, complete = [], True
    for title, read in (
        ("Summary", _summary),
        ("State document", _state_document),
        ("Memories", _memories),
        ("Searchable memories", _searchable),
        ("Messages", _messages),
    ):
        try:
            text = "\n\n".join(read(reader, limit)) or "none"
            if text == "none" and read is _messages:
                continue
        except DataKeyError:
            text = reader.why_locked
        except (StoredDataError, OSError, sqlite3.Error) as error:
            text, complete = f"cannot be read: {error}", False
        texts.append(f"== {title} ==\n{text}")
    return "\n\n".join(texts), complete


def _summary(reader: Reader, limit: int | None) -> Iterator[str]:
    for text, stored in reader.pairs(SUMMARY_FILE)[:1]:
        yield f"(up to memory {stored[:HASH_SHOWN] or 'none'})\n{restore_braces(text)}"


def _state_document(reader: Reader, limit: int | None) -> Iterator[str]:
    text = reader.state_document().strip()
    if text:
        yield restore_braces(text)


def _memories(reader: Reader, limit: int | None) -> Iterator[str]:
    pairs = reader.pairs(MEMORIES_FILE)
    start = max(0, len(pairs) - (limit or len(pairs)))
    yield from _left_out(start)
    yield from (_memory(number, pair) for number, pair in islice(enumerate(pairs, start=1), start, None))
    # What does not fit the conversation now comes back with its messages.
    yield from (_memory("elsewhere", pair) for pair in reader.pairs(ELSEWHERE_FILE)[-(limit or 0) :])


def _memory(number: int | str, pair: Pair) -> str:
    return f"[{number}] {pair[1][:HASH_SHOWN]}\n{restore_braces(pair[0])}"


def _searchable(reader: Reader, limit: int | None) -> Iterator[str]:
    if not reader.discussion.has_memories:
        return
    with reader.memories() as memories:
        if found := unwritten(memories):
            yield f"({found})"
        count = memories.counts()["memories"]
        start = max(0, count - (limit or count))
        yield from _left_out(start)
        rows = list(memories.all_memories(offset=start))
        elsewhere = set(chunks_elsewhere(reader.state, memories))
        chunks = memories.chunks_of(row["id"] for row in rows) if elsewhere else {}
        for row in rows:
            title = f" {restore_braces(_title(row['metadata_json']))}".rstrip()
            # It does not fit the conversation now, and comes back with its messages.
            mark = " (elsewhere)" if chunks.get(row["id"]) in elsewhere else ""
            yield f"[{row['id']}] {str(row['date_added'])[:10]}{title}{mark}\n{restore_braces(str(row['memory_text']))}"


def _messages(reader: Reader, limit: int | None) -> Iterator[str]:
    if found := messages.about(reader):
        yield found


def _left_out(count: int) -> Iterator[str]:
    if count:
        yield f"({count} older ones are not shown)"


def _title(metadata_json: Any) -> str:
    try:
        title = json.loads(metadata_json)["title"]
    except (TypeError, ValueError, KeyError, RecursionError):
        return ""
    return title if isinstance(title, str) else ""


# -- forget ------------------------------------------------------------------------------------------------------------


def what_is_forgotten(found: Forgotten) -> str:
    """The messages, and the memories that were made of them."""
    lines = [f"This is erased for good: {counted(len(found.messages), 'message')}"]
    for message in found.messages:
        lines.append(f"  [{message.number}] {messages.described(message.rows[0])}: {messages.beginning(message.text)}")
    if made := found.made:
        lines.append(f"and what was made of it: {counted(len(made), 'memory', 'memories')}")
        lines += [f"  {messages.beginning(restore_braces(text))}" for text in made]
    return "\n".join(lines)


def what_was_forgotten(found: Forgotten) -> str:
    memories = f" and {counted(len(found.made), 'memory', 'memories')}" if found.made else ""
    return (
        f"{counted(len(found.messages), 'message')}{memories} forgotten. What the client still sends stays in its "
        "prompts, but Recall no longer finds it. Recorded runs, exports and logs are left alone."
    )


# -- delete ------------------------------------------------------------------------------------------------------------


def what_is_deleted(discussion: StoredDiscussion) -> str:
    """The folders and the files outside of them, and copies that are left alone."""
    outside = [file.path for file in discussion.files if os.path.dirname(file.path) not in discussion.folders]
    lines = [
        f"This deletes for good ({len(discussion.files)} files, {human_size(discussion.size)}):",
        *(f"  {path}" for path in (*discussion.folders, *outside)),
    ]
    if discussion.has_memories and discussion.database() is None:
        lines.append("  searchable memories")
    copies = list(_copies(discussion))
    return "\n".join(
        lines + (["A copy that was made before stays:", *(f"  {copy}" for copy in copies)] if copies else [])
    )


def _copies(discussion: StoredDiscussion) -> Iterator[str]:
    if discussion.key_hash:
        names = process().one(DiscussionNames)
        copies = (os.path.join(root, f"{discussion.key_hash}_backup") for root in discussion_roots())
        yield from filter(None, (names.find(copy, discussion.discussion_id) for copy in copies))
