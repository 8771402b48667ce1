"""The memories of a conversation, and prompts applied to every block of a text."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from Middleware.models.llm_handler import LlmHandler
from Middleware.models.request_context import first_logged
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled, without_streaming
from Middleware.services.memory.memory_settings import MemorySettings, load_memory_settings
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.discussions.discussion_files import Pair
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.utilities.search_utils import CHUNK_BREAK, search_conversation, search_memories
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import TEXT_CHUNK, BlockPrompts
from Middleware.workflows.tools.discussion_context import raw_messages, state_of, text_of_helper
from Middleware.workflows.tools.memory.condensation import Condensation
from Middleware.workflows.tools.memory.file_memories import FileMemoryPass, FollowingPass, MemoryWriter
from Middleware.workflows.tools.memory.shared import (
    Chunk,
    DiscussionMemory,
    memory_lock,
    storage_errors_logged,
    stored_memory,
)
from Middleware.workflows.tools.memory.vector_memories import (
    FollowingVectorPass,
    VectorMemoryPass,
    generate_and_store,
)
from Middleware.workflows.tools.parallel_llm_processing_tool import ParallelLlmProcessingTool

logger = logging.getLogger(__name__)

# A shorter conversation has nothing to remember yet. System messages count here.
FEWEST_MESSAGES = 3


class SlowButQualityRAGTool:
    """Prompts are templates as in a node or file: variables are filled in first, then the markers."""

    # -- memories --------------------------------------------------------------------------------------------------
    def handle_discussion_id_flow(self, context: ExecutionContext, force_file_memory: bool = False) -> None:
        """Make the memories that are due: files, or searchable ones if the user's settings want those.

        Failures are logged, and the work is retried with the next request. A part of a conversation yields no memories:
        its messages would become memories again with the whole. Raises DataKeyError, and EarlyTerminationException if
        the request is cancelled.
        """
        state = state_of(context)
        if state is None or _sees_but_a_part(context) or len(raw_messages(context)) < FEWEST_MESSAGES:
            return
        settings = load_memory_settings()
        if settings is None:
            return
        if settings.use_vector and not force_file_memory:
            (FollowingVectorPass if settings.follow_edits else VectorMemoryPass)(context, settings, state).run()
        else:
            (FollowingPass if settings.follow_edits else FileMemoryPass)(context, settings, state).run()

    def generate_and_store_vector_memories(
        self, pairs: Sequence[Pair], settings: MemorySettings | Mapping[str, object], context: ExecutionContext
    ) -> int:
        """Store searchable memories of texts and the hashes of their last messages; return how many were stored."""
        return generate_and_store(pairs, _as_settings(settings), context)

    def process_new_memory_chunks(
        self,
        chunks: Sequence[str],
        hash_chunks: Sequence[Pair],
        rag_system_prompt: str,
        rag_prompt: str,
        workflow_config: MemorySettings | Mapping[str, object],
        context: ExecutionContext,
        chunks_per_memory: int = 3,
    ) -> None:
        """Add a memory for each of ``chunks``, under the hash that its pair in ``hash_chunks`` has.

        ``workflow_config`` are memory settings; their prompts are replaced by those given. ``chunks_per_memory`` has
        no effect. Nothing happens without a discussion id.
        """
        state = state_of(context)
        if state is None:
            return
        settings = dataclasses.replace(
            _as_settings(workflow_config), system_prompt=rag_system_prompt, prompt=rag_prompt
        )
        found = [Chunk(text, stored) for text, (_, stored) in zip(chunks, hash_chunks, strict=True)]
        with storage_errors_logged(state), memory_lock(context, state, settings) as mine:
            if mine:
                MemoryWriter(context, settings, state).write(found)

    def condense_memories(
        self, discussion_id: str, settings: MemorySettings | Mapping[str, object], context: ExecutionContext
    ) -> bool:
        """Join older memories if there are enough of them; return whether that was done.

        Skipped, with a warning, while another request works on the memories.
        """
        settings = _as_settings(settings)
        if not (discussion_id and settings.condense):
            return False
        state = stored_discussion(discussion_id, context.api_key_hash, context.encryption_key)
        done = False
        with storage_errors_logged(state):
            if MemoryStore(state).memories():
                with memory_lock(context, state, None) as mine:
                    done = mine and Condensation(context, settings, state).run()
        return done

    def perform_keyword_search(self, keywords: str, target: str, context: ExecutionContext) -> str:
        """Return the result of searching ``CurrentConversation`` or ``RecentMemories``; "" for other targets."""
        messages = raw_messages(context)
        if target == "CurrentConversation":
            return search_conversation(messages, keywords, NODE.number(context.config, "lookbackStartTurn"))
        state = state_of(context)
        if target == "RecentMemories" and state is not None:
            return search_memories([text for text, _ in MemoryStore(state).memories()], messages, keywords)
        return ""

    # -- blocks of a text ------------------------------------------------------------------------------------------
    def perform_rag_on_conversation_chunk(
        self, system_prompt: str, prompt: str, text_chunk: str, context: ExecutionContext
    ) -> str:
        """Return the answers for all blocks of ``text_chunk``, by the node's settings; "" without a discussion id."""
        if not context.discussion_id:
            return ""
        return self.perform_rag_on_memory_chunk(system_prompt, prompt, text_chunk, context, context.config)

    def perform_rag_on_memory_chunk(
        self,
        system_prompt: str,
        prompt: str,
        text_chunk: str,
        context: ExecutionContext,
        workflow_config: Mapping[str, object],
        custom_delimiter: str = "",
        chunks_per_memory: int = 3,
    ) -> str:
        """Return one answer for each block between ``--ChunkBreak--``, joined in order; blank blocks are skipped.

        ``workflow_config`` selects the source: ``multiModelList``, else ``fileMemoryWorkflowName``, else the LLM of the
        node. ``chunks_per_memory`` has no effect. Raises what the LLM or the workflow raises.
        """
        blocks = text_chunk.split(CHUNK_BREAK)
        memory = _stored_memory(context)
        models = NODE.value(workflow_config, "multiModelList")
        if isinstance(models, (list, tuple)) and models:
            tool = ParallelLlmProcessingTool(workflow_config, context)
            return tool.process_prompt_chunks(
                blocks, prompt, system_prompt, context.messages, custom_delimiter, markers=memory.markers
            )
        answers: list[str] = []
        for block in blocks:
            raise_if_cancelled(context.request.cancel_scope)
            answers.append(
                self._answer(system_prompt, prompt, block, context, workflow_config, memory) if block.strip() else ""
            )
            memory = memory.followed_by(answers[-1])
        return custom_delimiter.join(answers)

    def process_single_chunk(
        self,
        chunk: str,
        prompt: str,
        system_prompt: str,
        context: ExecutionContext,
        memory: DiscussionMemory | None = None,
    ) -> str:
        """Return the answer of the node's LLM; "", with an error in the log, if the node has none."""
        if context.llm_handler is None or context.llm_handler.llm is None:
            logger.error("Node '%s' names no endpoint, so there is no answer for its blocks", context.node_name)
            return ""
        known = memory if memory is not None else _stored_memory(context)
        prompts = BlockPrompts(system_prompt, prompt, context.config, context)
        answer = prompts.send(_handler_for_call(context.llm_handler, context), {**known.markers, TEXT_CHUNK: chunk})
        raise_if_cancelled(context.request.cancel_scope)
        return answer

    def _answer(
        self,
        system_prompt: str,
        prompt: str,
        block: str,
        context: ExecutionContext,
        workflow_config: Mapping[str, object],
        memory: DiscussionMemory,
    ) -> str:
        workflow = NODE.value(workflow_config, "fileMemoryWorkflowName")
        if not workflow:
            return self.process_single_chunk(block, prompt, system_prompt, context, memory)
        inputs = (block, memory.recent, memory.full, memory.summary)
        return text_of_helper(context, str(workflow), inputs)


