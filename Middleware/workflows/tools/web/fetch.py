"""Fetches a document from the web: guarded, limited in size and time, and ended at once by a stop.

Redirects are followed here, so that each hop passes the guard, and what belongs to one server stays with it.
"""

from __future__ import annotations

import dataclasses
import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from http.cookiejar import CookieJar
from types import SimpleNamespace
from urllib.parse import urljoin
from urllib.request import Request

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from Middleware.exceptions import BackendError, ConfigValueError
from Middleware.llmapis.backend_errors import sentence
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.daemon_threads import DeadlineError, run_interruptible
from Middleware.utilities.http.addresses import UrlDecision, check_proxy, check_url
from Middleware.utilities.http.client import HttpClient, HttpResponse
from Middleware.utilities.http.problems import HttpError, HttpProblem, Kind
from Middleware.utilities.http.wire import HttpRequest, Route, parse_private_target
from Middleware.utilities.sensitive_logging_utils import mask_url, sensitive_log

logger = logging.getLogger(__name__)

# As many as browsers have traditionally followed; a longer chain is a loop.
MAX_REDIRECTS = 10
# A server that sends a byte now and then never triggers the read timeout, so the whole exchange has a limit too.
TOTAL_TIMEOUTS = 10
MIN_TOTAL_SECONDS = 60.0
# The limit for a compressed body where the node sets none.
NO_LIMIT = 1 << 62
DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "WilmerAI"}
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# These keep method and body.
_SAME_REQUEST = frozenset({307, 308})
_CONTENT_HEADERS = frozenset({"content-length", "content-type", "transfer-encoding"})
# The headers that go on to another server. Any other may be a key, under whatever name the server gave it.
_HEADERS_FOR_ALL = frozenset(
    """
accept accept-charset accept-encoding accept-language cache-control content-language content-type if-modified-since
if-none-match pragma range user-agent
""".split()
)
_PORTS = {"http": 80, "https": 443}
_UPGRADE = (("http", 80), ("https", 443))


@dataclass(frozen=True)
class WebRequest:
    """The address and the content of a request, and its limits.

    Attributes:
        timeout: seconds that connecting, and each wait for data, may take.
        proxy: proxy URL of any kind; None: that of the environment, if one applies and no guard is active.
        authored_proxy: the same with a stand-in for texts of users, models and tools (``addresses.check_proxy``).
        tls: settings to connect to https servers with; None: the usual ones.
        max_bytes: largest body accepted, after decompression; None: any.
        block_private, allowed_hosts: the address guard; see ``addresses.check_url``.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    timeout: float = 30.0
    proxy: str | None = field(default=None, repr=False)
    authored_proxy: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    allow_redirects: bool = True
    max_bytes: int | None = None
    block_private: bool = False
    allowed_hosts: Sequence[str] | None = None

    @property
    def guarded(self) -> bool:
        return self.block_private or self.allowed_hosts is not None


@dataclass(frozen=True)
class WebResponse:
    """The answer of a server. ``headers``: repeated ones are joined with commas; ``cookies``: each that it sets."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    cookies: Sequence[str] = field(default=(), repr=False)

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
    """Return scheme, host and port, for messages: the path may quote conversations, the rest may hold a password."""
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.host}{port}"


def redirected(request: WebRequest, response: WebResponse) -> WebRequest | None:
    """Return the request that a response leads to; None if it is not a redirect or redirects are not wanted.

    Method and body change with the status as in browsers, except that a PUT or DELETE stays one behind 301. Another
    origin gets a few harmless headers only. A ``Cookie`` header is for the first request, and a user and a password in
    the URL are for its origin. Raises ValueError if the new location is not an http or https URL.
    """
    location = _as_utf8(response.header("location")).strip()
    if not request.allow_redirects or response.status not in REDIRECTS or not location:
        return None
    old = split_url(request.url)
    new = split_url(urljoin(old.url, location))
    if _origin(old) == _origin(new):
        new = new._replace(auth=new.auth or old.auth)
    method, body = _method_after(response.status, request.method), request.body
    dropped = frozenset({"cookie"})
    if response.status not in _SAME_REQUEST:
        if body is not None or method != request.method:
            dropped |= _CONTENT_HEADERS
        body = None
    leaves = leaves_origin(old, new)
    headers = {
        name: value
        for name, value in request.headers.items()
        if name.lower() not in dropped and (not leaves or name.lower() in _HEADERS_FOR_ALL)
    }
    return dataclasses.replace(request, url=new.url, method=method, body=body, headers=headers)


