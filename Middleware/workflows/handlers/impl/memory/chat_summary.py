"""Nodes around the rolling summary of a conversation."""
from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import ClassVar

from Middleware.exceptions import ConfigValueError
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.memory_service import NO_SUMMARY, MemoryService, summary_lag
from Middleware.utilities.answers.cut_off_thoughts import is_cut_off_thought
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import PROMPT_KEYS
from Middleware.utilities.conversations.discussion_folder import DiscussionFolder
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.impl.memory.node_values import helper_result, keys_of
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import folder_of
from Middleware.workflows.tools.memory.chat_summary import ChatSummarizer, save_summary, take_turn
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool

logger = logging.getLogger(__name__)

NOT_FOUND = "No summary found"
SUMMARY_WORKFLOW = "chatSummaryToolWorkflow"


class FullChatSummaryHandler(BaseHandler):
    """The summary, brought up to date by the user's workflow if more than one memory is missing in it."""
    # The workflow that the user's file names may have nodes of any type.
    acts = "outside"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"FullChatSummary": (
        ConfigKey("isManualConfig", "bool", False, "Just the summary as it is."),)}

    def handle(self, context: ExecutionContext) -> object:
        folder = folder_of(context)
        if folder is None:
            return ""
        store = MemoryStore(folder)
        if self.value(context, "isManualConfig"):
            return _text(store)
        SlowButQualityRAGTool().handle_discussion_id_flow(context, force_file_memory=True)
        if _is_current(store):
            return _text(store)
        result = helper_result(context, SUMMARY_WORKFLOW)
        if result is not None:
            return result
        return MemoryService().get_current_summary(context.discussion_id, **keys_of(context))


class ChatSummarySummarizerHandler(BaseHandler):
    """Folds the memories that are not yet in the summary into it, with the node's LLM."""
    # It stores the summary, and cleans each of its LLM's answers.
    acts = "writes"
    cleans_itself = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"chatSummarySummarizer": (
        *PROMPT_KEYS,
        ConfigKey("minMemoriesPerSummary", "int", 3, "As many new memories make a call worth while.", "early"),
        ConfigKey("loopIfMemoriesExceed", "int", 3, "More new memories are folded in this many at a time.", "early"))}

    def handle(self, context: ExecutionContext) -> object:
        folder = folder_of(context)
        if folder is None:
            return NO_SUMMARY
        least, most = (self.number(context, name) for name in (
            "minMemoriesPerSummary", "loopIfMemoriesExceed"))
        return ChatSummarizer(context, folder, least, most).update()


class WriteCurrentSummaryHandler(BaseHandler):
    """Makes a text the summary of all memories so far."""
    acts = "writes"

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {"WriteCurrentSummaryToFileAndReturnIt": (
        ConfigKey("input", "str", None, "The text.", "full", required=True),)}

    def handle(self, context: ExecutionContext) -> object:
        if self.value(context, "input") is None:
            raise ConfigValueError(f"node '{context.node_name}' names no text to store as the summary",
                                   json_path="input", expected="a text")
        text, folder = self.text(context, "input"), folder_of(context)
        if folder is not None:
            self._write(text, folder, context)
        return text

    def _write(self, text: str, folder: DiscussionFolder, context: ExecutionContext) -> None:
        if not text.strip() or is_cut_off_thought(text):
            logger.warning("Discussion %s: node '%s' gives %s; the summary stays as it is", folder.discussion_id,
                           context.node_name, "a thought without an end" if text.strip() else "no text")
            return
        store = MemoryStore(folder)
        with contextlib.ExitStack() as turn:
            mine = take_turn(turn, context, folder)  # without it too: a text that was handed over must not be lost
            memories = store.memories()
            if not memories:
                logger.warning("Discussion %s has no memories; its summary is stored without reference to one",
                               folder.discussion_id)
            covered = len(memories) if mine else None  # others at work may be writing the file that it is kept in
            save_summary(store, text, memories[-1][1] if memories else "", covered)


def _is_current(store: MemoryStore) -> bool:
    return summary_lag(store) in (0, 1)


def _text(store: MemoryStore) -> str:
    summary = store.summary()
    return summary[0] if summary is not None else NOT_FOUND
