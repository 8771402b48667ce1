"""JSON over HTTP with the small services that nodes ask, such as an offline encyclopedia."""
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
# Whole articles take some megabytes at most.
MAX_BYTES = 256 * 1024 * 1024


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
    """One request. Timeouts are seconds; the read timeout is the longest silence."""

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
        """The request without its body. Raises ConfigurationError for a host or port that is none."""
        headers = {"Accept": "application/json", **({} if self.body is None else {"Content-Type": "application/json"})}
        return HttpRequest(self._target(), self.method, headers, self.connect_timeout, self.read_timeout,
                           keep_alive=True, max_bytes=MAX_BYTES)

    def _target(self) -> Target:
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        # The path goes its own way: what is parsed is cached, and a query may quote a conversation.
        return dataclasses.replace(parse_target(f"http://{host}:{self.port}"), path=self.path)


class ServiceHttp:
    """Makes calls and keeps their connections for the next ones. Thread-safe."""

    def __init__(self) -> None:
        self._client = HttpClient()

    def call(self, request: ServiceRequest, scope: CancelScope | None = None) -> ServiceReply:
        """The service's reply; whatever goes wrong is in its ``problem``.

        A request that was lost before any answer is sent once more, if that can do no harm: it reads only, or it went
        into a kept connection that the service had given up. Raises EarlyTerminationException as soon as ``scope`` is
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
