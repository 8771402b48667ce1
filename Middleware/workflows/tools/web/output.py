"""The output of a WebFetch node: the text of a response or of a failure."""
from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser

from Middleware.workflows.tools.web.fetch import ResponseTooLargeError, WebFetchError, WebResponse

_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_META_WITHIN_BYTES = 2048
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

Stopped = Callable[[], bool]


HIDDEN_ELEMENTS = frozenset({"script", "style", "head", "noscript", "iframe"})
# What is parsed between two looks at ``stopped``.
PIECE_CHARACTERS = 64 * 1024
# How many characters may be read again for each "<" of an unfinished end, which may be text after all.
MOST_EFFORT = 4_000_000


def visible_text(html: str, stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the page's pieces of text, each trimmed, one per line; entities decoded, hidden elements left out.

    Takes any string; one that is not HTML is returned trimmed. Large pages take seconds: once ``stopped`` returns True,
    the rest is left out.
    """
    reader, start = _Reader(), 0
    while start < len(html) and not stopped():
        # The parser scans the unfinished rest again with each feed; growing pieces keep the effort linear.
        end = start + max(PIECE_CHARACTERS, len(reader.rawdata))
        reader.feed(html[start:end])
        start = end
    rest = reader.rawdata
    if len(rest) <= PIECE_CHARACTERS and len(rest) * rest.count("<") <= MOST_EFFORT:
        # A longer rest is a tag or comment that never ends, which browsers hide too.
        reader.close()
    return "\n".join(reader.finished())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._pieces: list[str] = []
        # The data that belongs to one piece.
        self._open: list[str] = []
        self._hidden, self._depth = "", 0

    def finished(self) -> list[str]:
        self._end_piece()
        return self._pieces

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._open.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end_piece()
        # The end tag of head may be left out.
        if self._hidden == "head" and tag == "body":
            self._hidden = ""
        if not self._hidden and tag in HIDDEN_ELEMENTS:
            self._hidden, self._depth = tag, 0
        if tag == self._hidden:
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._end_piece()
        if tag == self._hidden:
            self._depth -= 1
            if self._depth == 0:
                self._hidden = ""

    def _skip(self, data: str) -> None:
        self._end_piece()

    handle_comment = handle_pi = unknown_decl = _skip

    def handle_decl(self, decl: str) -> None:
        self._end_piece()

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        try:
            return super().parse_marked_section(i, report)
        # "<![" before something unknown, which browsers treat as a comment.
        except AssertionError:
            return self.parse_bogus_comment(i)

    def _end_piece(self) -> None:
        text = "".join(self._open).strip()
        self._open.clear()
        if text:
            self._pieces.append(text)


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
        return _as_json({"error": str(error), "status_code": response.status if response else None,
                         "headers": dict(response.headers) if response else None,
                         "body": body_text(response) if response else None})
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
