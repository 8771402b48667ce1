"""The Ollama dialect: chat, text generation, model lists, and the routes by which clients recognise Ollama."""

from __future__ import annotations

import re
import time

from flask import Flask, Response
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.stream_renderers import NDJSON_TYPE, OllamaChatStream, OllamaGenerateStream
from Middleware.api.handlers.base.base_api_handler import (
    BaseApiHandler,
    json_response,
    read_json_body,
    stream_flag,
)
from Middleware.api.handlers.impl.embeddings_api_handler import endpoint_for
from Middleware.api.requests.ignored_fields import look_at_fields
from Middleware.api.requests.load_calls import is_load_call
from Middleware.api.requests.messages import chat_messages, generate_messages
from Middleware.common.constants import OLLAMA_CHAT, OLLAMA_GENERATE
from Middleware.exceptions import ClientError
from Middleware.models.messages import Usage
from Middleware.models.request_context import RequestContext
from Middleware.services.cancellation_service import get_cancellation_service
from Middleware.services.response_builder_service import Counters, ResponseBuilderService, nanoseconds, to_json

# Each number ends at its unit or at the end: otherwise a long run of zeros could be divided in any number of ways.
_ZERO_DURATION = re.compile(r"[+-]?(?:0+(?:\.0*)?(?:ns|us|\u00b5s|ms|s|m|h|\Z))+")


