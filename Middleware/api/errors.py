"""What a client is told when something fails."""
from __future__ import annotations

import logging
from dataclasses import dataclass

from Middleware.exceptions import BackendError, ClientError, ConfigurationError, GateTimeoutError, WilmerError
from Middleware.models.request_context import RequestContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicError:
    """An HTTP status and a one-line message without paths, keys or tracebacks."""

    status: int
    message: str
    is_client_error: bool = False


def describe_error(error: BaseException, request: RequestContext | None = None) -> PublicError:
    """The public form of any exception."""
    if isinstance(error, ClientError):
        return PublicError(error.status, _one_line(str(error)), True)
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
    return PublicError(status, _one_line(message))


def log_error(error: BaseException, request: RequestContext | None, phase: str) -> None:
    """One line for what the user can mend, a traceback for what only we can."""
    name = request.request_id if request else "-"
    location = getattr(error, "location", "")
    where = f" in {location}" if location else ""
    if isinstance(error, ClientError):
        logger.warning("Request %s refused: %s", name, error)
    elif isinstance(error, (ConfigurationError, BackendError, GateTimeoutError)):
        logger.error("Request %s failed %s%s: %s", name, phase, where, error)
    else:
        logger.error("Request %s failed %s%s", name, phase, where, exc_info=error)


def _one_line(text: str) -> str:
    return " ".join(text.split())
