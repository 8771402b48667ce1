"""Hashes by which stored data refers to messages: SHA-256 of UTF-8, as 64 hexadecimal digits.

Stored data depends on them. They are taken from contents as the engine carries them, that is with sentinels in place
of braces and without discussion tags.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from Middleware.models.messages import Message
from Middleware.models.request_context import current_request
from Middleware.utilities.text_utils import (
    ROLE_LABELS,
    chunk_messages_by_token_size,
    message_text,
    messages_to_text_block,
)

# A longer beginning before a colon is a part of a sentence, as is one of a single message.
_SPEAKER = re.compile(r"\s*([^\s:][^:\n]{0,39}):\s")
_LEAST_MESSAGES_OF_A_SPEAKER = 2


def hash_content(content: str) -> str:
    """Return the hash of a text; half a surrogate pair, which JSON can carry, counts as the bytes it would have."""
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def hash_single_message(message: Mapping[str, object]) -> str:
    """Return the hash of the content, whatever the role. Images count only in a message without text."""
    return hash_messages((message,))[0]


def hash_messages(messages: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the ``hash_single_message`` of each message."""
    # A request caches the hashes, so that a long conversation is not hashed again by each node.
    request = current_request()
    known = request.hashes if request is not None else {}
    return [
        known.get(text) or _hash_of(text, message, known) for message in messages for text in (message_text(message),)
    ]


def recognition_keys(messages: Sequence[Mapping[str, object]]) -> list[str]:
    """Return for each message the hash of its text, without the role or the speaker before it.

    A client may begin, or cease, to write names before the messages of a conversation. A name counts as a speaker if
    it stands before several of ``messages``. The key of a message without either is its hash.
    """
    texts = [without_role(message_text(message)) for message in messages]
    speakers = _speakers_before(texts)
    return [
        _key(message, _without_speaker(text, speakers), stored)
        for message, text, stored in zip(messages, texts, hash_messages(messages), strict=True)
    ]


def speakers_before(messages: Iterable[Mapping[str, object]]) -> set[str]:
    """Return the names that stand before several of the messages, as ``recognition_keys`` finds them."""
    return _speakers_before([without_role(message_text(message)) for message in messages])


def _speakers_before(texts: Iterable[str]) -> set[str]:
    return speakers_among(label for text in texts if (label := speaker_and_rest(text)[0]))


def without_role(text: str) -> str:
    """Return a text without the label of a role at its beginning."""
    label = next(filter(text.startswith, ROLE_LABELS), "")
    return text[len(label) :]


def speaker_and_rest(text: str) -> tuple[str, str]:
    """Return what may be the name of a speaker before a text, and the text behind it; "" and the text without one."""
    found = _SPEAKER.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def speakers_among(labels: Iterable[str]) -> set[str]:
    """Return which of the ``labels`` of a conversation's messages, one for each that has one, are speakers."""
    counts = Counter(labels)
    return {label for label, count in counts.items() if count >= _LEAST_MESSAGES_OF_A_SPEAKER}


def _without_speaker(text: str, speakers: Collection[str]) -> str:
    label, rest = speaker_and_rest(text)
    return rest if label and label in speakers else text


def _key(message: Mapping[str, object], said: str, stored: str) -> str:
    said = said.strip()
    # A message of pictures, or of a name alone, has nothing else to be recognized by.
    return hash_content(said) if said and said != message_text(message) else stored


def _hash_of(text: str, message: Mapping[str, object], known: dict[str, str]) -> str:
    # Not cached: the key of the cache is the text, and such messages differ only in their images.
    if not text.strip():
        return hash_content(text + _images(message))
    return known.setdefault(text, hash_content(text))


def hash_message_with_images(message: Mapping[str, object]) -> str:
    """Return the hash of role, content and images."""
    return hash_content(str(message.get("role") or "") + message_text(message) + _images(message))


def chunk_messages_with_hashes(
    messages: Sequence[Message], chunk_size: float = 500, use_first_message_hash: bool = False
) -> list[tuple[str, str]]:
    """Return the conversation as ``(text block, hash of the block's last message)``, or of its first if asked for."""
    chosen = 0 if use_first_message_hash else -1
    return [
        (messages_to_text_block(group), hash_single_message(group[chosen]))
        for group in chunk_messages_by_token_size(messages, chunk_size)
    ]


def extract_text_blocks_from_hashed_chunks(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [text for text, _ in pairs]


def find_last_matching_hash_message(
    messages: Sequence[Message],
    pairs: Iterable[tuple[str, str]],
    skip_system: bool = False,
    turns_to_skip_looking_back: int = 4,
) -> int:
    """Return the number of messages after the newest one whose hash is in ``pairs``.

    The newest ``turns_to_skip_looking_back`` messages are not counted, although the hash of the oldest of them is
    compared too. If no hash is known, all other messages count.
    """
    if skip_system:
        messages = [message for message in messages if message.get("role") != "system"]
    known = {stored for _, stored in pairs}
    boundary = max(0, len(messages) - turns_to_skip_looking_back)
    for index in range(min(boundary, len(messages) - 1), -1, -1):
        if hash_single_message(messages[index]) in known:
            return max(0, boundary - index - 1)
    return boundary


def _images(message: Mapping[str, object]) -> str:
    images = message.get("images")
    return "".join(sorted(map(str, images))) if isinstance(images, (list, tuple)) else ""
