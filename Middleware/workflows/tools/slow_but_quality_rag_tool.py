"""Applies a prompt to every block of a text."""
from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.llmapis.api_types import is_on
from Middleware.models.llm_handler import LlmHandler
from Middleware.services.direct_calls import raise_if_cancelled, unstreamed
from Middleware.services.memory_blocks import read_memory_blocks
from Middleware.utilities.text_utils import as_flag
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.block_prompts import (
    CHAT_SUMMARY,
    FULL_MEMORY_FILE,
    MEMORY_FILE,
    TEXT_CHUNK,
    BlockPrompts,
)
from Middleware.workflows.tools.parallel_llm_processing_tool import ParallelLlmProcessingTool

logger = logging.getLogger(__name__)

CHUNK_BREAK = "--ChunkBreak--"
MEMORY_SEPARATOR = "\n--------------\n"
NO_MEMORIES = "No preceding memories to show"
NO_SUMMARY = "There is not yet a summary file"
RECENT_MEMORIES = 3


@dataclass(frozen=True)
class DiscussionMemory:
    """What is known of a discussion so far: its memories, oldest first, and its summary."""

    memories: tuple[str, ...] = ()
    summary: str = NO_SUMMARY

    def followed_by(self, memory: str) -> DiscussionMemory:
        return dataclasses.replace(self, memories=(*self.memories, memory)) if memory.strip() else self

    @property
    def recent(self) -> str:
        return _memory_block(self.memories[-RECENT_MEMORIES:])

    @property
    def full(self) -> str:
        return _memory_block(self.memories)

    @property
    def markers(self) -> dict[str, str]:
        return {MEMORY_FILE: self.recent.strip(), FULL_MEMORY_FILE: self.full.strip(),
                CHAT_SUMMARY: self.summary.strip()}


def load_discussion_memory(context: ExecutionContext) -> DiscussionMemory:
    """The stored memories of the node's discussion; no summary is stored yet."""
    if not context.discussion_id:
        return DiscussionMemory()
    return DiscussionMemory(tuple(read_memory_blocks(
        context.discussion_id, encryption_key=context.encryption_key, api_key_hash=context.api_key_hash)))


class SlowButQualityRAGTool:
    """Prompts are templates as a node holds them: variables are filled in first, then the markers."""

    def perform_rag_on_conversation_chunk(self, system_prompt: str, prompt: str, text_chunk: str,
                                          context: ExecutionContext) -> str:
        """The answers for all blocks of ``text_chunk``, by the settings in the node; empty without a discussion id."""
        if not context.discussion_id:
            return ""
        return self.perform_rag_on_memory_chunk(system_prompt, prompt, text_chunk, context, context.config)

    def perform_rag_on_memory_chunk(self, system_prompt: str, prompt: str, text_chunk: str, context: ExecutionContext,
                                    workflow_config: Mapping[str, Any], custom_delimiter: str = "",
                                    chunks_per_memory: int = 3) -> str:
        """One answer for each block between ``--ChunkBreak--``, joined in order; none is asked for a blank block.

        ``workflow_config`` says who answers: ``multiModelList``, else ``fileMemoryWorkflowName``, else the LLM of the
        node. ``chunks_per_memory`` has no effect. Raises what the LLM or the workflow raises.
        """
        blocks = text_chunk.split(CHUNK_BREAK)
        memory = load_discussion_memory(context)
        models = workflow_config.get("multiModelList")
        if isinstance(models, (list, tuple)) and models:
            tool = ParallelLlmProcessingTool(workflow_config, context)
            return tool.process_prompt_chunks(blocks, prompt, system_prompt, context.messages, custom_delimiter,
                                              markers=memory.markers)
        answers: list[str] = []
        for block in blocks:
            raise_if_cancelled(context.request.cancel_scope)
            answers.append(self._answer(system_prompt, prompt, block, context, workflow_config, memory)
                           if block.strip() else "")
            memory = memory.followed_by(answers[-1])
        return custom_delimiter.join(answers)

    def process_single_chunk(self, chunk: str, prompt: str, system_prompt: str, context: ExecutionContext,
                             memory: DiscussionMemory | None = None) -> str:
        """One call of the node's LLM; empty, with an error in the log, if the node has none."""
        if context.llm_handler is None or context.llm_handler.llm is None:
            logger.error("Node '%s' names no endpoint, so there is no answer for its blocks", context.node_name)
            return ""
        known = memory if memory is not None else load_discussion_memory(context)
        prompts = BlockPrompts(system_prompt, prompt, context.config, context)
        answer = prompts.send(_handler_for_call(context.llm_handler, context), {**known.markers, TEXT_CHUNK: chunk})
        raise_if_cancelled(context.request.cancel_scope)
        return answer

    def _answer(self, system_prompt: str, prompt: str, block: str, context: ExecutionContext,
                workflow_config: Mapping[str, Any], memory: DiscussionMemory) -> str:
        workflow = workflow_config.get("fileMemoryWorkflowName")
        if not workflow:
            return self.process_single_chunk(block, prompt, system_prompt, context, memory)
        inputs = (block, memory.recent, memory.full, memory.summary)
        return _run_child(context, str(workflow), inputs)


def _run_child(context: ExecutionContext, workflow: str, inputs: tuple[str, ...]) -> str:
    """The result of a workflow that answers nobody but this node."""
    inner = dataclasses.replace(context, is_responder=False, stream=False)
    items = list(context.workflow_manager.start_child(
        inner, workflow, folder_override=None, scoped_inputs=inputs, system_prompt_override=None,
        prompt_override=None))
    result = items[-1] if items else None
    if isinstance(result, Mapping):
        result = result.get("content")
    return "" if result is None else str(result)


def _handler_for_call(handler: LlmHandler, context: ExecutionContext) -> LlmHandler:
    """The node's LLM, unstreamed. The prompt is a whole user turn, so that the endpoint may open the answer's."""
    opens = is_on(handler.endpoint_config, "addGenerationPrompt") and not as_flag(
        context.config.get("blockGenerationPrompt"))
    return dataclasses.replace(unstreamed(handler, context.request.cancel_scope), add_generation_prompt=opens)


def _memory_block(memories: Sequence[str]) -> str:
    return MEMORY_SEPARATOR.join(memories) or NO_MEMORIES
