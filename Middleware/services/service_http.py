"""JSON over HTTP for the local services that nodes use, such as an offline encyclopedia."""
from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from Middleware.exceptions import ConfigurationError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError, Kind
from Middleware.utilities.http.wire import HttpRequest, Target, parse_target

logger = logging.getLogger(__name__)

TIMEOUT = "timeout"
TRANSPORT_ERROR = "transport_error"
INVALID_JSON = "invalid_json"

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
# Complete articles have a few megabytes at most; a faulty server must not fill the memory.
MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class ServiceReply:
    """The result of a call.

    Attributes:
        value: the parsed JSON of an answer with status 200, else None.
        status: HTTP status, if there was an answer.
        problem: "" on success, else ``timeout``, ``transport_error``, ``invalid_json`` or ``http_<status>``.
    """

    value: object = None
    status: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class ServiceRequest:
    """One request. Timeouts are in seconds; the read timeout is the longest time without data."""

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

    def to_http(self) -> HttpRequest:
        """Return the request without its body. Raises ConfigurationError for an invalid host or port."""
        headers = {"Accept": "application/json", **({} if self.body is None else {"Content-Type": "application/json"})}
        return HttpRequest(self._target(), self.method, headers, self.connect_timeout, self.read_timeout,
                           keep_alive=True, max_bytes=MAX_BYTES)

    def _target(self) -> Target:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        # Parsed URLs are cached, so the path is added afterwards: its query may quote a conversation.
        return dataclasses.replace(parse_target(f"http://{host}:{self.port}"), path=self.path)


class ServiceHttp:
    """Makes calls and reuses their connections. Thread-safe."""

    def __init__(self) -> None:
        self._client = HttpClient()

    def call(self, request: ServiceRequest, scope: CancelScope | None = None) -> ServiceReply:
        """Return the service's reply; its ``problem`` describes any failure.

        A request whose connection was lost before an answer is sent once more if that is safe: if it only reads, or if
        the service had already closed the reused connection. Raises EarlyTerminationException as soon as ``scope`` is
        cancelled.
        """
        try:
            reply = self._call(request, scope)
        except HttpError as error:
            logger.debug("A service call failed: %s", error)
            late = error.problem.kind in (Kind.CONNECT_TIMEOUT, Kind.READ_TIMEOUT)
            reply = ServiceReply(problem=TIMEOUT if late else TRANSPORT_ERROR)
        except ConfigurationError:
            reply = ServiceReply(problem=TRANSPORT_ERROR)
        if reply.problem:
            logger.warning("The service at %s, port %s: %s at %s", request.host, request.port, reply.problem,
                           request.path.partition("?")[0])
        return reply

    def _call(self, request: ServiceRequest, scope: CancelScope | None) -> ServiceReply:
        answer = self._client.call(request.to_http(), request.body, scope, repeat=request.method == "GET")
        status = answer.head.status
        if status != 200:
            return ServiceReply(status=status, problem=f"http_{status}")
        if not answer.complete:
            return ServiceReply(problem=TRANSPORT_ERROR)
        try:
            return ServiceReply(json.loads(answer.body), status)
        except (ValueError, RecursionError):
            return ServiceReply(status=status, problem=INVALID_JSON)


service_http = ServiceHttp()
