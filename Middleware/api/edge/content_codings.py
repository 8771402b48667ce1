"""Decode the bodies of requests that a client or a proxy has compressed.

Source: RFC 9110, 8.4. ``deflate`` means the format of zlib there, and raw deflate in many programs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from wsgiref.types import WSGIEnvironment

from Middleware.api.edge.browser_safety import Refusal

ACCEPTED = "gzip, deflate, identity"
# A decoded piece. 40 KB of a body can become 40 MB, so it is never inflated at once.
PIECE_BYTES = 64 * 1024
_CODINGS = ("gzip", "x-gzip", "deflate")
_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15


def coding_of(environ: WSGIEnvironment) -> str:
    """Return the coding of a request's body in lower case; "" for a plain one. It may be one that is not known here."""
    named = [word.strip().lower() for word in environ.get("HTTP_CONTENT_ENCODING", "").split(",")]
    return ", ".join(word for word in named if word not in ("", "identity"))


def refusal_of(coding: str) -> Refusal | None:
    """Refuse a coding that is not known here, or more than one."""
    if coding in _CODINGS:
        return None
    return Refusal(
        "415 Unsupported Media Type",
        f"The request body has the content coding {coding[:60]!a}. Expected one of: {ACCEPTED}.",
        (("Accept-Encoding", ACCEPTED),),
    )


def decoded(pieces: Iterable[bytes], coding: str) -> Iterator[bytes]:
    """Yield a body without its coding, in pieces of at most PIECE_BYTES. Raises zlib.error for broken or cut data."""
    inflate = None
    for data in pieces:
        # An object may still hold output when it has taken all input.
        piece = b""
        while data or len(piece) == PIECE_BYTES:
            if inflate is None:
                inflate = zlib.decompressobj(_bits(coding, data))
            piece = inflate.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data = inflate.unconsumed_tail
            if inflate.eof:
                # The next member of a gzip file, which may be padded.
                data, inflate, piece = _behind(inflate.unused_data, coding), None, b""
    if inflate is not None:
        raise zlib.error("the data ends too early")


def _bits(coding: str, start: bytes) -> int:
    """Return what zlib expects: the format of a body with this beginning."""
    if coding != "deflate":
        return _GZIP_BITS
    # The first byte of zlib's format names the method, which is always 8. Raw blocks have zeros in its place.
    return _ZLIB_BITS if start[0] & 15 == 8 else _RAW_BITS


def _behind(rest: bytes, coding: str) -> bytes:
    if coding == "deflate" and rest:
        raise zlib.error("there is data behind the end")
    return rest.lstrip(b"\0")
