"""The runs on disk, for readers: each call opens what it needs, read-only, and closes it again.

What cannot be read is reported once in the log, and is as if it were not there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from Middleware.addons.records.model import Mark, RunDocument, RunFacts, StoredRun
from Middleware.addons.records.queries import RunQuery, key_of, searched_of, strings_in
from Middleware.addons.records.store import index, segments
from Middleware.addons.records.store.packing import document_of, from_json, text_ids, to_json
from Middleware.addons.records.viewers import Viewer
from Middleware.exceptions import DataKeyError
from Middleware.services.memory.discussion_keys import data_key
from Middleware.utilities.encryption_utils import cipher_for
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

T = TypeVar("T")
# So many rows are read at once, so that no reader keeps the log from being written back.
ROWS = 200
NO_TEXTS = (None, None, None)


class Reader:
    """Reads the store in a folder. Thread-safe: it holds nothing open.

    ``suspect`` is called when the index cannot be read.
    """

    def __init__(self, folder: str, suspect: Callable[[], object]) -> None:
        self._folder, self._suspect = folder, suspect
        self._index = os.path.join(folder, index.INDEX_FILE)
        self._problems: Once[str] = Once()

    def exists(self) -> bool:
        """Return whether anything was ever written."""
        return os.path.exists(self._index)

    # -- lists -------------------------------------------------------------------------------------------------------
    def page(self, query: RunQuery, viewer: Viewer, without: Sequence[str], limit: int) -> tuple[list[StoredRun], int]:
        """Return the newest runs that fit, and how many there are regardless of ``before``."""
        unseal = partial(opened, viewer=viewer)

        def read(database: sqlite3.Connection) -> tuple[list[StoredRun], int]:
            found = list(index.select(database, query, viewer, without, unseal, limit))
            return found, index.count(database, replace(query, before=None), viewer, without, unseal)

        return self._read(read, (list[StoredRun](), 0))

    def count(self, query: RunQuery, viewer: Viewer, without: Sequence[str]) -> int:
        """Return how many runs fit."""
        unseal = partial(opened, viewer=viewer)
        return self._read(lambda database: index.count(database, query, viewer, without, unseal), 0)

    def each(self, query: RunQuery, viewer: Viewer, without: Sequence[str]) -> Iterator[StoredRun]:
        """Yield all runs that fit, newest first."""
        unseal = partial(opened, viewer=viewer)
        while True:

            def read(database: sqlite3.Connection, query: RunQuery = query) -> list[StoredRun]:
                return list(index.select(database, query, viewer, without, unseal, ROWS))

            found = self._read(read, list[StoredRun]())
            yield from found
            if len(found) < ROWS:
                return
            query = replace(query, before=key_of(found[-1].facts))

    def choices(self, viewer: Viewer) -> dict[str, list[str]]:
        """Return the names for the filters."""
        return self._read(lambda database: index.choices(database, viewer), {})

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
        return self._read(lambda database: index.one(database, run_id), None)

    def marks(self, run_ids: Sequence[str]) -> dict[str, Mark]:
        """Return what was said about these runs, as far as they are on disk."""
        return self._read(lambda database: index.marks(database, run_ids), {})

    def document(self, run: StoredRun, viewer: Viewer, with_texts: bool = True) -> RunDocument:
        """Return a run with its spans, and the texts that the viewer can decrypt; without spans if they are lost."""
        name = segments.segment_name(run.segment)
        try:
            with index.reading(os.path.join(self._folder, name)) as database:
                document = document_of(
                    run.facts,
                    segments.load_tree(database, run.n),
                    partial(segments.load_text, database),
                    partial(_unsealed, run.facts, viewer),
                    with_texts,
                )
        except segments.UNREADABLE as error:
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
    def _read(self, action: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        # An idle folder has no file yet.
        if not self.exists():
            return otherwise
        try:
            with index.reading(self._index) as database:
                return action(database) if index.has_tables(database) else otherwise
        except sqlite3.Error as error:
            self._suspect()
            self._report(index.INDEX_FILE, error)
            return otherwise

    def _report(self, name: str, error: Exception) -> None:
        # A missing segment was removed a moment ago, or by somebody who tidied up.
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
        except segments.UNREADABLE as error:
            self._report(segments.segment_name(run.segment), error)
            return False

    def _opened(self, segment: int) -> sqlite3.Connection:
        if self._database is None or segment != self._segment:
            self._left.close()
            self._database, self._segment, self._found = None, segment, {}
            path = os.path.join(self._folder, segments.segment_name(segment))
            self._database = self._left.enter_context(index.reading(path))
        return self._database

    def _finds_in(self, run: StoredRun, database: sqlite3.Connection) -> bool:
        body = segments.load_tree(database, run.n)
        if run.facts["private"]:
            document = document_of(
                run.facts, body, partial(segments.load_text, database), partial(_unsealed, run.facts, self._viewer)
            )
            return any(
                self._query.found_in(strings_in(text)) for span in document.spans for text in span.texts.values()
            )
        stored = cast("dict[str, list[list[object]]]", from_json(body))
        short = (strings_in(row[8]) for row in stored["spans"])
        return any(self._query.found_in(texts) for texts in short) or any(
            self._has(number, database) for number in text_ids(body)
        )

    def _has(self, number: int, database: sqlite3.Connection) -> bool:
        known = self._found.get(number)
        if known is None:
            text = segments.load_text(database, number).decode("utf-8", "replace")
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
    return cipher_for(key).encrypt(zlib.compress(to_json(texts))).decode("ascii")


def opened(token: str, user: str | None, viewer: Viewer) -> Sequence[str | None]:
    """Return question, answer and error; None for each if the viewer's key is another."""
    data = _decrypted(token.encode("ascii", "replace"), user, viewer)
    try:
        return NO_TEXTS if data is None else cast("list[str | None]", from_json(zlib.decompress(data)))
    except (zlib.error, ValueError):
        return NO_TEXTS


def _unsealed(facts: RunFacts, viewer: Viewer, token: bytes) -> bytes | None:
    return _decrypted(token, facts["user"], viewer) if viewer.reads(facts) else None


def _decrypted(token: bytes, user: str | None, viewer: Viewer) -> bytes | None:
    if viewer.api_key is None or not user:
        return None
    try:
        return cipher_for(data_key(viewer.api_key, user)).decrypt(token)
    except DataKeyError:
        return None
