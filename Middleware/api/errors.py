"""The error messages that clients get, and the log lines about errors."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from werkzeug.exceptions import HTTPException

from Middleware.api.dialects import Dialect, dialect_of, request_label, route_path
from Middleware.api.running.running_requests import REQUEST_ID_KEY
from Middleware.exceptions import (
    BackendError,
    BackendLoopError,
    ClientError,
    ConfigurationError,
    GateTimeoutError,
    ServerStoppingError,
    StateUnavailableError,
    StoredDataError,
    WilmerError,
)
from Middleware.llmapis.backend_errors import log_text, says_no_quota, says_too_long
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.response_builder_service import ResponseBuilderService
from Middleware.utilities.sensitive_logging_utils import places_of

logger = logging.getLogger(__name__)

MODEL_NOT_FOUND = "model_not_found"
# The header of every 503, in seconds.
RETRY_AFTER = ("Retry-After", "5")
# The packages of OpenAI and Anthropic obey it. They would send a request that fails with 500 or 502 twice more.
NO_RETRY = ("x-should-retry", "false")
# With these, a back-end would answer the same request again.
_LASTING = frozenset((400, 401, 403, 404, 413, 422))
# The same request may succeed in a moment.
_UNAVAILABLE = (GateTimeoutError, StateUnavailableError)
# A server that has sent this one the request sees from 508 that it comes back to itself.
_STATUSES = ((BackendLoopError, 508), (BackendError, 502), (_UNAVAILABLE, 503))
_QUOTED = re.compile(r"'.*'", re.DOTALL)
_PAYMENT_REQUIRED = 402
_TOO_MANY_REQUESTS = 429


class Cause(enum.Enum):
    """The causes of failures that some clients tell apart."""

    OTHER = enum.auto()
    # The same request would fail again.
    LASTING = enum.auto()
    PROMPT_TOO_LONG = enum.auto()
    NO_QUOTA = enum.auto()
    RATE_LIMIT = enum.auto()


@dataclass(frozen=True)
class PublicError:
    """An HTTP status and a one-line message without paths, keys or tracebacks.

    Attributes:
        param, code, details: as in ``ClientError``; the dialects without such fields leave them out.
        cause: of a failure of this server or of a back-end.
        lasting: the same request would fail again, so that a client should not repeat it.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    details: Mapping[str, object] | None = None
    cause: Cause = Cause.OTHER
    lasting: bool = False


def error_body(error: PublicError, environ: Mapping[str, Any]) -> dict[str, object]:
    """Return the JSON of an error in the dialect of a request; every error of this server has this form.

    A request without a known path gets OpenAI's form, which clients of Ollama can show too.
    """
    builder, dialect = ResponseBuilderService(), dialect_of(environ)
    if dialect is Dialect.OLLAMA:
        return builder.build_ollama_error(error.message)
    if dialect is Dialect.ANTHROPIC:
        request_id = environ.get(REQUEST_ID_KEY)
        return builder.build_anthropic_error(
            error.message, error.status, request_id and request_label(request_id), error.details
        )
    if dialect is Dialect.KOBOLD:
        return builder.build_kobold_error(error.message, error.status)
    # A path below the model list can only lack its model.
    missing = error.status == HTTPStatus.NOT_FOUND and route_path(environ).removeprefix("/v1").startswith("/models/")
    return builder.build_openai_error(
        error.message, error.status, error.code or (MODEL_NOT_FOUND if missing else None), error.param
    )


def describe_error(error: BaseException, request: RequestContext | None = None) -> PublicError:
    """Return the public form of any exception."""
    if isinstance(error, ClientError):
        return PublicError(error.status, one_line(str(error)), error.param, error.code, error.details)
    # Werkzeug raises these when the body cannot be read.
    if isinstance(error, HTTPException):
        return PublicError(error.code or 500, f"{error.code or 500} {error.name}")
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
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
    cause = _cause_of(error)
    lasting = cause in (Cause.LASTING, Cause.PROMPT_TOO_LONG) or (
        isinstance(error, BackendError) and error.status in _LASTING
    )
    return PublicError(status, one_line(message), cause=cause, lasting=lasting)


def _cause_of(error: BaseException) -> Cause:
    if isinstance(error, (BackendLoopError, ConfigurationError)):
        return Cause.LASTING
    if not isinstance(error, BackendError):
        return Cause.OTHER
    if says_too_long(error.status, error.body):
        return Cause.PROMPT_TOO_LONG
    if error.status == _PAYMENT_REQUIRED or says_no_quota(error.body):
        return Cause.NO_QUOTA
    if error.status == _TOO_MANY_REQUESTS:
        return Cause.RATE_LIMIT
    return Cause.LASTING if error.status in _LASTING else Cause.OTHER


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
        logger.warning("Request %s refused: %s", name, _without_quotes(error) if request and request.redact else error)
    elif isinstance(error, WilmerError):
        redact = None if request is None else request.redact
        file = error.file if isinstance(error, StoredDataError) else ""
        logger.error(
            "Request %s failed %s%s: %s%s",
            name,
            phase,
            where,
            log_text(error, redact),
            f" (file '{file}')" if file else "",
        )
    elif request is not None and request.redact:
        logger.error("Request %s failed %s%s: %s", name, phase, where, places_of(error))
    else:
        logger.error("Request %s failed %s%s", name, phase, where, exc_info=error)
    mistake = error if isinstance(error, ConfigurationError) else error.__cause__
    if request is not None and request.listeners is not None and isinstance(mistake, ConfigurationError):
        with request_scope(request):
            request.listeners.emit("configuration_failed", mistake)
    # A failure after the answer is that of its node.
    if request is not None and not request.answer_complete:
        report_failure(error, request)


def report_failure(error: BaseException, request: RequestContext) -> None:
    """Tell the listeners of a request what its client gets in place of an answer; of several, the first counts."""
    if request.listeners is not None:
        request.report("request_failed", request, error, describe_error(error, request).message)


def _without_quotes(error: Exception) -> str:
    """Return the text of an error without anything in quotes, which may be the client's words."""
    # From the first to the last, because such words may have quotes in them.
    return _QUOTED.sub("'...'", str(error))


def one_line(text: str) -> str:
    """Return a string on one line, with single spaces between its words."""
    return " ".join(text.split())
