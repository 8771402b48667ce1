"""Takes a request's body off the socket, and no more of it than the limit allows."""
from __future__ import annotations

import io
import time
from typing import Any
from wsgiref.types import WSGIEnvironment

PIECE_BYTES = 64 * 1024
MAX_DIGITS = 20  # of a length; more are more than any memory holds, and Python refuses to read thousands
BODY_LEFT_KEY = "wilmer.body_left"
"""Set in the WSGI environ if part of the body was not read: the connection cannot carry another request."""


class BodyTooLarge(Exception):
    """The body has more bytes than allowed; the rest of it was not read."""


class BodyBroken(Exception):
    """The body ended early or its framing is wrong."""


def take_body(environ: WSGIEnvironment, limit: int | None) -> None:
    """Put the whole body into memory, so that the socket tells from now on whether the client is there.

    Args:
        environ: the WSGI environ; gets the body as its new input.
        limit: bytes; None for no limit.

    Raises BodyTooLarge or BodyBroken.
    """
    length = _declared_length(environ)
    if limit is not None and length is not None and length > limit:
        environ[BODY_LEFT_KEY] = True
        raise BodyTooLarge
    if "waitress.client_disconnected" in environ or (not length and not _ends_by_itself(environ)):
        return  # read by the server already, or there is none
    try:
        body, size = _read(environ["wsgi.input"], None if _ends_by_itself(environ) else length, limit)
    except (BodyTooLarge, BodyBroken, OSError, ValueError) as error:
        environ[BODY_LEFT_KEY] = True
        raise error if isinstance(error, BodyTooLarge) else BodyBroken from error
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    environ.update({"wsgi.input": body, "wsgi.input_terminated": True, "CONTENT_LENGTH": str(size)})


def _declared_length(environ: WSGIEnvironment) -> int | None:
    """The Content-Length, if it counts: a body sent in chunks has its own end."""
    text = environ.get("CONTENT_LENGTH") or ""
    if not text.isascii() or not text.isdigit() or _is_chunked(environ):
        return None
    return int(text) if len(text) <= MAX_DIGITS else 10 ** MAX_DIGITS


def _is_chunked(environ: WSGIEnvironment) -> bool:
    return "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()


def _ends_by_itself(environ: WSGIEnvironment) -> bool:
    """Whether reading to the end of the input is safe, because the server undoes the chunks."""
    return _is_chunked(environ) and ("wsgi.input_terminated" in environ or "eventlet.input" in environ)


def _read(stream: Any, length: int | None, limit: int | None) -> tuple[io.BytesIO, int]:
    """The ``length`` bytes of ``stream``, or all of them if it is None; and how many that were."""
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
        time.sleep(0)  # a fast upload leaves no gap in which others would have their turn
    body.seek(0)
    return body, size
