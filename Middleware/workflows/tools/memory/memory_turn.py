"""The lock on the stored memories of a conversation, and the handling of errors while it is held."""
from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

from Middleware.exceptions import UnreadableDataError
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.conversations.discussion_files import if_readable
from Middleware.utilities.conversations.discussion_folder import MEMORIES, DiscussionFolder
from Middleware.workflows.models.execution_context import ExecutionContext

logger = logging.getLogger(__name__)

# Seconds: longer than most LLM calls of a memory, and shorter than clients wait for an answer.
LONGEST_WAIT_BEFORE_ANSWER = 30.0


@dataclass
class _Turn:
    """A held lock. ``reported``: the log holds a warning that a workflow inside asked for the lock again."""

    reported: bool = False


_held: ContextVar[Mapping[str, _Turn]] = ContextVar("wilmer_memory_turns", default=MappingProxyType({}))


def turn_timeout(settings: MemorySettings, context: ExecutionContext) -> float | None:
    """Return how many seconds to wait for the lock; None: without a limit.

    Unless the settings file sets a usable time, an answer is not delayed for long by another request's memories: its
    own memories are made next time.
    """
    if context.request.answer_complete or settings.lock_seconds is not None:
        return settings.lock_timeout
    return LONGEST_WAIT_BEFORE_ANSWER


@contextlib.contextmanager
def memory_turn(context: ExecutionContext, folder: DiscussionFolder, timeout: float | None) -> Iterator[bool]:
    """Hold the lock; yields whether it was free within ``timeout`` seconds, with a warning if not.

    A workflow that runs while the lock is held, because it writes the memories, never gets the lock itself: it would
    wait for its own end. One warning per lock is logged. Raises OSError, and EarlyTerminationException if the request
    is cancelled while it waits.
    """
    key = folder.folder
    if (outer := _held.get().get(key)) is not None:
        _refuse(outer, folder)
        yield False
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder.lock(MEMORIES, context.request.cancel_scope, timeout))
        except TimeoutError:
            logger.warning("Discussion %s: another request is working on the memories; this one skips them",
                           folder.discussion_id)
            yield False
            return
        token = _held.set({**_held.get(), key: _Turn()})
        try:
            yield True
        finally:
            _held.reset(token)


def _refuse(outer: _Turn, folder: DiscussionFolder) -> None:
    if not outer.reported:
        outer.reported = True
        logger.warning("Discussion %s: a workflow that takes part in making memories asks for more of them; "
                       "that is left out", folder.discussion_id)


def readable(store: MemoryStore) -> bool:
    """Return whether new memories could be stored; if not, the reason is logged once per request.

    Raises DataKeyError.
    """
    def look() -> bool:
        store.require_readable()
        return True
    return if_readable(look, False)


@contextlib.contextmanager
def storage_errors_logged(folder: DiscussionFolder) -> Iterator[None]:
    """Log failures to read or write files, so that the chat goes on and the rest is done next time.

    DataKeyError is not caught: with a wrong API key nothing of the discussion may be used.
    """
    try:
        yield
    except UnreadableDataError as error:
        logger.error("Discussion %s: no memories are written: %s", folder.discussion_id, error)
    except OSError as error:
        logger.error("Discussion %s: memories cannot be stored: %s", folder.discussion_id, error.strerror or error)
