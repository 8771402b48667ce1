"""The request of a recorded run, as it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.records.model import RunDocument
from Middleware.exceptions import WilmerError


class NotKeptError(WilmerError):
    """What is needed of a run was not kept; the message says what, and why."""


@dataclass(frozen=True)
class RecordedRequest:
    """The messages of a request and what came with them.

    Attributes:
        without_images: how many images the messages had. Recordings do not hold them.
    """

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...]
    tool_choice: object
    without_images: int


def recorded_request(document: RunDocument) -> RecordedRequest:
    """Return the request of a run. Raises NotKeptError."""
    found = next((span.texts["request"] for span in document.spans if "request" in span.texts), None)
    if not isinstance(found, Mapping):
        raise NotKeptError(_reason(document))
    messages, images = [], 0
    for message in _mappings(found.get("messages")):
        kept, count = _without_images(message)
        messages.append(kept)
        images += count
    return RecordedRequest(tuple(messages), tuple(_mappings(found.get("tools"))), found.get("tool_choice"), images)


def _reason(document: RunDocument) -> str:
    if any(span.texts for span in document.spans):
        return (
            "The request of this run was not recorded, so that it cannot be repeated: it ended before a workflow began."
        )
    if document.facts["private"]:
        return "The texts of this run are private and were not kept, so that it cannot be repeated."
    return "The texts of this run were not kept, so that it cannot be repeated. The switch is in Settings."


def _mappings(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [entry for entry in value if isinstance(entry, Mapping)]


def _without_images(message: Mapping[str, object]) -> tuple[Mapping[str, object], int]:
    images, content = message.get("images"), message.get("content")
    count = len(images) if isinstance(images, Sequence) else 0
    kept = {key: value for key, value in message.items() if key != "images"}
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [block for block in content if not (isinstance(block, Mapping) and _is_image(block))]
        count += len(content) - len(texts)
        kept["content"] = texts
    return kept, count


def _is_image(block: Mapping[str, object]) -> bool:
    return "image" in block or "image" in str(block.get("type"))
