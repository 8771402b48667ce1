"""The dialects of LLM servers as a server would see them: requests as texts, and replies as bodies of answers."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.cli.workflow_tests.suites import Reply

Payload = Mapping[str, Any]
IMAGE = "[image]"


@dataclass(frozen=True)
class Dialect:
    """One dialect.

    Attributes:
        read: from a payload to system prompt and prompt as texts.
        write: from a reply to the body of a whole answer.
    """

    read: Callable[[Payload], tuple[str, str]]
    write: Callable[[Reply], dict[str, object]]


# -- requests ----------------------------------------------------------------------------------------------------------

def read_messages(payload: Payload) -> tuple[str, str]:
    """System messages at the beginning, and the rest: the text of one message, or ``role: text`` of several."""
    messages = list(payload.get("messages") or ())
    systems = [_text(payload["system"])] if payload.get("system") else []
    while messages and messages[0].get("role") == "system":
        systems.append(message_text(messages.pop(0)))
    if len(messages) == 1:
        return "\n\n".join(systems), message_text(messages[0])
    lines = (f"{message.get('role')}: {message_text(message)}" for message in messages)
    return "\n\n".join(systems), "\n".join(lines)


def read_text(payload: Payload) -> tuple[str, str]:
    """The one text, which holds the system prompt too."""
    text = str(payload.get("prompt", ""))
    return text, text


def message_text(message: Mapping[str, Any]) -> str:
    """What a message says, its tool calls as JSON, its images as ``[image]``."""
    parts = [_text(message.get("content"))]
    parts += [IMAGE for _ in message.get("images") or ()]
    if message.get("tool_calls"):
        parts.append(json.dumps(message["tool_calls"], ensure_ascii=False, default=str))
    return "\n".join(part for part in parts if part)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return "" if content is None else str(content)
    return "\n".join(_block_text(block) for block in content)


def _block_text(block: object) -> str:
    if not isinstance(block, Mapping):
        return str(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    return IMAGE if "image" in str(block.get("type")) else json.dumps(block, ensure_ascii=False, default=str)


# -- answers -----------------------------------------------------------------------------------------------------------

def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls else "stop"


def _openai_chat(reply: Reply) -> dict[str, object]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"],
                                                                              ensure_ascii=False)}}
            for call in reply.tool_calls]
    return {"choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}]}


def _openai_completion(reply: Reply) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": reply.content, "finish_reason": "stop"}]}


def _ollama_chat(reply: Reply) -> dict[str, object]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_calls:
        message["tool_calls"] = [{"function": call["function"]} for call in reply.tool_calls]
    return {"message": message, "done": True, "done_reason": "stop"}


def _ollama_generate(reply: Reply) -> dict[str, object]:
    return {"response": reply.content, "done": True, "done_reason": "stop"}


def _kobold(reply: Reply) -> dict[str, object]:
    return {"results": [{"text": reply.content, "finish_reason": "stop"}]}


def _claude(reply: Reply) -> dict[str, object]:
    blocks: list[dict[str, object]] = [{"type": "text", "text": reply.content}] if reply.content else []
    blocks += [{"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                "input": call["function"]["arguments"]} for call in reply.tool_calls]
    return {"type": "message", "role": "assistant", "content": blocks,
            "stop_reason": "tool_use" if reply.tool_calls else "end_turn"}


def _openai_embeddings(vectors: Sequence[Sequence[float]]) -> dict[str, object]:
    return {"data": [{"index": index, "embedding": list(vector)} for index, vector in enumerate(vectors)]}


def _ollama_embeddings(vectors: Sequence[Sequence[float]]) -> dict[str, object]:
    return {"embeddings": [list(vector) for vector in vectors]}


DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": Dialect(read_messages, _openai_chat),
    "/v1/completions": Dialect(read_text, _openai_completion),
    "/api/chat": Dialect(read_messages, _ollama_chat),
    "/v1/generate": Dialect(read_text, _kobold),
    "/extra/generate/stream": Dialect(read_text, _kobold),
    "/api/generate": Dialect(read_text, _ollama_generate),
    "/v1/messages": Dialect(read_messages, _claude),
}
"""By the end of the path that a request goes to."""

EMBEDDINGS: Mapping[str, Callable[[Sequence[Sequence[float]]], dict[str, object]]] = {
    "/v1/embeddings": _openai_embeddings, "/api/embed": _ollama_embeddings}
