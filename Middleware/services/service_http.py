"""JSON over HTTP with the small local services that nodes ask, such as an offline encyclopedia.

They are spoken to directly, never through a proxy. A call's waiting is done by a thread of its own: where neither name
resolution nor connecting can be interrupted, the caller can at least be let go.
"""
from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as HttpTimeoutError

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope

logger = logging.getLogger(__name__)

TIMEOUT = "timeout"
TRANSPORT_ERROR = "transport_error"
INVALID_JSON = "invalid_json"

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
IDLE_SECONDS = 4.0
"""Common servers close an idle connection after 5 s; a new one to a local service costs next to nothing."""
MAX_IDLE = 16
SWEEP_SECONDS = 1.0


@dataclass(frozen=True)
class ServiceReply:
    """What came of a call.

    Attributes:
        value: the parsed JSON of an answer with status 200, else None.
        status: HTTP status, if there was an answer.
        problem: "" if all is well, else ``timeout``, ``transport_error``, ``invalid_json`` or ``http_<status>``.
    """

    value: object = None
    status: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class ServiceRequest:
    """One request. Time-outs are seconds; the read time-out is the longest silence."""

    method: str
    host: str
    port: int
    path: str
    body: bytes | None = field(default=None, repr=False)
    connect_timeout: float = CONNECT_SECONDS
    read_timeout: float = READ_SECONDS

    @classmethod
    def get(cls, host: str, port: int, path: str, parameters: Mapping[str, object], *,
            connect_timeout: float = CONNECT_SECONDS, read_timeout: float = READ_SECONDS) -> ServiceRequest:
        query = urlencode(parameters, errors="replace")
        return cls("GET", host, port, f"{path}?{query}", None, connect_timeout, read_timeout)

    @classmethod
    def post(cls, host: str, port: int, path: str, payload: object, *, connect_timeout: float = CONNECT_SECONDS,
             read_timeout: float = READ_SECONDS) -> ServiceRequest:
        body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
        return cls("POST", host, port, path, body, connect_timeout, read_timeout)

    @property
    def headers(self) -> dict[str, str]:
        return {"Accept": "application/json", **({} if self.body is None else {"Content-Type": "application/json"})}


