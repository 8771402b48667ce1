"""The routes of the Memory pages: what is stored of conversations, and changes in it by hand.

A key sees the discussions of its own folder, an operator those of all; what is encrypted can be read with its key only.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from Middleware.addons.console.calls import Call, ConsoleError, Download, Role, Routes
from Middleware.addons.discussions import catalog, exports, removal
from Middleware.addons.discussions.contents import PARTS, Entry, find, page
from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.addons.discussions.editing import (
    DiscussionBusyError,
    DiscussionEditor,
    Kind,
    MemoryKey,
    NoSuchMemoryError,
)
from Middleware.addons.discussions.forgetting import forget_one
from Middleware.addons.discussions.overview import as_json, overview
from Middleware.addons.records.model import MICROSECONDS, RunDocument, Span
from Middleware.addons.records.queries import RunQuery
from Middleware.addons.records.recorded_request import NotKeptError, recorded_request
from Middleware.exceptions import DataKeyError, StateUnavailableError, UnreadableDataError
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.discussion_keys import NO_KEYS, DiscussionKeys, discussion_keys
from Middleware.utilities import config_utils
from Middleware.utilities.conversations.message_keys import path_messages
from Middleware.utilities.text_utils import message_text, restore_braces

if TYPE_CHECKING:
    from Middleware.addons.records.archive import RunArchive
    from Middleware.addons.records.viewers import Viewer

MAX_LIMIT, LIMIT = 200, 100
# Which of several discussions with one id is meant: the folder of the key, and a user among several roots.
WHERE = ("folder", "user")
# Of the discussion, newest first: each is read from the disk.
MOST_RUNS = 400
# Of them, those whose messages are read.
MOST_REQUESTS = 20
STORES: Mapping[Kind, str] = {"memory": "file", "searchable": "vector", "summary": "summary", "state": "state"}
# Between the times of a row and of the span around its writing, which come from two clocks.
TOLERANCE_US = MICROSECONDS


def register(routes: Routes) -> None:
    """Add the routes."""
    add = routes.add
    add("GET", "discussions", Role.OWN, discussions)
    add("GET", "discussions/ID", Role.OWN, discussion, query=(*WHERE, "part", "limit", "before", "q"))
    add("DELETE", "discussions/ID", Role.OWN, delete, query=(*WHERE, "runs"))
    add("GET", "discussions/ID/export", Role.OWN, download, query=WHERE)
    add("POST", "discussions/ID/rebuild", Role.OWN, rebuild, query=WHERE)
    add("GET", "discussions/ID/memories/KEY", Role.OWN, origin, query=WHERE)
    add("PUT", "discussions/ID/memories/KEY", Role.OWN, change, query=WHERE)
    add("DELETE", "discussions/ID/memories/KEY", Role.OWN, delete_memory, query=WHERE)


@dataclass(frozen=True)
class _Found:
    """A discussion, the user in whose folder it lies, and the keys of the session."""

    discussion: catalog.StoredDiscussion
    user: str
    keys: DiscussionKeys

    @property
    def reader(self) -> Reader:
        return Reader(self.discussion, self.keys)

    def as_json(self) -> dict[str, object]:
        row = as_json(overview(self.discussion, self.keys))
        # A client must not learn where it is on the disk.
        del row["folders"]
        return {**row, "user": self.user}


# -- what there is -----------------------------------------------------------------------------------------------------


def discussions(call: Call) -> object:
    """Return all discussions that the session may see, those changed last first."""
    rows = []
    for found in _visible(call.viewer):
        with _as_user(found.user):
            rows.append((found.discussion.last_change or 0, found.as_json()))
    rows.sort(key=lambda row: row[0], reverse=True)
    return {"discussions": [row for _, row in rows]}


def discussion(call: Call) -> object:
    """Return one discussion and a page of one of its parts."""
    part = call.query.get("part", PARTS[0])
    if part not in PARTS:
        raise ConsoleError(400, f"'part' must be one of {', '.join(PARTS)}.", where="part")
    limit, before = _number(call, "limit", LIMIT, MAX_LIMIT), _number(call, "before", None)
    with _one(call) as found:
        return {
            "discussion": found.as_json(),
            **page(
                found.reader,
                part,
                limit or LIMIT,
                before,
                call.query.get("q", ""),
                lambda: _gone_texts(call.records.archive, call.viewer, found.discussion.discussion_id),
            ),
        }


def download(call: Call) -> object:
    """Return everything that is stored, as one file."""
    with _one(call) as found:
        return Download(exports.exported(found.reader), f"{exports.file_name(found.discussion.discussion_id)}.json")


def origin(call: Call) -> object:
    """Return the run and the call that wrote a memory; None for both if that was not recorded."""
    with _one(call) as found:
        return _written_by(call.records.archive, call.viewer, found.reader, MemoryKey.parse(call.parts["KEY"]))


# -- changes -----------------------------------------------------------------------------------------------------------


def change(call: Call) -> object:
    """Replace the text of a memory; with ``wording``, no backup keeps the earlier one."""
    body = call.checked_body("text", "wording")
    text, wording = body.get("text"), body.get("wording", False)
    if not isinstance(text, str):
        raise ConsoleError(400, "'text' must be a string.", where="text")
    if not isinstance(wording, bool):
        raise ConsoleError(400, "'wording' must be true or false.", where="wording")
    with _one(call) as found:
        return {"key": str(DiscussionEditor(found.reader).change(MemoryKey.parse(call.parts["KEY"]), text, wording))}


def delete_memory(call: Call) -> object:
    """Delete one memory, or a message with the memories that were made of it."""
    with _one(call) as found:
        key = MemoryKey.parse(call.parts["KEY"])
        if key.kind == "message":
            forget_one(found.reader, key)
        else:
            DiscussionEditor(found.reader).delete(key)
    return {}


def rebuild(call: Call) -> object:
    """Export everything, and then delete what the next message writes again."""
    with _one(call) as found:
        saved = exports.save(call.records.folder, found.reader)
        DiscussionEditor(found.reader).delete_all()
    return {"export": saved}


def delete(call: Call) -> object:
    """Delete a discussion and its exports, with ``runs=1`` the recorded runs in it, too."""
    with _one(call) as found:
        result = removal.remove(found.discussion)
        exports.remove(call.records.folder, found.reader, result)
    if call.query.get("runs") == "1":
        names = call.viewer.key_names or {found.discussion.key_hash} - {None}
        call.records.archive.delete_discussion(found.discussion.discussion_id, call.viewer, names)
    return {"deleted": result.deleted, "left": result.left}


# -- which discussion --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _one(call: Call) -> Iterator[_Found]:
    """Yield the discussion of a call, with the settings of its user; errors become those of the API."""
    wanted_user, folder = call.query.get("user"), call.query.get("folder")
    visible = [found for found in _visible(call.viewer) if wanted_user in (None, found.user)]
    try:
        chosen = catalog.choose([found.discussion for found in visible], call.parts["ID"], folder)
        found = next(found for found in visible if found.discussion is chosen)
        with _as_user(found.user):
            yield found
    except catalog.NoSuchDiscussionError as error:
        said = str(error).replace("--key-folder", "folder").removesuffix(".")
        raise ConsoleError(404, f"{said}.", where="ID") from None
    except NoSuchMemoryError as error:
        raise ConsoleError(409, str(error), where="KEY") from None
    except ValueError as error:
        raise ConsoleError(400, str(error), where="text") from None
    except (DiscussionBusyError, removal.RemovalRefusedError) as error:
        raise ConsoleError(409, str(error)) from None
    except DataKeyError:
        raise ConsoleError(
            403, "This discussion is encrypted. Sign in with its access key to read or change it.", where="ID"
        ) from None
    except UnreadableDataError as error:
        raise ConsoleError(409, str(error)) from None
    except StateUnavailableError as error:
        raise ConsoleError(503, f"Nothing was changed: {error}.") from None
    except (OSError, sqlite3.Error) as error:
        raise ConsoleError(500, f"The discussion's files cannot be used: {error}") from None


def _visible(viewer: Viewer) -> Iterator[_Found]:
    """Yield the discussions that a session may see, each once."""
    known: set[tuple[str, str | None, str]] = set()
    users = viewer.users if viewer.users is not None else _users()
    keys = _keys(viewer, users)
    for user in users:
        try:
            with _as_user(user):
                found = catalog.all_discussions()
        except StateUnavailableError as error:
            raise ConsoleError(503, f"Conversations cannot be shown now: {error}.") from None
        for one in found:
            place = (os.path.realpath(one.root), one.key_hash, one.discussion_id)
            if place not in known and (viewer.role == "operator" or one.key_hash in viewer.key_names):
                known.add(place)
                yield _Found(one, user, keys.get(one.key_hash, NO_KEYS))


def _users() -> list[str]:
    return config_utils.configured_users() or [config_utils.get_current_username()]


def _keys(viewer: Viewer, users: Iterable[str]) -> dict[str | None, DiscussionKeys]:
    """Return what the session's key stands for, by its folder: with the encryption of the first user who wants it."""
    keys: dict[str | None, DiscussionKeys] = {}
    for user in users if viewer.role != "operator" else ():
        with _as_user(user):
            found = discussion_keys(viewer.api_key)
        if keys.get(found.key_hash, NO_KEYS).encryption_key is None:
            keys[found.key_hash] = found
    return keys


