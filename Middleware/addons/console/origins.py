"""Which recorded call wrote a memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from Middleware.addons.discussions.contents import Entry, find
from Middleware.addons.discussions.editing import Kind, MemoryKey
from Middleware.addons.discussions.reading import Reader
from Middleware.addons.records.model import RunDocument, Span
from Middleware.addons.records.queries import RunQuery
from Middleware.utilities.text_utils import restore_braces

if TYPE_CHECKING:
    from Middleware.addons.records.archive import RunArchive
    from Middleware.addons.records.viewers import Viewer

# Of the discussion, newest first: each is read from the disk.
MOST_RUNS = 400
STORES: Mapping[Kind, str] = {"memory": "file", "searchable": "vector", "summary": "summary", "state": "state"}
# Between the times of a row and of the span around its writing, which come from two clocks.
TOLERANCE_US = 1_000_000


class Origin(TypedDict):
    """The run, and in it the call whose prompt holds the messages; None where it was not recorded."""

    run: str | None
    span: int | None


def written_by(archive: RunArchive, viewer: Viewer, reader: Reader, key: MemoryKey) -> Origin:
    """Return what wrote a text of a discussion. Raises NoSuchMemoryError, and as ``find`` does."""
    entry, store = find(reader, key), STORES[key.kind]
    query = RunQuery(limit=MOST_RUNS, discussion=reader.discussion.discussion_id)
    for bare in archive.documents(query, viewer):
        if not any(_writes(span, store) for span in bare.spans):
            continue
        # Most runs write nothing; the texts of the others are read.
        document = archive.run(bare.facts["id"], viewer) or bare
        for span in reversed(document.spans):
            if _writes(span, store) and _wrote(document, span, entry):
                return {"run": document.facts["id"], "span": _call_of(document, span).id}
    return {"run": None, "span": None}


def _writes(span: Span, store: str) -> bool:
    return span.kind == "memory" and span.attributes.get("store") == store and span.attributes.get("action") == "write"


def _wrote(document: RunDocument, span: Span, entry: Entry) -> bool:
    """Return whether a span wrote the entry, which may have been edited since."""
    messages = span.attributes.get("messages")
    stored = entry.get("hash")
    if stored and isinstance(messages, list) and messages and messages[-1] == stored:
        return True
    written = span.texts.get("written")
    texts = written if isinstance(written, (list, tuple)) else [written]
    if any(isinstance(text, str) and restore_braces(text).strip() == entry["text"].strip() for text in texts):
        return True
    moment = _microseconds(entry.get("date")) if entry["key"].startswith("searchable") else None
    begun = document.facts["started"] + span.start
    return moment is not None and begun - TOLERANCE_US <= moment <= begun + span.duration + TOLERANCE_US


def _microseconds(date: str | None) -> int | None:
    try:
        moment = datetime.fromisoformat(date or "")
    # Databases may have been written by other programs.
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _call_of(document: RunDocument, written: Span) -> Span:
    """Return the last call before a memory was written, by the same node; without one the writing itself."""
    parents = {span.id: span.parent for span in document.spans}

    def is_below(number: int | None) -> bool:
        while number is not None and number != written.parent:
            number = parents.get(number)
        return number == written.parent

    calls = [
        span
        for span in document.spans
        if span.kind == "llm" and span.start <= written.start + written.duration and is_below(span.parent)
    ]
    return max(calls, key=lambda span: span.start, default=written)
