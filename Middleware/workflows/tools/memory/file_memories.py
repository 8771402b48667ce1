"""Writes the memory file of a conversation: an LLM turns older messages, chunk by chunk, into texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from Middleware.exceptions import ConfigValueError, DataKeyError, StoredDataError
from Middleware.llmapis.guarded_calls import guarded_calls
from Middleware.models.process import process
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled
from Middleware.services.llm_calls.prompt_parts import EXAMPLES, example_answers, prompt_templates
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import ANCHORS_FILE, MEMORIES_FILE, SUMMARY_FILE, MemoryStore
from Middleware.services.memory.pieces import FollowedFiles, followed
from Middleware.services.memory_service import NO_SUMMARY
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, read_object, write_content
from Middleware.utilities.discussions.message_places import MessagePlace, place_from_json
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import message_text, restore_braces
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK
from Middleware.workflows.tools.discussion_context import helper_prompts, raw_messages, text_of_helper
from Middleware.workflows.tools.memory.condensation import Condensation
from Middleware.workflows.tools.memory.dated_chunks import dates_of
from Middleware.workflows.tools.memory.following import Plan, follow, remember_history
from Middleware.workflows.tools.memory.memory_texts import REPETITIONS, clean_memory
from Middleware.workflows.tools.memory.shared import (
    Chunk,
    DiscussionMemory,
    KnownMessages,
    MemoryCall,
    are_enough,
    chunks_of,
    failure_reason,
    first_new,
    memory_count,
    memory_lock,
    problem_with,
    storage_errors_logged,
    stored_memory,
    with_role,
)

logger = logging.getLogger(__name__)

# A model that repeats itself may find something new the second time. Asked again with each message, it would cost a
# call for each of them and keep all later messages from being remembered.
_ATTEMPTS = 2


@dataclass(frozen=True)
class _Repetitions:
    """Answers about the messages behind one memory that only repeated earlier ones.

    Attributes:
        memory: the hash of that memory; None for the beginning of the conversation.
        count: the number of these answers.
        chunk: the chunk to go on behind; None as long as it is tried again.
    """

    memory: str | None
    count: int
    chunk: Chunk | None


def _all_repetitions() -> BoundedCache[str, _Repetitions]:
    """Return what was found out since the start, by the place of the discussion."""
    return BoundedCache(1000)


class MemoryWriter:
    """Turns chunks into memories and stores each at once. The caller holds the lock on the memories."""

    def __init__(self, context: ExecutionContext, settings: MemorySettings, state: DiscussionState) -> None:
        self._context, self._settings, self._discussion = context, settings, state.discussion_id
        self._state, self._place = state, state.place
        self._store, self._anchors = MemoryStore(state), MemoryAnchors(state)
        self._call = MemoryCall(
            context,
            settings.raw,
            settings.endpoint,
            settings.preset,
            settings.max_response_tokens,
            {EXAMPLES: settings.examples},
        )
        self._written = 0

    def write(self, chunks: Sequence[Chunk], as_condensed: bool = False) -> bool:
        """Write memories up to the first chunk that fails, since later memories would hide it. Return whether all
        succeeded.

        ``as_condensed``: condensation skips these memories. Raises UnreadableDataError, DataKeyError, OSError,
        and EarlyTerminationException if the request is cancelled; memories written before that stay.
        """
        began, self._written = time.monotonic(), 0
        try:
            return self._write(chunks, as_condensed)
        finally:
            if self._written:
                self._log_written(began)

    def _log_written(self, began: float) -> None:
        logger.info(
            "Discussion %s: %s written in %.1f s",
            self._discussion,
            memory_count(self._written),
            time.monotonic() - began,
        )

    def _write(self, chunks: Sequence[Chunk], as_condensed: bool) -> bool:
        with self._state.together(MEMORIES_FILE, SUMMARY_FILE):
            last, known = self._last(), stored_memory(self._store)
        for chunk in chunks:
            memory = self._memory(chunk, known)
            # The memory of a later chunk covers the messages of this one, too.
            if memory == "" and self._is_left_out(chunk, last):
                continue
            if not memory or not self._is_stored(memory, chunk, last):
                logger.error(
                    "Discussion %s: %d of %d memories written, the rest is tried again next time",
                    self._discussion,
                    self._written,
                    len(chunks),
                )
                return False
            last = chunk.hash
            if as_condensed:
                self._store.save_condensation_hash(chunk.hash)
            known = known.followed_by(memory)
        return True

    def _is_stored(self, memory: str, chunk: Chunk, last: str | None) -> bool:
        """Store the memory of a chunk, unless the memories were changed; ``last``: the hash of the newest one."""
        with self._state.together(MEMORIES_FILE, ANCHORS_FILE):
            if self._changed_since(last):
                return False
            self._store.append_memory(memory, chunk.hash, chunk.said)
            self._written += 1
            self._note(chunk)
        return True

    def _is_left_out(self, chunk: Chunk, last: str | None) -> bool:
        found = process().one(_all_repetitions).get(self._place)
        count = found.count + 1 if found is not None and found.memory == last else 1
        left_out = count >= _ATTEMPTS
        process().one(_all_repetitions).put(self._place, _Repetitions(last, count, chunk if left_out else None))
        return left_out

    def _last(self) -> str | None:
        pairs = self._store.stored_memories()
        return pairs[-1][1] if pairs else None

    def _changed_since(self, last: str | None) -> bool:
        # Memories were removed, by hand as a rule. A new memory would hide that they are missing.
        changed = last is not None and self._last() != last
        if changed:
            logger.error("Discussion %s: its memories were changed in the meantime", self._discussion)
        return changed

    def _note(self, chunk: Chunk) -> None:
        if chunk.place is not None:
            self._anchors.note(chunk.hash, chunk.place, {stored for _, stored in self._store.memories()})

    def _memory(self, chunk: Chunk, known: DiscussionMemory) -> str | None:
        """Return the memory; "" if the answer only repeats earlier ones, None without one for another reason."""
        try:
            answer = self._ask(restore_braces(chunk.text), known)
        except DataKeyError:
            raise
        # A workflow of the user may raise anything.
        except Exception as error:
            raise_if_cancelled(self._context.request.cancel_scope)
            logger.error("Discussion %s: no memory: %s", self._discussion, failure_reason(error))
            return None
        raise_if_cancelled(self._context.request.cancel_scope)
        prompts, shown = self._shown
        text = clean_memory(restore_braces(answer), prompts, known.memories, shown)
        problem = problem_with(answer)
        if problem or not text.strip():
            logger.error("Discussion %s: no memory: %s", self._discussion, problem or REPETITIONS)
            return None if problem else ""
        return text

    @property
    def _shown(self) -> tuple[Sequence[str], Sequence[str]]:
        """The templates of the call, and the answers among its example turns."""
        settings = self._settings
        if settings.file_workflow:
            return helper_prompts(self._context, settings.file_workflow), ()
        return prompt_templates(settings.raw), example_answers(settings.raw)

    def _ask(self, text: str, known: DiscussionMemory) -> str:
        settings = self._settings
        if settings.file_workflow:
            inputs = (text, known.recent, known.full, known.summary)
            with guarded_calls(settings.reads_streams):
                return text_of_helper(self._context, settings.file_workflow, inputs)
        if not (settings.system_prompt.strip() or settings.prompt.strip()):
            raise ConfigValueError(
                "the memory settings hold no prompt",
                json_path="prompt",
                expected="'prompt', 'systemPrompt' or 'fileMemoryWorkflowName'",
            )
        return self._call.ask(settings.system_prompt, settings.prompt, {**known.markers, TEXT_CHUNK: text})


class FileMemoryPass:
    """Brings the memory file of one discussion up to date with the conversation of one request."""

    def __init__(self, context: ExecutionContext, settings: MemorySettings, state: DiscussionState) -> None:
        self._context, self._settings, self._state = context, settings, state
        self._store = MemoryStore(state)
        self._messages = [message for message in raw_messages(context) if message.get("role") != "system"]
        self._end = max(0, len(self._messages) - max(0, settings.lookback))

    def run(self) -> None:
        """Write what is due. Failures are logged, and the work is retried with the next request.

        Raises DataKeyError, and EarlyTerminationException if the request is cancelled.
        """
        with storage_errors_logged(self._state):
            with self._state.together(MEMORIES_FILE, ANCHORS_FILE):
                pairs, existed = self._open()
                start = self._start(pairs)
            if not self._due(start, existed):
                return
            with memory_lock(self._context, self._state, self._settings) as mine:
                if mine:
                    self._write(existed)

    def _open(self) -> tuple[list[Pair], bool]:
        return self._store.open_memories(self._context.request.cancel_scope)

    def _start(self, pairs: Sequence[Pair]) -> int:
        stored, places = [chunk_hash for _, chunk_hash in pairs], MemoryAnchors(self._state).read()
        found = process().one(_all_repetitions).get(self._state.place)
        if found is not None and found.chunk is not None and found.memory == (stored[-1] if stored else None):
            stored.append(found.chunk.hash)
            places.update({found.chunk.hash: found.chunk.place} if found.chunk.place is not None else {})
        return first_new(self._known, stored, self._end, places) if stored and self._end else 0

    @cached_property
    def _known(self) -> KnownMessages:
        return KnownMessages.of(self._messages)

    def _due(self, start: int, existed: bool) -> bool:
        # In a conversation that is new here, only enough text counts: a short history waits for its next messages.
        count = self._settings.chunk_messages if existed else None
        return are_enough(self._messages[start : self._end], self._settings.file_chunk_size, count)

    def _write(self, existed: bool) -> None:
        # Another request may have written them while this one waited for the lock.
        with self._state.together(MEMORIES_FILE, ANCHORS_FILE):
            pairs, _ = self._open()
            start = self._start(pairs)
        if not self._due(start, existed):
            return
        shown = with_role if self._settings.roles else message_text
        dates = dates_of(self._context, self._settings, self._messages)
        chunks = chunks_of(self._messages, self._known, start, self._end, self._settings.file_chunk_size, shown, dates)
        writer = MemoryWriter(self._context, self._settings, self._state)
        # The memories of a long history that is new here count as condensed, or they would be condensed at once.
        if writer.write(chunks, as_condensed=self._settings.condense and not existed):
            Condensation(self._context, self._settings, self._state).run()


class FollowingPass(FileMemoryPass):
    """Fills the holes in the memories of a history, and remembers what is due behind them."""

    def __init__(self, context: ExecutionContext, settings: MemorySettings, state: DiscussionState) -> None:
        super().__init__(context, settings, state)
        remember_history(context)

    def run(self) -> None:
        """Do what ``FileMemoryPass.run`` does."""
        with storage_errors_logged(self._state):
            found = followed(self._state)
            if found is None or found.is_tentative:
                return
            existed = self._open()[1]
            with memory_lock(self._context, self._state, self._settings) as mine:
                if mine:
                    # Another request may have written while this one waited for the lock.
                    found.refresh()
                    self._follow(found, existed)

    def _follow(self, found: FollowedFiles, existed: bool) -> None:
        settings = self._settings
        writer = _FollowingWriter(self._context, settings, self._state, found, settings.condense and not existed)
        plan = Plan(
            self._context,
            settings,
            settings.file_chunk_size,
            settings.chunk_messages,
            self._settings.chunk_messages if existed else None,
            with_role if settings.roles else message_text,
            self._covered(found),
        )
        if follow(found, plan, self._end, writer.write_planned):
            Condensation(self._context, settings, self._state).run()

    def _covered(self, found: FollowedFiles) -> range:
        """Return the messages of memories from before, of which it is known at most with which messages they ended."""
        unknown, before = found.without_keys
        if not unknown:
            return range(0)
        known, places = KnownMessages.of(found.messages), MemoryAnchors(self._state).read()
        start, stop = (first_new(known, hashes, len(known.hashes), places) for hashes in (before, unknown))
        return range(start, stop) if start < stop else range(0)


class _FollowingWriter(MemoryWriter):
    """Stores each memory at its place among those of the history."""

    def __init__(
        self,
        context: ExecutionContext,
        settings: MemorySettings,
        state: DiscussionState,
        found: FollowedFiles,
        as_condensed: bool,
    ) -> None:
        super().__init__(context, settings, state)
        self._found, self._as_condensed = found, as_condensed

    def write_planned(self, planned: Sequence[Chunk]) -> bool:
        """Do what ``write`` does."""
        began, self._written = time.monotonic(), 0
        try:
            return all(map(self._write_one, planned))
        finally:
            if self._written:
                self._log_written(began)

    def _write_one(self, chunk: Chunk) -> bool:
        found = self._found
        earlier = found.shown_before(chunk.start)
        summary = self._store.summary()
        known = DiscussionMemory(tuple(text for text, _ in earlier), summary[0] if summary else NO_SUMMARY)
        memory = self._memory(chunk, known)
        if memory is None or (memory == "" and not self._is_left_out(chunk, chunk.hash)):
            return False
        with self._state.together(MEMORIES_FILE, ANCHORS_FILE):
            # Blank: the messages count as remembered.
            found.add(chunk.span, memory, chunk.hash, chunk.said)
            found.settle()
            if memory:
                self._written += 1
                self._note(chunk)
        if self._as_condensed:
            self._store.save_condensation_hash(chunk.hash)
        return True


class MemoryAnchors:
    """The anchors file of one discussion. A file that cannot be used is ignored, and left unchanged."""

    def __init__(self, state: DiscussionState) -> None:
        self._state = state

    def read(self) -> dict[str, MessagePlace]:
        """Return the position of each memory's last message, by its hash."""
        try:
            places = {key: place_from_json(value) for key, value in self._content().items()}
            return {key: place for key, place in places.items() if place is not None}
        except (StoredDataError, OSError) as error:
            logger.debug("%s is not used: %s", self._state.display(ANCHORS_FILE), error)
            return {}

    def note(self, stored_hash: str, place: MessagePlace, keep: Collection[str]) -> None:
        """Add an entry, and drop the entries of memories that are not in ``keep`` any more."""
        try:
            known = {key: value for key, value in self._content().items() if key in keep}
            write_content(self._state, ANCHORS_FILE, {**known, stored_hash: place.as_json()})
        except (StoredDataError, OSError) as error:
            logger.debug("%s is not written: %s", self._state.display(ANCHORS_FILE), error)

    def _content(self) -> dict[str, object]:
        return read_object(self._state, ANCHORS_FILE)
