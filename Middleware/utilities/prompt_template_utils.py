"""Prompt templates, which convert messages to one text for a completion back-end.

A template is the mapping read from a file under ``PromptTemplates``. ``None`` in its place means a chat back-end:
contents go in without any prefix or suffix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from Middleware.utilities.config.keys.api_type import PROMPT_TEMPLATE, turn_key
from Middleware.utilities.text_utils import message_text

Template = Mapping[str, Any]

# Prompts of older workflows contain these markers, which a model must not see.
_ROLE_MARKERS = ("[Beg_Sys]", "[Beg_User]", "[Beg_Assistant]", "[Beg_SysMes]")


def flatten_messages(messages: Sequence[Mapping[str, object]], template: Template | None, closed: bool = False) -> str:
    """Return all messages in one text without separator.

    An assistant message at the end gets no suffix, because the model continues it, unless they are ``closed``.
    """
    if template is None:
        return _without_markers("".join(map(message_text, messages)))
    pieces: list[str] = []
    for index, message in enumerate(messages):
        role = str(message.get("role", ""))
        pieces += (_part(template, role, "Prefix"), message_text(message))
        if closed or role != "assistant" or index < len(messages) - 1:
            pieces.append(_part(template, role, "Suffix"))
    return _without_markers("".join(pieces))


def wrap_user_turn(text: str, template: Template | None) -> str:
    return _wrap(text, template, "user")


def wrap_system(text: str, template: Template | None) -> str:
    """Return ``text`` as the system turn; an empty text is wrapped too."""
    return _wrap(text, template, "system")


def system_in_user_turn(system: str, text: str, template: Template | None) -> tuple[str, str]:
    """Return a system prompt and the text of the first user turn, which has both if there is no other place.

    That is so if the template marks both ends of users' turns and has no turn of the system, as Gemma's.
    """
    if template is None or not system.strip():
        return system, text
    has_system_turn = any(_part(template, "system", end) for end in ("Prefix", "Suffix"))
    has_user_turn = all(_part(template, "user", end) for end in ("Prefix", "Suffix"))
    return (system, text) if has_system_turn or not has_user_turn else ("", f"{system.strip()}\n\n{text}")


def wrap_open_assistant_turn(text: str, template: Template | None) -> str:
    """Return ``text`` as the beginning of an assistant turn: prefixed, without suffix."""
    prefix = "" if template is None else _part(template, "assistant", "Prefix")
    return _without_markers(prefix + text)


def add_generation_prompt(text: str, template: Template | None) -> str:
    """Return ``text`` followed by what makes a model begin the assistant's turn."""
    if template is None:
        return _without_markers(text)
    end = str(PROMPT_TEMPLATE.value(template, "promptTemplateEndToken"))
    return _without_markers(text + _part(template, "assistant", "Prefix") + end)


def _wrap(text: str, template: Template | None, role: str) -> str:
    if template is not None:
        text = _part(template, role, "Prefix") + text + _part(template, role, "Suffix")
    return _without_markers(text)


def _part(template: Template, role: str, end: str) -> str:
    value = template.get(turn_key(role, end))
    return "" if value is None else str(value)


def _without_markers(text: str) -> str:
    if "[Beg_" not in text:
        return text
    for marker in _ROLE_MARKERS:
        text = text.replace(marker, "")
    return text
