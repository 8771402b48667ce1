"""The chat dialect of Ollama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from Middleware.llmapis.handlers.base.answer_forms import text_in, with_tool_calls
from Middleware.llmapis.handlers.base.backend_call import BackendMessage, Block, Prompt
from Middleware.llmapis.handlers.base.base_chat_completions_handler import (
    BaseChatCompletionsHandler,
    text_of,
)
from Middleware.llmapis.handlers.base.ollama_answers import OllamaAnswers, text_chunk
from Middleware.llmapis.handlers.base.structured_output import constrain
from Middleware.llmapis.keepsakes import THINKING, with_members
from Middleware.models.messages import Answer, Chunk, ToolCall
from Middleware.utilities.answers.tool_calls import arguments_object, whole_call


class OllamaChatHandler(OllamaAnswers, BaseChatCompletionsHandler):
    """Calls ``/api/chat``."""

    PATH = "/api/chat"
    text_member = THINKING

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
        constrain(body, prompt, self.settings)
        return body

    def finish_messages(self, messages: list[BackendMessage]) -> list[BackendMessage]:
        # The names of the tools that were called so far, by call id.
        names: dict[str, str] = {}
        for index, message in enumerate(messages):
            if "extra" in message:
                messages[index] = message = with_members(message)
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
        self.formed = True
        chunk = text_chunk(text_in(message, "content"), text_in(message, THINKING))
        self.kept.add(THINKING, message.get(THINKING))
        calls = self._calls(message)
        if calls:
            first = self._call_count - len(calls)
            chunk["tool_calls"] = [{**call, "index": first + offset} for offset, call in enumerate(calls)]
        return chunk

    def read_response(self, body: Mapping[str, object]) -> Answer:
        self.check_error(body)
        message = body.get("message")
        if not isinstance(message, Mapping):
            raise self.no_answer(body)
        content, calls = text_of(message.get("content")), self._calls(message)
        self.note_end(body, text_in(message, THINKING))
        self.kept.add(THINKING, message.get(THINKING))
        return with_tool_calls(content, calls)

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


def _openai_call(call: object) -> ToolCall | None:
    """Return one of Ollama's tool calls in OpenAI's form; None for one without a function name."""
    if not isinstance(call, Mapping) or not isinstance(function := call.get("function"), Mapping):
        return None
    if not isinstance(name := function.get("name"), str) or not name:
        return None
    whole = whole_call(cast(ToolCall, call))
    # Ollama counts the calls here.
    cast("dict[str, object]", whole["function"]).pop("index", None)
    return whole


def _convert_calls(message: BackendMessage, names: dict[str, str]) -> None:
    """Convert a message's tool calls to Ollama's form, in place, and store their names by id."""
    calls = message.pop("tool_calls")
    converted: list[Block] = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = arguments_object(function.get("arguments")) or {}
            converted.append({**call, "function": {**function, "arguments": arguments}})
            if call.get("id") and function.get("name"):
                names[str(call["id"])] = str(function["name"])
    if converted:
        message["tool_calls"] = converted
