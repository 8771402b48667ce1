"""Requests and responses of HTTP/1.1 as bytes, without any I/O.

The client reads sockets itself (see ``exchange.py``), so it needs a parser for bytes that are split anywhere: ``h11``
for heads, ``body.py`` for bodies. All data that has arrived is returned as one block, whatever its HTTP chunks.
"""

from __future__ import annotations

import base64
import re
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

from h11 import (
    CLIENT,
    NEED_DATA,
    Connection,
    InformationalResponse,
    LocalProtocolError,
    RemoteProtocolError,
    Request,
    Response,
)
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.http.body import BodyDecoder, WireError, body_decoder
from Middleware.utilities.http.inflater import CODINGS, Inflater

# Most heads have a few hundred bytes; with cookies and policies those of web pages reach tens of thousands.
MAX_HEAD_BYTES = 256 * 1024
# Servers send one or two (100, 103), those that say "still at work" (102) one every few seconds.
MAX_INTERIM_HEADS = 100
# The limit per answer: a few compressed bytes can expand to any size.
MAX_INFLATED_BYTES = 256 * 1024 * 1024

_VERSION = b"HTTP/1."
_A_REQUEST = Request(method="GET", target="/", headers=[("Host", "host")])
_HEAD_END = b"\r\n\r\n"
# Stands for the length of a body in a head that is kept.
_SOME_LENGTH = "1"
# Control characters that headers must not contain; a tab is allowed.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SECRET_PARAMETER = re.compile(r"key|token|secret|password|pwd|signature|\bsig\b|auth", re.IGNORECASE)


class TooLargeError(WireError):
    """The answer exceeds a limit. ``beginning`` is the data that would have been returned next."""

    def __init__(self, text: str, beginning: bytes = b"") -> None:
        super().__init__(text)
        self.beginning = beginning


