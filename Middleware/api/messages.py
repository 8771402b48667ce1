"""Chat bodies to internal messages (frontend-api, section 4.1)."""
from __future__ import annotations

from typing import Any

from Middleware.exceptions import ClientError
from Middleware.utilities import config_utils

Message = dict[str, Any]

ROLE_PREFIXES = {"user": "User: ", "assistant": "Assistant: "}
COPIED_KEYS = ("tool_calls", "tool_call_id", "name")
GENERATOR = "Assistant:"


def chat_messages(raw: Any) -> list[Message]:
    """The messages of a chat request in internal form, with the user's role prefixes and generator."""
    if not isinstance(raw, list) or not all(isinstance(message, dict) for message in raw):
        raise ClientError("The 'messages' field must be a list of objects.")
    add_prefixes = config_utils.user_flag("chatCompleteAddUserAssistant")
    messages = [_message(message, add_prefixes) for message in raw]
    if messages and messages[-1]["role"] != "assistant" \
            and config_utils.user_flag("chatCompletionAddMissingAssistantGenerator"):
        messages.append({"role": "assistant", "content": GENERATOR if add_prefixes else ""})
    return messages


def _message(raw: Message, add_prefixes: bool) -> Message:
    role = raw.get("role")
    if not role or not isinstance(role, str):
        raise ClientError("Each message must have a 'role' field.")
    if "content" not in raw and "tool_calls" not in raw:
        raise ClientError("Each message must have 'content' or 'tool_calls'.")
    text, images = _content(raw.get("content"))
    extra = raw.get("images")
    if isinstance(extra, list):
        images += [image for image in extra if isinstance(image, str) and image]
    message: Message = {"role": role, "content": ROLE_PREFIXES.get(role, "") + text if add_prefixes else text}
    if images:
        message["images"] = images
    for key in COPIED_KEYS:
        if raw.get(key) is not None:
            message[key] = raw[key]
    return message


def _content(content: Any) -> tuple[str, list[str]]:
    if isinstance(content, str):
        return content, []
    if content is None:
        return "", []
    if isinstance(content, list):
        return _parts(content)
    if isinstance(content, dict):
        raise ClientError("The 'content' of a message must be a text or a list of parts.")
    return str(content), []


def _parts(parts: list[Any]) -> tuple[str, list[str]]:
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") == "text":
            texts.append(str(part.get("text") or ""))
        elif isinstance(part, dict) and (image := _image(part)):
            images.append(image)
    return "\n".join(texts), images


def _image(part: dict[str, Any]) -> str:
    if part.get("type") == "image_url":
        value = part.get("image_url")
        url = value.get("url") if isinstance(value, dict) else value
        return url if isinstance(url, str) else ""
    source = part.get("source")
    if part.get("type") != "image" or not isinstance(source, dict):
        return ""
    if source.get("type") == "base64" and source.get("data"):
        return f"data:{source.get('media_type') or 'image/png'};base64,{source['data']}"
    return str(source.get("url") or "") if source.get("type") == "url" else ""
