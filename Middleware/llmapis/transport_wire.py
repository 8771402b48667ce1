"""HTTP/1.1 as bytes, without any I/O: request heads, response heads and the three body framings.

The transport reads sockets itself (see ``transport.py``), so it needs a parser that takes bytes in any split. A decoder
hands back everything that was delivered, over any number of HTTP chunks, as one block.
"""
from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol
from urllib.parse import unquote

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from Middleware.exceptions import ConfigValueError

MAX_HEAD_BYTES = 256 * 1024
MAX_CHUNK_LINE_BYTES = 16 * 1024

_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) (\d{3})(?: ([^\r\n]*))?\r?\n")
_HEAD_END = re.compile(rb"\n\r?\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?")


class WireError(ValueError):
    """The peer does not speak HTTP/1.1."""


@dataclass(frozen=True)
class Target:
    """A back-end URL in the pieces that a request needs.

    Attributes:
        origin: ``(scheme, host, port)``, the key of a connection pool.
        path: request target, percent-encoded, with the query.
        host_header: value of ``Host``.
        display: the URL without user, password, query and fragment, fit for messages.
        authorization: ``Basic ...`` from a user and password in the URL, or "".
        secrets: texts of the URL that no message may contain.
    """

    scheme: str
    host: str
    port: int
    path: str
    host_header: str
    display: str
    authorization: str
    secrets: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


@lru_cache(maxsize=256)
def parse_target(url: str) -> Target:
    """Split an absolute http or https URL. Raises ConfigValueError if it is none."""
    try:
        parts = parse_url(url.strip())
    except LocationParseError:
        parts = parse_url("")
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigValueError("The endpoint's URL cannot be used", json_path="endpoint",
                               expected="a URL such as http://localhost:8080")
    default_port = 443 if parts.scheme == "https" else 80
    port = parts.port or default_port
    host_header = parts.host if port == default_port else f"{parts.host}:{port}"
    user = unquote(parts.auth or "")
    authorization = "Basic " + base64.b64encode(user.encode("utf-8")).decode("ascii") if user else ""
    secrets = tuple(text for text in (user, user.partition(":")[2], parts.query or "") if text)
    return Target(scheme=parts.scheme, host=parts.host.strip("[]"), port=port, path=parts.request_uri,
                  host_header=host_header, display=f"{parts.scheme}://{host_header}{parts.path or ''}",
                  authorization=authorization, secrets=secrets)


def build_head(target: Target, headers: Mapping[str, str], body_length: int, *, absolute: bool,
               extra: Mapping[str, str]) -> bytes:
    """The bytes before the body of a POST. ``absolute`` writes the whole URL, as a plain HTTP proxy wants it.

    Raises ConfigValueError for a header that holds a line break or a character outside Latin-1.
    """
    where = f"{target.scheme}://{target.host_header}{target.path}" if absolute else target.path
    lines = [f"POST {where} HTTP/1.1\r\nHost: {target.host_header}\r\nAccept-Encoding: identity"]
    names = set()
    for name, value in (*headers.items(), *extra.items()):
        names.add(name.lower())
        if "\r" in value or "\n" in value or "\r" in name or "\n" in name:
            raise ConfigValueError(f"The header '{name.strip()}' holds a line break (check the API key)")
        lines.append(f"{name}: {value}")
    if "content-type" not in names:
        lines.append("Content-Type: application/json")
    if target.authorization and "authorization" not in names:
        lines.append(f"Authorization: {target.authorization}")
    if "accept" not in names:
        lines.append("Accept: */*")
    lines.append(f"Content-Length: {body_length}\r\n\r\n")
    try:
        return "\r\n".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        raise ConfigValueError("A header holds a character that HTTP cannot carry (check the API key)") from None


@dataclass(frozen=True)
class ResponseHead:
    """Status and headers of a response. Header names are lower case; repeated ones are joined with a comma."""

    status: int
    reason: str
    version: str
    headers: Mapping[str, str]

    @property
    def keep_alive(self) -> bool:
        connection = self.headers.get("connection", "").lower()
        return "close" not in connection and (self.version == "1.1" or "keep-alive" in connection)

    @property
    def idle_seconds(self) -> float | None:
        """How long the server says it keeps an idle connection, from ``Keep-Alive: timeout=N``."""
        match = re.search(r"timeout\s*=\s*(\d{1,6})", self.headers.get("keep-alive", ""))
        return float(match[1]) if match else None


def parse_head(buffer: bytes) -> tuple[ResponseHead, bytes] | None:
    """Read a response head off ``buffer``: the head and the bytes after it, or None while it is incomplete.

    Interim responses (1xx) are skipped. Raises WireError for anything that is not HTTP/1.x.
    """
    while True:
        if not (b"HTTP/" + b"1.").startswith(buffer[:7]):
            raise WireError("no HTTP status line")
        end = _HEAD_END.search(buffer)
        if end is None:
            if len(buffer) > MAX_HEAD_BYTES:
                raise WireError("the response headers are too long")
            return None
        head = _parse_lines(buffer[:end.start() + 1])
        buffer = buffer[end.end():]
        if head.status >= 200 or head.status == 101:
            return head, buffer
        if not buffer:
            return None


