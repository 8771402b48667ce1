"""Nodes that write, read and search what is remembered of a conversation."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from Middleware.exceptions import ConfigValueError
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities import config_utils
from Middleware.utilities.answers.cut_off_thoughts import is_cut_off_thought
from Middleware.utilities.config.declarations import MOST_TOKENS, ConfigKey
from Middleware.utilities.config.keys.node import PROMPT_KEYS
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import if_readable
from Middleware.utilities.search_utils import CHUNK_BREAK
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import raw_messages, run_helper_workflow, state_of

# What reads and writes memories is imported where a node does it: most servers have none of these nodes.
if TYPE_CHECKING:
    from Middleware.services.memory_service import MemoryService

logger = logging.getLogger(__name__)


def reading_service() -> MemoryService:
    """Return the service that reads what is stored."""
    from Middleware.services.memory_service import MemoryService

    return MemoryService()


def keys_of(context: ExecutionContext) -> dict[str, Any]:
    """Return the arguments about the client's API key for the methods of MemoryService."""
    return {"encryption_key": context.encryption_key, "api_key_hash": context.api_key_hash}


TURNS = ConfigKey(
    "maxTurnsToPull", "int", 0, "How many messages to use if there is no discussion id.", "early", required=True
)


class RecentMemorySummarizerHandler(BaseHandler):
    """Returns the newest memories; without a discussion id, blocks of the newest messages."""

    acts = "reads"

    KEYS = {
        "RecentMemorySummarizerTool": (
            TURNS,
            ConfigKey(
                "maxSummaryChunksFromFile",
                "int",
                0,
                "How many memories; 0: three, negative: all.",
                "early",
                required=True,
            ),
            ConfigKey("lookbackStart", "int", 0, "Newest messages to leave out if there is no discussion id.", "early"),
            ConfigKey("customDelimiter", "str", None, "The text between them, instead of --ChunkBreak--."),
            ConfigKey(
                "includeDates",
                "bool",
                False,
                "Each memory starts with the day of its messages, where that is known.",
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        turns, chunks, lookback = (
            self.number(context, name) for name in ("maxTurnsToPull", "maxSummaryChunksFromFile", "lookbackStart")
        )
        text = reading_service().get_recent_memories(
            raw_messages(context),
            context.discussion_id,
            turns,
            chunks,
            lookback,
            include_dates=self.value(context, "includeDates"),
            **keys_of(context),
        )
        delimiter = self.value(context, "customDelimiter")
        return text if delimiter is None else text.replace(CHUNK_BREAK, str(delimiter))


class ChatSummaryMemoryGatheringHandler(BaseHandler):
    """Returns the memories that are not yet in the summary; without a discussion id, blocks of the newest messages."""

    acts = "reads"

    KEYS = {"ChatSummaryMemoryGatheringTool": (TURNS,)}

    def handle(self, context: ExecutionContext) -> object:
        return reading_service().get_chat_summary_memories(
            raw_messages(context), context.discussion_id, self.number(context, "maxTurnsToPull"), **keys_of(context)
        )


class CurrentMemoryHandler(BaseHandler):
    """Returns all memories."""

    acts = "reads"

    KEYS = {"GetCurrentMemoryFromFile": (ConfigKey("customDelimiter", "str", CHUNK_BREAK, "The text between them."),)}

    def handle(self, context: ExecutionContext) -> object:
        memories = reading_service().get_current_memories(context.discussion_id, **keys_of(context))
        return str(self.value(context, "customDelimiter")).join(memories)


class CurrentSummaryHandler(BaseHandler):
    """Returns the summary."""

    acts = "reads"

    KEYS = {"GetCurrentSummaryFromFile": ()}

    def handle(self, context: ExecutionContext) -> object:
        return reading_service().get_current_summary(context.discussion_id, **keys_of(context))


class CurrentStateDocumentHandler(BaseHandler):
    """Returns the document of the current state."""

    acts = "reads"

    KEYS = {"GetCurrentStateDocument": ()}

    def handle(self, context: ExecutionContext) -> object:
        from Middleware.services.memory_service import NO_STATE_DOCUMENT

        return if_readable(
            lambda: reading_service().get_current_state_document(context.discussion_id, **keys_of(context)),
            NO_STATE_DOCUMENT,
        )


NOT_GENERATED = "No discussionId on this request; memories were not generated."
RECENT_WORKFLOW = "recentMemoryToolWorkflow"
CONVERSATION_WORKFLOW = "conversationMemoryToolWorkflow"


class _UsersWorkflowHandler(BaseHandler):
    # The workflows that the user's file and settings name may have nodes of any type.
    acts = "outside"

    def write_memories(self, context: ExecutionContext, force_file_memory: bool = False) -> None:
        """Write the memories of the context's discussion that are due."""
        from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool

        SlowButQualityRAGTool().handle_discussion_id_flow(context, force_file_memory=force_file_memory)

    def helper_result(self, context: ExecutionContext, user_key: str) -> str | None:
        """Return the result of the workflow that the user's file names under ``user_key``; None if it names none."""
        name = config_utils.user_name_setting(user_key)
        return run_helper_workflow(context, name) if name else None


class QualityMemoryHandler(_UsersWorkflowHandler):
    """Writes the memories that are due; its output is empty."""

    KEYS = {"QualityMemory": ()}

    def handle(self, context: ExecutionContext) -> object:
        if context.discussion_id:
            self.write_memories(context)
            return ""
        result = self.helper_result(context, RECENT_WORKFLOW)
        return NOT_GENERATED if result is None else result


class RecentMemoryHandler(_UsersWorkflowHandler):
    """Writes the memory files that are due, and returns the result of the user's workflow for them."""

    KEYS = {"RecentMemory": ()}

    def handle(self, context: ExecutionContext) -> object:
        if context.discussion_id:
            self.write_memories(context, force_file_memory=True)
        result = self.helper_result(context, RECENT_WORKFLOW)
        if result is not None:
            return result
        return reading_service().get_recent_memories(raw_messages(context), context.discussion_id, **keys_of(context))


class ConversationMemoryHandler(_UsersWorkflowHandler):
    """Returns the result of the user's workflow for the memories; all memories if there is no such workflow."""

    KEYS = {"ConversationMemory": ()}

    def handle(self, context: ExecutionContext) -> object:
        if not context.discussion_id:
            from Middleware.services.memory_service import NO_MEMORIES

            return NO_MEMORIES
        result = self.helper_result(context, CONVERSATION_WORKFLOW)
        if result is not None:
            return result
        return CHUNK_BREAK.join(reading_service().get_current_memories(context.discussion_id, **keys_of(context)))


NOT_FOUND = "No summary found"
SUMMARY_WORKFLOW = "chatSummaryToolWorkflow"


class FullChatSummaryHandler(_UsersWorkflowHandler):
    """Returns the summary, which the user's workflow updates first if more than one memory is missing in it."""

    KEYS = {"FullChatSummary": (ConfigKey("isManualConfig", "bool", False, "Only return the summary as it is."),)}

    def handle(self, context: ExecutionContext) -> object:
        state = state_of(context)
        if state is None:
            return ""
        store = MemoryStore(state)
        if self.value(context, "isManualConfig"):
            return _text(store)
        self.write_memories(context, force_file_memory=True)
        if _is_current(store):
            return _text(store)
        result = self.helper_result(context, SUMMARY_WORKFLOW)
        if result is not None:
            return result
        return reading_service().get_current_summary(context.discussion_id, **keys_of(context))


class ChatSummarySummarizerHandler(BaseHandler):
    """Folds the memories that are not yet in the summary into it, with the node's LLM."""

    # It stores the summary, and cleans each of its LLM's answers.
    acts = "writes"
    cleans_itself = True

    KEYS = {
        "chatSummarySummarizer": (
            *PROMPT_KEYS,
            ConfigKey("minMemoriesPerSummary", "int", 3, "How many new memories are needed for a call.", "early"),
            ConfigKey(
                "loopIfMemoriesExceed",
                "int",
                3,
                "If there are more new memories, they are folded in this many at a time.",
                "early",
            ),
            ConfigKey(
                "appendMemoriesUpToTokens",
                "int",
                0,
                "New memories are appended to the summary as they are, "
                "without a call, until it would have more tokens; then the LLM makes the older lines shorter.",
                "early",
                least=0,
                most=MOST_TOKENS,
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        from Middleware.services.memory_service import NO_SUMMARY
        from Middleware.workflows.tools.memory.chat_summary import ChatSummarizer

        state = state_of(context)
        if state is None:
            return NO_SUMMARY
        least, most, room = (
            self.number(context, name)
            for name in ("minMemoriesPerSummary", "loopIfMemoriesExceed", "appendMemoriesUpToTokens")
        )
        return ChatSummarizer(context, state, least, most, room).update()


class WriteCurrentSummaryHandler(BaseHandler):
    """Stores a text as the summary of all memories so far."""

    acts = "writes"

    KEYS = {
        "WriteCurrentSummaryToFileAndReturnIt": (
            ConfigKey("input", "str", None, "The text.", "full", required=True, capability="stores as the summary"),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        if self.value(context, "input") is None:
            raise ConfigValueError(
                f"node '{context.node_name}' names no text to store as the summary",
                json_path="input",
                expected="a text",
            )
        text, state = self.text(context, "input"), state_of(context)
        if state is not None:
            self._write(text, state, context)
        return text

    def _write(self, text: str, state: DiscussionState, context: ExecutionContext) -> None:
        if not text.strip() or is_cut_off_thought(text):
            logger.warning(
                "Discussion %s: node '%s' gives %s; the summary stays as it is",
                state.discussion_id,
                context.node_name,
                "unfinished reasoning" if text.strip() else "no text",
            )
            return
        from Middleware.workflows.tools.memory.chat_summary import save_summary, take_lock

        store = MemoryStore(state)
        with contextlib.ExitStack() as stack:
            # The text is stored without the lock too: a text that was handed over must not be lost.
            mine = take_lock(stack, context, state)
            memories = store.memories()
            if not memories:
                logger.warning(
                    "Discussion %s has no memories; its summary is stored without reference to one", state.discussion_id
                )
            # Without the lock, another request may be writing the file that this number is kept in.
            covered = len(memories) if mine else None
            save_summary(store, text, memories[-1][1] if memories else "", covered, pinned=True)


def _is_current(store: MemoryStore) -> bool:
    from Middleware.services.memory_service import summary_lag

    return summary_lag(store) in (0, 1)


def _text(store: MemoryStore) -> str:
    summary = store.summary()
    return summary[0] if summary is not None else NOT_FOUND


NO_DISCUSSION = "Cannot perform VectorMemorySearch without a discussionId."
DEFAULT_LIMIT = 5


class VectorMemorySearchHandler(BaseHandler):
    """Returns the memories that match best, best first."""

    acts = "reads"

    KEYS = {
        "VectorMemorySearch": (
            ConfigKey("input", "str", "", "Words or phrases to search for, separated by ;.", "full"),
            ConfigKey("limit", "int", DEFAULT_LIMIT, "How many memories to return at most.", "early"),
            ConfigKey(
                "bm25Weights",
                "list",
                None,
                "Five numbers: the weights of title, summary, entities, key phrases and text of a memory.",
            ),
            ConfigKey("useRecencyScoring", "bool", False, "Rank newer memories higher."),
            ConfigKey(
                "includeDates",
                "bool",
                False,
                "Each memory starts with its date: the day of its messages, else that on which it was written.",
            ),
            ConfigKey(
                "searchMode",
                "str",
                "keyword",
                "Whether to search by words, by meaning, or both.",
                choices=("keyword", "semantic", "hybrid"),
                caseless=True,
            ),
            ConfigKey("semanticQuery", "str", "", "What to search for by meaning, if not the words of input.", "full"),
            ConfigKey("embeddingEndpointName", "str", "", "Endpoint whose vectors are compared.", names="endpoint"),
            ConfigKey(
                "useEntityExpansion",
                "bool",
                False,
                "Also search for the people and things that the found memories name.",
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> Any:
        if not context.discussion_id:
            return NO_DISCUSSION
        return reading_service().search_vector_memories(
            context.discussion_id,
            self.text(context, "input"),
            max(0, self.number(context, "limit")),
            bm25_weights=self._weights(context),
            use_recency=self.value(context, "useRecencyScoring"),
            include_dates=self.value(context, "includeDates"),
            search_mode=str(self.value(context, "searchMode")),
            semantic_query=self.text(context, "semanticQuery"),
            embedding_endpoint_name=str(self.value(context, "embeddingEndpointName")),
            use_entity_expansion=self.value(context, "useEntityExpansion"),
            request_id=context.request_id,
            **keys_of(context),
        )

    def _weights(self, context: ExecutionContext) -> list[Any] | None:
        weights = self.value(context, "bm25Weights")
        if isinstance(weights, (list, tuple)):
            return list(weights)
        if weights is not None:
            logger.warning("Node '%s': 'bm25Weights' is not a list of five numbers and is not used", context.node_name)
        return None
