"""The OpenAI dialect: chat completions, text completions and the model list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flask import Flask, Response
from flask import request as http

from Middleware.api import api_helpers
from Middleware.api.answers.answer import FinishedAnswer
from Middleware.api.answers.stream_renderers import OpenAIChatStream, OpenAICompletionStream
from Middleware.api.answers.translated_chat_stream import TranslatedChatStream
from Middleware.api.dialects import Dialect, dialect_of
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, asks_for_json, json_response, stream_flag
from Middleware.api.requests.chat_tools import TOOL_FIELDS, ChatTools
from Middleware.api.requests.ignored_fields import look_at_fields
from Middleware.api.requests.messages import chat_messages, completion_messages, with_user_options
from Middleware.api.requests.responses_input import conversation, own_items, previous_response_id
from Middleware.common.constants import OPENAI_CHAT, OPENAI_COMPLETION
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext
from Middleware.services.response_builder_service import AnthropicModels, ResponseBuilderService
from Middleware.services.response_store import Caller, get_response_store
from Middleware.utilities import config_utils

# Of Anthropic's list of models: the entries of a page, and the most that a client may ask for.
PAGE = 20
LONGEST_PAGE = 1000


class OpenAIApiHandler(BaseApiHandler):
    """Routes of the OpenAI API, with and without ``/v1``. Anthropic's list of models is at the same path."""

    def __init__(self) -> None:
        self.builder = ResponseBuilderService()

    def register_routes(self, app: Flask) -> None:
        for prefix in ("/v1", ""):
            for path, view, method in (
                ("/chat/completions", self.chat_completions, "POST"),
                ("/completions", self.completions, "POST"),
                ("/models", self.models, "GET"),
                ("/models/<path:name>", self.model, "GET"),
            ):
                app.add_url_rule(prefix + path, f"openai {prefix}{path}", view, methods=[method])

    def identify(self, context: RequestContext, body: dict[str, object]) -> None:
        if context.api_type == OPENAI_CHAT and "messages" not in body and body.get("input") is None:
            raise ClientError("The 'messages' field is required.")
        super().identify(context, body)
        look_at_fields(body)

    # -- models --------------------------------------------------------------------------------------------------
    def models(self) -> Response:
        if dialect_of(http.environ) is Dialect.ANTHROPIC:
            return self.listing(self._anthropic_models)
        return self.listing(lambda: self.builder.build_openai_models_response(api_helpers.visible_model_ids()))

    def _anthropic_models(self) -> AnthropicModels:
        return self.builder.build_anthropic_models_response(*_page(api_helpers.visible_model_ids()))

    def model(self, name: str) -> Response:
        """Return one entry of the list; clients request it to find out whether a model exists."""
        return self.listing(lambda: self._model(name))

    def _model(self, name: str) -> Mapping[str, object]:
        listed = name.rstrip("/").removesuffix(api_helpers.LATEST)
        if listed not in api_helpers.visible_model_ids():
            raise ClientError(f"There is no model '{name[:100]}'.", 404)
        if dialect_of(http.environ) is Dialect.ANTHROPIC:
            return self.builder.build_anthropic_model(listed)
        return self.builder.build_openai_model(listed)

    # -- completions ---------------------------------------------------------------------------------------------
    def chat_completions(self) -> Response:
        return self.serve(OPENAI_CHAT, self._chat)

    def _chat(self, context: RequestContext, body: dict[str, object]) -> Response:
        if self.asks_for_tool_choice_only(body.get("messages")):
            return json_response(self.builder.build_openai_tool_call_response())
        # Most requests have none, and cost nothing for them.
        tools = None if TOOL_FIELDS.isdisjoint(body) else ChatTools(body)
        if body.get("messages") is not None or body.get("input") is None:
            messages = chat_messages(body.get("messages"))
        else:
            tools = tools or ChatTools(body)
            messages = _messages_of_items(context, body, tools)
        functions, choice = ([], None) if tools is None else tools.offer()
        context.has_tools = bool(functions)
        context.schema_field = "response_format" if asks_for_json(body.get("response_format")) else ""
        context.stream = stream_flag(body, default=False)
        model = api_helpers.get_model_name()

        def whole(answer: FinishedAnswer) -> dict[str, object]:
            return self.builder.build_openai_chat_completion_response(
                answer.text,
                (tools or ChatTools(body)).client_calls(answer.tool_calls) if answer.tool_calls else None,
                model=model,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
                reasoning=answer.reasoning,
                fingerprint=answer.fingerprint,
                request_id=context.request_id,
                legacy=tools is not None and tools.legacy,
            )

        def renderer() -> OpenAIChatStream:
            if tools is not None and (tools.translated or tools.legacy):
                return TranslatedChatStream(model, _wants_usage(body), context.request_id, tools)
            return OpenAIChatStream(model, _wants_usage(body), context.request_id)

        return self.run(context, messages, renderer, whole, functions, choice)

    def completions(self) -> Response:
        return self.serve(OPENAI_COMPLETION, self._completion)

    def _completion(self, context: RequestContext, body: dict[str, object]) -> Response:
        messages = completion_messages(body.get("prompt"))
        context.stream = stream_flag(body, default=not _reads_whole_answers_only())
        model = api_helpers.get_model_name()

        def whole(answer: FinishedAnswer) -> dict[str, object]:
            return self.builder.build_openai_completion_response(
                answer.text,
                model=model,
                finish_reason=answer.finish_reason,
                usage=answer.usage,
                fingerprint=answer.fingerprint,
                request_id=context.request_id,
            )

        return self.run(
            context, messages, lambda: OpenAICompletionStream(model, _wants_usage(body), context.request_id), whole
        )


def _messages_of_items(context: RequestContext, body: dict[str, object], tools: ChatTools) -> list[Message]:
    """Return the messages of a chat request whose client sends the items of the Responses API in their place.

    ``tools``: also gets the tools that items bring.
    """
    caller = Caller.of((config_utils.get_current_username(),), context.api_key)
    talk = get_response_store().conversation(caller, previous_response_id(body), own_items(body))
    return with_user_options(conversation(body.get("instructions"), talk.history, talk.items, tools))


def _page(ids: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Return the part of Anthropic's list that the query of the request asks for, and whether it goes on there."""
    limit = api_helpers.page_limit(PAGE, LONGEST_PAGE)
    if limit is None:
        raise ClientError(f"The 'limit' in the query must be a whole number from 1 to {LONGEST_PAGE}.")
    after, before = (_position(ids, name) for name in ("after_id", "before_id"))
    if before is not None:
        ids, found = ids[:before], ids[max(before - limit, 0) : before]
        return found, len(found) < len(ids)
    ids = ids if after is None else ids[after + 1 :]
    return ids[:limit], len(ids) > limit


def _position(ids: Sequence[str], parameter: str) -> int | None:
    """Return where in the list the model is that a parameter of the query names; None without the parameter."""
    name = http.args.get(parameter)
    if name is None:
        return None
    if name not in ids:
        raise ClientError(f"There is no model '{name[:100]}', which '{parameter}' in the query names.")
    return ids.index(name)


def _reads_whole_answers_only() -> bool:
    """Return whether a client that sends no ``stream`` key expects one JSON body, as OpenAI's own server sends it.

    The OpenAI packages show it in ``Accept``. SillyTavern also omits the key when its streaming is off, and is
    recognised by the HTTP library of its server. All other clients get a stream, as they always have.
    """
    return http.headers.get("Accept", "").strip().lower() == "application/json" or http.headers.get(
        "User-Agent", ""
    ).startswith("node-fetch")


def _wants_usage(body: dict[str, object]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
