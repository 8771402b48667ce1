"""The memories, the summary and the state document of one discussion, as documents.

Each write replaces one in one step. A file that cannot be read is never replaced: readers log it and act as if it
were empty, writers raise UnreadableDataError. A caller that reads and then writes holds the ``MEMORIES`` lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from Middleware.exceptions import DataKeyError, UnreadableDataError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import writing
from Middleware.services.memory.folds import (
    Fold,
    Folds,
    Version,
    document_folds,
    fold_of,
    summary_folds,
    text_hash,
    with_pinned,
    with_version,
)
from Middleware.services.memory.memory_documents import ANCHORS_FILE as ANCHORS_FILE
from Middleware.services.memory.memory_documents import CONDENSED_UP_TO as CONDENSED_UP_TO
from Middleware.services.memory.memory_documents import MEMORIES_FILE as MEMORIES_FILE
from Middleware.services.memory.memory_documents import STATE_FILE as STATE_FILE
from Middleware.services.memory.memory_documents import SUMMARIZED as SUMMARIZED
from Middleware.services.memory.memory_documents import SUMMARY_FILE as SUMMARY_FILE
from Middleware.services.memory.memory_documents import TRACKER_FILE as TRACKER_FILE
from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.services.memory.pieces import followed
from Middleware.utilities.discussion_state import BACKUP, DiscussionState
from Middleware.utilities.discussions.discussion_files import (
    Pair,
    change_content,
    if_readable,
    json_bytes,
    pairs_as_json,
    pairs_in,
    read_content,
    read_object,
    read_pairs,
    read_text,
    write_content,
)
from Middleware.utilities.text_utils import encode_text

# Of a memory: when the newest and the oldest of its messages was sent, in ISO-8601 with the offset of the user's zone.
SAID, SAID_FROM = "said", "said_from"


class MemoryStore:
    """The documents of one discussion. All methods raise DataKeyError for files of another API key, and OSError."""

    def __init__(self, state: DiscussionState) -> None:
        self.state = state

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Return a block that reads memories, summary and tracker at one moment; see ``DiscussionState.together``."""
        return self.state.together(MEMORIES_FILE, SUMMARY_FILE, TRACKER_FILE)

    # -- memories --------------------------------------------------------------------------------------------------
    def memories(self) -> list[Pair]:
        """Return the memories and the hashes of the last messages they cover, oldest first."""
        return if_readable(self.stored_memories, [])

    def stored_memories(self) -> list[Pair]:
        """Return ``memories`` for a writer. Raises UnreadableDataError, as what cannot be read is not empty."""
        found = followed(self.state)
        return read_pairs(self.state, MEMORIES_FILE) or [] if found is None else found.pairs

    def trail(self) -> str:
        """Return how many memories fit the request, for the record of a run; "" if they do not follow it."""
        found = if_readable(lambda: followed(self.state), None)
        return found.about if found is not None else ""

    def read_memories(self) -> list[Pair]:
        """Return ``memories`` for a node that shows them, and create the missing file: with it, fewer messages are
        needed for a first memory."""
        pairs = self.memories()
        if not pairs:
            # The node needs only the text; otherwise the writer of the first memory creates the file.
            with contextlib.suppress(OSError, UnreadableDataError, TimeoutError):
                return self.open_memories(timeout=1)[0]
        return pairs

    def require_readable(self) -> None:
        """Raise UnreadableDataError if the memories, the summary or the tracker must not be written."""
        with self.together():
            read_pairs(self.state, MEMORIES_FILE)
            read_pairs(self.state, SUMMARY_FILE)
            read_object(self.state, TRACKER_FILE)

    def open_memories(self, scope: CancelScope | None = None, timeout: float | None = None) -> tuple[list[Pair], bool]:
        """Return the memories, and whether their file existed; create it otherwise.

        Raises UnreadableDataError, because no memories must be added to ones that cannot be read, and what
        ``DiscussionState.change`` raises.
        """
        found: list[list[Pair] | None] = []

        # A file that two requests found missing would be emptied again by the second.
        def opened(content: object) -> list[object] | None:
            found.append(None if content is None else pairs_in(content, self.state.display(MEMORIES_FILE)))
            return [] if content is None else None

        change_content(self.state, MEMORIES_FILE, opened, scope, timeout)
        if found[-1] is None:
            self.state.hide(MEMORIES_FILE, BACKUP)
        return self.stored_memories() if found[-1] else [], found[-1] is not None

    def append_memory(self, text: str, stored_hash: str, said: Mapping[str, str] = MappingProxyType({})) -> None:
        """Append a memory. Other keys in the file are preserved.

        ``said``: the keys ``SAID`` and ``SAID_FROM`` of a memory whose times are known.
        """
        known = read_content(self.state, MEMORIES_FILE)
        # Only None is a missing file: an empty object or text must not be replaced.
        if known is None:
            known = []
        pairs_in(known, self.state.display(MEMORIES_FILE))
        with writing("file", text, last_message=stored_hash):
            self._write(MEMORIES_FILE, [*known, {**pairs_as_json([(text, stored_hash)])[0], **said}])

    def said(self) -> list[Mapping[str, str]]:
        """Return for each of the ``memories`` when its messages were sent: ``SAID`` and ``SAID_FROM``, or nothing."""
        found = followed(self.state)
        entries = self._entries if found is None else lambda: [piece.more for piece in found.shown]
        return if_readable(lambda: [_said_in(entry) for entry in entries()], [])

    def _entries(self) -> list[dict[str, str]]:
        content = read_content(self.state, MEMORIES_FILE)
        entries = [] if content is None else content
        pairs_in(entries, self.state.display(MEMORIES_FILE))
        return cast(list[dict[str, str]], entries)

    def _with_times(self, pairs: Sequence[Pair]) -> list[dict[str, str]]:
        """Return memories as they are stored, with the times of the present ones from which they come."""
        entries = self._entries()
        if not any(SAID in entry for entry in entries):
            return pairs_as_json(pairs)
        known = {(entry["text_block"], entry["hash"]): _said_in(entry) for entry in entries}
        kept = set(pairs)
        gone = [entry for entry in entries if (entry["text_block"], entry["hash"]) not in kept]
        # A memory that is edited, or joined from several, has the hash of the last of them.
        last = {entry["hash"]: _said_in(entry) for entry in gone}
        first = next((entry[SAID_FROM] for entry in gone if SAID_FROM in entry), "")
        for pair in pairs:
            if pair not in known and SAID_FROM in last.get(pair[1], {}):
                known[pair] = {**last[pair[1]], SAID_FROM: first}
        plain = pairs_as_json(pairs)
        return [{**entry, **known.get(pair, {})} for entry, pair in zip(plain, pairs, strict=True)]

    def replace_memories(self, pairs: Sequence[Pair], forget: bool = False) -> None:
        """Replace all memories by ``pairs``; the old ones are kept in ``memories.json.bak``.

        ``forget``: the backup gets the new content as well, here as for the other texts.
        """
        with (
            self.state.together(MEMORIES_FILE),
            writing("file", [text for text, _ in pairs], len(pairs), pairs[-1][1] if pairs else None),
        ):
            others = _with_other_keys(pairs, self._entries()) if pairs else []
            timed = self._with_times(pairs) if pairs else []
            entries = [{**one, **times} for one, times in zip(others, timed, strict=True)]
            self._back_up(MEMORIES_FILE, entries if forget else None)
            self._write(MEMORIES_FILE, entries)

    # -- summary ---------------------------------------------------------------------------------------------------
    def summary(self) -> Pair | None:
        """Return the rolling summary that readers show, and the hash of the last memory in it."""
        fold = if_readable(self.fold, None)
        if fold is not None:
            return (fold.shown, "") if fold.shown else None
        return self.folded_summary()

    def folded_summary(self) -> Pair | None:
        """Return the summary without memories that were added to it only because of an edit."""
        fold = if_readable(self.fold, None)
        if fold is not None:
            return (fold.version.text, "") if fold.version else None
        pairs = if_readable(lambda: read_pairs(self.state, SUMMARY_FILE), None)
        return pairs[0] if pairs else None

    def fold(self) -> Fold | None:
        """Return which version of the summary fits the memories of the request; None if memories do not follow it.

        Raises UnreadableDataError, DataKeyError and OSError.
        """
        found = followed(self.state)
        return None if found is None else self._summary_folds.fold(found.pairs)

    @property
    def _summary_folds(self) -> Folds:
        return summary_folds(self.state)

    def known_summary(self, batch: Sequence[Pair]) -> str:
        """Return the summary that was made of the present one and these memories before; "" if none was."""
        fold = self.fold()
        return "" if fold is None else self._summary_folds.made(fold, batch)

    def settle_summary(self) -> None:
        """Store the version that fits the request as the summary, for readers that know no request."""
        found = followed(self.state)
        if found is not None:
            memories = found.pairs
            self._summary_folds.settle(memories, lambda one: self._write_version(one, memories))

    def _write_version(self, version: Version, memories: Sequence[Pair]) -> None:
        last = next((known for text, known in reversed(memories) if text_hash(text) == version.last), "")
        self._write(SUMMARY_FILE, pairs_as_json([(version.text, last)]))

    def save_summary(
        self, text: str, stored_hash: str, covered: int | None = None, forget: bool = False, pinned: bool = False
    ) -> None:
        """Replace the summary, which is kept in ``chat_summary.json.bak``. Raises ValueError for a blank text.

        ``covered`` becomes the ``summary_position``. It is written last, and a failure is only logged: an older, lower
        number at worst causes memories with equal hashes to be summarized again.

        ``pinned``: it is not made by an LLM of the summary before.
        """
        if not text.strip():
            raise ValueError("a summary must not be blank")
        with self.state.together(SUMMARY_FILE), writing("summary", text, last_message=stored_hash):
            content = pairs_as_json([(text, stored_hash)])
            with self._as_version(text, covered, pinned):
                self._back_up(SUMMARY_FILE, content if forget else None)
                self._write(SUMMARY_FILE, content)
            if forget:
                self._summary_folds.forget_earlier()
        if covered is not None:
            if_readable(lambda: self.save_summary_position(covered), None)

    @contextlib.contextmanager
    def _as_version(self, text: str, covered: int | None, pinned: bool) -> Iterator[None]:
        """Store a summary as a version, around a block that stores the summary."""
        fold, versions = self.fold(), self._summary_folds.versions()[0]
        if fold is None:
            yield
            return
        memories = self.stored_memories()
        if pinned or covered is None:
            versions = with_pinned(versions, memories, text)
        else:
            batch = fold.missing[: covered - (len(memories) - len(fold.missing))]
            versions = with_version(versions, fold, memories, batch, text)
        with self._summary_folds.storing(versions, versions[-1]):
            yield

    def delete_summary(self) -> None:
        """Remove the summary, which is kept in ``chat_summary.json.bak``."""
        self._summary_folds.delete()
        if read_pairs(self.state, SUMMARY_FILE):
            self._back_up(SUMMARY_FILE)
            self._write(SUMMARY_FILE, [])

    def replace_summaries(self, versions: Sequence[Version]) -> None:
        """Keep these versions of the summary only. The one that fits the stored memories becomes the summary."""
        memories = read_pairs(self.state, MEMORIES_FILE) or []
        version = fold_of(versions, memories).version
        if version is None:
            self._summary_folds.delete()
            self._write(SUMMARY_FILE, [])
        else:
            with self._summary_folds.storing(versions, version):
                self._write_version(version, memories)
        self.save_summary_position(None)
        self.forget_earlier_versions()

    def summary_position(self) -> int | None:
        """Return how many memories the summary covered when it was stored; None if unknown.

        It distinguishes memories with equal hashes, and is valid only while the last of them has the summary's hash.
        """
        nothing: dict[str, object] = {}
        found = if_readable(lambda: read_object(self.state, TRACKER_FILE), nothing).get(SUMMARIZED)
        # For isinstance, true would be an int.
        return found if type(found) is int else None

    def save_summary_position(self, covered: int | None) -> None:
        """Store the ``summary_position``, next to the summary, whose file has a fixed form; None removes it."""
        tracker = read_object(self.state, TRACKER_FILE)
        if tracker.get(SUMMARIZED) == covered:
            return
        rest = {key: value for key, value in tracker.items() if key != SUMMARIZED}
        self._write(TRACKER_FILE, rest if covered is None else {**rest, SUMMARIZED: covered})

    # -- condensation ----------------------------------------------------------------------------------------------
    def condensation_hash(self) -> str | None:
        """Return the hash of the newest memory that condensation has processed."""
        nothing: dict[str, object] = {}
        found = if_readable(lambda: read_object(self.state, TRACKER_FILE), nothing).get(CONDENSED_UP_TO)
        return found if isinstance(found, str) and found else None

    def save_condensation_hash(self, stored_hash: str) -> None:
        self._write(TRACKER_FILE, {**read_object(self.state, TRACKER_FILE), CONDENSED_UP_TO: stored_hash})

    # -- state document --------------------------------------------------------------------------------------------
    def state_document(self) -> str:
        """Return the document; if memories follow a request, what fits it, with the facts that are not in it yet."""
        fold = if_readable(self.document_fold, None)
        if fold is None:
            return read_text(self.state, STATE_FILE)
        return fold.shown_with_all if quiet_memory_settings().use_state_document else fold.text

    def document_fold(self) -> Fold | None:
        """Return which version of the document fits the facts of the request; None if memories do not follow it.

        Raises UnreadableDataError, DataKeyError and OSError.
        """
        facts = self._facts_on_path()
        return None if facts is None else self._document_folds.fold(facts)

    # What they import opens databases: most servers keep no state document.

    def _facts_on_path(self) -> list[Pair] | None:
        from Middleware.services.memory.chunk_facts import facts_on_path

        return facts_on_path(self.state)

    def _newest_facts(self) -> list[Pair]:
        from Middleware.services.memory.chunk_facts import newest_facts

        return newest_facts(self.state)

    @property
    def _document_folds(self) -> Folds:
        return document_folds(self.state, self._newest_facts)

    def known_document(self, fold: Fold, batch: Sequence[Pair]) -> str:
        """Return the document that was made of a fold and these facts before; "" if none was."""
        return self._document_folds.made(fold, batch)

    def settle_document(self) -> None:
        """Store the version that fits the request as the document, for readers that know no request."""
        facts = self._facts_on_path()
        if facts is not None:
            self._document_folds.settle(facts, lambda one: self.state.write(STATE_FILE, encode_text(one.text)))

    def keep_document(self) -> None:
        """Store a document that a user has changed as a version, before the facts move that it was made of."""
        self._document_folds.keep()

    def save_document_version(self, fold: Fold, batch: Sequence[Pair], text: str) -> None:
        """Replace the document by what was made of a fold and a batch of the facts that it lacks."""
        facts, folds = self._facts_on_path() or [], self._document_folds
        versions = with_version(folds.versions()[0], fold, facts, batch, text)
        with folds.storing(versions, versions[-1]):
            if text != folds.stored():
                self.save_state_document(text)

    def save_state_document(self, text: str, forget: bool = False) -> None:
        """Replace the document; the old one is first copied to ``state_document.md.bak``."""
        with writing("state", text):
            self.state.copy(STATE_FILE, BACKUP, encode_text(text) if forget else None)
            self.state.write(STATE_FILE, encode_text(text))
        if forget:
            self._document_folds.forget_earlier()

    def replace_documents(self, versions: Sequence[Version]) -> None:
        """Keep these versions of the document only. The one that fits the stored facts becomes the document."""
        version = fold_of(versions, self._newest_facts()).version
        if version is None:
            self.delete_state_document()
        else:
            with self._document_folds.storing(versions, version):
                self.state.write(STATE_FILE, encode_text(version.text))
        self.forget_earlier_versions()

    def delete_state_document(self) -> None:
        """Empty the document, which is kept in ``state_document.md.bak``."""
        self._document_folds.delete()
        if read_text(self.state, STATE_FILE):
            self.save_state_document("")

    def forget_earlier_versions(self) -> None:
        """Make the backups of summary and state document copies of what is stored now.

        One that another key encrypts, or whose document is damaged, stays.
        """
        with contextlib.suppress(DataKeyError, UnreadableDataError):
            self._back_up(SUMMARY_FILE)
        with contextlib.suppress(DataKeyError):
            self.state.copy(STATE_FILE, BACKUP)

    # -- files -----------------------------------------------------------------------------------------------------
    def _write(self, name: str, content: object) -> None:
        write_content(self.state, name, content)
        # The backup may be from before encryption was switched on.
        self.state.hide(name, BACKUP)

    def _back_up(self, name: str, instead: Sequence[Mapping[str, object]] | None = None) -> None:
        """Copy a file that can be read; raises UnreadableDataError for one that cannot.

        ``instead``: what the backup gets in place of the present content, before the file: after a crash in between,
        the text to be forgotten is still shown, and can be deleted again.
        """
        # A damaged file must not replace a good backup.
        if read_pairs(self.state, name) is not None:
            self.state.copy(name, BACKUP, None if instead is None else json_bytes(instead))


