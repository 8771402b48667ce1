"""One request to a back-end and its answer, on one connection, in waits short enough to be stopped.

The socket is read by its owner thread only, with ``recv`` under a timeout of one slice: in C that is one ``poll`` and
one ``recv`` per block. It loses no data when the slice ends, because no buffered file object stands above the socket
that a time-out could break, and it is the same for TLS, whose own buffer ``recv`` looks into first. A stop from another
thread shuts the socket down, which wakes the wait; where that wakes nobody the end of the slice does.
"""
from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from Middleware.exceptions import BackendError, ClientError, ConfigValueError
from Middleware.llmapis import backend_errors as errors
from Middleware.llmapis.transport_body import WireError
from Middleware.llmapis.transport_connect import SIGN_OF_LIFE, Connector, Silence, StopSwitch
from Middleware.llmapis.transport_pool import SLICE_SECONDS, Connection, ConnectionPool
from Middleware.llmapis.transport_wire import HttpCall, ResponseHead, Target, TooLargeError, parse_target
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import current_request

logger = logging.getLogger(__name__)

BLOCK_BYTES = 64 * 1024
MAX_ERROR_BODY_BYTES = 64 * 1024
MAX_ERROR_BODY_WAIT = 5.0
JOIN_BELOW_BYTES = 1024 * 1024


@dataclass(frozen=True)
class BackendRequest:
    """A POST of JSON to a back-end.

    Attributes:
        endpoint_name: for messages.
        url: absolute URL, http or https.
        connect_timeout, read_timeout: seconds; the latter is the longest silence of the server.
        single_attempt: no second try and no reconnect, because the caller has something better to try.
        local_only: refuse a connected peer that is neither this machine nor in its local network.
        uses_memory: fail at once for a server that was unreachable a moment ago, and tell later calls when it is.
    """

    endpoint_name: str
    url: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout: float = 30
    read_timeout: float = 14400
    single_attempt: bool = False
    local_only: bool = False
    uses_memory: bool = True


