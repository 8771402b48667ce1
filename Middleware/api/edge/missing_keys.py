"""Tells the operator of clients whose conversations are not kept apart, or not encrypted, for want of a usable key."""
from __future__ import annotations

import logging
import threading
from wsgiref.types import WSGIEnvironment

from flask import Flask

from Middleware.api.edge.access_keys import PERMITTED_USERS_KEY
from Middleware.utilities import config_utils

logger = logging.getLogger(__name__)

MOST_USERS = 1000
_EXTENSION = "wilmer.missing_keys"


class MissingKeys:
    """Warns once per user of data that are stored in clear, and once of another spelling of ``Bearer``. Thread-safe."""

    def __init__(self, most_users: int = MOST_USERS) -> None:
        self._most_users = most_users
        self._users: set[str] = set()
        self._told_of_spelling = False
        self._lock = threading.Lock()

    def look(self, environ: WSGIEnvironment, api_key: str | None) -> None:
        """Look at a request of the current user.

        Args:
            environ: the WSGI environ.
            api_key: the client's usable key, None if it brought none.
        """
        if api_key:
            return
        user = config_utils.get_current_username()
        if config_utils.user_flag("encryptUsingApiKey") and self._is_new(user):
            logger.warning("User %s has encryptUsingApiKey, but a request brought no key (it must be exactly "
                           "'Authorization: Bearer KEY'): what it stores is not encrypted.", user)
        scheme = environ.get("HTTP_AUTHORIZATION", "").strip().partition(" ")[0]
        listed = PERMITTED_USERS_KEY in environ  # then the list of accepted keys tells of the spelling
        if scheme.lower() == "bearer" and scheme != "Bearer" and not listed and self._is_first_spelling():
            logger.warning("A client writes %s in place of 'Bearer': its conversations are kept as those of clients "
                           "without a key.", ascii(scheme))

    def _is_new(self, user: str) -> bool:
        with self._lock:
            if user in self._users or len(self._users) >= self._most_users:
                return False
            self._users.add(user)
            return True

    def _is_first_spelling(self) -> bool:
        with self._lock:
            first, self._told_of_spelling = not self._told_of_spelling, True
            return first


def missing_keys_of(app: Flask) -> MissingKeys:
    """The one of an application."""
    kept: MissingKeys | None = app.extensions.get(_EXTENSION)
    if kept is None:
        kept = app.extensions.setdefault(_EXTENSION, MissingKeys())  # the first of several threads makes it
    return kept
