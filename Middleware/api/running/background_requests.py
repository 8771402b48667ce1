"""Requests that a chat front-end makes on its own: titles, tags, suggestions and the like.

They look like any chat request: neither Open WebUI nor LibreChat marks them on the wire. What is known of them is
that they consist of one prompt, how it begins, and what it asks for in which layout. All of that is demanded, because
a person's message that is taken for one of them would get an answer from the wrong workflow.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

SYSTEM_ROLES = ("system", "systemMes")
OPEN_ANSWERS = ("", "Assistant:")
HISTORY_TAG = "chat_history"

_ROLE_PREFIX = re.compile(r"\s*(?:(?:### )?User:\s*)?")
_FIRST_SECTION = re.compile(r"^<(\w+)>[ \t\r]*$", re.MULTILINE)
_OPEN_WEBUI_TASK = re.compile(r"### Task:\s*\n")
_OPEN_WEBUI_SHAPE = re.compile(r'\{\s*"(?:title|tags|follow_ups|queries|prompt|text)"\s*:')
_OPEN_WEBUI_TEXTS = (
    re.compile(r"Your task is to reflect the speaker's likely facial expression through a fitting emoji\..*?"
               r"\nMessage: ```", re.DOTALL),
    re.compile(r"### Task:\s+Summarize the conversation history that will be compacted\b.*?"
               r"\n### Messages Being Compacted:", re.DOTALL),
    re.compile(r"Review the completed conversation turn and decide whether long-term memory should change\..*?"
               r'\{"operations":\[', re.DOTALL),
)
_LIBRE_CHAT_TEXTS = (
    re.compile(r"Provide a concise, \d+-word-or-less title for the conversation\b[^\n]*\n\s*Conversation:\s*\n"),
    re.compile(r"Analyze this conversation and provide:\s*1\. The detected language of the conversation\s*"
               r"2\. A concise title in the detected language\b"),
    re.compile(r"Please generate a concise, \d+-word-or-less title for the conversation\b[^\n]*\n\s*\|\|>User:"),
)


def is_background_task(messages: Sequence[Mapping[str, Any]], stream: bool) -> bool:
    """Whether a conversation in internal form is such a request. ``stream``: the client wants the answer streamed.

    Open WebUI never streams them; LibreChat does with some of its connections.
    """
    prompt = _only_prompt(messages)
    if prompt is None:
        return False
    return _is_from_libre_chat(prompt) or not stream and _is_from_open_webui(prompt)


def _only_prompt(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The one prompt of a conversation without history, less its role prefix; None if there is more, or other data."""
    turns = list(messages)
    if turns and _is_open(turns[-1]):
        turns.pop()
    if not turns or any(turn.get("role") not in SYSTEM_ROLES for turn in turns[:-1]):
        return None
    last = turns[-1]
    content = last.get("content")
    from_user = last.get("role") == "user" or len(turns) == 1 and last.get("role") in SYSTEM_ROLES  # older LibreChat
    if not from_user or not isinstance(content, str) or last.get("images"):
        return None
    prefix = _ROLE_PREFIX.match(content)
    return content[prefix.end():] if prefix else content


def _is_open(turn: Mapping[str, object]) -> bool:
    """Whether it is the empty start of the answer."""
    return turn.get("role") == "assistant" and not turn.get("tool_calls") and (
        str(turn.get("content") or "").strip() in OPEN_ANSWERS)


def _is_from_libre_chat(prompt: str) -> bool:
    return any(pattern.match(prompt) for pattern in _LIBRE_CHAT_TEXTS)


def _is_from_open_webui(prompt: str) -> bool:
    return _is_json_task(prompt) or any(pattern.match(prompt) for pattern in _OPEN_WEBUI_TEXTS)


def _is_json_task(prompt: str) -> bool:
    """A task about the quoted chat, answered in a JSON object whose shape is shown before the chat.

    Its words are not looked at: administrators translate and rewrite them. A question about documents begins in the
    same way, but quotes those first.
    """
    if not _OPEN_WEBUI_TASK.match(prompt):
        return False
    section = _FIRST_SECTION.search(prompt)
    if section is None or section.group(1) != HISTORY_TAG:
        return False
    instructions = prompt[:section.start()]
    return "JSON" in instructions and _OPEN_WEBUI_SHAPE.search(instructions) is not None
