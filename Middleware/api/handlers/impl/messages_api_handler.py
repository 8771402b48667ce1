"""The dialect of Anthropic's Messages API: messages, and the count of a request's tokens."""

from __future__ import annotations

from flask import Flask, Response

from Middleware.api import api_helpers
from Middleware.api.answers.answer import estimated_prompt
from Middleware.api.answers.messages_answer import MessageForm, MessagesStream, message_end
from Middleware.api.dialects import request_label
from Middleware.api.handlers.base.base_api_handler import STREAM_HEADERS, BaseApiHandler, json_response, stream_flag
from Middleware.api.requests.messages_input import MessagesRequest, read_request
from Middleware.common.constants import ANTHROPIC_MESSAGES
from Middleware.models.request_context import RequestContext


class MessagesApiHandler(BaseApiHandler):
    """Routes of Anthropic's Messages API."""

    def register_routes(self, app: Flask) -> None:
        for prefix in ("/v1", ""):
            for path, view in (("/messages", self.messages), ("/messages/count_tokens", self.count_tokens)):
                app.add_url_rule(prefix + path, f"anthropic {prefix}{path}", view, methods=["POST"])

    def messages(self) -> Response:
        return self.serve(ANTHROPIC_MESSAGES, self._message)

    def _message(self, context: RequestContext, body: dict[str, object]) -> Response:
        sent = read_request(body)
        context.stream = stream_flag(body, default=False)
        form = MessageForm(
            f"msg_{context.request_id.replace('-', '')}",
            api_helpers.get_model_name(),
            sent.tools,
            sent.thinking,
            sent.thinking_omitted,
            request_label(context.request_id),
        )
        if type(body.get("max_tokens")) is int and body["max_tokens"] == 0:
            return _empty(form, _prompt_tokens(sent), context.stream)
        return self.run(
            context,
            sent.messages,
            lambda: MessagesStream(form, lambda: _prompt_tokens(sent)),
            form.whole,
            sent.tools.functions,
            sent.tool_choice,
        )

    def count_tokens(self) -> Response:
        """Estimate the tokens of a request. No workflow runs."""
        return self.serve(
            ANTHROPIC_MESSAGES,
            lambda context, body: json_response({"input_tokens": _prompt_tokens(read_request(body))}),
        )


def _prompt_tokens(sent: MessagesRequest) -> int:
    return estimated_prompt(sent.messages, sent.tools.functions)


def _empty(form: MessageForm, prompt_tokens: int, stream: bool) -> Response:
    """Answer a request that allows no tokens, with which clients fill the cache of Anthropic's servers."""
    message = form.empty(prompt_tokens)
    if not stream:
        return json_response(message)
    renderer = MessagesStream(form, lambda: prompt_tokens)
    return Response(
        [renderer.start(), message_end("max_tokens", message["usage"])],
        headers=STREAM_HEADERS,
        content_type=renderer.content_type,
    )
