"""The error messages that clients get, and the log lines about errors."""
from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus

from werkzeug.exceptions import HTTPException

from Middleware.exceptions import (
    BackendError,
    ClientError,
    ConfigurationError,
    DataKeyError,
    GateTimeoutError,
    ServerStoppingError,
    WilmerError,
)
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.response_builder_service import ResponseBuilderService
from Middleware.utilities.sensitive_logging_utils import places_of

logger = logging.getLogger(__name__)

# Routes of no dialect.
_PLAIN_PATHS = frozenset(("", "api", "health"))
MODEL_NOT_FOUND = "model_not_found"
# The header of every 503, in seconds.
RETRY_AFTER = ("Retry-After", "5")


@dataclass(frozen=True)
class PublicError:
    """An HTTP status and a one-line message without paths, keys or tracebacks.

    Attributes:
        param, code: as in ``ClientError``; the dialects without such fields leave them out.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None


def error_body(message: str, status: int, path: str, *, param: str | None = None,
               code: str | None = None) -> dict[str, object]:
    """Return the JSON of an error in the dialect of the path; every error of this server has this form.

    A path that is not served, or is not known yet, gets OpenAI's form, which clients of Ollama can show too.
    """
    builder, name = ResponseBuilderService(), path.strip("/")
    if path and (name in _PLAIN_PATHS or name.startswith("api/")):
        return builder.build_ollama_error(message)
    # A path below the model list can only lack its model.
    missing = status == HTTPStatus.NOT_FOUND and name.removeprefix("v1/").startswith("models/")
    return builder.build_openai_error(message, status, code or (MODEL_NOT_FOUND if missing else None), param)


def describe_error(error: BaseException, request: RequestContext | None = None) -> PublicError:
    """Return the public form of any exception."""
    if isinstance(error, ClientError):
        return PublicError(error.status, one_line(str(error)), error.param, error.code)
    # Werkzeug raises these when the body cannot be read.
    if isinstance(error, HTTPException):
        return PublicError(error.code or 500, f"{error.code or 500} {error.name}")
    status = 502 if isinstance(error, BackendError) else 503 if isinstance(error, GateTimeoutError) else 500
    if isinstance(error, WilmerError):
        message = str(error)
    else:
        message = f"Internal error ({type(error).__name__}); the server's log has the details"
    # Errors in a workflow carry the node and file they come from.
    location = getattr(error, "location", "")
    if location:
        message = f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} In {location}."
    if request is not None:
        message = f"{message} [request {request.request_id}]"
    return PublicError(status, one_line(message))


def log_error(error: BaseException, request: RequestContext | None, phase: str) -> None:
    """Log an error: one line if the user can fix it, a traceback if it is a bug.

    A mistake in the configuration is also reported to the listeners of the request.
    """
    # The cancellation has had its line, and so has the end of the server.
    if isinstance(error, ServerStoppingError):
        return
    name = request.request_id if request else "-"
    location = getattr(error, "location", "")
    where = f" in {location}" if location else ""
    if isinstance(error, (ClientError, HTTPException)):
        logger.warning("Request %s refused: %s", name, error)
    elif isinstance(error, WilmerError):
        redact = None if request is None else request.redact
        file = error.file if isinstance(error, DataKeyError) else ""
        logger.error("Request %s failed %s%s: %s%s", name, phase, where, log_text(error, redact),
                     f" (file '{file}')" if file else "")
    elif request is not None and request.redact:
        logger.error("Request %s failed %s%s: %s", name, phase, where, places_of(error))
    else:
        logger.error("Request %s failed %s%s", name, phase, where, exc_info=error)
    mistake = error if isinstance(error, ConfigurationError) else error.__cause__
    if request is not None and request.listeners is not None and isinstance(mistake, ConfigurationError):
        with request_scope(request):
            request.listeners.emit("configuration_failed", mistake)


def one_line(text: str) -> str:
    """Return a string on one line, with single spaces between its words."""
    return " ".join(text.split())
