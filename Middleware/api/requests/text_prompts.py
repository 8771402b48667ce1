"""Prompts of the text routes in internal form: role markers such as ``[Beg_User]`` become messages."""
from __future__ import annotations

import re

from Middleware.api.requests.messages import string_list
from Middleware.exceptions import ClientError
from Middleware.models.messages import Message

_SEGMENT = re.compile(r"\[Beg_(\w+)\](.*?)(?=\[Beg_\w+\]|\Z)", re.DOTALL)
_ROLES = {"User": "user", "Assistant": "assistant", "SysMes": "systemMes", "Sys": "system"}


def parse_tagged_prompt(text: str) -> list[Message]:
    """The messages of a prompt with role markers; empty if it has none.

    The first ``[Beg_Sys]`` is the system prompt, later ones are system messages within the conversation. Text before
    the first marker and under an unknown one is dropped.
    """
    messages: list[Message] = []
    has_system = False
    for word, content in _SEGMENT.findall(text):
        role = _ROLES.get(word)
        if role == "system":
            role, has_system = "systemMes" if has_system else "system", True
        if role:
            messages.append({"role": role, "content": content.strip()})
    return messages


def completion_messages(prompt: object) -> list[Message]:
    """The ``prompt`` of an OpenAI text completion: a text, null, or a list of one text."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if prompt is not None and not isinstance(prompt, str):
        raise ClientError("The 'prompt' field must be a text or a list of one text.")
    return _tagged_or_plain(prompt or "")


def generate_messages(body: dict[str, object]) -> list[Message]:
    """The ``system``, ``prompt`` and ``images`` of an Ollama text generation."""
    system, prompt = _text(body, "system"), _text(body, "prompt")
    messages = _tagged_or_plain(system + prompt)
    if system.strip() and not parse_tagged_prompt(system) and parse_tagged_prompt(prompt):
        messages.insert(0, {"role": "system", "content": system})
    images = string_list(body.get("images"))
    if images:
        _attach(images, messages)
    return messages


def _tagged_or_plain(text: str) -> list[Message]:
    return parse_tagged_prompt(text) or ([{"role": "user", "content": text}] if text else [])


def _text(body: dict[str, object], key: str) -> str:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ClientError(f"The '{key}' field must be a text.")
    return value or ""


def _attach(images: list[str], messages: list[Message]) -> None:
    """Put images on the last user message."""
    for message in reversed(messages):
        if message["role"] == "user":
            message["images"] = images
            return
    messages.append({"role": "user", "content": "", "images": images})
