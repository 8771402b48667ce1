"""Render the chunks of a stream as bytes, in each front-end dialect.

The constant parts of a chunk are serialised once per stream. For each token, only its text is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from json.encoder import encode_basestring
from typing import Any, NamedTuple, Protocol

from Middleware.api.errors import PublicError
from Middleware.models.messages import ToolCall, Usage
from Middleware.services.response_builder_service import (
    Counters,
    ResponseBuilderService,
    answer_id,
    to_json,
)
from Middleware.utilities.answers.tool_calls import ToolCallAssembler, ToolCallNumbers
from Middleware.utilities.text_utils import encode_text

BUILDER = ResponseBuilderService()
SSE_DONE = b"data: [DONE]\n\n"
SSE_TYPE = "text/event-stream; charset=utf-8"
NDJSON_TYPE = "application/x-ndjson"

# Mark the positions of the text and of the number in a serialised chunk. No other value contains such characters.
_MARKER, _NUMBER = "\u0000", "\u0001"


class Pauses(NamedTuple):
    """How long a stream may be silent, in seconds.

    Attributes:
        beginning: before its first bytes. Until then, a failure has its own status.
        first: after anything but a heartbeat.
        again: after a heartbeat.
    """

    beginning: float
    first: float
    again: float


# Front-ends and proxies close connections that are silent for too long: the shortest known limits are 10 seconds.
PAUSES = Pauses(5.0, 5.0, 5.0)
# Ollama's and Anthropic's own servers are never silent for long, and clients of these count on it.
SHORT_PAUSES = Pauses(1.0, 1.0, 1.0)


class StreamRenderer(Protocol):
    """Renders one stream.

    Attributes:
        pauses: when it sends heartbeats.
        content_type: the content type of the response.
        joins: several pieces may be sent in one write; False where each must be a separate HTTP chunk.
        wants_usage: ``ending`` needs token counts.
        tells_failures: a failure of the server or of a back-end is reported in the stream even if it comes before the
            first bytes; False where it gets its own HTTP status then. A mistake of the client always has its status.
        fingerprint: the fingerprint that the back-end sent, if any, for all following chunks.
    """

    content_type: str
    pauses: Pauses
    joins: bool
    wants_usage: bool
    tells_failures: bool
    fingerprint: str

    def beginning(self) -> bytes:
        """Return what is sent first; ``b""`` if nothing comes before the answer. Called once, before anything else.

        It is sent with the first piece, or instead of the first heartbeat.
        """

    def heartbeat(self) -> bytes:
        """Return bytes without text that keep the connection open.

        Something that old parsers have seen: for some, a comment or an empty line ends the stream.
        """

    def text(self, token: str) -> bytes:
        """Return a piece of the answer."""

    def reasoning(self, token: str) -> bytes:
        """Return a piece of the model's reasoning; ``b""`` if the dialect has no field for it."""

    def thought(self, block: Mapping[str, object]) -> bytes:
        """Return the end of a block of Claude's thinking, with its signature; ``b""`` in other dialects."""

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        """Return fragments of tool calls, perhaps with text; ``b""`` if they are sent later or not at all."""

    def final(self, finish_reason: str) -> bytes:
        """Return the end of the answer's text; ``b""`` if ``ending`` includes it. A cancelled answer has ``stop``."""

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        """Return the pieces that end the stream.

        ``cancelled``: the answer was cancelled before its end, although its client is still there.
        """

    def error(self, error: PublicError) -> list[bytes]:
        """Return the pieces that report an error and end the stream."""


