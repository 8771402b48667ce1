"""The OpenAI dialect: chat completions and the model list."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flask import Flask, Response

from Middleware.api import api_helpers
from Middleware.api.answer import estimated_usage
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, json_response, stream_flag
from Middleware.api.messages import chat_messages
from Middleware.api.workflow_gateway import start_user_prompt
from Middleware.common.constants import OPENAI_CHAT
from Middleware.exceptions import ClientError
from Middleware.models.request_context import RequestContext
from Middleware.services.response_builder_service import OpenAIChatStream, ResponseBuilderService
from Middleware.utilities import config_utils


class OpenAIApiHandler(BaseApiHandler):
    """Routes of the OpenAI API, with and without ``/v1``."""

    def __init__(self) -> None:
        self.builder = ResponseBuilderService()

    def register_routes(self, app: Flask) -> None:
        for path in ("/v1/chat/completions", "/chat/completions"):
            app.add_url_rule(path, f"openai_chat{path.count('/')}", self.chat_completions, methods=["POST"])
        for path in ("/v1/models", "/models"):
            app.add_url_rule(path, f"openai_models{path.count('/')}", self.models, methods=["GET"])

    def error_body(self, message: str, status: int) -> dict[str, Any]:
        return self.builder.build_openai_error(message, status)

    def models(self) -> Response:
        try:
            return json_response(self.builder.build_openai_models_response(config_utils.model_ids()))
        except Exception as error:  # the HTTP edge
            return self.failure(error, None)

    def chat_completions(self) -> Response:
        return self.serve(OPENAI_CHAT, self._chat)

    def _chat(self, context: RequestContext, body: dict[str, Any]) -> Response:
        if "messages" not in body:
            raise ClientError("The 'messages' field is required.")
        messages = chat_messages(body["messages"])
        context.stream = stream_flag(body, default=False)
        tools = body.get("tools")
        model = api_helpers.get_model_name()

        def start() -> Iterator[Any]:
            return start_user_prompt(context, messages, context.stream, context.api_key,
                                     tools if isinstance(tools, list) else None, body.get("tool_choice"))

        if context.stream:
            options = body.get("stream_options")
            renderer = OpenAIChatStream(self.builder, model,
                                        isinstance(options, dict) and bool(options.get("include_usage")))
            return self.streamed_answer(context, start, renderer, renderer.content_type,
                                        lambda text: estimated_usage(context, messages, text))
        return self.whole_answer(context, start, lambda value: self._body(context, messages, model, value))

    def _body(self, context: RequestContext, messages: list[dict[str, Any]], model: str, value: Any) -> dict[str, Any]:
        calls, text = None, value
        if isinstance(value, dict) and value.get("tool_calls"):
            calls, text = value["tool_calls"], value.get("content") or ""
        text = text if isinstance(text, str) else str(text)
        return self.builder.build_openai_chat_completion_response(
            text, model, calls, context.finish_reason, estimated_usage(context, messages, text))
