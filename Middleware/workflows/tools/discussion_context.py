"""The stored conversation of a node: its stored state, its raw messages, and helper workflows that run in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message, VisionNote
from Middleware.services.llm_calls.direct_calls import finish_reason_of, raise_if_cancelled, raise_if_filtered
from Middleware.services.llm_calls.prompt_parts import prompt_templates
from Middleware.utilities.config.workflows import load_workflow
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.workflows.models.execution_context import ExecutionContext, helper_calls


def state_of(context: ExecutionContext) -> DiscussionState | None:
    """Return what is stored of the node's conversation; None for a conversation without an id."""
    if not context.discussion_id:
        return None
    return stored_discussion(context.discussion_id, context.api_key_hash, context.encryption_key)


def raw_messages(context: ExecutionContext) -> list[Message]:
    """Return the conversation as the client sent it: stored hashes do not match timestamps or notes on images."""
    messages = context.run.messages if context.run is not None else context.messages
    return [message for message in messages if not isinstance(message, VisionNote)]


def run_helper_workflow(context: ExecutionContext, name: str, inputs: Sequence[str] = ()) -> str:
    """Run a workflow of the user for this node alone, in the same conversation, and return its result.

    ``inputs`` become its ``agent1Input``, ``agent2Input``, ... Raises what the workflow raises, and
    EarlyTerminationException if the request is cancelled.
    """
    inner = dataclasses.replace(context, is_responder=False, stream=False, messages=raw_messages(context))
    items = list(inner.start_child(name, scoped_inputs=tuple(inputs)))
    raise_if_cancelled(context.request.cancel_scope)
    return as_text(items[-1] if items else None)


def text_of_helper(context: ExecutionContext, name: str, inputs: Sequence[str]) -> str:
    """Return what ``run_helper_workflow`` returns, for storage.

    Raises BackendResponseError as well if the answer of its responder was ended by a filter.
    """
    calls: list[LlmHandler | None] = []
    token = helper_calls.set(calls)
    try:
        text = run_helper_workflow(context, name, inputs)
    finally:
        helper_calls.reset(token)
    if calls and calls[-1] is not None:
        raise_if_filtered(calls[-1].answering_endpoint[0], finish_reason_of(calls[-1]))
    return text


def helper_prompts(context: ExecutionContext, name: str) -> list[str]:
    """Return the templates of the nodes of such a workflow, without those of the workflows that these run. Raises
    ConfigurationError.
    """
    assert context.run is not None
    loaded = load_workflow(name, calling_folder=context.run.folder, calling_name=context.run.workflow_name)
    return [text for node in loaded.nodes for text in prompt_templates(node)]


def as_text(result: object) -> str:
    """Return a workflow's result as a string: the content of a tool-call answer; "" for lists and other data."""
    if isinstance(result, Mapping):
        result = result.get("content")
    return str(result) if isinstance(result, (str, int, float)) else ""