def _said_in(entry: Mapping[str, object]) -> dict[str, str]:
    return {key: value for key in (SAID, SAID_FROM) if isinstance(value := entry.get(key), str)}


def _with_other_keys(pairs: Sequence[Pair], before: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return memories as JSON, each with the other keys of its entry.

    An edit of the text keeps them: the times are those of its messages, not of its words.
    """
    texts, hashes = (_places(before, key) for key in ("text_block", "hash"))
    taken: set[int] = set()
    found: list[dict[str, object]] = []
    for text, stored in pairs:
        # A memory whose text was changed has its hash, and one whose hash was changed its text.
        alike = [place for place in texts.get(text, ()) if place not in taken]
        # One that replaces several has none of their keys.
        if not alike and len(pairs) == len(before):
            alike = [place for place in hashes.get(stored, ()) if place not in taken]
        best = max(alike, key=lambda place: before[place].get("hash") == stored, default=None)
        if best is not None:
            taken.add(best)
        entry = {} if best is None else before[best]
        found.append({**entry, "text_block": text, "hash": stored})
    return found


def _places(entries: Sequence[Mapping[str, object]], key: str) -> Mapping[object, Sequence[int]]:
    found: dict[object, list[int]] = {}
    for place, entry in enumerate(entries):
        found.setdefault(entry.get(key), []).append(place)
    return found