def _method_after(status: int, method: str) -> str:
    if status in _SAME_REQUEST:
        return method
    becomes_get = method == "POST" if status == 301 else method != "HEAD"
    return "GET" if becomes_get else method


def leaves_origin(old: Url, new: Url) -> bool:
    """Return whether a redirect goes to another origin. From http to https of the same host it does not."""
    (scheme, host, port), (new_scheme, new_host, new_port) = _origin(old), _origin(new)
    upgraded = host == new_host and ((scheme, port), (new_scheme, new_port)) == _UPGRADE
    return _origin(old) != _origin(new) and not upgraded


def _origin(parts: Url) -> tuple[str, str, int]:
    scheme = str(parts.scheme)
    return scheme, str(parts.host), parts.port or _PORTS[scheme]


def _as_utf8(value: str) -> str:
    # HTTP decodes headers as Latin-1, but servers write UTF-8 into ``Location``.
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


def fetch(request: WebRequest, scope: CancelScope) -> WebResponse:
    """Return the response to ``request``, redirects followed.

    Takes at most ten times the request's timeout, or one minute if that is longer. Raises WebFetchError subclasses
    (a status of 400 or more is one), EarlyTerminationException when ``scope`` is cancelled.
    """
    total = max(TOTAL_TIMEOUTS * request.timeout, MIN_TOTAL_SECONDS)
    deadline = time.monotonic() + total
    try:
        return _follow(request, scope, deadline)
    except (WebFetchTimeoutError, DeadlineError):
        if time.monotonic() < deadline:
            raise
        raise WebFetchTimeoutError(f"WebFetch gave up after {total:g} seconds in all.") from None


def _follow(request: WebRequest, scope: CancelScope, deadline: float) -> WebResponse:
    cookies = _Cookies()
    for _ in range(MAX_REDIRECTS + 1):
        response = _Hop(cookies.added_to(request), scope, deadline).run()
        try:
            following = redirected(request, response)
        except ValueError:
            raise WebFetchUrlError(
                "WebFetch was redirected to something that is not an http or https URL.", response
            ) from None
        if following is None:
            return response
        cookies.follow(request, response, following)
        request = following
    raise WebFetchError(f"WebFetch was redirected more than {MAX_REDIRECTS} times.", response)


class _Cookies:
    """The cookies that servers set on the way through redirects of one origin."""

    def __init__(self) -> None:
        self._jar = CookieJar()

    def added_to(self, request: WebRequest) -> WebRequest:
        """Return the request with the cookies that are for its URL."""
        if not len(self._jar):
            return request
        asked = _for_jar(request)
        self._jar.add_cookie_header(asked)
        cookie = asked.get_header("Cookie")
        return dataclasses.replace(request, headers={**request.headers, "Cookie": cookie}) if cookie else request

    def follow(self, request: WebRequest, response: WebResponse, following: WebRequest) -> None:
        """Take what a redirect sets; nothing is left of it at another origin."""
        asked = _for_jar(request)
        # One by one: the jar removes what a header deletes before it takes the cookies of the same response.
        for cookie in response.cookies:
            message = Message()
            message["Set-Cookie"] = cookie
            self._jar.extract_cookies(SimpleNamespace(info=lambda message=message: message), asked)  # type: ignore[arg-type]
        if leaves_origin(split_url(request.url), split_url(following.url)):
            self._jar.clear()


def _for_jar(request: WebRequest) -> Request:
    # The jar takes a user in front of the host for a part of it.
    return Request(split_url(request.url)._replace(auth=None).url)


