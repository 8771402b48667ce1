"""Recognise the calls with which Ollama's clients load a model in advance or unload it: they contain no prompt.

Nothing has to be loaded here, so such a call is answered at once and does not wait at the concurrency gate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from wsgiref.types import WSGIEnvironment

from Middleware.api.dialects import api_type_of
from Middleware.common.constants import OLLAMA_CHAT, OLLAMA_GENERATE
from Middleware.utilities.json_data import has_too_many_values

# Such a call names a model and perhaps how long it stays loaded. At the gate only bodies up to this size are read.
MAX_BYTES = 4096
_SHORT = re.compile("[0-9]{1,4}")


def is_load_call(environ: WSGIEnvironment, body: Mapping[str, object] | None = None) -> bool:
    """Return whether a request only loads or unloads a model. ``body``: None for a request at the gate."""
    kind, length = api_type_of(environ), environ.get("CONTENT_LENGTH") or ""
    if kind not in (OLLAMA_CHAT, OLLAMA_GENERATE) or not _SHORT.fullmatch(length) or int(length) > MAX_BYTES:
        return False
    asked = waiting_body(environ) if body is None else body
    if kind == OLLAMA_CHAT:
        return asked.get("messages") in (None, [])
    return asked.get("prompt") in (None, "") and asked.get("images") in (None, [], [""])


def waiting_body(environ: WSGIEnvironment) -> Mapping[str, object]:
    """Return the JSON object in the body of a request at the gate; an empty one for anything else.

    The body must have been read into memory. It is read again later.
    """
    stream = environ.get("wsgi.input")
    if stream is None:
        return {}
    try:
        data = stream.read()
        # The handler refuses it.
        body = None if has_too_many_values(data) else json.loads(data)
    # A mistake in it is reported when the handler reads it.
    except (ValueError, RecursionError):
        return {}
    finally:
        stream.seek(0)
    return body if isinstance(body, dict) else {}
