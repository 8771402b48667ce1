"""Turns a responder's value into the chunk dicts that a streaming client needs."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from Middleware.utilities.streaming_utils import stream_text


def value_to_chunks(value: Any) -> Iterator[dict[str, Any]]:
    """Chunk dicts of a text, a tool-call dict or any other JSON value, unpaced; None is an empty text."""
    if isinstance(value, dict) and value.get("tool_calls"):
        if value.get("content"):
            yield {"token": str(value["content"]), "finish_reason": None}
        calls = [{"index": index, **call} for index, call in enumerate(value["tool_calls"]) if isinstance(call, dict)]
        yield {"token": "", "finish_reason": value.get("finish_reason") or "tool_calls", "tool_calls": calls}
        return
    yield from stream_text("" if value is None else str(value))
