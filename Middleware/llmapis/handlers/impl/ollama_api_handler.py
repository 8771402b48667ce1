"""The dialects of Ollama: chat, and text generation."""
from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Mapping

from Middleware.llmapis.api_types import model_name
from Middleware.llmapis.handlers.base.base_chat_completions_handler import (
    BaseChatCompletionsHandler,
    arguments_object,
    text_of,
)
from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.base_llm_api_handler import (
    BackendMessage,
    Block,
    LlmApiHandler,
    Prompt,
    text_in,
    usage_of,
)
from Middleware.llmapis.transport import BackendRequest
from Middleware.models.messages import Answer, Chunk, ToolCall, Usage, token_count
from Middleware.utilities.answers.stream_parsers import NDJSONParser
from Middleware.utilities.config.keys.api_type import API_TYPE

# Ollama ignores these fields inside ``options``.
TOP_LEVEL_FIELDS = ("think", "keep_alive", "format")


class OllamaAnswers(LlmApiHandler):
    """Sorts samplers into Ollama's payload and reads the outer object of an answer or an event.

    Attributes:
        streaming: whether the current call streams. ``request`` sets it before the payload is built, because the
            samplers contain it only for API types with a stream key.
    """

    FRAMER = NDJSONParser
    streaming = False

    # -- request -------------------------------------------------------------------------------------------------
    def request(self, prompt: Prompt, stream: bool) -> BackendRequest:
        self.streaming = stream
        return super().request(prompt, stream)

    @property
    def model(self) -> str:
        """The model name, which Ollama needs even from endpoints that omit it elsewhere."""
        return self.settings.model or model_name(self.settings.endpoint)

    def sampler_fields(self) -> dict[str, object]:
        """Return the samplers as payload fields: ``options``, and the fields that Ollama reads at the top level."""
        samplers = self.settings.samplers
        apart = {*TOP_LEVEL_FIELDS, "stream", API_TYPE.value(self.settings.api_type, "streamPropertyName")}
        fields = {key: samplers[key] for key in TOP_LEVEL_FIELDS if key in samplers}
        return {**fields, "options": {key: value for key, value in samplers.items() if key not in apart}}

    # -- answer --------------------------------------------------------------------------------------------------
    @abstractmethod
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        """Return the text, reasoning and tool calls of an event; None for an event without fields for them."""

    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        if self.closed:
            return None
        self.check_error(body)
        chunk = self.read_part(body)
        if not body.get("done"):
            return chunk
        chunk = chunk or {"token": "", "finish_reason": None}
        chunk["finish_reason"] = self.outcome.finish_reason = self.finish_reason(body)
        usage = self.note_usage(body)
        if usage:
            chunk["usage"] = usage
        self.ended = self.closed = True
        return chunk

    def check_error(self, body: Mapping[str, object]) -> None:
        """Raise BackendResponseError for an error object, which Ollama also sends in the middle of a stream."""
        if body.get("error"):
            self.raise_error_object(body["error"])

    def finish_reason(self, body: Mapping[str, object]) -> str:
        """Return the finish reason of a complete answer."""
        return "length" if body.get("done_reason") == "length" else "stop"

    def note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """Return and store the token counts of an object. Older servers omit the count of a cached prompt."""
        self.outcome.usage = usage_of(token_count(body.get("prompt_eval_count")), token_count(body.get("eval_count")))
        self.outcome.reported, self.outcome.model = body, text_in(body, "model")
        return self.outcome.usage

    def note_end(self, body: Mapping[str, object], reasoning: str) -> None:
        """Store the metadata of a complete answer."""
        self.note_usage(body)
        self.outcome.reasoning = reasoning
        if body.get("done"):
            self.outcome.finish_reason = self.finish_reason(body)


