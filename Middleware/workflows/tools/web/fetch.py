"""Fetches a document from the web: guarded, bounded in size and time, and ended at once by a stop."""
from __future__ import annotations

import logging
import re
import socket
import ssl
import zlib
from http.client import HTTPException, IncompleteRead
from typing import Any

from urllib3.exceptions import DecodeError, HTTPError
from urllib3.util import Url

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.addresses import judge_url
from Middleware.utilities.http.connect import StopSwitch
from Middleware.utilities.http.connection import Connection
from Middleware.utilities.sensitive_logging_utils import mask_url, sensitive_log
from Middleware.workflows.tools.web.connection import Way, find_way
from Middleware.workflows.tools.web.errors import (
    ResponseTooLargeError,
    WebFetchBlockedError,
    WebFetchConnectionError,
    WebFetchError,
    WebFetchStatusError,
    WebFetchTimeoutError,
    WebFetchUrlError,
)
from Middleware.workflows.tools.web.interruptible import DeadlineError, run_interruptible
from Middleware.workflows.tools.web.request import (
    WebRequest,
    WebResponse,
    basic_authorization,
    origin_text,
    redirected,
    split_url,
)

logger = logging.getLogger(__name__)

MAX_REDIRECTS = 10
TOTAL_TIMEOUTS = 10
MIN_TOTAL_SECONDS = 60.0
BLOCK_BYTES = 64 * 1024
_BREAKS = re.compile(r"[\r\n\0]")
DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "WilmerAI"}


def fetch(request: WebRequest, scope: CancelScope) -> WebResponse:
    """The response to ``request``, redirects followed.

    Takes at most ten times the request's timeout, or a minute if that is more. Raises WebFetchError subclasses
    (a status of 400 or more is one), EarlyTerminationException when ``scope`` is cancelled.
    """
    total = max(TOTAL_TIMEOUTS * request.timeout, MIN_TOTAL_SECONDS)
    try:
        return run_interruptible(lambda stop: _follow(request, stop), scope, total)
    except DeadlineError:
        raise WebFetchTimeoutError(f"WebFetch gave up after {total:g} seconds in all.") from None


def _follow(request: WebRequest, stop: StopSwitch) -> WebResponse:
    for _ in range(MAX_REDIRECTS + 1):
        response = _Hop(request, stop).run()
        try:
            following = redirected(request, response)
        except ValueError:
            raise WebFetchUrlError("WebFetch was redirected to what is no http or https URL.", response) from None
        if following is None:
            return response
        request = following
    raise WebFetchError(f"WebFetch was redirected more than {MAX_REDIRECTS} times.", response)


class _Hop:
    """One request and its response, on a connection of its own."""

    def __init__(self, request: WebRequest, stop: StopSwitch) -> None:
        self.request, self.stop = request, stop
        try:
            self.target: Url = split_url(request.url)
        except ValueError as problem:
            if request.guarded:
                raise WebFetchBlockedError(_guard(request, request.url) or str(problem)) from None
            raise WebFetchUrlError(f"WebFetch cannot ask for a URL that is {problem}.") from None
        self.origin = origin_text(self.target)

    def run(self) -> WebResponse:
        verdict = judge_url(self.target.url, self.request.block_private, self.request.allowed_hosts)
        if verdict.reason:
            raise WebFetchBlockedError(verdict.reason)
        sensitive_log(logger, logging.DEBUG, "WebFetch: %s %s", self.request.method, mask_url(self.target.url))
        way = find_way(self.request, self.target, verdict.addresses)
        connection = way.connection
        holder: Any = None
        try:
            connection.connect()
            holder = connection.sock.makefile("rb", 0)  # keeps the descriptor ours until no stop can reach it
            sock = getattr(connection.sock, "socket", connection.sock)  # the outer one of TLS within TLS
            self.stop.attach(Connection(sock=sock, owner=connection))
            return self._exchange(way)
        except WebFetchError:
            raise
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            raise self._failure(error) from error
        finally:
            self.stop.detach()
            connection.close()
            if holder is not None:
                holder.close()

    def _exchange(self, way: Way) -> WebResponse:
        where = f"{self.origin}{self.target.request_uri}" if way.absolute else self.target.request_uri
        try:
            way.connection.request(self.request.method, where, body=self.request.body, preload_content=False,
                                   headers={**self._headers(), **way.proxy_headers})
        except BrokenPipeError:
            pass  # the server stopped reading; its answer may say why
        answer = way.connection.getresponse()
        try:
            return self._read(answer)
        finally:
            answer.close()

    def _headers(self) -> dict[str, str]:
        headers = {name: value for name, value in DEFAULT_HEADERS.items() if not self.request.has_header(name.lower())}
        if not self.request.has_header("authorization"):
            headers.update(basic_authorization(self.target.auth))
        if any(_BREAKS.search(value) for value in self.request.headers.values()):
            raise ValueError("a header of several lines")  # http.client lets through what looks like a folded one
        return {**headers, **self.request.headers}

    def _read(self, answer: Any) -> WebResponse:
        body, cap = bytearray(), self.request.max_bytes
        while (cap is None or len(body) <= cap) and (block := answer.read1(BLOCK_BYTES, decode_content=True)):
            body += block
        whole = cap is None or len(body) <= cap
        response = WebResponse(answer.status, answer.reason or "", dict(answer.headers.itermerged()), bytes(body[:cap]))
        if response.status >= 400:
            reason = f" ({response.reason})" if response.reason else ""
            raise WebFetchStatusError(f"WebFetch got status {response.status}{reason} from {self.origin}.", response)
        if not whole:
            raise ResponseTooLargeError(cap or 0, response)
        return response

    def _failure(self, error: Exception) -> WebFetchError:
        cause = _root_cause(error)
        if isinstance(cause, TimeoutError):
            return WebFetchTimeoutError(
                f"WebFetch timed out: {self.origin} was silent for {self.request.timeout:g} seconds.")
        if isinstance(error, ValueError) and not isinstance(error, (HTTPError, OSError)):
            return WebFetchUrlError(f"WebFetch cannot send this request to {self.origin}: a header or the URL holds "
                                    "what HTTP cannot carry.")
        return WebFetchConnectionError(f"WebFetch could not get an answer from {self.origin}: {_describe(cause)}.")


def _guard(request: WebRequest, url: str) -> str | None:
    return judge_url(url, request.block_private, request.allowed_hosts).reason


def _root_cause(error: BaseException) -> BaseException:
    while inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = inner
    return error


def _describe(cause: BaseException) -> str:
    if isinstance(cause, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted ({cause.verify_message})"
    if isinstance(cause, ssl.SSLError):
        return f"the TLS connection failed ({cause.reason})"
    if isinstance(cause, (ConnectionResetError, IncompleteRead)):
        return "the connection was lost"
    if isinstance(cause, zlib.error):
        return "the answer is not compressed as it says"
    if isinstance(cause, (DecodeError, HTTPException)):
        return f"the answer cannot be read ({type(cause).__name__})"
    if isinstance(cause, OSError):
        return cause.strerror or str(cause) or "the connection failed"
    return f"the connection failed ({type(cause).__name__})"
