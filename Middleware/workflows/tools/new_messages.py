"""Which messages of a conversation no memory covers yet, and the pieces in which they become memories."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.utilities.message_chunks import chunk_messages_by_token_size, messages_to_text_block

Message = dict[str, Any]


@dataclass(frozen=True)
class Chunk:
    """Messages that become one memory.

    Attributes:
        text: their contents in escaped form.
        hash: the hash of the last of them.
        before: the hash of the message before that one; "" if there is none, None if it is not known.
    """

    text: str
    hash: str
    before: str | None = None


def first_new(hashes: Sequence[str], stored: Sequence[str], end: int, before: Mapping[str, str]) -> int:
    """The index of the first message that no memory covers; ``end`` if there is none among the first ``end``.

    The newest memory whose message is still in the conversation decides. Of several equal messages the one counts that
    stands behind the right message, as far as ``before`` knows it, and of those the last up to the index ``end``. If
    all lie behind it (newer messages were deleted), everything is covered.

    Args:
        hashes: of all messages.
        stored: the hashes of the memories, oldest first.
        before: hash of a memory -> hash of the message before the one it stands for.
    """
    places: dict[str, list[int]] = {}
    for index, found in enumerate(hashes):
        places.setdefault(found, []).append(index)
    for known in dict.fromkeys(reversed(stored)):
        if known in places:
            reached = [index for index in _likely(places[known], hashes, before.get(known)) if index <= end]
            return min(reached[-1] + 1, end) if reached else end
    return 0


def _likely(found: list[int], hashes: Sequence[str], before: str | None) -> list[int]:
    if before is None:
        return found
    return [index for index in found if hash_before(hashes, index) == before] or found


def hash_before(hashes: Sequence[str], index: int) -> str:
    return hashes[index - 1] if index else ""


def chunks_of(messages: Sequence[Message], hashes: Sequence[str], start: int, end: int, size: int) -> list[Chunk]:
    """The messages from ``start`` up to ``end`` in pieces of at most ``size`` estimated tokens."""
    chunks: list[Chunk] = []
    last = start - 1
    for group in chunk_messages_by_token_size(messages[start:end], size):
        last += len(group)
        chunks.append(Chunk(messages_to_text_block(group), hashes[last], hash_before(hashes, last)))
    return chunks
