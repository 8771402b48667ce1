"""The chat dialect of OpenAI, spoken by llama.cpp, vLLM, LiteLLM and many others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from Middleware.llmapis.handlers.base.answer_forms import DONE, decode_json, text_in, with_tool_calls
from Middleware.llmapis.handlers.base.backend_call import BackendMessage, Block
from Middleware.llmapis.handlers.base.base_chat_completions_handler import BaseChatCompletionsHandler, text_of
from Middleware.llmapis.handlers.base.image_sources import image_url
from Middleware.llmapis.handlers.base.openai_answers import REASONING, OpenAiAnswers, reasoning_of
from Middleware.llmapis.keepsakes import CONTENT, THINKING, with_members
from Middleware.models.messages import Answer, Chunk, ToolCall
from Middleware.utilities.answers.stream_parsers import SSEEvent

_PLAIN = frozenset({"content", "role"})


class OpenAiApiHandler(OpenAiAnswers, BaseChatCompletionsHandler):
    """Calls ``/v1/chat/completions``."""

    PATH = "/v1/chat/completions"
    changes_messages = False
    empty_first = True

    # -- request -------------------------------------------------------------------------------------------------
    def finish_messages(self, messages: list[BackendMessage]) -> list[BackendMessage]:
        for index, message in enumerate(messages):
            if "tool_calls" in message or "images" in message or "extra" in message:
                messages[index] = self._finished(message)
        return messages

    def _finished(self, message: BackendMessage) -> BackendMessage:
        """Return a copy with the images of a user message as content blocks, and without empty tool calls."""
        message = with_members(message) if "extra" in message else {**message}
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
                if event[0] != "error" or event[1] == DONE:
                    # The event is [DONE], or a part to skip.
                    chunks += super().read_events(events[position : position + 1])
                    continue
                body = event[1]
            try:
                choice = body["choices"][0]
                delta = choice["delta"]
                token = delta.get("content")
                if (
                    type(token) is str
                    and choice.get("finish_reason") is None
                    and (len(delta) == 1 or delta.keys() <= _PLAIN)
                    and self.flowing
                    and not self.ended
                    and not body.get("usage")
                    and event[0] != "error"
                    and "error" not in body
                    and "error" not in choice
                ):
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
        # Servers that stream nothing send one event with the whole message.
        delta = choice.get("delta") or choice.get("message", choice.get("delta"))
        if not isinstance(delta, dict):
            return
        self.whole, self.formed = not self.formed and delta is choice.get("message"), True
        content = delta.get("content")
        chunk["token"] = content if isinstance(content, str) else text_of(content)
        # Most have nothing else.
        if isinstance(content, list) or not delta.keys() <= _PLAIN:
            self._read_others(delta, chunk)

    def _read_others(self, delta: Mapping[str, object], chunk: Chunk) -> None:
        """Copy what a delta has next to its text to ``chunk``."""
        chunk["token"] = chunk["token"] or self.refused(text_in(delta, "refusal"))
        # What the server wants back, and the thoughts in the content.
        self.kept.read(delta)
        if isinstance(content := delta.get("content"), list):
            blocks = [block for block in content if isinstance(block, Mapping) and block.get("type") == THINKING]
            self.kept.add(CONTENT, blocks)
        calls = self._calls(delta)
        if calls:
            chunk["tool_calls"] = calls
        reasoning = reasoning_of(delta, not self.kept.has(*REASONING))
        if reasoning:
            chunk["reasoning"] = reasoning

    def _calls(self, message: Mapping[str, object]) -> list[ToolCall]:
        """Return the tool calls of a message or a delta, without those that no client can read."""
        calls = _listed(message.get("tool_calls"))
        if not isinstance(calls, list) or not calls:
            # Of servers from before there were tools. There is one at most, and it has no id.
            function = message.get("function_call")
            return [cast(ToolCall, {"index": 0, "function": function})] if isinstance(function, Mapping) else []
        found = [
            cast(ToolCall, call)
            for call in calls
            if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping | None)
        ]
        if len(found) < len(calls):
            self.unreadable(f"{len(calls) - len(found)} tool call(s) that are not objects")
        return found

    # -- complete answer -----------------------------------------------------------------------------------------
    def read_response(self, body: Mapping[str, object]) -> Answer:
        choice = self.open_answer(body)
        message = choice.get("message", choice.get("delta"))
        if not isinstance(message, dict):
            raise self.no_answer(body)
        content = message.get("content")
        if not isinstance(content, str | list | None) or not isinstance(
            _listed(message.get("tool_calls")), list | None
        ):
            # It is this dialect, and the text of the answer belongs into no message.
            raise self.no_answer(dict.fromkeys(message))
        chunk: Chunk = {"token": "", "finish_reason": None}
        self.read_choice({"message": message}, chunk)
        self.outcome.reasoning = chunk.get("reasoning", "")
        return with_tool_calls("" if self.refusal else chunk["token"], chunk.get("tool_calls", []))


def _listed(calls: object) -> object:
    """Return calls as a list: some servers send a single one without it."""
    return [calls] if isinstance(calls, Mapping) and "function" in calls else calls
