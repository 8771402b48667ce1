"""The form of a conversation that strict chat templates accept: messages of users and assistants alternate, the user's
first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from Middleware.llmapis.handlers.base.backend_call import BackendMessage, Block
from Middleware.models.messages import Message, joined_extra
from Middleware.utilities import prompt_template_utils as templates
from Middleware.utilities.text_utils import message_text

BLANK_LINE = "\n\n"


def alternate_roles(messages: Sequence[BackendMessage]) -> list[BackendMessage]:
    """Return the messages with alternating roles, for templates that raise an error for anything else.

    Adjacent messages of one role are joined, empty assistant messages are left out, system messages after the first
    user message move into user messages, and assistant messages before it are left out.
    """
    kept = list(_without_empty_answers(messages))
    first = next((index for index, message in enumerate(kept) if message.get("role") == "user"), None)
    # Without a user message there is no message to begin with, and nothing else that could be sent.
    if first is not None:
        opening = [message for message in kept[:first] if message.get("role") == "system"]
        kept = [*opening, *_with_systems_in_user_turns(kept[first:])]
    joined: list[BackendMessage] = []
    for message in kept:
        # Each result of a tool names its call, so two of them cannot share a message.
        if joined and joined[-1].get("role") == message.get("role") != "tool":
            joined[-1] = _joined(joined[-1], message)
        else:
            joined.append(message)
    return joined


def alternating_turns(
    system: str, messages: Sequence[Message], template: templates.Template | None
) -> tuple[str, list[Message]]:
    """Return a system prompt and messages for a completion back-end with a prompt template, with alternating roles."""
    turns = cast(list[Message], alternate_roles(cast(Sequence[BackendMessage], messages)))
    if turns and turns[0].get("role") == "user":
        system, text = templates.system_in_user_turn(system, message_text(turns[0]), template)
        turns[0] = {**turns[0], "content": text}
    return system, turns


def _without_empty_answers(messages: Sequence[BackendMessage]) -> Iterable[BackendMessage]:
    for index, message in enumerate(messages):
        empty = (
            _is_blank(message.get("content")) and message.get("role") == "assistant" and not message.get("tool_calls")
        )
        if not empty:
            yield message
        elif index == len(messages) - 1:
            # The endpoint's own beginning of the answer may follow; a message that stays empty is dropped after that.
            yield {**message, "content": ""}


def _with_systems_in_user_turns(messages: Sequence[BackendMessage]) -> list[BackendMessage]:
    """Return the messages, of which the first is a user's, with each system message in the next user message."""
    last_user = max(index for index, message in enumerate(messages) if message.get("role") == "user")
    out: list[BackendMessage] = []
    waiting: list[BackendMessage] = []
    for index, message in enumerate(messages):
        if message.get("role") != "system":
            out += [*waiting, message] if message.get("role") == "user" else [message]
            waiting = [] if message.get("role") == "user" else waiting
        elif index < last_user:
            waiting.append({**message, "role": "user"})
        else:
            # No user message follows, so it stays where it is, as a user message or a part of the one before it.
            out.append({**message, "role": "user"})
    return out


def _joined(first: BackendMessage, second: BackendMessage) -> BackendMessage:
    out: BackendMessage = {**second, **first, "content": joined_contents(first.get("content"), second.get("content"))}
    if first.get("images") and second.get("images"):
        out["images"] = [*_listed(first["images"]), *_listed(second["images"])]
    if "extra" in out:
        out["extra"] = joined_extra(first, second)
    if first.get("tool_calls") and second.get("tool_calls"):
        out["tool_calls"] = [*first["tool_calls"], *second["tool_calls"]]
    # A message of two speakers has no name.
    if first.get("name") != second.get("name"):
        out.pop("name", None)
    return out


def joined_contents(first: str | list[Block] | None, second: str | list[Block] | None) -> str | list[Block] | None:
    """Return two contents with a blank line between them; a blank one is left out."""
    if _is_blank(first) or _is_blank(second):
        return second if _is_blank(first) else first
    if isinstance(first, str) and isinstance(second, str):
        return first + BLANK_LINE + second
    return [*_blocks(first), {"type": "text", "text": BLANK_LINE}, *_blocks(second)]


def _is_blank(content: str | list[Block] | None) -> bool:
    return not content.strip() if isinstance(content, str) else not content


def _blocks(content: str | list[Block] | None) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _listed(images: list[str] | str) -> list[str]:
    # A user's script can give one image without a list.
    return [images] if isinstance(images, str) else images
