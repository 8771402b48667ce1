"""JSON over HTTP for the local services that nodes use, such as an offline encyclopedia."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from Middleware.exceptions import ConfigurationError
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.client import HttpClient, HttpResponse
from Middleware.utilities.http.problems import HttpError, Kind
from Middleware.utilities.http.wire import HttpRequest, Target, parse_target

logger = logging.getLogger(__name__)

TIMEOUT = "timeout"
TRANSPORT_ERROR = "transport_error"
INVALID_JSON = "invalid_json"

# The services run on this computer or in its network, where a connection takes milliseconds.
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


class ServiceHttp:
    """Calls services and reuses the connections. Thread-safe."""

    def __init__(self) -> None:
        self._client = HttpClient()

    def get(
        self,
        host: str,
        port: int,
        path: str,
        parameters: Mapping[str, object],
        scope: CancelScope | None = None,
        seconds: float = READ_SECONDS,
    ) -> ServiceReply:
        """Send a query; the reply's ``problem`` describes any failure. ``seconds``: the longest time without data.

        A query whose connection was lost before an answer is sent once more, and so is a POST if the service had
        already closed the reused connection. Raises EarlyTerminationException as soon as ``scope`` is cancelled.
        """
        query = urlencode(parameters, errors="replace")
        return self._reply((host, port, f"{path}?{query}"), None, scope, seconds)

    def post(
        self,
        host: str,
        port: int,
        path: str,
        payload: object,
        scope: CancelScope | None = None,
        seconds: float = READ_SECONDS,
    ) -> ServiceReply:
        """Send JSON; see ``get``."""
        body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
        return self._reply((host, port, path), body, scope, seconds)

    def _reply(
        self, address: tuple[str, int, str], body: bytes | None, scope: CancelScope | None, seconds: float
    ) -> ServiceReply:
        reason = ""
        try:
            request = _request(target_of(*address), body, seconds)
            reply = _parsed(self._client.call(request, body, scope, repeat=body is None))
        except HttpError as error:
            late = error.problem.kind in (Kind.CONNECT_TIMEOUT, Kind.READ_TIMEOUT)
            reply, reason = ServiceReply(problem=TIMEOUT if late else TRANSPORT_ERROR), error.problem.text
        except ConfigurationError:
            reply, reason = ServiceReply(problem=TRANSPORT_ERROR), "the host or port in the user's file cannot be one"
        if reply.problem:
            host, port, path = address
            # The query may quote a conversation.
            logger.warning(
                "The service at %s, port %s: %s at %s", host, port, reason or _in_words(reply), path.partition("?")[0]
            )
        return reply


def _in_words(reply: ServiceReply) -> str:
    """Return what is wrong with an answer."""
    if reply.problem == INVALID_JSON:
        return "an answer that is not JSON"
    return f"status {reply.status}" if reply.status is not None else f"an answer of more than {MAX_BYTES >> 20} MB"


def target_of(host: str, port: int, path: str) -> Target:
    """Return the target of a call. Raises ConfigurationError for an invalid host or port."""
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    # Parsed URLs are cached, so the path is added afterwards: its query may quote a conversation.
    return dataclasses.replace(parse_target(f"http://{host}:{port}"), path=path)


def _request(target: Target, body: bytes | None, seconds: float) -> HttpRequest:
    headers = {"Accept": "application/json", **({} if body is None else {"Content-Type": "application/json"})}
    return HttpRequest(
        target,
        "GET" if body is None else "POST",
        headers,
        min(CONNECT_SECONDS, seconds),
        seconds,
        keep_alive=True,
        max_bytes=MAX_BYTES,
    )


def _parsed(answer: HttpResponse) -> ServiceReply:
    status = answer.head.status
    if status != 200:
        return ServiceReply(status=status, problem=f"http_{status}")
    if not answer.complete:
        return ServiceReply(problem=TRANSPORT_ERROR)
    try:
        return ServiceReply(json.loads(answer.body), status)
    # RecursionError: deep nesting, which only a faulty server sends.
    except (ValueError, RecursionError):
        return ServiceReply(status=status, problem=INVALID_JSON)


service_http = ServiceHttp()
