"""The API that a request belongs to, which its path decides: before the handler, and without a look at the body."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from Middleware.common.constants import (
    ANTHROPIC_MESSAGES,
    KOBOLD_GENERATE,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OPENAI_CHAT,
    OPENAI_COMPLETION,
    OPENAI_RESPONSES,
)

# Routes of no API, whose errors have Ollama's form.
_PLAIN = frozenset(("", "api", "health"))
_MODELS = "models"
_MESSAGES = "messages"
_SLASHES = re.compile("//+")
# KoboldCpp's API shares /api with Ollama's, which has no such folders.
_KOBOLD = ("api/v1/", "api/extra/")
ANTHROPIC_VERSION = "HTTP_ANTHROPIC_VERSION"
"""The header, as the WSGI environ names it, by which a request for the model list shows Anthropic's API."""
API_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("/v1/chat/completions", "/chat/completions"), OPENAI_CHAT),
    **dict.fromkeys(("/v1/completions", "/completions"), OPENAI_COMPLETION),
    **dict.fromkeys(("/v1/responses", "/responses"), OPENAI_RESPONSES),
    **dict.fromkeys(("/v1/messages", "/messages"), ANTHROPIC_MESSAGES),
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_GENERATE,
    **dict.fromkeys(("/api/v1/generate", "/api/extra/generate/stream"), KOBOLD_GENERATE),
}
"""The routes that run a workflow, which wait at the gate, with the API type of their requests."""
OTHER_API = "openai"
"""The API type of requests that run no workflow."""


class Dialect(enum.Enum):
    """A family of client APIs, with its form of errors."""

    OPENAI = enum.auto()
    OLLAMA = enum.auto()
    ANTHROPIC = enum.auto()
    KOBOLD = enum.auto()


def dialect_of(environ: Mapping[str, Any]) -> Dialect:
    """Return the API of a request. A path that is not known yet, "", counts as OpenAI's."""
    path = environ.get("PATH_INFO", "")
    name = plain_path(path).strip("/")
    if name.startswith(_KOBOLD):
        return Dialect.KOBOLD
    if path and (name in _PLAIN or name.startswith("api/")):
        return Dialect.OLLAMA
    first = name.removeprefix("v1/").partition("/")[0]
    if first == _MESSAGES or (first == _MODELS and ANTHROPIC_VERSION in environ):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


# It is asked several times for each request, and most are for a few paths. Others may be long, so it keeps few.
@lru_cache(maxsize=64)
def plain_path(path: str) -> str:
    """Return the path of a request as the application's routes spell it. Base URLs are pasted with slashes and /v1."""
    if path[:1] != "/":
        return path
    path = _SLASHES.sub("/", path)
    # Anthropic's base URLs end without /v1, which its clients add; in many programs only one with /v1 can be entered.
    while path.startswith("/v1/v1/"):
        path = path.removeprefix("/v1")
    return path.rstrip("/") or "/"


def route_path(environ: Mapping[str, Any]) -> str:
    """Return the plain path of a request."""
    return plain_path(environ.get("PATH_INFO", ""))


def api_type_of(environ: Mapping[str, Any]) -> str:
    """Return the API type of a request, which its path decides; OTHER_API if it runs no workflow."""
    return API_TYPES.get(route_path(environ), OTHER_API)


def request_label(request_id: str) -> str:
    """Return the id of a request as Anthropic's clients know it, from their header ``request-id``."""
    return "req_" + request_id.replace("-", "")
