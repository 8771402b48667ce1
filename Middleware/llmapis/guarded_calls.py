"""Calls for memories and summaries: their answers are read as streams, to stop a model that repeats itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import LlmOutcome
from Middleware.models.messages import Answer, Chunk, ToolCall
from Middleware.models.request_context import first_logged
from Middleware.utilities.answers.repetition import RepetitionGuard
from Middleware.utilities.answers.tool_calls import assembled

logger = logging.getLogger(__name__)

REPETITION = "repetition"
"""The finish reason of an answer that was ended because it repeated itself."""

# Whether a line of the answers is one sentence; None: calls are not guarded.
_guarded: ContextVar[bool | None] = ContextVar("wilmer_guarded_calls", default=None)


class _Streams(Protocol):
    outcome: LlmOutcome

    def handle_streaming(self, prompt: Prompt) -> Iterator[Chunk]: ...


@contextlib.contextmanager
def guarded_calls(lines: bool = False) -> Iterator[None]:
    """Guard the complete answers of all calls inside, those of workflows too; see ``RepetitionGuard`` for ``lines``."""
    token = _guarded.set(lines)
    try:
        yield
    finally:
        _guarded.reset(token)


def guard_of_calls() -> bool | None:
    """Return ``lines`` of the guard around this call; None without one."""
    return _guarded.get()


def guarded_answer(
    handler: _Streams, prompt: Prompt, lines: bool, scope: CancelScope | None, endpoint_name: str
) -> Answer:
    """Return the complete answer up to where it repeats itself, where the call is stopped; "" for a cancelled call.

    A server that answers with a whole JSON object is not stopped, but its answer is cut in the same way.
    """
    guard = RepetitionGuard(lines)
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    stream = handler.handle_streaming(prompt)
    try:
        for chunk in stream:
            calls += chunk.get("tool_calls") or ()
            reasoning.append(chunk.get("reasoning") or "")
            if chunk["token"] and guard.add(chunk["token"]):
                # Before the stream is closed, which is then no stop by a client.
                handler.outcome.finish_reason = REPETITION
                break
    finally:
        if (close := getattr(stream, "close", None)) is not None:
            close()
    if scope is not None and scope.cancelled:
        return ""
    text, outcome = guard.end(), handler.outcome
    outcome.reasoning = outcome.reasoning or "".join(reasoning)
    if guard.found:
        outcome.finish_reason = REPETITION
        _warn(endpoint_name, guard.found)
    if not calls:
        return text
    return {"content": text, "tool_calls": assembled(calls), "finish_reason": outcome.finish_reason or "tool_calls"}


def _warn(endpoint_name: str, found: str) -> None:
    warning = f"Endpoint '{endpoint_name}': the model repeats {found}; its answer was ended, what stands before is used"
    if first_logged(warning):
        logger.warning("%s", warning)