def encode_payload(payload: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8. Lone surrogates become U+FFFD.

    Raises ConfigValueError for what JSON cannot hold, ClientError for nesting that only a client can have sent.
    """
    try:
        text = _ENCODER.encode(payload)
    except RecursionError:
        raise ClientError("The request is nested too deeply to be sent to an LLM") from None
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
        sent: all of the request went out.
        lost_before_status: the connection ended before a status line came.
        silence: what decides when ``blocks`` yields ``b""``.
    """

    def __init__(self, pool: ConnectionPool, request: BackendRequest, body: bytes, scope: CancelScope) -> None:
        self.sent = False
        self.lost_before_status = False
        self.silence = Silence()
        self._pool = pool
        self._request = request
        self._body = body
        self._scope = scope
        self._target: Target = parse_target(request.url)
        self._stop = StopSwitch(scope)
        self._http = HttpCall()

    @property
    def head(self) -> ResponseHead | None:
        """Status and headers, once they arrived."""
        return self._http.head

    def blocks(self) -> Generator[bytes, None, None]:
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
            yield from self._read_body(connection, rest)
        finally:
            scope.remove_callback(token)
            self._release()

    def abort(self) -> None:
        """End a wait of the iterating thread, from any thread."""
        self._stop.fire()

    # ---- sending

    def _send_request(self) -> Generator[bytes, None, Connection | None]:
        connection = self._pool.take(self._target, self._request.local_only)
        if connection is not None:
            self._stop.attach(connection)
            yield from self._send(connection)
            if self.sent or self._stop.stopped:
                return None if self._stop.stopped else connection
            # The server had closed the idle connection and cannot have got the whole request: safe to send anew.
            if (stale := self._stop.detach()) is not None:
                stale.close()
        connection = yield from Connector(self._pool, self._request, self._target, self._stop, self.silence).connect()
        if connection is not None:
            yield from self._send(connection)
        return None if self._stop.stopped else connection

    def _send(self, connection: Connection) -> Generator[bytes, None, None]:
        """Write the request; leaves ``sent`` False if the peer stopped reading (its answer may say why)."""
        self._http = HttpCall()
        head = self._http.request_head(self._target, self._request.headers, len(self._body),
                                       absolute=connection.absolute, extra=connection.proxy_headers)
        pieces = [head + self._body] if len(self._body) < JOIN_BELOW_BYTES else [head, self._body]
        for piece in pieces:
            view = memoryview(piece)
            while view:
                try:
                    view = view[connection.send(view, self._request.read_timeout):]
                    self.silence.of_server = 0.0
                except TimeoutError:
                    if connection.tls_in_tls:
                        self.silence.of_server = self._request.read_timeout
                    if self._server_silent():
                        yield SIGN_OF_LIFE
                except OSError:
                    return
                if self._stop.stopped:
                    return
        self.sent = True
        self._body = b""  # may be large, and the answer may take hours

    # ---- reading

    def _read_head(self, connection: Connection) -> Generator[bytes, None, bytes | None]:
        """Wait for the response head; returns the first body bytes, or None when stopped."""
        answered = line = False
        while True:
            try:
                data = connection.sock.recv(BLOCK_BYTES)
            except TimeoutError:
                if self._stop.stopped:
                    return None
                if self._server_silent():
                    yield SIGN_OF_LIFE
                continue
            except OSError as error:  # a reset connection ends here like a closed one
                logger.debug("Endpoint '%s': %s", self._request.endpoint_name, error)
                data = b""
            if self._stop.stopped:
                return None
            if not data:
                self.lost_before_status = not line
                raise errors.lost_error(self._request.endpoint_name, self._target, answered=answered)
            self.silence.broken()
            answered, line = True, line or b"\n" in data
            try:
                body = self._http.feed(data)
            except WireError as error:
                if self.head is not None and self.head.status >= 300:  # says more than that its text is unreadable
                    raise self._status_error(self.head, b"") from error
                raise self._wire_error(error) from error
            if self.head is not None:
                return body

    def _read_body(self, connection: Connection, block: bytes) -> Iterator[bytes]:
        """The hot path: per block one ``recv``, one look at the flag, one pass of the parser."""
        recv, scope, http, silence = connection.sock.recv, self._scope, self._http, self.silence
        feed = http.feed
        try:
            while True:
                if block:
                    yield block
                if http.done:
                    return
                try:
                    data = recv(BLOCK_BYTES)
                except TimeoutError:
                    if self._stop.stopped:
                        return
                    block = b""
                    if self._server_silent():
                        yield SIGN_OF_LIFE
                    continue
                if scope.cancelled:
                    return
                if not data:
                    if http.eof() or self._stop.stopped:
                        return
                    raise errors.lost_error(self._request.endpoint_name, self._target, answered=True)
                if silence.unsigned or silence.of_server:
                    silence.broken()
                block = feed(data)
        except WireError as error:
            raise self._wire_error(error) from error
        except BackendError:
            raise
        except OSError as error:
            if self._stop.stopped:
                return
            raise errors.lost_error(self._request.endpoint_name, self._target, answered=True) from error

    def _raise_status(self, connection: Connection, head: ResponseHead, rest: bytes) -> Iterator[bytes]:
        """Read what the server has to say about a bad status, then raise it; returns only when stopped."""
        parts, size, deadline = [], 0, time.monotonic() + MAX_ERROR_BODY_WAIT
        try:
            for block in self._read_body(connection, rest):
                parts.append(block)
                size += len(block)
                if size >= MAX_ERROR_BODY_BYTES or time.monotonic() > deadline:
                    break
                if not block:
                    yield block
        except BackendError:
            pass  # the status says more than a body cut short
        if not self._stop.stopped:
            raise self._status_error(head, b"".join(parts))

    def _status_error(self, head: ResponseHead, body: bytes) -> BackendError:
        secrets = errors.secrets_of(self._request.headers, self._target)
        context = current_request()
        if logger.isEnabledFor(logging.DEBUG) and (context is None or not context.redact):
            said = errors.masked(body.decode("utf-8", "replace"), secrets)
            logger.debug("Endpoint '%s' answered status %s: %r", self._request.endpoint_name, head.status, said[:4096])
        return errors.status_error(self._request.endpoint_name, self._target, head.status, head.reason,
                                   errors.short_body(body, secrets), head.headers.get("location", ""))

    # ---- waiting and ending

    def _server_silent(self) -> bool:
        """Count a slice of the server's silence; True when a sign of life is due. Raises BackendTimeoutError."""
        limit = self._request.read_timeout
        self.silence.of_server += SLICE_SECONDS
        if self.silence.of_server >= limit:
            raise errors.read_timeout_error(self._request.endpoint_name, self._target, limit)
        return self.silence.slice_passed()

    def _wire_error(self, error: WireError) -> BackendError:
        if isinstance(error, TooLargeError):
            return errors.too_large_error(self._request.endpoint_name, self._target, str(error))
        return errors.wire_error(self._request.endpoint_name, self._target, str(error))

    def _release(self) -> None:
        """Give the connection back if its answer was read to the end, else close it."""
        connection = self._stop.detach()  # first, so that no later stop can reach it
        if connection is None:
            return
        if self.head is not None and self._http.reusable and self.sent and not self._stop.fired:
            self._pool.give_back(self._target, connection, self.head.idle_seconds)
        else:
            connection.close()