def _sees_but_a_part(context: ExecutionContext) -> bool:
    """Return whether the conversation is partial; a warning is logged once for each such workflow of a request."""
    run = context.run
    if run is None or not run.partial:
        return False
    warning = (
        f"Discussion {context.discussion_id}: workflow '{run.workflow_name}' sees only a part of the "
        "conversation, so its nodes write no memories; they belong in a workflow that sees all of it"
    )
    if first_logged(warning):
        logger.warning("%s", warning)
    return True


def _stored_memory(context: ExecutionContext) -> DiscussionMemory:
    state = state_of(context)
    return DiscussionMemory() if state is None else stored_memory(MemoryStore(state))


def _handler_for_call(handler: LlmHandler, context: ExecutionContext) -> LlmHandler:
    # The prompt is a whole user turn, so the endpoint may open the answer's.
    opens = ENDPOINT.flag(handler.endpoint_config, "addGenerationPrompt") and not NODE.flag(
        context.config, "blockGenerationPrompt"
    )
    return dataclasses.replace(without_streaming(handler, context.request.cancel_scope), add_generation_prompt=opens)


def _as_settings(settings: MemorySettings | Mapping[str, object]) -> MemorySettings:
    if isinstance(settings, MemorySettings):
        return settings
    return read_settings(MemorySettings, settings, "memory settings")
