"""What a WebFetch node gives: the text of a response or of a failure."""
from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable

from Middleware.workflows.tools.web.html_text import visible_text
from Middleware.workflows.tools.web.request import ResponseTooLargeError, WebFetchError, WebResponse

OUTPUT_FORMATS = ("text", "json", "full", "html-stripped")

_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_META_WITHIN_BYTES = 2048
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

Stopped = Callable[[], bool]


def render_response(response: WebResponse, output_format: str, stopped: Stopped) -> str:
    """The output of a node whose request succeeded. Raises WebFetchError if JSON was wanted and did not come."""
    text = body_text(response)
    if output_format == "json":
        try:
            return _as_json(json.loads(text))
        except (ValueError, RecursionError):
            raise WebFetchError("WebFetch expected JSON, but the response is none.", response) from None
    if output_format == "full":
        return _as_json({"status_code": response.status, "headers": dict(response.headers), "body": text})
    return visible_text(text, stopped) if output_format == "html-stripped" else text


def render_failure(error: WebFetchError, output_format: str, stopped: Stopped) -> str:
    """The output of a node whose request failed, where failures are not raised."""
    response = error.response
    if output_format == "full":
        return _as_json({"error": str(error), "status_code": response.status if response else None,
                         "headers": dict(response.headers) if response else None,
                         "body": body_text(response) if response else None})
    if response is None or isinstance(error, ResponseTooLargeError):  # half a document would pass for a whole one
        return str(error)
    text = body_text(response)
    return (visible_text(text, stopped) if output_format == "html-stripped" else text) or str(error)


def body_text(response: WebResponse) -> str:
    """The body as text: by its byte order mark, the charset of the response or the page, else UTF-8 or Windows-1252."""
    body = response.body
    named = _CHARSET.search(response.header("content-type"))
    mark = next((charset for mark, charset in _MARKS if body.startswith(mark)), None)
    page = _META.search(body[:_META_WITHIN_BYTES])
    charset = mark or (named[1] if named else page[1].decode("ascii") if page else "")
    try:
        return body.decode(charset, "replace")
    except (LookupError, ValueError):
        pass  # no charset, or none that is known
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
