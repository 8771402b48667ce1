"""Taking turns with the stored memories of a conversation."""
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

LONGEST_WAIT_BEFORE_ANSWER = 30.0  # seconds


@dataclass
class _Turn:
    """``told``: the log knows that somebody inside the turn asked for another one."""

    told: bool = False


_held: ContextVar[Mapping[str, _Turn]] = ContextVar("wilmer_memory_turns", default=MappingProxyType({}))


def turn_timeout(settings: MemorySettings, context: ExecutionContext) -> float | None:
    """How long to wait for a turn, in seconds; None: for ever.

    Unless the file says how long, with a value that can be used, nobody waits long for an answer because of another
    request's memories: they are made next time.
    """
    if context.request.answer_complete or settings.lock_seconds is not None:
        return settings.lock_timeout
    return LONGEST_WAIT_BEFORE_ANSWER


@contextlib.contextmanager
def memory_turn(context: ExecutionContext, folder: DiscussionFolder, timeout: float | None) -> Iterator[bool]:
    """The turn of one thread of one process; says whether it came within ``timeout`` seconds, with a warning if not.

    A workflow that runs inside a turn, because it writes the memories, never gets one itself: it would wait for its
    own end. The log hears of that once in a turn. Raises OSError, and EarlyTerminationException if the request is
    cancelled meanwhile.
    """
    place = folder.folder
    if (outer := _held.get().get(place)) is not None:
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
        token = _held.set({**_held.get(), place: _Turn()})
        try:
            yield True
        finally:
            _held.reset(token)


def _refuse(outer: _Turn, folder: DiscussionFolder) -> None:
    if not outer.told:
        outer.told = True
        logger.warning("Discussion %s: a workflow that takes part in making memories asks for more of them; "
                       "that is left out", folder.discussion_id)


def readable(store: MemoryStore) -> bool:
    """Whether what an LLM is about to be asked for could be stored; if not, the log says why, once in a request.

    Raises DataKeyError.
    """
    def look() -> bool:
        store.require_readable()
        return True
    return if_readable(look, False)


@contextlib.contextmanager
def storage_errors_logged(folder: DiscussionFolder) -> Iterator[None]:
    """The chat goes on when files cannot be read or written: what was written stays, the rest is done next time.

    DataKeyError passes: with a wrong API key nothing of the discussion may be used.
    """
    try:
        yield
    except UnreadableDataError as error:
        logger.error("Discussion %s: no memories are written: %s", folder.discussion_id, error)
    except OSError as error:
        logger.error("Discussion %s: memories cannot be stored: %s", folder.discussion_id, error.strerror or error)
