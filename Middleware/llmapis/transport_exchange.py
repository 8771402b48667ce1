"""One request to a back-end and its answer, on one connection, in waits short enough to be stopped.

The socket is read by its owner thread only, with ``recv`` under a timeout of one slice: in C that is one ``poll`` and
one ``recv`` per block. It loses no data when the slice ends, because no buffered file object stands above the socket
that a time-out could break, and it is the same for TLS, whose own buffer ``recv`` looks into first. A stop from another
thread shuts the socket down, which wakes the wait; where that wakes nobody the end of the slice does.
"""
from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from urllib3.exceptions import HTTPError

from Middleware.exceptions import BackendError, ConfigValueError
from Middleware.llmapis import backend_errors as errors
from Middleware.llmapis.transport_pool import SLICE_SECONDS, Connection, ConnectionPool
from Middleware.llmapis.transport_wire import (
    BodyDecoder,
    ResponseHead,
    Target,
    WireError,
    body_decoder,
    build_head,
    parse_head,
    parse_target,
)
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_request

logger = logging.getLogger(__name__)

BLOCK_BYTES = 64 * 1024
SIGN_OF_LIFE_SECONDS = 1.0
REFUSED_WAITS = (0.2, 0.5)
CONNECT_WAITS = (0.0, 2.0, 4.0, 8.0, 16.0)
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_ERROR_BODY_WAIT = 5.0
JOIN_BELOW_BYTES = 1024 * 1024

SIGN_OF_LIFE = b""


@dataclass(frozen=True)
class BackendRequest:
    """A POST of JSON to a back-end.

    Attributes:
        endpoint_name: for messages.
        url: absolute URL, http or https.
        connect_timeout, read_timeout: seconds; the latter is the longest silence of the server.
        single_attempt: no second try and no reconnect, because the caller has something better to try.
    """

    endpoint_name: str
    url: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout: float = 30
    read_timeout: float = 14400
    single_attempt: bool = False


