"""The content codings in which the bodies of requests may come."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from wsgiref.types import WSGIEnvironment

from Middleware.api.edge.browser_safety import Refusal
from Middleware.utilities.http.inflater import CODINGS, Inflater

ACCEPTED = "gzip, deflate, identity"


def coding_of(environ: WSGIEnvironment) -> str:
    """Return the coding of a request's body in lower case; "" for a plain one. It may be one that is not known here."""
    named = [word.strip().lower() for word in environ.get("HTTP_CONTENT_ENCODING", "").split(",")]
    return ", ".join(word for word in named if word not in ("", "identity"))


def refusal_of(coding: str) -> Refusal | None:
    """Refuse a coding that is not known here, or more than one."""
    if coding in CODINGS:
        return None
    return Refusal(
        "415 Unsupported Media Type",
        f"The request body has the content coding {coding[:60]!a}. Expected one of: {ACCEPTED}.",
        (("Accept-Encoding", ACCEPTED),),
    )


def decoded(pieces: Iterable[bytes], coding: str) -> Iterator[bytes]:
    """Yield a body without its coding, in pieces. Raises zlib.error for broken or cut data."""
    inflater = Inflater(coding)
    for piece in pieces:
        yield from inflater.feed(piece)
    if not inflater.is_whole:
        raise zlib.error("the data ends too early, or goes on behind its end")
