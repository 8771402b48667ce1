"""What a client is told when something fails."""
from __future__ import annotations

import logging
from dataclasses import dataclass

from werkzeug.exceptions import HTTPException

from Middleware.exceptions import (
    BackendError,
    ClientError,
    ConfigurationError,
    DataKeyError,
    GateTimeoutError,
    WilmerError,
)
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.sensitive_logging_utils import places_of

logger = logging.getLogger(__name__)

RETRY_AFTER = ("Retry-After", "5")  # seconds; the header of every 503


@dataclass(frozen=True)
class PublicError:
    """An HTTP status and a one-line message without paths, keys or tracebacks."""

    status: int
    message: str

    @property
    def is_client_error(self) -> bool:
        """The request itself is wrong, which every dialect says as ``{"error": message}``."""
        return self.status == 400


def describe_error(error: BaseException, request: RequestContext | None = None) -> PublicError:
    """The public form of any exception."""
    if isinstance(error, ClientError):
        return PublicError(error.status, one_line(str(error)))
    if isinstance(error, HTTPException):  # the body could not be read
        return PublicError(error.code or 500, f"{error.code or 500} {error.name}")
    status = 502 if isinstance(error, BackendError) else 503 if isinstance(error, GateTimeoutError) else 500
    if isinstance(error, WilmerError):
        message = str(error)
    else:
        message = f"Internal error ({type(error).__name__}); the server's log has the details"
    location = getattr(error, "location", "")
    if location:
        message = f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} In {location}."
    if request is not None:
        message = f"{message} [request {request.request_id}]"
    return PublicError(status, one_line(message))


def log_error(error: BaseException, request: RequestContext | None, phase: str) -> None:
    """One line for what the user can mend, a traceback for what only we can.

    The listeners of the request learn of a mistake in the configuration.
    """
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
    _report_mistake(error, request)


def _report_mistake(error: BaseException, request: RequestContext | None) -> None:
    mistake = error if isinstance(error, ConfigurationError) else error.__cause__
    if request is not None and request.listeners is not None and isinstance(mistake, ConfigurationError):
        with request_scope(request):
            request.listeners.tell("configuration_failed", mistake)


def one_line(text: str) -> str:
    """The words of a text, without line breaks."""
    return " ".join(text.split())
