"""The one bridge from the HTTP layer to the engine."""
from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    """Whether a conversation in internal form is such a request. ``stream``: the client wants the answer streamed.

    Open WebUI never streams them; LibreChat does with some of its connections.
    """
    prompt = _only_prompt(messages)
    if prompt is None:
        return False
    return _is_from_libre_chat(prompt) or (not stream and _is_from_open_webui(prompt))


def _only_prompt(messages: Sequence[Message]) -> str | None:
    """The one prompt of a conversation without history, less its role prefix; None if there is more, or other data."""
    turns = list(messages)
    if turns and _is_open(turns[-1]):
        turns.pop()
    if not turns or any(turn.get("role") not in SYSTEM_ROLES for turn in turns[:-1]):
        return None
    last = turns[-1]
    content = last.get("content")
    from_user = last.get("role") == "user" or (len(turns) == 1 and last.get("role") in SYSTEM_ROLES)  # older LibreChat
    if not from_user or not isinstance(content, str) or last.get("images"):
        return None
    prefix = _ROLE_PREFIX.match(content)
    return content[prefix.end():] if prefix else content


def _is_open(turn: Mapping[str, object]) -> bool:
    """Whether it is the empty start of the answer."""
    return turn.get("role") == "assistant" and not turn.get("tool_calls") and (
        str(turn.get("content") or "").strip() in OPEN_ANSWERS)


def _is_from_libre_chat(prompt: str) -> bool:
    return any(pattern.match(prompt) for pattern in _LIBRE_CHAT_TEXTS)


def _is_from_open_webui(prompt: str) -> bool:
    return _is_json_task(prompt) or any(pattern.match(prompt) for pattern in _OPEN_WEBUI_TEXTS)


def _is_json_task(prompt: str) -> bool:
    """A task about the quoted chat, answered in a JSON object whose shape is shown before the chat.

    Its words are not looked at: administrators translate and rewrite them. A question about documents begins in the
    same way, but quotes those first.
    """
    if not _OPEN_WEBUI_TASK.match(prompt):
        return False
    section = _FIRST_SECTION.search(prompt)
    if section is None or section.group(1) != HISTORY_TAG:
        return False
    instructions = prompt[:section.start()]
    return "JSON" in instructions and _OPEN_WEBUI_SHAPE.search(instructions) is not None


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
