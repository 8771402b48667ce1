"""The outermost door: gives each POST its id, takes its body in, and lets a retry displace its earlier attempt."""
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from Middleware.api.api_helpers import extract_idempotency_key
from Middleware.api.request_bodies import BodyBroken, BodyTooLarge, take_body
from Middleware.api.running_requests import REQUEST_KEY, running_requests
from Middleware.models.request_context import RequestContext, new_request_id
from Middleware.services.idempotency_service import idempotency_service
from Middleware.services.response_builder_service import ResponseBuilderService

logger = logging.getLogger(__name__)

MEGABYTE = 1024 * 1024
REQUEST_ID_HEADER = "X-Request-Id"
COMPLETIONS = frozenset(("/v1/chat/completions", "/chat/completions", "/v1/completions", "/completions"))

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class AdmissionMiddleware:
    """Admits requests before they wait anywhere.

    Args:
        app: the WSGI application behind it, the concurrency gate included.
        max_request_mb: largest body in units of 1024 * 1024 bytes; 0 for any size.
    """

    def __init__(self, app: WsgiApp, max_request_mb: int = 0) -> None:
        self.app = app
        self.max_request_mb = max_request_mb
        self._limit = max_request_mb * MEGABYTE or None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        is_post = environ.get("REQUEST_METHOD") == "POST"
        request_id = new_request_id() if is_post else ""
        if is_post:
            logger.info("Request %s arrived: POST %s", request_id, ascii(environ.get("PATH_INFO", ""))[1:-1][:200])
            start_response = _with_request_id(start_response, request_id)
        try:
            take_body(environ, self._limit)
        except BodyTooLarge:
            message = f"The request body is larger than {self.max_request_mb} MB (--max-request-mb)."
            return _refuse(environ, start_response, "413 Content Too Large", message, request_id)
        except BodyBroken:
            return _refuse(environ, start_response, "400 Bad Request", "The request body is incomplete.", request_id)
        if not is_post:
            return self.app(environ, start_response)
        return self._admit(RequestContext(request_id=request_id), environ, start_response)

    def _admit(self, request: RequestContext, environ: dict[str, Any],
               start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ[REQUEST_KEY] = request
        running_requests.arrive(request)
        try:
            _displace_earlier_attempt(request, environ)
            return _AdmittedBody(self.app(environ, start_response), request)
        except BaseException:
            running_requests.leave(request)
            raise


def _with_request_id(start_response: Callable[..., Any], request_id: str) -> Callable[..., Any]:
    def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        if not any(name.lower() == "x-request-id" for name, _ in headers):
            headers = [*headers, (REQUEST_ID_HEADER, request_id)]
        return start_response(status, headers, *exc_info)

    return start


def _displace_earlier_attempt(request: RequestContext, environ: dict[str, Any]) -> None:
    """Cancel the request that works for the same idempotency key, and take its place."""
    if environ.get("PATH_INFO", "").rstrip("/") not in COMPLETIONS:
        return
    key = extract_idempotency_key(environ)
    if key is None:
        return
    sent = key.partition(":")[2]
    logger.info("Request %s is admitted with idempotency key #%s", request.request_id,
                hashlib.sha256(sent.encode("utf-8")).hexdigest()[:8])  # clients may put anything into a key
    earlier = idempotency_service.register(key, request.request_id)
    if earlier:
        running_requests.cancel(earlier, f"displaced by request {request.request_id}")


def _refuse(environ: dict[str, Any], start_response: Callable[..., Any], status: str, message: str,
            request_id: str) -> Iterable[bytes]:
    """Answer in the dialect of the path, without a look at the application."""
    code = int(status[:3])
    logger.warning("Request %s refused with %d: %s", request_id or "-", code, message)
    plain = code == 400 or environ.get("PATH_INFO", "").startswith("/api/")
    body = json.dumps({"error": message} if plain else
                      ResponseBuilderService().build_openai_error(message, code)).encode("utf-8")
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


class _AdmittedBody:
    """A response body whose end, whatever way it comes, is the end of a request that the engine never had."""

    def __init__(self, body: Iterable[bytes], request: RequestContext) -> None:
        self._body = body
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)  # the server reads the body itself: nothing is added per chunk

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            running_requests.leave(self._request)
