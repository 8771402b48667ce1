"""What the answers of all dialects are read and made with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from Middleware.models.messages import LARGEST_NUMBER, Answer, Chunk, ToolCall, Usage
from Middleware.utilities.answers.tool_calls import whole_call

DONE = "[DONE]"

_decoder = json.JSONDecoder()


def decode_json(text: str) -> Any:
    """Return the value of a JSON text without white space around it. Raises ValueError, RecursionError."""
    # ``decode`` does the same, and looks for white space with two regular expressions.
    value, end = _decoder.raw_decode(text)
    return value if end == len(text) else _decoder.decode(text)


def usage_of(prompt: int | None, completion: int | None, cached: int | None = None) -> Usage | None:
    """Return token counts in OpenAI's form, without those that the back-end does not report; None without any.

    ``cached`` is the number of cached prompt tokens.
    """
    usage: Usage = {}
    if prompt is not None:
        usage["prompt_tokens"] = prompt
    if completion is not None:
        usage["completion_tokens"] = completion
    if prompt is not None and completion is not None:
        usage["total_tokens"] = min(prompt + completion, LARGEST_NUMBER)
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage or None


def carries(chunk: Chunk) -> bool:
    """Return whether a chunk has text, reasoning or a tool call."""
    return bool(chunk["token"] or chunk.get("reasoning") or chunk.get("tool_calls"))


def with_tool_calls(text: str, calls: list[ToolCall]) -> Answer:
    """Return a complete answer, with its calls in the form that clients know.

    Its finish reason is filled in when the server's word for it is translated.
    """
    return {"content": text, "tool_calls": [whole_call(call) for call in calls]} if calls else text


def keys_of(body: object) -> str:
    """Return what an answer without the expected form shows: its keys, or its type."""
    if isinstance(body, Mapping):
        return f"only {', '.join(map(repr, list(body)[:12]))}" if body else "an empty object"
    return "nothing" if body is None else f"JSON of the type {type(body).__name__}"


def dialect_of(body: object) -> str:
    """Return the shipped ApiType whose answers have the form of ``body``; "" for none."""
    if not isinstance(body, Mapping):
        return ""
    choice, kind = first_object(body.get("choices")), str(body.get("type"))
    if isinstance(choice.get("message", choice.get("delta")), Mapping):
        return "Open-AI-API"
    if isinstance(choice.get("text"), str):
        return "OpenAI-Compatible-Completions"
    if isinstance(body.get("content"), list) or kind.startswith(("message_", "content_block_")):
        return "Claude"
    if "done" in body:
        return "OllamaApiChat" if "message" in body else "OllamaApiGenerate"
    return "KoboldCpp" if "token" in body or isinstance(first_object(body.get("results")).get("text"), str) else ""


def telling_event(data: bytes) -> object:
    """Return the first object that has the form of a dialect or an error, in a stream of SSE or of lines; else None."""
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            body = unlisted(json.loads(line.removeprefix(b"data:")))
            if dialect_of(body) or (isinstance(body, Mapping) and body.get("error")):
                return body
    return None


def unlisted(body: object) -> object:
    """Return the only element of a list, as Google's servers send errors; anything else as it is."""
    return body[0] if isinstance(body, list) and len(body) == 1 else body


def first_object(value: object) -> Mapping[str, object]:
    """Return the first element of a list if it is an object, else an empty one."""
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, Mapping) else {}


def text_in(fields: Mapping[str, object], key: str) -> str:
    """Return the string under a key, ``""`` for any other value."""
    text = fields.get(key)
    return text if isinstance(text, str) else ""
