"""What every front-end handler needs: keys, model names, the chunk of the current dialect."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flask import request as http

from Middleware.common import instance_global_variables as globals_
from Middleware.common.constants import OLLAMA_CHAT, OLLAMA_GENERATE, OPENAI_CHAT, OPENAI_COMPLETION
from Middleware.exceptions import ClientError
from Middleware.models.request_context import current_request
from Middleware.services.response_builder_service import ResponseBuilderService, current_model_name
from Middleware.utilities import config_utils

BEARER = "Bearer "
LATEST = ":latest"
MAX_IDEMPOTENCY_KEY = 128  # characters
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def extract_api_key(authorization: str | None) -> str | None:
    """The client's key: what follows exactly ``Bearer ``, trimmed; None if there is none."""
    if not authorization or not authorization.startswith(BEARER):
        return None
    return authorization[len(BEARER):].strip() or None


def extract_idempotency_key(environ: Mapping[str, Any] | None = None) -> str | None:
    """The key by which a client's retry displaces its earlier attempt, kept apart per API key; None if it sent none.

    Args:
        environ: the WSGI environ, by default that of the current Flask request.
    """
    environ = http.environ if environ is None else environ
    value = environ.get("HTTP_X_IDEMPOTENCY_KEY", "").strip()
    if not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        return None
    api_key = extract_api_key(environ.get("HTTP_AUTHORIZATION"))
    return f"{_fingerprint(api_key)[:16] if api_key else 'anon'}:{value}"


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def configured_users() -> list[str]:
    return globals_.USERS or []


def parse_model_field(value: Any) -> tuple[str | None, str | None]:
    """``(user, shared workflow)`` that a request's ``model`` names; None for what it does not name.

    Raises:
        ClientError: the value is neither a text nor null.
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


def set_request_context_from_model(value: Any) -> None:
    """Set user and workflow of the current request from its ``model`` field, clearing what was there."""
    user, workflow = parse_model_field(value)
    globals_.set_request_user(user)
    globals_.set_workflow_override(workflow)


def require_identified_user(peer: str = "") -> None:
    """Refuse a request of multi-user mode that names no user; only a local peer is told the names."""
    users = configured_users()
    if len(users) < 2 or globals_.get_request_user():
        return
    known = f": {', '.join(users)}" if peer in LOOPBACK else ""
    raise ClientError(f"Multi-user mode is active. The 'model' field must name a configured user{known}")


def get_model_name() -> str:
    """The model name of an answer: ``user`` or ``user:workflow``."""
    return current_model_name()


def sse_format(data: str, output_format: str = "openai") -> str:
    """Frame one chunk: server-sent event for OpenAI types, a line for Ollama types."""
    return f"{data}\n" if output_format.startswith("ollama") else f"data: {data}\n\n"


def build_response_json(token: str, finish_reason: str | None = None, additional_fields: dict[str, Any] | None = None,
                        request_id: str | None = None, tool_calls: list[dict[str, Any]] | None = None) -> str:
    """One chunk of the current request's dialect as JSON text; ``additional_fields`` are merged on top."""
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


def set_workflow_override(name: str | None) -> None:
    globals_.set_workflow_override(name)


def clear_workflow_override() -> None:
    globals_.clear_workflow_override()


def get_active_workflow_override() -> str | None:
    return globals_.get_workflow_override()


def clear_request_context() -> None:
    """Forget what belongs to the current request on this thread."""
    context = current_request()
    if context is not None:
        context.user = context.workflow_override = None
        context.redact = False
