"""The HTTP client for all callers but the handlers of back-ends, which use ``llmapis/transport.py``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.exchange import Exchange
from Middleware.utilities.http.pool import ConnectionPool
from Middleware.utilities.http.problems import HttpError, Kind, connect_timeout_problem, read_timeout_problem
from Middleware.utilities.http.wire import HttpRequest, ResponseHead


@dataclass(frozen=True)
class HttpResponse:
    """A server's answer.

    Attributes:
        body: decompressed; only its beginning unless ``complete``.
        head: status and headers.
    """

    head: ResponseHead
    body: bytes = field(repr=False)
    complete: bool = True

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, with their names as the server spelled them."""
        return {self.head.spelled[name]: value for name, value in self.head.headers.items()}


class HttpStream:
    """A server's answer in blocks, while it arrives; ``b""`` is a heartbeat after a second without data.

    Lazy: the first ``next`` sends the request. Raises HttpError. Iterate and close on one thread.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._blocks = _blocks(exchange)

    @property
    def head(self) -> ResponseHead | None:
        """Status and headers, None until they have arrived."""
        return self._exchange.head

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    def close(self) -> None:
        """End the request; its connection is closed if the answer was not read to the end."""
        self._exchange.close()


class HttpClient:
    """Sends requests and reuses connections where a request allows it. Thread-safe."""

    def __init__(self) -> None:
        self._pool = ConnectionPool()

    def call(
        self,
        request: HttpRequest,
        body: bytes | None = None,
        scope: CancelScope | None = None,
        *,
        seconds: float | None = None,
        repeat: bool = False,
    ) -> HttpResponse:
        """Return the answer, whatever its status. Redirects are not followed.

        A body that is larger than the request allows is returned incomplete; with a limit of 0 only the head is read.

        Args:
            seconds: limit for the whole call.
            repeat: send the request again, once, if the connection was lost before an answer came.

        Raises HttpError, EarlyTerminationException as soon as ``scope`` is cancelled.
        """
        scope = scope or CancelScope()
        exchange = Exchange(self._pool, request, body, scope)
        try:
            return _answer(exchange, scope, request.max_bytes, seconds)
        except HttpError:
            # The server had already closed the reused connection, so it never received the request.
            if not exchange.lost_before_status or not (repeat or exchange.reused):
                raise
        return _answer(Exchange(self._pool, request, body, scope), scope, request.max_bytes, seconds)

    def stream(self, request: HttpRequest, body: bytes | None = None, scope: CancelScope | None = None) -> HttpStream:
        """Return the answer, whatever its status, while it arrives. It ends early when ``scope`` is cancelled."""
        return HttpStream(Exchange(self._pool, request, body, scope or CancelScope()))


def _answer(exchange: Exchange, scope: CancelScope, max_bytes: int | None, seconds: float | None) -> HttpResponse:
    try:
        with _limited(exchange, seconds):
            found, complete = _body(exchange, max_bytes)
    except HttpError:
        raise_if_cancelled(scope)
        raise
    finally:
        exchange.close()
    raise_if_cancelled(scope)
    if exchange.head is None or exchange.stopped:
        raise HttpError(read_timeout_problem(seconds or 0) if exchange.connected else connect_timeout_problem())
    return HttpResponse(exchange.head, found, complete)


@contextlib.contextmanager
def _limited(exchange: Exchange, seconds: float | None) -> Iterator[None]:
    """Abort the exchange after ``seconds``: a server that sends single bytes never reaches the read timeout."""
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), exchange.abort) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _body(exchange: Exchange, max_bytes: int | None) -> tuple[bytes, bool]:
    """Return the body, and whether it is complete."""
    body = bytearray()
    try:
        for block in _blocks(exchange):
            # A caller that wants no body must not wait for it either.
            if max_bytes == 0 and exchange.head is not None:
                return b"", False
            body += block
            if max_bytes is not None and len(body) > max_bytes:
                return bytes(body[:max_bytes]), False
    except HttpError as error:
        if error.problem.kind is not Kind.TOO_LARGE or exchange.head is None or max_bytes is None:
            raise
        return bytes((body + error.beginning)[:max_bytes]), False
    return bytes(body), True


def _blocks(exchange: Exchange) -> Generator[bytes, None, None]:
    if (yield from exchange.begin()) is not None:
        yield b""
        yield from exchange.body()


def raise_if_cancelled(scope: CancelScope) -> None:
    """Raise EarlyTerminationException if ``scope`` is cancelled."""
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled.")