class OllamaApiHandler(BaseApiHandler):
    """Routes under ``/api``."""

    def __init__(self) -> None:
        self.builder = ResponseBuilderService()

    def register_routes(self, app: Flask) -> None:
        for path, view, method in (
            ("chat", self.chat, "POST"),
            ("generate", self.generate, "POST"),
            ("chat", self.cancel, "DELETE"),
            ("generate", self.cancel, "DELETE"),
            ("tags", self.tags, "GET"),
            ("version", self.version, "GET"),
            ("ps", self.running, "GET"),
            ("show", self.show, "POST"),
            ("pull", self.pull, "POST"),
        ):
            app.add_url_rule(f"/api/{path}", f"ollama {method} {path}", view, methods=[method])

    def identify(self, context: RequestContext, body: dict[str, object]) -> None:
        if context.api_type == OLLAMA_CHAT and (
            "model" not in body or ("messages" not in body and not is_load_call(http.environ, body))
        ):
            raise ClientError("Both 'model' and 'messages' fields are required.")
        if context.api_type == OLLAMA_GENERATE and body.get("model") in (None, ""):
            raise ClientError("The 'model' field is required.")
        super().identify(context, body)
        if not is_load_call(http.environ, body):
            look_at_fields(body)
        context.schema_field = "format" if body.get("format") else ""

    # -- models --------------------------------------------------------------------------------------------------
    def tags(self) -> Response:
        return self.listing(lambda: self.builder.build_ollama_tags_response(api_helpers.visible_model_ids()))

    def version(self) -> Response:
        return self.listing(self.builder.build_ollama_version_response)

    def running(self) -> Response:
        """Return the loaded models: all, as WilmerAI itself loads none."""
        return self.listing(lambda: self.builder.build_ollama_ps_response(api_helpers.visible_model_ids()))

    def show(self) -> Response:
        """Return a model's capabilities; IDE assistants look for ``tools`` and ``vision`` before they offer it."""
        return self.listing(self._show)

    def _show(self) -> dict[str, object]:
        name, listed = _named_model(read_json_body())
        if listed not in api_helpers.visible_model_ids():
            raise ClientError(f"model '{name[:100]}' not found", 404)
        return self.builder.build_ollama_show_response(listed)

    def pull(self) -> Response:
        """Answer a request to download a model. What is listed is there, and any name gets the model of embeddings."""
        return self.listing(self._pull)

    @staticmethod
    def _pull() -> Response:
        body = read_json_body()
        name, listed = _named_model(body)
        if listed not in api_helpers.visible_model_ids():
            try:
                api_helpers.set_request_user_from_model(name)
                api_helpers.require_identified_user()
                endpoint_for(name)
            except ClientError:
                raise ClientError(f"model '{name[:100]}' is not listed here; it cannot be pulled", 404) from None
        success = {"status": "success"}
        if stream_flag(body, default=True):
            return json_lines({"status": "pulling manifest"}, success)
        return json_response(success)

    # -- answers -------------------------------------------------------------------------------------------------
    def chat(self) -> Response:
        return self.serve(OLLAMA_CHAT, self._chat)

    def _chat(self, context: RequestContext, body: dict[str, object]) -> Response:
        context.stream = stream_flag(body, default=True)
        model = api_helpers.get_model_name()
        if is_load_call(http.environ, body):
            return self._loaded(context, body, self.builder.build_ollama_chat_response("", model, context.request_id))
        if self.asks_for_tool_choice_only(body["messages"]):
            return json_response(
                self.builder.build_ollama_tool_call_response(str(body["model"] or api_helpers.get_model_name()))
            )
        messages = chat_messages(body["messages"], empty_texts_left_out=True)

        def whole(answer: FinishedAnswer) -> dict[str, object]:
            return self.builder.build_ollama_chat_response(
                answer.text,
                model,
                context.request_id,
                answer.tool_calls,
                finish_reason=answer.finish_reason,
                reasoning=answer.reasoning,
                counters=counters(context, answer.usage),
            )

        return self.run(
            context,
            messages,
            lambda: OllamaChatStream(model, context.request_id, lambda usage: counters(context, usage)),
            whole,
            body.get("tools"),
        )

    def generate(self) -> Response:
        return self.serve(OLLAMA_GENERATE, self._generate)

    def _generate(self, context: RequestContext, body: dict[str, object]) -> Response:
        context.stream = stream_flag(body, default=True)
        model = api_helpers.get_model_name()
        if is_load_call(http.environ, body):
            answer = self.builder.build_ollama_generate_response("", model, context.request_id)
            return self._loaded(context, body, answer)
        messages = generate_messages(body)

        def whole(answer: FinishedAnswer) -> dict[str, object]:
            return self.builder.build_ollama_generate_response(
                answer.text,
                model,
                context.request_id,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
                counters=counters(context, answer.usage),
            )

        return self.run(
            context,
            messages,
            lambda: OllamaGenerateStream(model, context.request_id, lambda usage: counters(context, usage)),
            whole,
        )

    @staticmethod
    def _loaded(context: RequestContext, body: dict[str, object], answer: dict[str, object]) -> Response:
        """Answer a call that loads a model in advance, or unloads it at the end. Nothing has to be done for it."""
        answer["done_reason"] = "unload" if _is_zero(body.get("keep_alive")) else "load"
        return json_lines(answer) if context.stream else json_response(answer)

    # -- stopping ------------------------------------------------------------------------------------------------
    def cancel(self) -> Response:
        return self.listing(self._cancel)

    @staticmethod
    def _cancel() -> dict[str, object]:
        request_id = read_json_body().get("request_id")
        if not isinstance(request_id, str) or not request_id:
            raise ClientError("The 'request_id' field is required.")
        permitted = api_helpers.require_permitted_request(request_id)
        get_cancellation_service().request_cancellation(request_id, users=permitted)
        return {"status": "cancelled", "request_id": request_id}


def json_lines(*values: object) -> Response:
    """Return a stream that is complete already: a line of JSON for each value."""
    return Response(b"".join(to_json(value) + b"\n" for value in values), content_type=NDJSON_TYPE)


def _named_model(body: dict[str, object]) -> tuple[str, str]:
    """Return the name of a model in a request, and that of the model list. Older clients send the key ``name``."""
    name = body.get("model") or body.get("name")
    if not isinstance(name, str):
        raise ClientError("The 'model' field is required.")
    return name, name.removesuffix(api_helpers.LATEST)


def counters(context: RequestContext, usage: Usage) -> Counters:
    """Return Ollama's counters for an answer that has just been completed."""
    now = time.monotonic()
    first = context.first_token_at or context.started
    return Counters(
        total_duration=nanoseconds(now - context.started),
        prompt_eval_count=usage.get("prompt_tokens", 0),
        prompt_eval_duration=nanoseconds(first - context.started),
        eval_count=usage.get("completion_tokens", 0),
        eval_duration=nanoseconds(now - first),
    )


def _is_zero(duration: object) -> bool:
    """Return whether a duration is zero: a number of seconds, or a string such as ``0s``."""
    if isinstance(duration, str):
        return _ZERO_DURATION.fullmatch(duration) is not None
    return type(duration) in (int, float) and duration == 0
