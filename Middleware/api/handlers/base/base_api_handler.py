"""The base class of all front-end handlers, with the steps of a request that are the same in every dialect."""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, NoReturn
from wsgiref.types import WSGIEnvironment

from flask import Flask, Response, current_app, g
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.answers.answer import (
    FinishedAnswer,
    Start,
    StreamingAnswer,
    WholeAnswer,
    estimated_usage,
)
from Middleware.api.answers.stream_renderers import StreamRenderer
from Middleware.api.concurrency_middleware import place_of, wait_for_slot
from Middleware.api.edge.access_keys import PERMITTED_USERS_KEY
from Middleware.api.errors import NO_RETRY, RETRY_AFTER, PublicError, describe_error, error_body, log_error
from Middleware.api.giving_way import run_task
from Middleware.api.requests.background_tasks import background_task, limit_in
from Middleware.api.running.disconnect_watcher import probe_for
from Middleware.api.running.running_requests import REQUEST_ID_KEY, request_of, running_requests
from Middleware.api.workflow_gateway import start_user_prompt
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message, Usage
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, new_request_id, request_scope
from Middleware.services.prompt_categorization_service import route_header
from Middleware.services.response_builder_service import to_json
from Middleware.utilities import config_utils
from Middleware.utilities.json_data import MOST_VALUES, has_too_many_values
from Middleware.utilities.once import Once
from Middleware.utilities.sensitive_logging_utils import sensitive_log_lazy, truncate_for_log
from Middleware.utilities.text_utils import nearest

logger = logging.getLogger(__name__)

TOOL_CHOICE_PROMPT = (
    "Your task is to choose and return the correct tool(s) from the list of available tools based on the query"
)
LISTENERS_KEY = "wilmer.listeners"
"""The key in the application's extensions of the ``Listeners`` of every request."""
# nginx buffers streams unless the second header forbids it.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

# A limit beyond all numbers does not limit anything.
LIMITS = ("max_tokens", "max_completion_tokens", "options")
# Of an integer; Python converts no more than 4300 of them.
MAX_DIGITS = 4000


class MissingKeys:
    """Warns once per user about data stored unencrypted, and once about another spelling of ``Bearer``. Thread-safe."""

    def __init__(self) -> None:
        self._users: Once[str] = Once()
        self._spelling: Once[str] = Once()

    def look(self, environ: WSGIEnvironment, api_key: str | None) -> None:
        """Check a request of the current user.

        Args:
            environ: the WSGI environ.
            api_key: the client's usable key, None if it sent none.
        """
        if api_key:
            return
        user = config_utils.current_snapshot().name
        if config_utils.user_flag("encryptUsingApiKey") and self._users.first(user):
            logger.warning(
                "User %s has encryptUsingApiKey, but a request brought no key (it must be exactly "
                "'Authorization: Bearer KEY'): what it stores is not encrypted.",
                user,
            )
        scheme = environ.get("HTTP_AUTHORIZATION", "").strip().partition(" ")[0]
        # With a list of accepted keys, that list warns about the spelling.
        listed = PERMITTED_USERS_KEY in environ
        if scheme.lower() == "bearer" and scheme != "Bearer" and not listed and self._spelling.first("Bearer"):
            logger.warning(
                "A client writes %s in place of 'Bearer': its conversations are kept as those of clients "
                "without a key.",
                ascii(scheme),
            )


def _answering_model(context: RequestContext) -> str:
    """Return the model that answers, and the requested one if that does not exist, as part of a log line.

    A request for a name that is nearly one of the models is marked.
    """
    name, asked = context.model, context.asked_model.removesuffix(api_helpers.LATEST)
    if context.workflow_override or asked in ("", name):
        return name
    # The client's own text: in a private request, it goes nowhere.
    shown = "of this name" if context.redact else repr(context.asked_model[:60])
    if near := _nearest_model(asked, name):
        shown += f"; the nearest is {near!r}"
        context.misspelt_model = f"there is no model {shown}"
    return f"{name}, as there is no model {shown}"


def _nearest_model(asked: str, user: str) -> str:
    """Return the id of the model that ``asked`` may have meant; "" if none is similar."""
    ids = config_utils.model_ids()
    # Compared without the user, whose name may be longer than theirs and is left out by some clients.
    own = {name.partition(":")[2]: name for name in ids if name.startswith(f"{user}:")}
    if near := nearest(asked.removeprefix(f"{user}:"), own):
        return own[near]
    return "" if asked.startswith(f"{user}:") else nearest(asked, ids)