class _Hop:
    """One request and its response, on a connection of its own."""

    def __init__(self, request: WebRequest, scope: CancelScope, deadline: float) -> None:
        self.request, self._scope, self._deadline = request, scope, deadline
        self._proxy = request.proxy
        try:
            self.target: Url = split_url(request.url)
        except ValueError as problem:
            if request.guarded:
                reason = check_url(request.url, request.block_private, request.allowed_hosts).reason
                raise _blocked(reason or str(problem)) from None
            raise WebFetchUrlError(f"WebFetch cannot ask for a URL that is {problem}.") from None
        self.origin = origin_text(self.target)

    def run(self) -> WebResponse:
        decision = self._check_target()
        if decision.reason:
            raise _blocked(decision.reason)
        sensitive_log(logger, logging.DEBUG, "WebFetch: %s %s", self.request.method, mask_url(self.target.url))
        try:
            return self._response(
                HttpClient().call(self._to_http(decision), self.request.body, self._scope, seconds=self._seconds_left())
            )
        except HttpError as error:
            raise self._failure(error.problem) from error
        except ConfigValueError as error:
            raise WebFetchUrlError(
                f"WebFetch cannot send this request to {self.origin}: a header or the URL holds "
                "text that HTTP cannot carry."
            ) from error

    def _check_target(self) -> UrlDecision:
        if not self.request.guarded:
            return UrlDecision()
        # Name resolution cannot be interrupted, only abandoned.
        return run_interruptible(lambda _: self._decision(), self._scope, self._seconds_left())

    def _decision(self) -> UrlDecision:
        request = self.request
        decision = check_url(self.target.url, request.block_private, request.allowed_hosts)
        if decision.reason or not request.proxy:
            return decision
        authored = request.proxy if request.authored_proxy is None else request.authored_proxy
        proxy = check_proxy(request.proxy, authored, request.block_private, request.allowed_hosts)
        self._proxy = _pinned(request.proxy, proxy)
        return decision if proxy.reason is None else proxy

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _to_http(self, decision: UrlDecision) -> HttpRequest:
        """Return the request without its body, bound to the addresses that the guard has checked."""
        request = self.request
        # With a guard the environment's proxies are ignored: they would resolve the name again.
        route = Route(proxy=self._proxy, environment=not request.guarded, addresses=decision.addresses, tls=request.tls)
        limit = NO_LIMIT if request.max_bytes is None else request.max_bytes
        return HttpRequest(
            parse_private_target(self.target.url),
            request.method,
            self._headers(),
            request.timeout,
            request.timeout,
            max_bytes=limit,
            keep_encoded=True,
            route=route,
        )

    def _headers(self) -> dict[str, str]:
        # The body is sent unchanged, with its length.
        given = {name: value for name, value in self.request.headers.items() if name.lower() != "transfer-encoding"}
        names = {name.lower() for name in given}
        return {**{name: value for name, value in DEFAULT_HEADERS.items() if name.lower() not in names}, **given}

    def _response(self, answer: HttpResponse) -> WebResponse:
        response = WebResponse(answer.head.status, answer.head.reason, answer.headers, answer.body, answer.head.cookies)
        if response.status >= 400:
            reason = f" ({response.reason})" if response.reason else ""
            raise WebFetchError(f"WebFetch got status {response.status}{reason} from {self.origin}.", response)
        if not answer.complete:
            raise ResponseTooLargeError(self.request.max_bytes or 0, response)
        return response

    def _failure(self, problem: HttpProblem) -> WebFetchError:
        said = sentence(problem.text)
        if problem.kind in (Kind.CONNECT_TIMEOUT, Kind.READ_TIMEOUT):
            return WebFetchTimeoutError(f"WebFetch timed out: {self.origin}: {said}")
        kind = WebFetchError if problem.kind is Kind.SETTINGS else WebFetchConnectionError
        return kind(f"WebFetch could not get an answer from {self.origin}: {said}")


def _pinned(proxy: str, decision: UrlDecision) -> str:
    """Return the proxy at the address that was checked; by its name where its certificate has it."""
    parts = parse_url(proxy)
    if not decision.addresses or parts.scheme == "https":
        return proxy
    address = decision.addresses[0]
    return parts._replace(host=f"[{address}]" if ":" in address else address).url


def _blocked(reason: str) -> WebFetchError:
    return WebFetchError(f"WebFetch blocked a request to a disallowed address: {reason}.")
