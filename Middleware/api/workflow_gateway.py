"""The one bridge from the HTTP layer to the engine."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from Middleware.exceptions import ClientError, ConfigNotFoundError
from Middleware.models.request_context import RequestContext, current_request
from Middleware.services.prompt_categorization_service import PromptCategorizationService
from Middleware.utilities import config_utils
from Middleware.utilities.discussion_id import extract_discussion_id
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.managers.workflow_manager import WorkflowManager

logger = logging.getLogger(__name__)

Message = dict[str, Any]


def handle_user_prompt(request_id: str, prompt_collection: list[Message], stream: bool, api_key: str | None = None,
                       tools: list[dict[str, Any]] | None = None, tool_choice: Any = None) -> Any:
    """Answer a conversation: an iterator of chunk dicts when streaming, else the answer (a text or tool-call dict).

    The iterator must be exhausted (or closed) by the caller: nodes after the responder run at its end.
    """
    items = start_user_prompt(current_request() or RequestContext(request_id=request_id, stream=stream),
                              prompt_collection, stream, api_key, tools, tool_choice)
    if stream:
        return items
    results = list(items)
    return results[0] if results else ""


def start_user_prompt(request: RequestContext, messages: list[Message], stream: bool, api_key: str | None = None,
                      tools: list[dict[str, Any]] | None = None, tool_choice: Any = None) -> Iterator[Any]:
    """Choose the workflow and start it. Both modes: the iterator yields the answer, then runs the later nodes."""
    discussion_id = extract_discussion_id(messages) or ""
    messages = [_escaped(message) for message in messages]
    shared: dict[str, Any] = {"api_key": api_key, "tools": tools, "tool_choice": tool_choice}

    def run_categorization(workflow: str, variables: Mapping[str, Any]) -> Any:
        items = list(WorkflowManager(workflow, category_variables=variables).start(
            request, messages, discussion_id=discussion_id, non_responder=True, api_key=api_key))
        return items[-1] if items else None

    manager = _choose(request, run_categorization)
    return manager.start(request, messages, discussion_id=discussion_id, stream=stream, **shared)


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