def _parse_lines(block: bytes) -> ResponseHead:
    match = _STATUS_LINE.match(block)
    if match is None:
        raise WireError("no HTTP status line")
    headers: dict[str, str] = {}
    name = ""
    for line in block[match.end():].decode("latin-1").split("\n"):
        if line[:1] in (" ", "\t") and name:  # a folded line goes on with the one before
            headers[name] += " " + line.strip()
            continue
        key, colon, value = line.partition(":")
        if not colon:
            continue
        name, value = key.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return ResponseHead(int(match[2]), (match[3] or b"").decode("latin-1"), match[1].decode("ascii"), headers)


class BodyDecoder(Protocol):
    """Takes raw bytes, returns body bytes.

    Attributes:
        done: the body is complete.
        surplus: bytes came after its end, so the connection is out of step.
    """

    done: bool
    surplus: bool

    def feed(self, data: bytes) -> bytes:
        """Body bytes in ``data``. Raises WireError on broken framing."""

    def eof(self) -> bool:
        """Tell that the peer closed; returns whether that is a proper end."""


class LengthDecoder:
    """A body of ``length`` bytes."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.surplus = False

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left > 0:
            return data
        self.done = True
        if self._left < 0:
            self.surplus = True
            data, self._left = data[:self._left], 0
        return data

    def eof(self) -> bool:
        return self.done


class EofDecoder:
    """A body that ends with the connection."""

    def __init__(self) -> None:
        self.done = False
        self.surplus = True  # nothing can follow on this connection

    def feed(self, data: bytes) -> bytes:
        return data

    def eof(self) -> bool:
        self.done = True
        return True


class ChunkedDecoder:
    """``Transfer-Encoding: chunked``. All chunks of a piece come back joined."""

    def __init__(self) -> None:
        self.done = False
        self.surplus = False
        self._left = 0             # bytes of the current chunk still to come
        self._after_chunk = False  # the line break behind a chunk is due
        self._in_trailer = False
        self._partial = b""        # start of a line

    def feed(self, data: bytes) -> bytes:
        if self._partial:
            data, self._partial = self._partial + data, b""
        parts: list[bytes] = []
        position, end = 0, len(data)
        while position < end and not self.done:
            if self._left:
                part = data[position:position + self._left]
                parts.append(part)
                position += len(part)
                self._left -= len(part)
                self._after_chunk = not self._left
                continue
            newline = data.find(b"\n", position)
            if newline < 0:
                self._partial = data[position:]
                if len(self._partial) > MAX_CHUNK_LINE_BYTES:
                    raise WireError("a chunk header is too long")
                break
            self._line(data[position:newline])
            position = newline + 1
        if self.done and position < end:
            self.surplus = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _line(self, line: bytes) -> None:
        if self._after_chunk:
            if line not in (b"\r", b""):
                raise WireError("a chunk is longer than it says")
            self._after_chunk = False
        elif self._in_trailer:
            self.done = line in (b"\r", b"")
        else:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise WireError("a chunk has no size")
            self._left = int(match[1], 16)
            self._in_trailer = not self._left

    def eof(self) -> bool:
        return self.done


class InflatingDecoder:
    """A gzip or deflate body inside another framing, for servers that compress unasked."""

    def __init__(self, inner: BodyDecoder, encoding: str) -> None:
        self._inner = inner
        # 32 + 15: zlib or gzip header, found out by zlib itself
        self._inflate = zlib.decompressobj(47)
        self._first = encoding == "deflate"

    @property
    def done(self) -> bool:
        return self._inner.done

    @property
    def surplus(self) -> bool:
        return self._inner.surplus

    def feed(self, data: bytes) -> bytes:
        body = self._inner.feed(data)
        first, self._first = self._first, self._first and not body
        try:
            return self._inflate.decompress(body)
        except zlib.error:
            if not first:
                raise WireError("the compressed body is broken") from None
            self._inflate = zlib.decompressobj(-15)  # bare deflate, as some servers send it
            return self._finish_bare(body)

    def _finish_bare(self, body: bytes) -> bytes:
        try:
            return self._inflate.decompress(body)
        except zlib.error:
            raise WireError("the compressed body is broken") from None

    def eof(self) -> bool:
        return self._inner.eof()


def body_decoder(head: ResponseHead) -> BodyDecoder:
    """The decoder that a head asks for. Raises WireError for encodings that were not asked for and are unknown."""
    decoder: BodyDecoder
    if head.status in (204, 304):
        return LengthDecoder(0)
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        decoder = ChunkedDecoder()
    elif "content-length" in head.headers:
        lengths = {text.strip() for text in head.headers["content-length"].split(",")}
        text = lengths.pop()
        if lengths or not (text.isascii() and text.isdigit()):
            raise WireError("the content length is not a number")
        decoder = LengthDecoder(int(text))
    else:
        decoder = EofDecoder()
    encoding = head.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return decoder
    if encoding in ("gzip", "x-gzip", "deflate"):
        return InflatingDecoder(decoder, encoding)  # type: ignore[return-value]
    raise WireError(f"the body is compressed as '{encoding[:40]}', which was not asked for")
