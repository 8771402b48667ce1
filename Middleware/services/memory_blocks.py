"""Where nodes get the texts of a conversation's memories from."""
from __future__ import annotations


def read_memory_blocks(discussion_id: str, *, encryption_key: bytes | None = None,
                       api_key_hash: str | None = None) -> list[str]:
    """The texts of the conversation's memories, oldest first.

    Nothing stores memories yet, so there are none.
    """
    return []