@dataclass(frozen=True)
class Target:
    """A URL, split into the parts that a request needs.

    Attributes:
        origin: ``(scheme, host, port)``, the key of a connection pool.
        path: request target, percent-encoded, with the query.
        host_header: value of ``Host``.
        display: the URL without user, password, query and fragment, for messages.
        authorization: ``Basic ...`` from a user and password in the URL, or "".
        secrets: strings in the URL that no message may contain.
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


# Every call parses the URLs of the same few endpoints.
@lru_cache(maxsize=256)
def parse_target(url: str) -> Target:
    """Split an absolute http or https URL. Raises ConfigValueError for any other string."""
    try:
        parts = parse_url(url.strip())
    except LocationParseError:
        parts = parse_url("")
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigValueError(
            "The endpoint's URL cannot be used", json_path="endpoint", expected="a URL such as http://localhost:8080"
        )
    default_port = 443 if parts.scheme == "https" else 80
    port = parts.port or default_port
    host_header = parts.host if port == default_port else f"{parts.host}:{port}"
    user = unquote(parts.auth or "")
    authorization = "Basic " + base64.b64encode(user.encode("utf-8")).decode("ascii") if user else ""
    parameters = (value for name, value in parse_qsl(parts.query or "") if _SECRET_PARAMETER.search(name))
    secrets = tuple(text for text in (user, user.partition(":")[2], parts.query or "", *parameters) if text)
    return Target(
        scheme=parts.scheme,
        host=parts.host.strip("[]"),
        port=port,
        path=parts.request_uri,
        host_header=host_header,
        display=f"{parts.scheme}://{host_header}{parts.path or ''}",
        authorization=authorization,
        secrets=secrets,
    )


def parse_private_target(url: str) -> Target:
    """Split a URL without caching it, because it may quote a conversation."""
    return parse_target.__wrapped__(url)


@dataclass(frozen=True)
class Route:
    """The way to a server, where it differs from the environment.

    Attributes:
        local_only: refuse a connected peer that is neither this machine nor in its local network.
        proxy: URL of the proxy; None for that of the environment.
        environment: use the proxies of the environment.
        addresses: IP addresses to try one after the other, instead of resolving the host again.
        tls: settings for https; None for the default settings.
    """

    local_only: bool = False
    proxy: str | None = field(default=None, repr=False)
    environment: bool = True
    addresses: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None


DEFAULT_ROUTE = Route()


@dataclass(frozen=True)
class HttpRequest:
    """A request without its body, and its limits.

    Attributes:
        headers: headers that HTTP itself requires are added unless they are given here.
        varying: headers that differ from request to request to one address; their values are not checked.
        connect_timeout, read_timeout: seconds; the latter is the longest time without data from the server.
        single_attempt: do not try to connect a second time.
        remembers_unreachable: use the cache of unreachable servers: fail at once for one in it, and add to it.
        keep_alive: reuse connections, and keep this one.
        max_bytes: largest body, decompressed; None for any, except one that expands beyond MAX_INFLATED_BYTES.
        keep_encoded: return a body in an unknown encoding as it is; otherwise that is an error.
    """

    target: Target
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout: float = 30
    read_timeout: float = 60
    single_attempt: bool = True
    remembers_unreachable: bool = False
    keep_alive: bool = False
    max_bytes: int | None = None
    keep_encoded: bool = False
    route: Route = DEFAULT_ROUTE
    varying: Mapping[str, str] = field(default_factory=dict)

    @property
    def pooled(self) -> bool:
        """Return whether connections may be shared: only those that any other request would have made."""
        route = self.route
        return self.keep_alive and route.environment and not (route.proxy or route.addresses or route.tls)


@dataclass(frozen=True)
class ResponseHead:
    """Status and headers of a response.

    Attributes:
        headers: names are lower case; repeated ones are joined with a comma.
        spelled: the names as the server spelled them first.
        cookies: each ``Set-Cookie``, whose dates contain commas.
    """

    status: int
    reason: str
    version: str
    headers: Mapping[str, str]
    spelled: Mapping[str, str] = field(default_factory=dict)
    cookies: tuple[str, ...] = ()

    @property
    def keep_alive(self) -> bool:
        connection = self.headers.get("connection", "").lower()
        return "close" not in connection and (self.version == "1.1" or "keep-alive" in connection)

    @property
    def idle_seconds(self) -> float | None:
        """The time for which the server keeps an idle connection, from ``Keep-Alive: timeout=N``."""
        match = re.search(r"timeout\s*=\s*(\d{1,6})", self.headers.get("keep-alive", ""))
        return float(match[1]) if match else None


class HttpCall:
    """One request and its response on one connection.

    Attributes:
        head: status and headers, None until they have arrived. Interim responses (1xx) are skipped.
        done: the response is complete.
    """

    def __init__(self, request: HttpRequest) -> None:
        self.head: ResponseHead | None = None
        self.done = False
        self._body: BodyDecoder | None = None
        self._request = request
        self._http = Connection(CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._start = b""
        self._peer_closed = False
        self._interim_heads = 0
        self._inflater: Inflater | None = None
        self._limit = MAX_INFLATED_BYTES if request.max_bytes is None else request.max_bytes
        # How many bytes may still come of a compressed body.
        self._left = self._limit

    def request_head(
        self, body_length: int | None, *, absolute: bool = False, extra: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the bytes before the body. ``absolute`` writes the whole URL, for a plain HTTP proxy.

        ``body_length`` is None without a body. Raises ConfigValueError for a header that cannot be sent.
        """
        request, target = self._request, self._request.target
        where = f"{target.scheme}://{target.host_header}{target.path}" if absolute else target.path
        if body_length is None and request.method in ("POST", "PUT", "PATCH"):
            body_length = 0
        varying = ""
        for name, value in request.varying.items():
            varying += f"\r\n{name}: {value}"
        # Elsewhere a URL may quote a conversation, which must not stay in memory.
        parts = _head_parts if request.remembers_unreachable else _head_parts.__wrapped__
        before, after = parts(
            request.method,
            where,
            target.host_header,
            target.authorization,
            body_length is not None,
            (*request.headers.items(), *(extra or {}).items()),
        )
        # The parser of the answer must know that a request was sent; any other one than CONNECT will do.
        self._http.send(_A_REQUEST)
        if after:
            return f"{body_length}{varying}".encode("ascii").join((before, after))
        return before.replace(_HEAD_END, varying.encode("ascii") + _HEAD_END) if varying else before

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in the received data. Raises WireError if it is not HTTP/1.x."""
        if self._body is None:
            data = self._read_head(data)
        if self._body is None:
            return b""
        body = self._body.feed(data) if data else b""
        self.done = self._body.done
        return self._inflate(self._inflater, body) if self._inflater else body

    def eof(self) -> bool:
        """Record that the peer closed the connection; return whether the response is complete."""
        self._peer_closed = True
        self.done = self._body is not None and self._body.eof()
        return self.done

    @property
    def reusable(self) -> bool:
        """Return whether the connection can be reused: response complete, no surplus data, not closing."""
        return (
            self.done
            and not self._peer_closed
            and self.head is not None
            and self.head.keep_alive
            and self._body is not None
            and not self._body.surplus
        )

    def _read_head(self, data: bytes) -> bytes:
        """Return the bytes after the head; ``b""`` while the head is incomplete."""
        self._check_start(data)
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not NEED_DATA:
                if type(event) is Response:
                    self._begin(event)
                    rest = self._http.trailing_data[0]
                    # The body is decoded without it, and may take hours.
                    del self._http
                    return rest
                if type(event) is InformationalResponse:
                    self._interim_heads += 1
                    if self._interim_heads > MAX_INTERIM_HEADS:
                        raise WireError("there are too many interim heads")
        except RemoteProtocolError as error:
            # The text after ": b" quotes the server, which may have sent anything.
            raise WireError(str(error).partition(": b")[0]) from None
        return b""

    def _check_start(self, data: bytes) -> None:
        """Reject data of other protocols, such as SSH, at once: h11 would wait for a blank line first."""
        self._start = (self._start + data)[: len(_VERSION)]
        if not _VERSION.startswith(self._start):
            raise WireError("no HTTP status line")

    def _begin(self, response: Response) -> None:
        headers: dict[str, str] = {}
        spelled: dict[str, str] = {}
        for raw_name, raw_value in response.headers.raw_items():
            as_sent, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            name = as_sent.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
            spelled.setdefault(name, as_sent)
        self.head = ResponseHead(
            response.status_code,
            response.reason.decode("latin-1"),
            response.http_version.decode("latin-1"),
            headers,
            spelled,
            tuple(value.decode("latin-1") for name, value in response.headers if name == b"set-cookie"),
        )
        # The answer to HEAD has no body, whatever length it announces.
        self._body = body_decoder(204 if self._request.method == "HEAD" else self.head.status, headers)
        encoding = headers.get("content-encoding", "").lower()
        if encoding in CODINGS:
            self._inflater = Inflater(encoding)
        elif encoding not in ("", "identity") and not self._request.keep_encoded:
            raise WireError(f"the body is compressed as '{encoding[:40]}', which was not asked for")

    def _inflate(self, inflater: Inflater, body: bytes) -> bytes:
        found = bytearray()
        try:
            for piece in inflater.feed(body):
                found += piece
                if len(found) > self._left:
                    beginning = bytes(found[: self._left])
                    raise TooLargeError(f"more than {self._limit >> 20} MB when decompressed", beginning)
        except zlib.error:
            raise WireError("the compressed body is broken") from None
        self._left -= len(found)
        return bytes(found)


# The heads of all requests to an endpoint differ in the length of the body only.
@lru_cache(maxsize=256)
def _head_parts(
    method: str, where: str, host: str, authorization: str, has_body: bool, headers: tuple[tuple[str, str], ...]
) -> tuple[bytes, bytes]:
    """Return the head of a request up to the length of its body, and the rest of it.

    The rest is empty, and the first part the whole head, if the length is given in ``headers`` or there is no body.
    Raises ConfigValueError for a header that cannot be sent.
    """
    given = {name.lower() for name, _ in headers}
    defaults = {
        "Host": host,
        "Accept-Encoding": "identity",
        "Accept": "*/*",
        "Authorization": authorization,
        "Content-Length": _SOME_LENGTH if has_body else "",
    }
    items = {
        **{name: value for name, value in defaults.items() if value and name.lower() not in given},
        **dict(headers),
    }
    raw = [_header(*item) for item in items.items()]
    try:
        head = Connection(CLIENT).send(Request(method=method, target=where, headers=raw))
    except LocalProtocolError:
        # The text of that error would quote the value.
        raise ConfigValueError("The request's URL or headers cannot be sent (check URL and API key)") from None
    if not has_body or "content-length" in given:
        return head, b""
    # No header can contain the line break in front of the name.
    before, _, after = head.partition(f"\r\nContent-Length: {_SOME_LENGTH}".encode())
    return before + b"\r\nContent-Length: ", after


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    if _CONTROL.search(name) or _CONTROL.search(value):
        raise ConfigValueError(
            f"The header '{name.strip()}' holds a line break or another control character (check the API key)"
        )
    try:
        return name.encode("latin-1"), value.strip(" \t").encode("latin-1")
    except UnicodeEncodeError:
        raise ConfigValueError(
            f"The header '{name}' holds a character that HTTP cannot carry (check the API key)"
        ) from None
