"""Searchable memories, made by an LLM or a workflow from the new messages of a conversation."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

from Middleware.exceptions import (
    BackendConnectionError,
    BackendStatusError,
    ConfigurationError,
    DataKeyError,
    EarlyTerminationException,
    FailoverError,
    GateTimeoutError,
    StoredDataError,
)
from Middleware.llmapis.backend_errors import public_text
from Middleware.llmapis.guarded_calls import guarded_calls
from Middleware.models.messages import Message
from Middleware.services.llm_calls.prompt_parts import EXAMPLES, prompt_templates
from Middleware.services.memory.chunks import FollowedChunks, followed_chunks
from Middleware.services.memory.embedding_service import PASSING_STATUSES, embed_new_rows
from Middleware.services.memory.memory_settings import JSON_FORMAT, LINES_FORMAT, MemorySettings
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, logged_as_conflict
from Middleware.utilities.discussions.message_places import LoggedMessage
from Middleware.utilities.discussions.vector_memory import SearchableMemories
from Middleware.utilities.discussions.vector_memory.searchable import MOST_ROWS, Origin
from Middleware.utilities.hashing_utils import speakers_before
from Middleware.utilities.sensitive_logging_utils import log_prompt_content
from Middleware.utilities.text_utils import counted, message_text, restore_braces
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK
from Middleware.workflows.tools.discussion_context import helper_prompts, raw_messages, state_of, text_of_helper
from Middleware.workflows.tools.memory.dated_chunks import dates_of
from Middleware.workflows.tools.memory.following import Plan, follow, remember_history
from Middleware.workflows.tools.memory.shared import (
    Chunk,
    KnownMessages,
    MemoryCall,
    are_enough,
    chunks_of,
    memory_lock,
    with_role,
    with_speaker,
)
from Middleware.workflows.tools.memory.state_document import (
    keep_state_document,
    raise_if_request_ended,
    update_state_document,
)
from Middleware.workflows.tools.memory.vector_answers import Item, parse_memories
from Middleware.workflows.tools.memory.vector_lines import Reading, read_memories
from Middleware.workflows.tools.memory.vector_prompts import JSON, LINES

logger = logging.getLogger(__name__)

# How many logged messages are read at first: usually one of them survives edits by the client.
KNOWN_HASHES = 10
# After this many failures in a row a chunk is left without memories: it would block all later ones.
MOST_FAILURES = 3
# So many answers without a memory to the built-in prompts: the second question has another form, and an example.
MOST_EMPTY_ANSWERS = 2
# A shorter chunk without a memory is not worth a line in the log.
NOTED_MESSAGES = 4


class VectorMemoryPass:
    """One pass over a conversation that stores the memories of its new messages, if these are enough."""

    def __init__(self, context: ExecutionContext, settings: MemorySettings, state: DiscussionState) -> None:
        self._context, self._settings, self._state = context, settings, state
        self._messages = [message for message in raw_messages(context) if message.get("role") != "system"]

    def run(self) -> None:
        """Store the memories of new messages, chunk by chunk; the rest is retried next time.

        Problems with the LLM, a workflow or the database are logged. Raises EarlyTerminationException, and DataKeyError
        if the stored memories are of another API key; memories stored before that stay.
        """
        with _database_problems_logged(self._state), _opened(self._context, self._state) as memories:
            if not self._due(memories):
                return
            with memory_lock(self._context, self._state, self._settings) as ours:
                if ours:
                    self._work(memories)

    def _work(self, memories: SearchableMemories) -> None:
        # Another request may have stored some of them while this one waited.
        new = self._due(memories, warn=True)
        if new:
            chunks = chunks_of(
                self._messages,
                self._known,
                new.start,
                new.stop,
                self._settings.vector_chunk_size,
                self._shown,
                dates_of(self._context, self._settings, self._messages),
            )
            ChunkWriter(self._context, self._settings, self._state, memories, self._names).write(chunks)

    def _due(self, memories: SearchableMemories, warn: bool = False) -> range:
        if len(self._messages) <= self._settings.lookback:
            return range(0)
        new = new_messages(self._known, _logged(memories), self._settings.lookback)
        if warn and new.start == 0 and memories.logged_messages(1):
            logger.warning(
                "Discussion %s: none of the messages with memories is known any more, so all are new",
                self._state.discussion_id,
            )
        enough = are_enough(
            self._messages[new.start : new.stop], self._settings.vector_chunk_size, self._settings.vector_chunk_messages
        )
        return new if enough else range(0)

    @cached_property
    def _known(self) -> KnownMessages:
        return KnownMessages.of(self._messages)

    def _shown(self, message: Message) -> str:
        if self._settings.has_built_in_vector_prompts:
            return with_speaker(message, self._names)
        return with_role(message) if self._settings.roles else message_text(message)

    @cached_property
    def _names(self) -> set[str]:
        """The names of speakers."""
        said = (message for message in self._messages if message.get("role") in ("user", "assistant"))
        return speakers_before(self._messages) | {str(message["name"]) for message in said if message.get("name")}


class FollowingVectorPass(VectorMemoryPass):
    """Fills the holes in the searchable memories of a history, and remembers what is due behind them."""

    def run(self) -> None:
        """Do what ``VectorMemoryPass.run`` does."""
        remember_history(self._context)
        with _database_problems_logged(self._state):
            found = followed_chunks(self._state)
            if found is None or found.is_tentative:
                return
            with (
                _opened(self._context, self._state) as memories,
                memory_lock(self._context, self._state, self._settings) as ours,
            ):
                if ours:
                    with found.open_for(memories):
                        self._follow(found, memories)

    def _follow(self, found: FollowedChunks, memories: SearchableMemories) -> None:
        settings = self._settings
        covered = _covered(memories, KnownMessages.of(found.messages), settings.lookback)
        plan = Plan(
            self._context,
            settings,
            settings.vector_chunk_size,
            settings.vector_chunk_messages,
            settings.vector_chunk_messages,
            self._shown,
            covered,
        )
        writer = ChunkWriter(self._context, settings, self._state, memories, self._names, found)
        keep_state_document(self._state)
        follow(found, plan, max(0, len(self._messages) - settings.lookback), writer.write)
        # After an edit or a return, it may lack facts although nothing was written.
        update_state_document(self._context, settings, self._state)


def _logged(memories: SearchableMemories, with_origin: bool = True) -> Iterator[LoggedMessage]:
    """Yield the messages that ended processed chunks, newest first.

    ``with_origin``: also those of chunks of which it is known what they were made of.
    """
    yield from memories.logged_messages(KNOWN_HASHES, with_origin)
    # All newer ones may be missing: a user goes back to an earlier message, and the pass of an earlier request, which
    # had to wait, sees the conversation as it was then.
    # Without its position, a short text would be found at a later repetition.
    others = memories.logged_messages(MOST_ROWS, with_origin)[KNOWN_HASHES:]
    yield from (message for message in others if message.place is not None)


def _covered(memories: SearchableMemories, messages: KnownMessages, lookback: int) -> range:
    """Return the messages of chunks from before, of which it is known only with which messages they ended."""
    logged, before = list(_logged(memories)), list(_logged(memories, with_origin=False))
    if not before:
        return range(0)
    # What was known before memories ceased to follow edits for a time follows them again.
    older = logged[logged.index(before[-1]) + 1 :] if before[-1] in logged else []
    start = new_messages(messages, older, lookback).start if older else 0
    return range(start, max(start, new_messages(messages, before, lookback).start))


def new_messages(messages: KnownMessages, logged: Iterable[LoggedMessage], lookback: int) -> range:
    """Return the positions of the messages after the newest processed one, without the newest ``lookback``.

    Args:
        logged: messages that ended processed chunks, newest first. Of equal messages the one at the logged position
            counts; if the position was not recorded, the last that is not among the newest.

    All are new if no logged message is there. None is if a logged one is now among the newest ``lookback``, as happens
    when messages are deleted; without its position only the newest logged one says so.
    """
    end = max(0, len(messages.hashes) - max(0, lookback))
    for number, message in enumerate(logged):
        index = messages.reached(message.hash, message.place, end)
        if index is not None and (index < end or number == 0 or message.place is not None):
            return range(min(index + 1, end), end)
    return range(end)


def generate_and_store(pairs: Sequence[Pair], settings: MemorySettings, context: ExecutionContext) -> int:
    """Store the memories in chunks ``(text, hash of the last message)``; return how many.

    Raises what ``VectorMemoryPass.run`` raises. 0 for a conversation without an id.
    """
    state = state_of(context)
    if state is None:
        return 0
    stored = 0
    with _database_problems_logged(state), memory_lock(context, state, settings) as ours:
        if ours:
            with _opened(context, state) as memories:
                writer = ChunkWriter(context, settings, state, memories)
                try:
                    writer.write([Chunk(text, message_hash) for text, message_hash in pairs])
                finally:
                    stored = writer.stored
    return stored


# -- database ----------------------------------------------------------------------------------------------------------


def _opened(context: ExecutionContext, state: DiscussionState) -> SearchableMemories:
    return state.memories(write=True, scope=context.request.cancel_scope)


@contextlib.contextmanager
def _database_problems_logged(state: DiscussionState) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if not logged_as_conflict(error):
            reason = getattr(error, "strerror", None) or error
            logger.error("Discussion %s: the searchable memories could not be stored: %s", state.discussion_id, reason)


# -- chunks ------------------------------------------------------------------------------------------------------------


class ChunkWriter:
    """Makes and stores memories. The caller holds the lock on the conversation's memories.

    Attributes:
        stored: memories stored so far.

    Args:
        names: of the speakers in the chunks.
        found: what the memories follow; None if they do not follow edits.
    """

    def __init__(
        self,
        context: ExecutionContext,
        settings: MemorySettings,
        state: DiscussionState,
        memories: SearchableMemories,
        names: Collection[str] = (),
        found: FollowedChunks | None = None,
    ) -> None:
        self._names, self._found = sorted(names), found
        self._context, self._settings, self._state, self._memories = context, settings, state, memories
        self.stored = self._done = self._empty = 0
        self._embedding_works = True

    def write(self, pieces: Sequence[Chunk]) -> bool:
        """Work on the chunks in order, up to the first that fails; return whether none did."""
        self._done = self._empty = 0
        stored = self.stored
        chunks = [chunk for chunk in pieces if chunk.text.strip()]
        started = time.monotonic()
        try:
            for chunk in chunks:
                items = self._items_of(chunk)
                if items is None:
                    return False
                self._store(items, chunk)
            return True
        finally:
            if chunks:
                logger.info(
                    "Discussion %s: %d of %d chunks searched for memories, %d stored, in %.1f s",
                    self._state.discussion_id,
                    self._done,
                    len(chunks),
                    self.stored - stored,
                    time.monotonic() - started,
                )
            # Small models answer so to anything, and nothing else would tell that there are no memories.
            if self._empty:
                logger.warning(
                    "Discussion %s: the model found nothing worth remembering in %d of %s; it is not asked "
                    "again about %s",
                    self._state.discussion_id,
                    self._empty,
                    counted(self._done, "chunk"),
                    "it" if self._empty == 1 else "them",
                )

    def _items_of(self, chunk: Chunk) -> list[Item] | None:
        """Return the memories in a chunk; None, with a line in the log, if the chunk is tried again."""
        built_in = self._settings.has_built_in_vector_prompts
        again = built_in and self._memories.failures(self._failing(chunk)) > 0
        try:
            answer, items = self._ask(chunk.text, again)
        except DataKeyError:
            raise
        # Workflows run code of other packages.
        except Exception as error:
            raise_if_request_ended(error, self._context)
            self._note_failure(chunk, public_text(error), _blames_text(error))
            return None
        if items or (items is not None and not built_in):
            return items
        if items is None:
            log_prompt_content(logger, "Answer without memories", answer)
        return self._without_memories(chunk, answer, items, MOST_EMPTY_ANSWERS if built_in else MOST_FAILURES)

    def _without_memories(self, chunk: Chunk, answer: str, items: list[Item] | None, most: int) -> list[Item] | None:
        if items is None:
            kind = "as JSON" if self._settings.vector_format == JSON_FORMAT else "in its lines"
            self._note_failure(chunk, f"an answer of {len(answer)} characters holds no memories {kind}", True, most)
            return None
        if self._memories.count_failure(self._failing(chunk)) >= most:
            return items
        logger.info(
            "Discussion %s: the model found nothing to remember in %s; it is asked once more, in another form",
            self._state.discussion_id,
            _short(chunk.hash),
        )
        return None

    def _ask(self, text: str, again: bool) -> tuple[str, list[Item] | None]:
        """Return the answer for the text of a chunk, and the memories in it; ``again``: in the other form."""
        settings = self._settings
        if settings.vector_workflow:
            with guarded_calls(settings.reads_streams, settings.vector_format == LINES_FORMAT):
                answer = text_of_helper(self._context, settings.vector_workflow, (text,))
            if settings.vector_format == JSON_FORMAT:
                return answer, parse_memories(answer)
            prompts = helper_prompts(self._context, settings.vector_workflow)
            return answer, read_memories(answer, Reading(restore_braces(text), shown=prompts))
        lines = (settings.vector_format == LINES_FORMAT) != again
        form, built_in = LINES if lines else JSON, settings.has_built_in_vector_prompts
        examples: object = (form.example,) if again else settings.vector_examples
        if examples is None:
            examples = form.examples if built_in else ()
        system, prompt = settings.vector_system_prompt or form.system_prompt, settings.vector_prompt or form.prompt
        call = self._call(examples, lines)
        answer = call.ask(system, prompt, {TEXT_CHUNK: text})
        if not (lines or built_in):
            return answer, parse_memories(answer)
        shown = [system, prompt, *prompt_templates({EXAMPLES: examples})]
        return answer, read_memories(
            answer,
            Reading(restore_braces(text), built_in, self._names, [*map(restore_braces, shown)], call.was_cut_off),
        )

    def _call(self, examples: object, lines: bool) -> MemoryCall:
        settings = self._settings
        return MemoryCall(
            self._context,
            settings.raw,
            settings.vector_endpoint,
            settings.vector_preset,
            settings.vector_max_response_tokens,
            {EXAMPLES: examples} if examples else {},
            lines,
        )

    def _store(self, items: Sequence[Item], chunk: Chunk) -> None:
        # The memories and the hash come first, together: the steps after that may fail.
        texts = [(item["summary"], json.dumps({**item, **chunk.said}, ensure_ascii=False)) for item in items]
        rows = self._memories.store_chunk(
            texts, chunk.hash, self._settings.index_topics, place=chunk.place, origin=self._origin(chunk)
        )
        self._settle()
        self._memories.end_failures(self._failing(chunk))
        self.stored += len(rows)
        self._done += 1
        if not items:
            self._empty += 1
            self._note_nothing(chunk, "the model answered []")
        if rows:
            self._embed(rows)
            update_state_document(self._context, self._settings, self._state, [text for text, _ in texts])

    def _embed(self, rows: Sequence[int]) -> None:
        settings = self._settings
        # After one failure no more are tried: each may take minutes, and later calls catch up.
        if not settings.embedding_endpoint or not self._embedding_works:
            return
        self._embedding_works = False
        try:
            done = embed_new_rows(
                self._memories, rows, settings.embedding_endpoint, settings.backfill, self._context.request.cancel_scope
            )
            self._embedding_works = done >= len(rows)
        # A memory without a vector is still found by its words.
        except Exception as error:
            raise_if_request_ended(error, self._context)
            logger.error(
                "Discussion %s: new memories got no vectors: %s", self._state.discussion_id, public_text(error)
            )

    def _note_failure(self, chunk: Chunk, cause: str, counts: bool, most: int = MOST_FAILURES) -> None:
        count = self._memories.count_failure(self._failing(chunk)) if counts else 0
        if count < most:
            logger.warning(
                "Discussion %s: no memories were made of %s; it is tried again: %s",
                self._state.discussion_id,
                _short(chunk.hash),
                cause,
            )
            return
        self._memories.log_hash(chunk.hash, chunk.place, self._origin(chunk))
        self._settle()
        self._memories.end_failures(self._failing(chunk))
        self._note_nothing(chunk, cause)
        logger.error(
            "Discussion %s: %s failed %d times and is left without memories: %s",
            self._state.discussion_id,
            _short(chunk.hash),
            count,
            cause,
        )

    def _note_nothing(self, chunk: Chunk, why: str) -> None:
        if chunk.messages >= NOTED_MESSAGES:
            found = "; they are still found by Recall" if self._settings.remember_messages else ""
            logger.info(
                "Discussion %s: nothing was written down of %d messages (%s)%s",
                self._state.discussion_id,
                chunk.messages,
                why,
                found,
            )

    def _origin(self, chunk: Chunk) -> Origin | None:
        return None if self._found is None else self._found.origin(chunk.span)

    def _settle(self) -> None:
        if self._found is not None:
            self._found.refresh()
            self._found.settle()

    def _failing(self, chunk: Chunk) -> str:
        """Return the name under which failures of a chunk are counted.

        It may end elsewhere next time, when there are more messages, but it begins at the same position.
        """
        return chunk.hash if chunk.before is None else f"after {chunk.before}"


def _short(message_hash: str) -> str:
    return f"chunk {message_hash[:8]}"


def _blames_text(error: Exception) -> bool:
    # The chunk is not the cause of an unreachable server, a held lock, or wrong settings.
    if isinstance(error, FailoverError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, BackendStatusError):
        return error.status not in PASSING_STATUSES
    return not isinstance(
        error,
        (BackendConnectionError, GateTimeoutError, ConfigurationError, StoredDataError, EarlyTerminationException),
    )
