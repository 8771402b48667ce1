"""Finds the messages of a conversation that no memory covers yet, and cuts them into the chunks of new memories."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from Middleware.models.messages import Message
from Middleware.utilities.conversations.message_places import MessagePlace, find_place, place_of
from Middleware.utilities.text_utils import chunk_messages_by_token_size, messages_to_text_block


@dataclass(frozen=True)
class Chunk:
    """Messages that become one memory.

    Attributes:
        text: their contents in escaped form.
        hash: the hash of the last of them.
        place: the position of the last one in the conversation; None if it is not known.
    """

    text: str
    hash: str
    place: MessagePlace | None = None


def first_new(hashes: Sequence[str], stored: Sequence[str], end: int, places: Mapping[str, MessagePlace]) -> int:
    """Return the index of the first message that no memory covers; ``end`` if there is none among the first ``end``.

    The newest memory whose message is still in the conversation decides. Of several equal messages, the one at the
    memory's position counts; if the position was not recorded, the last one up to the index ``end``. If the message
    comes after that (newer messages were deleted), everything is covered.

    Args:
        hashes: of all messages.
        stored: the hashes of the memories, oldest first.
        places: hash of a memory -> the position of its message.
    """
    where = indexes_by_hash(hashes)
    for known in dict.fromkeys(reversed(stored)):
        index = reached(where.get(known, []), hashes, places.get(known), end + 1)
        if index is not None:
            return min(index + 1, end)
    return 0


def indexes_by_hash(hashes: Sequence[str]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for index, found in enumerate(hashes):
        where.setdefault(found, []).append(index)
    return where


def reached(found: Sequence[int], hashes: Sequence[str], place: MessagePlace | None, before: int) -> int | None:
    """Return the index of the message that a memory ends with; None if it is no longer there.

    Args:
        found: the indexes of all messages with its hash.
        before: without a position, the last message with an index below this counts; if there is none, the last of all.
    """
    if not found:
        return None
    if place is not None:
        return find_place(found, hashes, place)
    return next((index for index in reversed(found) if index < before), found[-1])


def chunks_of(messages: Sequence[Message], hashes: Sequence[str], start: int, end: int, size: int) -> list[Chunk]:
    """Return the messages from ``start`` up to ``end`` in chunks of at most ``size`` estimated tokens."""
    chunks: list[Chunk] = []
    last = start - 1
    for group in chunk_messages_by_token_size(messages[start:end], size):
        last += len(group)
        chunks.append(Chunk(messages_to_text_block(group), hashes[last], place_of(hashes, last)))
    return chunks
