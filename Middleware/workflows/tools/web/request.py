"""A web request, its response, its errors, and the request that follows from a redirect. No I/O."""
from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from Middleware.exceptions import BackendError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BECOME_GET = frozenset({301, 302, 303})
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
_CONTENT_HEADERS = frozenset({"content-type", "content-length", "content-encoding", "content-language",
                              "content-location", "transfer-encoding"})


@dataclass(frozen=True)
class WebRequest:
    """The address and the content of a request, and its limits.

    Attributes:
        timeout: seconds that connecting, and each wait for data, may take.
        proxy: proxy URL of any kind; None: that of the environment, if one applies and no guard is active.
        tls: settings to connect to https servers with; None: the usual ones.
        max_bytes: largest body accepted, after decompression; None: any.
        block_private, allowed_hosts: the address guard; see ``addresses.judge_url``.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = 30.0
    proxy: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    allow_redirects: bool = True
    max_bytes: int | None = None
    block_private: bool = False
    allowed_hosts: Sequence[str] | None = None

    @property
    def guarded(self) -> bool:
        return self.block_private or self.allowed_hosts is not None

    def has_header(self, name: str) -> bool:
        return any(known.lower() == name for known in self.headers)


@dataclass(frozen=True)
class WebResponse:
    """The answer of a server. ``headers``: repeated ones are joined with commas."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers.items() if known.lower() == name), "")


class WebFetchError(BackendError):
    """A web request failed. ``response`` is the server's answer, if there was one."""

    def __init__(self, message: str, response: WebResponse | None = None) -> None:
        self.response = response
        super().__init__(message, status=response.status if response else None)


class WebFetchConnectionError(WebFetchError, ConnectionError):
    """The server could not be reached, or the connection was lost."""


class WebFetchTimeoutError(WebFetchError, TimeoutError):
    """The server was silent for too long, or took too long in all."""


class WebFetchUrlError(WebFetchError, ValueError):
    """The URL, or a header value, cannot be sent."""


class WebFetchStatusError(WebFetchError):
    """The server answered with a status of 400 or more."""


class WebFetchBlockedError(WebFetchError):
    """The address guard refused the URL."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"WebFetch blocked a request to a disallowed address: {reason}.")


class ResponseTooLargeError(WebFetchError):
    """The body is larger than allowed; ``response`` holds its beginning."""

    def __init__(self, max_bytes: int, response: WebResponse) -> None:
        super().__init__(f"WebFetch response exceeded the {max_bytes}-byte cap (maxResponseBytes).", response)


def split_url(url: str) -> Url:
    """Return the parts of an absolute http or https URL, percent-encoded. Raises ValueError for anything else."""
    try:
        parts = parse_url(url.strip())
    except LocationParseError:
        raise ValueError("not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError("not an absolute http or https URL")
    return parts


def origin_text(parts: Url) -> str:
    """Return scheme, host and port, for messages: path and query may quote conversations, the rest may hold a password.
    """
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.host}{port}"


def redirected(request: WebRequest, response: WebResponse) -> WebRequest | None:
    """Return the request that a response leads to; None if it is not a redirect or redirects are not wanted.

    301, 302 and 303 turn methods other than GET and HEAD into GET without a body. Secrets stay with the host they
    were meant for, and never go from https to http. Raises ValueError if the new location is not an http or https URL.
    """
    location = _as_utf8(response.header("location")).strip()
    if not request.allow_redirects or response.status not in REDIRECTS or not location:
        return None
    old = split_url(request.url)
    new = split_url(urljoin(old.url, location))
    drop: frozenset[str] = frozenset()
    method, body = request.method, request.body
    if response.status in _BECOME_GET and method not in ("GET", "HEAD"):
        method, body, drop = "GET", None, _CONTENT_HEADERS
    if new.host != old.host or (old.scheme, new.scheme) == ("https", "http"):
        drop |= _SECRET_HEADERS | {"host"}
    headers = {name: value for name, value in request.headers.items() if name.lower() not in drop}
    return dataclasses.replace(request, url=new.url, method=method, body=body, headers=headers)


def _as_utf8(value: str) -> str:
    """Return a header value, decoded as Latin-1 before, as the UTF-8 that servers write into ``Location``."""
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
