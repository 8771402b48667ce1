"""What nodes that work on a conversation's stored data take from their context."""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from Middleware.models.messages import Message
from Middleware.services.llm_calls.direct_calls import raise_if_cancelled
from Middleware.utilities.conversations.discussion_folder import DiscussionFolder
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.image_describer import VisionNote


def folder_of(context: ExecutionContext) -> DiscussionFolder | None:
    """The folder of the node's conversation; None for a conversation without a name."""
    if not context.discussion_id:
        return None
    return DiscussionFolder(context.discussion_id, context.api_key_hash, context.encryption_key)


def raw_messages(context: ExecutionContext) -> list[Message]:
    """The conversation as the client sent it: stored hashes would not fit one with time stamps or notes on images."""
    messages = context.run.messages if context.run is not None else context.messages
    return [message for message in messages if not isinstance(message, VisionNote)]


def run_helper_workflow(context: ExecutionContext, name: str, inputs: Sequence[str] = ()) -> str:
    """The result of a workflow of the user that answers nobody but this node, in the same conversation.

    ``inputs`` become its ``agent1Input``, ``agent2Input``, ... Raises what the workflow raises, and
    EarlyTerminationException if the request is cancelled.
    """
    inner = dataclasses.replace(context, is_responder=False, stream=False, messages=raw_messages(context))
    items = list(inner.start_child(name, scoped_inputs=tuple(inputs)))
    raise_if_cancelled(context.request.cancel_scope)
    return as_text(items[-1] if items else None)


def as_text(result: object) -> str:
    """A workflow's result as text: of a tool call, what was said beside it; nothing for lists and other data."""
    if isinstance(result, Mapping):
        result = result.get("content")
    return str(result) if isinstance(result, (str, int, float)) else ""
