"""The dialects of OpenAI, chat and text completions, spoken by llama.cpp, vLLM, LiteLLM and many others."""
from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from Middleware.exceptions import BackendStatusError
from Middleware.llmapis.handlers.base.base_chat_completions_handler import BaseChatCompletionsHandler, text_of
from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.base_llm_api_handler import (
    BackendMessage,
    Block,
    LlmApiHandler,
    Prompt,
    decode_json,
    text_in,
    usage_of,
)
from Middleware.llmapis.handlers.base.image_sources import image_url
from Middleware.llmapis.transport import BackendRequest
from Middleware.models.messages import (
    Answer,
    Chunk,
    PromptTokens,
    ToolCall,
    Usage,
    cached_tokens,
    token_count,
)
from Middleware.models.process import process
from Middleware.models.request_context import first_logged
from Middleware.utilities.answers.stream_parsers import SSEEvent
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

STREAM_OPTIONS = "stream_options"
_PLAIN = frozenset({"content", "role"})


def _refusals() -> Once[str]:
    """Return the addresses of the servers that refuse to be asked for token counts, until the process ends."""
    return Once()


class OpenAiAnswers(LlmApiHandler):
    """Reads the outer object of an answer or an event."""

    # The address that was asked for the token counts of the current stream; "" if it was not asked.
    _asked = ""

    def request(self, prompt: Prompt, stream: bool) -> BackendRequest:
        request = super().request(prompt, stream)
        self._asked = ""
        if STREAM_OPTIONS not in request.payload:
            return request
        if request.url not in process().one(_refusals):
            self._asked = request.url
            return request
        return replace(request, payload={
            key: value for key, value in request.payload.items() if key != STREAM_OPTIONS})

    def asks_again(self, error: BackendStatusError) -> bool:
        # Servers that are strict about fields name the one that they do not know.
        if not self._asked or error.status not in (400, 422) or STREAM_OPTIONS not in error.body:
            return False
        if process().one(_refusals).first(self._asked):
            logger.info("Endpoint '%s' refuses '%s': its streams have no token counts. With an API type whose "
                        "requestUsageInStreams is false, it is not asked for them.", self.settings.endpoint_name,
                        STREAM_OPTIONS)
        return True

    @abstractmethod
    def read_choice(self, choice: Mapping[str, object], chunk: Chunk) -> None:
        """Copy the content of a streamed choice, except its finish reason, to ``chunk``."""

    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        usage = self.note_usage(body)
        chunk: Chunk = {"token": "", "finish_reason": None}
        if usage:
            chunk["usage"] = usage
        if self.note_fingerprint(body):
            chunk["fingerprint"] = self.outcome.fingerprint
        choice = None if self.ended else self.choice(body, name == "error")
        if choice is None:
            return chunk if usage else None
        self.read_choice(choice, chunk)
        finish_reason = choice.get("finish_reason")
        if finish_reason:
            chunk["finish_reason"] = self.outcome.finish_reason = str(finish_reason)
            self.ended = True
        return chunk

    def open_answer(self, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return the choice of a complete answer, empty if it has none, and store its metadata."""
        choice = self.choice(body)
        self.note_usage(body)
        self.note_fingerprint(body)
        return choice or {}

    def choice(self, body: Mapping[str, object], failed: bool = False) -> Mapping[str, object] | None:
        """Return the first choice, None if there is none. Raises BackendResponseError for an error object.

        ``failed`` means that the name of the event is ``error``.
        """
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if body.get("error") or (failed and choice is None):
            self.raise_error_object(body.get("error") or body)
        return choice if isinstance(choice, Mapping) else None

    def note_fingerprint(self, body: Mapping[str, object]) -> bool:
        """Store the back-end's ``system_fingerprint``; return whether this object is the first that has one.

        The name of its model is stored with it.
        """
        outcome = self.outcome
        if not outcome.model and not self.flowing:
            outcome.model = text_in(body, "model")
        fingerprint = body.get("system_fingerprint")
        if self.outcome.fingerprint or not isinstance(fingerprint, str):
            return False
        self.outcome.fingerprint = fingerprint
        return bool(fingerprint)

    def note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """Return and store the token counts of an object."""
        # Most events of a stream have neither.
        if "usage" not in body and "timings" not in body:
            return None
        timings = body.get("timings")
        usage = _usage(body.get("usage"), timings)
        if usage is not None:
            self.outcome.usage = usage
        if isinstance(timings, Mapping):
            self.outcome.reported = timings
        return usage


class OpenAiApiHandler(OpenAiAnswers, BaseChatCompletionsHandler):
    """Calls ``/v1/chat/completions``."""

    PATH = "/v1/chat/completions"
    changes_messages = False

    # -- request -------------------------------------------------------------------------------------------------
    def finish_messages(self, messages: list[BackendMessage]) -> list[BackendMessage]:
        for index, message in enumerate(messages):
            if "tool_calls" in message or "images" in message:
                messages[index] = self._finished(message)
        return messages

    def _finished(self, message: BackendMessage) -> BackendMessage:
        """Return a copy with the images of a user message as content blocks, and without empty tool calls."""
        message = {**message}
        calls = message.get("tool_calls")
        if "tool_calls" in message and not (isinstance(calls, list) and calls):
            del message["tool_calls"]
        images = message.pop("images", None)
        if message.get("role") != "user" or not images:
            return message
        sources = images if isinstance(images, list) else [images]
        urls = [url for url in map(image_url, sources) if url]
        if len(urls) < len(sources):
            self.unreadable(f"{len(sources) - len(urls)} image(s) that are neither data, base64 nor a web address")
        if urls:
            content = message.get("content")
            text: list[Block] = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
            shown: list[Block] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            message["content"] = text + shown
        return message

    # -- streamed answer -----------------------------------------------------------------------------------------
    def read_events(self, events: Sequence[SSEEvent | str]) -> list[Chunk]:
        """Parse events that contain only text, the common case; the base class parses all others."""
        # One of three functions that handle a chunk with only text separately; the others are
        # StreamingResponseHandler.process_stream and StreamingAnswer._render_chunk. A shared check would add a call of
        # 30 to 50 ns per token to about 100 ns in each. A new key of Chunk must be considered in all three.
        chunks: list[Chunk] = []
        keep = self.parts.texts.append if self.parts is not None else None
        for position, event in enumerate(events):
            try:
                body = decode_json(event[1])
            except (ValueError, RecursionError):
                # The event is [DONE], or a part to skip.
                chunks += super().read_events(events[position:position + 1])
                continue
            try:
                choice = body["choices"][0]
                delta = choice["delta"]
                token = delta.get("content")
                if type(token) is str and choice.get("finish_reason") is None \
                        and (len(delta) == 1 or delta.keys() <= _PLAIN) \
                        and self.flowing and not self.ended and not body.get("usage"):
                    chunks.append({"token": token, "finish_reason": None})
                    if keep is not None and token:
                        keep(token)
                    continue
            except (KeyError, IndexError, TypeError, AttributeError):
                pass
            self.read_body(body, event[0], chunks)
            if self.failure is not None:
                break
        return chunks

    def read_choice(self, choice: Mapping[str, object], chunk: Chunk) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return
        chunk["token"] = text_of(delta.get("content"))
        calls = self._calls(delta)
        if calls:
            chunk["tool_calls"] = calls
        reasoning = _reasoning_of(delta)
        if reasoning:
            chunk["reasoning"] = reasoning

    def _calls(self, message: Mapping[str, object]) -> list[ToolCall]:
        """Return the tool calls of a message or a delta, without those that no client can read."""
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return []
        found = [cast(ToolCall, call) for call in calls
                 if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping | None)]
        if len(found) < len(calls):
            self.unreadable(f"{len(calls) - len(found)} tool call(s) that are not objects")
        return found

    # -- complete answer -----------------------------------------------------------------------------------------
    def read_response(self, body: Mapping[str, object]) -> Answer:
        choice = self.open_answer(body)
        message = choice.get("message")
        if not isinstance(message, Mapping):
            self.unreadable("an answer without a message")
            return ""
        content, calls = text_of(message.get("content")), self._calls(message)
        self.outcome.reasoning = _reasoning_of(message)
        finish_reason = choice.get("finish_reason")
        if calls:
            self.outcome.finish_reason = str(finish_reason or "tool_calls")
            return {"content": content, "tool_calls": calls, "finish_reason": self.outcome.finish_reason}
        self.outcome.finish_reason = str(finish_reason) if finish_reason else None
        return content


class OpenAiCompletionsApiHandler(OpenAiAnswers, BaseCompletionsHandler):
    """Calls ``/v1/completions``."""

    PATH = "/v1/completions"

    def payload(self, prompt: Prompt) -> dict[str, object]:
        images = len(self.images(prompt))
        if images and first_logged(f"images that endpoint '{self.settings.endpoint_name}' cannot take"):
            self.unreadable(f"{images} image(s): text completions take none")
        model = {} if self.settings.model is None else {"model": self.settings.model}
        return {**model, **super().payload(prompt)}

    def read_choice(self, choice: Mapping[str, object], chunk: Chunk) -> None:
        # Servers omit the text in a last chunk.
        chunk["token"] = text_in(choice, "text")
        reasoning = _reasoning_of(choice)
        if reasoning:
            chunk["reasoning"] = reasoning

    def read_response(self, body: Mapping[str, object]) -> str:
        choice = self.open_answer(body)
        if not isinstance(choice.get("text", 0), str | None):
            self.unreadable("an answer without a text")
            return ""
        self.outcome.reasoning = _reasoning_of(choice)
        self.outcome.finish_reason = str(choice["finish_reason"]) if choice.get("finish_reason") else None
        return text_in(choice, "text")


def _usage(sent: object, timings: object) -> Usage | None:
    """Return the token counts of an object: its ``usage``, completed from llama.cpp's ``timings``, or the latter."""
    counts = timings if isinstance(timings, Mapping) else {}
    cached = token_count(counts.get("cache_n"))
    if isinstance(sent, dict) and sent:
        # Counts that are not numbers are dropped where they are used.
        usage = cast(Usage, sent)
        if cached is None or cached_tokens(usage) is not None:
            return usage
        details = sent.get("prompt_tokens_details")
        return {**usage, "prompt_tokens_details": {
            **(cast(PromptTokens, details) if isinstance(details, Mapping) else {}), "cached_tokens": cached}}
    read, written = token_count(counts.get("prompt_n")), token_count(counts.get("predicted_n"))
    if written is None:
        return None
    # Servers before September 2025 report only the tokens that they have read, so the length of the prompt is unknown.
    return usage_of(None if read is None or cached is None else cached + read, written, cached)


def _reasoning_of(fields: Mapping[str, object]) -> str:
    """Return the reasoning in a delta, message or choice. Servers use two keys for it, and Mistral content blocks."""
    plain = text_in(fields, "reasoning_content") or text_in(fields, "reasoning")
    content = fields.get("content")
    return plain or (_thinking_in(content) if isinstance(content, list) else "")


def _thinking_in(blocks: list[object]) -> str:
    """Return the text of the blocks of type ``thinking``, which contain a string or a list of text blocks."""
    thoughts = (block for block in blocks if isinstance(block, Mapping) and block.get("type") == "thinking")
    return "".join(text_of(block.get("thinking")) for block in thoughts)