def encode_payload(payload: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8. Lone surrogates become U+FFFD; raises ConfigValueError for what JSON cannot hold."""
    try:
        text = _ENCODER.encode(payload)
    except (TypeError, ValueError) as error:
        raise ConfigValueError(f"The request cannot be written as JSON ({error}). Check preset and endpoint") from error
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):  # read-only views of configuration
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON type")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


class Exchange:
    """Sends one request and reads its answer.

    Attributes:
        head: status and headers, once they arrived.
        sent: all of the request went out.
        lost_before_status: the connection ended before a status line came.
        sign_after: seconds of silence after which ``blocks`` yields ``b""``.
    """

    def __init__(self, pool: ConnectionPool, request: BackendRequest, body: bytes, scope: CancelScope) -> None:
        self.head: ResponseHead | None = None
        self.sent = False
        self.lost_before_status = False
        self.sign_after = SIGN_OF_LIFE_SECONDS
        self._pool = pool
        self._request = request
        self._body = body
        self._scope = scope
        self._target: Target = parse_target(request.url)
        self._stop = _StopSwitch()
        self._decoder: BodyDecoder | None = None
        self._silent = 0.0    # since the last byte
        self._unsigned = 0.0  # since the last byte or sign of life

    def blocks(self) -> Iterator[bytes]:
        """Body bytes as they arrive, ``b""`` in silence, in every phase. Ends quietly on cancellation.

        Raises BackendError subclasses. Iterate and close it on one thread; ``abort`` may come from any.
        """
        scope = self._scope
        if scope.cancelled:
            return
        token = scope.add_callback(self._stop.fire)
        try:
            connection = yield from self._send_request()
            if connection is None:
                return
            rest = yield from self._read_head(connection)
            if rest is None or self.head is None:
                return
            if self.head.status >= 300:
                yield from self._raise_status(connection, self.head, rest)
                return
            yield from self._read_body(connection, self._begin_body(self.head), rest)
        finally:
            scope.remove_callback(token)
            self._release()

    def abort(self) -> None:
        """End a wait of the iterating thread, from any thread."""
        self._stop.fire()

    @property
    def _stopped(self) -> bool:
        return self._scope.cancelled or self._stop.fired

    # ---- connecting and sending

    def _send_request(self) -> Generator[bytes, None, Connection | None]:
        connection = self._pool.take(self._target)
        if connection is not None:
            self._stop.attach(connection)
            yield from self._send(connection)
            if self.sent or self._stopped:
                return None if self._stopped else connection
            # The server had closed the idle connection and cannot have got the whole request: safe to send anew.
            self._discard()
        connection = yield from self._open()
        if connection is not None:
            yield from self._send(connection)
        return None if self._stopped else connection

    def _send(self, connection: Connection) -> Generator[bytes, None, None]:
        """Write the request; leaves ``sent`` False if the peer stopped reading (its answer may say why)."""
        head = build_head(self._target, self._request.headers, len(self._body), absolute=connection.absolute,
                          extra=connection.proxy_headers)
        pieces = [head + self._body] if len(self._body) < JOIN_BELOW_BYTES else [head, self._body]
        for piece in pieces:
            view = memoryview(piece)
            while view:
                try:
                    view = view[connection.sock.send(view):]
                    self._silent = 0.0
                except TimeoutError:
                    if self._tick():
                        yield SIGN_OF_LIFE
                except OSError:
                    return
                if self._stopped:
                    return
        self.sent = True

    def _open(self) -> Generator[bytes, None, Connection | None]:
        """Connect with the retries of the specification; None when stopped."""
        request, target = self._request, self._target
        deadline = time.monotonic() + 2 * request.connect_timeout
        refused_waits, other_waits = iter(REFUSED_WAITS), iter(CONNECT_WAITS)
        while True:
            timeout = min(request.connect_timeout, max(deadline - time.monotonic(), 0.05))
            outcome = yield from self._attempt(timeout)
            if self._stopped or isinstance(outcome, Connection):
                return outcome if isinstance(outcome, Connection) else None
            root = errors.root_cause(outcome)
            wait = next(refused_waits if isinstance(root, ConnectionRefusedError) else other_waits, None)
            hopeless = isinstance(root, errors.NEVER_BETTER) or request.single_attempt
            if hopeless or wait is None or time.monotonic() + wait >= deadline:
                raise errors.connect_error(request.endpoint_name, target, outcome) from outcome
            yield from self._pause(wait)
            if self._stopped:
                return None

    def _attempt(self, timeout: float) -> Generator[bytes, None, Connection | Exception]:
        """Connect on a helper thread: neither name resolution nor connecting can be interrupted, only left alone."""
        opening = _Opening(self._pool, self._target, timeout)
        self._stop.watch(opening.ready)
        deadline = time.monotonic() + timeout
        opening.start()
        try:
            while not opening.ready.wait(SLICE_SECONDS):
                if time.monotonic() >= deadline:
                    return TimeoutError("connect")
                if self._tick(limit=None):
                    yield SIGN_OF_LIFE
            if self._stopped:
                return TimeoutError("stopped")
            outcome = opening.take()
            if isinstance(outcome, Connection):
                self._stop.attach(outcome)
            return outcome
        finally:
            self._stop.watch(None)
            opening.abandon()

    def _pause(self, seconds: float) -> Generator[bytes, None, None]:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stopped:
            if self._scope.wait(min(left, SLICE_SECONDS)):
                return
            if self._tick(limit=None):
                yield SIGN_OF_LIFE

    # ---- reading

    def _read_head(self, connection: Connection) -> Generator[bytes, None, bytes | None]:
        """Wait for the response head; returns the first body bytes, or None when stopped."""
        buffer = b""
        while True:
            try:
                data = connection.sock.recv(BLOCK_BYTES)
            except TimeoutError:
                if self._stopped:
                    return None
                if self._tick():
                    yield SIGN_OF_LIFE
                continue
            except OSError as error:  # a reset connection ends here like a closed one
                logger.debug("Endpoint '%s': %s", self._request.endpoint_name, error)
                data = b""
            if self._stopped:
                return None
            if not data:
                self.lost_before_status = b"\n" not in buffer
                raise errors.lost_error(self._request.endpoint_name, self._target, answered=bool(buffer))
            self._silent = self._unsigned = 0.0
            buffer += data
            try:
                parsed = parse_head(buffer)
            except WireError as error:
                raise self._wire_error(error) from error
            if parsed is not None:
                self.head, rest = parsed
                return rest

    def _begin_body(self, head: ResponseHead) -> BodyDecoder:
        try:
            self._decoder = body_decoder(head)
        except WireError as error:
            raise self._wire_error(error) from error
        return self._decoder

    def _read_body(self, connection: Connection, decoder: BodyDecoder, data: bytes) -> Iterator[bytes]:
        """The hot path: per block one ``recv``, one look at the flag, one pass of the decoder."""
        recv, scope, feed = connection.sock.recv, self._scope, decoder.feed
        try:
            while True:
                if data:
                    block = feed(data)
                    if self._silent or self._unsigned:
                        self._silent = self._unsigned = 0.0
                    if block:
                        yield block
                if decoder.done:
                    return
                try:
                    data = recv(BLOCK_BYTES)
                except TimeoutError:
                    data = b""
                    if self._stopped:
                        return
                    if self._tick():
                        yield SIGN_OF_LIFE
                    continue
                if scope.cancelled:
                    return
                if not data:
                    if decoder.eof() or self._stopped:
                        return
                    raise errors.lost_error(self._request.endpoint_name, self._target, answered=True)
        except WireError as error:
            raise self._wire_error(error) from error
        except BackendError:
            raise
        except OSError as error:
            if self._stopped:
                return
            raise errors.lost_error(self._request.endpoint_name, self._target, answered=True) from error

    def _raise_status(self, connection: Connection, head: ResponseHead, rest: bytes) -> Iterator[bytes]:
        """Read what the server has to say about a bad status, then raise it; returns only when stopped."""
        parts, size, deadline = [], 0, time.monotonic() + MAX_ERROR_BODY_WAIT
        try:
            for block in self._read_body(connection, self._begin_body(head), rest):
                parts.append(block)
                size += len(block)
                if size >= MAX_ERROR_BODY_BYTES or time.monotonic() > deadline:
                    break
                if not block:
                    yield block
        except BackendError:
            pass  # the status says more than a body cut short
        if self._stopped:
            return
        body = b"".join(parts)
        context = current_request()
        if context is None or not context.redact:
            logger.debug("Endpoint '%s' answered status %s: %r", self._request.endpoint_name, head.status, body[:4096])
        secrets = errors.secrets_of(self._request.headers, self._target)
        raise errors.status_error(self._request.endpoint_name, self._target, head.status, head.reason,
                                  errors.short_body(body, secrets), head.headers.get("location", ""))

    # ---- waiting and ending

    def _tick(self, limit: float | None = 0.0) -> bool:
        """Count a slice of silence; True when a sign of life is due. ``limit`` None: not the server's silence."""
        self._unsigned += SLICE_SECONDS
        if limit is not None:
            self._silent += SLICE_SECONDS
            if self._silent >= self._request.read_timeout:
                raise errors.read_timeout_error(self._request.endpoint_name, self._target, self._request.read_timeout)
        if self._unsigned + 0.001 < self.sign_after:
            return False
        self._unsigned = 0.0
        return True

    def _wire_error(self, error: WireError) -> BackendError:
        return errors.wire_error(self._request.endpoint_name, self._target, str(error))

    def _release(self) -> None:
        """Give the connection back if its answer was read to the end, else close it."""
        connection = self._stop.detach()
        if connection is None:
            return
        head, decoder = self.head, self._decoder
        if (head is not None and decoder is not None and decoder.done and not decoder.surplus and self.sent
                and head.keep_alive and not self._stop.fired):
            self._pool.give_back(self._target, connection, head.idle_seconds)
        else:
            connection.close()

    def _discard(self) -> None:
        connection = self._stop.detach()
        if connection is not None:
            connection.close()


class _StopSwitch:
    """Reaches whatever a call waits for: its socket, or the event of a connection being made.

    The lock guarantees that a socket given back to the pool or closed is never shut down by a late stop.
    """

    def __init__(self) -> None:
        self.fired = False
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._event: threading.Event | None = None

    def fire(self) -> None:
        with self._lock:
            self.fired = True
            if self._connection is not None:
                self._connection.shutdown()
            if self._event is not None:
                self._event.set()

    def attach(self, connection: Connection) -> None:
        with self._lock:
            self._connection = connection
            if self.fired:
                connection.shutdown()

    def detach(self) -> Connection | None:
        with self._lock:
            connection, self._connection = self._connection, None
            return connection

    def watch(self, event: threading.Event | None) -> None:
        with self._lock:
            self._event = event
            if self.fired and event is not None:
                event.set()


class _Opening:
    """A connection being made on a daemon thread; one that nobody waits for any more is closed when it is there."""

    def __init__(self, pool: ConnectionPool, target: Target, timeout: float) -> None:
        self.ready = threading.Event()
        self._pool, self._target, self._timeout = pool, target, timeout
        self._lock = threading.Lock()
        self._abandoned = False
        self._outcome: Connection | Exception | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="backend-connect", daemon=True).start()

    def _run(self) -> None:
        outcome: Connection | Exception
        try:
            outcome = self._pool.open(self._target, self._timeout)
        except (OSError, HTTPError, ValueError) as error:
            outcome = error
        except Exception as error:  # boundary of a thread: the waiting one must learn of it
            logger.exception("Connecting to %s failed", self._target.display)
            outcome = error
        with self._lock:
            self._outcome = outcome
            late = self._abandoned
        if late and isinstance(outcome, Connection):
            outcome.close()
        self.ready.set()

    def take(self) -> Connection | Exception:
        """The result, once ``ready`` is set; it belongs to the caller."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return outcome if outcome is not None else TimeoutError("connect")

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Connection):
            outcome.close()
