"""Recognise what front-ends ask for on their own, such as titles, tags and follow-up questions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from wsgiref.types import WSGIEnvironment

from Middleware.api.requests.load_calls import waiting_body
from Middleware.models.messages import Message

SYSTEM_ROLES = ("system", "systemMes")
OPEN_ANSWERS = ("", "Assistant:")
HISTORY_TAG = "chat_history"
# Tokens that the answers need, by the key of the JSON object that is asked for. A small model that rambles would
# otherwise write up to the limit of the node, and keep chats waiting for a title.
_LONGEST = {"title": 64, "tags": 64, "follow_ups": 256}

_ROLE_PREFIX = re.compile(r"\s*(?:(?:### )?User:\s*)?")
_FIRST_SECTION = re.compile(r"^<(\w+)>[ \t\r]*$", re.MULTILINE)
_OPEN_WEBUI_TASK = re.compile(r"### Task:\s*\n")
_OPEN_WEBUI_SHAPE = re.compile(r'\{\s*"(title|tags|follow_ups|queries|prompt|text)"\s*:')
_OPEN_WEBUI_TEXTS = (
    re.compile(
        r"Your task is to reflect the speaker's likely facial expression through a fitting emoji\..*?"
        r"\nMessage: ```",
        re.DOTALL,
    ),
    re.compile(
        r"### Task:\s+Summarize the conversation history that will be compacted\b.*?"
        r"\n### Messages Being Compacted:",
        re.DOTALL,
    ),
    re.compile(
        r"Review the completed conversation turn and decide whether long-term memory should change\..*?"
        r'\{"operations":\[',
        re.DOTALL,
    ),
)
_LIBRE_CHAT_TEXTS = (
    re.compile(r"Provide a concise, \d+-word-or-less title for the conversation\b[^\n]*\n\s*Conversation:\s*\n"),
    re.compile(
        r"Analyze this conversation and provide:\s*1\. The detected language of the conversation\s*"
        r"2\. A concise title in the detected language\b"
    ),
    re.compile(r"Please generate a concise, \d+-word-or-less title for the conversation\b[^\n]*\n\s*\|\|>User:"),
)
# Its system prompt is long and changes between versions; the quoted message follows in the same or the next turn.
_OPENCODE_SYSTEM, _OPENCODE_TITLE = "You are a title generator", "Generate a title for this conversation:"


def is_background_task(messages: Sequence[Message], stream: bool) -> bool:
    """Return whether a conversation in internal form is a front-end's own request; see ``background_task``."""
    return bool(background_task(messages, stream))


def background_task(messages: Sequence[Message], stream: bool) -> str:
    """Return the kind of a front-end's own request: a key of ``_LONGEST`` or ``other``; "" for any other conversation.

    Args:
        messages: the conversation in internal form.
        stream: the client wants the answer streamed. Open WebUI never streams such requests; LibreChat streams them
            on some of its connections, and opencode always does.
    """
    if _is_opencode_title(messages):
        return "title"
    prompt = _only_prompt(messages)
    if prompt is None:
        return ""
    if any(pattern.match(prompt) for pattern in _LIBRE_CHAT_TEXTS):
        return "title"
    if stream:
        return ""
    return _json_task(prompt) or ("other" if any(pattern.match(prompt) for pattern in _OPEN_WEBUI_TEXTS) else "")


def longest_answer(task: str, client_limit: int | None) -> int | None:
    """Return the most tokens that the answer to a front-end's own request needs; None if that is not known.

    ``client_limit``: the client's own limit, which may be lower.
    """
    longest = _LONGEST.get(task)
    return longest if longest is None or client_limit is None else min(longest, client_limit)


def limit_in(body: Mapping[str, object]) -> int | None:
    """Return the client's own limit of an answer in tokens, in any dialect; None without one."""
    options = body.get("options")
    given = (
        body.get("max_completion_tokens"),
        body.get("max_output_tokens"),
        body.get("max_tokens"),
        options.get("num_predict") if isinstance(options, Mapping) else None,
    )
    return next((value for value in given if type(value) is int and value > 0), None)


