"""Chats that front-ends have saved, as the messages that they would send.

Three forms are read: a chat of SillyTavern (one JSON object a line), an export of Open WebUI (one chat or several, as
JSON), and a list of ``{"role", "content", "name", "timestamp"}``. Dates stay as they stand there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from Middleware.cli.program import NotDoneError
from Middleware.models.messages import TIME_FIELDS

FORMS = (
    "a SillyTavern chat (.jsonl), an Open WebUI export (.json) or a list of "
    '{"role": "user" or "assistant", "content": "..."}'
)
ROLES = frozenset(("user", "assistant"))

SavedMessage = dict[str, Any]
"""``role``, ``content``, and where they are known ``name`` and the fields of ``TIME_FIELDS``, as the file has them."""


def read_chats(path: str) -> list[list[SavedMessage]]:
    """Return the chats of a file, oldest message first; messages of other roles than user and assistant are left out.

    Raises NotDoneError for a file that is not one of these forms, which names the line or the entry; OSError.
    """
    data = Path(path).read_bytes()
    try:
        # PowerShell writes UTF-16.
        text = data.decode(json.detect_encoding(data))
    except UnicodeDecodeError:
        raise NotDoneError(f"{path} is not UTF-8 text. It should be {FORMS}.") from None
    try:
        # SillyTavern's first line is an object, and the file is more than that.
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return [_silly_tavern_chat(path, text)]
    if isinstance(whole, dict) and "mes" in whole:
        return [_silly_tavern_chat(path, text)]
    chats = list(_chats_in(path, whole))
    if not any(chats):
        raise NotDoneError(f"{path} has no messages. It should be {FORMS}.")
    return chats


# -- SillyTavern -------------------------------------------------------------------------------------------------------


def _silly_tavern_chat(path: str, text: str) -> list[SavedMessage]:
    messages: list[SavedMessage] = []
    # Not ``splitlines``: a text may hold characters that it takes for the end of a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise NotDoneError(f"{path}, line {number}, is not JSON ({error}). The file should be {FORMS}.") from None
        if not isinstance(row, dict):
            raise NotDoneError(f"{path}, line {number}, is not a JSON object. The file should be {FORMS}.")
        # The first line has the names of the chat, and no text.
        if isinstance(row.get("mes"), str) and not _is_notice(row):
            messages.append(_message("user" if row.get("is_user") else "assistant", row["mes"], row))
    if not messages:
        raise NotDoneError(f"{path} has no messages. It should be {FORMS}.")
    return messages


def _is_notice(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a narrator's text, a comment or a notice of the program.

    A message that its user has hidden is a system message, too, but one without a type.
    """
    extra = row.get("extra")
    kind = extra.get("type") if isinstance(extra, dict) else None
    return kind == "narrator" or bool(row.get("is_system") and kind)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _chats_in(path: str, data: object) -> Iterator[list[SavedMessage]]:
    if isinstance(data, list) and all(isinstance(row, dict) and "role" in row for row in data):
        yield _listed(path, data)
        return
    for number, entry in enumerate(data if isinstance(data, list) else [data], start=1):
        chat = entry.get("chat", entry) if isinstance(entry, dict) else None
        if not isinstance(chat, dict) or not isinstance(chat.get("history", chat.get("messages")), dict | list):
            raise NotDoneError(f"{path}, entry {number}, is not a chat. The file should be {FORMS}.")
        yield _listed(path, _shown_branch(chat))


def _shown_branch(chat: Mapping[str, Any]) -> Sequence[object]:
    """Return the messages of Open WebUI's chat that it shows: from the current one back to the first."""
    history = chat.get("history")
    known = history.get("messages") if isinstance(history, dict) else None
    if not isinstance(known, dict):
        found = chat.get("messages")
        return found if isinstance(found, list) else []
    assert isinstance(history, dict)
    branch: list[object] = []
    number, seen = history.get("currentId"), set[object]()
    while isinstance(number, str) and isinstance(known.get(number), dict) and number not in seen:
        seen.add(number)
        branch.append(known[number])
        number = known[number].get("parentId")
    return branch[::-1]


def _listed(path: str, rows: Sequence[object]) -> list[SavedMessage]:
    messages = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("role"), str):
            raise NotDoneError(f"{path}, message {number}, has no role. The file should be {FORMS}.")
        content = _text_of(row.get("content"))
        if row["role"] in ROLES and content is not None:
            messages.append(_message(row["role"], content, row))
    return messages


def _text_of(content: object) -> str | None:
    """Return a message's text, also where it consists of parts; None if it has none."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else None


def _message(role: str, content: str, row: Mapping[str, Any]) -> SavedMessage:
    message: SavedMessage = {"role": role, "content": content}
    if isinstance(row.get("name"), str) and row["name"]:
        message["name"] = row["name"]
    return message | {field: row[field] for field in TIME_FIELDS if row.get(field)}
