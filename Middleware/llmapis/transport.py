"""LLM calls over HTTP: requests of back-end handlers, retries, and errors that name the endpoint.

A back-end handler knows what to send and how to parse the answer. Sockets, proxies, certificates and stops belong to
the HTTP client in ``utilities/http``, and the texts about a failed endpoint to ``backend_errors``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from Middleware.exceptions import BackendError, ClientError, ConfigValueError
from Middleware.llmapis import backend_errors as errors
from Middleware.llmapis.addresses import NO_SUCH_PATH, answering_forms, speaks_of_a_model
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.process import process
from Middleware.models.request_context import current_request
from Middleware.utilities.http.client import raise_if_cancelled
from Middleware.utilities.http.connect import HEARTBEAT_SECONDS
from Middleware.utilities.http.connection import SLICE_SECONDS
from Middleware.utilities.http.exchange import Exchange
from Middleware.utilities.http.pool import ConnectionPool
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.via import OwnServer, own_server, via_headers
from Middleware.utilities.http.wire import HttpRequest, ResponseHead, Route, Target, parse_target
from Middleware.utilities.text_utils import encode_text

if TYPE_CHECKING:
    from Middleware.llmapis.call_watch import AttemptWatch

__all__ = ["BackendRequest", "BackendStream", "Transport", "get_transport"]

logger = logging.getLogger(__name__)

# A server may ask for hours, but the client times out long before.
MAX_RETRY_AFTER_SECONDS = 10.0
# Enough of an error body for a message, and no longer a wait than that message is worth.
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_ERROR_BODY_WAIT = 5.0


@dataclass(frozen=True)
class BackendRequest:
    """A POST of JSON to a back-end.

    Attributes:
        endpoint_name: for messages.
        url: absolute URL, http or https.
        other_url: the URL to ask in the same attempt if the server does not have the first one; "" for none.
        file: path of the endpoint's file, relative to the config root, for messages.
        connect_timeout, read_timeout: seconds; the latter is the longest time without data. It is four hours, because
            processing a long prompt on a slow computer can take that long.
        single_attempt: no retry and no second attempt to connect, because the caller has a backup.
        local_only: refuse a connected peer that is neither this machine nor in its local network.
        watch: what reports each attempt to send it; None for a request without listeners.
    """

    endpoint_name: str
    url: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout: float = 30
    read_timeout: float = 14400
    single_attempt: bool = False
    local_only: bool = False
    watch: AttemptWatch | None = field(default=None, repr=False, compare=False)
    other_url: str = ""
    file: str = ""

    def to_http(self, url: str, own: OwnServer, traceparent: str = "") -> HttpRequest:
        """Return the request to ``url`` without its body. Raises ConfigValueError for an invalid URL."""
        varying, headers = via_headers(own), self.headers
        if traceparent:
            varying["traceparent"] = traceparent
        if "Content-Type" not in headers and not any(name.lower() == "content-type" for name in headers):
            headers = {**headers, "Content-Type": "application/json"}
        return HttpRequest(
            parse_target(url),
            "POST",
            headers,
            self.connect_timeout,
            self.read_timeout,
            self.single_attempt,
            remembers_unreachable=True,
            keep_alive=True,
            route=Route(local_only=self.local_only),
            varying=varying,
        )


def encode_payload(payload: Mapping[str, Any]) -> bytes:
    """Return the payload as JSON in UTF-8. Lone surrogates become U+FFFD.

    Raises ConfigValueError for values that JSON cannot represent, ClientError for nesting that only a client can send.
    """
    try:
        try:
            text = _ENCODER.encode(payload)
        except RecursionError:
            # Raises ValueError for what a script has put into itself, which is not what a client has nested too deeply.
            json.dumps(payload, default=_plain)
            raise
    except RecursionError:
        raise ClientError("The request is nested too deeply to be sent to an LLM") from None
    except (TypeError, ValueError) as error:
        raise ConfigValueError(f"The request cannot be written as JSON ({error}). Check preset and endpoint") from error
    return encode_text(text)


def _plain(value: Any) -> Any:
    # Configuration objects are read-only views, which the encoder does not know.
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


# Without a list of the containers around each value, which takes a tenth of the time for a long conversation.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain, check_circular=False
)


class BackendStream:
    """The body of a streaming answer, in blocks of all bytes that have arrived.

    Lazy: the first ``next`` connects and sends. ``b""`` is a heartbeat after a second without data, also while waiting
    for the headers. Ends with the answer, or without an error when the scope is cancelled. ``next`` raises subclasses
    of BackendError for connection, status and framing problems. Iterate and close on one thread.
    """

    def __init__(self, pool: ConnectionPool, request: BackendRequest, scope: CancelScope) -> None:
        self._request, self._pool, self._scope = request, pool, scope
        self._aborted, self._own = False, own_server()
        # The answer of the first URL, if the server does not have it.
        self._missed: tuple[ResponseHead, bytes, Target] | None = None
        known = process().one(answering_forms).get(request.url) if request.other_url else None
        self._has_two_forms = bool(request.other_url) and known is None
        self._open(known or request.url)
        self._blocks = self._read()

    def _open(self, url: str) -> None:
        request = self._request
        self._url, self._traceparent = url, "" if request.watch is None else request.watch.next_traceparent()
        self._http = request.to_http(url, self._own, self._traceparent)
        self._exchange = Exchange(self._pool, self._http, encode_payload(request.payload), self._scope)

    def _read(self) -> Generator[bytes, None, None]:
        exchange, watch, target, own = self._exchange, self._request.watch, self._http.target, self._own
        if target.port == own.port and own.is_at(target.host, target.port, self._scope):
            raise errors.loop_error(self._request.endpoint_name, target)
        error: BaseException | None = None
        attempt = None if watch is None else watch.begin(self._url, self._request.payload, self._traceparent)
        try:
            head = yield from exchange.begin()
            if head is None:
                return
            body = b""
            if head.status >= 300:
                body = yield from self._error_body()
                if exchange.stopped:
                    return
                error = self._status_error(head, body)
            if not self._has_two_forms or not self._is_missing(head, body):
                if error is not None:
                    raise error
                yield from exchange.body()
                return
        except HttpError as problem:
            head = exchange.head
            # The error status is more useful than the fact that its body cannot be read.
            error = self._status_error(head, b"") if head is not None and head.status >= 300 else self.error(problem)
            raise error from problem
        except BaseException as problem:
            error = problem
            raise
        finally:
            exchange.close()
            if watch is not None and attempt is not None:
                watch.end(attempt, None if exchange.head is None else exchange.head.status, error, exchange.stopped)
        self._open(self._request.other_url)
        if self._aborted:
            self._exchange.abort()
        yield from self._read()

    def _is_missing(self, head: ResponseHead, body: bytes) -> bool:
        """Return whether the server lacks this URL and the other one has to be asked.

        Remembers the one that it has. Raises the error of the first URL if it has neither.
        """
        request, missed = self._request, self._missed
        is_missing = head.status in NO_SUCH_PATH and not speaks_of_a_model(
            errors.readable_text(body), request.url, request.other_url
        )
        if is_missing and missed is not None:
            raise self._status_error(*missed)
        if is_missing:
            self._missed = head, body, self.target
            return True
        process().one(answering_forms).put(request.url, self._url)
        if missed is not None:
            found = self.target.display
            logger.info(
                'Endpoint \'%s\': the server has %s, not %s. To ask there at once, write "endpoint": "%s" into %s.',
                *(request.endpoint_name, found, missed[2].display, found, request.file or "its file"),
            )
        return False

    def _error_body(self) -> Generator[bytes, None, bytes]:
        """Return the body of an error status, as far as it is worth waiting for."""
        parts, size, deadline = [], 0, time.monotonic() + MAX_ERROR_BODY_WAIT
        try:
            for block in self._exchange.body():
                parts.append(block)
                size += len(block)
                if size >= MAX_ERROR_BODY_BYTES or time.monotonic() > deadline:
                    break
                if not block:
                    yield block
        except HttpError:
            # The status is more useful than an error about its truncated body.
            pass
        return b"".join(parts)

    def _status_error(self, head: ResponseHead, body: bytes, target: Target | None = None) -> BackendError:
        request, target = self._request, target or self.target
        name, secrets = request.endpoint_name, errors.secrets_of(request.headers, target)
        context = current_request()
        if logger.isEnabledFor(logging.DEBUG) and (context is None or not context.redact):
            said = errors.masked(body.decode("utf-8", "replace"), secrets)
            logger.debug("Endpoint '%s' answered status %s: %r", name, head.status, said[:4096])
        asked = () if self._missed is None else (self._missed[2].display, self.target.display)
        error = errors.status_error(name, target, head, errors.short_body(body, secrets), request.file, asked)
        error.retry_after, error.data = retry_after(head.headers.get("retry-after", "")), errors.readable_text(body)
        return error

    def error(self, error: HttpError) -> BackendError:
        """Return the error for a failed call; its text names the endpoint."""
        found = errors.call_error(self._request.endpoint_name, self.target, error.problem)
        if self._exchange.sent and self._exchange.lost_before_status:
            found.lost = "stale" if self._exchange.reused else "new"
        return found

    @property
    def target(self) -> Target:
        return self._http.target

    @property
    def head(self) -> ResponseHead | None:
        """Status and headers, None until they have arrived."""
        return self._exchange.head

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    def __next__(self) -> bytes:
        return next(self._blocks)

    def rest(self) -> Iterator[bytes]:
        """Yield the blocks that follow a finish reason, up to the end; ``b""`` after ``SLICE_SECONDS`` without any.

        Reading to the end also makes the connection reusable. Errors are only logged, because the answer is complete.
        """
        self._exchange.idle.heartbeat_after = SLICE_SECONDS
        try:
            yield from self._blocks
        except BackendError as error:
            logger.debug("After the end of an answer: %s", errors.log_text(error))
        finally:
            self._exchange.idle.heartbeat_after = HEARTBEAT_SECONDS

    def close(self) -> None:
        """End the exchange: return a connection that was read to the end to the pool, close any other. Idempotent."""
        try:
            self._blocks.close()
        except ValueError:
            # Another thread is inside next(); the abort makes it end and clean up.
            self.abort()

    def abort(self) -> None:
        """End the stream, from any thread; a waiting iteration ends without an error."""
        self._aborted = True
        self._exchange.abort()

    def __enter__(self) -> BackendStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Sends requests to back-ends and reuses connections. Thread-safe."""

    def __init__(self) -> None:
        self._pool = ConnectionPool()

    def post_json(self, request: BackendRequest, scope: CancelScope | None = None) -> Any:
        """Send a request, once, and return the parsed JSON answer.

        Raises BackendConnectionError, BackendTimeoutError, BackendStatusError, BackendResponseError;
        EarlyTerminationException when ``scope`` is cancelled, even if an answer has arrived.
        """
        scope = scope or CancelScope()
        stream = BackendStream(self._pool, request, scope)
        try:
            data = _whole(stream)
        except BackendError:
            raise_if_cancelled(scope)
            raise
        raise_if_cancelled(scope)
        return _parse(request, stream, data)

    def open_stream(self, request: BackendRequest, scope: CancelScope | None = None) -> BackendStream:
        """Return a lazy stream of the answer's bytes. A request that was sent is not repeated."""
        return BackendStream(self._pool, request, scope or CancelScope())

    def close_all(self) -> None:
        """Close the idle connections. The transport remains usable."""
        self._pool.close_all()


def _whole(stream: BackendStream) -> bytes:
    with stream:
        return b"".join(stream)


def retry_after(text: str) -> float | None:
    """Return the delay of a ``Retry-After`` (a number or a date), at most ten seconds; None for any other text."""
    text = text.strip()
    if not text:
        return None
    try:
        is_number = text.isascii() and text.isdigit()
        seconds = float(text) if is_number else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, OSError):
        # OverflowError and OSError: dates outside the range of the platform.
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _parse(request: BackendRequest, stream: BackendStream, data: bytes) -> Any:
    try:
        try:
            return json.loads(data)
        except UnicodeDecodeError:
            # A model can emit half a character; the rest of the answer is still usable.
            return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        head = stream.head
        raise errors.not_json_error(
            request.endpoint_name,
            stream.target,
            head.status if head else 0,
            head.headers.get("content-type", "") if head else "",
            len(data),
        ) from error


def get_transport() -> Transport:
    """Return the transport of this process. It connects at the first request."""
    return process().one(Transport)
