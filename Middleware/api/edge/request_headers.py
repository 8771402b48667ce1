"""The credentials in a request's headers: the client's API key and its idempotency key."""
from __future__ import annotations

import hashlib
from typing import Any
from wsgiref.types import WSGIEnvironment

from flask import has_request_context
from flask import request as http

BEARER = "Bearer "
# The default argument that means "the header of the current request"; None means "no header".
CURRENT: Any = object()
# Characters. Clients send UUIDs or hashes; anything longer is ignored.
MAX_IDEMPOTENCY_KEY = 128


def extract_api_key(authorization: str | None = CURRENT) -> str | None:
    """Return the client's key, which follows exactly ``Bearer ``, trimmed; None if there is none.

    Args:
        authorization: the header, by default that of the current Flask request.
    """
    if authorization is CURRENT:
        authorization = http.headers.get("Authorization") if has_request_context() else None
    if not authorization or not authorization.startswith(BEARER):
        return None
    return authorization[len(BEARER):].strip() or None


def extract_idempotency_key(environ: WSGIEnvironment | None = None) -> str | None:
    """Return the key with which a retry replaces the client's earlier attempt, separate for each API key.

    None if the client sent none.

    Args:
        environ: the WSGI environ, by default that of the current Flask request.
    """
    environ = http.environ if environ is None else environ
    value = environ.get("HTTP_X_IDEMPOTENCY_KEY", "").strip()
    if not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        return None
    api_key = extract_api_key(environ.get("HTTP_AUTHORIZATION"))
    owner = hashlib.sha256(api_key.encode("utf-8")).hexdigest()[:16] if api_key else "anon"
    return f"{owner}:{value}"
