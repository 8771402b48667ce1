"""The runs of this server, those in memory and those on disk: the only way by which anybody looks at them.

What a viewer may see of a run is decided here and nowhere else.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Literal, TypeAlias, cast

from Middleware.addons.records.model import Mark, RunDocument, RunFacts, StoredRun
from Middleware.addons.records.queries import Key, RunQuery, key_of, key_text, searched_of
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.run_texts import normalised
from Middleware.addons.records.store.writer import RunStore
from Middleware.addons.records.viewers import Viewer
from Middleware.exceptions import ClientError

TextsState: TypeAlias = Literal["kept", "ring", "none", "private"]
"""Where the texts of a run are: on disk, in memory only, nowhere, or not for this viewer."""

# A page asks again for the rest, and shows how far the search has come.
SEARCH_SECONDS = 1.0
MOST_NOTE = 2000
# A call is compared with those before it, of which few have the same node and endpoint.
MOST_EARLIER = 20
_NOT_KEPT = "Run {} is not on disk, so it cannot be {}: what is kept there is a setting (--record)."


class ShownRun(RunFacts):
    """The facts of a run as they are shown to a viewer. ``changeable``: the viewer may pin, annotate and delete it."""

    changeable: bool
    pinned: bool
    note: str | None
    texts: TextsState


@dataclass(frozen=True)
class RunPage:
    """A part of the list of runs, newest first.

    Attributes:
        next: the place after which the next page begins, None at the end.
        total: how many runs fit all filters; in a search of all texts, how many are searched.
        searched: how many of these have been searched so far; None for other lists.
    """

    runs: list[ShownRun]
    next: str | None
    total: int
    searched: int | None = None


class RunArchive:
    """All runs that this server knows: those in memory, and those on disk."""

    def __init__(self, ring: RunRing, store: RunStore) -> None:
        self._ring, self._store = ring, store

    # -- lists -------------------------------------------------------------------------------------------------------
    def runs(self, query: RunQuery, viewer: Viewer) -> RunPage:
        """Return the runs that fit the query, as far as the viewer may see them."""
        if query.q and query.all_texts:
            return self._search(query, viewer)
        known = self._ring.documents()
        ids = [document.facts["id"] for document in known]
        fitting = [document for document in known if self._fits(document, query, viewer)]
        found = [self.shown(document, viewer) for document in fitting if _is_after(document, query.before)]
        stored, count = self._store.reader.page(query, viewer, ids, query.limit + 1)
        found += [self._shown_of_store(run, viewer) for run in stored]
        found.sort(key=key_of, reverse=True)
        shown = found[: query.limit]
        following = key_text(key_of(shown[-1])) if len(found) > len(shown) else None
        return RunPage(self._marked(shown, ids), following, len(fitting) + count)

    def choices(self, viewer: Viewer) -> dict[str, list[str]]:
        """Return the names that occur in runs of the viewer, for the filters ``workflow``, ``endpoint``, ``user``."""
        names: dict[str, set[str]] = {"workflow": set(), "endpoint": set(), "user": set()}
        for facts in (document.facts for document in self._ring.documents() if viewer.sees(document.facts)):
            names["endpoint"].update(facts["endpoints"])
            names["workflow"].update(filter(None, [facts["workflow"]]))
            names["user"].update(filter(None, [facts["user"]]))
        for name, more in self._store.reader.choices(viewer).items():
            names[name].update(more)
        # So many names are too many to choose from.
        return {name: sorted(found)[:200] for name, found in names.items()}

    def _fits(self, document: RunDocument, query: RunQuery, viewer: Viewer) -> bool:
        return viewer.sees(document.facts) and query.fits(document.facts, viewer.reads(document.facts))

    def _search(self, query: RunQuery, viewer: Viewer) -> RunPage:
        """Search all texts, newest run first, until the page is full or the time is over."""
        deadline, found, last = time.monotonic() + SEARCH_SECONDS, list[ShownRun](), None
        without = replace(query, q="", all_texts=False)
        known = {document.facts["id"]: document for document in self._ring.documents()}
        with self._searcher(query, viewer) as finds:
            for candidate in self._candidates(without, viewer, known):
                last = key_of(candidate.facts)
                if finds(candidate):
                    found.append(
                        self.shown(candidate, viewer)
                        if isinstance(candidate, RunDocument)
                        else self._shown_of_store(candidate, viewer)
                    )
                if len(found) >= query.limit or time.monotonic() >= deadline:
                    break
            else:
                last = None
        total, rest = self._count(replace(without, before=None), viewer, known), 0
        if last is not None:
            rest = self._count(replace(without, before=last), viewer, known)
        more = key_text(last) if last is not None and rest else None
        return RunPage(self._marked(found, list(known)), more, total, total - rest)

    def _candidates(
        self, query: RunQuery, viewer: Viewer, known: Mapping[str, RunDocument], without: Sequence[str] | None = None
    ) -> Iterator[RunDocument | StoredRun]:
        """Return the runs that fit, newest first; of those on disk, all that are not in ``without`` (or ``known``)."""
        fitting = sorted(
            (
                document
                for document in known.values()
                if self._fits(document, query, viewer) and _is_after(document, query.before)
            ),
            key=lambda document: key_of(document.facts),
            reverse=True,
        )
        left_out = list(known) if without is None else without
        stored = self._store.reader.each(query, viewer, left_out)
        return heapq.merge(fitting, stored, key=lambda run: key_of(run.facts), reverse=True)

    def _count(self, query: RunQuery, viewer: Viewer, known: Mapping[str, RunDocument]) -> int:
        count = sum(
            self._fits(document, query, viewer) and _is_after(document, query.before) for document in known.values()
        )
        return count + self._store.reader.count(query, viewer, list(known))

    @contextlib.contextmanager
    def _searcher(self, query: RunQuery, viewer: Viewer) -> Iterator[Callable[[RunDocument | StoredRun], bool]]:
        with self._store.reader.searcher(query, viewer) as finds_stored:

            def finds(candidate: RunDocument | StoredRun) -> bool:
                if isinstance(candidate, StoredRun):
                    return finds_stored(candidate)
                return _finds_in(candidate, query, viewer.reads(candidate.facts))

            yield finds

    # -- one run -----------------------------------------------------------------------------------------------------
    def run(self, run_id: str, viewer: Viewer) -> RunDocument | None:
        """Return a run without what the viewer may not see; None if the viewer may not see it, or it does not exist.

        Its facts are a ``ShownRun``.
        """
        document = self._ring.get(run_id)
        if document is not None:
            if not viewer.sees(document.facts):
                return None
            found = normalised(document)
            shown = self._marked([self.shown(found, viewer)], [run_id])[0]
            return _document(found, shown, viewer.reads(document.facts))
        stored = self._store.reader.one(run_id)
        if stored is None or not viewer.sees(stored.facts):
            return None
        found = self._store.reader.document(stored, viewer)
        shown = self._shown_of_store(replace(stored, facts=found.facts), viewer)
        # The index knows only whether texts were written, and their file may have been damaged since.
        if shown["texts"] == "kept" and not any(span.texts for span in found.spans):
            shown["texts"] = "none"
        return _document(found, shown, viewer.reads(stored.facts))

    def texts(self, run_id: str, span_id: int, viewer: Viewer) -> dict[str, object] | None:
        """Return the texts of a span, whole; None as ``run``, or if the run has no such span."""
        document = self.run(run_id, viewer)
        span = None if document is None else document.span(span_id)
        return None if span is None else span.texts

    def documents(self, query: RunQuery, viewer: Viewer, known: Container[str] = ()) -> Iterator[RunDocument]:
        """Yield the ended runs that fit, newest first and without texts, at most as many as the query's limit.

        ``known``: the ids of runs that the caller has looked at before; they count, but are not read again.
        """
        ring = {document.facts["id"]: document for document in self._ring.documents()}
        ended = {run_id: document for run_id, document in ring.items() if document.finished}
        fitting = self._candidates(replace(query, q=""), viewer, ended, [*ring])
        for run in itertools.islice(fitting, query.limit):
            if run.facts["id"] in known:
                continue
            document = (
                normalised(run, texts=False)
                if isinstance(run, RunDocument)
                else self._store.reader.document(run, viewer, with_texts=False)
            )
            yield _document(document, self.shown(document, viewer), reads=False)

    def earlier(self, document: RunDocument, viewer: Viewer) -> Iterator[RunDocument]:
        """Yield the runs of the same conversation before this one that the viewer may see, newest first, at most 20."""
        conversation = document.facts["conversation"]
        # A private run belongs to no known conversation.
        if conversation is not None:
            yield from itertools.islice(self._earlier(conversation, document.facts, viewer), MOST_EARLIER)

    def _earlier(self, conversation: str, facts: RunFacts, viewer: Viewer) -> Iterator[RunDocument]:
        place, known = key_of(facts), set[str]()
        for document in self._ring.documents():
            if (
                key_of(document.facts) < place
                and document.facts["user"] == facts["user"]
                and document.facts["key_hash"] == facts["key_hash"]
            ):
                shown = self.run(document.facts["id"], viewer)
                if shown is not None and shown.facts["conversation"] == conversation:
                    known.add(document.facts["id"])
                    yield shown
        for run_id in self._store.reader.earlier(conversation, place):
            shown = None if run_id in known else self.run(run_id, viewer)
            if shown is not None:
                yield shown

    def config_body(self, config_hash: str) -> str | None:
        """Return the text of a configuration file, without secrets, as a run has used it; None if it is not known."""
        for document in self._ring.documents():
            if any(version["hash"] == config_hash for version in document.facts["config"]):
                body = normalised(document).config_texts.get(config_hash)
                if body is not None:
                    return body
        return self._store.reader.config_body(config_hash)

    # -- changes -----------------------------------------------------------------------------------------------------
    def pin(self, run_id: str, viewer: Viewer, pinned: bool) -> None:
        """Keep a run beyond all limits, or no longer. Raises ClientError if it cannot be, or not by this viewer."""
        run = self._own(run_id, viewer, "pinned")
        with self._store.disk() as disk:
            disk.pin(run, pinned)

    def note(self, run_id: str, viewer: Viewer, text: str | None) -> None:
        """Write a note on a run. Raises ClientError as ``pin`` does."""
        if text is not None and len(text) > MOST_NOTE:
            raise ClientError(f"'note' has {len(text):,} characters. Expected: at most {MOST_NOTE:,}.", param="note")
        run = self._own(run_id, viewer, "given a note")
        with self._store.disk() as disk:
            disk.note(run, text or None)

    def delete(self, run_id: str, viewer: Viewer) -> None:
        """Delete a run, with those of its texts that no other run has. Raises ClientError as ``pin`` does."""
        document = self._ring.get(run_id)
        if document is not None and viewer.sees(document.facts):
            _demand(viewer, document.facts)
            _demand_finished(document)
            self._ring.remove([run_id])
            # The writer writes what has ended, so that it is found on disk.
            self._store.flush()
        stored = self._store.reader.one(run_id)
        if stored is not None:
            if not viewer.sees(stored.facts):
                raise _unknown(run_id)
            _demand(viewer, stored.facts)
            with self._store.disk() as disk:
                disk.delete([stored])
        elif document is None or not viewer.sees(document.facts):
            raise _unknown(run_id)

    def delete_all(self, viewer: Viewer) -> int:
        """Delete all runs that have ended and that the viewer may delete; return their number."""
        return self._delete_where(RunQuery(), viewer)

    def delete_discussion(self, discussion: str, viewer: Viewer, names: Collection[str | None] = ()) -> int:
        """Delete the runs of a discussion; return their number. ``names``: only those of the key with these names."""
        return self._delete_where(RunQuery(discussion=discussion), viewer, names)

    def _delete_where(self, query: RunQuery, viewer: Viewer, names: Collection[str | None] = ()) -> int:
        def wanted(facts: RunFacts) -> bool:
            return viewer.changes(facts) and (not names or facts["key_hash"] in names)

        self._store.flush()
        known = self._ring.documents()
        ended = {
            document.facts["id"]
            for document in known
            if document.finished and query.fits(document.facts, False) and wanted(document.facts)
        }
        unfinished = [document.facts["id"] for document in known if not document.finished]
        self._ring.remove(ended)
        stored = [run for run in self._store.reader.each(query, viewer, unfinished) if wanted(run.facts)]
        everything = query == RunQuery() and viewer.role == "operator"
        if stored or (everything and self._store.reader.exists()):
            with self._store.disk() as disk:
                if everything:
                    disk.delete_everything(unfinished)
                else:
                    disk.delete(stored)
        return len(ended | {run.facts["id"] for run in stored})

    # -- help --------------------------------------------------------------------------------------------------------
    def _own(self, run_id: str, viewer: Viewer, done: str) -> StoredRun:
        """Return a run on disk that the viewer may change."""
        document = self._ring.get(run_id)
        if document is not None and viewer.sees(document.facts):
            _demand(viewer, document.facts)
            _demand_finished(document)
            self._store.flush()
        stored = self._store.reader.one(run_id)
        if stored is not None and viewer.sees(stored.facts):
            _demand(viewer, stored.facts)
            return stored
        if document is not None and viewer.sees(document.facts):
            raise ClientError(_NOT_KEPT.format(run_id[:8], done), HTTPStatus.CONFLICT)
        raise _unknown(run_id)

    def _marked(self, shown: list[ShownRun], ring_ids: Collection[str]) -> list[ShownRun]:
        """Add the marks on the runs that came from memory."""
        in_memory = set(ring_ids)
        wanted = [run["id"] for run in shown if run["id"] in in_memory]
        if wanted:
            marks = self._store.reader.marks(wanted)
            for run in shown:
                mark = marks.get(run["id"])
                if mark is not None:
                    run["pinned"], run["note"] = mark.pinned, mark.note
        return shown

    def shown(self, document: RunDocument, viewer: Viewer) -> ShownRun:
        """Return the facts of a run in memory as the viewer may see them, without its mark."""
        facts = document.facts
        kept = self._store.keeps_texts(document)
        state: TextsState = "private" if not viewer.reads(facts) else "kept" if kept else "ring"
        return _shown(facts, viewer, Mark(), state)

    def _shown_of_store(self, run: StoredRun, viewer: Viewer) -> ShownRun:
        if not viewer.reads(run.facts):
            return _shown(run.facts, viewer, run.mark, "private")
        state: TextsState = "kept" if run.texts_kept else "private" if run.facts["private"] else "none"
        shown = _shown(run.facts, viewer, run.mark, state)
        if run.sealed is not None:
            shown["question"], shown["answer"], shown["error"] = self._store.reader.unsealed(run, viewer)
        return shown


def _finds_in(document: RunDocument, query: RunQuery, reads: bool) -> bool:
    if query.found_in(searched_of(document.facts, reads)):
        return True
    return reads and query.found_in_spans(normalised(document))


def _shown(facts: RunFacts, viewer: Viewer, mark: Mark, state: TextsState) -> ShownRun:
    shown = cast(
        ShownRun,
        {
            **facts,
            "config": viewer.files(facts["config"]),
            "changeable": viewer.changes(facts),
            "pinned": mark.pinned,
            "note": mark.note,
            "texts": state,
        },
    )
    if state in ("none", "private"):
        shown["question"] = shown["answer"] = shown["error"] = None
    return shown


def _document(document: RunDocument, shown: ShownRun, reads: bool) -> RunDocument:
    """Return a copy of a run for a viewer, without keys."""
    spans = document.spans if reads else [replace(span, texts={}) for span in document.spans]
    return replace(
        document,
        facts=shown,
        spans=spans,
        encryption_key=None,
        config_texts=document.config_texts if reads else {},
        config=document.facts["config"],
    )


def _is_after(document: RunDocument, before: Key | None) -> bool:
    return before is None or key_of(document.facts) < before


def _demand(viewer: Viewer, facts: RunFacts) -> None:
    if not viewer.changes(facts):
        raise ClientError(
            f"Run {facts['id'][:8]} was made with another key, so it is not yours to change.", HTTPStatus.FORBIDDEN
        )


def _demand_finished(document: RunDocument) -> None:
    if not document.finished:
        raise ClientError(f"Run {document.facts['id'][:8]} has not ended yet. Stop it first.", HTTPStatus.CONFLICT)


def _unknown(run_id: str) -> ClientError:
    return ClientError(f"There is no run {run_id[:36]}, or it is not yours.", HTTPStatus.NOT_FOUND)
