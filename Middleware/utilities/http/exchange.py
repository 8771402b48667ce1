"""One request and its answer on one connection, with waits that are short enough to be stopped.

Only the owner thread reads the socket, with ``recv`` and a timeout of one slice, which the system observes where it
can: one system call per block. A timeout loses no data, because there is no buffered file object above the socket; with
TLS ``recv`` looks into the TLS buffer first. A stop from another thread shuts the socket down, which ends the wait;
where it does not, the end of the slice does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator

from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.body import WireError
from Middleware.utilities.http.connect import HEARTBEAT, Connector, IdleTime, StopSwitch
from Middleware.utilities.http.connection import SLICE_PASSED, SLICE_SECONDS, Connection
from Middleware.utilities.http.pool import ConnectionPool
from Middleware.utilities.http.problems import (
    HttpError,
    lost_problem,
    read_timeout_problem,
    too_large_problem,
    unreadable_problem,
)
from Middleware.utilities.http.wire import HttpCall, HttpRequest, ResponseHead, TooLargeError

logger = logging.getLogger(__name__)

# The size of a read. Each waiting stream holds so much memory, and a token has a few hundred bytes.
BLOCK_BYTES = 2 * 1024
# Each read that is filled is followed by a larger one, up to this size: few system calls for a large answer.
LARGE_BLOCK_BYTES = 64 * 1024
BLOCK_GROWTH = 4
# Of one answer: more than any model writes, and a server that never stops must not keep the call for ever.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
# Below this size, copying the body to the end of the head costs less than a second packet and system call.
JOIN_BELOW_BYTES = 1024 * 1024


class Exchange:
    """Sends one request and reads its answer.

    Attributes:
        connected: there was a connection to send on.
        sent: the whole request was sent.
        reused: it was sent on a reused connection.
        lost_before_status: the connection ended before a status line arrived.
        idle: the counter that decides when a heartbeat (``b""``) is yielded.
    """

    def __init__(self, pool: ConnectionPool, request: HttpRequest, body: bytes | None, scope: CancelScope) -> None:
        self.sent = False
        self.connected = False
        self.reused = False
        self.lost_before_status = False
        self.idle = IdleTime()
        self._pool = pool
        self._request = request
        self._body = body
        self._scope = scope
        self._stop = StopSwitch(scope)
        self._http = HttpCall(request)
        self._rest = b""
        self._connection: Connection | None = None
        self._token: int | None = None

    @property
    def head(self) -> ResponseHead | None:
        """Status and headers, None until they have arrived."""
        return self._http.head

    @property
    def stopped(self) -> bool:
        """The call was cancelled or aborted."""
        return self._stop.stopped

    def begin(self) -> Generator[bytes, None, ResponseHead | None]:
        """Send the request and wait for the head of the answer; yield heartbeats (``b""``). Returns None when stopped.

        Raises HttpError. Call ``close`` afterwards in any case, on the same thread; ``abort`` may come from any.
        """
        if self._scope.cancelled:
            return None
        self._token = self._scope.add_callback(self._stop.fire)
        connection = yield from self._send_request()
        if connection is None:
            return None
        rest = yield from self._read_head(connection)
        if rest is None:
            return None
        self._rest = rest
        return self.head

    def abort(self) -> None:
        """End a wait of the iterating thread, from any thread."""
        self._stop.fire()

    def close(self) -> None:
        """Return the connection to the pool if its answer was read to the end, else close it."""
        if self._token is not None:
            self._scope.remove_callback(self._token)
        # Detach first, so that a later stop cannot shut down a connection of the pool.
        connection = self._stop.detach()
        if connection is None:
            return
        whole = self.head is not None and self._http.reusable and self.sent and not self._stop.fired
        if self.head is not None and whole and self._request.pooled:
            self._pool.give_back(self._request.target, connection, self.head.idle_seconds)
        else:
            connection.close()

    # ---- sending

    def _send_request(self) -> Generator[bytes, None, Connection | None]:
        request = self._request
        connection = self._pool.take(request.target, request.route) if request.pooled else None
        if connection is not None:
            self.reused = True
            self._stop.attach(connection)
            yield from self._send(connection)
            if self.sent or self._stop.stopped:
                return None if self._stop.stopped else connection
            # The server closed the idle connection before it received the whole request, so sending again is safe.
            if (stale := self._stop.detach()) is not None:
                stale.close()
        self.reused = False
        connection = yield from Connector(self._pool, self._request, self._stop, self.idle).connect()
        if connection is not None:
            yield from self._send(connection)
        return None if self._stop.stopped else connection

    def _send(self, connection: Connection) -> Generator[bytes, None, None]:
        """Write the request. ``sent`` stays False if the peer stopped reading; its answer may contain the reason."""
        self.connected, self._connection = True, connection
        self._http = HttpCall(self._request)
        body = self._body or b""
        head = self._http.request_head(
            None if self._body is None else len(body), absolute=connection.absolute, extra=connection.proxy_headers
        )
        pieces = [head + body] if len(body) < JOIN_BELOW_BYTES else [head, body]
        for piece in pieces:
            view = memoryview(piece)
            while view:
                try:
                    view = view[connection.send(view, self._request.read_timeout) :]
                    self.idle.server_seconds = 0.0
                except SLICE_PASSED:
                    if connection.tls_in_tls:
                        self.idle.server_seconds = self._request.read_timeout
                    if self._heartbeat_due():
                        yield HEARTBEAT
                except OSError:
                    return
                if self._stop.stopped:
                    return
        self.sent = True
        # Free the memory: the body may be large, and the answer may take hours.
        self._body = b""

    # ---- reading

    def _read_head(self, connection: Connection) -> Generator[bytes, None, bytes | None]:
        """Wait for the response head. Return the first body bytes, or None when stopped."""
        answered = line = False
        while True:
            try:
                data = connection.receive(BLOCK_BYTES)
            except SLICE_PASSED:
                if self._stop.stopped:
                    return None
                if self._heartbeat_due():
                    yield HEARTBEAT
                continue
            except OSError as error:
                # A reset connection is handled like a closed one.
                logger.debug("%s: %s", self._request.target.host_header, error)
                data = b""
            if self._stop.stopped:
                return None
            if not data:
                self.lost_before_status = not line
                raise HttpError(lost_problem(answered))
            self.idle.reset()
            answered, line = True, line or b"\n" in data
            try:
                body = self._http.feed(data)
            except WireError as error:
                raise _wire_error(error) from error
            if self.head is not None:
                return body

    def body(self) -> Iterator[bytes]:
        """Yield the body's bytes as they arrive, and heartbeats (``b""``). Ends without an error when stopped.

        The hot path: one ``recv``, one check of the flag and one parser pass per block. Raises HttpError.
        """
        if self._connection is None:
            return
        receive, scope, http, idle = self._connection.receive, self._scope, self._http, self.idle
        feed, block, size = http.feed, self._rest, BLOCK_BYTES
        # Of what comes, framing included: the expansion of a compressed body has a limit of its own.
        left = MAX_ANSWER_BYTES if self._request.max_bytes is None else math.inf
        try:
            while True:
                if block:
                    yield block
                if http.done:
                    return
                try:
                    data = receive(size)
                except SLICE_PASSED:
                    if self._stop.stopped:
                        return
                    block = b""
                    if self._heartbeat_due():
                        yield HEARTBEAT
                    continue
                if scope.cancelled:
                    return
                if not data:
                    if http.eof() or self._stop.stopped:
                        return
                    raise HttpError(lost_problem(answered=True))
                if idle.since_heartbeat or idle.server_seconds:
                    idle.reset()
                if len(data) == size:
                    size = min(size * BLOCK_GROWTH, LARGE_BLOCK_BYTES)
                left -= len(data)
                if left < 0:
                    raise TooLargeError(f"more than {MAX_ANSWER_BYTES >> 20} MB")
                block = feed(data)
        except WireError as error:
            raise _wire_error(error) from error
        except OSError as error:
            if self._stop.stopped:
                return
            raise HttpError(lost_problem(answered=True)) from error

    # ---- waiting

    def _heartbeat_due(self) -> bool:
        """Count a slice without data and return whether a heartbeat is due. Raises HttpError at the read timeout."""
        limit = self._request.read_timeout
        self.idle.server_seconds += SLICE_SECONDS
        if self.idle.server_seconds >= limit:
            raise HttpError(read_timeout_problem(limit))
        return self.idle.slice_passed()


def _wire_error(error: WireError) -> HttpError:
    if isinstance(error, TooLargeError):
        return HttpError(too_large_problem(str(error)), error.beginning)
    return HttpError(unreadable_problem(str(error)))
