"""The rows of ``index.db``, one for each run on disk, and the reader that finds runs by them."""

from __future__ import annotations

import contextlib
import json
import logging
import operator
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from Middleware.addons.records.model import Mark, RunDocument, RunFacts, StoredRun
from Middleware.addons.records.queries import RunQuery, key_of, searched_of
from Middleware.addons.records.store import store_files
from Middleware.addons.records.store.packing import document_of, text_ids
from Middleware.addons.records.store.store_files import PINNED, UNPINNED
from Middleware.addons.records.viewers import Viewer
from Middleware.exceptions import ConfigurationError, DataKeyError
from Middleware.utilities.discussions.client_keys import data_key
from Middleware.utilities.encryption_utils import cipher_for
from Middleware.utilities.json_data import compact_json, from_stored_json, to_stored_json
from Middleware.utilities.once import Once
from Middleware.utilities.text_utils import without_surrogates

logger = logging.getLogger(__name__)

T = TypeVar("T")
# So many rows are read at once, so that no reader keeps the log from being written back.
ROWS = 200
NO_TEXTS = (None, None, None)


# -- rows --------------------------------------------------------------------------------------------------------------

Value: TypeAlias = "str | int | bytes | None"
Row: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class _Column:
    """A column of ``run``, the fact in it, and how a fact that is not None is written and read."""

    name: str
    fact: str
    write: Callable[[Any], Value] | None = None
    read: Callable[[Any], object] | None = None


COLUMNS = (
    _Column("id", "id"),
    _Column("kind", "kind"),
    _Column("origin", "origin", compact_json, json.loads),
    _Column("status", "status"),
    _Column("error_type", "error.type"),
    _Column("user", "user"),
    _Column("key_hash", "key_hash"),
    _Column("private", "private", None, bool),
    _Column("client", "client"),
    _Column("model", "model"),
    _Column("stream", "stream", None, bool),
    _Column("workflow", "workflow"),
    _Column("route", "route"),
    _Column("reason", "route.reason"),
    _Column("discussion", "discussion"),
    _Column("conversation", "conversation", bytes.fromhex, bytes.hex),
    _Column("started", "started"),
    _Column("queued", "queued"),
    _Column("first_token", "first_token"),
    _Column("answered", "answered"),
    _Column("ended", "ended"),
    _Column("nodes", "nodes"),
    _Column("calls", "calls"),
    _Column("endpoints", "endpoints", compact_json, json.loads),
    _Column("tokens_in", "usage.input_tokens"),
    _Column("tokens_out", "usage.output_tokens"),
    _Column("tokens_cached", "usage.cache_read.input_tokens"),
    _Column("estimated", "estimated", None, bool),
    _Column("question", "question"),
    _Column("answer", "answer"),
    _Column("error", "error"),
)
_NAMES = [column.name for column in COLUMNS]
_IN_ORDER = operator.itemgetter(*(column.fact for column in COLUMNS))
_WRITTEN = [(position, column.write) for position, column in enumerate(COLUMNS) if column.write is not None]
# Question, answer and error are the last columns.
_TEXTS = slice(-3, None)
_SELECT = f"SELECT {', '.join(_NAMES)}, n, segment, note FROM run"
_INSERT = f"INSERT INTO run ({', '.join(_NAMES)}, segment) VALUES ({', '.join('?' * (len(_NAMES) + 1))})"
_UPDATE = f"UPDATE run SET {', '.join(f'{name} = ?' for name in _NAMES)}, segment = ? WHERE n = ?"

ShortTexts: TypeAlias = "tuple[str | None, str | None, str | None]"
"""Question, answer and error, as the row has them."""


def put_run(
    database: sqlite3.Connection, facts: RunFacts, texts: ShortTexts, segment: int, moved: Callable[[int, int], object]
) -> tuple[int, bool]:
    """Write the row of a run; return its ``n``, and whether it is a new one.

    ``moved`` is called with the segment and the ``n`` of a row that another file has the tree for.
    """
    values = list(_IN_ORDER(facts))
    for position, write in _WRITTEN:
        if values[position] is not None:
            values[position] = write(values[position])
    values[_TEXTS] = texts
    try:
        return _put(database, values, segment, moved)
    except UnicodeEncodeError:
        # JSON can spell half a character, SQLite takes none.
        values = [without_surrogates(value) if isinstance(value, str) else value for value in values]
        return _put(database, values, segment, moved)


