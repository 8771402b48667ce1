"""What the memory passes share: chunks of new messages, the stored memories in prompts, the LLM calls, and the lock."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType

from Middleware.exceptions import ConfigValueError, UnreadableDataError, WilmerError
from Middleware.llmapis.backend_errors import log_text, public_text
from Middleware.llmapis.guarded_calls import guarded_calls
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message
from Middleware.services.llm_calls.direct_calls import (
    answer_text,
    call_with_texts,
    finish_reason_of,
    raise_if_cancelled,
    text_to_keep,
)
from Middleware.services.llm_calls.prompt_parts import PART_KEYS
from Middleware.services.llm_service import LlmHandlerService
from Middleware.services.memory.memory_settings import MemorySettings, reads_streams
from Middleware.services.memory.memory_store import MEMORIES_FILE, SUMMARY_FILE, MemoryStore
from Middleware.services.memory_service import NO_SUMMARY, RECENT_MEMORIES
from Middleware.utilities.answers.cut_off_thoughts import is_cut_off_thought
from Middleware.utilities.discussion_state import MEMORIES, DiscussionState
from Middleware.utilities.discussions.discussion_files import if_readable, logged_as_conflict
from Middleware.utilities.discussions.message_places import MessagePlace, find_place, place_of
from Middleware.utilities.hashing_utils import hash_messages, recognition_keys
from Middleware.utilities.prompt_extraction_utils import ROLE_TAGS
from Middleware.utilities.sensitive_logging_utils import is_encryption_active
from Middleware.utilities.text_utils import (
    ROLE_LABELS,
    chunk_messages_by_token_size,
    counted,
    message_text,
    messages_to_text_block,
    restore_braces,
    rough_estimate_token_length,
)
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import (
    CHAT_SUMMARY,
    FULL_MEMORY_FILE,
    MEMORY_FILE,
    BlockPrompts,
    fill_markers,
    without_later_systems,
)
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.dynamic_module_loader import reports_failure
from Middleware.workflows.tools.memory.dated_chunks import Dates

logger = logging.getLogger(__name__)

MEMORY_SEPARATOR = "\n--------------\n"
NO_MEMORIES = "No preceding memories to show"
# Seconds: longer than most LLM calls of a memory, and shorter than clients wait for an answer.
LONGEST_WAIT_BEFORE_ANSWER = 30.0


# -- new messages ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """Messages that become one memory.

    Attributes:
        text: their contents in escaped form.
        hash: the hash of the last of them.
        place: the position of the last one in the conversation; None if it is not known.
        messages: how many there are; 0 if that is not known.
        start: the index of the first of them in the conversation.
        before: the hash of the message before them; "" for the beginning of the conversation, None if it is not known.
        said: when the newest and the oldest was sent, as a memory keeps it; empty if that is not known, or not wanted.
    """

    text: str
    hash: str
    place: MessagePlace | None = None
    messages: int = 0
    said: Mapping[str, str] = field(default_factory=dict)
    start: int = 0
    before: str | None = None

    @property
    def span(self) -> range:
        return range(self.start, self.start + self.messages)


class KnownMessages:
    """The messages of a conversation, in which the last messages of memories are found again.

    Args:
        hashes: of the messages, oldest first, as stored data has them.
        keys: their recognition keys; the hashes if they are not given.
    """

    def __init__(self, hashes: Sequence[str], keys: Sequence[str] | None = None) -> None:
        self.hashes = hashes
        self.keys = hashes if keys is None else keys
        self._by_hash = _indexes(hashes)
        self._by_key = self._by_hash if self.keys == hashes else _indexes(self.keys)

    @classmethod
    def of(cls, messages: Sequence[Message]) -> KnownMessages:
        """Return the messages of a request with their hashes and recognition keys."""
        return cls(hash_messages(messages), recognition_keys(messages))

    def reached(self, stored: str, place: MessagePlace | None, before: int) -> int | None:
        """Return the index of the message that a memory ends with; None if it is no longer there.

        Args:
            stored: its hash.
            place: its position, if that was stored. Otherwise the last such message with an index below ``before``
                counts; else the last of all.
        """
        if place is not None and place.key:
            found: Sequence[int] = sorted({*self._by_key.get(place.key, ()), *self._by_hash.get(stored, ())})
            return find_place(found, self.keys, place) if found else None
        found, among = self._by_hash.get(stored, ()), self.hashes
        if not found:
            # The text was stored without the speaker's name that it has now.
            found, among = self._by_key.get(stored, ()), self.keys
        if not found:
            return None
        if place is not None:
            return find_place(found, among, place)
        return next((index for index in reversed(found) if index < before), found[-1])


def _indexes(hashes: Sequence[str]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for index, found in enumerate(hashes):
        where.setdefault(found, []).append(index)
    return where


def first_new(messages: KnownMessages, stored: Sequence[str], end: int, places: Mapping[str, MessagePlace]) -> int:
    """Return the index of the first message that no memory covers; ``end`` without one among the first ``end``.

    The newest memory whose message is still in the conversation decides. Of several equal messages, the one at the
    memory's position counts; if the position was not recorded, the last one up to the index ``end``. If the message
    comes after that (newer messages were deleted), everything is covered.

    Args:
        stored: the hashes of the memories, oldest first.
        places: hash of a memory -> the position of its message.
    """
    for known in dict.fromkeys(reversed(stored)):
        index = messages.reached(known, places.get(known), end + 1)
        if index is not None:
            return min(index + 1, end)
    return 0


def chunks_of(
    messages: Sequence[Message],
    known: KnownMessages,
    start: int,
    end: int,
    size: int,
    shown: Callable[[Message], str] = message_text,
    dates: Dates | None = None,
) -> list[Chunk]:
    """Return the messages from ``start`` up to ``end`` in chunks of at most ``size`` estimated tokens.

    Args:
        shown: the text of each as it stands in a chunk.
        dates: adds the dates of the messages.
    """
    chunks: list[Chunk] = []
    last = start - 1
    for group in chunk_messages_by_token_size(messages[start:end], size):
        first, last = last + 1, last + len(group)
        place = place_of(known.keys, last, len(message_text(group[-1])))
        text = dates.text(first, last + 1, shown) if dates is not None else "\n".join(map(shown, group))
        said = dates.span(first, last + 1) if dates is not None else {}
        before = known.hashes[first - 1] if first else ""
        chunks.append(Chunk(text, known.hashes[last], place, len(group), said, first, before))
    return chunks


def with_role(message: Message) -> str:
    """Return the text of a message behind its role."""
    text = message_text(message)
    # The user's key chatCompleteAddUserAssistant has already put one there.
    return text if text.startswith(ROLE_LABELS) else ROLE_TAGS.get(str(message.get("role")), "") + text


def with_speaker(message: Message, speakers: Collection[str]) -> str:
    """Return the text of a message behind its speaker, or behind its role if it has none.

    ``speakers``: the names that stand before the texts of the conversation.
    """
    text, name = message_text(message), message.get("name")
    if text.startswith(ROLE_LABELS) or text.partition(":")[0].strip() in speakers:
        return text
    # The name of a tool is not that of a speaker.
    return f"{name}: {text}" if name and message.get("role") in ("user", "assistant") else with_role(message)


def are_enough(messages: Sequence[Message], tokens: int, count: int | None) -> bool:
    """Return whether messages are worth memories: estimated at ``tokens``, or ``count`` of them (None: any number)."""
    if not messages:
        return False
    return (count is not None and len(messages) >= count) or tokens <= rough_estimate_token_length(
        restore_braces(messages_to_text_block(messages))
    )


# -- stored memories and LLM calls -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiscussionMemory:
    """The stored memories of a discussion, oldest first, and its summary."""

    memories: tuple[str, ...] = ()
    summary: str = NO_SUMMARY

    def followed_by(self, memory: str) -> DiscussionMemory:
        # A blank answer is not a memory, so the next block must not be shown one.
        return dataclasses.replace(self, memories=(*self.memories, memory)) if memory.strip() else self

    @property
    def recent(self) -> str:
        return joined_memories(self.memories[-RECENT_MEMORIES:])

    @property
    def full(self) -> str:
        return joined_memories(self.memories)

    @property
    def markers(self) -> dict[str, str]:
        return {
            MEMORY_FILE: self.recent.strip(),
            FULL_MEMORY_FILE: self.full.strip(),
            CHAT_SUMMARY: self.summary.strip(),
        }


def stored_memory(store: MemoryStore) -> DiscussionMemory:
    """Return what a discussion holds. Raises DataKeyError and OSError."""
    with store.state.together(MEMORIES_FILE, SUMMARY_FILE):
        summary = store.summary()
        return DiscussionMemory(tuple(text for text, _ in store.memories()), summary[0] if summary else NO_SUMMARY)


def memory_count(memories: int) -> str:
    return counted(memories, "memory", "memories")


def joined_memories(memories: Sequence[str]) -> str:
    return MEMORY_SEPARATOR.join(memories) or NO_MEMORIES


class MemoryCall:
    """Calls of one endpoint, named literally in the settings.

    Args:
        settings: the settings file; its keys apply as those of a node would, such as how variables see the
        conversation.
        max_tokens: the longest answer.
        parts: keys of a node that add late texts and example turns.
        lines: each line of the answer is one sentence.
        streams: its answers are read as streams; None: as ``reads_streams`` says.

    Attributes:
        was_cut_off: the last answer ended at the limit of its length.
    """

    was_cut_off = False

    def __init__(
        self,
        context: ExecutionContext,
        settings: Mapping[str, object],
        endpoint: str,
        preset: str,
        max_tokens: int,
        parts: Mapping[str, object] = MappingProxyType({}),
        lines: bool = False,
        streams: bool | None = None,
    ) -> None:
        messages = without_later_systems(raw_messages(context))
        # A settings file has several prompts, and the parts of one would be added to all of them.
        self._settings = {**{key: value for key, value in settings.items() if key not in PART_KEYS}, **parts}
        self._context = dataclasses.replace(context, config=dict(self._settings), messages=messages)
        self._endpoint, self._preset, self._max_tokens = endpoint, preset, max_tokens
        self._lines = lines
        self._streams = reads_streams(settings) if streams is None else streams

    def _load(self) -> LlmHandler:
        # Again for each call: between two calls of a pass, another endpoint may begin to stand in.
        if not self._endpoint:
            raise ConfigValueError("the settings name no endpoint that could answer", json_path="endpointName")
        return LlmHandlerService().load_model_from_config(
            self._endpoint, self._preset or None, max_tokens=self._max_tokens, scope=self._context.request.cancel_scope
        )

    def ask(self, system_prompt: str, prompt: str, markers: Mapping[str, str]) -> str:
        """Return the cleaned answer to two templates: their variables are filled in first, then the markers.

        The answer is "" if the model's reasoning was cut off.
        Raises BackendError, ConfigurationError, and EarlyTerminationException if the request is cancelled.
        """
        prompts = BlockPrompts(system_prompt, prompt, self._settings, self._context)
        return self._kept(lambda handler: prompts.send(handler, markers))

    def ask_as_written(self, system_prompt: str, prompt: str, markers: Mapping[str, str]) -> str:
        """Return what ``ask`` returns, for texts without variables; the markers are those of ``prompt`` alone."""
        request_id = self._context.request_id
        return self._kept(
            lambda handler: answer_text(
                call_with_texts(handler, system_prompt, fill_markers(prompt, markers), request_id),
                handler,
                self._settings,
            )
        )

    def _kept(self, send: Callable[[LlmHandler], str]) -> str:
        raise_if_cancelled(self._context.request.cancel_scope)
        with guarded_calls(self._streams, self._lines):
            handler = self._load()
            answer = send(handler)
        self.was_cut_off = finish_reason_of(handler) == "length"
        raise_if_cancelled(self._context.request.cancel_scope)
        return text_to_keep(answer, handler)


def problem_with(text: str) -> str:
    """Return why the result of an LLM or a workflow cannot be stored; "" if it can."""
    if not text.strip():
        return "the answer was blank"
    if reports_failure(text):
        return "a script of the workflow failed"
    return "the answer is unfinished reasoning" if is_cut_off_thought(text) else ""


def failure_reason(error: Exception) -> str:
    """Return why a call failed, without any conversation text: only the kind of an error of another package.

    Unless the request is private, such an error is logged in full at DEBUG.
    """
    if isinstance(error, WilmerError):
        return log_text(error)
    if not is_encryption_active():
        logger.debug("A failure while memories were made", exc_info=error)
    return public_text(error)


# -- the lock ----------------------------------------------------------------------------------------------------------

# The folders whose lock the current context holds, each with whether the log names a workflow that asked for it again.
_held: ContextVar[Mapping[str, list[bool]]] = ContextVar("wilmer_memory_locks", default=MappingProxyType({}))


@contextlib.contextmanager
def memory_lock(context: ExecutionContext, state: DiscussionState, settings: MemorySettings | None) -> Iterator[bool]:
    """Hold the lock; yields whether it was free within the time of ``settings`` (None: at once), with a warning if not.

    A workflow that runs while the lock is held, because it writes the memories, never gets the lock itself: it would
    wait for its own end. One warning per lock is logged. Raises OSError, and EarlyTerminationException if the request
    is cancelled while it waits.
    """
    key = state.place
    if (reported := _held.get().get(key)) is not None:
        if not reported:
            reported.append(True)
            logger.warning(
                "Discussion %s: a workflow that takes part in making memories asks for more of them; that is left out",
                state.discussion_id,
            )
        yield False
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(state.lock(MEMORIES, context.request.cancel_scope, _lock_seconds(settings, context)))
        except TimeoutError:
            logger.warning(
                "Discussion %s: another request is working on the memories; this one skips them", state.discussion_id
            )
            yield False
            return
        token = _held.set({**_held.get(), key: []})
        try:
            yield True
        finally:
            _held.reset(token)


def _lock_seconds(settings: MemorySettings | None, context: ExecutionContext) -> float | None:
    if settings is None:
        return 0
    # An answer is not delayed for long by another request's memories: its own memories are made next time.
    if settings.lock_seconds is None and not context.request.answer_complete:
        return LONGEST_WAIT_BEFORE_ANSWER
    return settings.lock_timeout


def readable(store: MemoryStore) -> bool:
    """Return whether new memories could be stored; why not is logged once per request. Raises DataKeyError."""

    def look() -> bool:
        store.require_readable()
        return True

    return if_readable(look, False)


@contextlib.contextmanager
def storage_errors_logged(state: DiscussionState) -> Iterator[None]:
    """Log failures to read or write files, so that the chat goes on and the rest is done next time.

    DataKeyError is not caught: with a wrong API key nothing of the discussion may be used.
    """
    try:
        yield
    except UnreadableDataError as error:
        logger.error("Discussion %s: no memories are written: %s", state.discussion_id, error)
    except OSError as error:
        if not logged_as_conflict(error):
            logger.error("Discussion %s: memories cannot be stored: %s", state.discussion_id, error.strerror or error)
