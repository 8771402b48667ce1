"""Read a request's body from the socket, up to a limit."""
from __future__ import annotations

import io
import time
from typing import Any
from wsgiref.types import WSGIEnvironment

# The size of one read. The limit is checked after each, so a body exceeds it by this much at most.
PIECE_BYTES = 64 * 1024
# The digits of a length. A longer number exceeds any memory, and Python refuses to convert thousands of digits.
MAX_DIGITS = 20
BODY_LEFT_KEY = "wilmer.body_left"
"""Set in the WSGI environ if part of the body was not read, so that the connection cannot carry another request."""


class BodyTooLarge(Exception):
    """The body has more bytes than allowed; the rest of it was not read."""


class BodyBroken(Exception):
    """The body ended early or its framing is wrong."""


def take_body(environ: WSGIEnvironment, limit: int | None) -> None:
    """Read the whole body into memory, so that the socket afterwards shows whether the client is still connected.

    Args:
        environ: the WSGI environ; gets the body as its new input.
        limit: bytes; None for no limit.

    Raises BodyTooLarge or BodyBroken.
    """
    length = _declared_length(environ)
    if limit is not None and length is not None and length > limit:
        environ[BODY_LEFT_KEY] = True
        raise BodyTooLarge
    # Waitress has read the body already, or there is none.
    if "waitress.client_disconnected" in environ or (not length and not _ends_by_itself(environ)):
        return
    try:
        body, size = _read(environ["wsgi.input"], None if _ends_by_itself(environ) else length, limit)
    except (BodyTooLarge, BodyBroken, OSError, ValueError) as error:
        environ[BODY_LEFT_KEY] = True
        raise error if isinstance(error, BodyTooLarge) else BodyBroken from error
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    environ.update({"wsgi.input": body, "wsgi.input_terminated": True, "CONTENT_LENGTH": str(size)})


def _declared_length(environ: WSGIEnvironment) -> int | None:
    """Return the Content-Length; None for a body sent in chunks, which marks its own end."""
    text = environ.get("CONTENT_LENGTH") or ""
    if not text.isascii() or not text.isdigit() or _is_chunked(environ):
        return None
    return int(text) if len(text) <= MAX_DIGITS else 10 ** MAX_DIGITS


def _is_chunked(environ: WSGIEnvironment) -> bool:
    return "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()


def _ends_by_itself(environ: WSGIEnvironment) -> bool:
    """Return whether reading to the end of the input is safe because the server decodes the chunks."""
    return _is_chunked(environ) and ("wsgi.input_terminated" in environ or "eventlet.input" in environ)


def _read(stream: Any, length: int | None, limit: int | None) -> tuple[io.BytesIO, int]:
    """Return ``length`` bytes of ``stream``, or all of them if it is None, and their number."""
    body, size = io.BytesIO(), 0
    while length is None or size < length:
        piece = stream.read(PIECE_BYTES if length is None else min(PIECE_BYTES, length - size))
        if not piece:
            if length is None:
                break
            raise BodyBroken
        size += len(piece)
        if limit is not None and size > limit:
            raise BodyTooLarge
        body.write(piece)
        # Under Eventlet, a fast upload would otherwise keep other green threads from running.
        time.sleep(0)
    body.seek(0)
    return body, size
