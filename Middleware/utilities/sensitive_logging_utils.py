"""Redaction of conversations and secrets in the log."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from Middleware.models.request_context import RequestContext, current_request, set_current_request

REDACTED = "[Redacted]"
MASK = "***REDACTED***"
TRUNCATED = "...[truncated]..."
# Longer values would make the logged requests unreadable.
MAX_IMAGE_CHARACTERS = 200
MAX_TEXT_CHARACTERS = 1000
SECRET_KEYS = frozenset(
    {
        "apikey",
        "api_key",
        "api_secret",
        "password",
        "passwd",
        "pwd",
        "token",
        "access_token",
        "refresh_token",
        "auth_token",
        "bearer_token",
        "secret",
        "client_secret",
        "authorization",
        "auth",
        "private_key",
        "privatekey",
    }
)
_RULE = "*" * 80
_SECRET_MEMBER = re.compile(rf'(?i)("(?:{"|".join(sorted(SECRET_KEYS))}|key)"\s*:\s*")(?:[^"\\]|\\.)*')
_SECRET_PARAMETER = re.compile(rf"(?i)(^|&)((?:{'|'.join(sorted(SECRET_KEYS))}|key)=)[^&]*")


def set_encryption_context(active: bool) -> None:
    """Set whether conversation text of the current request is redacted in the log."""
    request = current_request()
    # Scripts and tests set it without a request.
    if request is None:
        request = RequestContext()
        set_current_request(request)
    request.redact = bool(active)


def clear_encryption_context() -> None:
    """End the redaction of the current request, if there is one."""
    request = current_request()
    if request is not None:
        request.redact = False


def is_encryption_active() -> bool:
    """Return whether conversation text of the current request is redacted in the log."""
    request = current_request()
    return request is not None and request.redact


def sensitive_log(logger: logging.Logger, level: int, msg: str, *args: object) -> None:
    """Log a message; ``[Redacted]`` while conversation text of the current request is redacted."""
    # The record names the caller, as with ``logger.log``.
    if is_encryption_active():
        logger.log(level, REDACTED, stacklevel=2)
    else:
        logger.log(level, msg, *args, stacklevel=2)


def sensitive_log_lazy(logger: logging.Logger, level: int, msg: str, *callables: Callable[[], object]) -> None:
    """Like ``sensitive_log``; the arguments are the results of ``callables``, called only if they will be written."""
    if not logger.isEnabledFor(level):
        return
    if is_encryption_active():
        logger.log(level, REDACTED, stacklevel=2)
    else:
        logger.log(level, msg, *(compute() for compute in callables), stacklevel=2)


def log_prompt_content(logger: logging.Logger, label: str, text: object) -> None:
    """Log conversation text between two rules of asterisks, or one line that it was redacted; at the level DEBUG."""
    if is_encryption_active():
        logger.debug("[%s redacted]", label, stacklevel=2)
    else:
        logger.debug("%s:\n%s\n%s\n%s", label, _RULE, text, _RULE, stacklevel=2)


def places_of(error: BaseException) -> str:
    """Return type and traceback of an error and of its cause, without messages."""
    # A message may quote a conversation.
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _raised_at(error) if cause is None else f"{_raised_at(error)}\nafter {_raised_at(cause)}"


def _raised_at(error: BaseException) -> str:
    return f"{type(error).__name__}, raised at\n{''.join(traceback.format_tb(error.__traceback__)).rstrip()}"


def truncate_for_log(value: object) -> object:
    """Return a copy of a request body in which image data over 200 characters and other text over 1000 is shortened."""
    if isinstance(value, dict):
        return {key: truncate_for_log(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [truncate_for_log(item) for item in value]
    return _shorten(value) if isinstance(value, str) else value


def _shorten(text: str) -> str:
    if text.startswith("data:image"):
        header, mark, data = text.partition("base64,")
        if mark and len(text) > MAX_IMAGE_CHARACTERS:
            return f"{header}{mark}{data[:50]}{TRUNCATED}{data[-50:]}"
        if mark:
            return text
    return text if len(text) <= MAX_TEXT_CHARACTERS else f"{text[:100]}{TRUNCATED}{text[-100:]}"


def mask_url(url: str) -> str:
    """Return ``url`` without user name and password, and with the values of secret-like parameters masked."""
    # Nothing to mask: neither a password nor a parameter can do without one of these.
    if "@" not in url and "?" not in url:
        return url
    try:
        parts = urlsplit(url)
    # It is not a URL, so the password in it, if there is one, cannot be found.
    except ValueError:
        return MASK if "@" in url else url
    host = parts.netloc.rpartition("@")[2]
    query = _SECRET_PARAMETER.sub(rf"\1\2{MASK}", parts.query)
    if host == parts.netloc and query == parts.query:
        return url
    return urlunsplit((parts.scheme, host, parts.path, query, parts.fragment))


def mask_data(text: str) -> str:
    """Return data of a request with the values of secret-like parameters and of members of JSON objects masked."""
    return _SECRET_MEMBER.sub(rf"\1{MASK}", _SECRET_PARAMETER.sub(rf"\1\2{MASK}", text))


def host_in(url: str) -> str | None:
    """Return the host of ``url``, or None."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
