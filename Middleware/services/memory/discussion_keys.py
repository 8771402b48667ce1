"""What a client's API key means for its stored data."""
from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from Middleware.utilities import config_utils
from Middleware.utilities.config.users import find_user_file
from Middleware.utilities.encryption_utils import DataKey, derive_encryption_key, hash_api_key

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
        encryption_key = data_key(api_key, config_utils.get_current_username())
    return DiscussionKeys(hash_api_key(api_key), encryption_key)


def data_key(api_key: str, user: str) -> DataKey:
    """What encrypts the data of a user's client. It knows the keys of the name spelled otherwise, and of other users:
    the folder of an API key is theirs too."""
    return DataKey(derive_encryption_key(api_key, user), partial(_other_keys, api_key, user))


def _other_keys(api_key: str, user: str) -> Iterator[bytes]:
    for name in _other_names(user):
        yield derive_encryption_key(api_key, name)


def _other_names(user: str) -> list[str]:
    names = [name for one in (user, *config_utils.configured_users()) for name in user_spellings(one)]
    return [name for name in dict.fromkeys(names) if name != user]


def user_spellings(user: str) -> list[str]:
    """How the name of a user may have been spelled: as it is, in lower case, and like its file."""
    file = find_user_file(user)
    names = [user, user.lower(), *([os.path.splitext(os.path.basename(file.path))[0]] if file else [])]
    return list(dict.fromkeys(names))
