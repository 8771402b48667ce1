"""The one bridge from the HTTP layer to the engine."""
from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from Middleware.api.running.background_requests import is_background_task
from Middleware.api.running.liveness_cleanup import LivenessCall, clean_up
from Middleware.exceptions import ClientError, ConfigNotFoundError
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext
from Middleware.services.prompt_categorization_service import PromptCategorizationService
from Middleware.utilities import config_utils
from Middleware.utilities.conversations.discussion_folder import holds_data_of_a_key
from Middleware.utilities.conversations.discussion_id import extract_discussion_id
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.managers.workflow_manager import WorkflowManager, request_at_work, then_close

logger = logging.getLogger(__name__)


BACKGROUND_KEY = "backgroundTaskWorkflow"


def handle_user_prompt(request_id: str, prompt_collection: list[Message], stream: bool, api_key: str | None = None,
                       tools: list[dict[str, object]] | None = None, tool_choice: object = None) -> object:
    """Answer a conversation: an iterator of chunk dicts when streaming, else the answer (a text or tool-call dict).

    The iterator must be exhausted (or closed) by the caller: nodes after the responder run at its end.
    """
    with contextlib.ExitStack() as until_the_end:
        request = request_at_work(request_id, until_the_end, stream)
        items = start_user_prompt(request, prompt_collection, stream, api_key, tools, tool_choice)
        if stream:
            return then_close(items, until_the_end.pop_all())
        results = list(items)
    return results[0] if results else ""


def start_user_prompt(request: RequestContext, messages: list[Message], stream: bool, api_key: str | None = None,
                      tools: list[dict[str, object]] | None = None, tool_choice: object = None) -> Iterator[object]:
    """Choose the workflow and start it. Both modes: the iterator yields the answer, then runs the later nodes."""
    messages = _without_machinery(messages)
    background = _background_workflow(request, messages, stream)
    # a front-end's own call quotes the conversation, whose memories are not its business
    discussion_id = "" if background else _discussion_id(messages, api_key)
    messages = [_escaped(message) for message in messages]
    shared: dict[str, Any] = {"api_key": api_key, "tools": tools, "tool_choice": tool_choice}

    def run_categorization(workflow: str, variables: Mapping[str, Any]) -> object:
        items = list(WorkflowManager(workflow, category_variables=variables).start(
            request, messages, discussion_id=discussion_id, non_responder=True, api_key=api_key))
        return items[-1] if items else None

    manager = background or _choose(request, run_categorization)
    return manager.start(request, messages, discussion_id=discussion_id, stream=stream, **shared)


def _discussion_id(messages: list[Message], api_key: str | None) -> str:
    """The conversation's id, "" if it has none. Without a key nobody gets into a folder of somebody's key."""
    found = extract_discussion_id(messages) or ""
    if found and not api_key and holds_data_of_a_key(found):
        logger.warning("The discussion id of this request is the name of a folder with data of an API key; the request "
                       "runs without one")
        return ""
    return found


def _without_machinery(messages: list[Message]) -> list[Message]:
    """The conversation without the liveness calls of earlier answers, for users who have such a call."""
    liveness = LivenessCall.of(config_utils.user_setting("livenessToolCall"))
    return clean_up(messages, liveness) if liveness else messages


def _background_workflow(request: RequestContext, messages: list[Message], stream: bool) -> WorkflowManager | None:
    """The user's workflow for what front-ends ask on their own; None if this is no such request or there is none."""
    name = config_utils.user_name_setting(BACKGROUND_KEY)
    if not name or not is_background_task(messages, stream):
        return None
    try:
        config_utils.load_workflow(name)
    except ConfigNotFoundError as error:
        raise ConfigNotFoundError(f"workflow '{name}' does not exist", tried=error.tried,
                                  json_path=BACKGROUND_KEY, suggestion=error.suggestion) from error
    request.route = f"background task -> {name}"
    logger.info("Request %s is a background task of the front-end; it runs %s", request.request_id, name)
    return WorkflowManager(name)


def _choose(request: RequestContext, run_categorization: Any) -> WorkflowManager:
    if request.workflow_override:
        selection = config_utils.shared_selection(request.workflow_override)
        if selection is None:  # it was there when the model name was read
            raise ClientError(f"The shared workflow '{request.workflow_override}' is no longer there.")
        request.route = f"shared {request.workflow_override}"
        return WorkflowManager(selection[0], workflow_user_folder_override=selection[1])
    custom = config_utils.custom_workflow_name()
    if custom is not None:
        request.route = custom
        return WorkflowManager(custom)
    category, workflow = PromptCategorizationService(run_categorization).choose_workflow()
    request.route = f"{category} -> {workflow}" if category else workflow
    logger.info("Routed to %s", request.route)
    if not category:
        _require_default_workflow()
    return WorkflowManager(workflow)


def _require_default_workflow() -> None:
    """Without routing and without a default workflow a client must pick a model id: say which there are."""
    try:
        config_utils.load_workflow(config_utils.DEFAULT_WORKFLOW)
    except ConfigNotFoundError as error:
        ids = [f"{config_utils.get_current_username()}:{name}" for name in config_utils.list_shared_workflows()]
        if not ids:
            raise
        raise ClientError("No workflow is configured for this model name. Choose one of these model ids: "
                          + ", ".join(ids)) from error


def _escaped(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": escape_braces(content) if isinstance(content, str) else ""}