def _put(
    database: sqlite3.Connection, values: Sequence[object], segment: int, moved: Callable[[int, int], object]
) -> tuple[int, bool]:
    try:
        return cast(int, database.execute(_INSERT, (*values, segment)).lastrowid), True
    except sqlite3.IntegrityError:
        # Nearly all runs are new, so there is no look first: the row of one that was at work is there already.
        known = database.execute("SELECT n, segment FROM run WHERE id = ?", values[:1]).fetchone()
        if known is None:
            raise
    n, before = known
    if before not in (segment, PINNED, UNPINNED):
        moved(before, n)
    database.execute(_UPDATE, (*values, segment, n))
    return n, False


def _run_of(row: Sequence[object]) -> StoredRun:
    """Return the run of a row. Raises an error of UNREADABLE: damage that SQLite does not notice changes any value."""
    facts = {
        column.fact: value if column.read is None or value is None else column.read(value)
        for column, value in zip(COLUMNS, row, strict=False)
    }
    kinds = (("id", str), ("started", int), ("endpoints", list))
    if bytes in map(type, facts.values()) or not all(isinstance(facts[name], kind) for name, kind in kinds):
        raise TypeError(f"the row of run {facts['id']!r} is damaged")
    # They stand in the tree, with the spans.
    facts["config"] = []
    n, segment, note = cast("tuple[int, int, str | None]", tuple(row[len(COLUMNS) :]))
    kept, sealed = facts["question"] is not None, None
    if facts["private"]:
        sealed, facts["question"] = cast("str | None", facts["question"]), None
    return StoredRun(cast(RunFacts, facts), Mark(segment == PINNED, note), kept, n, segment, sealed)


