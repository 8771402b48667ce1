"""Helpers for all front-end handlers: users and model names of the request, keys, chunks of the current dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flask import has_request_context
from flask import request as http

from Middleware.api.edge.access_keys import PERMITTED_USERS_KEY, api_key_of, idempotency_key_in
from Middleware.api.edge.browser_safety import is_loopback_name
from Middleware.api.edge.client_addresses import FORWARDED
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as globals_
from Middleware.common.constants import OLLAMA_CHAT, OLLAMA_GENERATE, OPENAI_CHAT, OPENAI_COMPLETION
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message, ToolCall
from Middleware.models.request_context import current_request
from Middleware.services.response_builder_service import ResponseBuilderService, current_model_name
from Middleware.utilities import config_utils
from Middleware.utilities.config.users import configured_users
from Middleware.utilities.http.addresses import is_loopback

LATEST = ":latest"
# Of a request. Far above any real conversation: the limits only keep a faulty client from occupying all memory.
MAX_MESSAGES = 100_000
MAX_IMAGES = 1_000

# The documented names of users' scripts for these functions.
get_model_name = current_model_name
set_workflow_override = globals_.set_workflow_override
clear_workflow_override = globals_.clear_workflow_override
get_active_workflow_override = globals_.get_workflow_override


def extract_api_key() -> str | None:
    """Return the key that the client of the current request sent; None without one, or outside of a request."""
    return api_key_of(http.environ) if has_request_context() else None


def extract_idempotency_key() -> str | None:
    """Return the idempotency key of the current request; see ``idempotency_key_in``."""
    return idempotency_key_in(http.environ)


def page_limit(default: int, highest: int) -> int | None:
    """Return the ``limit`` in the query of a list; None if it is not a whole number from 1 to ``highest``."""
    text = http.args.get("limit", str(default))
    # Python would convert digits of other scripts, and refuse thousands of them.
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(highest)) else 0
    return number if 1 <= number <= highest else None


def parse_model_field(value: object) -> tuple[str | None, str | None]:
    """Return the user and the shared workflow that a request's ``model`` names, each None if it does not name one.

    Raises:
        ClientError: the value is neither a string nor null.
    """
    if value is None or value == "":
        return None, None
    if not isinstance(value, str):
        raise ClientError("The 'model' field must be a text.")
    name = value.removesuffix(LATEST)
    users = configured_users()
    multi = len(users) > 1
    left, colon, right = name.partition(":")
    if colon:
        if multi and left in users:
            return left, right if config_utils.shared_selection_exists(right, left) else None
        if not multi and config_utils.shared_selection_exists(right):
            return None, right
    if multi:
        return (name, None) if name in users else (None, None)
    return None, name if config_utils.shared_selection_exists(name) else None


def set_request_context_from_model(value: object) -> None:
    """Set user and workflow of the current request from its ``model`` field, replacing earlier values.

    Without a model, the user is the one that the client's key is for, if there is exactly one.
    """
    user, workflow = parse_model_field(value)
    if value is None or value == "":
        user = _user_of_key()
    globals_.set_request_user(user)
    globals_.set_workflow_override(workflow)


def set_request_user_from_model(value: object) -> None:
    """Set only the user of the current request, from the ``model`` of a request that runs no workflow.

    It may be a name that this server does not know; then the user is the one that the client's key is for.
    """
    globals_.set_request_user(parse_model_field(value)[0] or _user_of_key())


def require_identified_user(peer: str = "") -> None:
    """Refuse a request that names no user although there are several, or a user that the client's key is not for.

    Only a local client gets the names of the users in the message.
    """
    users, permitted = configured_users(), permitted_users()
    if len(users) > 1 and not globals_.get_request_user():
        visible = [user for user in users if permitted is None or user in permitted]
        known = f": {', '.join(visible)}" if visible and _is_local(peer) else ""
        raise ClientError(f"Multi-user mode is active. The 'model' field must name a configured user{known}")
    if permitted is not None and config_utils.get_current_username() not in permitted:
        raise ClientError("The key of this request is not for the user that the 'model' field names.", 403)


def _user_of_key() -> str | None:
    """Return the only one of several users that the client's key is for; None if there is no such user."""
    users, permitted = configured_users(), permitted_users()
    possible = [user for user in users if user in permitted] if permitted is not None and len(users) > 1 else []
    return possible[0] if len(possible) == 1 else None


def permitted_users() -> frozenset[str] | None:
    """Return the users that the client's key is for; None for all."""
    return http.environ.get(PERMITTED_USERS_KEY) if has_request_context() else None


def require_permitted_request(request_id: str) -> frozenset[str] | None:
    """Refuse access to a running request unless it belongs to a user that the client's key is for.

    Returns the users whose requests the client may name, where another process has the request; None for all.
    """
    permitted, request = permitted_users(), running_requests().find(request_id)
    if len(configured_users()) <= 1:
        return None
    # This includes requests that still wait for a slot, whose user is not known yet.
    if permitted is not None and request is not None and request.user not in permitted:
        raise ClientError("The key of this request is not for the user of the request that it names.", 403)
    return permitted


def visible_model_ids() -> list[str]:
    """Return the ids of the model list, without those of users that the client's key is not for."""
    permitted, ids = permitted_users(), config_utils.model_ids()
    return ids if permitted is None else [name for name in ids if name.partition(":")[0] in permitted]


def _is_local(peer: str) -> bool:
    """Return whether a client runs on this computer, and is not a proxy that forwards requests of others."""
    if not is_loopback(peer) or not has_request_context():
        return is_loopback(peer)
    return is_loopback_name(http.environ) and not any(name in http.environ for name in FORWARDED)


def check_counts(messages: Sequence[Message]) -> None:
    """Refuse requests with more messages or images than the limits allow."""
    images = sum(len(message["images"]) for message in messages if message.get("images"))
    for count, limit, things in ((len(messages), MAX_MESSAGES, "messages"), (images, MAX_IMAGES, "images")):
        if count > limit:
            raise ClientError(f"The request has {count} {things}; {limit} are the most that are accepted.", 413)


def sse_format(data: str, output_format: str = "openai") -> str:
    """Frame one chunk: server-sent event for OpenAI types, a line for Ollama types."""
    return f"{data}\n" if output_format.startswith("ollama") else f"data: {data}\n\n"


def build_response_json(
    token: str,
    finish_reason: str | None = None,
    additional_fields: dict[str, object] | None = None,
    request_id: str | None = None,
    tool_calls: list[ToolCall] | None = None,
) -> str:
    """Return one chunk in the current request's dialect as a JSON string; ``additional_fields`` are merged into it."""
    builder, api_type = ResponseBuilderService(), globals_.get_api_type()
    if api_type in ("openai", OPENAI_CHAT):
        chunk = builder.build_openai_chat_completion_chunk(token, finish_reason, tool_calls)
    elif api_type == OPENAI_COMPLETION:
        chunk = builder.build_openai_completion_chunk(token, finish_reason)
    elif api_type == OLLAMA_CHAT:
        chunk = builder.build_ollama_chat_chunk(token, finish_reason, request_id, tool_calls)
    elif api_type == OLLAMA_GENERATE:
        chunk = builder.build_ollama_generate_chunk(token, finish_reason, request_id)
    else:
        raise ValueError(f"unknown API type {api_type!r}")
    return json.dumps({**chunk, **(additional_fields or {})}, ensure_ascii=False)


def clear_request_context() -> None:
    """Reset user, workflow and redaction of the current request on this thread."""
    context = current_request()
    if context is not None:
        context.user = context.workflow_override = None
        context.redact = False
