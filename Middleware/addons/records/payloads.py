"""The texts in the payload of an LLM call, of every kind of back-end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

IMAGE = "[image]"


class PromptPart(NamedTuple):
    """A piece of a prompt in the order in which a server puts it before its model.

    Attributes:
        number: counts the messages from 1; 0 for anything but a message.
        name: for people, such as ``message 1 (system)``.
    """

    number: int
    role: str
    name: str
    text: str


def prompt_parts(payload: Mapping[str, object]) -> Iterator[PromptPart]:
    """Yield the parts of the prompt in a payload. Tools come first, as chat templates write them at the top."""
    if payload.get("tools"):
        yield PromptPart(0, "tools", "the tools", as_json(payload["tools"]))
    messages = messages_of(payload)
    if messages is None:
        for name in ("system", "memory", "prompt"):
            if payload.get(name):
                yield PromptPart(
                    0, name, f"the {name} prompt" if name == "system" else f"the {name}", content_text(payload[name])
                )
        return
    # Claude takes the system prompt next to the messages.
    if payload.get("system"):
        yield PromptPart(1, "system", "message 1 (system)", content_text(payload["system"]))
    for number, message in enumerate(messages, 2 if payload.get("system") else 1):
        role = str(message.get("role"))
        yield PromptPart(number, role, f"message {number} ({role})", message_text(message))


def messages_of(payload: Mapping[str, object]) -> list[Mapping[str, object]] | None:
    """Return the messages of a payload; None if its back-end takes a single string."""
    if "messages" not in payload:
        return None
    messages = payload["messages"]
    return [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, Sequence) else []


def read_payload(payload: Mapping[str, object]) -> tuple[str, str]:
    """Return system prompt and prompt as strings; for a back-end that takes a single string, that string twice.

    System messages at the beginning are the system prompt. Of the others, a single message is its text, several are
    ``role: text``.
    """
    messages = messages_of(payload)
    if messages is None:
        text = str(payload.get("prompt", ""))
        return text, text
    systems = [content_text(payload["system"])] if payload.get("system") else []
    while messages and messages[0].get("role") == "system":
        systems.append(message_text(messages.pop(0)))
    if len(messages) == 1:
        return "\n\n".join(systems), message_text(messages[0])
    lines = (f"{message.get('role')}: {message_text(message)}" for message in messages)
    return "\n\n".join(systems), "\n".join(lines)


def message_text(message: Mapping[str, object]) -> str:
    """Return the text of a message, with its tool calls as JSON and its images as ``[image]``."""
    parts = [content_text(message.get("content"))]
    images = message.get("images")
    parts += [IMAGE for _ in (images if isinstance(images, Sequence) else ())]
    if message.get("tool_calls"):
        parts.append(as_json(message["tool_calls"]))
    return "\n".join(part for part in parts if part)


def content_text(content: object) -> str:
    """Return the text of a message's content: a string, or blocks of a multimodal message."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return "" if content is None else str(content)
    return "\n".join(_block_text(block) for block in content)


def output_text(output: object) -> str:
    """Return the output of a node as tests see it: with tool calls as JSON on a separate line."""
    if isinstance(output, Mapping) and isinstance(output.get("tool_calls"), (list, tuple)):
        calls = as_json(output["tool_calls"])
        output = "\n".join(part for part in (output.get("content"), calls) if part)
    elif isinstance(output, (Mapping, list, tuple)):
        output = as_json(output)
    return "" if output is None else str(output)


def _block_text(block: object) -> str:
    if not isinstance(block, Mapping):
        return str(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    # Recorded images are ``{"image": type, "bytes": size}``.
    return IMAGE if "image" in str(block.get("type")) or "image" in block else as_json(block)


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
