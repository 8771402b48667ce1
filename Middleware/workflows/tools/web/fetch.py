"""Fetches a document from the web: guarded, limited in size and time, and ended at once by a stop."""
from __future__ import annotations

import logging
import time

from urllib3.util import Url

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.backend_errors import sentence
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.addresses import Verdict, judge_url
from Middleware.utilities.http.client import HttpClient, HttpResponse
from Middleware.utilities.http.problems import HttpError, HttpProblem, Kind
from Middleware.utilities.http.wire import HttpRequest, Route, parse_private_target
from Middleware.utilities.sensitive_logging_utils import mask_url, sensitive_log
from Middleware.workflows.tools.web.interruptible import DeadlineError, run_interruptible
from Middleware.workflows.tools.web.request import (
    ResponseTooLargeError,
    WebFetchBlockedError,
    WebFetchConnectionError,
    WebFetchError,
    WebFetchStatusError,
    WebFetchTimeoutError,
    WebFetchUrlError,
    WebRequest,
    WebResponse,
    origin_text,
    redirected,
    split_url,
)

logger = logging.getLogger(__name__)

# As many as browsers have traditionally followed; a longer chain is a loop.
MAX_REDIRECTS = 10
# A server that sends a byte now and then never triggers the read timeout, so the whole exchange has a limit too.
TOTAL_TIMEOUTS = 10
MIN_TOTAL_SECONDS = 60.0
# The limit for a compressed body where the node sets none.
NO_LIMIT = 1 << 62
DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "WilmerAI"}


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
    for _ in range(MAX_REDIRECTS + 1):
        response = _Hop(request, scope, deadline).run()
        try:
            following = redirected(request, response)
        except ValueError:
            raise WebFetchUrlError("WebFetch was redirected to something that is not an http or https URL.",
                                   response) from None
        if following is None:
            return response
        request = following
    raise WebFetchError(f"WebFetch was redirected more than {MAX_REDIRECTS} times.", response)


class _Hop:
    """One request and its response, on a connection of its own."""

    def __init__(self, request: WebRequest, scope: CancelScope, deadline: float) -> None:
        self.request, self._scope, self._deadline = request, scope, deadline
        try:
            self.target: Url = split_url(request.url)
        except ValueError as problem:
            if request.guarded:
                raise WebFetchBlockedError(_guard(request, request.url) or str(problem)) from None
            raise WebFetchUrlError(f"WebFetch cannot ask for a URL that is {problem}.") from None
        self.origin = origin_text(self.target)

    def run(self) -> WebResponse:
        verdict = self._judge()
        if verdict.reason:
            raise WebFetchBlockedError(verdict.reason)
        sensitive_log(logger, logging.DEBUG, "WebFetch: %s %s", self.request.method, mask_url(self.target.url))
        try:
            return self._response(HttpClient().call(self._to_http(verdict), self.request.body, self._scope,
                                                    seconds=self._seconds_left()))
        except HttpError as error:
            raise self._failure(error.problem) from error
        except ConfigValueError as error:
            raise WebFetchUrlError(f"WebFetch cannot send this request to {self.origin}: a header or the URL holds "
                                   "text that HTTP cannot carry.") from error

    def _judge(self) -> Verdict:
        if not self.request.guarded:
            return Verdict()
        # Name resolution cannot be interrupted, only abandoned.
        return run_interruptible(
            lambda _: judge_url(self.target.url, self.request.block_private, self.request.allowed_hosts), self._scope,
            self._seconds_left())

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _to_http(self, verdict: Verdict) -> HttpRequest:
        """Return the request without its body, bound to the addresses that the guard has checked."""
        request = self.request
        # With a guard the environment's proxies are ignored: they would resolve the name again.
        route = Route(proxy=request.proxy, environment=not request.guarded, addresses=verdict.addresses,
                      tls=request.tls)
        limit = NO_LIMIT if request.max_bytes is None else request.max_bytes
        return HttpRequest(parse_private_target(self.target.url), request.method, self._headers(), request.timeout,
                           request.timeout, max_bytes=limit, keep_encoded=True, route=route)

    def _headers(self) -> dict[str, str]:
        headers = {name: value for name, value in DEFAULT_HEADERS.items() if not self.request.has_header(name.lower())}
        # The body is sent unchanged, with its length.
        given = {name: value for name, value in self.request.headers.items() if name.lower() != "transfer-encoding"}
        return {**headers, **given}

    def _response(self, answer: HttpResponse) -> WebResponse:
        response = WebResponse(answer.head.status, answer.head.reason, answer.headers, answer.body)
        if response.status >= 400:
            reason = f" ({response.reason})" if response.reason else ""
            raise WebFetchStatusError(f"WebFetch got status {response.status}{reason} from {self.origin}.", response)
        if not answer.complete:
            raise ResponseTooLargeError(self.request.max_bytes or 0, response)
        return response

    def _failure(self, problem: HttpProblem) -> WebFetchError:
        said = sentence(problem.text)
        if problem.kind in (Kind.CONNECT_TIMEOUT, Kind.READ_TIMEOUT):
            return WebFetchTimeoutError(f"WebFetch timed out: {self.origin}: {said}")
        kind = WebFetchError if problem.kind is Kind.SETTINGS else WebFetchConnectionError
        return kind(f"WebFetch could not get an answer from {self.origin}: {said}")


def _guard(request: WebRequest, url: str) -> str | None:
    return judge_url(url, request.block_private, request.allowed_hosts).reason
