"""Calls for memories and summaries: their answers are read as streams, to stop a model that repeats itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple, Protocol

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


class Guard(NamedTuple):
    """How the complete answers of calls are guarded.

    Attributes:
        streams: they are read as streams, so that the server can be stopped; else they are cut when they are there.
        lines: as of ``RepetitionGuard``.
    """

    streams: bool
    lines: bool = False


_guarded: ContextVar[Guard | None] = ContextVar("wilmer_guarded_calls", default=None)


class _Handler(Protocol):
    outcome: LlmOutcome

    def handle_streaming(self, prompt: Prompt) -> Iterator[Chunk]: ...

    def handle_non_streaming(self, prompt: Prompt) -> Answer: ...


@contextlib.contextmanager
def guarded_calls(streams: bool, lines: bool = False) -> Iterator[None]:
    """Guard the complete answers of all calls inside, those of workflows too; the arguments are those of ``Guard``."""
    token = _guarded.set(Guard(streams, lines))
    try:
        yield
    finally:
        _guarded.reset(token)


def guard_of_calls() -> Guard | None:
    """Return the guard around this call; None without one."""
    return _guarded.get()


def guarded_answer(
    handler: _Handler, prompt: Prompt, how: Guard, scope: CancelScope | None, endpoint_name: str
) -> Answer:
    """Return the complete answer up to where it repeats itself, where the call is stopped; "" for a cancelled call.

    A server that answers with a whole JSON object is not stopped, but its answer is cut in the same way.
    """
    guard = RepetitionGuard(how.lines)
    if not how.streams:
        answer = handler.handle_non_streaming(prompt)
        # An answer with tool calls is not a text to keep.
        if not isinstance(answer, str):
            return answer
        guard.add(answer)
        return _ended(guard, handler.outcome, endpoint_name)
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
    outcome = handler.outcome
    outcome.reasoning = outcome.reasoning or "".join(reasoning)
    text = _ended(guard, outcome, endpoint_name)
    if not calls:
        return text
    return {"content": text, "tool_calls": assembled(calls), "finish_reason": outcome.finish_reason or "tool_calls"}


def _ended(guard: RepetitionGuard, outcome: LlmOutcome, endpoint_name: str) -> str:
    text = guard.end()
    if guard.found:
        outcome.finish_reason = REPETITION
        _warn(endpoint_name, guard.found)
    return text


def _warn(endpoint_name: str, found: str) -> None:
    warning = f"Endpoint '{endpoint_name}': the model repeats {found}; its answer was ended, what stands before is used"
    if first_logged(warning):
        logger.warning("%s", warning)
