"""The output of a WebFetch node: the text of a response or of a failure."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable

from Middleware.workflows.tools.web.fetch import ResponseTooLargeError, WebFetchError, WebResponse
from Middleware.workflows.tools.web.html_text import visible_text

_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_META_WITHIN_BYTES = 2048
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

Stopped = Callable[[], bool]


def render_response(response: WebResponse, output_format: str, stopped: Stopped) -> str:
    """Return the output of a node whose request succeeded. Raises WebFetchError if it wanted JSON and got something
    else.
    """
    text = body_text(response)
    if output_format == "json":
        try:
            return _as_json(json.loads(text))
        except (ValueError, RecursionError):
            raise WebFetchError("WebFetch expected JSON, but the response is not JSON.", response) from None
    if output_format == "full":
        return _as_json({"status_code": response.status, "headers": dict(response.headers), "body": text})
    return visible_text(text, stopped) if output_format == "html-stripped" else text


def render_failure(error: WebFetchError, output_format: str, stopped: Stopped) -> str:
    """Return the output of a node whose request failed, where failures are not raised."""
    response = error.response
    if output_format == "full":
        return _as_json(
            {
                "error": str(error),
                "status_code": response.status if response else None,
                "headers": dict(response.headers) if response else None,
                "body": body_text(response) if response else None,
            }
        )
    # A part of a document must not pass for the whole one.
    if response is None or isinstance(error, ResponseTooLargeError):
        return str(error)
    text = body_text(response)
    return (visible_text(text, stopped) if output_format == "html-stripped" else text) or str(error)


def body_text(response: WebResponse) -> str:
    """Return the body, decoded by its byte order mark, the charset of response or page, or UTF-8, or Windows-1252."""
    body = response.body
    named = _CHARSET.search(response.header("content-type"))
    mark = next((charset for mark, charset in _MARKS if body.startswith(mark)), None)
    page = _META.search(body[:_META_WITHIN_BYTES])
    charset = mark or (named[1] if named else page[1].decode("ascii") if page else "")
    try:
        return body.decode(charset, "replace")
    except (LookupError, ValueError):
        # The response names no charset, or an unknown one.
        pass
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
