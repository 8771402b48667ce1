"""The only place that knows what answers look like on the wire.

Source of the formats: the OpenAI API reference (chat completions, models) and frontend-api section 6.
"""
from __future__ import annotations

import json
import time
import uuid
from json.encoder import encode_basestring  # the C encoder where there is one
from typing import Any

STREAM_FINGERPRINT = "fp_44709d6fcb"
FINGERPRINT = "wmr_123456789"
SSE_DONE = b"data: [DONE]\n\n"
SSE_HEARTBEAT = b":\n\n"


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, non-ASCII unescaped; what is not Unicode becomes U+FFFD."""
    return encode_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(value) + b"\n\n"


class ResponseBuilderService:
    """Builds response objects as dicts."""

    # -- OpenAI --------------------------------------------------------------------------------------------------
    def build_openai_models_response(self, model_ids: list[str]) -> dict[str, Any]:
        created = int(time.time())
        return {"object": "list", "data": [
            {"id": name, "object": "model", "created": created, "owned_by": "Wilmer"} for name in model_ids]}

    def build_openai_chat_completion_response(
            self, text: str, model: str, tool_calls: list[dict[str, Any]] | None = None,
            finish_reason: str | None = None, usage: dict[str, Any] | None = None) -> dict[str, Any]:
        now = int(time.time())
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if tool_calls:
            message["content"] = text or None
            message["tool_calls"] = tool_calls
        return {
            "id": f"chatcmpl-{now}", "object": "chat.completion", "created": now, "model": model,
            "system_fingerprint": FINGERPRINT,
            "choices": [{"index": 0, "message": message, "logprobs": None,
                         "finish_reason": "tool_calls" if tool_calls else finish_reason or "stop"}],
            "usage": usage or {}}

    def build_openai_chat_completion_chunk(
            self, token: str, finish_reason: str | None, model: str, *, chunk_id: str = "", created: int = 0,
            role: str | None = None, tool_calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": role} if role else {}
        if token:
            delta["content"] = token
        if tool_calls:
            delta["tool_calls"] = tool_calls
        return {
            "id": chunk_id or f"chatcmpl-{uuid.uuid4()}", "object": "chat.completion.chunk",
            "created": created or int(time.time()), "model": model, "system_fingerprint": STREAM_FINGERPRINT,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]}

    def build_openai_error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"message": message, "type": "server_error", "code": status}}


class OpenAIChatStream:
    """Renders one streamed chat completion, the constant part of its chunks serialised once.

    Args:
        model: the name the client sees.
        include_usage: the client asked for a closing chunk with token counts; the others then carry ``usage: null``.
    """

    heartbeat = SSE_HEARTBEAT
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, builder: ResponseBuilderService, model: str, include_usage: bool = False) -> None:
        self._builder = builder
        self._model = model
        self.include_usage = include_usage
        self._id = f"chatcmpl-{uuid.uuid4()}"
        self._created = int(time.time())
        self._role: str | None = "assistant"
        marker = "\u0000"
        whole = self._event(self._chunk(marker))
        before, after = whole.split(encode_text(json.dumps(marker)))
        self._before, self._after = before, after

    def text(self, token: str) -> bytes:
        """One chunk with text."""
        if self._role:
            return self._event(self._chunk(token, role=self._take_role()))
        return self._before + encode_text(encode_basestring(token)) + self._after

    def tool_calls(self, token: str, calls: list[dict[str, Any]], finish_reason: str | None) -> bytes:
        """One chunk with fragments of tool calls."""
        return self._event(self._chunk(token, finish_reason, role=self._take_role(), tool_calls=calls))

    def final(self, finish_reason: str) -> bytes:
        """The closing chunk, before ``terminator``."""
        return self._event(self._chunk("", finish_reason, role=self._take_role()))

    def usage(self, usage: dict[str, Any]) -> bytes:
        chunk = self._chunk("")
        chunk.update(choices=[], usage=usage)
        return sse(chunk)

    def terminator(self) -> bytes:
        return SSE_DONE

    def error(self, message: str, status: int) -> bytes:
        """An error in the middle of a stream, and the end of it."""
        return sse(self._builder.build_openai_error(message, status)) + SSE_DONE

    def _take_role(self) -> str | None:
        role, self._role = self._role, None
        return role

    def _chunk(self, token: str, finish_reason: str | None = None, role: str | None = None,
               tool_calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        return self._builder.build_openai_chat_completion_chunk(
            token, finish_reason, self._model, chunk_id=self._id, created=self._created, role=role,
            tool_calls=tool_calls)

    def _event(self, chunk: dict[str, Any]) -> bytes:
        if self.include_usage:
            chunk["usage"] = None
        return sse(chunk)
