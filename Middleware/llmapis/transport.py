"""The one door from WilmerAI to its LLM servers: pooling, time-outs, retries, stops.

A back-end handler says what to send and how to read it; everything about sockets is here and in the ``transport_*``
modules below: ``transport_exchange`` (one request and its answer), ``transport_connect`` (reaching the server),
``transport_unreachable`` (servers that were not reached), ``transport_pool`` (kept connections), ``transport_wire``
(HTTP as bytes), ``backend_errors`` (what a person reads).
"""
from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from Middleware.exceptions import BackendError, BackendStatusError, EarlyTerminationException
from Middleware.llmapis import backend_errors as errors
from Middleware.llmapis.transport_connect import SIGN_OF_LIFE_SECONDS
from Middleware.llmapis.transport_exchange import BackendRequest, Exchange, encode_payload
from Middleware.llmapis.transport_pool import SLICE_SECONDS, ConnectionPool
from Middleware.llmapis.transport_wire import parse_target
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_trial

__all__ = ["BackendRequest", "BackendStream", "Transport", "get_transport"]

logger = logging.getLogger(__name__)

RETRY_WAITS = (0.5, 1.0)
MAX_RETRY_AFTER_SECONDS = 10.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024


class BackendStream:
    """The body of a streaming answer, as ``bytes`` blocks of everything that was delivered at that moment.

    Lazy: the first ``next`` connects and sends. ``b""`` stands for a second of silence, while waiting for the headers
    too. Ends at the end of the answer, or quietly when the scope is cancelled. Connection, status and framing problems
    raise BackendError subclasses out of ``next``. Iterate and close on one thread.
    """

    def __init__(self, pool: ConnectionPool, request: BackendRequest, scope: CancelScope) -> None:
        self._exchange = Exchange(pool, request, encode_payload(request.payload), scope)
        self._blocks = self._exchange.blocks()

    @property
    def status(self) -> int | None:
        """HTTP status, once the headers arrived."""
        return self._exchange.head.status if self._exchange.head else None

    def __iter__(self) -> Iterator[bytes]:
        return self._blocks

    def __next__(self) -> bytes:
        return next(self._blocks)

    def drain(self, max_seconds: float = 1.0, max_bytes: int = 65536) -> list[bytes]:
        """Read on to the end, for what follows a finish reason and so that the connection can be used again.

        Stops early after ``max_seconds`` or ``max_bytes``; errors end it quietly, as the answer itself is there.
        """
        deadline = time.monotonic() + max_seconds
        found: list[bytes] = []
        size = 0
        self._exchange.silence.sign_after = SLICE_SECONDS
        try:
            for block in self._blocks:
                if block:
                    found.append(block)
                    size += len(block)
                if size >= max_bytes or time.monotonic() >= deadline:
                    break
        except BackendError as error:
            logger.debug("After the end of an answer: %s", errors.log_text(error))
        self._exchange.silence.sign_after = SIGN_OF_LIFE_SECONDS
        return found

    def close(self) -> None:
        """End the exchange: a connection read to its end returns to the pool, any other is closed. Idempotent."""
        try:
            self._blocks.close()  # type: ignore[attr-defined]
        except ValueError:  # another thread is inside next(): it ends and cleans up
            self.abort()

    def abort(self) -> None:
        """End a wait of the iterating thread, from any thread: to it the stream simply ends."""
        self._exchange.abort()

    def __enter__(self) -> BackendStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport:
    """Sends requests to back-ends over kept connections. Thread-safe."""

    def __init__(self) -> None:
        self._pool = ConnectionPool()

    def post_json(self, request: BackendRequest, scope: CancelScope | None = None) -> Any:
        """The parsed JSON answer.

        Raises BackendConnectionError, BackendTimeoutError, BackendStatusError, BackendResponseError;
        EarlyTerminationException when ``scope`` is cancelled, even if an answer came meanwhile.
        """
        scope = scope or CancelScope()
        waits = iter(() if request.single_attempt else RETRY_WAITS)
        while True:
            exchange = Exchange(self._pool, request, encode_payload(request.payload), scope)
            try:
                data = _whole(request, exchange)
            except BackendError as error:
                _raise_if_cancelled(scope)
                wait = next(waits, None) if _worth_retrying(exchange, error) else None
                if wait is None:
                    raise
                wait = _retry_after(exchange, wait)
                logger.warning("%s Trying again in %g s.", errors.sentence(errors.log_text(error)), wait)
                scope.wait(wait)
            else:
                _raise_if_cancelled(scope)
                return _parse(request, exchange, data)
            _raise_if_cancelled(scope)

    def open_stream(self, request: BackendRequest, scope: CancelScope | None = None) -> BackendStream:
        """A lazy stream of the answer's bytes; one attempt once the request was sent."""
        return BackendStream(self._pool, request, scope or CancelScope())

    def idle_connections(self) -> int:
        """How many open connections wait for a next request."""
        return self._pool.idle_count()

    def close_all(self) -> None:
        """Close the idle connections. The transport stays usable."""
        self._pool.close_all()


def _whole(request: BackendRequest, exchange: Exchange) -> bytes:
    """The complete body. Raises BackendResponseError for one that does not end, before it fills the memory."""
    parts, size = [], 0
    with contextlib.closing(exchange.blocks()) as blocks:
        for block in blocks:
            parts.append(block)
            size += len(block)
            if size > MAX_ANSWER_BYTES:
                raise errors.too_large_error(request.endpoint_name, parse_target(request.url),
                                             f"more than {MAX_ANSWER_BYTES >> 20} MB")
    return b"".join(parts)


def _raise_if_cancelled(scope: CancelScope) -> None:
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled.")


def _worth_retrying(exchange: Exchange, error: BackendError) -> bool:
    if isinstance(error, BackendStatusError):
        return error.status in (408, 429) or (error.status or 0) >= 500
    return exchange.sent and exchange.lost_before_status


def _retry_after(exchange: Exchange, default: float) -> float:
    """Seconds that the server asks for in ``Retry-After`` (a number or a date), at most ten."""
    text = exchange.head.headers.get("retry-after", "").strip() if exchange.head else ""
    if not text:
        return default
    try:
        is_number = text.isascii() and text.isdigit()
        seconds = float(text) if is_number else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError, OSError):  # the last two from dates far away
        return default
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _parse(request: BackendRequest, exchange: Exchange, data: bytes) -> Any:
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    except (ValueError, RecursionError) as error:
        raise _not_json(request, exchange, data) from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(request, exchange, data) from error


def _not_json(request: BackendRequest, exchange: Exchange, data: bytes) -> BackendError:
    head = exchange.head
    return errors.not_json_error(request.endpoint_name, parse_target(request.url), head.status if head else 0,
                                 head.headers.get("content-type", "") if head else "", len(data))


_transport = Transport()


def get_transport() -> Transport:
    """The transport of this process, which opens nothing before the first request; that of a trial has its own."""
    trial = current_trial()
    return _transport if trial is None else trial.transport
