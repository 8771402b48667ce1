"""Convert OpenAI-style messages, images and tools to Claude's Messages API. Arguments are never changed."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from Middleware.llmapis.handlers.base.backend_call import BackendMessage, Block
from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.llmapis.handlers.base.image_sources import image_format, looks_like_base64, without_line_breaks
from Middleware.llmapis.keepsakes import BLOCKS
from Middleware.utilities.answers.tool_calls import arguments_object

IMAGE_NOTE = "(An image could not be processed.)"
# The id for a tool result without a call id.
UNKNOWN_CALL = "unknown"
_DATA_URI = re.compile(r"data:(image/[^;,]+)(?:;[^;,]*)*;base64", re.IGNORECASE)
# Clients send this type, and the API rejects it.
_MISNAMED = {"image/jpg": "image/jpeg"}
# The base64 characters that contain the first bytes of an image.
_SNIFFED_LENGTH = 24
_CHOICES = {"auto": "auto", "required": "any"}


# -- messages ---------------------------------------------------------------------------------------------------------
def system_text(messages: Sequence[BackendMessage]) -> str:
    """Return the texts of all system messages, joined by a blank line."""
    texts = (text_of(message.get("content")) for message in messages if message.get("role") == "system")
    return "\n\n".join(text for text in texts if text.strip())


def turns(messages: Sequence[BackendMessage]) -> list[BackendMessage]:
    """Return the messages except system ones, each with ``role`` and ``content`` only, and tool calls as blocks.

    The API requires all results of an assistant's calls at the start of the next user turn. So consecutive results and
    the user messages among and after them become one turn, with the results first.
    """
    out: list[BackendMessage] = []
    # The content of the message that answers calls, as long as more can be added to it.
    answer: list[Block] | None = None
    results = 0
    for position, message in enumerate(messages):
        role = message.get("role")
        if role == "system":
            continue
        if role == "tool":
            if answer is None:
                answer, results = [], 0
                out.append({"role": "user", "content": answer})
            answer.insert(results, _tool_result(message))
            results += 1
        elif role == "user" and answer is not None:
            answer += _blocks(message.get("content"))
        else:
            answer = None
            out.append({"role": role, "content": _content(message, position)})
    return out


def trim_prefill(messages: list[BackendMessage]) -> None:
    """Trim a trailing assistant message, the start of the answer: the API rejects white space at its end."""
    if messages and messages[-1].get("role") == "assistant" and isinstance(messages[-1]["content"], str):
        messages[-1] = {**messages[-1], "content": messages[-1]["content"].rstrip()}


def _content(message: BackendMessage, position: int) -> str | list[Block]:
    content, calls, extra = message.get("content"), message.get("tool_calls"), message.get("extra", ())
    thoughts = [block for one in extra if one["member"] == BLOCKS for block in cast("list[Block]", one["value"])]
    if message.get("role") == "assistant" and isinstance(calls, list):
        uses = [
            _tool_use(call, f"toolcall_{position}_{number}")
            | {one["member"]: one["value"] for one in extra if one["at"] == number}
            for number, call in enumerate(calls)
            if isinstance(call, Mapping)
        ]
        if uses:
            return [*thoughts, *_blocks(content), *uses]
    if thoughts:
        return [*thoughts, *_blocks(content)]
    return content if isinstance(content, (str, list)) else ""


def _blocks(content: object) -> list[Block]:
    """Return a content as blocks; blank text becomes no block, because the API rejects it."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content.strip() else []


def _tool_use(call: Mapping[str, Any], default_id: str) -> Block:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return {
        "type": "tool_use",
        "id": call.get("id") or default_id,
        "name": function.get("name") or "",
        "input": arguments_object(function.get("arguments")) or {},
    }


def _tool_result(message: BackendMessage) -> Block:
    return {
        "type": "tool_result",
        "tool_use_id": message.get("tool_call_id") or UNKNOWN_CALL,
        "content": text_of(message.get("content")),
    }


# -- images -----------------------------------------------------------------------------------------------------------
def with_images(messages: Sequence[BackendMessage]) -> tuple[list[BackendMessage], int]:
    """The messages with the images of users as blocks before their text, and how many images were unusable."""
    out, unusable = [], 0
    for message in messages:
        images = message.get("images")
        if message.get("role") == "user" and images:
            sources = images if isinstance(images, list) else [images]
            blocks = [block for block in map(image_block, sources) if block]
            unusable += len(sources) - len(blocks)
            if blocks:
                message = {**message, "content": [*blocks, *_blocks(message.get("content"))]}
        out.append(message)
    return out, unusable


def image_block(source: object) -> Block | None:
    """The block of a data URI, a web address or raw base64; None for anything else."""
    if not isinstance(source, str):
        return None
    if source.startswith(("http://", "https://")):
        return {"type": "image", "source": {"type": "url", "url": source}}
    head, _, data = source.partition(",")
    uri = _DATA_URI.fullmatch(head)
    if uri is not None:
        return _base64_image(_MISNAMED.get(uri[1].lower(), uri[1].lower()), data) if data else None
    source = without_line_breaks(source)
    if looks_like_base64(source):
        found = image_format(base64.b64decode(source[:_SNIFFED_LENGTH]))
        return _base64_image(f"image/{found or 'jpeg'}", source)
    return None


def _base64_image(media_type: str, data: str) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def texts_only(messages: Sequence[BackendMessage]) -> list[BackendMessage]:
    """The messages as plain texts, the last of which, a user's, says that an image is missing."""
    out: list[BackendMessage] = [{**message, "content": text_of(message.get("content"))} for message in messages]
    if out and out[-1].get("role") == "user":
        out[-1]["content"] = f"{out[-1]['content']}\n\n{IMAGE_NOTE}".lstrip("\n")
    else:
        out.append({"role": "user", "content": IMAGE_NOTE})
    return out


# -- tools ------------------------------------------------------------------------------------------------------------
def claude_tool(tool: object) -> dict[str, object] | None:
    """The definition of an OpenAI function tool; None for one without a name."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        return None
    out = {"name": function["name"], "description": function.get("description") or ""}
    if function.get("parameters"):
        out["input_schema"] = function["parameters"]
    return out


def claude_tool_choice(choice: object) -> dict[str, object] | None:
    """Return a tool choice other than ``none``; None for one that the API does not support."""
    if isinstance(choice, str):
        return {"type": _CHOICES[choice]} if choice in _CHOICES else None
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return {"type": "tool", "name": name} if name else None