@contextlib.contextmanager
def _as_user(user: str) -> Iterator[None]:
    """Use the settings of a user, whose discussions may lie in a folder of their own."""
    with request_scope(RequestContext(user=user)):
        yield


def _number(call: Call, name: str, otherwise: int | None, most: int | None = None) -> int | None:
    """Return a number of the query."""
    text = call.query.get(name)
    if text is None:
        return otherwise
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if number < 1 or (most is not None and number > most):
        raise ConsoleError(400, f"'{name}' must be a number from 1{f' to {most}' if most else ''}.", where=name)
    return number


# -- what recorded runs know of messages ----------------------------------------------------------------------------


def _gone_texts(archive: RunArchive, viewer: Viewer, discussion_id: str) -> dict[str, str]:
    """Return the texts of messages that the newest recorded request of a discussion does not have, by their keys."""
    now, texts = set[str](), dict[str, str]()
    for bare in archive.documents(RunQuery(limit=MOST_REQUESTS, discussion=discussion_id), viewer):
        try:
            sent = recorded_request(archive.run(bare.facts["id"], viewer) or bare).messages
        except NotKeptError:
            continue
        said = [Message(role=str(one.get("role")), content=message_text(one)) for one in sent]
        said = [one for one in said if one["role"] != "system"]
        found = {key: one["content"] for one, keys in zip(said, path_messages(said), strict=True) for key in keys.keys}
        now = now or set(found)
        texts |= {key: found[key] for key in found if key not in now and key not in texts}
    return texts


# -- which call wrote a memory -----------------------------------------------------------------------------------------


class Origin(TypedDict):
    """The run, and in it the call whose prompt holds the messages; None where it was not recorded."""

    run: str | None
    span: int | None


def _written_by(archive: RunArchive, viewer: Viewer, reader: Reader, key: MemoryKey) -> Origin:
    """Return what wrote a text of a discussion. Raises NoSuchMemoryError, and as ``find`` does."""
    entry, store = find(reader, key), STORES.get(key.kind, "")
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
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * MICROSECONDS)


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