# -- reading -----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads the store in a folder. Thread-safe: each call opens what it needs, read-only, and closes it again.

    What cannot be read is reported once in the log, and is as if it were not there. ``on_unreadable`` is called when
    that is the index.
    """

    def __init__(self, folder: str, on_unreadable: Callable[[], object]) -> None:
        self._folder, self._on_unreadable = folder, on_unreadable
        self._index = os.path.join(folder, store_files.INDEX_FILE)
        self._problems: Once[str] = Once()

    def exists(self) -> bool:
        """Return whether anything was ever written."""
        return os.path.exists(self._index)

    # -- lists -------------------------------------------------------------------------------------------------------
    def page(self, query: RunQuery, viewer: Viewer, without: Sequence[str], limit: int) -> tuple[list[StoredRun], int]:
        """Return the newest runs that fit, and how many there are regardless of ``before``."""

        def read(database: sqlite3.Connection) -> tuple[list[StoredRun], int]:
            found = self._runs(_select(database, query, viewer, without, limit))
            return found, _count(database, replace(query, before=None), viewer, without)

        return self._read(read, (list[StoredRun](), 0))

    def count(self, query: RunQuery, viewer: Viewer, without: Sequence[str]) -> int:
        """Return how many runs fit."""
        return self._read(lambda database: _count(database, query, viewer, without), 0)

    def each(self, query: RunQuery, viewer: Viewer, without: Sequence[str]) -> Iterator[StoredRun]:
        """Yield all runs that fit, newest first."""
        while True:
            rows = self._read(partial(_select, query=query, viewer=viewer, without=without, limit=ROWS), list[Row]())
            found = self._runs(rows)
            yield from found
            if len(rows) < ROWS or not found:
                return
            query = replace(query, before=key_of(found[-1].facts))

    def choices(self, viewer: Viewer) -> dict[str, list[str]]:
        """Return the names that occur in the viewer's runs, by the filter that they are for."""
        condition, values = _seen_by(viewer)

        def read(database: sqlite3.Connection) -> dict[str, list[str]]:
            # So many names are too many to choose from.
            found = {
                name: [
                    row[0]
                    for row in database.execute(
                        f"SELECT DISTINCT {name} FROM run WHERE {name} IS NOT NULL AND {condition} LIMIT 200", values
                    )
                ]
                for name in ("workflow", "user")
            }
            rows = database.execute(
                "SELECT DISTINCT value FROM (SELECT DISTINCT endpoints FROM run WHERE json_valid(endpoints)"
                f" AND {condition} LIMIT 1000), json_each(endpoints)",
                values,
            )
            return {**found, "endpoint": sorted(str(name) for (name,) in rows)}

        return self._read(read, {})

    def earlier(self, conversation: str, key: tuple[int, str]) -> list[str]:
        """Return the ids of the runs of a conversation that are older than ``key``, newest first."""

        def read(database: sqlite3.Connection) -> list[str]:
            rows = database.execute(
                "SELECT id FROM run WHERE conversation = ? AND (started, id) < (?, ?) ORDER BY started DESC LIMIT 50",
                (bytes.fromhex(conversation), *key),
            )
            return [row[0] for row in rows]

        return self._read(read, list[str]())

    def used(self) -> dict[str, int | None]:
        """Return the space that the runs take in ``bytes``, the number of ``runs``, and when the ``oldest`` began."""
        size = 0
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                if name.endswith((".db", ".db-wal")):
                    with contextlib.suppress(OSError):
                        size += os.stat(os.path.join(self._folder, name)).st_size
        count, oldest = self._read(
            lambda database: database.execute("SELECT count(*), min(started) FROM run").fetchone(), (0, None)
        )
        return {"bytes": size, "runs": count, "oldest": oldest}

    # -- one run -----------------------------------------------------------------------------------------------------
    def one(self, run_id: str) -> StoredRun | None:
        """Return a run without its spans."""

        def read(database: sqlite3.Connection) -> StoredRun | None:
            row = database.execute(f"{_SELECT} WHERE id = ?", (run_id,)).fetchone()
            return next(iter(self._runs([] if row is None else [row])), None)

        return self._read(read, None)

    def marks(self, run_ids: Sequence[str]) -> dict[str, Mark]:
        """Return the marks on these runs, as far as they are on disk."""
        ids = json.dumps(list(run_ids))

        def read(database: sqlite3.Connection) -> dict[str, Mark]:
            rows = database.execute(
                "SELECT id, segment, note FROM run WHERE id IN (SELECT value FROM json_each(?))", (ids,)
            )
            return {run_id: Mark(segment == PINNED, note) for run_id, segment, note in rows}

        return self._read(read, {})

    def document(self, run: StoredRun, viewer: Viewer, with_texts: bool = True) -> RunDocument:
        """Return a run with its spans, and the texts that the viewer can decrypt; without spans if they are lost."""
        name = store_files.segment_name(run.segment)
        try:
            with store_files.reading(os.path.join(self._folder, name)) as database:
                document = document_of(
                    run.facts,
                    store_files.load_tree(database, run.n),
                    partial(store_files.load_text, database),
                    partial(_unsealed, run.facts, viewer),
                    with_texts,
                )
        except store_files.UNREADABLE as error:
            self._report(name, error)
            return RunDocument(run.facts, [], normalised=True)
        if run.facts["status"] == "interrupted":
            for span in document.spans:
                span.status = "cancelled" if span.status == "running" else span.status
        return document

    def unsealed(self, run: StoredRun, viewer: Viewer) -> Sequence[str | None]:
        """Return question, answer and error of a private run; None for what the viewer cannot decrypt."""
        return NO_TEXTS if run.sealed is None else opened(run.sealed, run.facts["user"], viewer)

    def config_body(self, config_hash: str) -> str | None:
        """Return the text of a configuration file that a run has used."""

        def read(database: sqlite3.Connection) -> str | None:
            row = database.execute("SELECT body FROM config WHERE hash = ?", (bytes.fromhex(config_hash),)).fetchone()
            return None if row is None else zlib.decompress(row[0]).decode("utf-8", "surrogatepass")

        try:
            return self._read(read, None)
        # It comes from an address.
        except ValueError:
            return None

    @contextlib.contextmanager
    def searcher(self, query: RunQuery, viewer: Viewer) -> Iterator[Callable[[StoredRun], bool]]:
        """Yield a function that tells whether a run contains what is searched for in any of its texts."""
        with contextlib.closing(_Search(self._folder, query, viewer, self._report)) as search:
            yield search.finds

    # -- help --------------------------------------------------------------------------------------------------------
    def _runs(self, rows: Sequence[Row]) -> list[StoredRun]:
        """Return the runs of rows that can be read."""
        found = []
        for row in rows:
            try:
                found.append(_run_of(row))
            except store_files.UNREADABLE as error:
                self._report(store_files.INDEX_FILE, error)
        return found

    def _read(self, action: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        # An idle folder has no file yet.
        if not self.exists():
            return otherwise
        try:
            with store_files.reading(self._index) as database:
                return action(database) if store_files.has_tables(database) else otherwise
        except sqlite3.Error as error:
            self._on_unreadable()
            self._report(store_files.INDEX_FILE, error)
            return otherwise

    def _report(self, name: str, error: Exception) -> None:
        # A missing segment was removed a moment ago, or by a user who tidied up.
        if os.path.exists(os.path.join(self._folder, name)) and self._problems.first(name):
            logger.warning("%s of the run console cannot be read, and is left out: %s", name, error)


class _Search:
    """A search in all texts of runs; each text of a segment is looked at once."""

    def __init__(self, folder: str, query: RunQuery, viewer: Viewer, report: Callable[[str, Exception], None]) -> None:
        self._folder, self._query, self._viewer, self._report = folder, query, viewer, report
        self._segment: int | None = None
        self._database: sqlite3.Connection | None = None
        self._left = contextlib.ExitStack()
        self._found: dict[int, bool] = {}

    def close(self) -> None:
        self._left.close()

    def finds(self, run: StoredRun) -> bool:
        """Return whether the run contains the text."""
        reads = self._viewer.reads(run.facts)
        texts = searched_of(run.facts, reads)
        if reads and run.sealed is not None:
            texts += opened(run.sealed, run.facts["user"], self._viewer)
        if self._query.found_in(texts):
            return True
        if not reads or not run.texts_kept:
            return False
        try:
            return self._finds_in(run, self._opened(run.segment))
        except store_files.UNREADABLE as error:
            self._report(store_files.segment_name(run.segment), error)
            return False

    def _opened(self, segment: int) -> sqlite3.Connection:
        if self._database is None or segment != self._segment:
            self._left.close()
            self._database, self._segment, self._found = None, segment, {}
            path = os.path.join(self._folder, store_files.segment_name(segment))
            self._database = self._left.enter_context(store_files.reading(path))
        return self._database

    def _finds_in(self, run: StoredRun, database: sqlite3.Connection) -> bool:
        body = store_files.load_tree(database, run.n)
        if run.facts["private"]:
            document = document_of(
                run.facts, body, partial(store_files.load_text, database), partial(_unsealed, run.facts, self._viewer)
            )
            return self._query.found_in_spans(document)
        stored = cast("dict[str, list[list[object]]]", from_stored_json(body))
        return any(self._query.found_in_json(row[8]) for row in stored["spans"]) or any(
            self._has(number, database) for number in text_ids(stored)
        )

    def _has(self, number: int, database: sqlite3.Connection) -> bool:
        known = self._found.get(number)
        if known is None:
            text = store_files.load_text(database, number).decode("utf-8", "replace")
            known = self._found[number] = self._is_in(text)
        return known

    def _is_in(self, text: str) -> bool:
        if self._query.found_in([text]):
            return True
        # In JSON, some characters are written otherwise.
        escaped = json.dumps(self._query.q, ensure_ascii=False)[1:-1]
        return escaped != self._query.q and replace(self._query, q=escaped).found_in([text])


# -- private runs ------------------------------------------------------------------------------------------------------


def sealed(facts: RunFacts, key: bytes) -> str:
    """Return question, answer and error of a private run, encrypted."""
    texts = [facts["question"], facts["answer"], facts["error"]]
    return cipher_for(key).encrypt(zlib.compress(to_stored_json(texts))).decode("ascii")


def opened(token: str, user: str | None, viewer: Viewer) -> Sequence[str | None]:
    """Return question, answer and error; None for each if the viewer's key is another."""
    data = _decrypted(token.encode("ascii", "replace"), user, viewer)
    try:
        return NO_TEXTS if data is None else cast("list[str | None]", from_stored_json(zlib.decompress(data)))
    except (zlib.error, ValueError):
        return NO_TEXTS


def _unsealed(facts: RunFacts, viewer: Viewer, token: bytes) -> bytes | None:
    return _decrypted(token, facts["user"], viewer) if viewer.reads(facts) else None


def _decrypted(token: bytes, user: str | None, viewer: Viewer) -> bytes | None:
    if viewer.api_key is None or not user:
        return None
    try:
        return cipher_for(data_key(viewer.api_key, user)).decrypt(token)
    # The second is about the file of the run's user, who may have been removed since.
    except (DataKeyError, ConfigurationError):
        return None


# -- the SQL of a query ------------------------------------------------------------------------------------------------


def _select(
    database: sqlite3.Connection, query: RunQuery, viewer: Viewer, without: Sequence[str], limit: int
) -> list[Row]:
    condition, values = _condition(database, query, viewer, without)
    rows = database.execute(f"{_SELECT} WHERE {condition} ORDER BY started DESC, id DESC LIMIT ?", (*values, limit))
    return rows.fetchall()


def _count(database: sqlite3.Connection, query: RunQuery, viewer: Viewer, without: Sequence[str]) -> int:
    condition, values = _condition(database, query, viewer, without)
    return int(database.execute(f"SELECT count(*) FROM run WHERE {condition}", values).fetchone()[0])


def _condition(
    database: sqlite3.Connection, query: RunQuery, viewer: Viewer, without: Sequence[str]
) -> tuple[str, list[Value]]:
    """Return the SQL of a query, and its values."""
    seen, values = _seen_by(viewer)
    parts = [seen]

    def add(part: str, *more: Value) -> None:
        parts.append(part)
        values.extend(more)

    if without:
        add("id NOT IN (SELECT value FROM json_each(?))", json.dumps(list(without)))
    if query.before is not None:
        add("started <= ? AND (started, id) < (?, ?)", query.before[0], *query.before)
    for column, words in (("status", query.status), ("kind", query.kind)):
        if words:
            add(f"{column} IN (SELECT value FROM json_each(?))", json.dumps(sorted(words)))
    for column, wanted in (("workflow", query.workflow), ("user", query.user), ("discussion", query.discussion)):
        if wanted is not None:
            add(f"{column} = ?", wanted)
    if query.endpoint is not None:
        add("instr(endpoints, ?)", json.dumps(query.endpoint, ensure_ascii=False))
    if query.since is not None:
        add("started >= ?", query.since)
    if query.until is not None:
        add("started < ?", query.until)
    if query.q and not query.all_texts:
        _add_search(database, query, viewer)
        columns = "id, route, reason, workflow, discussion, question, answer, error"
        add(f"found(private, user, key_hash, {columns})")
    return " AND ".join(parts), values


def _add_search(database: sqlite3.Connection, query: RunQuery, viewer: Viewer) -> None:
    wanted = query.q.casefold()

    def found(private: int, user: str | None, key_hash: str | None, *texts: str | None) -> bool:
        if private:
            sealed, texts = texts[5], texts[:5]
            if sealed is not None and key_hash in viewer.key_names:
                texts = (*texts, *opened(sealed, user, viewer))
        # One text of all is quicker than one after the other. No query contains this character.
        return wanted in "\0".join(filter(None, texts)).casefold()

    database.create_function("found", -1, found, deterministic=True)


def _seen_by(viewer: Viewer) -> tuple[str, list[Value]]:
    """Return the SQL of ``Viewer.sees``."""
    if viewer.role == "operator":
        return "1", []
    own, names = "key_hash IN (SELECT value FROM json_each(?))", json.dumps(sorted(viewer.key_names))
    if viewer.role == "own":
        return own, [names]
    if viewer.users is None:
        return "1", []
    return f"({own} OR user IN (SELECT value FROM json_each(?)))", [names, json.dumps(sorted(viewer.users))]
