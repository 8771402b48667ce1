"""The connection between the HTTP layer and the engine: choose a request's workflow and start it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from Middleware.api.requests.background_tasks import background_task, longest_answer
from Middleware.api.requests.liveness_cleanup import LivenessCall, clean_up
from Middleware.exceptions import ClientError, ConfigNotFoundError
from Middleware.llmapis.keepsakes import recalled
from Middleware.models.messages import Message, without_extra, without_times
from Middleware.models.request_context import RequestContext, SentRequest
from Middleware.services.prompt_categorization_service import PromptCategorizationService
from Middleware.utilities import config_utils
from Middleware.utilities.discussions.discussion_folder import holds_data_of_a_key
from Middleware.utilities.discussions.discussion_id import (
    OPEN_TAG,
    extract_discussion_id,
    without_discussion_id_tags,
)
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.managers.workflow_manager import WorkflowManager, is_blank, request_at_work, then_close

logger = logging.getLogger(__name__)


BACKGROUND_KEY = "backgroundTaskWorkflow"


def handle_user_prompt(
    request_id: str,
    prompt_collection: list[Message],
    stream: bool,
    api_key: str | None = None,
    tools: list[dict[str, object]] | None = None,
    tool_choice: object = None,
) -> object:
    """Answer a conversation: return an iterator of chunks when streaming, else the answer (a string or tool-call dict).

    The caller must exhaust or close the iterator: the nodes after the responder run at its end.
    """
    with contextlib.ExitStack() as until_the_end:
        request = request_at_work(request_id, until_the_end, stream)
        items = start_user_prompt(request, prompt_collection, stream, api_key, tools, tool_choice)
        if stream:
            return then_close(items, until_the_end.pop_all())
        results = list(items)
    return results[0] if results else ""


def start_user_prompt(
    request: RequestContext,
    messages: list[Message],
    stream: bool,
    api_key: str | None = None,
    tools: list[dict[str, object]] | None = None,
    tool_choice: object = None,
) -> Iterator[object]:
    """Choose the workflow and start it. In both modes, the iterator yields the answer, then runs the later nodes."""
    request.report("request_read", request, SentRequest(without_extra(messages), tools, tool_choice))
    messages = recalled(request, _without_liveness_calls(messages))
    request.task = background_task(messages, stream)
    background = _background_workflow(request)
    messages, tagged = prepared_messages(messages)
    messages, request.said = without_times(messages)
    # A front-end's own request only quotes the conversation, and must not write to its memories.
    discussion_id = "" if background else _discussion_id(tagged, api_key)
    shared: dict[str, Any] = {"api_key": api_key, "tools": tools, "tool_choice": tool_choice}

    def run_categorization(workflow: str, variables: Mapping[str, Any]) -> object:
        items = list(
            WorkflowManager(workflow, category_variables=variables).start_prepared(
                request, messages, discussion_id=discussion_id, non_responder=True, api_key=api_key
            )
        )
        return items[-1] if items else None

    manager = background or _choose(request, run_categorization)
    return manager.start_prepared(request, messages, discussion_id=discussion_id, stream=stream, **shared)


def _discussion_id(messages: list[Message], api_key: str | None) -> str:
    """Return the conversation's id; "" if it has none, or if it names a folder whose API key the request lacks."""
    found = extract_discussion_id(messages) or ""
    if found and not api_key and holds_data_of_a_key(found):
        logger.warning(
            "The discussion id of this request is the name of a folder with data of an API key; the request "
            "runs without one"
        )
        return ""
    return found


def _without_liveness_calls(messages: list[Message]) -> list[Message]:
    """Return the conversation without the liveness calls of earlier answers, if the user's settings declare one."""
    liveness = LivenessCall.of(config_utils.user_setting("livenessToolCall"))
    return clean_up(messages, liveness) if liveness else messages


def _background_workflow(request: RequestContext) -> WorkflowManager | None:
    """Return the user's workflow for a front-end's own request; None for any other request, or without one."""
    name = config_utils.user_name_setting(BACKGROUND_KEY) if request.task else None
    if not name or not request.task:
        return None
    try:
        config_utils.load_workflow(name)
    except ConfigNotFoundError as error:
        raise ConfigNotFoundError(
            f"workflow '{name}' does not exist",
            tried=error.tried,
            json_path=BACKGROUND_KEY,
            suggestion=error.suggestion,
        ) from error
    request.route = f"background task -> {name}"
    request.longest_answer = longest_answer(request.task, request.client_limit)
    logger.info("Request %s is a background task of the front-end; it runs %s", request.request_id, name)
    return WorkflowManager(name)


def _choose(request: RequestContext, run_categorization: Any) -> WorkflowManager:
    if request.workflow_override:
        selection = config_utils.shared_selection(request.workflow_override)
        # It existed when the model name was parsed.
        if selection is None:
            raise ClientError(f"The shared workflow '{request.workflow_override}' is no longer there.")
        request.route = f"shared {request.workflow_override}"
        request.route_reason = f'model "{request.model}"' if request.model else ""
        return WorkflowManager(selection[0], workflow_user_folder_override=selection[1])
    custom = config_utils.custom_workflow_name()
    if custom is not None:
        request.route, request.route_reason = custom, "customWorkflow"
        return WorkflowManager(custom)
    service = PromptCategorizationService(run_categorization)
    category, workflow = service.choose_workflow()
    request.route, request.route_reason = f"{category} -> {workflow}" if category else workflow, service.reason
    logger.info("Routed to %s", request.route)
    if not category:
        _require_default_workflow()
    service.require_default_workflow()
    return WorkflowManager(workflow)


def _require_default_workflow() -> None:
    """Refuse a request without routing and default workflow, and list the model ids that the client can choose."""
    try:
        config_utils.load_workflow(config_utils.DEFAULT_WORKFLOW)
    except ConfigNotFoundError as error:
        ids = [f"{config_utils.get_current_username()}:{name}" for name in config_utils.list_shared_workflows()]
        if not ids:
            raise
        raise ClientError(
            "No workflow is configured for this model name. Choose one of these model ids: " + ", ".join(ids)
        ) from error


def prepared_messages(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Return the messages with escaped braces, without blank messages and tags, and those that had a tag.

    Changed messages are copies.
    """
    prepared: list[Message] = []
    tagged: list[Message] = []
    # One loop with all tests in it: for thousands of messages, a loop or a call for each would be felt.
    for message in messages:
        given = content = message.get("content")
        if not isinstance(content, str):
            content = ""
        elif "{" in content or "}" in content:
            content = escape_braces(content)
        # A search for a single character is several times as fast as that for a tag.
        if "[" in content and OPEN_TAG in content:
            tagged.append(message)
            content = without_discussion_id_tags(content)
        if content is not given:
            message = {**message, "content": content}
        if (content and not content.isspace()) or not is_blank(message):
            prepared.append(message)
    return prepared, tagged
