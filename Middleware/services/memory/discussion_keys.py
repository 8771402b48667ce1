"""The keys for stored data that are derived from a client's API key."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from Middleware.exceptions import WilmerError
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import own_command
from Middleware.utilities.discussions.client_keys import data_key, key_place
from Middleware.utilities.encryption_utils import SHORT_KEY
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
    """Return the keys for a client's API key and the current user's settings. Raises KeySaltError."""
    if not api_key:
        return NO_KEYS
    encryption_key = None
    place = key_place(api_key)
    if config_utils.user_flag(ENCRYPT_KEY):
        user = config_utils.get_current_username()
        if len(api_key) < SHORT_KEY and process().one(_reported_users).first(user):
            logger.warning("%s", short_key_text(user))
        encryption_key = data_key(api_key, user, place)
    return DiscussionKeys(place.name, encryption_key)


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
