"""Conversion of a responder's value into an answer with tool calls or into the chunk dicts of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from Middleware.models.messages import Answer, Chunk, ToolCall, ToolCallAnswer
from Middleware.utilities.answers.tool_calls import ToolCallAssembler, calls_among
from Middleware.utilities.streaming_utils import stream_text


def as_message(value: object) -> ToolCallAnswer | None:
    """Return a copy of a dict with a list of tool calls (or null), without invalid entries; None for a plain value."""
    if not isinstance(value, dict) or not isinstance(value.get("tool_calls", ""), (list, tuple, type(None))):
        return None
    content = value.get("content")
    return cast(
        ToolCallAnswer,
        {**value, "content": "" if content is None else str(content), "tool_calls": calls_among(value["tool_calls"])},
    )


def value_to_chunks(value: object) -> Iterator[Chunk]:
    """Yield the chunk dicts of a text, a tool-call dict or any other JSON value, unpaced; None is an empty text."""
    message = as_message(value)
    if message is not None and message["tool_calls"]:
        if message["content"]:
            yield {"token": message["content"], "finish_reason": None}
        calls: list[ToolCall] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
        yield {"token": "", "finish_reason": None, "tool_calls": calls}
        reason = message.get("finish_reason")
        yield {"token": "", "finish_reason": reason if reason and isinstance(reason, str) else "tool_calls"}
        return
    if message is not None:
        value = message["content"]
    yield from stream_text("" if value is None else str(value))


def chunks_to_value(chunks: Iterable[Chunk]) -> Answer:
    """Return the content of a whole stream: a text, or a dict with its tool calls."""
    tokens, assembler = [], ToolCallAssembler()
    for chunk in chunks:
        tokens.append(chunk.get("token") or "")
        assembler.add(chunk.get("tool_calls") or ())
    text, whole = "".join(tokens), assembler.calls()
    return {"content": text, "tool_calls": whole, "finish_reason": "tool_calls"} if whole else text