def is_private(context: RequestContext) -> bool:
    """Return whether the settings of the request's user keep conversation text out of the log."""
    return bool(
        config_utils.user_flag("redactLogOutput") or (context.api_key and config_utils.user_flag("encryptUsingApiKey"))
    )


def json_response(value: object, status: int = 200) -> Response:
    return Response(to_json(value), status=status, content_type="application/json")


class BaseApiHandler(ABC):
    """A front-end dialect. Discovered at start-up; every concrete subclass registers its routes."""

    @abstractmethod
    def register_routes(self, app: Flask) -> None:
        """Add this dialect's routes to the application."""

    def error_body(self, error: PublicError) -> dict[str, object]:
        """Return the JSON of an error, in the dialect of the path. Dialects with a form of their own override it."""
        return error_body(error, http.environ)

    def serve(self, api_type: str, answer: Callable[[RequestContext, dict[str, object]], Response]) -> Response:
        """Run one POST view: call ``answer(context, body)`` with the request's state set up; errors in this dialect."""
        context = request_of(http.environ) or RequestContext(api_key=api_helpers.extract_api_key())
        context.api_type = api_type
        context.listeners = current_app.extensions.get(LISTENERS_KEY)
        # A documented name, which front-end plug-ins and scripts read.
        g.current_request_id = context.request_id
        # The counters in the answer exclude the time in the queue.
        context.started = time.monotonic()
        with request_scope(context):
            try:
                body = read_json_body()
                context.has_tools = bool(body.get("tools"))
                context.client_limit = limit_in(body)
                self.identify(context, body)
                response = answer(context, body)
            # Whatever a plug-in raises, the client must get an answer, or it would wait for ever.
            except BaseException as error:
                response = self.failure(error, context)
        response.headers["X-Request-Id"] = context.request_id
        # A stream whose route is not chosen before its first bytes is sent without the header.
        if context.route:
            response.headers["X-Wilmer-Route"] = route_header(context.route)
        return response

    def failure(self, error: BaseException, context: RequestContext | None) -> Response:
        log_error(error, context, "before the answer")
        public = describe_error(error, context)
        if context is not None:
            http.environ.setdefault(REQUEST_ID_KEY, context.request_id)
        response = json_response(self.error_body(public), public.status)
        if public.status == HTTPStatus.SERVICE_UNAVAILABLE:
            response.headers.add(*RETRY_AFTER)
        if public.lasting:
            response.headers.add(*NO_RETRY)
        return response

    def listing(self, build: Callable[[], Mapping[str, object] | Response]) -> Response:
        """Answer a request that runs no workflow with the result of ``build``, JSON unless that is a response."""
        context = RequestContext(request_id=http.environ.get(REQUEST_ID_KEY) or new_request_id())
        with request_scope(context):
            try:
                found = build()
                return found if isinstance(found, Response) else json_response(found)
            # As in serve().
            except BaseException as error:
                return self.failure(error, context)

    @staticmethod
    def asks_for_tool_choice_only(messages: Any) -> bool:
        """Return whether a front-end only asks which of its tools to use, and the user's settings answer with none."""
        return (
            config_utils.user_flag("interceptOpenWebUIToolRequests")
            and isinstance(messages, list)
            and any(
                isinstance(message, dict)
                and message.get("role") == "system"
                and isinstance(message.get("content"), str)
                and TOOL_CHOICE_PROMPT in message["content"]
                for message in messages
            )
        )

    def identify(self, context: RequestContext, body: dict[str, object]) -> None:
        """Set user, workflow and redaction of the request from its ``model`` field, and log the body after that."""
        asked = body.get("model")
        context.asked_model = asked if isinstance(asked, str) else ""
        api_helpers.set_request_context_from_model(asked)
        api_helpers.require_identified_user(http.remote_addr or "")
        context.redact = is_private(context)
        process().one(MissingKeys).look(http.environ, context.api_key)
        context.model = api_helpers.get_model_name()
        logger.info("Request %s runs as %s", context.request_id, _answering_model(context))
        sensitive_log_lazy(logger, logging.DEBUG, "Request body: %s", lambda: json.dumps(truncate_for_log(body)))

    def run(
        self,
        context: RequestContext,
        messages: list[Message],
        renderer: Callable[[], StreamRenderer],
        body: Callable[[FinishedAnswer], Mapping[str, object]],
        tools: object = None,
        tool_choice: object = None,
    ) -> Response:
        """Run the engine and answer in this dialect: streamed by ``renderer``, or complete by ``body``."""
        api_helpers.check_counts(messages)
        offered = tools if isinstance(tools, list) and tools else None
        place = place_of(http.environ)

        def start() -> Iterator[object]:
            wait_for_slot(place)
            return start_user_prompt(context, messages, context.stream, context.api_key, offered, tool_choice)

        if instance.get_request_semaphore() is not None and background_task(messages, context.stream):
            start = partial(run_task, context, start, place, probe_for(http.environ))
        if context.stream:
            return streamed_answer(context, start, renderer(), lambda text: estimated_usage(context, messages, text))
        return whole_answer(context, start, lambda value: body(FinishedAnswer.of(value, context, messages)))


