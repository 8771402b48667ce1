"""A compactor that follows edits: Oldest is made of blocks that fit the history, and nothing is made twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from Middleware.models.messages import Message
from Middleware.services.memory.compactor_settings import RECENT, CompactorSettings
from Middleware.services.memory.compactor_store import Boundary, CompactorState
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import if_readable
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.text_utils import estimate_message, message_text, newest_within
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.memory.compactor_blocks import LARGEST_HOLE, Blocks
from Middleware.workflows.tools.memory.context_compaction import (
    FEWEST_MESSAGES,
    ContextCompaction,
    covered_up_to,
    message_lines,
    tagged_summaries,
)

# The client waits for them: of Old, blocks, and Oldest. Further ones are made in the next requests.
MOST_CALLS = 3
MOST_BLOCKS = 2
# Blocks for one call; more are first made into as few summaries as possible, and Oldest of these.
MOST_FOLDED = 12


class FollowingCompaction(ContextCompaction):
    """One pass over a conversation; see ``Blocks``."""

    def __init__(self, context: ExecutionContext, settings: CompactorSettings, state: DiscussionState) -> None:
        super().__init__(context, settings, state, list(context.request.history) or raw_messages(context))
        self._left = MOST_CALLS
        self._sees_recent = RECENT in settings.old_prompt

    def run(self) -> str:
        """Do what ``ContextCompaction.run`` does."""
        blocks = if_readable(lambda: Blocks(self._state, self._messages, self._sections, self._earlier), None)
        if blocks is None:
            return ""
        is_due = blocks.is_stored or (self._sections.end >= FEWEST_MESSAGES and self._sections.recent > 0)
        with contextlib.ExitStack() as stack:
            is_mine = is_due and not blocks.is_tentative and self._takes_lock(stack)
            # Another request may have stored something while this one waited.
            if is_mine and if_readable(blocks.is_up_to_date, False):
                return tagged_summaries(*self._renewed_texts(blocks))
            self._left, missing = 0, blocks.missing(self._settings.old_budget)
            old, start = self._old(blocks, self._starts(blocks, missing))
            return tagged_summaries(old, self._oldest(blocks, start))

    def _earlier(self) -> tuple[str, int]:
        state = self._store.read()
        if state.oldest is None:
            return "", 0
        return state.oldest[0], covered_up_to(self._messages, state, self._store.folded(), self._sections.old)

    def _renewed_texts(self, blocks: Blocks) -> tuple[str, str]:
        """Return Old and Oldest. What is missing is made, as far as there are calls left, and stored."""
        missing = blocks.missing(self._settings.old_budget)
        starts = self._starts(blocks, missing)
        old, start = self._old(blocks, starts)
        for span in blocks.planned(missing, MOST_BLOCKS):
            self._add_block(blocks, span)
        oldest = self._oldest(blocks, start)
        self._is_written(blocks.store)
        if old and blocks.old(start)[1]:
            self._keep_for_others(blocks.index_of(start), old, oldest)
        return old, oldest

    def _starts(self, blocks: Blocks, missing: Sequence[range]) -> list[int]:
        """Return where Old may begin, the best first: what has no block yet stays in it, if its model takes as much."""
        end = blocks.trail.end
        return [
            max([end, *(span.stop for span in spans)]) for spans in (blocks.planned(missing, MOST_BLOCKS), missing, [])
        ]

    def _keep_for_others(self, start: int, old: str, oldest: str) -> None:
        """Store the texts for a compactor that does not follow edits. ``start``: of Old, in the request."""
        stored, last = self._store.read(), self._messages[self._sections.recent - 1]
        renewed = CompactorState(
            (old, _hash(last)),
            Boundary(_hash(self._messages[start]), start),
            (oldest, _hash(self._messages[0])) if oldest or stored.oldest else None,
        )
        if stored.readable and renewed != stored:
            self._saved(renewed, start, new_oldest=renewed.oldest is not None)

    # -- one text ------------------------------------------------------------------------------------------------------

    def _old(self, blocks: Blocks, starts: Sequence[int]) -> tuple[str, int]:
        """Return Old, and where it begins."""
        text, is_whole = blocks.old(starts[0])
        if is_whole or starts[0] >= blocks.recent:
            return text, starts[0]
        recent = blocks.messages[blocks.recent : blocks.end]
        for start in dict.fromkeys(starts[:2]):
            made = self._asked(partial(self._summary_of, blocks.messages[start : blocks.recent], recent))
            if made is not None:
                blocks.keep_old(start, made, self._sees_recent)
                self._is_written(blocks.store)
                return made, start
        self._left = 0
        found = ((blocks.old(start)[0], start) for start in starts)
        return next((one for one in found if one[0]), ("", starts[0]))

    def _add_block(self, blocks: Blocks, span: range) -> None:
        text = blocks.known_block(span)
        if not text:
            text = self._asked(partial(self._record_of, blocks.messages[span.start : span.stop])) or ""
        if text:
            blocks.keep_block(span, text)
            self._is_written(blocks.store)
        else:
            self._left = 0

    def _oldest(self, blocks: Blocks, end: int) -> str:
        """Return Oldest, or in its place what it is made of, as long as that has not been folded.

        ``end``: where Old begins. Messages before it that have no block yet stand there as they are.
        """
        if others := self._without_block(blocks, end):
            return "\n\n".join(blocks.texts(others))
        parts = blocks.texts()
        if len(parts) > MOST_FOLDED:
            rest = len(parts) - len(parts) % MOST_FOLDED
            groups = (parts[start : start + MOST_FOLDED] for start in range(0, rest, MOST_FOLDED))
            parts = [*(text for group in groups for text in self._fold(blocks, group)), *parts[rest:]]
        return "\n\n".join(self._fold(blocks, parts))

    def _without_block(self, blocks: Blocks, end: int) -> list[tuple[int, str]]:
        """Return the messages without a block, each stretch with its beginning, as long as they are not too many."""
        holes = [(span.start, blocks.messages[span.start : span.stop]) for span in blocks.trail.holes(end)]
        room = LARGEST_HOLE * self._settings.old_budget
        first = newest_within(holes, room, lambda hole: sum(map(estimate_message, hole[1])))
        return [(start, message_lines(messages)) for start, messages in holes[first:]]

    def _fold(self, blocks: Blocks, texts: Sequence[str]) -> Sequence[str]:
        """Return the summary of some texts, or these if it cannot be made now."""
        text = blocks.fold(texts) if texts else ""
        if not text and texts:
            made = self._asked(partial(self._folded, "", "\n\n".join(texts)))
            if made:
                text = made
                blocks.keep_fold(texts, text)
                self._is_written(blocks.store)
            else:
                self._left = 0
            if made == "":
                self._log_no_oldest()
        return [text] if text else texts

    def _asked(self, ask: Callable[[], str]) -> str | None:
        """Return the answer; None without one, or without a call left."""
        if not self._left:
            return None
        self._left -= 1
        return self._tried(ask)


def _hash(message: Message) -> str:
    return hash_content(message_text(message))
