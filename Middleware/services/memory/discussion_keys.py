"""The keys for stored data that are derived from a client's API key."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from Middleware.exceptions import WilmerError
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.config.users import find_user_file
from Middleware.utilities.encryption_utils import SHORT_KEY, DataKey, derive_encryption_key, hash_api_key
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

ENCRYPT_KEY = "encryptUsingApiKey"


@dataclass(frozen=True)
class DiscussionKeys:
    """The name of the data folder and the encryption key; both None without an API key, the latter also without
    ``encryptUsingApiKey``."""

    key_hash: str | None = None
    encryption_key: bytes | None = field(default=None, repr=False)


NO_KEYS = DiscussionKeys()


def discussion_keys(api_key: str | None) -> DiscussionKeys:
    """Return the keys for a client's API key and the current user's settings."""
    if not api_key:
        return NO_KEYS
    encryption_key = None
    if config_utils.user_flag(ENCRYPT_KEY):
        user = config_utils.get_current_username()
        if len(api_key) < SHORT_KEY and process().one(_reported_users).first(user):
            logger.warning("%s", short_key_text(user))
        encryption_key = data_key(api_key, user)
    return DiscussionKeys(hash_api_key(api_key), encryption_key)


def _reported_users() -> Once[str]:
    """The users for whom a short key was logged."""
    return Once()


def encrypting(users: Iterable[str]) -> list[str]:
    """Return those of the users whose data is encrypted with their clients' keys."""
    found = []
    for user in users:
        # A user file that cannot be read is reported where it is used.
        with contextlib.suppress(WilmerError):
            if config_utils.flag_in(config_utils.settings_for(user), ENCRYPT_KEY, user):
                found.append(user)
    return found


def short_key_text(user: str) -> str:
    """Return what to do about a short key that encrypts the data of a user."""
    return (
        f"Data of user '{user}' is encrypted with an API key of less than {SHORT_KEY} characters. Anyone who gets the "
        f"disk can guess such a key. Change it: make a key with {own_command('keys', 'new')}, stop the server, and "
        f"run {own_command('rekey', '--User', user)}"
    )


def data_key(api_key: str, user: str) -> DataKey:
    """Return the encryption key of a client's key for a user, which knows the others that may have been used."""
    return DataKey(derive_encryption_key(api_key, user), partial(_other_keys, api_key, user))


def _other_keys(api_key: str, user: str) -> Iterator[bytes]:
    """Yield the keys for other spellings of the name and for other users, who share the folder of an API key."""
    names = [name for one in (user, *config_utils.configured_users()) for name in user_spellings(one)]
    # Deriving a key takes long, so only as many are derived as are needed.
    for name in dict.fromkeys(names):
        if name != user:
            yield derive_encryption_key(api_key, name)


def user_spellings(user: str) -> list[str]:
    """Return the possible spellings of a user's name: unchanged, in lower case, and like its file."""
    file = find_user_file(user)
    # The user may have been spelled in another way when the data was written.
    names = [user, user.lower(), *([os.path.splitext(os.path.basename(file.path))[0]] if file else [])]
    return list(dict.fromkeys(names))
