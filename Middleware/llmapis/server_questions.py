"""Questions to LLM servers about themselves: which models they have, how they are. Calls have ``transport``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from Middleware.utilities.http.client import HttpClient, HttpResponse
from Middleware.utilities.http.via import via_headers
from Middleware.utilities.http.wire import HttpRequest, parse_target

# Lists of hundreds of models take some hundred kilobytes; anything larger is not such a list.
MAX_BYTES = 4 * 1024 * 1024


def ask_server(
    url: str, headers: Mapping[str, str], seconds: float, body: object = None, max_bytes: int = MAX_BYTES
) -> HttpResponse:
    """Return the answer, whatever its status. Redirects are not followed. ``body``: makes it a POST of JSON.

    Raises HttpError without an answer, ConfigurationError for an invalid address.
    """
    data = None if body is None else json.dumps(body).encode("utf-8")
    known = {"Accept": "application/json", **headers}
    method, content = ("GET", {}) if data is None else ("POST", {"Content-Type": "application/json"})
    request = HttpRequest(
        parse_target(url), method, {**known, **content}, seconds, seconds, max_bytes=max_bytes, varying=via_headers()
    )
    return HttpClient().call(request, data, seconds=seconds)


def json_in(response: HttpResponse) -> object:
    """Return the JSON of an answer; None for anything else."""
    try:
        return json.loads(response.body) if response.complete else None
    # RecursionError: JSON that nests too deeply.
    except (ValueError, RecursionError):
        return None
