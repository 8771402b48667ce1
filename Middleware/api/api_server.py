"""Build the Flask application: find the front-end handlers and register their routes."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Callable

from flask import Flask, Response
from flask import request as http
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Rule

from Middleware.api import handlers
from Middleware.api.errors import PublicError, error_body, log_error, one_line
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, json_response
from Middleware.api.running.running_requests import REQUEST_ID_KEY

logger = logging.getLogger(__name__)

BASE_URLS = (
    "The base URL is this server's address, for OpenAI clients with /v1 behind it, for Ollama and Anthropic "
    "clients with nothing."
)
NOT_OFFERED = "WilmerAI does not offer this service, only chats, completions, responses, messages and embeddings."
# Of the APIs of OpenAI, Anthropic and Ollama, after /v1 or /api.
OTHER_SERVICES = frozenset(
    (
        "assistants",
        "audio",
        "batches",
        "blobs",
        "conversations",
        "copy",
        "create",
        "delete",
        "files",
        "images",
        "messages",
        "moderations",
        "push",
        "realtime",
        "rerank",
        "responses",
    )
)


class MatchedRule(Rule):
    """A rule that finds the function for a path, and builds no path for a function (``url_for``).

    Werkzeug compiles code for the latter, for each rule, which took most of the time in which an application is made.
    """

    def _compile_builder(self, append_unknown: bool = True) -> Callable[..., tuple[str, str]]:
        return _builds_nothing


def _builds_nothing(rule: Rule, **values: object) -> tuple[str, str]:
    raise NotImplementedError(f"no path is built from the rule {rule.rule}")


class ApiServer:
    """The application with all routes. ``app`` is the Flask object."""

    def __init__(self, app_instance: Flask | None = None) -> None:
        self.app = app_instance or Flask("wilmer", static_folder=None)
        self.app.url_rule_class = MatchedRule
        self.app.json.ensure_ascii = False  # type: ignore[attr-defined]
        self.app.url_map.strict_slashes = False
        # Merging would redirect, and clients do not follow a redirect of a POST.
        self.app.url_map.merge_slashes = False
        self.app.register_error_handler(HTTPException, _http_error)
        self.app.register_error_handler(Exception, _unexpected_error)
        for handler in discover_handlers():
            try:
                handler.register_routes(self.app)
            # One broken dialect must not disable the others.
            except Exception:
                logger.exception(
                    "The routes of the front-end handler %s could not be registered", type(handler).__name__
                )


def discover_handlers() -> list[BaseApiHandler]:
    """Return one instance of every concrete handler under ``Middleware/api/handlers``; log and skip broken modules."""
    found: dict[type[BaseApiHandler], BaseApiHandler] = {}
    for module in pkgutil.walk_packages(handlers.__path__, handlers.__name__ + "."):
        name = module.name.rpartition(".")[2]
        if module.ispkg or name.startswith(("__", "base_")):
            continue
        try:
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
            for _, member in members:
                if issubclass(member, BaseApiHandler) and not inspect.isabstract(member) and member not in found:
                    found[member] = member()
        # One broken dialect must not disable the others.
        except Exception:
            logger.exception("The front-end handler %s could not be loaded", module.name)
    return list(found.values())


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    text = one_line(f"{status} {error.name}: {http.method} {http.path[:200]}")
    logger.warning("Request %s refused: %s", http.environ.get(REQUEST_ID_KEY, "-"), ascii(text)[1:-1])
    response = _error(text if status != 404 else f"{text}. {_hint(http.path)}", status)
    if allowed := getattr(error, "valid_methods", None):
        response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


def _hint(path: str) -> str:
    """Return a hint for a client that requested a path without a route."""
    words = path.strip("/").split("/")
    while words[:1] in (["v1"], ["api"]):
        del words[0]
    return NOT_OFFERED if words and words[0] in OTHER_SERVICES else BASE_URLS


def _unexpected_error(error: Exception) -> Response:
    log_error(error, None, f"at {http.path}")
    return _error("Internal error; the server's log has the details", 500)


def _error(message: str, status: int) -> Response:
    return json_response(error_body(PublicError(status, message), http.environ), status)