class OllamaChatApiHandler(OllamaAnswers, BaseChatCompletionsHandler):
    """Calls ``/api/chat``."""

    PATH = "/api/chat"

    def _reset(self) -> None:
        super()._reset()
        self._call_count = 0

    # -- request -------------------------------------------------------------------------------------------------
    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {"model": self.model, "messages": self.finish_messages(self.messages(prompt))}
        if not self.streaming:
            # Ollama streams by default.
            body["stream"] = False
        body.update(self.sampler_fields())
        if prompt.tools:
            # Ollama does not support tool_choice.
            body["tools"] = list(prompt.tools)
        self.add_schema(body, prompt)
        return body

    def finish_messages(self, messages: list[BackendMessage]) -> list[BackendMessage]:
        # The names of the tools that were called so far, by call id.
        names: dict[str, str] = {}
        for message in messages:
            message["content"] = text_of(message.get("content"))
            if "images" in message:
                self._convert_images(message)
            if "tool_calls" in message:
                _convert_calls(message, names)
            if message.get("role") == "tool" and not message.get("tool_name"):
                name = message.get("name") or names.get(str(message.get("tool_call_id")))
                if name:
                    message["tool_name"] = name
        return messages

    def _convert_images(self, message: BackendMessage) -> None:
        """Convert the images of a user message to plain base64; remove those of others."""
        images = message.pop("images")
        if message.get("role") == "user" and images:
            raw = self.base64_images(images if isinstance(images, list) else [images], "Ollama")
            if raw:
                message["images"] = raw

    # -- answer --------------------------------------------------------------------------------------------------
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        message = body.get("message")
        if not isinstance(message, Mapping):
            return None
        chunk = _chunk(text_in(message, "content"), text_in(message, "thinking"))
        calls = self._calls(message)
        if calls:
            first = self._call_count - len(calls)
            chunk["tool_calls"] = [{"index": first + offset, **call} for offset, call in enumerate(calls)]
        return chunk

    def finish_reason(self, body: Mapping[str, object]) -> str:
        """Return ``tool_calls`` for an answer with tool calls, which Ollama reports as ``stop``: clients rely on it."""
        return "tool_calls" if self._call_count else super().finish_reason(body)

    def read_response(self, body: Mapping[str, object]) -> Answer:
        self.check_error(body)
        message = body.get("message")
        if not isinstance(message, Mapping):
            self.unreadable("an answer without a message")
            return ""
        content, calls = text_of(message.get("content")), self._calls(message)
        self.note_end(body, text_in(message, "thinking"))
        if not calls:
            return content
        self.outcome.finish_reason = "tool_calls"
        return {"content": content, "tool_calls": calls, "finish_reason": "tool_calls"}

    def _calls(self, message: Mapping[str, object]) -> list[ToolCall]:
        """Return the tool calls of a message in OpenAI's form and count them for the whole answer."""
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return []
        found = [call for call in map(_openai_call, calls) if call is not None]
        if len(found) < len(calls):
            self.unreadable(f"{len(calls) - len(found)} tool call(s) without a name")
        self._call_count += len(found)
        return found


class OllamaGenerateApiHandler(OllamaAnswers, BaseCompletionsHandler):
    """Calls ``/api/generate``. The prompt is sent raw: the endpoint's own prompt template has formatted it."""

    PATH = "/api/generate"

    # -- request -------------------------------------------------------------------------------------------------
    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {"model": self.model, "prompt": self.text(prompt), "stream": self.streaming,
                                "raw": True, **self.sampler_fields()}
        images = self.base64_images(self.images(prompt), "Ollama")
        if images:
            body["images"] = images
        self.add_declared_schema(body, prompt)
        return body

    # -- answer --------------------------------------------------------------------------------------------------
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        if "response" not in body and "thinking" not in body:
            return None
        return _chunk(text_in(body, "response"), text_in(body, "thinking"))

    def read_response(self, body: Mapping[str, object]) -> str:
        self.check_error(body)
        self.note_end(body, text_in(body, "thinking"))
        text = body.get("response")
        if not isinstance(text, str):
            self.unreadable("an answer without a text")
            return ""
        return text


def _chunk(text: str, reasoning: str) -> Chunk:
    chunk: Chunk = {"token": text, "finish_reason": None}
    if reasoning:
        chunk["reasoning"] = reasoning
    return chunk


def _openai_call(call: object) -> ToolCall | None:
    """Return one of Ollama's tool calls in OpenAI's form; None for one without a function name."""
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return None
    name, known = function.get("name"), call.get("id")
    if not isinstance(name, str) or not name:
        return None
    return {"id": known if known and isinstance(known, str) else f"call_{secrets.token_hex(12)}", "type": "function",
            "function": {"name": name, "arguments": _arguments_text(function.get("arguments"))}}


def _arguments_text(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)


def _convert_calls(message: BackendMessage, names: dict[str, str]) -> None:
    """Convert a message's tool calls to Ollama's form, in place, and store their names by id."""
    calls = message.pop("tool_calls")
    converted: list[Block] = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = arguments_object(function.get("arguments"))
            converted.append({**call, "function": {**function, "arguments": arguments}})
            if call.get("id") and function.get("name"):
                names[str(call["id"])] = str(function["name"])
    if converted:
        message["tool_calls"] = converted
