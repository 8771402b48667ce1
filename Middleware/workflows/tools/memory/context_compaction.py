"""Keeps summaries of the parts of a conversation that no longer fit the context of a model.

The conversation is cut in three: Recent, the newest messages, stays unchanged; Old, the messages before, has a summary
that is rewritten whenever the section moves; Oldest, all before that, has one into which the messages that leave
Old are folded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from Middleware.exceptions import BackendError, ConfigurationError, UnreadableDataError
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.messages import Message
from Middleware.services.memory.compactor_settings import EXISTING, MESSAGES, NEW, RECENT, CompactorSettings
from Middleware.services.memory.compactor_store import Boundary, CompactorState, CompactorStore, FoldedMessages
from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.utilities.discussion_state import COMPACTOR, DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, logged_as_conflict
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.text_utils import estimate_message, message_text, newest_within, restore_braces
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages
from Middleware.workflows.tools.memory.shared import MemoryCall

logger = logging.getLogger(__name__)

OLD_TAG, OLDEST_TAG = "context_compactor_old", "context_compactor_oldest"
_TAGS = re.compile(rf"<(/?(?:{OLD_TAG}|{OLDEST_TAG}))>")
FEWEST_MESSAGES = 2


# -- sections ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sections:
    """Indexes of messages: Oldest is ``[0:old]``, Old ``[old:recent]``, Recent ``[recent:end]``."""

    old: int
    recent: int
    end: int


def cut_sections(messages: Sequence[Message], lookback: int, recent_budget: int, old_budget: int) -> Sections:
    """Cut a conversation; budgets are estimated tokens, ``lookback`` the newest messages to leave out.

    Old is never empty while there are messages before Recent: a message larger than its budget is a section of its own.
    """
    end = len(messages) - lookback if 0 < lookback < len(messages) else len(messages)
    recent = newest_within(messages[:end], recent_budget, estimate_message)
    old = newest_within(messages[:recent], old_budget, estimate_message)
    return Sections(max(0, recent - 1) if old == recent else old, recent, end)


def is_run_needed(messages: Sequence[Message], sections: Sections, state: CompactorState) -> bool:
    """Return whether the stored summary may be of other messages than these.

    Equal messages have equal hashes, so the index counts too. If only the index has changed, because a client has
    dropped older messages, the summary is written again, with the new index.
    """
    if sections.end < FEWEST_MESSAGES or sections.old >= sections.recent:
        return False
    if state.old is None or state.boundary is None:
        return True
    return (
        state.boundary.index not in (None, sections.old)
        or state.boundary.stored_hash != _hash(messages[sections.old])
        or state.old[1] != _hash(messages[sections.recent - 1])
    )


def folded_up_to(messages: Sequence[Message], boundary: Boundary | None) -> int:
    """Return how many messages before the boundary Oldest covers; 0 if the boundary is gone."""
    if boundary is None:
        return 0
    if boundary.index is not None and _is_unmoved(messages, boundary):
        return boundary.index
    return next((number for number, message in enumerate(messages) if _hash(message) == boundary.stored_hash), 0)


def covered_up_to(messages: Sequence[Message], state: CompactorState, folded: FoldedMessages | None, due: int) -> int:
    """Return how many messages Oldest covers; the boundary may have moved back behind them.

    If all messages have moved, because a client has dropped the first ones, the last two folded messages identify the
    position: the text of the boundary alone may occur elsewhere, even at its former position. A match after the
    messages that are ``due`` is rejected.
    """
    boundary = folded_up_to(messages, state.boundary)
    stands = _is_unmoved(messages, state.boundary)
    if folded is None or state.oldest is None or folded.summary_hash != hash_content(state.oldest[0]):
        return boundary if stands else min(boundary, due)
    if folded == folded_mark(messages, folded.index, state.oldest):
        return max(boundary, folded.index) if stands else folded.index
    moved = _ends_of(messages, folded)
    if len(moved) == 1:
        return moved[0]
    return boundary if stands or boundary <= due else 0


def _is_unmoved(messages: Sequence[Message], boundary: Boundary | None) -> bool:
    index = None if boundary is None else boundary.index
    return (
        boundary is not None
        and index is not None
        and index < len(messages)
        and _hash(messages[index]) == boundary.stored_hash
    )


def _ends_of(messages: Sequence[Message], folded: FoldedMessages) -> list[int]:
    """Return how many messages reach up to the last folded one, for each position where the last two occur."""
    hashes = [_hash(message) for message in messages]
    return [
        index + 2
        for index in range(len(hashes) - 1)
        if hashes[index : index + 2] == [folded.previous_hash, folded.stored_hash]
    ]


def folded_mark(messages: Sequence[Message], count: int, oldest: Pair | None) -> FoldedMessages | None:
    """Return the record that ``oldest`` covers the first ``count`` messages, or None."""
    if oldest is None or not 0 < count <= len(messages):
        return None
    previous = _hash(messages[count - 2]) if count > 1 else ""
    return FoldedMessages(count, _hash(messages[count - 1]), previous, hash_content(oldest[0]))


def _hash(message: Message) -> str:
    return hash_content(message_text(message))


# -- texts -------------------------------------------------------------------------------------------------------------


def message_lines(messages: Sequence[Message]) -> str:
    """Return the messages as a model reads them, each with its role."""
    return "\n".join(f"{message.get('role') or ''}: {restore_braces(message_text(message))}" for message in messages)


def tagged_summaries(old: str, oldest: str) -> str:
    """Return the summaries in tags; blank ones are left out.

    The same tags inside a summary get square brackets, so that a search for a section finds all of it.
    """
    sections = ((OLD_TAG, old), (OLDEST_TAG, oldest))
    return "\n".join(f"<{tag}>{_without_tags(text)}</{tag}>" for tag, text in sections if text.strip())


def _without_tags(text: str) -> str:
    return _TAGS.sub(r"[\1]", text)


def _shown(state: CompactorState) -> str:
    return tagged_summaries(state.old[0] if state.old else "", state.oldest[0] if state.oldest else "")


# -- a run -------------------------------------------------------------------------------------------------------------


class ContextCompaction:
    """One pass over a conversation: updates its summaries if necessary, and returns them.

    A missing summary costs little, so most failures are only logged and retried next time; the stored summaries are
    returned then.

    Args:
        messages: the conversation; None for that of the workflow.
    """

    def __init__(
        self,
        context: ExecutionContext,
        settings: CompactorSettings,
        state: DiscussionState,
        messages: Sequence[Message] | None = None,
    ) -> None:
        self._messages = raw_messages(context) if messages is None else messages
        self._settings, self._state = settings, state
        self._scope = context.request.cancel_scope
        self._store = CompactorStore(state)
        streams = settings.follow_edits or quiet_memory_settings().reads_streams
        self._call = MemoryCall(
            context, settings.raw, settings.endpoint, settings.preset, settings.max_response_tokens, streams=streams
        )
        self._sections = cut_sections(self._messages, settings.lookback, settings.recent_budget, settings.old_budget)

    def run(self) -> str:
        """Return the summaries in tags; "" without any.

        Raises EarlyTerminationException if the request is cancelled, DataKeyError for files of another API key, and
        GateTimeoutError.
        """
        state = self._store.read()
        if self._is_needed(state):
            with contextlib.ExitStack() as stack:
                if self._takes_lock(stack):
                    # Another request may have stored them while this one waited.
                    state = self._store.read()
                    if self._is_needed(state):
                        state = self._renewed(state)
        return _shown(state)

    def _is_needed(self, state: CompactorState) -> bool:
        return state.readable and is_run_needed(self._messages, self._sections, state)

    def _takes_lock(self, stack: contextlib.ExitStack) -> bool:
        try:
            stack.enter_context(self._state.lock(COMPACTOR, self._scope, timeout=0))
            return True
        except TimeoutError:
            logger.debug("Another request compacts discussion %s", self._state.discussion_id)
        except OSError as error:
            logger.error(
                "Discussion %s cannot be compacted: %s",
                self._state.discussion_id,
                error.strerror or type(error).__name__,
            )
        return False

    def _renewed(self, state: CompactorState) -> CompactorState:
        """Return the summaries of the present sections, saved if they cover every message."""
        old = self._tried(self._old_summary)
        if old is None:
            return state
        start, last = self._messages[self._sections.old], self._messages[self._sections.recent - 1]
        renewed = CompactorState((old, _hash(last)), Boundary(_hash(start), self._sections.old), state.oldest)
        covered = covered_up_to(self._messages, state, self._store.folded(), self._sections.old)
        shifted = self._messages[covered : self._sections.old]
        if not shifted:
            return self._saved(renewed, covered)
        oldest = self._tried(lambda: self._oldest_summary(state.oldest[0] if state.oldest else "", shifted))
        # The present text serves this request; the next one tries again.
        if not oldest:
            if oldest is not None:
                self._log_no_oldest()
            return renewed
        renewed = dataclasses.replace(renewed, oldest=(oldest, _hash(self._messages[0])))
        return self._saved(renewed, self._sections.old, new_oldest=True)

    def _log_no_oldest(self) -> None:
        logger.error(
            "Discussion %s: the model gave no summary of the oldest messages; nothing is saved",
            self._state.discussion_id,
        )

    def _tried(self, ask: Callable[[], str]) -> str | None:
        """Return the result of ``ask``; "", with an error in the log, if it fails."""
        try:
            return ask()
        except (BackendError, ConfigurationError) as error:
            logger.error(
                "%s: discussion %s was not compacted: %s",
                self._settings.file,
                self._state.discussion_id,
                log_text(error),
            )
            return None

    def _saved(self, state: CompactorState, covered: int, new_oldest: bool = False) -> CompactorState:
        """Return ``state`` with the number of messages that its Oldest covers."""
        old, boundary = state.old, state.boundary
        assert old is not None and boundary is not None
        mark = folded_mark(self._messages, covered, state.oldest)
        if self._is_written(lambda: self._store.save(old, boundary, state.oldest if new_oldest else None, mark)):
            logger.info(
                "Discussion %s: compacted up to message %d, of which %d are among the oldest",
                self._state.discussion_id,
                self._sections.recent,
                boundary.index,
            )
        return state

    def _is_written(self, write: Callable[[], object]) -> bool:
        """Return whether ``write`` has worked; a failure is only logged."""
        try:
            write()
            return True
        except UnreadableDataError as error:
            logger.error("%s", error)
        except OSError as error:
            if not logged_as_conflict(error):
                logger.error(
                    "The summaries of discussion %s were not saved: %s",
                    self._state.discussion_id,
                    error.strerror or type(error).__name__,
                )
        return False

    # -- LLM calls -------------------------------------------------------------------------------------------------
    def _old_summary(self) -> str:
        sections, messages = self._sections, self._messages
        return self._summary_of(messages[sections.old : sections.recent], messages[sections.recent : sections.end])

    def _summary_of(self, old: Sequence[Message], recent: Sequence[Message]) -> str:
        settings, lines = self._settings, message_lines(old)
        markers = {MESSAGES: lines, RECENT: message_lines(recent)}
        return self._ask(settings.old_system_prompt, settings.old_prompt, markers) or lines

    def _oldest_summary(self, existing: str, shifted: Sequence[Message]) -> str:
        return self._folded(existing, self._record_of(shifted))

    def _record_of(self, messages: Sequence[Message]) -> str:
        settings, lines = self._settings, message_lines(messages)
        return self._ask(settings.neutral_system_prompt, settings.neutral_prompt, {MESSAGES: lines}) or lines

    def _folded(self, existing: str, new: str) -> str:
        settings = self._settings
        return self._ask(settings.oldest_system_prompt, settings.oldest_prompt, {EXISTING: existing, NEW: new})

    def _ask(self, system_prompt: str, prompt: str, markers: Mapping[str, str]) -> str:
        answer = self._call.ask_as_written(system_prompt, prompt, markers)
        return answer if answer.strip() else ""
