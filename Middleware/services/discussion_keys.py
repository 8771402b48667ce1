"""What a client's API key means for its stored data."""
from __future__ import annotations

from dataclasses import dataclass, field

from Middleware.utilities import config_utils
from Middleware.utilities.encryption_utils import derive_encryption_key, hash_api_key

ENCRYPT_KEY = "encryptUsingApiKey"


@dataclass(frozen=True)
class DiscussionKeys:
    """The folder of a key's data, and what encrypts it; both None without a key, the latter also if the user does not
    want it."""

    key_hash: str | None = None
    encryption_key: bytes | None = field(default=None, repr=False)


NO_KEYS = DiscussionKeys()


def discussion_keys(api_key: str | None) -> DiscussionKeys:
    """What follows from a client's key and the current user's settings."""
    if not api_key:
        return NO_KEYS
    encryption_key = None
    if config_utils.user_flag(ENCRYPT_KEY):
        encryption_key = derive_encryption_key(api_key, config_utils.get_current_username())
    return DiscussionKeys(hash_api_key(api_key), encryption_key)