def sse(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


def named_sse(event: Mapping[str, object]) -> bytes:
    """Return one server-sent event with the name of its type. Anthropic's packages skip events without one."""
    return f"event: {event['type']}\n".encode() + sse(event)


class Template:
    """A serialised chunk with a placeholder for its text."""

    def __init__(self, frame: Callable[[str], bytes]) -> None:
        self._before, self._after = frame(_MARKER).split(encode_text(encode_basestring(_MARKER)))

    def fill(self, token: str) -> bytes:
        return self._before + encode_text(encode_basestring(token)) + self._after


class NumberedTemplate:
    """A serialised event with placeholders for its number and for the text behind that."""

    __slots__ = ("_after", "_before", "_middle")

    def __init__(self, frame: Callable[[str, str], bytes]) -> None:
        """``frame`` makes the event from two strings, one in place of the number and one in place of the text."""
        self._before, rest = frame(_NUMBER, _MARKER).decode().split(encode_basestring(_NUMBER))
        self._middle, self._after = rest.split(encode_basestring(_MARKER))

    def fill(self, number: int, text: str) -> bytes:
        return encode_text(f"{self._before}{number}{self._middle}{encode_basestring(text)}{self._after}")


class BaseStream:
    """What most dialects have in common: they begin with the answer, and their errors have their own status."""

    content_type = SSE_TYPE
    pauses = PAUSES
    joins = True
    tells_failures = False

    def beginning(self) -> bytes:
        return b""

    def thought(self, block: Mapping[str, object]) -> bytes:
        return b""


class _OpenAIStream(BaseStream):
    """The common part of both OpenAI dialects: events, token counts on request, ``[DONE]``."""

    def __init__(self, model: str, include_usage: bool = False) -> None:
        self.wants_usage = include_usage
        self._fingerprint = ""
        self._model = model
        self._created = int(time.time())
        self._template: Template | None = None

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @fingerprint.setter
    def fingerprint(self, value: str) -> None:
        self._fingerprint = value
        self._template = None

    def heartbeat(self) -> bytes:
        return self._event(self._chunk(""))

    def text(self, token: str) -> bytes:
        template = self._template
        return self._first_text(token) if template is None else template.fill(token)

    def _first_text(self, token: str) -> bytes:
        self._template = Template(lambda text: self._event(self._chunk(text)))
        return self._template.fill(token)

    def final(self, finish_reason: str) -> bytes:
        return self._event(self._chunk("", finish_reason))

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        if not self.wants_usage:
            return [SSE_DONE]
        return [sse({**self._chunk(""), "choices": [], "usage": usage()}), SSE_DONE]

    def error(self, error: PublicError) -> list[bytes]:
        return [sse(BUILDER.build_openai_error(error.message, error.status)), SSE_DONE]

    def _chunk(self, token: str, finish_reason: str | None = None) -> dict[str, object]:
        raise NotImplementedError

    def _event(self, chunk: dict[str, object]) -> bytes:
        if self.wants_usage:
            chunk["usage"] = None
        return sse(chunk)


class OpenAIChatStream(_OpenAIStream):
    """A streamed chat completion. ``include_usage`` adds a closing chunk with token counts."""

    # Whether the client knows functions, and no tools.
    legacy = False

    def __init__(self, model: str, include_usage: bool = False, request_id: str = "") -> None:
        super().__init__(model, include_usage)
        self._id = answer_id("chatcmpl", request_id)
        self._role: str | None = "assistant"
        self._numbers = ToolCallNumbers()

    def _first_text(self, token: str) -> bytes:
        # The first chunk alone has the role.
        return self._event(self._chunk(token)) if self._role else super()._first_text(token)

    def reasoning(self, token: str) -> bytes:
        return self._event(self._chunk("", reasoning=token))

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        return self._event(self._chunk(token, finish_reason, tool_calls=self._numbers.numbered(calls)))

    def _chunk(self, token: str, finish_reason: str | None = None, **delta: Any) -> dict[str, object]:
        role, self._role = self._role, None
        return BUILDER.build_openai_chat_completion_chunk(
            token,
            finish_reason,
            model=self._model,
            chunk_id=self._id,
            created=self._created,
            role=role,
            fingerprint=self.fingerprint,
            legacy=self.legacy,
            **delta,
        )


class OpenAICompletionStream(_OpenAIStream):
    """A streamed text completion, which has no fields for tool calls and reasoning."""

    def __init__(self, model: str, include_usage: bool = False, request_id: str = "") -> None:
        super().__init__(model, include_usage)
        self._id = answer_id("cmpl", request_id)

    def reasoning(self, token: str) -> bytes:
        return b""

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        return (self.text(token) if token else b"") + (self.final(finish_reason) if finish_reason else b"")

    def _chunk(self, token: str, finish_reason: str | None = None) -> dict[str, object]:
        return BUILDER.build_openai_completion_chunk(
            token,
            finish_reason,
            model=self._model,
            chunk_id=self._id,
            created=self._created,
            fingerprint=self.fingerprint,
        )


class _OllamaStream(BaseStream):
    """The common part of both Ollama dialects: one line per chunk, and a last line with the finish reason and counters.

    Args:
        counters: makes the counters of the last line from the token counts.
    """

    content_type = NDJSON_TYPE
    pauses = SHORT_PAUSES
    # Some front-ends parse each HTTP chunk as one JSON object.
    joins = False
    wants_usage = True

    def __init__(self, model: str, request_id: str, counters: Callable[[Usage], Counters]) -> None:
        self.fingerprint = ""
        self._model = model
        self._request_id = request_id
        self._counters = counters
        self._reason = "stop"
        self._templates: dict[str, Template] = {}
        self._second = -1

    def heartbeat(self) -> bytes:
        return self.text("")

    def text(self, token: str) -> bytes:
        return self._filled("text", token, lambda text: self._chunk(text, None))

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        self._reason = finish_reason or self._reason
        return self.text(token) if token else b""

    def final(self, finish_reason: str) -> bytes:
        self._reason = finish_reason
        return b""

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        return [_line({**self._chunk("", self._reason), **asdict(self._counters(usage()))})]

    def error(self, error: PublicError) -> list[bytes]:
        return [_line(BUILDER.build_ollama_error(error.message))]

    def _filled(self, kind: str, token: str, chunk: Callable[[str], dict[str, object]]) -> bytes:
        """Return a chunk from its template, which is made again every second because it contains the time."""
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._templates.clear()
        if kind not in self._templates:
            self._templates[kind] = Template(lambda text: _line(chunk(text)))
        return self._templates[kind].fill(token)

    def _chunk(self, token: str, finish_reason: str | None) -> dict[str, object]:
        raise NotImplementedError


class OllamaChatStream(_OllamaStream):
    """A streamed chat. Tool calls are collected and sent complete on a line of their own, directly before the last."""

    def __init__(self, model: str, request_id: str, counters: Callable[[Usage], Counters]) -> None:
        super().__init__(model, request_id, counters)
        self._calls = ToolCallAssembler()

    def reasoning(self, token: str) -> bytes:
        return self._filled(
            "reasoning",
            token,
            lambda text: BUILDER.build_ollama_chat_chunk("", None, self._request_id, model=self._model, reasoning=text),
        )

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        self._calls.add(calls)
        return super().tool_calls(token, calls, finish_reason)

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        last = super().ending(usage, cancelled)
        calls = self._calls.calls()
        if not calls:
            return last
        chunk = BUILDER.build_ollama_chat_chunk("", None, self._request_id, calls, model=self._model)
        return [_line(chunk), *last]

    def _chunk(self, token: str, finish_reason: str | None) -> dict[str, object]:
        return BUILDER.build_ollama_chat_chunk(token, finish_reason, self._request_id, model=self._model)


class OllamaGenerateStream(_OllamaStream):
    """A streamed text generation, which has no fields for tool calls and reasoning."""

    def reasoning(self, token: str) -> bytes:
        return b""

    def _chunk(self, token: str, finish_reason: str | None) -> dict[str, object]:
        return BUILDER.build_ollama_generate_chunk(token, finish_reason, self._request_id, model=self._model)


class KoboldStream(BaseStream):
    """A streamed text generation of KoboldCpp, which has no fields for tool calls, reasoning and token counts."""

    wants_usage = False

    def __init__(self) -> None:
        self.fingerprint = ""
        self._said: list[str] = []
        self._reason = "stop"
        self._template = Template(lambda text: _message(BUILDER.build_kobold_chunk(text, None)))

    @property
    def so_far(self) -> str:
        """The text that has been rendered; other threads may ask for it."""
        return "".join(self._said)

    def heartbeat(self) -> bytes:
        return self.text("")

    def text(self, token: str) -> bytes:
        self._said.append(token)
        return self._template.fill(token)

    def reasoning(self, token: str) -> bytes:
        return b""

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        self._reason = finish_reason or self._reason
        return self.text(token) if token else b""

    def final(self, finish_reason: str) -> bytes:
        self._reason = finish_reason
        return b""

    def ending(self, usage: Callable[[], Usage], cancelled: bool) -> list[bytes]:
        # Clients take the finish reason as the end: no event follows it.
        return [_message(BUILDER.build_kobold_chunk("", self._reason))]

    def error(self, error: PublicError) -> list[bytes]:
        return [_message(BUILDER.build_kobold_error(error.message, error.status))]


def _message(value: object) -> bytes:
    """Return one of KoboldCpp's events, all of which have this name."""
    return b"event: message\n" + sse(value)


def _line(value: object) -> bytes:
    return to_json(value) + b"\n"
