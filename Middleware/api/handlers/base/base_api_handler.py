"""The base of all front-end handlers and the life of a request that is the same in every dialect."""
from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from typing import Any

from flask import Flask, Response
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.answer import Start, StreamingAnswer, StreamRenderer, WholeAnswer
from Middleware.api.disconnect_watcher import probe_for
from Middleware.api.errors import describe_error, log_error
from Middleware.api.running_requests import running_requests
from Middleware.exceptions import ClientError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.response_builder_service import to_json
from Middleware.utilities import config_utils
from Middleware.utilities.sensitive_logging_utils import sensitive_log_lazy, truncate_for_log

logger = logging.getLogger(__name__)

STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def json_response(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status=status, content_type="application/json")


class BaseApiHandler(ABC):
    """A front-end dialect. Discovered at start-up; every concrete subclass registers its routes."""

    @abstractmethod
    def register_routes(self, app: Flask) -> None:
        """Add this dialect's routes to the application."""

    @abstractmethod
    def error_body(self, message: str, status: int) -> dict[str, Any]:
        """The JSON body of a failure that is not a 400."""

    def serve(self, api_type: str, answer: Any) -> Response:
        """Run one POST view: ``answer(context, body)`` with the request's state set up, errors in this dialect."""
        context = RequestContext(api_type=api_type)
        with request_scope(context):
            try:
                context.api_key = api_helpers.extract_api_key(http.headers.get("Authorization"))
                body = read_json_body()
                self.identify(context, body)
                response = answer(context, body)
            except Exception as error:  # the HTTP edge
                response = self.failure(error, context)
        response.headers["X-Request-Id"] = context.request_id
        return response

    def failure(self, error: Exception, context: RequestContext | None) -> Response:
        log_error(error, context, "before the answer")
        public = describe_error(error, context)
        if public.is_client_error:
            return json_response({"error": public.message}, public.status)
        return json_response(self.error_body(public.message, public.status), public.status)

    @staticmethod
    def identify(context: RequestContext, body: dict[str, Any]) -> None:
        """Set user, workflow and redaction of the request from its ``model`` field; log the body after that."""
        api_helpers.set_request_context_from_model(body.get("model"))
        api_helpers.require_identified_user(http.remote_addr or "")
        context.redact = bool(config_utils.user_flag("redactLogOutput") or (
            context.api_key and config_utils.user_flag("encryptUsingApiKey")))
        logger.info("Request %s: %s %s as %s", context.request_id, http.method, http.path,
                    api_helpers.get_model_name())
        sensitive_log_lazy(logger, logging.DEBUG, "Request body: %s", lambda: json.dumps(truncate_for_log(body)))

    @staticmethod
    def whole_answer(context: RequestContext, start: Start, build: Any) -> Response:
        """Run the engine and answer with ``build(value)`` as JSON; later nodes run when the response is out."""
        running_requests.begin(context, probe_for(http.environ))
        answer = WholeAnswer(context, start)
        value = answer.value()
        try:
            response = json_response(build(value))
        except BaseException:
            answer.close()
            raise
        running_requests.answered(context)  # a client that has read it all may leave before the server closes it
        response.call_on_close(answer.close)
        return response

    @staticmethod
    def streamed_answer(context: RequestContext, start: Start, renderer: StreamRenderer, content_type: str,
                        usage: Any) -> Response:
        running_requests.begin(context, probe_for(http.environ))
        body = StreamingAnswer(context, start, renderer, usage).begin()
        return Response(body, headers=STREAM_HEADERS, content_type=content_type)  # type: ignore[arg-type]


def read_json_body() -> dict[str, Any]:
    """The request's JSON object, whatever its content type says."""
    try:
        body = json.loads(http.get_data(cache=False))
    except (ValueError, RecursionError):
        body = None
    if body is None:
        raise ClientError("Invalid JSON data")
    if not isinstance(body, dict):
        raise ClientError("The request body must be a JSON object.")
    return body


def stream_flag(body: dict[str, Any], default: bool) -> bool:
    """The request's ``stream`` value: null is false, a text is true only if it says so."""
    value = body.get("stream", default)
    return value.strip().lower() == "true" if isinstance(value, str) else bool(value)
