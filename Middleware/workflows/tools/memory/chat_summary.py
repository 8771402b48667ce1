"""Keeps the rolling summary of a conversation up to date with its memories."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Unpack

from Middleware.exceptions import ConfigValueError, UnreadableDataError
from Middleware.llmapis.guarded_calls import guarded_calls
from Middleware.services.llm_calls.direct_calls import answer_text, raise_if_cancelled, text_to_keep, without_streaming
from Middleware.services.llm_calls.prompt_parts import example_answers, prompt_templates
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.services.memory.memory_settings import (
    CURRENT_SUMMARY,
    LATEST_MEMORIES,
    quiet_memory_settings,
)
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import NO_SUMMARY, SUMMARY_SEPARATOR, new_and_covered, unsummarized
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import Pair, logged_as_conflict
from Middleware.utilities.text_utils import newest_within, rough_estimate_token_length
from Middleware.workflows.models.execution_context import ExecutionContext, Filling, VariableService
from Middleware.workflows.tools.block_prompts import fill_markers
from Middleware.workflows.tools.memory.memory_texts import clean_memory
from Middleware.workflows.tools.memory.shared import memory_count, memory_lock, readable

logger = logging.getLogger(__name__)


class ChatSummarizer:
    """Folds new memories into the summary, in batches.

    They are appended, or the LLM of the node in ``context`` writes a new summary.

    Args:
        least: the number of new memories from which a call is worthwhile.
        most: the size of a batch; more memories take several calls.
        room: a summary of up to this many tokens is made without the LLM: the memories are appended as they are. Of
            a longer one, the LLM writes the older two thirds again.
    """

    def __init__(
        self, context: ExecutionContext, state: DiscussionState, least: int = 3, most: int = 3, room: int = 0
    ) -> None:
        if context.clock is None:
            # All calls of the node state the same time.
            context.clock = datetime.now()
        self._context, self._state = context, state
        self._store = MemoryStore(state)
        self._least, self._most, self._room = least, max(1, most), room
        self._folded = self._covered = 0

    def update(self) -> str:
        """Update the summary and return it. Raises ConfigurationError, BackendError, DataKeyError, and
        EarlyTerminationException if the request is cancelled; batches folded in before that stay.
        """
        with self._store.together():
            if not self._is_due(unsummarized(self._store)):
                return self._current()
        with contextlib.ExitStack() as stack:
            if not take_lock(stack, self._context, self._state):
                return self._current()
            with self._store.together():
                if not readable(self._store):
                    return self._current()
                self._store.settle_summary()
                new, self._covered = new_and_covered(self._store)
            began, self._folded = time.monotonic(), 0
            try:
                return self._update(new)
            finally:
                if self._folded:
                    logger.info(
                        "Discussion %s: summary brought up to date with %s in %.1f s",
                        self._state.discussion_id,
                        memory_count(self._folded),
                        time.monotonic() - began,
                    )

    def _is_due(self, new: Sequence[Pair]) -> bool:
        """Return whether memories that are not in the summary are enough for a call."""
        return bool(new) and (len(new) >= self._least or len(new) > self._most or not self._has_markers())

    def _update(self, new: list[Pair]) -> str:
        if not new:
            return self._current()
        if not self._has_markers():
            return self._fold(new, {}) or self._current()
        while len(new) > self._most:
            if not self._fold_memories(new[: self._most]):
                return self._current()
            new = new[self._most :]
        if len(new) < self._least:
            return self._current()
        return self._fold_memories(new) or self._current()

    def _fold_memories(self, batch: Sequence[Pair]) -> str:
        # Asked before, on another branch, or before an edit that was taken back.
        if known := self._store.known_summary(batch):
            return self._save(batch, known)
        if self._room > 0:
            lines = self._appended(batch)
            summary = "\n".join(lines)
            if summary and rough_estimate_token_length(summary) <= self._room:
                return self._save(batch, summary)
            end = newest_within(lines, self._room // 3, rough_estimate_token_length)
            if end > 1:
                middle = end // 2
                return self._fold(
                    batch,
                    {CURRENT_SUMMARY: "\n".join(lines[:middle]), LATEST_MEMORIES: "\n".join(lines[middle:end])},
                    lines[end:],
                )
        memories = SUMMARY_SEPARATOR.join(text for text, _ in batch)
        folded = self._store.folded_summary()
        current = folded[0] if folded is not None else NO_SUMMARY
        return self._fold(batch, {CURRENT_SUMMARY: current, LATEST_MEMORIES: memories})

    def _appended(self, batch: Sequence[Pair]) -> list[str]:
        """Return the lines of the summary and of the memories, without sentences that the summary has already."""
        summary = self._store.folded_summary()
        old = [summary[0]] if summary is not None else []
        new = clean_memory("\n".join(text for text, _ in batch), (), old)
        return [line for text in (*old, new) for line in text.splitlines() if line.strip()]

    def _fold(self, batch: Sequence[Pair], markers: Mapping[str, str], newer: Sequence[str] = ()) -> str:
        """Return the summary that the LLM writes, and behind it the lines ``newer``.

        Return "" if the LLM writes none, or it cannot be stored.
        """
        text = self._ask(markers)
        if not text.strip():
            logger.error("Discussion %s: the LLM wrote no summary; the present one stays", self._state.discussion_id)
            return ""
        return self._save(batch, "\n".join((text, *newer)))

    def _save(self, batch: Sequence[Pair], text: str) -> str:
        covered = self._covered + len(batch)
        if not save_summary(self._store, text, batch[-1][1], covered):
            return ""
        self._folded, self._covered = self._folded + len(batch), covered
        return text

    def _ask(self, markers: Mapping[str, str]) -> str:
        context = self._context
        raise_if_cancelled(context.request.cancel_scope)
        if context.llm_handler is None or context.llm_handler.llm is None:
            raise ConfigValueError(
                f"node '{context.node_name}' calls an LLM but names no endpoint",
                json_path="endpointName",
                expected="the name of a file in Endpoints",
            )
        with guarded_calls(quiet_memory_settings().reads_streams):
            handler = without_streaming(context.llm_handler, context.request.cancel_scope)
            node = dict(context.config)
            variables = context.workflow_variable_service
            assert variables is not None
            images, most = NODE.flag(node, "acceptImages"), NODE.value(node, "maxImagesToSend")
            result = LLMDispatchService.dispatch(
                dataclasses.replace(
                    context,
                    config=node,
                    llm_handler=handler,
                    stream=False,
                    workflow_variable_service=_WithMarkers(variables, markers),
                ),
                llm_takes_images=images,
                max_images=most if images and isinstance(most, int) else 0,
            )
        raise_if_cancelled(context.request.cancel_scope)
        if not isinstance(result, str):
            return ""
        text = text_to_keep(answer_text(result, handler, context.config), handler)
        return clean_memory(text, prompt_templates(context.config), shown=example_answers(context.config))

    def _has_markers(self) -> bool:
        texts = map(self._context.substitute, prompt_templates(self._context.config))
        return any(marker in text for text in texts for marker in (CURRENT_SUMMARY, LATEST_MEMORIES))

    def _current(self) -> str:
        summary = self._store.summary()
        return summary[0] if summary is not None else NO_SUMMARY


class _WithMarkers:
    # Variables first, markers last, so that inserted text is never filled in again.

    def __init__(self, variables: VariableService, markers: Mapping[str, str]) -> None:
        self._variables, self._markers = variables, markers

    def apply_variables(self, text: str, context: ExecutionContext, **how: Unpack[Filling]) -> str:
        return fill_markers(self._variables.apply_variables(text, context, **how), self._markers)

    def fill_early(self, text: str, context: ExecutionContext) -> str:
        return self._variables.fill_early(text, context)


def save_summary(
    store: MemoryStore, text: str, stored_hash: str, covered: int | None = None, pinned: bool = False
) -> bool:
    """Store the summary and return whether that worked; if not, the log explains why and nothing has changed.

    ``covered`` is the number of memories in it; None leaves the stored number alone. Raises DataKeyError for a file of
    another API key.
    """
    try:
        store.save_summary(text, stored_hash, covered, pinned=pinned)
    except (UnreadableDataError, OSError) as error:
        if not logged_as_conflict(error):
            logger.error("Discussion %s: its summary cannot be stored: %s", store.state.discussion_id, error)
        return False
    return True


def take_lock(stack: contextlib.ExitStack, context: ExecutionContext, state: DiscussionState) -> bool:
    """Hold the lock on the discussion's memories until ``stack`` ends; False, with a warning, if it is not free.

    Raises EarlyTerminationException if the request is cancelled while it waits.
    """
    try:
        return stack.enter_context(memory_lock(context, state, quiet_memory_settings()))
    except OSError as error:
        logger.warning("Discussion %s: its summary cannot be updated: %s", state.discussion_id, error.strerror or error)
        return False