def is_waiting_task(environ: WSGIEnvironment) -> bool:
    """Return whether the body of a request that waits for a slot is a front-end's own request.

    It is parsed here only for requests that wait.
    """
    body = waiting_body(environ)
    return is_background_task(_sent(body), body.get("stream") is True)


def _sent(body: Mapping[str, object]) -> list[Message]:
    """Return the texts of a request in any dialect, without the user's settings, which are not known yet."""
    messages = next((body[key] for key in ("messages", "input") if key in body), body.get("prompt"))
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list):
        return []
    # The Responses and the Messages API keep the system prompt apart.
    systems = (_joined(body.get(key)) for key in ("instructions", "system"))
    sent: list[Message] = [{"role": "system", "content": text} for text in systems if text]
    sent += [
        {"role": _role(message), "content": _joined(message.get("content"))}
        for message in messages
        if isinstance(message, dict)
    ]
    return sent


def _role(message: Mapping[str, object]) -> str:
    role = str(message.get("role"))
    return "system" if role == "developer" else role


def _joined(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _is_opencode_title(messages: Sequence[Message]) -> bool:
    """Return whether opencode asks for the title of a session: its system prompt, then only messages of the user."""
    # The ordinary case, which must not cost a loop over thousands of messages.
    if (
        not messages
        or messages[0].get("role") not in SYSTEM_ROLES
        or not str(messages[0].get("content") or "").lstrip().startswith(_OPENCODE_SYSTEM)
    ):
        return False
    turns = [turn for turn in messages if turn.get("role") not in SYSTEM_ROLES]
    if turns and _is_open(turns[-1]):
        turns.pop()
    if not 1 <= len(turns) <= 2 or any(turn.get("role") != "user" for turn in turns):
        return False
    first = str(turns[0].get("content") or "")
    prefix = _ROLE_PREFIX.match(first)
    return first.startswith(_OPENCODE_TITLE, prefix.end() if prefix else 0)


def _only_prompt(messages: Sequence[Message]) -> str | None:
    """Return the prompt of a conversation without history, less its role prefix; None if there are other messages."""
    turns = list(messages)
    if turns and _is_open(turns[-1]):
        turns.pop()
    if not turns or any(turn.get("role") not in SYSTEM_ROLES for turn in turns[:-1]):
        return None
    last = turns[-1]
    content = last.get("content")
    # Older versions of LibreChat send such a prompt as a system message.
    from_user = last.get("role") == "user" or (len(turns) == 1 and last.get("role") in SYSTEM_ROLES)
    if not from_user or not isinstance(content, str) or last.get("images"):
        return None
    prefix = _ROLE_PREFIX.match(content)
    return content[prefix.end() :] if prefix else content


def _is_open(turn: Mapping[str, object]) -> bool:
    """Return whether a message is the empty start of the answer."""
    return (
        turn.get("role") == "assistant"
        and not turn.get("tool_calls")
        and (str(turn.get("content") or "").strip() in OPEN_ANSWERS)
    )


def _json_task(prompt: str) -> str:
    """Return the kind of Open WebUI's task about a quoted chat, whose answer is a JSON object of a given shape.

    The words do not matter, as administrators translate and rewrite them. A question about documents begins in the
    same way, but quotes the documents first.
    """
    if not _OPEN_WEBUI_TASK.match(prompt):
        return ""
    section = _FIRST_SECTION.search(prompt)
    # A question about documents quotes these first, in a section with another name.
    if section is None or section.group(1) != HISTORY_TAG:
        return ""
    instructions = prompt[: section.start()]
    shape = _OPEN_WEBUI_SHAPE.search(instructions)
    if shape is None or "JSON" not in instructions:
        return ""
    return shape.group(1) if shape.group(1) in _LONGEST else "other"
