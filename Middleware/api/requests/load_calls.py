"""Recognise the calls with which Ollama's clients load a model in advance or unload it: they contain no prompt.

Nothing has to be loaded here, so such a call is answered at once and does not wait at the concurrency gate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from wsgiref.types import WSGIEnvironment

from Middleware.api.dialects import api_type_of
from Middleware.api.requests.messages import string_list
from Middleware.common.constants import OLLAMA_CHAT, OLLAMA_GENERATE

# Such a call names a model and perhaps how long it stays loaded. At the gate only bodies up to this size are read.
MAX_BYTES = 4096


def waits_for_nothing(environ: WSGIEnvironment) -> bool:
    """Return whether a request at the gate is such a call. Its body is in memory, and is read again later."""
    if not _may_be_one(environ):
        return False
    stream = environ["wsgi.input"]
    try:
        body = json.loads(stream.read())
    # A mistake in it is reported when the handler reads it.
    except (ValueError, RecursionError):
        return False
    finally:
        stream.seek(0)
    return isinstance(body, dict) and is_load_call(environ, body)


def is_load_call(environ: WSGIEnvironment, body: Mapping[str, object]) -> bool:
    """Return whether a request of Ollama's API with this parsed body only loads or unloads a model."""
    if not _may_be_one(environ):
        return False
    if api_type_of(environ) == OLLAMA_CHAT:
        return body.get("messages") in (None, [])
    texts = (body.get("system"), body.get("prompt"))
    return all(text in (None, "") for text in texts) and not string_list(body.get("images"))


def _may_be_one(environ: WSGIEnvironment) -> bool:
    length: str = environ.get("CONTENT_LENGTH") or ""
    is_small = length.isascii() and length.isdigit() and len(length) <= 4 and int(length) <= MAX_BYTES
    return is_small and api_type_of(environ) in (OLLAMA_CHAT, OLLAMA_GENERATE)
