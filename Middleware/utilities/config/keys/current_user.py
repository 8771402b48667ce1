"""The keys of ``Users/_current-user.json``."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable

CURRENT_USER_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("currentUser", "str", "", "The user that is served when the command line names none.", names="user",
              required=True),
)
CURRENT_USER = KeyTable(CURRENT_USER_KEYS)
