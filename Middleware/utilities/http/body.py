"""Decode HTTP/1.1 bodies without any I/O: by length, in chunks, or up to the end of the connection.

h11 parses heads only. Each streamed token is a chunk of its own, and h11 takes five times as long for one (6.5 us
instead of 1.2 us), which matters with hundreds of streams.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from Middleware.exceptions import WilmerError

# A size and its extensions take a few bytes. Without a limit a server could fill the memory with one line.
MAX_CHUNK_LINE_BYTES = 16 * 1024
# More bytes than any server can send.
MOST_DIGITS = 18
# What a server may send behind the last chunk: checksums and times take a few hundred bytes.
MAX_TRAILER_BYTES = 64 * 1024
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?")
# The line before a chunk, and the line end after it, as servers send them.
_CHUNK_START = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")


class WireError(WilmerError, ValueError):
    """The peer does not speak HTTP/1.1."""


class PlainDecoder:
    """A body of ``length`` bytes; for None, one that ends with the connection.

    Attributes:
        done: the body is complete.
        surplus: bytes followed its end, so the connection cannot be reused.
    """

    def __init__(self, length: int | None) -> None:
        self._left = math.inf if length is None else length
        self.done = length == 0
        # A connection that is closed at the end of its body cannot be reused.
        self.surplus = length is None

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in ``data``. Raises WireError for invalid framing."""
        self._left -= len(data)
        if self._left > 0:
            return data
        self.done = True
        if self._left < 0:
            self.surplus = True
            data, self._left = data[: int(self._left)], 0
        return data

    def eof(self) -> bool:
        """Record that the peer closed the connection; return whether the body is complete."""
        self.done = self.done or self._left == math.inf
        return self.done


class ChunkedDecoder:
    """A body with ``Transfer-Encoding: chunked``; see ``PlainDecoder``. All chunks in a piece of data are joined."""

    def __init__(self) -> None:
        self.done = False
        self.surplus = False
        # Bytes of the current chunk that have not arrived.
        self._left = 0
        # The line break after a chunk is expected.
        self._after_chunk = False
        self._in_trailer = False
        # Bytes that the trailer may still have.
        self._trailer_left = MAX_TRAILER_BYTES
        # The start of a line whose end has not arrived.
        self._partial = b""

    def feed(self, data: bytes) -> bytes:
        if self._partial:
            data, self._partial = self._partial + data, b""
        parts: list[bytes] = []
        position, end = 0, len(data)
        # Nearly all chunks arrive complete, with nothing but their size before them.
        while not (self._left or self._after_chunk or self._in_trailer):
            start = _CHUNK_START.match(data, position)
            if start is None:
                break
            first = start.end()
            last = first + int(start[1], 16)
            if first == last or data[last : last + 2] != b"\r\n":
                break
            parts.append(data[first:last])
            position = last + 2
        while position < end and not self.done:
            if self._left:
                part = data[position : position + self._left]
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
            self._trailer_left -= len(line) + 1
            if self._trailer_left < 0 and not self.done:
                raise WireError("the trailer is too long")
        else:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise WireError("a chunk has no size")
            self._left = int(match[1], 16)
            self._in_trailer = not self._left

    def eof(self) -> bool:
        return self.done


BodyDecoder = PlainDecoder | ChunkedDecoder


def body_decoder(status: int, headers: Mapping[str, str]) -> BodyDecoder:
    """Return the decoder for a response; header names are in lower case. Raises WireError."""
    # These statuses never have a body, whatever their headers say.
    if status in (204, 304):
        return PlainDecoder(0)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return ChunkedDecoder()
    if "content-length" not in headers:
        return PlainDecoder(None)
    lengths = {text.strip() for text in headers["content-length"].split(",")}
    text = lengths.pop()
    # Python refuses to convert thousands of digits.
    if lengths or not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise WireError("the content length is not a number")
    return PlainDecoder(int(text))