def whole_answer(context: RequestContext, start: Start, build: Callable[[Any], Mapping[str, object]]) -> Response:
    """Run the engine and answer with ``build(value)`` as JSON; later nodes run once the response has been sent."""
    running_requests().begin(context, probe_for(http.environ))
    answer = WholeAnswer(context, start)
    value = answer.value()
    try:
        response = json_response(build(value))
    except BaseException:
        if not answer.complete():
            answer.close()
        raise
    if not answer.complete():
        response.call_on_close(answer.close)
    return response


def streamed_answer(
    context: RequestContext, start: Start, renderer: StreamRenderer, usage: Callable[[str], Usage]
) -> Response:
    """Start the engine and answer with a stream."""
    running_requests().begin(context, probe_for(http.environ))
    try:
        place = place_of(http.environ)
        # A request that has waited for seconds already gets its headers at once.
        in_queue = place is not None and place.waits
        body = StreamingAnswer(context, start, renderer, usage).begin(0 if in_queue else None)
    except BaseException:
        running_requests().end(context)
        raise
    return Response(body, headers=STREAM_HEADERS, content_type=renderer.content_type, direct_passthrough=True)


def read_json_body() -> dict[str, object]:
    """Return the request's JSON object, ignoring its content type."""
    data = http.get_data(cache=False)
    if has_too_many_values(data):
        raise ClientError(f"The request has more than {MOST_VALUES:,} arrays, objects and texts.")
    try:
        body = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        body = _unusual_json(data)
    if body is None:
        raise ClientError("Invalid JSON data")
    if not isinstance(body, dict):
        raise ClientError("The request body must be a JSON object.")
    return body


def _unusual_json(data: bytes) -> object:
    """Return the value of a JSON text with a NUL or a BOM at its end, or with numbers that no float can hold; or None.

    Programs in C send the NUL of their strings. A field with such a number is refused only if it is used.
    """
    try:
        text = data.decode(json.detect_encoding(data)).strip("\0\ufeff \t\r\n")
        body = json.loads(text, parse_constant=_refuse_constant, parse_int=_number)
        return PartlyUsable(body) if isinstance(body, dict) else body
    except (ValueError, RecursionError):
        return None


class PartlyUsable(dict[str, Any]):
    """The fields of a request. Those that hold a number beyond those of the program cannot be asked for."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if name not in LIMITS and not _is_finite(value):
            raise ClientError(f"The '{name}' field has a number that is too large.", param=name)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python would accept, but LLM servers would not."""
    raise ValueError(f"{name} is not a JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    # A number such as 1e999 is valid JSON, but becomes infinite.
    if math.isinf(number):
        _refuse_constant(digits)
    return number


def _number(digits: str) -> float:
    # Python refuses to convert thousands of digits.
    return float(digits) if len(digits) > MAX_DIGITS else int(digits)


def _is_finite(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def asks_for_json(form: object) -> bool:
    """Return whether a format of answers, as OpenAI's APIs have it, is JSON."""
    return isinstance(form, Mapping) and form.get("type") in ("json_schema", "json_object")


def stream_flag(body: dict[str, object], default: bool) -> bool:
    """Return the request's ``stream`` value: null is false, and of all strings only "true" is true."""
    value = body.get("stream", default)
    return value.strip().lower() == "true" if isinstance(value, str) else bool(value)
