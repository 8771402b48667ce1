"""The memories, the summary and the state document of one discussion, as documents.

Each write replaces one in one step. A file that cannot be read is never replaced: readers log it and act as if it
were empty, writers raise UnreadableDataError. A caller that reads and then writes holds the ``MEMORIES`` lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from Middleware.exceptions import DataKeyError, UnreadableDataError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import writing
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

MEMORIES_FILE = "memories.json"
SUMMARY_FILE = "chat_summary.json"
TRACKER_FILE = "condensation_tracker.json"
ANCHORS_FILE = "memory_anchors.json"
STATE_FILE = "state_document.md"
CONDENSED_UP_TO = "lastCondensationHash"
SUMMARIZED = "summarizedMemories"
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
        return read_pairs(self.state, MEMORIES_FILE) or []

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
        return found[-1] or [], found[-1] is not None

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
        return if_readable(lambda: [_said_in(entry) for entry in self._entries()], [])

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
        gone = [entry for entry in entries if (entry["text_block"], entry["hash"]) not in set(pairs)]
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
            entries = self._with_times(pairs) if pairs else []
            self._back_up(MEMORIES_FILE, entries if forget else None)
            self._write(MEMORIES_FILE, entries)

    # -- summary ---------------------------------------------------------------------------------------------------
    def summary(self) -> Pair | None:
        """Return the rolling summary and the hash of the last memory in it."""
        pairs = if_readable(lambda: read_pairs(self.state, SUMMARY_FILE), None)
        return pairs[0] if pairs else None

    def save_summary(self, text: str, stored_hash: str, covered: int | None = None, forget: bool = False) -> None:
        """Replace the summary, which is kept in ``chat_summary.json.bak``. Raises ValueError for a blank text.

        ``covered`` becomes the ``summary_position``. It is written last, and a failure is only logged: an older, lower
        number at worst causes memories with equal hashes to be summarized again.
        """
        if not text.strip():
            raise ValueError("a summary must not be blank")
        with self.state.together(SUMMARY_FILE), writing("summary", text, last_message=stored_hash):
            content = pairs_as_json([(text, stored_hash)])
            self._back_up(SUMMARY_FILE, content if forget else None)
            self._write(SUMMARY_FILE, content)
        if covered is not None:
            if_readable(lambda: self.save_summary_position(covered), None)

    def delete_summary(self) -> None:
        """Remove the summary, which is kept in ``chat_summary.json.bak``."""
        if read_pairs(self.state, SUMMARY_FILE):
            self._back_up(SUMMARY_FILE)
            self._write(SUMMARY_FILE, [])

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
        return read_text(self.state, STATE_FILE)

    def save_state_document(self, text: str, forget: bool = False) -> None:
        """Replace the document; the old one is first copied to ``state_document.md.bak``."""
        with writing("state", text):
            self.state.copy(STATE_FILE, BACKUP, encode_text(text) if forget else None)
            self.state.write(STATE_FILE, encode_text(text))

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

    def _back_up(self, name: str, instead: list[dict[str, str]] | None = None) -> None:
        """Copy a file that can be read; raises UnreadableDataError for one that cannot.

        ``instead``: what the backup gets in place of the present content, before the file: after a crash in between,
        the text to be forgotten is still shown, and can be deleted again.
        """
        # A damaged file must not replace a good backup.
        if read_pairs(self.state, name) is not None:
            self.state.copy(name, BACKUP, None if instead is None else json_bytes(instead))


def _said_in(entry: Mapping[str, object]) -> dict[str, str]:
    return {key: value for key in (SAID, SAID_FROM) if isinstance(value := entry.get(key), str)}
