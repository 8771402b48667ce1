"""The connection between the HTTP layer and the engine: choose a request's workflow and start it."""
from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from Middleware.api.requests.liveness_cleanup import LivenessCall, clean_up
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


SYSTEM_ROLES = ("system", "systemMes")
OPEN_ANSWERS = ("", "Assistant:")
HISTORY_TAG = "chat_history"

_ROLE_PREFIX = re.compile(r"\s*(?:(?:### )?User:\s*)?")
_FIRST_SECTION = re.compile(r"^<(\w+)>[ \t\r]*$", re.MULTILINE)
_OPEN_WEBUI_TASK = re.compile(r"### Task:\s*\n")
_OPEN_WEBUI_SHAPE = re.compile(r'\{\s*"(?:title|tags|follow_ups|queries|prompt|text)"\s*:')
_OPEN_WEBUI_TEXTS = (
    re.compile(r"Your task is to reflect the speaker's likely facial expression through a fitting emoji\..*?"
               r"\nMessage: ```", re.DOTALL),
    re.compile(r"### Task:\s+Summarize the conversation history that will be compacted\b.*?"
               r"\n### Messages Being Compacted:", re.DOTALL),
    re.compile(r"Review the completed conversation turn and decide whether long-term memory should change\..*?"
               r'\{"operations":\[', re.DOTALL),
)
_LIBRE_CHAT_TEXTS = (
    re.compile(r"Provide a concise, \d+-word-or-less title for the conversation\b[^\n]*\n\s*Conversation:\s*\n"),
    re.compile(r"Analyze this conversation and provide:\s*1\. The detected language of the conversation\s*"
               r"2\. A concise title in the detected language\b"),
    re.compile(r"Please generate a concise, \d+-word-or-less title for the conversation\b[^\n]*\n\s*\|\|>User:"),
)


def is_background_task(messages: Sequence[Message], stream: bool) -> bool:
    """Return whether a conversation in internal form is a front-end's own request, such as for a title or tags.

    ``stream``: the client wants the answer streamed. Open WebUI never streams such requests; LibreChat streams them
    on some of its connections.
    """
    prompt = _only_prompt(messages)
    if prompt is None:
        return False
    return any(pattern.match(prompt) for pattern in _LIBRE_CHAT_TEXTS) or (not stream and (
        _is_json_task(prompt) or any(pattern.match(prompt) for pattern in _OPEN_WEBUI_TEXTS)))


def _only_prompt(messages: Sequence[Message]) -> str | None:
    """Return the prompt of a conversation without history, less its role prefix; None if there are other messages."""
    turns = list(messages)
    if turns and _is_open(turns[-1]):
        turns.pop()
    if not turns or any(turn.get("role") not in SYSTEM_ROLES for turn in turns[:-1]):
        return None
    last = turns[-1]
    content = last.get("content")
    # Older versions of LibreChat send such a prompt as a system message.
    from_user = last.get("role") == "user" or (len(turns) == 1 and last.get("role") in SYSTEM_ROLES)
    if not from_user or not isinstance(content, str) or last.get("images"):
        return None
    prefix = _ROLE_PREFIX.match(content)
    return content[prefix.end():] if prefix else content


def _is_open(turn: Mapping[str, object]) -> bool:
    """Return whether a message is the empty start of the answer."""
    return turn.get("role") == "assistant" and not turn.get("tool_calls") and (
        str(turn.get("content") or "").strip() in OPEN_ANSWERS)


def _is_json_task(prompt: str) -> bool:
    """Return whether a prompt is Open WebUI's task about a quoted chat, whose answer is a JSON object of a given shape.

    The words do not matter, as administrators translate and rewrite them. A question about documents begins in the
    same way, but quotes the documents first.
    """
    if not _OPEN_WEBUI_TASK.match(prompt):
        return False
    section = _FIRST_SECTION.search(prompt)
    # A question about documents quotes these first, in a section with another name.
    if section is None or section.group(1) != HISTORY_TAG:
        return False
    instructions = prompt[:section.start()]
    return "JSON" in instructions and _OPEN_WEBUI_SHAPE.search(instructions) is not None


def handle_user_prompt(request_id: str, prompt_collection: list[Message], stream: bool, api_key: str | None = None,
                       tools: list[dict[str, object]] | None = None, tool_choice: object = None) -> object:
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


def start_user_prompt(request: RequestContext, messages: list[Message], stream: bool, api_key: str | None = None,
                      tools: list[dict[str, object]] | None = None, tool_choice: object = None) -> Iterator[object]:
    """Choose the workflow and start it. In both modes, the iterator yields the answer, then runs the later nodes."""
    messages = _without_liveness_calls(messages)
    background = _background_workflow(request, messages, stream)
    # A front-end's own request only quotes the conversation, and must not write to its memories.
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
    """Return the conversation's id; "" if it has none, or if it names a folder whose API key the request lacks."""
    found = extract_discussion_id(messages) or ""
    if found and not api_key and holds_data_of_a_key(found):
        logger.warning("The discussion id of this request is the name of a folder with data of an API key; the request "
                       "runs without one")
        return ""
    return found


def _without_liveness_calls(messages: list[Message]) -> list[Message]:
    """Return the conversation without the liveness calls of earlier answers, if the user's settings declare one."""
    liveness = LivenessCall.of(config_utils.user_setting("livenessToolCall"))
    return clean_up(messages, liveness) if liveness else messages


def _background_workflow(request: RequestContext, messages: list[Message], stream: bool) -> WorkflowManager | None:
    """Return the user's workflow for a front-end's own request; None for any other request, or without one."""
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
    return WorkflowManager(workflow)


def _require_default_workflow() -> None:
    """Refuse a request without routing and default workflow, and list the model ids that the client can choose."""
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
