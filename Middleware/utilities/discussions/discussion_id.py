"""The tag with a discussion id, ``[DiscussionId]...[/DiscussionId]``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from Middleware.models.messages import Message
from Middleware.models.request_context import current_request
from Middleware.utilities.discussions.key_salts import SALT_FILE
from Middleware.utilities.files.path_utils import folded_name, is_storable_name

logger = logging.getLogger(__name__)

OPEN_TAG, _CLOSE_TAG = "[DiscussionId]", "[/DiscussionId]"


def extract_discussion_id(messages: Iterable[Mapping[str, object]]) -> str | None:
    """Return the id in the first complete tag of a message; None without one, or if the id is unsafe."""
    for message in messages:
        content = message.get("content")
        # The result of a tool comes from outside and must not select the data of another conversation.
        if not isinstance(content, str) or OPEN_TAG not in content or message.get("role") == "tool":
            continue
        found = next(_names(content), None)
        if found:
            return _checked(content[slice(*found)])
    return None


def with_discussion_id(messages: Sequence[Mapping[str, object]], name: str) -> list[Mapping[str, object]]:
    """Return the messages with the tag of an id in front of their first text."""
    tagged = list(messages)
    for position, message in enumerate(tagged):
        content = message.get("content")
        if isinstance(content, str):
            tagged[position] = {**message, "content": f"{OPEN_TAG}{name}{_CLOSE_TAG}{content}"}
            break
    return tagged


def remove_discussion_id_tag(messages: Iterable[Message]) -> None:
    """Remove every complete tag from every message, in place; the text around it stays, white space included."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and OPEN_TAG in content:
            message["content"] = without_discussion_id_tags(content)


def _names(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the name in each complete tag. A name ends at the first closing tag, within its line."""
    # The time is proportional to the length of the text, whatever tags it has; that of a regular expression is not.
    at, line_end = 0, -1
    while (found := text.find(OPEN_TAG, at)) >= 0:
        start = found + len(OPEN_TAG)
        if line_end < start:
            newline = text.find("\n", start)
            line_end = len(text) if newline < 0 else newline
        end = text.find(_CLOSE_TAG, start, line_end)
        # Without a closing tag, no other opening tag of this line is complete either.
        if end < 0:
            at = line_end
        else:
            yield start, end
            at = end + len(_CLOSE_TAG)


def without_discussion_id_tags(text: str) -> str:
    """Return the text without its complete tags."""
    kept, at = [], 0
    for start, end in _names(text):
        kept.append(text[at : start - len(OPEN_TAG)])
        at = end + len(_CLOSE_TAG)
    return "".join((*kept, text[at:]))


def _checked(name: str) -> str | None:
    if not name.strip():
        return None
    # The salt of the keys would be looked for in a discussion of its name.
    if not is_storable_name(name) or folded_name(name) == SALT_FILE:
        request = current_request()
        logger.warning(
            "The discussion id of this request cannot be a folder name; the request runs without one%s",
            f" (request {request.request_id})" if request is not None else "",
        )
        return None
    return name