class ServiceHttp:
    """Makes calls and keeps their connections for the next ones. Thread-safe."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._next_sweep = 0.0
        self._idle: dict[tuple[str, int], list[tuple[HTTPConnection, float]]] = {}

    def call(self, request: ServiceRequest, scope: CancelScope | None = None) -> ServiceReply:
        """The service's reply; whatever goes wrong is in its ``problem``.

        A request that a reset connection swallowed is sent once more, if that can do no harm: it reads only, or it
        went into a kept connection that the service had given up. Raises EarlyTerminationException as soon as
        ``scope`` is cancelled.
        """
        scope = scope or CancelScope()
        call = _Call(self, request)
        token = scope.add_callback(call.stop)
        try:
            if not scope.cancelled:
                threading.Thread(target=call.run, name="service-call", daemon=True).start()
                call.done.wait()
        finally:
            scope.remove_callback(token)
        if scope.cancelled:
            raise EarlyTerminationException("The request was cancelled.")
        if call.reply.problem:
            logger.warning("The service at %s, port %s: %s at %s", request.host, request.port, call.reply.problem,
                           request.path.partition("?")[0])
        return call.reply

    def take(self, request: ServiceRequest) -> HTTPConnection | None:
        """A kept connection that still stands, or None."""
        while True:
            self._sweep()
            with self._lock:
                kept = self._idle.get((request.host, request.port))
                connection, expires = kept.pop() if kept else (None, 0.0)
            if connection is None or (time.monotonic() < expires and connection.is_connected):
                return connection
            connection.close()

    def keep(self, request: ServiceRequest, connection: HTTPConnection) -> None:
        self._sweep()
        with self._lock:
            kept = self._idle.setdefault((request.host, request.port), [])
            kept.append((connection, time.monotonic() + self._idle_seconds))
            dropped, kept[:] = kept[:-MAX_IDLE], kept[-MAX_IDLE:]
        for old, _ in dropped:
            old.close()


    def _sweep(self) -> None:
        """Close what has expired, whichever service it led to; looks only once in a while."""
        now = time.monotonic()
        with self._lock:
            if now < self._next_sweep:
                return
            self._next_sweep = now + SWEEP_SECONDS
            expired = [connection for kept in self._idle.values() for connection, end in kept if end <= now]
            self._idle = {place: fresh for place, kept in self._idle.items()
                          if (fresh := [entry for entry in kept if entry[1] > now])}
        for old in expired:
            old.close()


class _Call:
    """One call, worked on by its own thread and stopped from any."""

    def __init__(self, http: ServiceHttp, request: ServiceRequest) -> None:
        self.done = threading.Event()
        self.reply = ServiceReply(problem=TRANSPORT_ERROR)
        self._http, self._request = http, request
        self._lock = threading.Lock()
        self._stopped = False
        self._socket: socket.socket | None = None

    def stop(self) -> None:
        """Shut the socket down, for its owner to close, and let the caller go."""
        with self._lock:
            self._stopped = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # not connected any more
        self.done.set()

    def run(self) -> None:
        try:
            self.reply = self._exchange(self._http.take(self._request))
        except Exception as error:  # the end of a thread; a host or port that is none ends here too
            logger.debug("A service call failed: %s", type(error).__name__)
            self.reply = ServiceReply(problem=TIMEOUT if _is_timeout(error) else TRANSPORT_ERROR)
        finally:
            self.done.set()

    def _exchange(self, kept: HTTPConnection | None) -> ServiceReply:
        """Over the kept connection or a new one; once more over a new one if that is safe."""
        try:
            return self._attempt(kept or self._connect())
        except (ConnectionError, HTTPError) as error:
            safe = kept is not None or self._request.method == "GET"
            if self._stopped or not safe or not _is_reset(error):
                raise
            return self._attempt(self._connect())

    def _connect(self) -> HTTPConnection:
        request = self._request
        connection = HTTPConnection(request.host, request.port, timeout=request.connect_timeout)
        connection.connect()
        connection.timeout = request.read_timeout
        return connection

    def _attempt(self, connection: HTTPConnection) -> ServiceReply:
        request = self._request
        connection.timeout = request.read_timeout
        try:
            self._attach(connection)
            connection.request(request.method, request.path, request.body, request.headers)
            response = connection.getresponse()  # all of it
        except BaseException:
            self._detach()
            connection.close()
            raise
        if self._detach() or connection.sock is None:  # stopped, or the service wants no further request on it
            connection.close()
        else:
            self._http.keep(request, connection)
        return _reply(response.status, response.data)

    def _attach(self, connection: HTTPConnection) -> None:
        with self._lock:
            if self._stopped:
                raise ConnectionAbortedError
            self._socket = connection.sock

    def _detach(self) -> bool:
        """From here on no stop reaches the socket. Returns whether one did."""
        with self._lock:
            self._socket = None
            return self._stopped


def _is_timeout(error: BaseException) -> bool:
    if isinstance(error, NewConnectionError):  # a refusal, which urllib3 counts among the time-outs
        return False
    return isinstance(error, (TimeoutError, HttpTimeoutError))


def _is_reset(error: BaseException) -> bool:
    """Whether an established connection was lost, which urllib3 may report in a wrapper."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return False
        if isinstance(seen, ConnectionError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _reply(status: int, body: bytes) -> ServiceReply:
    if status != 200:
        return ServiceReply(status=status, problem=f"http_{status}")
    try:
        return ServiceReply(json.loads(body), status)
    except (ValueError, RecursionError):
        return ServiceReply(status=status, problem=INVALID_JSON)


service_http = ServiceHttp()
