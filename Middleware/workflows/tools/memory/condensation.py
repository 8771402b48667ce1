"""Joins older memories of a conversation into one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from Middleware.exceptions import DataKeyError
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled
from Middleware.services.memory.memory_settings import BATCH, MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory.pieces import followed
from Middleware.services.memory_service import RECENT_MEMORIES, valid_position
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK
from Middleware.workflows.tools.memory.memory_texts import clean_memory
from Middleware.workflows.tools.memory.shared import (
    MEMORY_SEPARATOR,
    MemoryCall,
    failure_reason,
    joined_memories,
    memory_count,
    readable,
)

logger = logging.getLogger(__name__)

PRECEDING = "[Memories_Before_Memories_to_Condense]"
# The system prompt keeps this marker as written: it never shows the memories to join, but may speak of them.
_BATCH_AS_WRITTEN = "[MemoriesToCondense as written]"

SYSTEM_PROMPT = (
    "You keep the long-term notes of a conversation short. You are given several consecutive notes and write one note "
    "that stands in for all of them. Keep every name, place, number, decision, promise, open question and change of "
    "mood or relationship that may matter later, in the order in which things happened. Leave out repetition and "
    "wording. Add nothing that is not in the notes."
)
PROMPT = (
    "These notes come directly before and are only here so that you understand the others:\n"
    f"<earlier_notes>\n{PRECEDING}\n</earlier_notes>\n\n"
    f"Join these notes into one:\n<notes>\n{BATCH}\n</notes>\n\n"
    "Answer with the text of the one note and nothing else."
)


class Condensation:
    """One condensation step for a discussion. The caller holds the lock on its memories."""

    def __init__(self, context: ExecutionContext, settings: MemorySettings, state: DiscussionState) -> None:
        self._context, self._settings, self._discussion = context, settings, state.discussion_id
        self._store = MemoryStore(state)

    def run(self) -> bool:
        """Join the oldest memories that were not condensed yet, if there are enough; return whether that was done.

        Without a usable answer, or if it cannot be stored, nothing changes, and the log holds an error. Raises
        UnreadableDataError, DataKeyError, OSError, and EarlyTerminationException if the request is cancelled.
        """
        if not self._settings.condense:
            return False
        count = self._settings.condense_count
        if count < 1:
            logger.error(
                "Discussion %s: memories are not condensed, since the settings have no "
                "'memoriesBeforeCondensation' of 1 or more",
                self._discussion,
            )
            return False
        with self._store.together():
            if not readable(self._store):
                return False
            pairs = self._store.memories()
            start = self._first_new(pairs)
        if not pairs or len(pairs) - start < count + max(0, self._settings.condense_buffer):
            return False
        batch = pairs[start : start + count]
        text = self._joined(batch, pairs[max(0, start - RECENT_MEMORIES) : start])
        with self._store.together():
            return bool(text.strip()) and self._replace(batch, start, text)

    def _first_new(self, pairs: Sequence[Pair]) -> int:
        done = self._store.condensation_hash()
        for index, (_, stored_hash) in enumerate(pairs):
            if stored_hash == done:
                return index + 1
        if done and pairs:
            logger.warning(
                "Discussion %s: the memory up to which was condensed is gone; all count as new", self._discussion
            )
        return 0

    def _joined(self, batch: Sequence[Pair], preceding: Sequence[Pair]) -> str:
        try:
            text = self._ask([text for text, _ in batch], [text for text, _ in preceding])
        except DataKeyError:
            raise
        # A failure of the LLM must not end the chat.
        except Exception as error:
            raise_if_cancelled(self._context.request.cancel_scope)
            logger.error("Discussion %s: memories stay uncondensed: %s", self._discussion, failure_reason(error))
            return ""
        if not text.strip():
            logger.error("Discussion %s: memories stay uncondensed: the answer was blank", self._discussion)
        return text

    def _ask(self, batch: Sequence[str], preceding: Sequence[str]) -> str:
        settings = self._settings
        call = MemoryCall(
            self._context,
            settings.raw,
            settings.condense_endpoint,
            settings.condense_preset,
            settings.condense_max_response_tokens,
        )
        text = MEMORY_SEPARATOR.join(batch)
        markers = {BATCH: text, TEXT_CHUNK: text, PRECEDING: joined_memories(preceding), _BATCH_AS_WRITTEN: BATCH}
        system_prompt = (settings.condense_system_prompt or SYSTEM_PROMPT).replace(BATCH, _BATCH_AS_WRITTEN)
        prompt = settings.condense_prompt or PROMPT
        # The memories before it may be repeated: what the batch said must still be there.
        return clean_memory(call.ask(system_prompt, prompt, markers), (system_prompt, prompt))

    def _replace(self, batch: list[Pair], start: int, text: str) -> bool:
        """Put the text in the place of the batch, unless a user edited the file while the LLM answered.

        A crash between the three files neither loses nor repeats a memory.
        """
        self._store.require_readable()
        pairs = self._store.stored_memories()
        end = start + len(batch)
        if pairs[start:end] != batch:
            logger.warning(
                "Discussion %s: the memories to be joined were changed in the meantime; they are kept", self._discussion
            )
            return False
        stored_hash = pairs[end - 1][1]
        following = followed(self._store.state)
        if following is not None:
            self._store.save_condensation_hash(stored_hash)
            return following.join(start, end, text)
        after = [*pairs[:start], (text, stored_hash), *pairs[end:]]
        # If only the tracker is ahead, the originals stay. If the summary's pointer is ahead as well, the summary takes
        # them in once more, as it does with the memory that replaces them. In the opposite order the summary's pointer
        # would refer to a missing memory, so that it takes in everything again, and the new memory would be condensed
        # again.
        self._store.save_condensation_hash(stored_hash)
        self._move_summary(pairs, after, start, end)
        self._store.replace_memories(after)
        logger.info("Discussion %s: %s joined into one", self._discussion, memory_count(len(batch)))
        return True

    def _move_summary(self, pairs: list[Pair], after: list[Pair], start: int, end: int) -> None:
        """Make the summary refer to the last memory that it covers and that stays."""
        summary = self._store.summary()
        place = valid_position(pairs, summary, self._store.summary_position())
        if place is None:
            inside = summary is not None and summary[1] in {known for _, known in pairs} - {known for _, known in after}
        else:
            inside = start < place < end
        before = pairs[start - 1][1] if start else ""
        if inside and summary is not None and summary[0].strip() and summary[1] != before:
            self._store.save_summary(summary[0], before)
        # Until the memories are written, the position is too low rather than too high: with equal hashes a memory is
        # summarized twice rather than never.
        self._store.save_summary_position(_moved(place, start, end))


def _moved(place: int | None, start: int, end: int) -> int | None:
    """Return the position of the summary once the memories from ``start`` to before ``end`` have become one."""
    if place is None or place <= start:
        return place
    return start if place < end else place - (end - start - 1)
