"""The credentials in a request's headers: the client's API key and its idempotency key."""
from __future__ import annotations

import hashlib
from typing import Any
from wsgiref.types import WSGIEnvironment

from flask import has_request_context
from flask import request as http

BEARER = "Bearer "
CURRENT: Any = object()  # stands for the header of the current request
MAX_IDEMPOTENCY_KEY = 128  # characters


def extract_api_key(authorization: str | None = CURRENT) -> str | None:
    """The client's key: what follows exactly ``Bearer ``, trimmed; None if there is none.

    Args:
        authorization: the header, by default that of the current Flask request.
    """
    if authorization is CURRENT:
        authorization = http.headers.get("Authorization") if has_request_context() else None
    if not authorization or not authorization.startswith(BEARER):
        return None
    return authorization[len(BEARER):].strip() or None


def extract_idempotency_key(environ: WSGIEnvironment | None = None) -> str | None:
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
