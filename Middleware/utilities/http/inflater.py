"""Decode bodies that a server, a client or a proxy has compressed.

Source: RFC 9110, 8.4. ``deflate`` means the format of zlib there, and raw deflate in many programs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

CODINGS = ("gzip", "x-gzip", "deflate")
# A decoded piece. 40 KB of a body can become 40 MB, so it is never inflated at once.
PIECE_BYTES = 64 * 1024
_GZIP_START = b"\x1f\x8b"
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


class Inflater:
    """A body in one of CODINGS. Gzip may have several members, with padding between them.

    Attributes:
        rest: what is behind the end.
    """

    def __init__(self, coding: str) -> None:
        self._gzip = coding != "deflate"
        self._zlib: zlib._Decompress | None = None
        self.rest = b""

    @property
    def is_whole(self) -> bool:
        """Whether the body has ended, or has not begun."""
        return (self._zlib is None or self._zlib.eof) and not self.rest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of the body decode to, in pieces of at most PIECE_BYTES. Raises zlib.error."""
        piece = b""
        # The decoder may still hold output when it has taken all input.
        while data or len(piece) == PIECE_BYTES:
            if self._zlib is not None and self._zlib.eof:
                data = self.rest = (self.rest + data).lstrip(b"\0")
                if not (self._gzip and data.startswith(_GZIP_START)):
                    return
                self._zlib, self.rest = None, b""
            self._zlib = self._zlib or zlib.decompressobj(self._bits(data))
            piece = self._zlib.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail

    def _bits(self, start: bytes) -> int:
        """Return what zlib expects: the format of a body with this beginning."""
        if self._gzip:
            return _GZIP_BITS
        # The first byte of zlib's format names the method, which is always 8. Raw blocks have zeros in its place.
        return _ZLIB_BITS if start[0] & 15 == 8 else _RAW_BITS
