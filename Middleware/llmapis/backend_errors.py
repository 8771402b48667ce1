"""What a person reads when a back-end fails: which endpoint, what happened, what to check.

Messages carry the URL without user, password and query, and none of the request's keys.
"""
from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigValueError,
)
from Middleware.llmapis.transport_wire import Target

MAX_BODY_CHARACTERS = 500
NEVER_BETTER = (ssl.SSLCertVerificationError, ConfigValueError)
"""Causes of a failed connection that another try cannot cure."""

_SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "proxy-authorization", "x-goog-api-key")
_MESSAGE_KEYS = ("message", "detail", "error", "msg", "error_description")


def short_body(body: bytes, secrets: tuple[str, ...] = ()) -> str:
    """The server's own message out of an error body: one line, at most 500 characters, without ``secrets``."""
    text = body.decode("utf-8", "replace")
    try:
        text = _message_in(json.loads(text)) or text
    except (ValueError, RecursionError):
        if re.match(r"\s*<", text):
            title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
            text = title[1] if title else re.sub(r"<[^>]*>", " ", text[:20000])
    for secret in secrets:
        text = text.replace(secret, "***")
    text = " ".join(text.split())
    return text if len(text) <= MAX_BODY_CHARACTERS else text[:MAX_BODY_CHARACTERS - 3] + "..."


def _message_in(data: Any, depth: int = 0) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, list) and data and depth < 4:
        return _message_in(data[0], depth + 1)
    if isinstance(data, dict) and depth < 4:
        for key in ("error", *_MESSAGE_KEYS):
            found = _message_in(data.get(key), depth + 1)
            if found:
                return found
    return ""


def secrets_of(headers: Mapping[str, str], target: Target) -> tuple[str, ...]:
    """Texts of a request that must not appear in messages, longest first."""
    found = set(target.secrets)
    for name, value in headers.items():
        if name.lower() in _SECRET_HEADERS:
            found.update((value, value.rpartition(" ")[2]))
    return tuple(sorted((text for text in found if len(text) >= 4), key=len, reverse=True))


def connect_error(endpoint: str, target: Target, cause: BaseException) -> BackendError:
    """Why no connection came about."""
    where = _where(endpoint, target)
    root = root_cause(cause)
    if isinstance(root, ConfigValueError):
        return BackendConnectionError(f"{where}: {root}", endpoint=endpoint)
    if isinstance(root, ConnectionRefusedError):
        return BackendConnectionError(
            f"{where}: connection refused. Is the LLM server running, and is this its port? Inside a container, "
            "localhost means the container itself.", endpoint=endpoint)
    if isinstance(root, socket.gaierror):
        return BackendConnectionError(f"{where}: the host name '{target.host}' cannot be resolved. Check the URL of "
                                      "the endpoint.", endpoint=endpoint)
    if isinstance(root, ssl.SSLCertVerificationError):
        return BackendConnectionError(f"{where}: the server's TLS certificate was not accepted "
                                      f"({root.verify_message}).", endpoint=endpoint)
    if isinstance(root, ssl.SSLError):
        return BackendConnectionError(f"{where}: no TLS connection came about. Does the server speak https, or should "
                                      "the URL start with http://?", endpoint=endpoint)
    if isinstance(root, TimeoutError):
        return connect_timeout_error(endpoint, target)
    text = root.strerror if isinstance(root, OSError) and root.strerror else type(root).__name__
    return BackendConnectionError(f"{where}: no connection ({text}).", endpoint=endpoint)


def connect_timeout_error(endpoint: str, target: Target) -> BackendTimeoutError:
    return BackendTimeoutError(f"{_where(endpoint, target)}: could not connect in time. Is the host reachable from "
                               "here, and is the port open?", endpoint=endpoint)


def read_timeout_error(endpoint: str, target: Target, seconds: float) -> BackendTimeoutError:
    return BackendTimeoutError(f"{_where(endpoint, target)}: no data for {seconds:g} seconds.", endpoint=endpoint)


def lost_error(endpoint: str, target: Target, *, answered: bool) -> BackendConnectionError:
    """The connection ended too early: before any answer, or within it."""
    when = "in the middle of its answer" if answered else "before it answered"
    return BackendConnectionError(f"{_where(endpoint, target)}: the server closed the connection {when}. It may have "
                                  "crashed or run out of memory; see its log.", endpoint=endpoint)


def wire_error(endpoint: str, target: Target, problem: str) -> BackendResponseError:
    return BackendResponseError(f"{_where(endpoint, target)}: the answer is not proper HTTP ({problem}). Check host, "
                                "port and http:// or https:// in the URL.", endpoint=endpoint)


def not_json_error(endpoint: str, target: Target, status: int, content_type: str, size: int) -> BackendResponseError:
    kind = content_type.partition(";")[0].strip()[:60] or "no content type"
    return BackendResponseError(f"{_where(endpoint, target)}: the answer is not JSON ({kind}, {size} bytes). Is this "
                                "the URL of the API, and the right ApiType?", endpoint=endpoint, status=status)


def status_error(endpoint: str, target: Target, status: int, reason: str, body: str, location: str = "") \
        -> BackendStatusError:
    """An answer with a status that is no success."""
    said = f": {body}" if body else ""
    hint = _hint(status, location)
    text = f"{_where(endpoint, target)}: status {status}{f' {reason}' if reason else ''}{said}"
    if hint:
        text = f"{text}{'' if text.endswith(('.', '!', '?')) else '.'} {hint}"
    return BackendStatusError(text, endpoint=endpoint, status=status, body=body)


def _hint(status: int, location: str) -> str:
    if 300 <= status < 400:
        where = f" (to {location.partition('?')[0][:200]})" if location and "@" not in location else ""
        return f"The server redirects{where}; put the final URL into the endpoint."
    return {
        401: "Check 'apiKey' of the endpoint.",
        403: "Check 'apiKey' of the endpoint and what it may do.",
        404: "Check the URL and the ApiType of the endpoint (wrong path?) and the model name.",
        405: "Check the URL and the ApiType of the endpoint (wrong path?).",
        413: "The request is too large for the server.",
        429: "The server limits the rate of requests.",
        503: "The server may still be loading its model.",
    }.get(status, "")


def root_cause(error: BaseException) -> BaseException:
    """The system error at the bottom of a chain of wrappers."""
    seen = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = error.__cause__ or error.__context__
        if isinstance(error, OSError) and error.errno is not None or inner is None:
            break
        if isinstance(error, (TimeoutError, ssl.SSLError, socket.gaierror, ConfigValueError)):
            break
        error = inner
    return error


def _where(endpoint: str, target: Target) -> str:
    return f"Endpoint '{endpoint}' ({target.display})"
