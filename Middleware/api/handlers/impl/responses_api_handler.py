"""OpenAI's Responses API: answers. The routes of what is stored are in ``stored_responses_api_handler``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flask import Flask, Response

from Middleware.api.answers.answer import estimated_prompt, estimated_usage
from Middleware.api.answers.responses_answer import ResponsesAnswer, new_response
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, asks_for_json, json_response, stream_flag
from Middleware.api.requests.messages import with_user_options
from Middleware.api.requests.responses_input import (
    conversation,
    own_items,
    require_supported,
    returned_fields,
)
from Middleware.api.requests.responses_tools import ResponsesTools
from Middleware.api.running.disconnect_watcher import CLIENT_LEFT
from Middleware.common.constants import OPENAI_RESPONSES
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext
from Middleware.models.responses import Item, RequestFields, ResponseObject
from Middleware.services.response_store import Caller, RunningResponse, get_response_store
from Middleware.utilities import config_utils


@dataclass(frozen=True)
class _TranslatedRequest:
    """A request in the engine's terms.

    Attributes:
        fields: what comes back in the response.
        items: the request's own items, with ids.
        functions, choice: the tools that the LLM is offered, and the engine's ``tool_choice``.
    """

    caller: Caller
    fields: RequestFields
    items: Sequence[Item]
    messages: list[Message]
    tools: ResponsesTools
    functions: list[dict[str, object]]
    choice: object

    @staticmethod
    def of(context: RequestContext, body: Mapping[str, object]) -> _TranslatedRequest:
        """Translate a request of the current user."""
        fields, tools = returned_fields(body), ResponsesTools(body.get("tools"))
        caller = Caller.of((config_utils.get_current_username(),), context.api_key)
        talk = get_response_store().conversation(caller, fields["previous_response_id"], own_items(body))
        messages = conversation(body.get("instructions"), talk.history, talk.items, tools)
        # After the items, because these may bring tools.
        functions, choice = tools.choose(body.get("tool_choice"))
        return _TranslatedRequest(caller, fields, talk.items, with_user_options(messages), tools, functions, choice)


class ResponsesApiHandler(BaseApiHandler):
    """Routes under ``/responses``, with and without ``/v1``."""

    def register_routes(self, app: Flask) -> None:
        for prefix in ("/v1", ""):
            for path, view in (("/responses", self.responses), ("/responses/input_tokens", self.input_tokens)):
                app.add_url_rule(prefix + path, f"responses {prefix}{path}", view, methods=["POST"])

    def identify(self, context: RequestContext, body: dict[str, object]) -> None:
        require_supported(body)
        super().identify(context, body)

    def input_tokens(self) -> Response:
        return self.serve(OPENAI_RESPONSES, self._input_tokens)

    @staticmethod
    def _input_tokens(context: RequestContext, body: dict[str, object]) -> Response:
        asked = _TranslatedRequest.of(context, body)
        return json_response(
            {"object": "response.input_tokens", "input_tokens": estimated_prompt(asked.messages, asked.functions)}
        )

    def responses(self) -> Response:
        return self.serve(OPENAI_RESPONSES, self._answer)

    def _answer(self, context: RequestContext, body: dict[str, object]) -> Response:
        asked = _TranslatedRequest.of(context, body)
        context.stream = stream_flag(body, default=False)
        context.schema_field = "text.format" if asks_for_json(asked.fields["text"]["format"]) else ""
        context.has_tools = context.has_tools or bool(asked.functions)
        running = get_response_store().begin(
            asked.caller,
            context.request_id,
            asked.items,
            asked.fields["previous_response_id"],
            keep=body.get("store") is not False,
        )
        # The client may leave before the last event.
        context.on_end = running.discard
        response = new_response(running.id, context.model, running.kept, asked.fields)
        answer = ResponsesAnswer(
            response,
            asked.tools.called,
            partial(estimated_usage, context, asked.messages),
            partial(_keep, context, running),
        )
        running.so_far = answer.so_far
        try:
            return self.run(context, asked.messages, lambda: answer, answer.whole, asked.functions, asked.choice)
        # If a request is refused before its run, only admission sees its end, and a host may serve the app alone.
        except BaseException:
            running.discard()
            raise


def _keep(context: RequestContext, running: RunningResponse, response: ResponseObject) -> None:
    # To the run of a whole answer, a client that has left looks like one that has cancelled it.
    if context.cancel_scope.reason == CLIENT_LEFT:
        running.discard()
    else:
        running.finish(response)
